"""Copies threads from any saver to any other, directly or through a file.

    copy_threads(FileSystemSaver("runs"), FileSystemSaver("elsewhere"))

    with open("backup.jsonl", "w", encoding="utf-8") as file:
        file.writelines(export_threads(saver))
    with open("backup.jsonl", encoding="utf-8") as file:
        import_threads(FileSystemSaver("elsewhere"), file)

The file has one JSON object per line, which people can read: a head, then for each thread its
checkpoints, oldest first, with what changed in the state since the one before, with their pending
writes and with their tags. A value that JSON cannot hold exactly is packed as in a checkpoint
(`{"$packed": ...}`), so that every type is preserved. docs/cli.md describes the lines.

With `format="logs"`, the file has the logs of a directory as they are. Nothing is decoded: types need
not be registered, sealed logs stay sealed and need no key, and released histories, salvaged files and
damage are exported, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from logging import getLogger
from pathlib import Path
from typing import Final, NamedTuple

from graphkit._options import check_choice
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory, HasVersions, Progress, has_thread
from graphkit._saver.failed_threads import FailedThreads, concerns_all_threads
from graphkit._transfer.copying import CopyCounts, StoredThread, ThreadCopier, check_stores, hold_both
from graphkit._transfer.importing import FORMAT, Form, LineReader, export_log_lines, find_directory, import_logs
from graphkit._values.json_values import JsonValueCodec, format_line
from graphkit.errors import (
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    ThreadBusyError,
)

__all__ = ["Copied", "Imported", "copy_threads", "export_threads", "import_threads"]

_LOGGER: Final = getLogger("graphkit")
_OF_ALL_THREADS: Final = (CheckpointerConfigurationError, CheckpointStorageError)
"""Errors that the next thread would meet, too."""


# Copy


class Copied(NamedTuple):
    """The result of `copy_threads`."""

    threads: Sequence[str]
    """The threads; each was read back from the target and compared with the source."""
    skipped_threads: Sequence[str]
    """Threads that were already complete in the target."""
    checkpoints: int
    """How many checkpoints were copied, those of versions included."""
    skipped_checkpoints: int
    """How many were in the target already."""
    versions: int
    """How many released histories were copied."""
    skipped_versions: int
    """How many were in the target already."""


def copy_threads(
    source: BaseCheckpointSaver,
    target: BaseCheckpointSaver,
    threads: Sequence[str] | None = None,
    *,
    versions: bool = True,
    plaintext: bool = False,
    progress: Progress | None = None,
) -> Copied:
    """Copy threads between two savers, with ids, order, parents, metadata, tags, versions and pending writes.

    Compares what the target has of a thread with the source, appends what is missing, reads the
    thread back and compares it again. So a call continues where an earlier one was cut short, and
    copies what was added to the source since then. Holds the run lock of a thread in both savers
    meanwhile, and two checkpoints in memory. A thread that cannot be copied does not stop the others:
    in the end the first error is raised, and its message names all such threads.

    A thread of the target is incomplete until it equals the source, also if the call fails or the
    process dies: no run and no worker takes it, and the next copy completes it. An incomplete thread
    of another source is replaced.

    Costs what changed from checkpoint to checkpoint if the savers support `replay` (see
    `graphkit.abc.SupportsReplay`) or share the values that did not change; otherwise what each state
    takes.

    Args:
        source: where the threads are.
        target: where to copy them.
        threads: their ids; None copies all but those whose keys were destroyed, and logs a warning
            about these.
        versions: also copy released histories. Their pending writes and tags are not copied: the
            contract of savers does not show them.
        plaintext: allow a copy from a saver that seals its records to one that does not.
        progress: called after each thread, copied or not, with how many are done, how many there are,
            and its id.

    Raises:
        CheckpointerConfigurationError: source and target are the same store; the target keeps no
            versions; the source seals its records, the target does not, and `plaintext` is False; or
            the source cannot list its threads, or may not know all namespaces of one. In the last
            case the threads before it are copied, otherwise nothing is changed.
        CheckpointNotFoundError: the source has no such thread. Nothing was changed.
        CheckpointConflictError: the target has a thread that differs from the source, and did not
            change it; a thread differs after it was copied; or a thread of the source is incomplete.
            The error names the namespace, the checkpoint and what differs. All other threads are
            copied.
        CheckpointCorruptionError, CheckpointKeyError: a thread of the source is damaged, or cannot be
            opened; or the target lacks the key that a history of the source has of its own. All other
            threads are copied.
        CheckpointSerializationError: a value has a type that is not registered with one of the
            savers; the error names it. All other threads are copied, and what precedes the value.
        CheckpointStorageError: one of the stores cannot be used; the threads before are copied. Or a file
            of a thread in a directory cannot be read; all other threads are copied.
        ThreadBusyError: a run held a thread until `lock_timeout` of the saver. All other threads are
            copied; after a wait in vain, no other run is waited for.
    """
    chosen = _list_ids(source.threads(released=versions) if threads is None else threads)
    check_stores(source, target, chosen, versions=versions, plaintext=plaintext)
    if threads is not None:
        for thread_id in chosen:
            if not has_thread(source, thread_id, released=versions):
                raise CheckpointNotFoundError(thread_id, hint="see threads()")
    failed = FailedThreads("copy", fatal=_OF_ALL_THREADS)
    passed_over = CheckpointErasedError if threads is None else ()
    skipped: list[str] = []
    copied: list[str] = []
    counts = CopyCounts()

    def copy(thread_id: str) -> None:
        with _spare_the_others(failed, source, thread_id, passed_over):
            # Runs of many threads must not be waited for one after the other.
            lock_timeout = 0.0 if failed.has_waited else None
            thread = StoredThread(source, thread_id, JsonValueCodec(learns_types=True))
            with hold_both(source, target, thread_id, lock_timeout):
                thread.check_whole()
                was_missing = ThreadCopier(thread, target, versions=versions).copy(counts)
            if not was_missing:
                skipped.append(thread_id)
            copied.append(thread_id)

    failed.change_each(chosen, copy, progress)
    return Copied(threads=copied, skipped_threads=skipped, **vars(counts))


@contextmanager
def _spare_the_others(
    failed: FailedThreads,
    source: BaseCheckpointSaver,
    thread_id: str,
    passed_over: type[Exception] | tuple[type[Exception], ...],
) -> Iterator[None]:
    """Record a fatal error that is about a file of this thread alone; of those passed over, only log a warning."""
    try:
        yield
    except passed_over as error:
        _LOGGER.warning("thread %.80r is passed over: %s", thread_id, error)
    except CheckpointStorageError as error:
        # A full disk or a lost connection would stop all others, too; a file that cannot be read does not.
        if not _is_file_of(source, thread_id, error):
            raise
        failed.add(thread_id, error)


def _is_file_of(source: BaseCheckpointSaver, thread_id: str, error: CheckpointStorageError) -> bool:
    """Return whether an error is about a file of one thread: it is a link or a directory, say, or a bad sector."""
    if concerns_all_threads(error) or not isinstance(source, HasBaseDirectory):
        return False
    return Path(error.path).is_relative_to(source.thread_directory(thread_id))


def _list_ids(threads: Sequence[str]) -> list[str]:
    """Return thread ids without repetitions.

    Raises:
        TypeError: it is one id, which would count as its letters.
    """
    if isinstance(threads, str | bytes):
        raise TypeError(f"threads must be a list of ids, not one id; pass [{threads!r}]")
    return [*dict.fromkeys(threads)]


# Export


def export_threads(
    saver: BaseCheckpointSaver,
    threads: Sequence[str] | None = None,
    *,
    format: Form = "lines",
    types: Sequence[type] = (),
    versions: bool = True,
    plaintext: bool = False,
    progress: Progress = lambda *_: None,
    on_failure: Callable[[CheckpointerError], object] | None = None,
) -> Iterator[str]:
    """Yield the lines of a file with these threads, or with all threads (None).

    Holds one checkpoint at a time. May run while another process writes: each history is exported
    as it is when the export reaches it. Reads each thread twice: the file has nothing of one that cannot be
    read, and so can be imported. Such a thread does not stop the others: in the end the first error is
    raised, and its message names all such threads.

    Args:
        saver: where the threads are.
        threads: their ids. All threads (None) are those that have a checkpoint, and whose keys were not
            destroyed; of logs, all.
        format: "lines" is readable, and every saver can import it. "logs" has everything as it is,
            from a directory and for one.
        types: the application types that states hold, if the saver does not know them. Logs need none.
        versions: also export released histories, from a saver that keeps them, without their
            pending writes and tags. Logs have everything, and always.
        plaintext: allow an export from a saver that seals its records. The lines are not encrypted;
            logs are sealed as the directory is.
        progress: called after each thread.
        on_failure: called in the end with the error that names the threads which the file lacks. The error
            is raised if this is None, or if no thread could be exported.

    Raises:
        CheckpointerConfigurationError: the saver seals its records, and `plaintext` is False. Or logs
            are wanted of a saver that keeps no files, or without their versions. Or the saver may not
            know all namespaces of a thread.
        CheckpointConflictError: a thread is incomplete; all others are exported. Logs say so themselves.
        CheckpointCorruptionError, CheckpointKeyError: a thread is damaged, or cannot be opened. All others
            are exported.
        CheckpointFormatError: there is a link, or something else that is not a file or directory,
            in place of a log or a directory. All other threads are exported.
        CheckpointNotFoundError: there is no such thread. All others are exported.
        CheckpointSerializationError: a value has a type that the saver does not know. All other threads are
            exported.
        CheckpointStorageError: the store cannot be read, or a thread was removed or damaged after its first
            line. Or a file of a thread cannot be read; all other threads are exported.
        ValueError: there is no such format.
    """
    check_choice("format", format, "lines", "logs")
    if format == "logs":
        find_directory(saver)
        if not versions:
            raise CheckpointerConfigurationError("logs are exported with their versions; leave versions=False out")
    elif saver.seals_records and not plaintext:
        raise CheckpointerConfigurationError(
            "the store is sealed, and this form of export is not: export its logs (format='logs', "
            "`graphkit export --raw`; of a database, copy it to a sealed directory first), or ask for plaintext "
            "(plaintext=True, --plaintext)"
        )
    saver.register_types(*types)
    chosen = _list_ids(saver.threads(released=versions) if threads is None else threads)
    failed = FailedThreads("export", fatal=_OF_ALL_THREADS)
    passed_over = (CheckpointErasedError, CheckpointNotFoundError) if threads is None else ()
    exported = 0

    def read(thread_id: str) -> Iterator[str]:
        if format == "logs":
            return export_log_lines(saver, thread_id)
        thread = StoredThread(saver, thread_id, JsonValueCodec(learns_types=True))
        thread.check_whole()
        return thread.lines(versions=versions)

    yield format_line({"graphkit": "logs" if format == "logs" else "threads", "format": FORMAT})
    for done, thread_id in enumerate(chosen, 1):
        lines: Iterable[str] = ()
        with failed.catch(thread_id), _spare_the_others(failed, saver, thread_id, passed_over):
            # Twice: no import reads on behind a thread that is cut short. A temporary file would hold in plain what a
            # sealed store holds.
            for _ in read(thread_id):
                pass
            rest = read(thread_id)
            # With the second line, its first history was opened: a thread deleted from now on is still read from it.
            lines = chain((next(rest), next(rest)), rest)
            exported += 1
        yield from lines
        progress(done, len(chosen), thread_id)
    try:
        failed.raise_if_any()
    except CheckpointerError as error:
        if on_failure is None or not exported:
            raise
        on_failure(error)


# Import


class Imported(NamedTuple):
    """The result of an import."""

    threads: Sequence[str]
    """The imported threads; the import has read each of them back and compared it with the file."""
    checkpoints: int
    """How many checkpoints the import stored; of logs, how many they hold."""
    skipped: int
    """How many checkpoints were stored already, by an earlier import or one that was cut short."""


def import_threads(
    saver: BaseCheckpointSaver,
    lines: Iterable[str],
    *,
    format: Form | None = None,
    types: Sequence[type] = (),
    progress: Progress = lambda *_: None,
) -> Imported:
    """Store the threads of a file, read each one back, and compare it with the file.

    Stores nothing of a thread before all its lines were read and their digest has proved right. Then the
    thread is copied from the file as `copy_threads` copies it: what the saver has of it is compared, what
    is missing is appended, and the thread is incomplete until all of it is stored: no run and no worker
    takes it. If an import was cut short, the next import of the same file continues it; an incomplete
    thread of another source is replaced. Holds the run lock of a thread meanwhile. Of logs, files that
    are stored already, with the same bytes, are skipped.

    Args:
        saver: where to store the threads.
        lines: the lines of the file.
        format: what the file must hold; None takes what it holds.
        types: the application types that states hold.
        progress: called after each thread.

    Raises:
        CheckpointConflictError: a thread holds other checkpoints, and did not change; or it differs after
            the import, and is incomplete. The error names the namespace, the checkpoint and what differs.
            All other threads are stored, and in the end the first error is raised, whose message names
            all such threads.
        CheckpointFormatError: the file is not an export, is damaged or cut short, or has a newer
            format. The threads before the damage are stored.
        CheckpointSerializationError: a value has a type that is not in `types`. All other threads are stored.
        CheckpointerConfigurationError: the file has versions, and the saver keeps none: nothing of
            that thread is stored. Or it has logs, and the saver keeps no files.
        CheckpointCorruptionError: logs were damaged when they were exported. They are stored, and so are all
            others; `repair` them.
        CheckpointStorageError: the file system refused. The next import of the file continues.
        ThreadBusyError: a run holds a thread. All others are stored; of logs, those before it.
    """
    source = LineReader(lines)
    form = source.read_head(format)
    fatal: tuple[type[Exception], ...] = (*_OF_ALL_THREADS, CheckpointFormatError)
    if form == "logs":
        find_directory(saver)
        fatal += (ThreadBusyError,)  # before the lines of the thread were read, so that they precede the next one
    saver.register_types(*types)
    failed = FailedThreads("import", fatal=fatal)
    imported: list[str] = []
    counts = CopyCounts()
    while (data := source.read_first()) is not None:
        thread_id = data["thread"]
        if form == "logs":
            with failed.catch(thread_id):
                counts.checkpoints += import_logs(saver, source, thread_id, data.get("directory"))
        else:
            config = RunnableConfig(thread_id)
            lock_timeout = 0.0 if failed.has_waited else None
            file_thread = source.read_thread(thread_id, JsonValueCodec(types))
            with file_thread as thread, failed.catch(thread_id), saver.run_lock(config, lock_timeout):
                has_versions = bool(thread.list_versions())
                if has_versions and not isinstance(saver, HasVersions):
                    raise CheckpointerConfigurationError(
                        f"{type(saver).__name__} keeps no versions; export without them, or import elsewhere"
                    )
                ThreadCopier(thread, saver, versions=has_versions).copy(counts)
        imported.append(thread_id)
        progress(len(imported), 0, thread_id)
    failed.raise_if_any()
    return Imported(imported, counts.checkpoints, counts.skipped_checkpoints)
