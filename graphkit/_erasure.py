"""Erasure: deletes threads, makes sure that nothing of them is left in the store, and remembers what was erased."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, final

from graphkit._records.checkpoint import to_datetime, to_microseconds
from graphkit._records.config import RunnableConfig, ThreadLike, acts_for, resolve_thread_id
from graphkit._saver.capabilities import HasVersions, SupportsErase, check_rights
from graphkit._saver.run_lock import get_held_run_locks
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)

if TYPE_CHECKING:
    from graphkit._records.checkpoint import Checkpoint
    from graphkit._records.output import CheckpointInfo
    from graphkit._saver.base import BaseCheckpointSaver

    _Listed = Checkpoint | CheckpointInfo

_WITHOUT_CONTENT: Final = (CheckpointNotFoundError, CheckpointErasedError)
"""A thread was deleted meanwhile; or the key was destroyed that sealed it, and all copies of it."""
_LEAST_KEY: Final = 16
"""Bytes of the shortest key of a ledger."""
_RECORD: Final = re.compile(rb"(1 ([0-9a-f]{64}) (\d{16})) ([0-9a-f]{32})\Z")
"""The version, the keyed hash of a thread id, microseconds since 1970, and a keyed checksum of what precedes it."""
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
_RECORD_LENGTH: Final = 2 + 64 + 1 + 16 + 1 + 32


@final
@dataclass(frozen=True, kw_only=True)
class ErasureReport:
    """What `erase` did with a thread, or `erase_where` with a store of LangGraph."""

    thread_id: str | None
    """None for what belongs to no thread: a store of LangGraph, or what earlier deletes have left if no
    thread was found."""
    remaining: tuple[str, ...] = ()
    """Why bytes are left, or may be: a sentence for each reason."""
    copies: tuple[str, ...] = ()
    """Other threads of the store that have a checkpoint with the id of an erased one: forks and copies.
    They have the same content, and are not erased."""

    @property
    def ok(self) -> bool:
        """Whether no byte of the thread is left in the store. `copies` have their own."""
        return not self.remaining


@acts_for("thread")
def erase(
    saver: BaseCheckpointSaver, thread: ThreadLike, *, ledger: ErasureLedger | None = None, full: bool = False
) -> ErasureReport:
    """Delete a thread, and make sure that no byte of it is left in the store.

    Reads the ids of all checkpoints of the store to find copies, deletes the thread with its versions,
    and removes what it and earlier deletes have left. An erasure that was cut short is completed by a
    second one. docs/security.md says what each saver does, and what is beyond its reach.

    Args:
        saver: the store of the thread.
        thread: the thread id, or a config that names the thread. It may be gone already.
        ledger: records the erasure, so that it can be repeated on a backup. It is written first, in case
            the process dies. The record has the time of the attempt: if the erasure fails, erase again,
            since `ErasureLedger.apply` passes over what a run has written later.
        full: do also what keeps other processes from using the store meanwhile: VACUUM FULL on
            PostgreSQL; on object storage, no process may have a deleted thread open.

    Returns:
        What is left, and why; see `ErasureReport.ok`.

    Raises:
        AccessDeniedError: the caller may not delete the thread. Nothing was changed.
        ThreadBusyError: a run holds the thread. Nothing was changed, except the ledger.
        CheckpointStorageError: the store failed. The thread may be deleted, and the ledger has it.
    """
    thread_id = resolve_thread_id(thread)
    (report,) = _erase(saver, [thread_id], full=full, ledger=ledger, goes_on=False)
    return report


def erase_where(
    saver: BaseCheckpointSaver,
    metadata: Mapping[str, Any],
    *,
    stores: Sequence[Any] = (),
    ledger: ErasureLedger | None = None,
    full: bool = False,
) -> list[ErasureReport]:
    """Erase all threads that belong to a person, and what LangGraph's stores have of that person.

    A thread belongs to the person if any checkpoint of it has this metadata, in any namespace or
    version. Each thread is erased as `erase` does. Finding them reads the metadata of the whole store.

    Args:
        saver: the store of the threads.
        metadata: keys and values, such as `{"user": "ann"}`. Values are compared with `==`.
        stores: a `FileSystemStore`, whose items are erased that have these keys and values, or whose
            namespace has all of these values as labels; a `FileSystemCache`, which cannot tell whose
            its values are, and is emptied.
        ledger: as for `erase`.
        full: as for `erase`.

    Returns:
        A report on each thread, and one on each store, in their order. That of a thread which could
        not be read, recorded or deleted says so.

    Raises:
        AccessDeniedError: the caller may not delete one of the threads. Nothing was changed.
        TypeError: the metadata is not a mapping. Nothing was changed.
        ValueError: it is empty: that would be everybody's.
    """
    stores = tuple(stores)  # what cannot be iterated must fail before the first thread is erased
    selection = select_threads(saver, metadata)
    return erase_selection(saver, selection, metadata, stores=stores, ledger=ledger, full=full)


def erase_selection(
    saver: BaseCheckpointSaver,
    selection: Selection,
    metadata: Mapping[str, Any],
    *,
    stores: Sequence[Any],
    ledger: ErasureLedger | None,
    full: bool,
) -> list[ErasureReport]:
    """Erase the threads that were selected by metadata, and no other; the rest is as in `erase_where`."""
    reports = _erase(saver, selection.thread_ids, full=full, ledger=ledger, goes_on=True)
    reports += selection.unreadable
    for store in stores:
        erase_entries: Callable[[Mapping[str, Any]], Sequence[str]] | None = getattr(store, "erase_where", None)
        if erase_entries is None:
            remaining: Sequence[str] = [f"{type(store).__name__} cannot erase: delete what it has of this person"]
        else:
            try:
                remaining = erase_entries(metadata)
            except CheckpointerError as error:
                remaining = [f"nothing was erased from it: {error}"]
        reports.append(ErasureReport(thread_id=None, remaining=tuple(remaining)))
    return reports


class Selection(NamedTuple):
    """Threads to erase."""

    thread_ids: list[str]
    unreadable: list[ErasureReport]
    """Reports on the threads that may have to be erased, too: nobody can tell."""


def select_threads(saver: BaseCheckpointSaver, metadata: Mapping[str, Any]) -> Selection:
    """Return the threads that have a checkpoint with this metadata.

    Raises:
        TypeError: the metadata is not a mapping.
        ValueError: it is empty.
    """
    given: object = metadata
    if not isinstance(given, Mapping):
        raise TypeError(f"metadata must be a mapping such as {{'user': 'ann'}}, not {type(given).__name__}")
    if not metadata:
        raise ValueError("metadata must not be empty: every thread would be erased")

    empty: list[str] = []

    def is_wanted(thread_id: str, checkpoints: Iterator[_Listed]) -> bool:
        is_empty = True
        for checkpoint in checkpoints:
            if metadata.items() <= checkpoint.metadata.items():
                return True
            is_empty = False
        if is_empty:
            empty.append(thread_id)
        return False

    selection = _select(saver, is_wanted)
    if empty:
        # LangGraph stores writes before their checkpoint, which has the metadata. Others were deleted meanwhile.
        present = saver.threads(released=True)
        reason = "it was not erased, for it has no checkpoint, and nothing else tells whose it is"
        without_owner = [thread_id for thread_id in empty if thread_id in present]
        selection.unreadable.extend(ErasureReport(thread_id=each, remaining=(reason,)) for each in without_owner)
    return selection


def _select(saver: BaseCheckpointSaver, is_wanted: Callable[[str, Iterator[_Listed]], bool]) -> Selection:
    """Return the threads that a function selects by their ids and their checkpoints."""
    selected: list[str] = []
    unreadable: list[ErasureReport] = []
    for thread_id in saver.threads(released=True):
        try:
            if is_wanted(thread_id, _iter_checkpoints(saver, thread_id)):
                selected.append(thread_id)
        except _WITHOUT_CONTENT:
            continue
        except CheckpointerError as error:
            reason = f"it was not erased, for it cannot be read, and may have to be: {error}"
            unreadable.append(ErasureReport(thread_id=thread_id, remaining=(reason,)))
    return Selection(selected, unreadable)


class _Found(NamedTuple):
    """What was found out about a thread that is erased."""

    reasons: list[str]
    copies: list[str]


def _erase(
    saver: BaseCheckpointSaver, thread_ids: Sequence[str], *, full: bool, ledger: ErasureLedger | None, goes_on: bool
) -> list[ErasureReport]:
    """Erase threads of one store; with `goes_on`, one that cannot be deleted gets a report that says why.

    Raises:
        AccessDeniedError: one of them may not be deleted. Nothing was changed.
    """
    for thread_id in thread_ids:
        check_rights(saver, RunnableConfig(thread_id), "delete")
    # All reasons and copies of a thread are collected here.
    found = {thread_id: _Found([], []) for thread_id in thread_ids}
    _find_copies(saver, found)
    for thread_id, (reasons, _) in found.items():
        try:
            # First the ledger: a thread that is not recorded is not deleted.
            if ledger is not None:
                ledger.record(thread_id)
            saver.delete(thread_id)
        except CheckpointerError as error:
            if not goes_on:
                raise
            reasons.append(f"it was not deleted: {error}")
        if saver.run_lock_key(RunnableConfig(thread_id)) in get_held_run_locks():
            reasons.append("the caller holds its run lock, which names it: erase again without the lock")
    # Also if there is no thread: an earlier erasure may have been cut short after it had deleted them.
    left: Sequence[str]
    if isinstance(saver, SupportsErase):
        try:
            left = saver.erase_deleted(full=full)
        except CheckpointerError as error:
            left = [f"what is left of deleted threads could not be removed: {error}"]
    else:
        left = [f"{type(saver).__name__} deletes, but cannot tell what is left of what it has deleted"]
    if not found and left:
        return [ErasureReport(thread_id=None, remaining=tuple(left))]
    return [
        ErasureReport(thread_id=thread_id, remaining=(*reasons, *left), copies=tuple(copies))
        for thread_id, (reasons, copies) in found.items()
    ]


def _find_copies(saver: BaseCheckpointSaver, found: Mapping[str, _Found]) -> None:
    """Find the copies of each thread, or the reasons why some may be unknown."""
    # A copy and a fork keep the ids of the checkpoints, and nothing else tells where they came from.
    owners: dict[str, set[str]] = {}
    for thread_id, (reasons, _) in found.items():
        for checkpoint_id in _read_ids(saver, thread_id, "its copies are not known, for it", [reasons]):
            owners.setdefault(checkpoint_id, set()).add(thread_id)
    if not owners:
        return
    all_reasons = [reasons for reasons, _ in found.values()]
    if not saver.lists_threads:
        for reasons in all_reasons:
            reasons.append(f"its copies are not known, for {type(saver).__name__} cannot list its threads")
        return
    for other in saver.threads(released=True):
        if other in found:
            continue
        ids = _read_ids(saver, other, f"thread {other:.80} may be a copy of it, and", all_reasons)
        for thread_id in {owner for each in ids for owner in owners.get(each, ())}:
            found[thread_id].copies.append(other)


def _read_ids(saver: BaseCheckpointSaver, thread_id: str, problem: str, reasons: Sequence[list[str]]) -> set[str]:
    """Return the ids of all checkpoints of a thread; if it cannot be read, add that to some lists of reasons."""
    try:
        return {checkpoint.id for checkpoint in _iter_checkpoints(saver, thread_id)}
    except _WITHOUT_CONTENT:
        return set()
    except CheckpointerError as error:
        for each in reasons:
            each.append(f"{problem} cannot be read: {error}")
        return set()


def _iter_checkpoints(saver: BaseCheckpointSaver, thread_id: str) -> Iterator[_Listed]:
    """Yield all checkpoints of a thread, those of its versions too; their states are not read.

    A history whose key was destroyed is passed over: the others may be those of another person.

    Raises:
        CheckpointErasedError: a key was destroyed, and no other history has a checkpoint.
    """
    erased: CheckpointErasedError | None = None
    is_readable = False
    for namespace, version in _iter_histories(saver, thread_id):
        config = RunnableConfig(thread_id, checkpoint_ns=namespace)
        try:
            if version is None:
                found: Sequence[_Listed] = saver.history(config)
            else:
                found = cast("HasVersions", saver).tag(config, version).checkpoints
        except CheckpointErasedError as error:
            erased = error
            continue
        for checkpoint in found:
            is_readable = True
            yield checkpoint
    if erased is not None and not is_readable:
        raise erased


def _iter_histories(saver: BaseCheckpointSaver, thread_id: str) -> Iterator[tuple[str, int | None]]:
    """Yield the namespace and the version of each history of a thread; the active ones have none."""
    for namespace in saver.namespaces(thread_id):
        yield namespace, None
    if isinstance(saver, HasVersions):
        for version in saver.versions_by_thread_id(thread_id):
            for namespace in saver.version_namespaces(thread_id, version):
                yield namespace, version


@final
class ErasureLedger:
    """A file that remembers what was erased, so that it can be erased again after a backup was restored.

    It has only keyed hashes of thread ids, and times: without the key, it does not confirm that an id
    was there. Keep it, and its key, apart from the store and its backups. Any number of processes may
    use one file. It only grows, by 118 bytes for each erasure.
    """

    def __init__(self, path: str | os.PathLike[str], *, key: bytes) -> None:
        """Name the file; the first record creates it.

        Args:
            path: the file.
            key: 16 random bytes or more, always the same.

        Raises:
            CheckpointerConfigurationError: the key is too short, or not bytes.
        """
        given: object = key
        if not isinstance(given, bytes) or len(given) < _LEAST_KEY:
            raise CheckpointerConfigurationError(f"the key of an erasure ledger must be {_LEAST_KEY} bytes or more")
        self._path = str(Path(path).absolute())  # whatever the working directory becomes
        self._key = key

    def record(self, thread: ThreadLike) -> None:
        """Record that a thread is erased now, and bring the record to the disk.

        Raises:
            CheckpointStorageError: the record may not be on the disk.
        """
        from graphkit._transfer.importing import sync_directory

        microseconds = to_microseconds(datetime.now(UTC))
        record = b"1 %s %016d" % (self._hash(resolve_thread_id(thread)), microseconds)
        # A line of its own, also behind one that was torn: a process may have died while it wrote it.
        line = b"\n%s %s\n" % (record, self._sign(record))
        try:
            with os.fdopen(os.open(self._path, _APPEND, 0o600), "ab") as file:
                written = os.write(file.fileno(), line)
                os.fsync(file.fileno())
            sync_directory(Path(self._path).parent)
        except OSError as error:
            raise CheckpointStorageError(self._path, "write to", error) from error
        if written < len(line):
            raise CheckpointStorageError(self._path, "write to", "only a part of the record was written")

    def apply(self, saver: BaseCheckpointSaver, *, full: bool = False) -> list[ErasureReport]:
        """Erase what has come back: each thread with a checkpoint from before its recorded erasure.

        A thread that was written again stays, since all its checkpoints are later. One that has no
        checkpoint, only writes that came before it, is erased. A thread is erased as
        a whole, also if a run has gone on with what a backup has brought back. Times are those of the
        checkpoints: a copy, fork or import to an id that was erased has old ones.

        Args:
            saver: the store, after a backup was restored.
            full: as for `erase`.

        Returns:
            A report on each thread that had to be erased, and on each that could not be read.

        Raises:
            CheckpointCorruptionError: the ledger is damaged, or was written with another key. Nothing
                was changed.
            CheckpointStorageError: the ledger cannot be read.
        """
        erased = self._read()

        def is_older(thread_id: str, checkpoints: Iterator[_Listed]) -> bool:
            moment = erased.get(self._hash(thread_id))
            if moment is None:
                return False
            try:
                # Without a checkpoint, a thread has only writes that came before it, and no times.
                oldest = min((checkpoint.created_at for checkpoint in checkpoints), default=None)
                return oldest is None or oldest < moment
            except CheckpointErasedError:
                return True  # Its times cannot be read, and nor can anything else: no one misses what goes.

        selected, unreadable = _select(saver, is_older)
        return _erase(saver, selected, full=full, ledger=None, goes_on=True) + unreadable

    def _read(self) -> dict[bytes, datetime]:
        """Return when each thread was erased last, by its hash."""
        try:
            data = Path(self._path).read_bytes()
        except OSError as error:
            raise CheckpointStorageError(self._path, "read", error) from error
        erased: dict[bytes, datetime] = {}
        offset = 0
        for line in data.split(b"\n"):
            # What a power loss or a full disk has left of a record is shorter, or has zeros.
            record = line.strip(b"\0")
            if len(record) >= _RECORD_LENGTH:
                match = _RECORD.match(record)
                if match is None or not hmac.compare_digest(self._sign(match[1]), match[4]):
                    reason = "the record is damaged, or was written with another key"
                    raise CheckpointCorruptionError(self._path, offset, reason)
                moment = to_datetime(int(match[3]))
                erased[match[2]] = max(moment, erased.get(match[2], moment))
            offset += len(line) + 1
        return erased

    def _hash(self, thread_id: str) -> bytes:
        return self._digest(b"thread\0" + thread_id.encode("utf-8", "surrogatepass")).encode()

    def _sign(self, record: bytes) -> bytes:
        return self._digest(b"record\0" + record).encode()[:32]

    def _digest(self, data: bytes) -> str:
        return hmac.new(self._key, b"graphkit erasure\0" + data, hashlib.sha256).hexdigest()
