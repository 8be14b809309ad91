"""The tests of the logs of items and cached values can fail: each promise-keeping line is taken out, and missed.

As tests/disk/test_mutations.py for the logs of threads.
"""

import inspect
from unittest import mock

import pytest

from graphkit.errors import CheckpointerError
from savers._filesystem import sync
from savers._filesystem.io import FileRange
from savers._filesystem.log_bytes import FileDurability, FileLogBytes, LogFile
from savers._log import records
from savers._log.records import Records
from savers.langgraph import FileSystemStore
from savers.langgraph._entries import log as entry_log
from savers.langgraph._entries.examine import EntriesIdentity, EntriesReport
from tests.disk.simfs import SimFS
from tests.integrations import test_langgraph_files_commands as commands, test_langgraph_files_faults as faults
from tests.support.sweeps import Sweep


def nothing(*_, **__):
    return None


# What breaks it: each a context manager


def without_fdatasync():
    return mock.patch.object(SimFS, "fdatasync", nothing)


def without_directory_sync():
    return mock.patch.object(SimFS, "fsync_dir", nothing)


def without_rewrite_sync():
    return mock.patch.object(SimFS, "fsync", nothing)


def believing_a_sync_that_failed():
    original = sync.sync_bytes

    def believe(ticket):
        try:
            original(ticket)
        except OSError:
            ticket.log.frames.bytes.durability.note_replaced()

    return mock.patch.object(sync, "sync_bytes", believe)


def without_a_new_log_after_a_failed_sync():
    return mock.patch.object(sync, "_rewrite_log", nothing)


def without_cutting_the_tail():
    return mock.patch.object(FileLogBytes, "prepare_end", return_value="")


def without_undoing():
    return mock.patch.object(LogFile, "cut_back", nothing)


def taking_damage_for_a_torn_end():
    return mock.patch.object(records, "judge", nothing)


def without_a_checksum_of_contents():
    return mock.patch.object(entry_log, "crc32", lambda content: _Equal(len(content)))


class _Equal(int):
    """A checksum that is whatever it is compared with."""

    def __eq__(self, _):
        return True

    def __ne__(self, _):
        return False

    __hash__ = int.__hash__


def without_looking_whether_the_kind_is_right():
    return mock.patch.object(EntriesIdentity, "check_meta", nothing)


def vouching_for_what_is_not_synced():
    return mock.patch.object(FileDurability, "count_unsynced", return_value=0)


def repairing_without_a_copy():
    return mock.patch.object(FileRange, "salvage", return_value="damaged-1.bin")


def repairing_up_to_the_damage_only():
    original = Records.search

    def search(self, start, end):
        seq = None
        for frame in original(self, start, end):
            if seq is not None and frame.seq != seq + 1:
                return
            seq = frame.seq
            yield frame

    return mock.patch.object(Records, "search", search)


def verifying_nothing():
    def examine(io, path, kind):
        return EntriesReport(path=f"{kind}/log", entries=commands.COUNT)

    return mock.patch.object(entry_log, "examine", examine)


def verifying_without_the_end():
    return mock.patch.object(Records, "is_zero", return_value=True)


# What must miss it


class _Harness:
    """A test of the other files, with its fixtures."""

    def __init__(self, test, **parameters):
        self._test = test
        self._parameters = parameters
        self.__name__ = test.__name__

    def __call__(self, tmp_path, monkeypatch):
        monkeypatch.setattr(entry_log, "_LEAST_REWRITTEN", 1000)
        arguments = {"tmp_path": tmp_path, "monkeypatch": monkeypatch, **self._parameters}
        wanted = inspect.signature(self._test).parameters
        with FileSystemStore(tmp_path, fsync="never") as store:
            arguments["store"] = store
            arguments["sweep"] = Sweep(is_full=False)
            arguments["log"] = tmp_path / "langgraph-store" / "log"
            if "failing" in wanted:
                io = faults.FailingFiles()
                store_that_fails = FileSystemStore(tmp_path, io=io)
                store_that_fails.put(("a",), "one", {"n": 1})
                arguments["failing"] = io, store_that_fails
            if "runs" in wanted:
                arguments["runs"] = commands.runs.__wrapped__(tmp_path)
            self._test(**{name: arguments[name] for name in wanted})


POWER_LOSS = _Harness(faults.test_power_loss_keeps_what_was_acknowledged_and_at_most_one_more)
CACHE = _Harness(faults.test_a_cache_survives_power_loss_too)
NEVER = _Harness(faults.test_who_does_not_wait_loses_the_end_at_most)
TORN = _Harness(faults.test_a_put_that_was_cut_at_any_byte_is_as_if_it_had_never_been)
BITS = _Harness(faults.test_every_flipped_bit_is_an_error_and_repair_keeps_all_other_records)
LONG = _Harness(faults.test_damage_of_a_long_value_is_seen_while_the_store_is_open)
KIND = _Harness(faults.test_a_log_of_another_kind_is_refused)
FULL = _Harness(faults.test_a_full_disk_refuses_the_put_and_keeps_the_rest, also=())
FAILED_SYNC = _Harness(faults.test_after_a_failed_sync_the_log_is_rewritten_without_the_put_that_failed)
COMMANDS = _Harness(commands.test_damage_is_reported_and_repaired, kind="langgraph-cache")
TORN_COMMANDS = _Harness(commands.test_a_torn_end_is_no_error_and_is_set_aside, kind="langgraph-store")

MUTATIONS = [
    (without_fdatasync, POWER_LOSS),
    (without_fdatasync, CACHE),
    (without_directory_sync, POWER_LOSS),
    (without_rewrite_sync, POWER_LOSS),
    (vouching_for_what_is_not_synced, NEVER),
    (believing_a_sync_that_failed, FAILED_SYNC),
    (without_a_new_log_after_a_failed_sync, FAILED_SYNC),
    (without_cutting_the_tail, TORN),
    (without_undoing, FULL),
    (taking_damage_for_a_torn_end, BITS),
    (without_a_checksum_of_contents, LONG),
    (without_looking_whether_the_kind_is_right, KIND),
    (repairing_without_a_copy, BITS),
    (repairing_up_to_the_damage_only, BITS),
    (verifying_nothing, COMMANDS),
    (verifying_without_the_end, TORN_COMMANDS),
]


@pytest.mark.parametrize(
    ("mutation", "harness"),
    MUTATIONS,
    ids=[f"{number}-{mutation.__name__}" for number, (mutation, _) in enumerate(MUTATIONS)],
)
def test_a_broken_log_is_found_out(mutation, harness, tmp_path, monkeypatch):
    with mutation(), pytest.raises((AssertionError, CheckpointerError, pytest.fail.Exception)):
        harness(tmp_path, monkeypatch)
