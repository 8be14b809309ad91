"""verify, repair, compact, prune, delete, release: each says what it did, and with --dry-run what it would do."""

import logging
import os
import re
import sqlite3
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from graphkit import RunnableConfig
from graphkit.cli.cells import format_bytes
from graphkit.errors import CheckpointStorageError
from savers import FileSystemSaver, MemorySaver, SqliteSaver
from tests.support.logs import RELEASE, RELEASE_PAYLOAD, append_record
from tests.support.terminal import assert_refused, assert_shows, checkpoint, damage, graphkit, minutes_ago, read_json


def files(store):
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != "run.lock"}


def test_verify(store):
    done = graphkit("verify", store)
    assert done.out == "3 threads, 5 checkpoints, 1.6 kB: no problems\n"
    assert read_json("verify", store) == {
        "threads": 3, "checkpoints": 5, "items": 0, "cached_values": 0, "size": 1582, "erased": 0, "ok": True,
        "problems": [],
    }  # fmt: skip
    assert graphkit("verify", store, "order-17").out.startswith("1 thread, 2 checkpoints")


@pytest.mark.requirement("H43")
def test_verify_finds_damage(store):
    damage(store, "order-18")
    done = graphkit("verify", store)
    assert done.code == 12
    assert done.lines[0].split() == ["FILE", "STATE", "AT", "BYTE", "READABLE", "REASON"]
    assert done.lines[2] == "3 threads, 5 checkpoints, 1.6 kB: 1 problem; see `graphkit repair`"
    (problem,) = read_json("verify", store)["problems"]
    assert (problem["thread"], problem["state"], problem["checkpoints"]) == ("order-18", "damaged", 2)


def garble(store, thread):
    """Overwrite all of a thread's log but its beginning."""
    (path,) = store.glob(f"t-{thread}-*/log")
    data = path.read_bytes()
    path.write_bytes(data[:150].ljust(len(data), b"?"))
    return path


def test_repair_reports_what_is_kept_what_is_lost_and_where_the_copy_is(store):
    damage(store, "order-18", offset=-100)
    (log,) = store.glob("t-order-18-*/log")
    old = log.read_bytes()
    before = files(store)
    would = graphkit("repair", store, "--dry-run")
    planned = read_json("repair", store, "--dry-run")
    assert files(store) == before
    done = graphkit("repair", store, "order-18")
    (copy,) = log.parent.glob("damaged-*.bin")
    assert copy.read_bytes() == old
    for lines, first, copied, last in (
        (would.lines, "would keep 1 checkpoint, would lose 2 records", "would copy the old bytes to", "would repair"),
        (done.lines, "kept 1 checkpoint, lost 2 records", "the old bytes are in", "repaired"),
    ):
        assert lines[0] == f"order-18: {first}"
        assert lines[1].startswith(f"  {log.parent.name}/log: damaged at byte ")
        assert lines[2].startswith("    lost: byte ")
        assert lines[-2:] == [f"    {copied} {copy}", f"{last} 1 thread"]
    assert graphkit("verify", store).code == 0
    (thread,) = planned["threads"]
    assert (thread["thread"], thread["kept"], thread["lost"]) == ("order-18", 1, 2)
    (file,) = thread["files"]

    assert (file["state"], file["refused"], store / file["set_aside"]) == ("damaged", "", copy)
    assert [(loss["checkpoint"], loss["records"]) for loss in file["lost"]] == [
        (None, 1), ("00000000-0000-7000-8000-000000000013", 1),
    ]  # fmt: skip


def test_a_damaged_marker_and_what_a_crash_left_unfinished_are_reported_and_repaired(store):
    (log,) = store.glob("t-order-18-*/log")
    append_record(log, RELEASE, RELEASE_PAYLOAD)
    (store / "graphkit.store").write_text("{}")
    leftover = store / f"tmp-{next(store.glob('t-order-17-*')).name}"
    leftover.mkdir()
    found = {row["path"]: row["state"] for row in read_json("verify", store)["problems"]}
    assert found == {"graphkit.store": "damaged", log.parent.name: "unfinished release"}
    would = graphkit("repair", store, "--dry-run")
    assert_shows(would, 0, "would finish the release", "would rewrite", "would remove 1 leftover of crashed processes")
    assert leftover.exists()
    done = graphkit("repair", store)
    assert_shows(done, 0, "finished the release or delete of order-18\n", "rewrote the store's", "removed 1 leftover")
    assert not leftover.exists()


