"""`graphkit watch`: a line per step in a pipe, a table at a terminal."""

import json
import threading

import pytest

from graphkit import END, Checkpoint, RunnableConfig, operations
from graphkit._saver.watch import Watch
from savers import FileSystemSaver, MemorySaver
from tests.support.command_process import CommandProcess
from tests.support.terminal import NOW, assert_refused, checkpoint, damage, graphkit, minutes_ago, read_json

AT = RunnableConfig("order-17")


def step(node, following, **metadata):
    return Checkpoint(node_id=node, next_node_id=following, state={"n": 1}, metadata=metadata)


def read_text(line):
    """A line without its time."""
    return line[10:]


class Watching(CommandProcess):
    def lines(self):
        lines, err, code = self.end()
        assert (code, err) == (0, "")
        return lines


@pytest.fixture
def watch(store, launcher):
    """Starts a `graphkit watch` in a process of its own, which looks once an hour: what it prints comes from an event."""
    return lambda *options: Watching(launcher, "watch", store, "--interval", "3600", *options)


def test_a_line_per_step_of_another_process(watch, saver):
    watching = watch("order-17", "--limit", "8")
    said = watching.process.stdout
    thread = f"{'order-17':24}"
    assert read_text(said.readline()) == f"{thread} reserve -> approve\n"
    assert read_text(said.readline()) == f"{thread} waits inside approve: Ship lamp?\n"

    saver.put_writes(AT, {"answer:q-1": {"yes": True}})
    saver.put("order-18", step("x", END))
    saver.put(AT, step("approve", "ship"))
    nested = RunnableConfig("order-17", checkpoint_ns="sub")
    saver.put(nested, step("inner", None))
    failure = {"node_id": "ship", "type": "ValueError", "message": "no van", "at": 1}
    saver.put_writes(AT, {"failure": failure})
    saver.release(AT)
    saver.put(AT, step("again", END))
    found = [read_text(line) for line in watching.lines()]
    for what in ('answered: {"yes": true}', "approve -> ship", "failed in ship: ValueError: no van", "released"):
        assert f"{thread} {what}" in found
    assert f"{'order-17[sub]':24} inner -> ?" in found
    assert not any("order-18" in line for line in found)


def test_json_has_all_fields_and_the_time_at_which_it_was_stored(store, saver):
    done = graphkit("watch", store, "order-17", "--limit", 2, "--json")
    first, second = map(json.loads, done.lines)
    assert first == {
        "kind": "checkpoint", "thread": "order-17", "ns": "", "checkpoint": "00000000-0000-7000-8000-000000000002",
        "node": "reserve", "next": "approve", "status": "interrupted", "step": 1, "time": "2026-11-20T11:02:00+00:00",
        "id": None, "value": None, "told": None,
    }  # fmt: skip
    assert (second["kind"], second["id"], second["value"]["node_id"]) == ("interrupt", "q-1", "approve")
    saver.put_writes("import-a", {"failure": {"node_id": "read", "type": "E", "message": "no", "at": minutes_ago(7)}})
    watch = ["watch", store, "import-a", "--limit", 2]
    row = json.loads(graphkit(*watch, "--json").lines[1])
    assert (row["kind"], row["time"]) == ("failure", "2026-11-20T11:53:00+00:00")
    assert [line[:8] for line in graphkit(*watch).lines] == ["11:21:00", "11:53:00"]


def test_from_a_checkpoint_on(store, saver):
    saver.put("order-17", checkpoint(3, "approve", "ship", {}, 2))
    done = graphkit("watch", store, "order-17", "--checkpoint", "00000001", "--limit", 1)
    assert [read_text(line) for line in done.lines] == [f"{'order-17':24} reserve -> approve"]
    wrong = graphkit("watch", store, "--checkpoint", "00000001")
    assert_refused(wrong, 2, "name the thread too")


def test_a_table_at_a_terminal(store):
    done = graphkit("watch", store, "--limit", 4, terminal=True, width=120)
    titles, *lines = done.out[done.out.rindex("THREAD") :].splitlines()
    assert titles.split() == ["THREAD", "STATUS", "NODE", "NEXT", "STEP", "UPDATED", "LAST"]
    rows = {line.split()[0]: line for line in lines if "-" in line}
    assert set(rows) == {"order-17", "order-18", "import-a"}
    for word in ("interrupted", "waits inside approve", "58 min ago"):
        assert word in rows["order-17"]


def read_table(done):
    """The lines below the titles of the table that was drawn last."""
    return done.out[done.out.rindex("THREAD") :].splitlines()[1:]


def test_the_table_has_the_threads_that_changed_last_and_counts_the_others(tmp_path):
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        for number in range(22):
            saver.put(f"t{number:02}", step("a", "b"))

    lines = read_table(graphkit("watch", tmp_path, "--limit", 22, terminal=True))

    shown = [line.split()[0] for line in lines if line.startswith("t")]
    assert len(set(shown)) == 20
    assert shown == sorted(shown, reverse=True)
    assert "and 2 more" in lines


def test_the_table_keeps_the_position_of_a_thread_and_forgets_a_deleted_one(store, saver, monkeypatch):
    sleep = Watch._sleep_until

    def change_and_sleep(watching, until):
        monkeypatch.setattr(Watch, "_sleep_until", sleep)
        saver.put(RunnableConfig("order-17", checkpoint_ns="sub"), step("inner", None))
        saver.delete("order-18")
        sleep(watching, until)

    monkeypatch.setattr(Watch, "_sleep_until", change_and_sleep)
    done = graphkit("watch", store, "--limit", 6, terminal=True, width=120)

    first, *others = [line for line in read_table(done) if "-" in line]
    assert first.split()[:5] == ["order-17", "interrupted", "reserve", "approve", "1"]
    assert [line.split()[0] for line in others] == ["import-a"]


