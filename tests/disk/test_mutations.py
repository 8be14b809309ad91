"""The harness can fail: each promise-keeping line of the saver is taken out in turn, and must be missed within bounds.

A harness that stays green whatever is broken proves nothing. Each mutation is applied to the running code, and the crash
harness must raise within a bounded number of states.
"""

from contextlib import contextmanager, suppress
from unittest import mock

import pytest

from graphkit import CheckpointerError, CheckpointStorageError
from savers._filesystem import lifecycle, log_bytes, rewrite, store, sync
from savers._filesystem.log_bytes import FileDurability, LogFile
from savers._log import frame
from savers._log.stored_checkpoint import EarlyWrites
from tests.disk import crashes
from tests.disk.crashes import PLACE, Crashes, config_of, fixed, made, open_saver
from tests.disk.simfs import SimFS
from tests.support.checkpoints import list_numbers

BOUND = 2500


# What breaks it: each a context manager; that of `within` serves once


def without(target, name, new=lambda *_, **__: None):
    """A mutation that puts something else in the place of a method or a function: by default, what does nothing."""
    return mock.patch.object(target, name, new)


def returning(target, name, value):
    return mock.patch.object(target, name, return_value=value)


def replacing(target, name, make):
    """A mutation in which `make` is given the original, and returns what takes its place."""
    return mock.patch.object(target, name, make(getattr(target, name)))


def syncing_directories(keep):
    """Only the directories that `keep` accepts are synced."""
    return replacing(SimFS, "fsync_dir", lambda sync_dir: lambda fs, path: sync_dir(fs, path) if keep(path) else None)


def syncing_no_file(prefix):
    def only_others(original):
        def fsync(fs, fd):
            if not fs._fds[fd].path.rpartition("/")[2].startswith(prefix):
                original(fs, fd)

        return fsync

    return replacing(SimFS, "fsync", only_others)


@contextmanager
def within(module, name, method):
    """A mutation in which a method of the file system does nothing while a function runs."""
    running = []

    def note(function):
        def run(*args, **options):
            running.append(name)
            try:
                return function(*args, **options)
            finally:
                running.pop()

        return run

    def skip(original):
        return lambda fs, place: None if running else original(fs, place)

    with replacing(module, name, note), replacing(SimFS, method, skip):
        yield


class AnyNumber(int):
    """A checksum that is whatever it is compared with."""

    def __eq__(self, _):
        return True

    def __ne__(self, _):
        return False

    __hash__ = int.__hash__


def believing_a_failed_sync(sync_bytes):
    def believe(ticket):
        with suppress(OSError):
            sync_bytes(ticket)

    return believe


def believing_in_what_was_appended_meanwhile(sync_bytes):
    def believe(ticket):
        sync_bytes(ticket)
        ticket.log.frames.bytes.durability.note_synced(ticket.file.appended_end)

    return believe


def cut_back_for_now(log_file, start):
    """An undo that is not brought to the disk."""
    log_file._io.truncate(log_file.fd, start)
    log_file._clean_size = start


def write_once(log_file, start, data):
    """A write that does not go on when it was short."""
    log_file._io.write_at(log_file.fd, start, data)


def extend_with_ones(log_file, start, data):
    end = start + len(data)
    return log_file._io.write_at(log_file.fd, start, data + b"\xff" * (log_bytes._choose_size(end) - end))


def forgetting_other_distances(measure):
    """Of what waits for other checkpoints, a record says nothing."""

    def measure_one(early, id, offset):
        found = measure(early, id, offset)
        return found and (found[0], 0)

    return measure_one


def acknowledge_without_a_put(_, ticket):
    """Whether a put follows or not, its sync is believed in."""
    ticket.log.frames.bytes.durability.note_synced(ticket.end, with_names=True)


# What must miss it


def states(*names):
    workloads = [getattr(crashes, name) for name in names]

    def look():
        for workload in workloads:
            Crashes().explore(workload, BOUND)

    return look


def two_at_once():
    """Two savers whose appends overlap: between looking and appending of the first, the second appends."""
    with fixed("two"):
        fs = SimFS()
        first, second = (open_saver(fs) for _ in range(2))
        first.put(config_of(), made(0))
        second.put(config_of(), made(1))
        busy = []
        expected = [2, 1, 0]

        def meanwhile(kind, path):
            if kind == "write_at" and not busy:
                busy.append(path)
                with suppress(CheckpointStorageError):
                    second.put(config_of(), made(3))
                    expected.insert(1, 3)

        fs.hook = meanwhile
        first.put(config_of(), made(2))
        fs.hook = None
        found = list_numbers(open_saver(fs), config_of())
        assert found == expected


