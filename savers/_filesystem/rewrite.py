"""Rewrites logs with some of their checkpoints: prune, compact, repair.

If the process dies at any moment, either the old or the new log is in its place. The caller holds
the write lock of the thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from savers._filesystem import layout
from savers._filesystem.file_log_writer import FileLogWriter
from savers._filesystem.leftovers import remove_temporary_logs
from savers._log.beginning import new_header
from savers._log.rewriter import Rewriter, has_unreachable_records, replay_states
from savers._log.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from savers._filesystem.store import Store


def keep(
    store: Store,
    writer: FileLogWriter,
    checkpoints: Sequence[StoredCheckpoint],
    *,
    early: Iterable[StoredCheckpoint],
    lost_offset: int | None = None,
    ending: tuple[int, int] | None = None,
) -> None:
    """Rewrite a log with some of its checkpoints. The caller holds the writer's mutex.

    Args:
        store: the store.
        writer: the log, open; closed afterwards.
        checkpoints: the checkpoints to keep, in the order of the history.
        early: the early writes to keep.
        lost_offset: an offset inside the damaged region, if there is one; see Replay.
        ending: the type and the version of the record that ends the new log.

    Raises:
        CheckpointCorruptionError: a checkpoint cannot be read. The old log is unchanged.
        OSError: the file system refused. The same.
    """
    assert writer.header is not None
    directory = os.path.dirname(writer.path)
    header = new_header(writer.header.digest, writer.header.generation + 1)
    path = layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")
    new = store.new_writer(writer.thread_id, writer.namespace, path)
    new.is_synced_before_use = True
    new.is_extended_ahead = False
    # Repair sets the serializer by the log, whatever the store was opened with.
    new.serializer = writer.serializer
    store.update_marker()
    remove_temporary_logs(store.io, directory)
    try:
        new.begin(header)
        rewriter = Rewriter(writer, new)
        for stored, table in replay_states(writer, checkpoints, lost_offset):
            rewriter.write(stored, table)
        for waiting in early:
            new.put_early(waiting.id, writer.read_packed_writes(waiting))
        if ending is not None:
            new.finish(*ending)
        store.io.fsync(new.fd)
        store.io.rename(path, writer.path)
        store.io.fsync_dir(directory)
    except BaseException:
        with suppress(OSError):
            store.io.unlink(path)
        raise
    finally:
        new.close()
    writer.close()


def keep_all(store: Store, writer: FileLogWriter, ending: tuple[int, int] | None = None) -> None:
    """Rewrite a log with all that it has, sealed with the current key if the saver has a cipher.

    See `keep` for the arguments and the errors.
    """
    checkpoints = writer.load_index().checkpoints
    keep(store, writer, checkpoints, early=writer.load_early(), ending=ending)


def compact(store: Store, writer: FileLogWriter) -> bool:
    """Rewrite a log without what no reader can reach; return whether there was any of it.

    The caller holds the writer's mutex.
    """
    checkpoints = writer.load_index().checkpoints
    early = writer.load_early().select_recent(checkpoints)
    if not has_unreachable_records(writer, [*checkpoints, *early]):
        return False
    keep(store, writer, checkpoints, early=early)
    return True
