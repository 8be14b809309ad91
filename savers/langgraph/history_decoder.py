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
from savers.langgraph.writes import Write, sort_writes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langgraph.checkpoint.base import PendingWrite

    from savers._log.packed_chain import PackedCheckpoint, PackedState
    from savers.langgraph.serializer import Deserializer, TypedValue

_VERSIONS: Final = frozenset({str, int, float})
_UNSUITABLE: Final = (ValueError, TypeError, LookupError, AttributeError)
"""What values of other shapes raise. Msgpack's own errors are among them."""
_Entry = tuple[Any, str, str, Any]
"""A packed value, its prefix, the name behind it, and what it contains."""


class HistoryDecoder:
    """Decodes packed checkpoints of one history.

    Args:
        deserializer: restores the values.
    """

    def __init__(self, deserializer: Deserializer) -> None:
        self._deserializer = deserializer
        self._entries: dict[str, _Entry] = {}
        """By key, those of the checkpoint before."""

    def decode(self, packed: PackedCheckpoint) -> tuple[dict[str, Any], list[PendingWrite]] | None:
        """Return LangGraph's checkpoint and its pending writes.

        None if a value has another shape: the checkpoint must be decoded in the general way, which
        also finds out what is wrong with it.

        Raises:
            CheckpointSerializationError: as for `CheckpointSaver.get_tuple`.
        """
        try:
            writes = _list_writes(packed.writes) if packed.writes else []
            typed, versions, seen = self._take_apart(packed.state)
        except _UNSUITABLE:
            return None
        last = len(typed) - 1
        typed += [(write.type, write.data, write.channel) for write in writes]
        restored = self._deserializer.deserialize_all(typed)
        values = {path: value for (_, _, path), value in zip(typed[:last], restored[:last], strict=True)}
        pending = [
            (write.task_id, write.channel, value) for write, value in zip(writes, restored[last + 1 :], strict=True)
        ]
        checkpoint = {**restored[last], "channel_values": values, "channel_versions": versions, "versions_seen": seen}
        return checkpoint, pending

    def _take_apart(self, state: PackedState) -> tuple[list[TypedValue], dict[str, Any], dict[str, Any]]:
        """Return the values of the channels and then the rest, the versions, and `versions_seen`."""
        rest: Any = None
        typed: list[TypedValue] = []
        versions: dict[str, Any] = {}
        seen: dict[str, Any] = {}
        entries = self._entries
        # 5 us for a checkpoint of nine keys, five of which have changed.
        for key, value in state.items():
            entry = entries.get(key)
            if entry is None or entry[0] is not value:
                entries[key] = entry = _read_entry(key, value)
            _, prefix, name, content = entry
            if prefix == CHANNEL:
                versions[name] = content[0]
                if len(content) > 1:
                    _, type_name, data = content
                    tail = state.get(VALUE + name)
                    typed.append((type_name, data if tail is None else _join(data, tail), name))
            elif prefix == SEEN:
                seen[name] = content.copy()
            elif prefix == REST:
                rest = content
        type_name, data = rest
        typed.append((type_name, data, REST))
        return typed, versions, seen


def _read_entry(key: str, value: bytes | GrowingValue) -> _Entry:
    """Take a value of a state apart."""
    if key.startswith(VALUE):
        return value, VALUE, "", None
    if isinstance(value, GrowingValue):
        value_bytes = value.join_behind(delta.pack_header(value.kind, value.count))
        content = unpackb(value_bytes, ext_hook=_refuse)
    else:
        content = unpackb(value, ext_hook=_refuse)
    if key.startswith(CHANNEL):
        if content[0].__class__ not in _VERSIONS:
            raise ValueError(key)
        return value, CHANNEL, key.removeprefix(CHANNEL), content
    if key.startswith(SEEN):
        if not _VERSIONS.issuperset(map(type, content.values())):
            raise ValueError(key)
        return value, SEEN, key.removeprefix(SEEN), content
    if key != REST:
        raise ValueError(key)
    return value, REST, "", content


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


def _list_writes(packed: Mapping[str, bytes]) -> list[Write]:
    """Return pending writes in LangGraph's order."""
    return sort_writes([Write(*unpackb(value, ext_hook=_refuse)) for value in packed.values()])


def _refuse(code: int, data: bytes) -> Any:
    """Refuse what is not of msgpack's own types."""
    raise ValueError(f"not plain: {code}, {len(data)} bytes")