def test_a_finished_node_is_reported_as_the_progress_of_its_map_or_by_its_name(store, saver):
    saver.put_writes("order-17", {"task:weigh": {"node": "weigh"}})

    nested = saver.put(RunnableConfig("order-17", checkpoint_ns="sub"), step("inner", "m"))
    saver.put_writes(nested, {"items:m": [1, 2], "task:m.0": {"node": "m"}})

    lines = graphkit("watch", store, "order-17", "--limit", 5).lines

    assert read_text(lines[2]) == f"{'order-17':24} weigh done"
    assert read_text(lines[4]) == f"{'order-17[sub]':24} 1/2 items of m done"


def test_a_damaged_thread_is_reported_and_the_others_are_followed(store):
    damage(store, "import-a")
    done = graphkit("watch", store, "--limit", 3, terminal=True, width=400)
    assert all("is damaged at byte" in line for line in done.err.splitlines())
    assert done.err
    assert "order-17" in done.out
    assert "order-18" in done.out


CLOSE = """
import os, sys
from graphkit import RunnableConfig
from savers import FileSystemSaver
from tests.support.graphs import make_chain
app = make_chain({}, a=lambda _: {}).compile(checkpoint_saver=FileSystemSaver(sys.argv[1]))
stream = app.stream({}, RunnableConfig("import-a"))
next(stream)
if sys.argv[2] == "die":
    os._exit(9)
stream.close()
"""


@pytest.mark.parametrize(("how", "said"), [("close", "no process runs it now"), ("die", "its process has died")])
def test_a_stream_that_was_closed_is_distinguished_from_a_death(store, saver, watch, launcher, how, said):
    watching = watch("import-a", "--limit", "4")
    output = watching.process.stdout
    output.readline()
    launcher.run("-c", CLOSE, store, how)
    assert read_text(output.readline()) == f"{'import-a':24} __START__ -> a\n"
    assert read_text(output.readline()) == f"{'import-a':24} {said}\n"
    assert read_json("threads", store)[0]["status"] == "stalled"
    saver.delete("import-a")
    assert [read_text(line) for line in watching.lines()] == [f"{'import-a':24} deleted"]


def test_an_answer_is_not_the_death_of_a_process(store, watch, launcher):
    watching = watch("order-17", "--json", "--limit", "4")
    for _ in range(2):
        watching.process.stdout.readline()
    assert launcher.run("-m", "graphkit", "answer", store, "order-17", "--value", "1").returncode == 0
    answered, idle = map(json.loads, watching.lines())
    assert (answered["kind"], answered["status"], answered["told"]) == ("answer", "answered", "answered: 1")
    assert (idle["kind"], idle["status"]) == ("idle", "answered")


def test_bad_input(store, tmp_path):
    for seconds in ("nan", "inf"):
        assert_refused(graphkit("wait", store, "order-17", "--timeout", seconds), 2, "is not a number of seconds")
    assert graphkit("watch", tmp_path / "none").code == 18
    assert_refused(graphkit("watch", store, "order-71"), 11, "order-17")
    (tmp_path / "plain").mkdir()
    assert graphkit("watch", tmp_path / "plain").code == 13


# wait


def later(action, seconds=0.3):
    """Run an action in another thread, once a command waits."""
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


@pytest.mark.parametrize(
    ("arguments", "code", "out"),
    [
        (["order-18"], 0, "order-18 is finished\n"),
        (["order-17", "--until", "interrupted"], 5, "order-17 is interrupted\n"),
        (["queued", "--until", "queued"], 0, "queued is queued\n"),
        (["order-17", "--timeout", "0.2"], 124, "order-17 is still interrupted\n"),
        (["nobody"], 11, ""),
    ],
)
def test_wait_ends_with_the_status_as_exit_code(store, saver, arguments, code, out):
    operations.submit(saver, {}, "queued")
    done = graphkit("wait", store, *arguments)
    assert (done.code, done.out) == (code, out)


FAILURE = {"node_id": "read", "type": "ValueError", "message": "no", "at": NOW}


@pytest.mark.parametrize(
    ("action", "until", "code", "status"),
    [
        (lambda other: other.put("import-a", checkpoint(50, "ship", END, {})), "finished", 0, "finished"),
        (lambda other: other.put_writes("import-a", {"failure": FAILURE}), "interrupted", 4, "failed"),
        (lambda other: other.delete("import-a"), "finished", 11, ""),
    ],
)
def test_wait_notices_what_happens_to_the_thread(store, saver, action, until, code, status):
    timer = later(lambda: action(saver))
    done = graphkit("wait", store, "import-a", "--until", until, "--json", "--timeout", "30")
    timer.join()
    assert done.code == code
    assert (done.out and done.json) == (status and {"thread": "import-a", "status": status, "timed_out": False})


def test_the_timeout_of_wait_counts_from_its_start_whatever_changes(store, saver):
    changes = [later(lambda: saver.put(AT, step("approve", "ship")), 0.3 * number) for number in range(1, 11)]
    assert graphkit("wait", store, "order-17", "--timeout", "0.8").code == 124
    assert changes[-1].is_alive()
    for timer in changes:
        timer.cancel()
        timer.join()


def test_wait_looks_at_the_thread_again_after_the_timeout(monkeypatch):
    polled = MemorySaver()
    polled.put(AT, step("a", "b"))
    monkeypatch.setattr("graphkit.registry.get_saver", lambda *_, **__: polled)
    timer = later(lambda: polled.put(AT, step("b", END)))
    done = graphkit("wait", "memory:", "order-17", "--timeout", "0.8")
    timer.join()

    assert (done.code, done.out) == (0, "order-17 is finished\n")
