"""Writes new logs of entries, which take the place of old ones; and reads what is good of a damaged one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from logging import getLogger
from time import time_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from savers._filesystem import layout
from savers._filesystem.leftovers import remove_temporary_logs
from savers._log import log
from savers.langgraph._entries.file import EntryFile
from savers.langgraph._entries.records import Entry, MalformedRecordError, Put, make_put, pack_changes, unpack_changes
from savers.langgraph._entries.table import EntryTable

if TYPE_CHECKING:
    from savers._filesystem.io import FileIO

_BATCH_SIZE: Final = 1 << 18
"""About how many bytes of contents a record of a rewritten log has."""
_LOGGER: Final = getLogger("graphkit")


def new_header(kind: str, generation: int) -> log.Header:
    """Return the header of a new file.

    Args:
        kind: the kind of the log.
        generation: 1, or one more than that of the log that is rewritten.
    """
    fid = int.from_bytes(os.urandom(4), "little") or 1
    return log.Header(fid, generation, time_ns(), blake2b(kind.encode()).digest()[:16])


def replace_log(io: FileIO, path: str, kind: str, generation: int, batches: Iterable[list[Put]]) -> None:
    """Write entries to a new file, which takes the place of the log at a path.

    If the process dies at any moment, either the old or the new log is in its place. The new one is
    on the disk before. The caller holds the write lock.

    Raises:
        OSError: the file system refused. The old log is in its place, or the new one whose name may
            not be on the disk.
    """
    directory = os.path.dirname(path)  # noqa: PTH120 - paths are text here, as for all of FileIO
    header = new_header(kind, generation)
    remove_temporary_logs(io, directory)
    temporary = layout.join(directory, f"{layout.TEMPORARY}{header.fid:08x}")
    file = EntryFile(io, temporary, kind, io.open(temporary, write=True, create=True))
    try:
        beginning = file.begin(header)
        file.write(beginning)
        file.note_appended(len(beginning), records=0)
        for batch in batches:
            frame = file.pack_record(pack_changes(batch), file.end, is_synced_before_use=True)
            file.write(frame)
            file.note_appended(file.end + len(frame))
        io.fsync(file.fd)
        io.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            io.unlink(temporary)
        raise
    finally:
        file.close()
    io.fsync_dir(directory)


def make_batches(entries: Iterable[Entry], read_content: Callable[[Entry], bytes]) -> Iterator[list[Put]]:
    """Yield entries as changes, in batches for one record each."""
    batch: list[Put] = []
    size = 0
    for entry in entries:
        content = read_content(entry)
        batch.append(
            make_put(
                namespace=entry.namespace,
                key=entry.key,
                created=entry.created,
                updated=entry.updated,
                expires=entry.expires,
                ttl=entry.ttl,
                about=entry.about,
                value=content[: entry.value_length],
                vectors=content[entry.value_length :],
            )
        )
        size += entry.size
        if size >= _BATCH_SIZE:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


class GoodEntries(NamedTuple):
    """What is good of a damaged log."""

    table: EntryTable
    lost: int
    """How many bytes do not belong to a good record."""


def read_good_entries(file: EntryFile) -> GoodEntries:
    """Read all records of a log that prove themselves, whatever is between them."""
    table = EntryTable()
    lost = max(0, file.size() - log.HEADER_SIZE)
    for frame in file.good_frames():
        lost -= frame.end - frame.offset
        if frame.type != log.WRITE:
            continue
        try:
            for change in unpack_changes(frame.payload, frame.offset + log.FRAME_SIZE):
                table.apply(change)
        except MalformedRecordError:
            _LOGGER.warning("%s: the record at byte %d is malformed and was left out", file.path, frame.offset)
    return GoodEntries(table=table, lost=lost)
