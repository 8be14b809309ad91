"""Encodes LangGraph's checkpoints as graphkit's states, and its writes as pending writes.

A state holds the version and the value of each channel. The value is the bytes that LangGraph's
serializer returned; nothing here interprets them.

The header of a msgpack value (how many elements it has) is kept apart from the rest. If a list
grows, its header changes, but the rest begins with the old bytes. If a list drops its first
elements, the rest continues what is left of the old bytes. The file stores only the difference.

| key | value |
|---|---|
| `channel:<name>` | `[version]`, or `[version, type, bytes]`: a short value, or the header of a long one |
| `value:<name>` | what follows the header |
| `seen:<node>` | versions_seen of a node |
| `checkpoint` | `[type, bytes]`: all other fields of the checkpoint |

LangGraph may call `put_writes` before it puts the checkpoint, and from several threads. A log keeps
such early writes until their checkpoint comes; a saver without a log keeps them in a namespace of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from graphkit.errors import CheckpointSerializationError
from graphkit.saver_kit import LANGGRAPH_WRITE as WRITE, PLAIN, Codec, FrozenDict, FrozenList, freeze
from savers import _delta as delta
from savers.langgraph.serializer import make_refusal

CHANNEL: Final = "channel:"
VALUE: Final = "value:"
SEEN: Final = "seen:"
REST: Final = "checkpoint"

_SEPARATE_FIELDS: Final = frozenset({"channel_values", "channel_versions", "versions_seen"})
"""The fields of a checkpoint that have keys of their own in the state."""
_MAX_SHORT: Final = 64
"""Values of at most this many bytes are not cut."""
_MAX_TYPES: Final = 64
"""How many names of types are remembered: serializers have about five."""
_LONG: Final = 1 << 12
"""Values from this many bytes on are not packed by a packer that keeps its buffer."""
_CODEC: Final = Codec()
"""Packs the fields of writes: strings, numbers and bytes, which need no registered types."""


class SerializedCheckpoint(NamedTuple):
    """What is new in a checkpoint, as the serializer returned it: types and bytes."""

    values: Mapping[str, tuple[str, bytes]]
    """By channel."""
    rest: tuple[str, bytes]
    """The fields that are not stored by channel or by node."""


class Successor(NamedTuple):
    """The state of a checkpoint that follows the one stored last."""

    state: FrozenDict
    packed: Mapping[str, bytes | None]
    """What was set: each key with its value, packed. None stands for a bytes object of the state, and after
    `share_with_last` for any value."""
    is_usual: bool
    """Whether a record needs no more than these: no key was added or removed, and the parent is the last checkpoint."""
    changed_nodes: Sequence[str]
    """The nodes whose `versions_seen` differ from those before."""


def serialize_checkpoint(
    serde: SerializerProtocol, checkpoint: Mapping[str, Any], new_versions: ChannelVersions
) -> SerializedCheckpoint:
    """Serialize what is new in a checkpoint, with one call for each value.

    Raises:
        CheckpointSerializationError: a value cannot be stored; the error names its channel.
    """
    values = checkpoint["channel_values"]
    versions = checkpoint["channel_versions"]
    rest = {name: value for name, value in checkpoint.items() if name not in _SEPARATE_FIELDS}
    serialized_rest = serialize(serde, rest, REST)
    serialized: dict[str, tuple[str, bytes]] = {}
    for name in new_versions:
        if name in values and name in versions:
            serialized[name] = serialize(serde, values[name], name)
    return SerializedCheckpoint(serialized, serialized_rest)


def serialize(serde: SerializerProtocol, value: Any, path: str) -> tuple[str, bytes]:
    """Return the type and the bytes that the serializer makes of a value.

    Raises:
        CheckpointSerializationError: the value cannot be stored; the error names `path`.
    """
    try:
        type_name, data = serde.dumps_typed(value)
        return type_name, bytes(data)
    except (TypeError, ValueError) as error:
        raise make_refusal(path, value, error) from error


def find_missing(
    serde: SerializerProtocol,
    checkpoint: Mapping[str, Any],
    new_versions: ChannelVersions,
    serialized: SerializedCheckpoint,
    parent: Mapping[str, Any],
    earlier_states: Iterable[Mapping[str, Any]],
) -> tuple[ChannelVersions, SerializedCheckpoint]:
    """Find the values of channels that should be unchanged, but that the parent does not have in this version.

    The checkpoint may have the value, as after an update of a state that was read elsewhere. If it
    has none, an earlier checkpoint may have it, as when a graph goes on from a fork.

    Args:
        serde: LangGraph's serializer.
        checkpoint: LangGraph's checkpoint.
        new_versions: the channels whose versions differ from those of the parent.
        serialized: what `serialize_checkpoint` made of it.
        parent: the state of the parent.
        earlier_states: the states in which values are searched for, the newest first.

    Returns:
        The versions and the values that are new for the parent: the given ones and those found.

    Raises:
        CheckpointSerializationError: a value cannot be stored; the error names its channel.
    """
    all_versions = dict(new_versions)
    values = dict(serialized.values)
    given = checkpoint["channel_values"]
    missing: dict[str, Any] = {}
    for name, version in checkpoint["channel_versions"].items():
        if name in new_versions or _has_version(parent, name, version):
            continue
        all_versions[name] = version
        if name in given:
            values[name] = serialize(serde, given[name], name)
        else:
            missing[name] = version
    for state in earlier_states:
        found = [name for name, version in missing.items() if _has_version(state, name, version)]
        for name in found:
            del missing[name]
            _, *typed = state[CHANNEL + name]
            if typed:
                type_name, header = typed
                values[name] = type_name, header + state.get(VALUE + name, b"")
        if not missing:
            break
    return all_versions, SerializedCheckpoint(values, serialized.rest)


def _has_version(state: Mapping[str, Any], name: str, version: Any) -> bool:
    return bool(state.get(CHANNEL + name, (None,))[0] == version)


def encode_successor(  # noqa: PLR0912, PLR0915 - the hot path
    base: FrozenDict,
    checkpoint: Mapping[str, Any],
    new_versions: ChannelVersions,
    serialized: SerializedCheckpoint,
    pack: Callable[[object, str], bytes],
) -> Successor | None:
    """Return the state of a checkpoint by that of its parent.

    This is part of each step of a graph. Therefore it looks only at what `new_versions` names, and
    compares the other versions and the `versions_seen` of each node once.

    Args:
        base: the state of the parent.
        checkpoint: LangGraph's checkpoint.
        new_versions: the channels whose versions differ from those of the parent.
        serialized: what `serialize_checkpoint` made of it.
        pack: packs a value for the file, given its path.

    Returns:
        The state with its keys in the order of `base`; None if the parent does not have a channel
        that should be unchanged (see `find_missing`).
    """
    # The new state begins as a copy of the old one, in which what changes is set again: so its keys stay
    # in their order, and unchanged values are the same objects, which no later step compares by content.
    # What changes is packed at the same time. In the usual step no key comes or goes, and the packed
    # values are all that the record needs. `kept` are the keys that the checkpoint has: as many as both
    # states, if that is so.
    state = FrozenDict(base)
    set_key = dict.__setitem__  # A FrozenDict refuses assignments.
    get_old = base.get
    values = serialized.values
    versions = checkpoint["channel_versions"]
    all_seen = checkpoint["versions_seen"]
    type_name, header = serialized.rest
    packed: dict[str, bytes | None] = {REST: b"\x92" + _pack_typed(type_name, header)}
    entry = FrozenList(serialized.rest)
    entry.kind = PLAIN
    set_key(state, REST, entry)
    kept = {REST}
    # Nearly always, all new versions are the same object.
    last_version: Any = None
    packed_version = b""
    for name, version in versions.items():
        key = CHANNEL + name
        kept.add(key)
        if name not in new_versions:
            old = get_old(key)
            if old is None or old[0] != version:
                return None
            if VALUE + name in base:
                kept.add(VALUE + name)
            continue
        if version is not last_version or not packed_version:
            last_version = version
            packed_version = pack(version, key)
        # Most values are short; a call to freeze each would be a quarter of the time.
        typed = values.get(name)
        rest = b""
        if typed is None:
            entry = FrozenList((version,))
            packed[key] = b"\x91" + packed_version
        else:
            type_name, header = typed
            if len(header) > _MAX_SHORT:
                # The header of a list, a dict, a str or bytes says how long it is. Other values, as the exts
                # of objects, have none here. Encrypted bytes may seem to begin with a header, which does no
                # harm: a reader joins both parts again before it looks at them.
                _, _, header_length = delta.parse_header(header, 0)
                rest = header[header_length:]
                header = header[:header_length]
            entry = FrozenList((version, type_name, header))
            packed[key] = b"\x93" + packed_version + _pack_typed(type_name, header)
        entry.kind = PLAIN
        set_key(state, key, entry)
        if rest:
            packed[VALUE + name] = None
            set_key(state, VALUE + name, rest)
            kept.add(VALUE + name)
    changed_nodes: list[str] = []
    for node, seen in all_seen.items():
        key = SEEN + node
        kept.add(key)
        if get_old(key) != seen:
            frozen = _freeze_versions(seen)
            packed[key] = pack(frozen, key)
            set_key(state, key, frozen)
            changed_nodes.append(node)
    state.kind = PLAIN  # the state contains only bytes and versions
    is_usual = len(state) == len(kept) == len(base)
    if not is_usual:
        for key in list(state):
            if key not in kept:
                dict.__delitem__(state, key)
    return Successor(state, packed, is_usual, changed_nodes)


_BIN_HEADERS: Final = tuple(delta.pack_header(delta.BIN, length) for length in range(256))
"""By length: what precedes a short bytes object in msgpack."""


def _pack_typed(type_name: str, data: bytes) -> bytes:
    """Pack a type and the bytes of a value, as the last elements of a list."""
    length = len(data)
    header = _BIN_HEADERS[length] if length < len(_BIN_HEADERS) else delta.pack_header(delta.BIN, length)
    return _pack_type(type_name) + header + data


@lru_cache(maxsize=_MAX_TYPES)
def _pack_type(type_name: str) -> bytes:
    text = type_name.encode()
    return delta.pack_header(delta.STR, len(text)) + text


def _freeze_versions(seen: Mapping[str, Any]) -> FrozenDict:
    """Freeze the versions that a node has seen: nearly always strings, which need no walk."""
    for name, version in seen.items():
        if not name.__class__ is version.__class__ is str:
            frozen: FrozenDict = freeze(seen)
            return frozen
    frozen = FrozenDict(seen)
    frozen.kind = PLAIN
    return frozen


def share_with_last(base: FrozenDict, successor: Successor) -> Successor:
    """Let a state that follows another one than `base`, the last, share equal values with that one.

    Its keys get the order of those of `base`.
    """
    new = successor.state
    state = FrozenDict(base)
    changed: dict[str, None] = {}
    for key in base:
        if key not in new:
            dict.__delitem__(state, key)
    for key, value in new.items():
        if base.get(key) != value:
            changed[key] = None
            dict.__setitem__(state, key, value)
    state.kind = PLAIN  # the state contains only bytes and versions
    return successor._replace(state=state, packed=changed, is_usual=False)


# Pending writes: what the tasks of LangGraph wrote, recorded with the checkpoint that they ran from.


class Write(NamedTuple):
    """One write, in the order of the fields in which it is stored."""

    task_path: str
    task_id: str
    idx: int
    """The position among the writes of its task; negative for the special writes of LangGraph."""
    channel: str
    type: str
    data: bytes

    @property
    def key(self) -> str:
        """The key that distinguishes it from the other writes of its checkpoint."""
        return f"{WRITE}{self.idx}:{self.task_id}"

    @property
    def is_ordinary(self) -> bool:
        """Whether the first write with this key stays.

        Special writes (errors, interrupts, answers, schedules) replace earlier ones.
        """
        return self.idx >= 0


def encode_writes(
    serde: SerializerProtocol, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> list[Write]:
    """Return the writes of a task, with serialized values.

    Raises:
        CheckpointSerializationError: a value cannot be stored, or the id or path of the task is no text,
            so that the checkpoint could not be read again. Nothing was changed.
    """
    for name, text in (("task_id", task_id), ("task_path", task_path)):
        given: object = text
        if not isinstance(given, str):
            raise CheckpointSerializationError(name, type(given).__name__, "it must be a str")
    encoded: list[Write] = []
    for position, (channel, value) in enumerate(writes):
        type_name, data = serialize(serde, value, channel)
        idx = WRITES_IDX_MAP.get(channel, position)
        encoded.append(Write(task_path, task_id, idx, channel, type_name, data))
    return encoded


def pack_writes(writes: Iterable[Write]) -> dict[str, bytes]:
    """Return writes by key: the fields of each, packed as a list."""
    packed: dict[str, bytes] = {}
    for write in writes:
        key = write.key
        if len(write.data) < _LONG:
            packed[key] = _CODEC.pack_flat(write, key)
        else:
            packed[key] = _CODEC.pack(FrozenList(write), key)
    return packed


def sort_writes(writes: Iterable[Write]) -> list[Write]:
    """Return the writes of a checkpoint in LangGraph's order."""
    return sorted(writes, key=lambda write: writes_sort_key(write.task_path, write.task_id, write.idx))
