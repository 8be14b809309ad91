"""Decodes the checkpoints of one history from their packed states, one after another.

`channels.py` specifies the keys of a state, and decodes any state. Consecutive checkpoints of a
history share most of their values. This module takes each of them apart once, without the frozen
state between the packed values and the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgpack import unpackb

from savers import _delta as delta
from savers._log.packed_chain import GrowingValue
from savers.langgraph.channels import CHANNEL, REST, SEEN, VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langgraph.checkpoint.base import PendingWrite

    from savers._log.packed_chain import PackedCheckpoint, PackedState
    from savers.langgraph.serializer import Deserializer, TypedValue

_VERSIONS: Final = frozenset({str, int, float})
_UNSUITABLE: Final = (ValueError, TypeError, LookupError, AttributeError)
"""What values of other shapes raise. Msgpack's own errors are among them."""
_IMMUTABLE: Final = frozenset({type(None), bool, int, float, str})
_UNKNOWN: Final = object()
_MAX_SHORT: Final = 64
"""Values of at most this many bytes are remembered,"""
_MAX_SCALARS: Final = 1000
"""and about so many of them."""
Typed = tuple[str, bytes]
"""What LangGraph's serializer returns."""


class HistoryDecoder:
    """Decodes packed checkpoints of one history.

    Args:
        deserializer: restores the values.
    """

    def __init__(self, deserializer: Deserializer) -> None:
        self._deserializer = deserializer
        self._entries: dict[str, _Entry] = {}
        """By key, those of the checkpoint before."""
        self._scalars: dict[tuple[str, bytes], Any] = {}
        """Short values that cannot be changed, by their types and bytes. Many are None, and a write
        is the value of its channel in the next checkpoint."""

    def decode(self, packed: PackedCheckpoint) -> tuple[dict[str, Any], list[PendingWrite]] | None:
        """Return LangGraph's checkpoint and its pending writes.

        None if a value has another shape: the checkpoint must be decoded in the general way, which
        also finds out what is wrong with it.

        Raises:
            CheckpointSerializationError: as for `CheckpointSaver.get_tuple`.
        """
        try:
            return self._decode(packed)
        except _UNSUITABLE:
            return None

    def _decode(self, packed: PackedCheckpoint) -> tuple[dict[str, Any], list[PendingWrite]]:
        checkpoint, missing, rest = self._take_apart(packed.state)
        channels = len(missing)
        missing.append((*rest, REST))
        writes: list[Any] = []
        if packed.writes:
            scalars = self._scalars
            for _, task_id, _, channel, type_name, data in _list_writes(packed.writes):
                value = scalars.get((type_name, data), _UNKNOWN)
                if value is _UNKNOWN:
                    missing.append((type_name, data, channel))
                writes.append((task_id, channel, value))
        restored = self._restore(missing)
        values = checkpoint["channel_values"]
        for (_, _, name), value in zip(missing[:channels], restored, strict=False):
            values[name] = value
        if len(restored) > channels + 1:
            following = iter(restored[channels + 1 :])
            writes = [
                (task_id, channel, next(following) if value is _UNKNOWN else value)
                for task_id, channel, value in writes
            ]
        return {**restored[channels], **checkpoint}, writes

    def _take_apart(self, state: PackedState) -> tuple[dict[str, Any], list[TypedValue], Typed]:
        """Take a state apart.

        Returns:
            The fields of the checkpoint that are stored by channel or by node; the values of
            channels that are not known, in whose place is _UNKNOWN; and the other fields.
        """
        # 5 us for nine keys, five of which have changed.
        versions: dict[str, Any] = {}
        values: dict[str, Any] = {}
        seen: dict[str, Any] = {}
        rest: Any = None
        missing: list[TypedValue] = []
        entries = self._entries
        scalars = self._scalars
        for key, value in state.items():
            entry = entries.get(key)
            if entry is None:
                entries[key] = entry = _Entry(key)
            if entry.value is not value:
                entry.read(value)
            prefix = entry.prefix
            if prefix is CHANNEL:
                name = entry.name
                versions[name] = entry.version
                typed = entry.typed
                if typed is None:
                    continue
                tail = state.get(entry.tail_key)
                if tail is not None:
                    typed = typed[0], _join(typed[1], tail)
                values[name] = known = scalars.get(typed, _UNKNOWN)
                if known is _UNKNOWN:
                    missing.append((*typed, name))
            elif prefix is SEEN:
                seen[entry.name] = entry.seen.copy()
            elif prefix is REST:
                rest = entry.typed
        checkpoint = {"channel_values": values, "channel_versions": versions, "versions_seen": seen}
        return checkpoint, missing, rest

    def _restore(self, typed: list[TypedValue]) -> list[Any]:
        """Return the values of types and bytes, each with its path, and remember the short ones."""
        restored = self._deserializer.deserialize_all(typed)
        scalars = self._scalars
        if len(scalars) > _MAX_SCALARS:
            scalars.clear()
        for (type_name, data, _), value in zip(typed, restored, strict=True):
            if value.__class__ in _IMMUTABLE and len(data) <= _MAX_SHORT:
                scalars[type_name, data] = value
        return restored


