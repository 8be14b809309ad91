"""erase: what it asks, what it says, and its exit codes."""

import shutil

import pytest

from savers import SqliteSaver
from tests.support.erasure import find_files
from tests.support.terminal import assert_refused, assert_shows, checkpoint, damage, graphkit, read_json

pytestmark = pytest.mark.requirement("P73")


def test_a_thread_is_erased(store):
    assert graphkit("erase", store, "--thread", "order-17", "--dry-run").out == "would erase order-17, 662 B\n"
    no = graphkit("erase", store, "--thread", "order-17", terminal=True, stdin="\n")
    assert (no.code, no.out) == (1, "nothing was erased\n")
    assert no.err == "erase order-17, 662 B, for good? [y/N] "
    done = graphkit("erase", store, "--thread", "order-17", terminal=True, stdin="y\n")
    assert (done.code, done.out) == (0, "erased 1 thread of 1\n")
    assert find_files(store, "order-17") == []
    report = {"thread": "order-17", "store": None, "ok": True, "remaining": [], "copies": []}
    assert read_json("erase", store, "--thread", "order-17", "--yes") == {"ok": True, "reports": [report]}


def test_what_it_needs(store, tmp_path):
    for arguments, message in (
        ((), "say what to erase"),
        (("--thread", "order-17", "--where", "a=1"), "not both"),
        (("--thread", "order-17"), "pass --yes"),
        (("--ledger", tmp_path / "ledger"), "--ledger-key"),
    ):
        assert_refused(graphkit("erase", store, *arguments), 2, message)
    done = graphkit("erase", store, "--ledger", tmp_path / "ledger", "--ledger-key", tmp_path / "none", "--yes")
    assert_refused(done, 18, "the key of the ledger cannot be read")
    assert len(read_json("threads", store)) == 3


def test_copies_and_what_is_left_are_listed(store):
    graphkit("fork", store, "order-17", "copied")
    done = graphkit("erase", store, "--thread", "order-17", "--yes")
    assert_shows(done, 0, "these have checkpoints of it, and are not erased: copied")
    damage(store, "order-18")
    done = graphkit("erase", store, "--thread", "copied", "--yes")
    assert_shows(done, 1, "order-18 may be a copy of it, and cannot be read")


def test_a_person_is_erased_from_a_database_and_again_from_its_backup(tmp_path):
    (tmp_path / "key").write_bytes(bytes(32))
    ledger = ["--ledger", tmp_path / "ledger", "--ledger-key", tmp_path / "key"]
    path = tmp_path / "runs.db"
    copied = tmp_path / "backup.db"
    name = f"sqlite:{path}"
    backup = f"sqlite:{copied}"
    with SqliteSaver(path) as saver:
        for number, (thread, user) in enumerate({"a": "ann", "b": "ann", "c": "bob", "d": "bob"}.items()):
            saver.put(thread, checkpoint(number, "n", "m", {}, user=user))
    shutil.copy(path, copied)

    erase = ["erase", name, "--where", "user=ann"]
    assert read_json(*erase, "--dry-run") == {"threads": ["a", "b"], "stores": [], "dry_run": True}
    assert_shows(graphkit(*erase, "--yes", *ledger), 0, "erased 2 threads of 2\n")
    assert graphkit(*erase, "--yes").out == "no thread was found\n"
    assert_shows(graphkit("erase", name, "--thread", "c", "--yes", *ledger), 0, "erased 1 thread of 1\n")

    asked = graphkit("erase", backup, *ledger, terminal=True, stdin="n\n")
    assert_refused(asked, 1, "erase what")
    assert_shows(graphkit("erase", backup, "--yes", *ledger), 0, "erased 3 threads of 3\n")
    (left,) = read_json("threads", backup)
    assert left["thread"] == "d"


def test_only_what_the_question_named_is_erased(store, saver):
    def type_line():  # a worker begins another thread of the same person
        saver.put("later", checkpoint(32, "n", "m", {}, user="ann"))
        return "y\n"

    saver.put("named", checkpoint(31, "n", "m", {}, user="ann"))
    done = graphkit("erase", store, "--where", "user=ann", terminal=True, stdin=type_line)
    assert (done.code, done.out, "erase named" in done.err) == (0, "erased 1 thread of 1\n", True)
    assert sorted(saver.threads()) == ["import-a", "later", "order-17", "order-18"]


@pytest.mark.parametrize("typed", ["order-1", "zzz"])
def test_what_earlier_deletes_have_left_goes_although_the_thread_is_gone(store, saver, typed):
    """Others may begin with its id: an erasure that was cut short is completed all the same."""
    with saver.run_lock("gone-7"):
        pass
    assert find_files(store, "gone-7")
    done = graphkit("erase", store, "--thread", typed, "--yes")
    assert (done.code, done.out) == (0, f"there is no thread {typed}; removed what earlier deletes have left\n")
    assert len(saver.threads()) == 3
    assert find_files(store, "gone-7") == []
