"""submit, schedule, cancel and pause; and what all commands say of threads that are queued, asleep or cancelled."""

from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import pytest

from graphkit import START, operations, schedules
from savers import FileSystemSaver
from tests.support.terminal import assert_refused, assert_shows, checkpoint, graphkit, read_json

# submit


def submit(store, *options, **place):
    return graphkit("submit", store, "--app", "shop:app", "--input", '{"item": "lamp"}', *options, **place)


def test_a_submitted_run_waits_for_a_worker(runs, shop):
    submitted = submit(runs, "-t", "t", "--meta", "user=anna")
    assert submitted.out == "t is queued\n"

    (row,) = read_json("threads", runs, "--status", "queued")
    assert row["metadata"]["user"] == "anna"
    assert graphkit("prune", runs, "--idle", "0s", "--interrupted", "--yes").out == "no thread is idle for 0s\n"
    shown = read_json("show", runs, "t")
    assert shown["status"] == "queued"
    assert read_json("stats", runs)["statuses"] == {"queued": 1}
    watched = graphkit("watch", runs, "t", "--limit", "1")
    assert watched.lines[0].split()[1:] == ["t", "queued"]
    assert_refused(submit(runs, "-t", "t"), 17, "its run is queued")
    assert_shows(graphkit("worker", runs, "--app", shop, "--once"), 0, "resumed 1 run\n")
    (row,) = read_json("threads", runs)
    assert row["status"] == "interrupted"


def test_a_time_and_a_key(runs, shop):
    at = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")
    submit_order = partial(submit, runs, "--key", "order-17", "--json")
    first = submit_order("--at", at).json
    thread = first["thread"]
    assert first == {"thread": thread, "status": "queued", "at": at, "key": "order-17"}
    assert submit_order().json == first
    assert_shows(graphkit("threads", runs), 0, f"not before {at}")
    assert graphkit("worker", runs, "--app", shop, "--once").out == "resumed 0 runs\n"
    early = graphkit("resume", runs, thread, "--app", shop)
    assert early.lines[-1] == f"{thread} is queued: its time has not come"


def test_a_time_that_has_no_local_one(runs, shop):
    east = {"terminal": True, "zone": timezone(timedelta(hours=9))}
    assert_shows(submit(runs, "--at", "9999-12-31T23:59+00:00", **east), 0, "begins at 9999-12-31 23:59 UTC")
    assert_shows(graphkit("threads", runs, **east), 0, "not before 9999-12-31 23:59:00 UTC")
    assert_refused(submit(runs, "--at", "9999-12-31T23:59-09:00"), 2, "--at: 9999")


# schedule

CRON = "0 9 * * 1-5"


def add(store, *options, name="report", cron=CRON):
    return graphkit("schedule", "add", store, name, cron, *options)


def test_a_schedule_is_added_listed_and_removed(runs):
    added = add(runs, "--input", '{"kind": "daily"}', "--timezone", "Europe/Zurich", "--graph-id", "g")
    assert (added.code, added.out.startswith("report is due next at 2026-11-23 ")) == (0, True)
    (row,) = read_json("schedule", "list", runs)
    assert row == {
        "name": "report", "cron": CRON, "timezone": "Europe/Zurich", "graph_id": "g", "input": {"kind": "daily"},
        "next_due": "2026-11-23T08:00:00+00:00", "last_due": None, "created_at": "2026-11-20T12:00:00+00:00",
    }  # fmt: skip
    assert "report" in graphkit("schedule", "list", runs).out
    assert read_json("threads", runs) == []
    assert read_json("stats", runs)["threads"] == 0
    pruned = graphkit("prune", runs, "--idle", "0s", "--yes", now=datetime.max.replace(tzinfo=UTC))
    assert pruned.out == "no thread is idle for 0s\n"
    assert graphkit("schedule", "remove", runs, "report").out == "removed report\n"
    assert read_json("schedule", "list", runs) == []


