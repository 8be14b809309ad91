"""verify, repair, compact, prune, copy, delete, release: each says what it did, and with --dry-run what it would do."""

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver, MemorySaver
from tests.cli.terminal import checkpoint, damage, graphkit


def files(store):
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != "run.lock"}


def test_verify(store):
    done = graphkit("verify", store)
    assert done.out == "3 threads, 5 checkpoints, 1.3 kB: all of it is well\n"
    assert graphkit("verify", store, "--json").json == {
        "threads": 3, "checkpoints": 5, "size": 1310, "ok": True, "problems": [],
    }  # fmt: skip
    assert graphkit("verify", store, "order-17").out.startswith("1 thread, 2 checkpoints")


def test_verify_finds_damage(store):
    damage(store, "order-18")
    done = graphkit("verify", store)
    assert done.code == 12
    assert done.lines[0].split() == ["FILE", "STATE", "AT", "BYTE", "GOOD", "CHECKPOINTS", "REASON"]
    assert "damaged" in done.lines[1]
    assert done.lines[2] == "3 threads, 5 checkpoints, 1.3 kB: 1 not well; see `graphkit repair`"
    (problem,) = graphkit("verify", store, "--json").json["problems"]
    assert (problem["thread"], problem["state"], problem["checkpoints"]) == ("order-18", "damaged", 2)


def test_a_torn_end_is_no_error(store):
    (path,) = store.glob("t-order-18-*/log")
    path.write_bytes(path.read_bytes()[:-5])
    done = graphkit("verify", store)
    assert (done.code, "sets a torn end aside" in done.out) == (0, True)


def test_repair(store):
    damage(store, "order-18", offset=-100)
    before = files(store)
    would = graphkit("repair", store, "--dry-run")
    assert would.out == "would repair 1 thread: order-18\n"
    assert files(store) == before
    done = graphkit("repair", store, "order-18")
    assert (done.code, done.out.startswith("repaired 1 file: kept 1 checkpoint, lost ")) == (0, True)
    assert graphkit("verify", store).code == 0
    assert graphkit("repair", store).out == "nothing was damaged\n"
    data = graphkit("repair", store, "--json").json
    assert data == {"files": [], "lost": [], "finished": [], "removed": []}


def test_a_thread_that_only_its_name_proves_is_repaired_when_it_is_named(store):
    FileSystemSaver(store).put(RunnableConfig("Order / 19"), checkpoint(1, "a", "b", {}))
    damage(store, "order-19", offset=70)
    done = graphkit("repair", store, "Order / 19")
    assert (done.code, done.out.startswith("repaired 1 file: kept 1 checkpoint")) == (0, True)
    assert graphkit("repair", store, "Order / 20").code == 11


def test_compact(saver, store):
    at = RunnableConfig("order-17", "00000000-0000-7000-8000-000000000002")
    for number in range(20):
        saver.put(at, checkpoint(2, "reserve", "approve", {"text": f"{number} " * 200}, 1))
    saver.close()
    size = saver.size()
    would = graphkit("compact", store, "--dry-run")
    assert would.out.startswith("would rewrite what can be shortened among ")
    assert saver.size() == size
    freed = graphkit("compact", store, "--json").json["freed"]
    assert 0 < freed == size - saver.size()
    assert graphkit("compact", store, "order-17").out == "freed 0 B\n"


def test_prune(saver, store):
    for number in range(3, 10):
        saver.put(RunnableConfig("order-17"), checkpoint(number, "x", "y", {}, number - 1))
    saver.add_tags(RunnableConfig("order-17", "00000000-0000-7000-8000-000000000004"), "keep")
    options = ["order-17", "--keep-last", "2", "--keep-tag", "keep"]
    assert graphkit("prune", store, *options, "--dry-run").out == "would remove 5 checkpoints of 1 thread\n"
    assert len(graphkit("history", store, "order-17", "--json").json) == 9
    assert graphkit("prune", store, *options).out == "removed 5 checkpoints of 1 thread\n"
    rows = graphkit("history", store, "order-17", "--json").json
    assert [row["id"][-1] for row in rows] == ["9", "8", "4", "2"]  # what is tagged and what waits stays
    assert graphkit("prune", store, "order-17", "--keep-last", "1", "--interrupted", "--json").json["removed"] == 3


