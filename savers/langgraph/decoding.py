"""Decodes LangGraph's checkpoints from the states in which they are stored.

`encoding.py` specifies the keys of a state. Taking a checkpoint apart runs no code of the application,
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
from savers.langgraph.serializer import Deserializer

_MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError)
"""What values of other shapes raise. Msgpack's own errors are among them."""
_CODEC: Final = Codec()
Typed = tuple[str, bytes]
"""What LangGraph's serializer returns."""


class Parts(NamedTuple):
    """A checkpoint, taken apart."""

    stored: StoredCheckpoint
    values: dict[str, Typed]
    """By channel."""
    versions: dict[str, Any]
    """By channel."""
    seen: dict[str, dict[str, Any]]
    """By node, the versions that it has seen."""
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


# Taking apart


def take_apart(found: FoundCheckpoint) -> Parts:
    """Take a checkpoint apart.

    Raises:
        CheckpointCorruptionError: it does not have the shape of one of LangGraph.
    """
    values: dict[str, Typed] = {}
    versions: dict[str, Any] = {}
    seen: dict[str, dict[str, Any]] = {}
    rest: Typed | None = None
    try:
        for key, value in found.state.items():
            if key.startswith(VALUE):
                continue  # it is read with its channel
            content: Any = _unpack(value) if found.is_packed else value
            if key.startswith(CHANNEL):
                name = key.removeprefix(CHANNEL)
                versions[name], *typed = content
                if typed:
                    values[name] = _join_value(found, name, typed)
            elif key.startswith(SEEN):
                seen[key.removeprefix(SEEN)] = dict(content)
            elif key == REST:
                rest = _check_typed(content)
            else:
                raise ValueError(key)
        if rest is None:
            raise ValueError(f"it has no {REST!r}")
        return Parts(found.stored, values, versions, seen, rest, _list_writes(found))
    except _MALFORMED as error:
        raise _explain_shape(found, error) from error


def take_ancestor(found: FoundCheckpoint, wanted: Collection[str]) -> Ancestor:
    """Take the writes and the values of some channels out of a checkpoint. Raises the same errors."""
    values: dict[str, Typed] = {}
    try:
        for name in wanted:
            value: Any = found.state.get(CHANNEL + name)
            if value is None:
                continue
            _, *typed = _unpack(value) if found.is_packed else value
            if typed:
                values[name] = _join_value(found, name, typed)
        return Ancestor(found.stored, _list_writes(found), values)
    except _MALFORMED as error:
        raise _explain_shape(found, error) from error


def _join_value(found: FoundCheckpoint, name: str, content: list[Any]) -> Typed:
    """Return the value of a channel: its type, and its header with the bytes that follow it in the state."""
    type_name, header = _check_typed(content)
    tail = found.state.get(VALUE + name)
    if tail is None:
        return type_name, header
    if isinstance(tail, GrowingValue):
        # Of a list that only grew, all states of a chain share the bytes: this copies them once.
        _check_bytes(tail.kind, tail.count, tail.length)
        return type_name, tail.join_behind(header)
    if not found.is_packed:
        return type_name, header + tail
    kind, count, skip = delta.parse_header(tail, 0)
    _check_bytes(kind, count, len(tail) - skip)
    return type_name, header + tail[skip:]


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


def _check_bytes(kind: int, count: int, length: int) -> None:
    """Raise a ValueError if a packed value is no bytes object, or has another length than it says."""
    if kind != delta.BIN or count != length:
        raise ValueError(kind)


def _list_writes(found: FoundCheckpoint) -> list[Write]:
    records: Iterable[Any] = found.writes.values()
    if found.is_packed:
        records = map(unpackb, records)
    return sort_writes([Write(*record) for record in records])


def _explain_shape(found: FoundCheckpoint, error: Exception) -> CheckpointCorruptionError:
    reason = f"the checkpoint {found.stored.id} does not have the shape of one of LangGraph: {error}"
    return CheckpointCorruptionError(found.path, found.stored.offset, reason)


# Decoding


def decode(parts: Parts, deserializer: Deserializer) -> tuple[dict[str, Any], list[PendingWrite]]:
    """Return LangGraph's checkpoint and its pending writes.

    Raises:
        CheckpointSerializationError: as for `CheckpointSaver.get_tuple`.
    """
    channels = [(*typed, name) for name, typed in parts.values.items()]
    writes = [(write.type, write.data, write.channel) for write in parts.writes]
    # One call for all of them. The values come back in the order in which they were asked for.
    decoded = iter(deserializer.deserialize_all([*channels, (*parts.rest, REST), *writes]))
    values = {name: next(decoded) for name in parts.values}
    checkpoint = {
        **next(decoded),
        "channel_values": values,
        "channel_versions": parts.versions,
        "versions_seen": parts.seen,
    }
    return checkpoint, [(write.task_id, write.channel, next(decoded)) for write in parts.writes]
