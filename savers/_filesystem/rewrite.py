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
from savers._filesystem.leftovers import remove_temporary_logs
from savers._log.frame_log import new_header
from savers._log.rewriter import Rewriter, has_unreachable_records, replay_states
from savers._log.stored_checkpoint import StoredCheckpoint

if TYPE_CHECKING:
    from savers._filesystem.store import FileLog, Store


def keep(
    store: Store,
    log: FileLog,
    checkpoints: Sequence[StoredCheckpoint],
    *,
    early: Iterable[StoredCheckpoint],
    lost_offset: int | None = None,
    ending: tuple[int, int] | None = None,
) -> None:
    """Rewrite a log with some of its checkpoints. The caller holds the mutex of the log.

    Args:
        store: the store.
        log: the log, open; closed afterwards.
        checkpoints: the checkpoints to keep, in the order of the history.
        early: the early writes to keep.
        lost_offset: an offset inside the damaged region, if there is one; see TableReplay.
        ending: the type and the version of the record that ends the new log.

    Raises:
        CheckpointCorruptionError: a checkpoint cannot be read. The old log is unchanged.
        OSError: the file system refused. The same.
    """
    header = log.frames.header
    assert header is not None
    directory = os.path.dirname(log.path)
    new_head = new_header(header.digest, header.generation + 1)
    path = layout.join(directory, f"{layout.TEMPORARY}{new_head.fid:08x}")
    new = store.new_copy(log, path)
    store.update_marker()
    remove_temporary_logs(store.io, directory)
    try:
        new.frames.begin(new_head)
        rewriter = Rewriter(log, new)
        for stored, table in replay_states(log, checkpoints, lost_offset):
            rewriter.write(stored, table)
        for waiting in early:
            new.writer.put_early(waiting.id, log.history.read_packed_writes(waiting))
        if ending is not None:
            new.end(*ending)
        medium = new.frames.bytes
        medium.write_beginning()
        store.io.fsync(medium.fd)
        store.io.rename(path, log.path)
        store.io.fsync_dir(directory)
    except BaseException:
        with suppress(OSError):
            store.io.unlink(path)
        raise
    finally:
        new.close()
    log.close()


def keep_all(store: Store, log: FileLog, ending: tuple[int, int] | None = None) -> None:
    """Rewrite a log with all that it has, sealed with the current key if the saver has a cipher.

    See `keep` for the arguments and the errors.
    """
    checkpoints = log.history.load_index().checkpoints
    keep(store, log, checkpoints, early=log.history.load_early(), ending=ending)


def compact(store: Store, log: FileLog) -> bool:
    """Rewrite a log without what no reader can reach; return whether there was any of it.

    The caller holds the mutex of the log.
    """
    checkpoints = log.history.load_index().checkpoints
    early = log.history.load_early().select_recent(checkpoints)
    if not has_unreachable_records(log, [*checkpoints, *early]):
        return False
    keep(store, log, checkpoints, early=early)
    return True