def test_repair_of_a_store_that_is_well(store):
    assert graphkit("repair", store).out == "nothing was damaged\n"
    assert graphkit("repair", store, "--dry-run").out == "nothing is damaged\n"
    data = read_json("repair", store)
    assert data == {"dry_run": False, "threads": [], "finished": [], "removed": [], "marker": None, "entry_logs": []}


def test_a_repair_that_keeps_nothing_is_no_success(store):
    garble(store, "order-17")
    damage(store, "order-18", offset=-100)
    for options, first, repaired in (
        (["--dry-run"], "would keep nothing, would lose at least 1 record", "would repair 1 of 2 threads"),
        ([], "kept nothing, lost at least 1 record", "repaired 1 of 2 threads"),
    ):
        done = graphkit("repair", store, *options)
        assert done.code == 12
        assert done.lines[0] == f"order-17: {first}"
        assert repaired in done.lines
        assert done.lines[-1].startswith("restore the lost histories from a backup")


def test_many_losses_are_cut_for_people_only(store, saver):
    for number in range(30, 50):
        state = {f"k{number}": "v" * 200}
        saver.put("import-a", checkpoint(number, "x", "y", state, number - 1))
    saver.close()
    damage(store, "import-a", offset=300)
    would = graphkit("repair", store, "--dry-run")
    assert len(would.lines) < 20
    assert "more; --json lists all" in would.out
    (thread,) = read_json("repair", store, "--dry-run")["threads"]
    (file,) = thread["files"]
    assert len(file["lost"]) > 10