class _Entry:
    """What a key of a state contains."""

    __slots__ = ("name", "prefix", "seen", "tail_key", "typed", "value", "version")

    def __init__(self, key: str) -> None:
        for prefix in (CHANNEL, VALUE, SEEN):
            if key.startswith(prefix):
                break
        else:
            prefix = REST
            if key != REST:
                raise ValueError(key)
        self.prefix: str = prefix
        self.name = key.removeprefix(prefix)
        self.tail_key = VALUE + self.name
        """The key of the rest of a channel's value, if it is long."""
        self.value: bytes | GrowingValue | None = None
        """The packed value that was read last."""
        self.version: Any = None
        """The version of a channel."""
        self.typed: Typed | None = None
        """The value of a channel, or the rest of the checkpoint."""
        self.seen: dict[str, Any] = {}
        """The versions that a node has seen."""

    def read(self, value: bytes | GrowingValue) -> None:
        """Take a value apart; raise one of _UNSUITABLE if it has another shape."""
        prefix = self.prefix
        if prefix is not VALUE:
            self.value = None
            packed = (
                value if isinstance(value, bytes) else value.join_behind(delta.pack_header(value.kind, value.count))
            )
            content = unpackb(packed, ext_hook=_refuse)
            if prefix is CHANNEL:
                self.version = version = content[0]
                if version.__class__ not in _VERSIONS:
                    raise ValueError(version)
                self.typed = None if len(content) == 1 else _check_typed(content[1:])
            elif prefix is SEEN:
                if not _VERSIONS.issuperset(map(type, content.values())):
                    raise ValueError(content)
                self.seen = content
            else:
                self.typed = _check_typed(content)
        self.value = value


def _check_typed(content: Any) -> Typed:
    """Return a type and bytes; raise a ValueError for anything else."""
    type_name, data = content
    if type_name.__class__ is not str or data.__class__ is not bytes:
        raise ValueError(content)
    return type_name, data


def _join(header: bytes, tail: bytes | GrowingValue) -> bytes:
    """Return the bytes of a long value: its header, and the packed bytes that follow it."""
    if isinstance(tail, GrowingValue):
        kind, count, length = tail.kind, tail.count, tail.length
        joined = tail.join_behind(header)
    else:
        kind, count, skip = delta.parse_header(tail, 0)
        length = len(tail) - skip
        joined = b"".join((header, memoryview(tail)[skip:]))
    if kind != delta.BIN or count != length:
        raise ValueError(kind)
    return joined


def _list_writes(packed: Mapping[str, bytes]) -> list[Any]:
    """Return pending writes in LangGraph's order, each as a list of the fields of a Write."""
    # LangGraph sorts by the first three: task path, task id, index.
    return sorted([unpackb(value, ext_hook=_refuse) for value in packed.values()])


def _refuse(code: int, data: bytes) -> Any:
    """Refuse what is not of msgpack's own types."""
    raise ValueError(f"not plain: {code}, {len(data)} bytes")
