"""Decodes LangGraph's checkpoints from the states in which they are stored.

`encoding.py` specifies the keys of a state. Consecutive checkpoints of a history share most of their
values, so each value is taken apart once. Taking a checkpoint apart runs no code of the application,
and so may be done while its log is locked; restoring the values calls LangGraph's serializer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import PendingWrite
from msgpack import unpackb

from graphkit.errors import CheckpointCorruptionError
from graphkit.saver_kit import Codec
from savers import _delta as delta
from savers._delta import GrowingValue
from savers._log.stored_checkpoint import StoredCheckpoint
from savers.langgraph.encoding import CHANNEL, REST, SEEN, VALUE, Write, sort_writes
from savers.langgraph.histories import FoundCheckpoint
from savers.langgraph.serializer import Deserializer, TypedValue

_MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError)
"""What values of other shapes raise. Msgpack's own errors are among them."""
_IMMUTABLE: Final = frozenset({type(None), bool, int, float, str})
_UNKNOWN: Final = object()
_MAX_SHORT: Final = 64
"""Values of at most this many bytes are remembered,"""
_MAX_SCALARS: Final = 1000
"""and about so many of them."""
_CODEC: Final = Codec()
Typed = tuple[str, bytes]
"""What LangGraph's serializer returns."""


class Parts(NamedTuple):
    """A checkpoint, taken apart."""

    stored: StoredCheckpoint
    fields: dict[str, Any]
    """The fields that are stored by channel or by node. _UNKNOWN is in the place of values that are
    still to be restored."""
    missing: list[TypedValue]
    """These values, in the order of the channels."""
    rest: Typed
    """All other fields."""
    writes: list[Write]
    """The pending writes, in LangGraph's order."""


class Ancestor(NamedTuple):
    """What the checkpoints behind it need of a checkpoint."""

    stored: StoredCheckpoint
    writes: list[Write]
    values: dict[str, Typed]
    """Of the wanted channels, the values that the checkpoint has."""