def test_an_unknown_schedule_is_not_found_and_the_known_ones_are_named(runs):
    add(runs)
    schedules.remove(FileSystemSaver(runs), "report")

    def remove(name):
        done = graphkit("schedule", "remove", runs, name)
        assert done.code == 11
        return done.err.partition("graphkit: ")[2]

    assert remove("x") == "there is no schedule x; the store has none\n"
    add(runs)
    add(runs, name="nightly", cron="0 2 * * *")
    assert remove("reprot") == "there is no schedule reprot; did you mean report?\n"
    assert remove("x") == "there is no schedule x; there are nightly, report\n"


def test_a_schedule_that_makes_no_sense_is_refused(runs):
    for done, text in ((add(runs, cron="0 9 * *"), "five fields"), (add(runs, "--input", "[1]"), "JSON object")):
        assert (done.code in {2, 18}, text in done.err) == (True, True), done.err
    assert not runs.exists()


# Threads that sleep, and deadlines

FLOW = """
from datetime import timedelta
from graphkit import interrupt, sleep
from tests.support.graphs import make_chain


def step(state):
    if state["what"] == "nap":
        sleep(timedelta(days=1))
    else:
        terms = {"default": "no"} if state["what"] == "default" else {}
        return {"answer": interrupt("pay?", deadline=state["seconds"], **terms)}


app = make_chain({}, step=step).compile()
"""


@pytest.fixture
def naps(runs, write_module):
    """Runs a command on a store, at the time of the system, by which runs go; there is a module `naps`."""
    write_module("naps", FLOW)
    return lambda name, *words, **options: graphkit(name, runs, *words, now=datetime.now(UTC), **options)


def run_naps(naps, what, seconds=3600):
    given = f'{{"what": "{what}", "seconds": {seconds}}}'
    return naps("run", "--app", "naps:app", "--thread", "t", "--input", given)


def test_a_thread_that_sleeps(naps):
    began = datetime.now(UTC)
    assert "waits in step until " in run_naps(naps, "nap").out

    (row,) = naps("threads", "--status", "sleeping", "--json").json
    progress = row["progress"]
    until = datetime.fromisoformat(progress.removeprefix("sleeps until "))
    assert timedelta(hours=23) < until - began < timedelta(hours=25)

    shown = naps("show", "t", "--json").json
    assert (shown["status"], shown["progress"], shown["waiting"]) == ("sleeping", progress, [])
    assert naps("stats", "--json").json["statuses"] == {"sleeping": 1}
    assert naps("interrupts", "--json").json == []
    assert "sleeps until " in naps("watch", "t", "--limit", "2").lines[1]

    # Nothing wakes it before its time.
    assert naps("prune", "--idle", "0s", "--interrupted", "--yes").out == "no thread is idle for 0s\n"
    assert naps("worker", "--app", "naps:app", "--once").out == "resumed 0 runs\n"
    assert naps("resume", "t", "--app", "naps:app", "--json").json["status"] == "sleeping"
    *_, stop, hint = naps("resume", "t", "--app", "naps:app", terminal=True, width=200).lines
    assert (stop[-4:], hint[:22]) == (" UTC", "next: graphkit worker ")  # the zone of the terminal
    assert naps("wait", "t", "--timeout", "0.1").code == 124


def test_an_interrupt_with_a_deadline(naps):
    assert "pay?" in run_naps(naps, "default").out
    (row,) = naps("interrupts", "--json").json
    left = datetime.fromisoformat(row["deadline"]) - datetime.fromisoformat(row["since"])
    assert timedelta(hours=1) - left < timedelta(seconds=5)
    assert "DEADLINE" in naps("interrupts", terminal=True).out
    assert naps("answer", "t", "--text", "yes", "--json").json["deadline"] == row["deadline"]