# The saver without one thing that it does: (how it is broken, what must miss it).
MUTATIONS = {
    "sync of a put": (without(SimFS, "fdatasync"), states("puts"), states("langgraph_steps")),
    "wait for the sync": (
        without(sync.SyncAlways, "settle", lambda _, ticket, **__: sync.release_ticket(ticket)),
        states("puts"),
    ),
    "sync of directories": (without(store.Store, "sync_directories"), states("puts")),
    "sync of the root": (syncing_directories(lambda path: path != PLACE), states("puts")),
    "sync of a thread's directory": (
        syncing_directories(lambda path: "/t-" not in path or "/n-" in path),
        states("puts"),
    ),
    "sync of the parent": (syncing_directories(lambda path: path != "/"), states("puts")),
    "sync of a namespace's directory": (syncing_directories(lambda path: "/n-" not in path), states("several_threads")),
    "sync of a rewritten log": (syncing_no_file("tmp-"), states("prune")),
    "sync of the name of a rewritten log": (
        within(rewrite, "_install", "fsync_dir"),
        states("prune", "failed_sync", "copy"),
    ),
    "sync of a released log": (syncing_no_file("log"), states("release")),
    "checksums": (replacing(frame, "crc32", lambda crc32: lambda *data: AnyNumber(crc32(*data))), states("puts")),
    "finishing what was begun": (without(lifecycle, "finish_begun"), states("release"), states("delete")),
    "a durable tombstone": (within(lifecycle, "delete", "fsync"), states("delete")),
    "the lock": (returning(SimFS, "lock", True), two_at_once),
    "looking at what others wrote": (
        without(lifecycle, "make_ready", lambda _, log: log.is_open or log.refresh()),
        two_at_once,
        states("two_savers"),
    ),
    # As if others' records always changed the size.
    "looking at the bytes behind the end": (
        without(LogFile, "is_unchanged", lambda log_file, size, _: size == log_file._clean_size),
        two_at_once,
        states("two_savers"),
    ),
    "doubt in a sync that failed": (replacing(sync, "sync_bytes", believing_a_failed_sync), states("failed_sync")),
    "a new generation": (
        without(rewrite, "renew", lambda log: log.frames.bytes.durability.note_replaced()),
        states("failed_sync"),
    ),
    "a durable undo": (without(LogFile, "cut_back", cut_back_for_now), states("failed_write")),
    "going on after a short write": (without(LogFile, "write", write_once), states("failed_write")),
    "recording what is not synced": (
        returning(FileDurability, "count_unsynced", 0),
        states("two_savers", "two_workers"),
    ),
    # A reader of the end of the log finds no write before its checkpoint.
    "early distances": (without(EarlyWrites, "measure"), states("early_writes"), states("langgraph_steps")),
    "the distance of others": (replacing(EarlyWrites, "measure", forgetting_other_distances), states("early_writes")),
    "what waits in a rewrite": (returning(EarlyWrites, "select_recent", []), states("rewritten_early_writes")),
    "waiting for a put": (
        without(sync.SyncAlways, "_wait_for_put", acknowledge_without_a_put),
        states("langgraph_steps"),
    ),
    "doubt in what was appended during a sync": (
        replacing(sync, "sync_bytes", believing_in_what_was_appended_meanwhile),
        states("late_worker"),
    ),
    "zeros ahead": (without(LogFile, "_write_and_extend", extend_with_ones), states("puts")),
}
CASES = [
    pytest.param(mutation, harness, id=f"{name} {number}")
    for name, (mutation, *harnesses) in MUTATIONS.items()
    for number, harness in enumerate(harnesses)
]


@pytest.mark.sweep(13)
@pytest.mark.parametrize(("mutation", "harness"), CASES)
def test_a_broken_saver_is_found_out(mutation, harness):
    with (
        mutation,
        pytest.raises((AssertionError, AttributeError, CheckpointerError, ValueError, pytest.fail.Exception)),
    ):
        harness()


def test_two_savers_at_once_as_they_are_pass():
    two_at_once()
