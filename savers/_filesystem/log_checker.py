"""Checks the log in one file, whether its content can be trusted or not."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError, CheckpointKeyError
from savers._filesystem import layout
from savers._filesystem.log_bytes import FileLogBytes
from savers._filesystem.reports import FileReport, FileState, Unfinished
from savers._log import payloads
from savers._log.frame import HEADER_SIZE, META, RELEASE, IncompleteLog, is_newer
from savers._log.frame_log import ThreadIdentity, check_owner
from savers._log.log import Log
from savers._log.log_checker import LogChecker, explain_missing_key
from savers._log.records import Records

if TYPE_CHECKING:
    from savers._filesystem.store import FileLog, Store


class ExaminedIdentity(ThreadIdentity):
    """The identity of a log that may be damaged: how the store was opened does not matter."""

    def check_meta(self, path: str, meta: Any) -> str | None:
        key_id = check_owner(path, meta, self.owner)
        self.is_opaque = bool(meta.get("opaque"))
        return key_id


def is_log(name: str) -> bool:
    """Return whether this is the name of a live or a released log."""
    return name == layout.LOG or layout.parse_version(name) is not None


def find_thread_id(store: Store, name: str, files: list[str]) -> str | None:
    """Return the id of the thread that a directory belongs to, or None if no file has it.

    The name of the directory shows a plain id; for others, any readable log of the thread has it.
    """
    plain = layout.plain_id(name)
    if plain is not None:
        return plain
    for path in files:
        thread_id = read_meta(store, path).get("thread")
        if isinstance(thread_id, str) and layout.locate_thread(thread_id).name == name:
            return thread_id
    return None


def find_namespace(store: Store, directory: str) -> str | None:
    """Return the namespace that a directory belongs to; "" for the directory of a thread.

    Finds it as `find_thread_id` does.
    """
    name = os.path.basename(directory)
    if not layout.is_namespace(name):
        return ""
    plain = layout.plain_id(name)
    if plain is not None:
        return plain
    for file_name in filter(is_log, store.io.listdir(directory)):
        namespace = read_meta(store, layout.join(directory, file_name)).get("ns")
        if isinstance(namespace, str) and layout.namespace_name(namespace) == name:
            return namespace
    return None


def read_meta(store: Store, path: str) -> dict[str, Any]:
    """Return a META record of a log, any whose checksum is right; empty if none can be read."""
    medium = FileLogBytes(store.io, [path])
    try:
        if not medium.open():
            return {}
        frame = next(Records(medium, None).search(HEADER_SIZE, 1 << 20), None)
        if frame is None or frame.type != META:
            return {}
        meta = payloads.unpack_payload(path, frame)
    except (OSError, CheckpointCorruptionError):
        return {}
    finally:
        medium.close()
    return meta if isinstance(meta, dict) else {}


def new_examined_log(store: Store, path: str, thread_id: str | None, namespace: str | None) -> FileLog:
    """Return a log to examine, not yet opened; closed by the caller."""
    owner = (thread_id or "", namespace or "")
    identity = ExaminedIdentity(owner, layout.locate_thread(owner[0]).digest, store.key_ring, is_opaque=False)
    return Log(FileLogBytes(store.io, [path]), identity, store.codec)


def open_unchecked(log: FileLog) -> int:
    """Open a log without checking any of its content; return its size.

    Raises:
        FileNotFoundError: it is gone.
    """
    medium = log.frames.bytes
    if not medium.open():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), medium.path)
    log.frames.end = medium.size
    return medium.size


def check_file(
    store: Store,
    path: str,
    thread_id: str | None,
) -> tuple[FileReport | None, Unfinished]:
    """Check one log.

    Returns:
        The report, or None if the file is gone; and the operation that the end of the log shows as
        begun, if it is live.
    """
    namespace = find_namespace(store, os.path.dirname(path))
    examined = new_examined_log(store, path, thread_id, namespace)
    checker = LogChecker(examined)
    is_released = layout.parse_version(os.path.basename(path)) is not None
    state: FileState = "ok"
    size = 0
    offset = 0
    reason = ""
    try:
        size = open_unchecked(examined)
        checker.check(size)
        is_whole = checker.good_end == size or checker.is_followed_by_zeros(size)
        if is_released and (not is_whole or checker.closed_by is None):
            state = "damaged"
            offset = checker.good_end
            reason = "the end of the released history is missing"
        elif not is_whole:
            state = "torn"
            offset = checker.good_end
            reason = "the last write did not finish"
    except FileNotFoundError:
        return None, ""
    except IncompleteLog:
        state = "damaged" if is_released else "torn"
        reason = "the creation of the log did not finish"
    except CheckpointCorruptionError as error:
        state = "damaged"
        offset = error.offset
        reason = error.reason
    except CheckpointKeyError as error:
        state = "sealed"
        offset = checker.good_end
        reason = explain_missing_key(error)
    except CheckpointFormatError as error:
        # A record of unknown type is of a newer format, too.
        is_of_newer = bool(checker.records) or is_newer(examined.frames.bytes.read_at(0, HEADER_SIZE))
        state = "newer" if is_of_newer else "foreign"
        offset = checker.good_end
        reason = error.reason
    except OSError as error:
        state = "damaged" if _is_file(store, path) else "foreign"
        reason = f"it cannot be read: {error.strerror or error}"
    finally:
        examined.close()
    report = FileReport(
        path=os.path.relpath(path, store.root),
        state=state,
        offset=offset,
        reason=reason,
        size=size,
        records=checker.records,
        checkpoints=len(checker.checkpoint_ids),
    )
    return report, _find_unfinished(report, checker)


def _is_file(store: Store, path: str) -> bool:
    """Return whether a regular file, or nothing, is at a path."""
    status = store.io.stat(path)
    return status is None or stat.S_ISREG(status.st_mode)


def _find_unfinished(report: FileReport, checker: LogChecker) -> Unfinished:
    """Return the operation that the last record of a live log shows as begun."""
    is_live = os.path.basename(report.path) == layout.LOG
    if not is_live or report.state != "ok" or checker.closed_by is None:
        return ""
    return "release" if checker.closed_by.type == RELEASE else "delete"
