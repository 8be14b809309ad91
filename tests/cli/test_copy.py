"""copy: within a store, and to another one."""

from importlib import import_module

import pytest

from graphkit import RunnableConfig
from graphkit.saver_kit import IncomingThread
from savers import FileSystemSaver
from tests.support.disks import FileIO
from tests.support.terminal import assert_refused, checkpoint, graphkit, read_json
from tests.support.threads import assert_same


def test_a_thread_is_copied_within_its_store(store):
    would = graphkit("copy", store, "order-17", "new", "--dry-run")
    assert would.out == "would copy 2 checkpoints of order-17 to new\n"
    assert graphkit("copy", store, "order-17", "new").out == "copied 2 checkpoints of order-17 to new\n"
    for options in ((), ("--dry-run",)):
        assert_refused(graphkit("copy", store, "order-17", "new", *options), 16, "not empty")
    rows = read_json("history", store, "new")
    assert rows == read_json("history", store, "order-17")


def test_a_whole_store_is_copied_to_another_one_and_what_is_new_later(store, tmp_path, saver):
    target = tmp_path / "backup"
    would = graphkit("copy", store, "--to", target, "--dry-run")
    assert would.out == f"would copy 3 threads to {target}: import-a, order-17, order-18\n"
    assert not target.exists()
    done = graphkit("copy", store, "--to", target)
    assert (done.code, done.out) == (0, f"copied 5 checkpoints of 3 threads to {target}, verified\n")
    copied = FileSystemSaver(target, fsync="never")
    for thread in saver.threads():
        assert_same(saver, copied, thread, thread)
    assert read_json("interrupts", target) == read_json("interrupts", store)
    saver.release(RunnableConfig("order-18"))
    saver.put(RunnableConfig("order-18"), checkpoint(30, "a", "b", {"n": 1}))
    again = graphkit("copy", store, "--to", target)
    new = f"copied 1 checkpoint and 1 version of 3 threads to {target}, verified"
    assert again.out == f"{new}; skipped 5 checkpoints that were already there\n"
    third = read_json("copy", store, "--to", target)
    threads = ["import-a", "order-17", "order-18"]
    assert third == {
        "to": str(target), "threads": threads, "skipped_threads": threads, "checkpoints": 0, "skipped_checkpoints": 6,
        "versions": 0, "skipped_versions": 1,
    }  # fmt: skip


def test_a_dry_run_of_a_copy_to_another_store_refuses_what_the_copy_would(store, tmp_path):
    file = tmp_path / "file"
    file.write_text("no store")
    for target, message in (
        (store, "are the same store"),
        (f"disk:{store}", "are the same store"),
        (file, "is a file"),
    ):
        for options in ((), ("--dry-run",)):
            assert_refused(graphkit("copy", store, "--to", target, *options), 18, message)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing", f"disk:{tmp_path / 'missing'}", f"sqlite:{tmp_path / 'missing'}"):
        would = graphkit("copy", store, "--to", name if ":" in name else tmp_path / name, "--dry-run")
        assert would.out.startswith("would copy 3 threads to "), name

    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "runs"]
    assert [*(tmp_path / "empty").iterdir()] == []


def test_chosen_threads_are_copied_to_another_store(store, tmp_path):
    done = read_json("copy", store, "order-17", "imp", "--to", tmp_path / "b")
    assert (done["threads"], done["checkpoints"]) == (["order-17", "import-a"], 3)
    assert graphkit("copy", store, "nothing", "--to", tmp_path / "b").code == 11


def test_a_copy_within_a_store_needs_two_names(store):
    for args in ([], ["order-17"], ["a", "b", "c"], ["a", "b", "--no-versions"], ["a", "b", "--plaintext"]):
        assert graphkit("copy", store, *args).code == 2


def test_versions_may_be_left_out(store, tmp_path, saver):
    saver.release(RunnableConfig("order-18"))
    done = read_json("copy", store, "--to", tmp_path / "b", "--no-versions")
    assert (done["threads"], done["versions"]) == (["import-a", "order-17"], 0)
    assert '{"release"' not in graphkit("export", store, "--no-versions").out


def test_types_of_a_graph(store, shop, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    place = import_module("shop").Place
    saver = FileSystemSaver(store, fsync="never", types=[place])
    saver.put(RunnableConfig("typed"), checkpoint(1, "a", "b", {"place": place("Rome")}))
    refused = graphkit("copy", store, "typed", "--to", tmp_path / "b")
    assert_refused(refused, 14, "shop.Place", "--app")
    assert graphkit("copy", store, "typed", "--to", tmp_path / "b", "--app", shop).code == 0
    # A stand-in would not be what is stored.
    assert_refused(graphkit("export", store, "typed"), 14, "here --app MODULE:OBJECT registers the types")
    lines = graphkit("export", store, "typed", "--app", shop).out
    assert graphkit("import", tmp_path / "c", "-", "--app", shop, stdin=lines).code == 0


@pytest.mark.parametrize("command", ["copy", "import"])
def test_threads_wait_for_the_disk_once_and_not_at_each_checkpoint(tmp_path, monkeypatch, command):
    source = FileSystemSaver(tmp_path / "long", fsync="never")
    for number in range(60):
        source.put("long", checkpoint(number, "a", "b", {"n": number}))
    graphkit("export", tmp_path / "long", "--output", tmp_path / "lines")
    synced = []
    original = FileIO.fdatasync
    monkeypatch.setattr(FileIO, "fdatasync", lambda io, fd: synced.append(fd) or original(io, fd))
    if command == "copy":
        done = graphkit("copy", tmp_path / "long", "--to", tmp_path / "b")
    else:
        done = graphkit("import", tmp_path / "b", tmp_path / "lines")
    assert done.code == 0
    assert 1 <= len(synced) <= 5


def test_half_a_copy_is_listed_as_incomplete_and_nothing_takes_it(store, saver, tmp_path):
    target = FileSystemSaver(tmp_path / "b", fsync="never")
    IncomingThread(target, "order-17", "order-17").begin([""], saver.get(RunnableConfig("order-17")).state)
    (row,) = read_json("threads", tmp_path / "b", "--status", "incomplete")
    assert row["thread"] == "order-17"
    assert read_json("show", tmp_path / "b", "order-17")["status"] == "incomplete"
    assert "1 incomplete" in graphkit("stats", tmp_path / "b").out
    for name, *arguments in (["fork", "new"], ["copy", "new"], ["export"], ["release", "--dry-run"], ["release"]):
        done = graphkit(name, tmp_path / "b", "order-17", *arguments)
        assert_refused(done, 16, "it is incomplete")
    assert graphkit("copy", store, "--to", tmp_path / "b").code == 0
    assert_same(saver, target, "order-17", "order-17")
    IncomingThread(target, "half", "order-17").begin([""], {})
    would = graphkit("copy", tmp_path / "b", "order-17", "half", "--dry-run")
    assert would.out == "would copy 2 checkpoints of order-17 to half\n", "an incomplete thread is replaced"
