"""The tests of the logs of items and cached values can fail: each promise-keeping line is taken out, and missed.

Those of what they share with the logs of threads are in tests/disk/test_mutations.py.
"""

import inspect
from unittest import mock

import pytest

from graphkit.errors import CheckpointerError
from savers._log.records import Records
from savers.langgraph import FileSystemStore, entry_log
from savers.langgraph.entry_log import EntriesIdentity, EntriesReport
from tests.disk.simfs import SimFS
from tests.integrations import test_langgraph_files_commands as commands, test_langgraph_files_faults as faults
from tests.support.sweeps import Sweep


def nothing(*_, **__):
    return None


# What breaks it: each a context manager


def without_fdatasync():
    return mock.patch.object(SimFS, "fdatasync", nothing)


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
        wanted = inspect.signature(self._test).parameters
        with FileSystemStore(tmp_path, fsync="never") as store:
            arguments = {
                "tmp_path": tmp_path,
                "monkeypatch": monkeypatch,
                "store": store,
                "sweep": Sweep(is_full=False),
                "log": tmp_path / "langgraph-store" / "log",
                **self._parameters,
            }
            if "runs" in wanted:
                arguments["runs"] = commands.runs.__wrapped__(tmp_path)
            self._test(**{name: arguments[name] for name in wanted})


POWER_LOSS = _Harness(faults.test_power_loss_keeps_what_was_acknowledged_and_at_most_one_more)
CACHE = _Harness(faults.test_a_cache_survives_power_loss_too)
LONG = _Harness(faults.test_damage_of_a_long_value_is_seen_while_the_store_is_open)
KIND = _Harness(faults.test_a_log_of_another_kind_is_refused)
COMMANDS = _Harness(commands.test_damage_is_reported_and_repaired, kind="langgraph-cache")
TORN_COMMANDS = _Harness(commands.test_a_torn_end_is_no_error_and_is_set_aside, kind="langgraph-store")

MUTATIONS = [
    (without_fdatasync, POWER_LOSS),
    (without_fdatasync, CACHE),
    (without_a_checksum_of_contents, LONG),
    (without_looking_whether_the_kind_is_right, KIND),
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
