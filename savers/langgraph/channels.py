"""A LangGraph checkpoint as a graphkit state, and back.

A state holds the version and the value of each channel. The value is the bytes that LangGraph's
serializer returned; nothing here interprets them.

The header of a msgpack value (how many elements it has) is kept apart from the rest. If a list
grows, its header changes, but the rest begins with the old bytes. If a list drops its first
elements, the rest continues what is left of the old bytes. The file stores only the difference.

| key | value |
|---|---|
| `channel:<name>` | `[version]`, or `[version, type, bytes]`: a short value, or the header of a long one |
| `value:<name>` | what follows the header; earlier versions stored a list of pieces |
| `seen:<node>` | versions_seen of a node |
| `checkpoint` | `[type, bytes]`: all other fields of the checkpoint |
| `writes` | the writes that `put_writes` received before the checkpoint itself |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from graphkit import Checkpoint
from graphkit.errors import CheckpointSerializationError
from graphkit.values import PLAIN, REMOVED, SET, Changes, FrozenDict, freeze
from savers import _delta as delta

if TYPE_CHECKING:
    from langgraph.checkpoint.base import ChannelVersions
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from savers.langgraph.serializer import Deserializer

CHANNEL: Final = "channel:"
VALUE: Final = "value:"
SEEN: Final = "seen:"
REST: Final = "checkpoint"
WRITES: Final = "writes"

ABSENT: Final = object()
"""Returned in place of a value for a channel that has none."""

_SEPARATE_FIELDS: Final = frozenset({"channel_values", "channel_versions", "versions_seen"})
"""The fields of a checkpoint that have keys of their own in the state."""
_MAX_SHORT: Final = 64
"""Values of at most this many bytes are not cut."""
_EMPTY: Final = FrozenDict()


class SerializationValueError(CheckpointSerializationError, ValueError):
    """The serializer refused a value with a ValueError. Code that catches that one still does."""


class Encoder:
    """Encodes checkpoints as states, in any order.

    Args:
        serde: LangGraph's serializer.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde

    def encode(
        self,
        checkpoint: Mapping[str, Any],
        new_versions: ChannelVersions,
        iter_earlier_states: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> dict[str, Any]:
        """Return the state of a checkpoint.

        Args:
            checkpoint: LangGraph's checkpoint.
            new_versions: the channels whose versions differ from those of the parent.
            iter_earlier_states: returns the states of the parent and of the checkpoints before it,
                in which unchanged channels are found.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the error names its channel.
        """
        state: dict[str, Any] = {}
        values = checkpoint["channel_values"]
        for name, version in checkpoint["channel_versions"].items():
            unchanged = None
            if name not in new_versions:
                is_given = name in values
                unchanged = _find_unchanged(name, version, iter_earlier_states, is_given=is_given)
            if unchanged is not None:
                _copy_channel(unchanged, state, name)
            elif name in values:
                self._encode_channel(state, name, version, values[name])
            else:
                state[CHANNEL + name] = [version]
        for node, seen in checkpoint["versions_seen"].items():
            state[SEEN + node] = seen
        rest = {key: value for key, value in checkpoint.items() if key not in _SEPARATE_FIELDS}
        state[REST] = list(self.serialize(rest, REST))
        return state

    def _encode_channel(self, state: dict[str, Any], name: str, version: Any, value: Any) -> None:
        type_name, data = self.serialize(value, name)
        header = data
        if len(data) > _MAX_SHORT:
            _, _, header_length = delta.parse_header(data, 0)
            header = data[:header_length]
        state[CHANNEL + name] = [version, type_name, header]
        if len(header) < len(data):
            state[VALUE + name] = data[len(header) :]

    def serialize(self, value: Any, path: str) -> tuple[str, bytes]:
        """Return the type and the bytes that the serializer makes of a value.

        Raises:
            CheckpointSerializationError: the value cannot be stored; the error names `path`.
        """
        try:
            type_name, data = self._serde.dumps_typed(value)
        except TypeError as error:
            raise CheckpointSerializationError(path, type(value).__name__, str(error)) from error
        except ValueError as error:
            raise SerializationValueError(path, type(value).__name__, str(error)) from error
        return type_name, bytes(data)


def _find_unchanged(
    name: str,
    version: Any,
    iter_earlier_states: Callable[[], Iterable[Mapping[str, Any]]],
    *,
    is_given: bool,
) -> Mapping[str, Any] | None:
    """Return the state of an earlier checkpoint that has a channel in this version, or None.

    If the new checkpoint has a value for the channel (`is_given`), only the parent is searched, and
    None means that the value is to be encoded.
    """
    for number, state in enumerate(iter_earlier_states()):
        is_parent = number == 0
        if is_given and not is_parent:
            return None
        if state.get(CHANNEL + name, (None,))[0] == version:
            return state
    return None


def _copy_channel(source: Mapping[str, Any], target: dict[str, Any], name: str) -> None:
    for key in (CHANNEL + name, VALUE + name):
        if key in source:
            target[key] = source[key]


def freeze_with_changes(base: FrozenDict, new: Mapping[str, Any]) -> tuple[FrozenDict, Changes]:
    """Freeze a state and compare it with the state that was stored last.

    Returns:
        The frozen state, which shares equal values with `base` and has its keys in the same order,
        and the changes between the two.
    """
    state = FrozenDict(base)
    ops: dict[Any, Any] = {key: REMOVED for key in base if key not in new}
    for key in ops:
        dict.__delitem__(state, key)
    for key, value in new.items():
        if base.get(key) != value:
            ops[key] = SET
            dict.__setitem__(state, key, freeze(value))
    state.kind = PLAIN  # the state contains only bytes and versions
    return state, Changes(base, ops)


def get_state(checkpoint: Checkpoint | None) -> FrozenDict:
    """Return the state of a stored checkpoint; an empty state for None."""
    return _EMPTY if checkpoint is None else checkpoint.state


def decode_checkpoint(deserializer: Deserializer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return LangGraph's checkpoint of a state."""
    versions = get_versions(state)
    values: dict[str, Any] = {}
    for name in versions:
        value = decode_value(deserializer, state, name)
        if value is not ABSENT:
            values[name] = value
    seen = {key.removeprefix(SEEN): dict(node) for key, node in state.items() if key.startswith(SEEN)}
    type_name, data = state[REST]
    rest = deserializer.deserialize(type_name, data, REST)
    return {**rest, "channel_values": values, "channel_versions": versions, "versions_seen": seen}


def get_versions(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version of each channel of a state."""
    return {key.removeprefix(CHANNEL): entry[0] for key, entry in state.items() if key.startswith(CHANNEL)}


def get_stored_channels(state: Mapping[str, Any]) -> set[str]:
    """Return the names of the channels whose values a state holds."""
    return {key.removeprefix(CHANNEL) for key, entry in state.items() if key.startswith(CHANNEL) and len(entry) > 1}


def decode_value(deserializer: Deserializer, state: Mapping[str, Any], name: str) -> Any:
    """Return the value of one channel, or ABSENT; decode no other channel."""
    _, *typed = state.get(CHANNEL + name, (None,))
    if not typed:
        return ABSENT
    type_name, header = typed
    rest = state.get(VALUE + name, b"")
    if rest.__class__ is not bytes:
        # An earlier version stored a list of pieces.
        rest = b"".join(rest)
    return deserializer.deserialize(type_name, header + rest, name)