@pytest.mark.parametrize(("what", "status"), [("default", "finished"), ("ask", "failed")])
def test_an_answer_that_is_too_late(naps, what, status):
    run_naps(naps, what, seconds=0)
    late = naps("answer", "t", "--text", "yes")
    assert_refused(late, 16, "the answer is too late: the deadline of interrupt")
    late = naps("resume", "t", "--app", "naps:app", "--value", '"yes"')
    assert_refused(late, 4, "the answer is too late")
    naps("worker", "--app", "naps:app", "--once")
    assert naps("show", "t", "--json").json["status"] == status


# cancel and pause

CANCELS_ITSELF = """
from graphkit import operations
from savers import FileSystemSaver
from tests.support.graphs import make_chain


def stop(state, config):
    operations.cancel(FileSystemSaver("runs"), "t", reason="sold out")
    while not config.is_cancelled:
        pass


app = make_chain({}, stop=stop, last=lambda state: {}).compile()
"""


def test_a_thread_that_waits_is_cancelled_at_once(waiting):
    assert graphkit("pause", waiting, "order-17").out == "order-17 is interrupted: nothing to stop\n"
    assert graphkit("cancel", waiting, "order-17", "--reason", "sold out").out == "order-17 is cancelled\n"
    assert read_json("cancel", waiting, "order-17") == {"thread": "order-17", "status": "cancelled", "accepted": False}
    assert graphkit("cancel", waiting, "order-17").out == "order-17 is cancelled: nothing to stop\n"


@pytest.mark.parametrize("command", ["cancel", "pause"])
def test_a_run_that_ends_meanwhile_and_leaves_no_thread_is_said_to_have_ended(monkeypatch, waiting, command):
    def release(saver, thread_id, **_):
        saver.release(thread_id)
        return False

    monkeypatch.setattr(operations, command, release)
    assert graphkit(command, waiting, "order-17").out == "order-17 has ended, and its thread was released or deleted\n"


def test_every_command_shows_that_a_thread_was_cancelled_and_why(waiting, shop):
    latest = read_json("history", waiting, "order-17")[0]["id"]
    graphkit("cancel", waiting, "order-17", "--reason", "sold out")

    (row,) = read_json("threads", waiting, "--status", "cancelled")
    for found in (row, read_json("show", waiting, "order-17")):
        assert (found["status"], found["reason"]) == ("cancelled", "sold out")
        assert not found["waiting"]

    assert_shows(graphkit("threads", waiting), 0, "sold out")
    assert_shows(graphkit("show", waiting, "order-17"), 0, "sold out")
    *_, last = graphkit("watch", waiting, "order-17", "--checkpoint", latest, "--limit", "2").lines
    assert last.endswith("cancelled: sold out")

    assert read_json("history", waiting, "order-17")[0]["status"] == "cancelled"
    assert read_json("stats", waiting)["statuses"] == {"cancelled": 1}
    assert read_json("interrupts", waiting) == []
    assert_shows(graphkit("wait", waiting, "order-17", "--until", "interrupted"), 6, "order-17 is cancelled\n")
    assert_shows(graphkit("worker", waiting, "--app", shop, "--once"), 0, "resumed 0 runs\n")


def test_a_run_that_another_process_executes_is_asked_to_stop(runs):
    with FileSystemSaver(runs) as saver, saver.run_lock("t"):
        saver.put("t", checkpoint(1, START, "a", {}))
        (row,) = read_json("threads", runs)
        assert row["status"] == "running"
        assert graphkit("verify", runs).code == 0, "it waits for no run"
        assert graphkit("pause", runs, "t").out == "t is running: it stops before its next node\n"
        assert graphkit("cancel", runs, "t").out == "t is running: it ends before its next node\n"


def test_a_terminal_names_the_command_that_continues_a_cancelled_run(write_module):
    write_module("selfish", CANCELS_ITSELF)
    done = graphkit("run", "runs", "--app", "selfish:app", "--thread", "t", terminal=True)
    assert done.lines[-2:] == [
        "t was cancelled: sold out, after 1 step",
        "next: graphkit resume runs t --app selfish:app",
    ]