class HistoryDecoder:
    """Decodes checkpoints of one history.

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

    # Taking apart

    def take_apart(self, found: FoundCheckpoint) -> Parts:
        """Take a checkpoint apart.

        Raises:
            CheckpointCorruptionError: it does not have the shape of one of LangGraph.
        """
        try:
            return self._take_apart(found)
        except _MALFORMED as error:
            raise _explain_shape(found, error) from error

    def take_ancestor(self, found: FoundCheckpoint, wanted: Collection[str]) -> Ancestor:
        """Take the writes and the values of some channels out of a checkpoint. Raises the same errors."""
        values: dict[str, Typed] = {}
        try:
            for name in wanted:
                entry = self._read_entry(found, CHANNEL + name)
                if entry is not None and entry.typed is not None:
                    values[name] = _join_tail(entry, found)
            return Ancestor(found.stored, self._list_writes(found), values)
        except _MALFORMED as error:
            raise _explain_shape(found, error) from error

    def _take_apart(self, found: FoundCheckpoint) -> Parts:
        # 5 us for nine keys, five of which have changed.
        versions: dict[str, Any] = {}
        values: dict[str, Any] = {}
        seen: dict[str, Any] = {}
        rest: Typed | None = None
        missing: list[TypedValue] = []
        scalars = self._scalars
        state = found.state
        for key in state:
            entry = self._read_entry(found, key)
            assert entry is not None
            prefix = entry.prefix
            if prefix is CHANNEL:
                name = entry.name
                versions[name] = entry.version
                if entry.typed is None:
                    continue
                typed = _join_tail(entry, found)
                values[name] = known = scalars.get(typed, _UNKNOWN)
                if known is _UNKNOWN:
                    missing.append((*typed, name))
            elif prefix is SEEN:
                seen[entry.name] = entry.seen.copy()
            elif prefix is REST:
                rest = entry.typed
        if rest is None:
            raise ValueError(f"it has no {REST!r}")
        fields = {"channel_values": values, "channel_versions": versions, "versions_seen": seen}
        return Parts(found.stored, fields, missing, rest, self._list_writes(found))

    def _read_entry(self, found: FoundCheckpoint, key: str) -> _Entry | None:
        """Return what a key of a state contains; None if the state does not have it."""
        # States of one chain share the objects of values that did not change, and a listing reads them
        # one after the other. So the same object means the same content: nothing is compared, and a
        # step decodes what it has changed.
        value = found.state.get(key)
        if value is None:
            return None
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = entry = _Entry(key)
        if entry.value is not value:
            entry.read(value, is_packed=found.is_packed)
        return entry

    @staticmethod
    def _list_writes(found: FoundCheckpoint) -> list[Write]:
        if not found.writes:
            return []
        records: Iterable[Any] = found.writes.values()
        if found.is_packed:
            records = map(unpackb, records)
        return sort_writes([Write(*record) for record in records])

    # Restoring

    def restore(self, parts: Parts) -> tuple[dict[str, Any], list[PendingWrite]]:
        """Return LangGraph's checkpoint and its pending writes.

        Raises:
            CheckpointSerializationError: as for `CheckpointSaver.get_tuple`.
        """
        scalars = self._scalars
        known = [scalars.get((write.type, write.data), _UNKNOWN) for write in parts.writes]
        missing = [*parts.missing, (*parts.rest, REST)]
        for write, value in zip(parts.writes, known, strict=True):
            if value is _UNKNOWN:
                missing.append((write.type, write.data, write.channel))
        # One call for all of them. The values come back in the order in which they were asked for.
        restored = iter(self._restore(missing))
        values = parts.fields["channel_values"]
        for (_, _, name), value in zip(parts.missing, restored, strict=False):
            values[name] = value
        checkpoint = {**next(restored), **parts.fields}
        writes: list[PendingWrite] = []
        for write, known_value in zip(parts.writes, known, strict=True):
            value = next(restored) if known_value is _UNKNOWN else known_value
            writes.append((write.task_id, write.channel, value))
        return checkpoint, writes

    def restore_value(self, typed: Typed, name: str) -> Any:
        """Return the value of a channel. Raises the same errors."""
        return self._deserializer.deserialize(*typed, name)

    def restore_write(self, write: Write) -> PendingWrite:
        """Return a write as LangGraph wants it. Raises the same errors."""
        return write.task_id, write.channel, self.restore_value((write.type, write.data), write.channel)

    def _restore(self, typed: list[TypedValue]) -> list[Any]:
        """Return the values of types and bytes, each with its path, and remember the short ones."""
        restored = self._deserializer.deserialize_all(typed)
        # Only values that nobody can change: the same object goes to several checkpoints of a caller.
        scalars = self._scalars
        if len(scalars) > _MAX_SCALARS:
            scalars.clear()
        for (type_name, data, _), value in zip(typed, restored, strict=True):
            if value.__class__ in _IMMUTABLE and len(data) <= _MAX_SHORT:
                scalars[type_name, data] = value
        return restored


def _explain_shape(found: FoundCheckpoint, error: Exception) -> CheckpointCorruptionError:
    reason = f"the checkpoint {found.stored.id} does not have the shape of one of LangGraph: {error}"
    return CheckpointCorruptionError(found.path, found.stored.offset, reason)


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
        self.value: Any = None
        """The stored value that was read last."""
        self.version: Any = None
        """The version of a channel."""
        self.typed: Typed | None = None
        """The value of a channel, or the rest of the checkpoint."""
        self.seen: dict[str, Any] = {}
        """The versions that a node has seen."""

    def read(self, value: Any, *, is_packed: bool) -> None:
        """Take a value apart; raise one of _MALFORMED if it has another shape."""
        prefix = self.prefix
        if prefix is not VALUE:
            # If this raises, the entry must not pass for one that has read its value.
            self.value = None
            content = _unpack(value) if is_packed else value
            if prefix is CHANNEL:
                self.version, *typed = content
                self.typed = _check_typed(typed) if typed else None
            elif prefix is SEEN:
                self.seen = dict(content)
            else:
                self.typed = _check_typed(content)
        self.value = value


def _unpack(value: bytes | GrowingValue) -> Any:
    packed = value
    if isinstance(packed, GrowingValue):
        packed = packed.join_behind(delta.pack_header(packed.kind, packed.count))
    try:
        return unpackb(packed, ext_hook=_refuse)
    except ValueError:
        # Nearly all versions are text or numbers, but an application may use any type.
        return _CODEC.unpack(packed)


def _refuse(code: int, data: bytes) -> Any:
    """Refuse what is not of msgpack's own types."""
    raise ValueError(f"not plain: {code}, {len(data)} bytes")


def _check_typed(content: Any) -> Typed:
    """Return a type and bytes; raise a ValueError for anything else."""
    type_name, data = content
    if type_name.__class__ is not str or data.__class__ is not bytes:
        raise ValueError(content)
    return type_name, data


def _join_tail(entry: _Entry, found: FoundCheckpoint) -> Typed:
    """Return the value of a channel: its type, and its header with the bytes that follow it in the state."""
    assert entry.typed is not None
    type_name, header = entry.typed
    tail = found.state.get(entry.tail_key)
    if tail is None:
        return entry.typed
    if isinstance(tail, GrowingValue):
        # Of a list that only grew, all states of a chain share the bytes: this copies them once.
        _check_bytes(tail.kind, tail.count, tail.length)
        return type_name, tail.join_behind(header)
    if not found.is_packed:
        return type_name, header + tail
    kind, count, skip = delta.parse_header(tail, 0)
    _check_bytes(kind, count, len(tail) - skip)
    return type_name, header + tail[skip:]


def _check_bytes(kind: int, count: int, length: int) -> None:
    """Raise a ValueError if a packed value is no bytes object, or has another length than it says."""
    if kind != delta.BIN or count != length:
        raise ValueError(kind)