def test_prune_by_age(store):
    assert graphkit("prune", store, "--older-than", "48min").out == "removed 2 checkpoints of 3 threads\n"
    assert graphkit("prune", store).code == 2
    assert graphkit("prune", store, "--older-than", "soon").code == 2


def test_copy(store):
    would = graphkit("copy", store, "order-17", "new", "--dry-run")
    assert would.out == "would copy 2 checkpoints of order-17 to new, which is free\n"
    assert graphkit("copy", store, "order-17", "new").out == "copied 2 checkpoints of order-17 to new\n"
    taken = graphkit("copy", store, "order-17", "new", "--dry-run")
    assert taken.out.endswith("which is taken, so it would be refused\n")
    assert graphkit("copy", store, "order-17", "new").code == 16
    rows = graphkit("history", store, "new", "--json").json
    assert rows == graphkit("history", store, "order-17", "--json").json


def test_delete_asks(store):
    would = graphkit("delete", store, "order-17", "--dry-run")
    assert would.out == "would delete order-17, 568 B\n"
    no = graphkit("delete", store, "order-17", terminal=True, stdin="\n")
    assert (no.code, no.out) == (1, "nothing was deleted\n")
    assert no.err == "delete order-17, 568 B, for good? [y/N] "
    assert graphkit("delete", store, "order-17", terminal=True, stdin="y\n").out == "deleted order-17, 568 B\n"
    assert [row["thread"] for row in graphkit("threads", store, "--json").json] == ["import-a", "order-18"]


def test_nobody_can_be_asked(store):
    done = graphkit("delete", store, "order-17")
    assert (done.code, "give --yes" in done.err) == (2, True)
    assert graphkit("delete", store, "order-17", "--yes", "--json").json["deleted"] is True


def test_what_is_deleted_is_typed_whole(store):
    done = graphkit("delete", store, "import", "--yes")
    assert (done.code, "must be typed whole: import-a" in done.err) == (2, True)
    assert len(graphkit("threads", store, "--json").json) == 3


def test_release(store):
    assert graphkit("release", store, "order-18", "--dry-run").out == "would release 2 checkpoints of order-18\n"
    assert graphkit("release", store, "order-18").out == "released 2 checkpoints of order-18 as version 1\n"
    assert graphkit("show", store, "order-18").code == 11
    # What has versions only can still be deleted.
    assert graphkit("delete", store, "order-18", "--yes").code == 0


@pytest.mark.parametrize("command", ["verify", "repair", "compact"])
def test_a_saver_that_cannot(monkeypatch, command):
    monkeypatch.setattr("graphkit.registry.get_saver", lambda *_, **__: MemorySaver())
    done = graphkit(command, "memory:")
    assert (done.code, done.err) == (18, f"graphkit: MemorySaver cannot {command}; a checkpoint directory can\n")


def test_a_saver_without_versions_keeps_nothing(monkeypatch):
    saver = MemorySaver()
    saver.put(RunnableConfig("m"), checkpoint(1, "a", "b", {}))
    monkeypatch.setattr("graphkit.registry.get_saver", lambda *_, **__: saver)
    assert graphkit("release", "memory:", "m").out.endswith("and kept nowhere: this saver has no versions\n")


def test_progress_is_shown_at_a_terminal_beside_the_output(store):
    done = graphkit("verify", store, terminal=True)
    assert "verifying" in done.err
    assert done.out == "3 threads, 5 checkpoints, 1.3 kB: all of it is well\n"
    assert graphkit("verify", store, "--json", terminal=True).err == ""
