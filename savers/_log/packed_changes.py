"""Appends a checkpoint whose changes the caller has packed, as LangGraph's checkpointer does.

The state of such a checkpoint has the keys of the one before it, in the same order. Nothing here packs
or compares again what the caller has packed. What is not the usual case is left to `LogWriter.put`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from graphkit.values import PRIVATE
from savers import _delta as delta
from savers._log import log, payloads

if TYPE_CHECKING:
    from graphkit.values import FrozenDict
    from savers._log.log_writer import LogWriter
    from savers._log.stored_checkpoint import StoredCheckpoint

PackedChanges = Mapping[str, bytes | None]
"""The changed keys, each with its new value, packed; None stands for a bytes object of the state."""
_LONG_VALUE: Final = 1 << 12
"""`LogWriter.put` compares values longer than this with those that they replace."""
_LONG_DATA: Final = 1 << 16
"""For changes with more bytes than this, `LogWriter.put` chooses between several forms."""


def append_packed(writer: LogWriter, new: StoredCheckpoint, state: FrozenDict, changes: PackedChanges) -> bool:  # noqa: C901, PLR0911, PLR0912 - the hot path
    """Append a checkpoint that follows the last one; return False, with nothing changed, if it is unusual.

    `LogWriter.put` makes the same record of it, in twice the time. The caller holds the
    mutex and the write lock.

    Args:
        writer: a log that is open and has no checkpoint with the new id.
        new: the checkpoint, whose time is valid; its place in the log is set.
        state: its state, which has the keys of `writer.state` in the same order.
        changes: what differs from `writer.state`.

    Raises:
        OSError: the file system refused. Nothing was changed.
    """
    table = writer.table
    base = writer.last_checkpoint
    before = writer.state
    if table is None or base is None or before is None or writer.serializer is not None:
        return False
    if not new.id.__class__ is new.parent.__class__ is str or new.metadata.kind == PRIVATE:
        return False
    if writer.early_unread < writer.early_start or not writer._can_be_change():  # noqa: SLF001 - a part of the writer
        return False
    names = table.names
    ops: list[Any] = []
    parts: list[bytes] = []
    for name, value in changes.items():
        if value is None:
            old = table.values[name]
            if old.kind != delta.BIN or old.length != len(before[name]):
                return False
            difference = delta.compare_bytes(old, before[name], state[name])
            if difference is None:
                continue
            difference.encode(ops, names.index(name))
            parts.append(difference.data)
        elif len(value) > _LONG_VALUE:
            return False
        else:
            ops += (delta.SET, names.index(name), len(value))
            parts.append(value)
    data = b"".join(parts)
    compression = writer.compression
    if len(data) > _LONG_DATA or (compression is not None and len(data) >= compression.threshold):
        return False
    start = writer.end
    early = writer.early.measure(new.id, start) if writer.early else None
    payload = payloads.pack_change(base, new, ops, None, data, writer.codec.pack, early)
    flags = 0 if early is None else log.EARLY
    keyframe = base.keyframe_offset
    offset = writer._append_record(log.CHECKPOINT, payload, flags, start - base.offset, start - keyframe)  # noqa: SLF001
    if writer.is_synced_at_once:
        writer._start_writing()  # noqa: SLF001
    end = writer.end
    new.offset = offset
    new.size = end - offset
    new.keyframe_offset = keyframe
    if table.__class__ is not delta.DeferredTable:
        writer.table = table = delta.DeferredTable(table)
    table.defer(ops, data, end - log.TRAILER_SIZE - len(data))
    writer.depth += 1
    if early is not None:
        writer.early.give_to(new)
    writer.last_checkpoint = new
    writer.state = state
    if writer.index is not None:
        writer.index.append(new)
    writer.in_doubt = False
    return True