def test_who_holds_a_lock_is_named_with_advice_that_a_command_can_follow(store, saver, tmp_path, monkeypatch):
    def open_impatiently(saver_class, path):
        opened = saver_class(path, lock_timeout=0.0)
        monkeypatch.setattr("graphkit.registry.get_saver", lambda *_, **__: opened)

    database = tmp_path / "runs.db"
    graphkit("copy", store, "--to", f"sqlite:{database}")
    open_impatiently(FileSystemSaver, store)
    with saver.run_lock(RunnableConfig("order-17")), ThreadPoolExecutor(1) as other:
        deleted = other.submit(graphkit, "delete", store, "order-17", "--yes").result()
        ask = other.submit(graphkit, "answer", store, "order-17", terminal=True, width=300, stdin="yes\n")
        answered = ask.result()
    for done in (deleted, answered):
        assert "wait for that run to end, or stop it with `graphkit pause` or `graphkit cancel`\n" in done.err
    open_impatiently(SqliteSaver, database)
    policy = tmp_path / "keep.json"
    policy.write_text('{"keep_last": 1}')
    with closing(sqlite3.connect(database)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        for words in (["delete", "order-17", "--yes"], ["prune", "--policy", policy]):
            done = graphkit(words[0], f"sqlite:{database}", *words[1:])
            assert done.err.endswith("another writer kept the database for 0 s; wait for it to end\n")


def test_a_thread_of_which_only_set_aside_files_are_left_can_be_deleted(store):
    log = garble(store, "order-17")
    graphkit("repair", store)
    assert "order-17" not in graphkit("threads", store).out
    beginning = graphkit("delete", store, "order-1", "--yes")
    assert "order-17" not in beginning.out
    assert graphkit("delete", store, "order-17", "--dry-run").out.startswith("would delete order-17, ")
    assert log.parent.exists()
    assert graphkit("delete", store, "order-17", "--yes").out.startswith("deleted order-17, ")
    assert not log.parent.exists()
    assert graphkit("delete", store, "order-17", "--yes").code == 11


@pytest.mark.parametrize("thread", ["order-17", "order-18"])
def test_a_thread_with_a_file_that_is_not_its_log_is_reported_and_can_be_deleted(store, thread):
    (directory,) = store.glob("t-order-17-*")
    (log,) = store.glob("t-order-18-*/log")
    (directory / "log").replace(log)
    (directory / "log").mkdir()
    assert graphkit("verify", store, thread).lines[1].split()[1] == "foreign"
    assert graphkit("delete", store, thread, "--yes").out.startswith(f"deleted {thread}, ")


def test_compact(saver, store):
    at = RunnableConfig("order-17", "00000000-0000-7000-8000-000000000002")
    for number in range(20):
        state = {"text": f"{number} " * 200}
        saver.put(at, checkpoint(2, "reserve", "approve", state, 1))
    saver.close()
    size = saver.size()
    would = read_json("compact", store, "--dry-run")
    assert graphkit("compact", store, "--dry-run").out.startswith("would free ")
    assert would["size"] == size == saver.size()
    freed = read_json("compact", store)["freed"]
    assert freed > 0
    assert freed == would["freed"]
    assert freed == size - saver.size()
    assert graphkit("compact", store, "order-17").out == "freed 0 B\n"


@pytest.mark.requirement("H43")
def test_prune(saver, store):
    for number in range(3, 10):
        saver.put(RunnableConfig("order-17"), checkpoint(number, "x", "y", {}, number - 1))
    saver.add_tags(RunnableConfig("order-17", "00000000-0000-7000-8000-000000000004"), "keep")

    def left():
        return [row["id"][-1] for row in read_json("history", store, "order-17")]

    prune = ["prune", store, "order-17", "--keep-last", "2", "--keep-tag", "keep"]
    assert graphkit(*prune, "--dry-run").out == "would remove 5 checkpoints of 1 thread\n"
    assert len(left()) == 9
    assert graphkit(*prune).out == "removed 5 checkpoints of 1 thread\n"
    assert left() == ["9", "8", "4", "2"]  # what is tagged and what waits stays
    assert read_json("prune", store, "order-17", "--keep-last", "1", "--interrupted")["removed"] == 3


def test_prune_by_age(store):
    assert graphkit("prune", store, "--older-than", "48min").out == "removed 2 checkpoints of 3 threads\n"
    for wrong in ([], ["--older-than", "soon"], ["--idle", "soon"]):
        assert graphkit("prune", store, *wrong, "--yes").code == 2
    for criterion in (["--keep-last", "1"], ["--older-than", "1d"], ["--keep-tag", "golden"]):
        assert graphkit("prune", store, "--idle", "1s", *criterion, "--yes").code == 2
    assert len(threads(store)) == 3


def test_prune_goes_on_after_a_damaged_thread(store):
    damage(store, "import-a")
    prune = ["prune", store, "--keep-last", "1", "--interrupted"]
    for options in (["--dry-run"], []):
        assert_refused(graphkit(*prune, *options), 12, "cannot prune import-a; all others are done")
    assert [len(read_json("history", store, thread)) for thread in ("order-17", "order-18")] == [1, 1]
    alone = graphkit(*prune[:2], "import-a", *prune[2:])
    assert_refused(alone, 12, "is damaged")
    assert "others" not in alone.err


def age(store, thread, minutes):
    """Set the time at which every file of a thread was last written."""
    time = minutes_ago(minutes).timestamp()
    for path in store.glob(f"t-{thread}-*/**/*"):
        os.utime(path, (time, time))


@pytest.fixture
def idle(store):
    """Two threads that nobody has written to for an hour, and one of ten minutes ago."""
    age(store, "order-17", 60)
    age(store, "order-18", 60)
    age(store, "import-a", 10)
    return store


def threads(store):
    return [row["thread"] for row in read_json("threads", store)]


def size_of(store, directories):
    """Return the size of the files in these directories of a store, as the commands show it."""
    return format_bytes(sum(path.stat().st_size for path in store.glob(f"{directories}/*")))


def test_idle_threads_are_deleted_whole_after_a_question(idle):
    prune = ("prune", idle, "--idle", "30min", "--interrupted")
    note = "(1 interrupted, 1 finished)"
    what = f"2 threads idle for 30min {note}, {size_of(idle, 't-order-*')}"
    would = graphkit(*prune, "--dry-run")
    assert [line.split()[:2] for line in would.lines[1:3]] == [["order-17", "interrupted"], ["order-18", "finished"]]
    assert would.lines[3:] == [f"would delete {what}"]
    no = graphkit(*prune, terminal=True, stdin="\n")
    assert (no.code, no.out, no.err) == (1, "nothing was deleted\n", f"delete {what}, for good? [y/N] ")
    assert len(threads(idle)) == 3
    done = graphkit(*prune, terminal=True, stdin="y\n")
    assert (done.code, done.out) == (0, f"deleted 2 threads idle for 30min {note}\n")
    assert threads(idle) == ["import-a"]
    assert graphkit(*prune, "--yes").out == "no thread is idle for 30min\n"


def test_an_idle_thread_that_waits_for_a_human_stays_unless_it_is_asked_for(idle):
    prune = ("prune", idle, "--idle", "30min")
    left_out = "1 more waits for a human; --interrupted deletes those, too)"
    what = f"1 thread idle for 30min (1 finished; {left_out}"
    assert graphkit(*prune, "--dry-run").lines[-1] == f"would delete {what}, {size_of(idle, 't-order-18-*')}"
    assert graphkit(*prune, "--yes").out == f"deleted {what}\n"
    assert graphkit(*prune, "--yes").out == f"no thread is idle for 30min ({left_out}\n"
    assert threads(idle) == ["import-a", "order-17"]
    graphkit("answer", idle, "order-17", "--value", "1")
    age(idle, "order-17", 60)
    assert graphkit(*prune, "--yes").out == "deleted 1 thread idle for 30min (1 answered)\n"


def test_a_damaged_thread_is_not_deleted_as_idle(idle):
    damage(idle, "order-18")
    age(idle, "order-18", 60)
    done = graphkit("prune", idle, "order-18", "--idle", "30min", "--yes")
    assert (done.code, done.out) == (0, "no other thread is idle for 30min\n")
    assert done.err.startswith("graphkit: kept because of damage: order-18; `graphkit verify` says what to do")
    assert "order-18" in threads(idle)


def test_idle_threads_in_a_script(idle, saver):
    assert_refused(graphkit("prune", idle, "--idle", "30min"), 2, "pass --yes")
    assert graphkit("prune", idle, "nowhere", "--idle", "1s", "--yes").code == 11
    would = read_json("prune", idle, "--idle", "30min", "--interrupted", "--dry-run")
    sizes = {thread: saver.size(thread) for thread in ("order-17", "order-18")}
    assert {row["thread"]: row["size"] for row in would.pop("threads")} == sizes
    assert would == {
        "deleted": [*sizes], "waiting": ["order-17"], "damaged": [], "size": sum(sizes.values()), "dry_run": True,
    }  # fmt: skip
    with saver.run_lock(RunnableConfig("order-18")):
        assert read_json("prune", idle, "--idle", "30min", "--dry-run")["deleted"] == []
    for thread, deleted in (("order-18", ["order-18"]), ("import-a", [])):
        assert read_json("prune", idle, thread, "--idle", "30min", "--interrupted", "--yes")["deleted"] == deleted
    assert threads(idle) == ["import-a", "order-17"]


def test_a_thread_in_use_again_stays(idle, saver):
    """A run takes the thread between the question and the answer."""

    def type_line():
        saver.put(RunnableConfig("order-18"), checkpoint(14, "x", "y", {}, 13))
        return "y\n"

    done = graphkit("prune", idle, "--idle", "30min", "--interrupted", terminal=True, stdin=type_line)
    assert done.out == "deleted 1 thread idle for 30min (1 interrupted); 1 thread stayed: in use again\n"
    assert threads(idle) == ["import-a", "order-18"]
    assert len(saver.list(RunnableConfig("order-18"))) == 3


@pytest.mark.parametrize(("method", "dry_run"), [("_delete_if_idle", False), ("_delete_if_idle", True), ("size", None)])
def test_an_idle_thread_that_cannot_be_deleted_does_not_keep_the_others(idle, monkeypatch, method, dry_run):
    call = getattr(FileSystemSaver, method)

    def refusing(saver, thread, *arguments, **options):
        if thread == "order-17" and options.get("dry_run") == dry_run:
            raise CheckpointStorageError("log", "read", OSError("no"))
        return call(saver, thread, *arguments, **options)

    monkeypatch.setattr(FileSystemSaver, method, refusing)
    done = graphkit("prune", idle, "--idle", "30min", "--interrupted", "--yes")
    assert_refused(done, CheckpointStorageError.exit_code, "cannot delete order-17; all others are done")
    assert threads(idle) == ["import-a", "order-17"]


def test_delete_asks(store):
    would = graphkit("delete", store, "order-17", "--dry-run")
    assert would.out == "would delete order-17, 662 B\n"
    no = graphkit("delete", store, "order-17", terminal=True, stdin="\n")
    assert (no.code, no.out) == (1, "nothing was deleted\n")
    assert no.err == "delete order-17, 662 B, for good? [y/N] "
    assert graphkit("delete", store, "order-17", terminal=True, stdin="y\n").out == "deleted order-17, 662 B\n"
    assert [row["thread"] for row in read_json("threads", store)] == ["import-a", "order-18"]


def test_what_is_deleted_without_a_question_is_typed_whole(store):
    assert_refused(graphkit("delete", store, "order-17"), 2, "pass --yes")
    done = graphkit("delete", store, "import", "--yes")
    assert_refused(done, 2, "type the whole id of the thread to delete: import-a")
    assert len(read_json("threads", store)) == 3
    assert read_json("delete", store, "order-17", "--yes")["deleted"] is True


def test_release(store):
    assert graphkit("release", store, "order-18", "--dry-run").out == "would release 2 checkpoints of order-18\n"
    assert graphkit("release", store, "order-18").out == "released 2 checkpoints of order-18 as version 1\n"
    assert graphkit("show", store, "order-18").code == 11
    # What has versions only can still be deleted.
    assert graphkit("delete", store, "order-18", "--yes").code == 0


@pytest.mark.parametrize("command", ["verify", "repair", "compact", "prune --idle"])
def test_a_saver_that_cannot(monkeypatch, command):
    monkeypatch.setattr("graphkit.registry.get_saver", lambda *_, **__: MemorySaver())
    name, *options = command.split()
    done = graphkit(name, "memory:", *options, *(["1d"] if options else []))
    assert (done.code, done.err) == (18, f"graphkit: MemorySaver cannot {command}; a checkpoint directory can\n")


def test_a_saver_without_versions_keeps_nothing(monkeypatch):
    saver = MemorySaver()
    saver.put(RunnableConfig("m"), checkpoint(1, "a", "b", {}))
    monkeypatch.setattr("graphkit.registry.get_saver", lambda *_, **__: saver)
    assert graphkit("release", "memory:", "m").out.endswith("without keeping them: this saver has no versions\n")


def test_progress_is_shown_at_a_terminal_beside_the_output(store):
    done = graphkit("verify", store, terminal=True)
    assert "verifying" in done.err
    assert done.out == "3 threads, 5 checkpoints, 1.6 kB: no problems\n"
    assert graphkit("verify", store, "--json", terminal=True).err == ""


class WarningSaver(FileSystemSaver):
    """A directory whose verify warns in each way that there is, while its progress is shown."""

    def verify(self, thread=None, *, progress=None):
        progress(1, 2, "log")
        for name in ("graphkit", "app", "other"):
            logging.getLogger(name).warning("logged by %s", name)
        warnings.warn("warned of", UserWarning, stacklevel=1)
        sys.stderr.write("written to stderr\n")
        progress(2, 2, "log")
        return super().verify(thread)


def lines_at_a_terminal(text):
    """What a terminal has shown, line by line; a line that was erased does not count."""
    lines = [re.split(r"\r?\x1b\[2K|\x1b\[1A", line)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    return [re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", line).strip() for line in lines]


def test_warnings_never_share_a_line_with_a_progress_bar(store, monkeypatch):
    logger = logging.getLogger("app")
    monkeypatch.setattr(logger, "propagate", False)

    def open_saver(*args, **kwargs):
        # While the command runs, as an application's logging.basicConfig() has it.
        monkeypatch.setattr(logger, "handlers", [logging.StreamHandler()])
        return WarningSaver(store)

    monkeypatch.setattr("graphkit.registry.get_saver", open_saver)
    with warnings.catch_warnings(action="always"):
        done = graphkit("verify", store, terminal=True)
    shown = lines_at_a_terminal(done.err)
    said = [
        "graphkit: warning: logged by graphkit", "logged by app", "graphkit: warning: warned of", "written to stderr",
    ]  # fmt: skip
    assert [line for line in shown if line in said] == said
    assert not any("verifying" in line and ("warn" in line or "log" in line) for line in shown)
    (handler,) = logger.handlers
    assert handler.stream.getvalue() == done.err, "it has its own stream back"
