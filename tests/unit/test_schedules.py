"""Schedules: when runs are due, that each is submitted once, and what a worker notices."""

import sys
import threading
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from graphkit import RetryPolicy, RunnableConfig, schedules
from graphkit._engine import schedules as engine
from graphkit._engine.schedules import Schedule, ScheduleAgenda, iter_due_times
from graphkit.abc import HasVersions
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointSerializationError,
    CheckpointStorageError,
    GraphRunnerError,
    MissingDependencyError,
    ThreadBusyError,
)
from graphkit.saver_kit import Change
from graphkit.testing import ManualClock, ScriptedSaver
from graphkit.worker import Worker
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import LOG, log_node, make_chain
from tests.support.savers import saver_fixture
from tests.support.workers import PATIENCE, serving, status

MONDAY = datetime(2026, 11, 30, 8, 30, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ZURICH = "Europe/Zurich"


saver = saver_fixture(["memory", "file", "sqlite", "postgres"])


@pytest.fixture
def clock():
    return ManualClock(MONDAY)


@pytest.fixture
def app():
    return make_chain(LOG, a=lambda state, config: {"log": config.thread}).compile()


def runs(saver):
    """The due times for which a run was submitted."""
    latest = [saver.recent(RunnableConfig(thread), limit=1)[0] for thread in saver.threads()]
    return sorted(info.metadata["due"] for info in latest if "due" in info.metadata)


def serve(saver, app, clock):
    return Worker(saver, app, clock=clock).run(once=True)


def times(cron, zone, after, count):
    schedule = Schedule(name="x", cron=cron, input={}, timezone=zone, created_at=after)
    due = iter_due_times(schedule, after)
    return [next(due).astimezone(ZoneInfo(zone)).isoformat() for _ in range(count)]


# When runs are due


@pytest.mark.requirement("W13")
def test_a_skipped_time_is_due_after_the_skip_and_once():
    start = datetime(2027, 3, 27, 12, tzinfo=UTC)  # the clock skips 2:00 to 3:00 on the 28th
    assert times("30 2 * * *", ZURICH, start, 2) == ["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]
    assert times("15,45 2 * * *", ZURICH, start, 2) == ["2027-03-28T03:00:00+02:00", "2027-03-29T02:15:00+02:00"]
    assert times("0 9 * * *", ZURICH, start, 2) == ["2027-03-28T09:00:00+02:00", "2027-03-29T09:00:00+02:00"]


@pytest.mark.requirement("W13")
def test_a_repeated_time_is_due_the_first_time_only():
    start = datetime(2026, 10, 24, 12, tzinfo=UTC)  # the clock repeats 2:00 to 3:00 on the 25th
    assert times("30 2 * * *", ZURICH, start, 2) == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    in_the_second_one = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)
    assert times("30 2 * * *", ZURICH, in_the_second_one, 1) == ["2026-10-26T02:30:00+01:00"]
    assert times("0 * * * *", ZURICH, datetime(2026, 10, 24, 23, 30, tzinfo=UTC), 3) == [
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T03:00:00+01:00",
    ]


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/15 * * * *", "0 3 * * 7", "0 0 29 2 *", "5 * 25 10 *"])
@pytest.mark.parametrize("end", ["2026-10-25T01:20:00+00:00", "2027-03-28T01:05:00+00:00"])
def test_the_times_are_the_same_wherever_the_search_begins(cron, end):
    end = datetime.fromisoformat(end)
    days = 5 if cron.startswith("*") else 500
    begin = end - days * DAY
    schedule = Schedule(name="x", cron=cron, input={}, timezone=ZURICH, created_at=begin)
    found = [*iter_due_times(schedule, begin, end)]
    assert schedule.find_unsubmitted(end, end) == found[-1:]

    middle = end - timedelta(minutes=90)
    passed = [due for due in found if due <= middle]
    left = found[len(passed) :]
    assert schedule.find_unsubmitted(end, middle) == passed[-1:] + left


# What a worker submits


@pytest.mark.requirement("W11")
def test_each_due_time_gets_a_thread_of_its_own(saver, app, clock):
    Worker(saver, app, clock=clock).schedule("report", "0 9 * * 1-5", {}, timezone=ZURICH)
    assert serve(saver, app, clock) == 0

    for pause in (23.5 * HOUR, DAY):  # 9:00 in Zurich
        clock.advance(pause)
        assert serve(saver, app, clock) == 1
        assert serve(saver, app, clock) == 0

    assert runs(saver) == ["2026-12-01T08:00:00+00:00", "2026-12-02T08:00:00+00:00"]
    threads = [thread for thread in saver.threads() if not thread.startswith("graphkit:")]
    assert sorted(threads) == ["report-2026-12-01T08:00Z", "report-2026-12-02T08:00Z"]
    for thread in threads:
        assert status(saver, thread) == "finished"
    (schedule,) = schedules.find_all(saver)
    assert schedule.last_due == datetime(2026, 12, 2, 8, tzinfo=UTC)


@pytest.mark.requirement("W12")
def test_of_the_missed_times_the_latest_is_submitted(saver, app, clock):
    schedules.add(saver, "hourly", "0 * * * *", {}, created_at=clock())
    clock.advance(10 * DAY)
    assert serve(saver, app, clock) == 1
    assert runs(saver) == ["2026-12-10T08:00:00+00:00"]
    clock.advance(HOUR)
    assert serve(saver, app, clock) == 1


@pytest.mark.parametrize("error", [CheckpointStorageError("s", "write", "full"), ThreadBusyError("t", "another", 0.0)])
def test_times_that_pass_while_the_store_fails_are_all_submitted_and_pauses_grow(clock, monkeypatch, error):
    now = 1000.0
    attempts = []
    monkeypatch.setattr(engine, "monotonic", lambda: now)
    monkeypatch.setattr(RetryPolicy, "delay_after", lambda policy, attempt: attempts.append(attempt) or 1.0)
    saver = MemorySaver()
    failing = ScriptedSaver(saver).fail("put", error, times=5)
    agenda = ScheduleAgenda(failing, clock, 60.0)
    clock.advance(HOUR)
    for cron in ("0 0 * * *", "0 * * * *", "0 * * * *"):  # each is looked at at once, also after a failure
        schedules.add(saver, "hourly", cron, {}, created_at=MONDAY)
        agenda.note_change(Change("checkpoint", "graphkit:schedule:hourly", ""))
        agenda.submit_due()
    assert failing.count("put") == 2

    submitted = []
    for _ in range(5):
        clock.advance(HOUR)
        now += 3600
        submitted += agenda.submit_due()

    assert submitted == [f"hourly-2026-11-30T{hour:02}:00Z" for hour in range(9, 15)]
    assert attempts == ([] if isinstance(error, ThreadBusyError) else [1, 2, 3, 4, 5])


def test_a_schedule_of_another_graph_is_submitted_for_its_worker(saver, clock):
    first = make_chain(LOG, a=log_node("first")).compile(graph_id="first")
    second = make_chain(LOG, a=log_node("second")).compile(graph_id="second")
    worker = Worker(saver, {"second": second}, clock=clock)
    worker.schedule("x", "0 9 * * *", {"log": "in"})
    clock.advance(DAY)

    assert serve(saver, first, clock) == 0
    assert serve(saver, second, clock) == 1

    assert saver.get("x-2026-11-30T09:00Z").state["log"] == ["in", "second"]


def test_a_serving_worker_notices_what_others_add_and_remove(saver, clock):
    done = threading.Event()
    app = make_chain(LOG, a=lambda state: done.set()).compile()
    worker = Worker(saver, app, clock=clock, interval=0.01)
    with serving(worker) as (served,):
        schedules.add(saver, "gone", "0 9 * * *", {}, created_at=clock())
        schedules.add(saver, "stays", "0 9 * * *", {}, created_at=clock())
        assert schedules.remove(saver, "gone")
        clock.advance(HOUR)
        assert done.wait(PATIENCE)
    assert served.result() == 1
    assert len(runs(saver)) == 1


@pytest.mark.parametrize("after", ["prune", "release"])
def test_a_run_that_was_submitted_but_not_recorded_is_not_submitted_again(saver, app, clock, monkeypatch, after):
    """Not even if its submission is gone by then."""
    if after == "release" and not isinstance(saver, HasVersions):
        pytest.skip("the saver keeps no versions")
    schedules.add(saver, "x", "0 9 * * *", {}, created_at=clock())
    clock.advance(HOUR)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_put", None)  # which the worker calls for the record
        for _ in range(2):  # the second time it runs what it has submitted, if it has not yet
            serve(saver, app, clock)
    thread = "x-2026-11-30T09:00Z"
    assert status(saver, thread) == "finished"
    if after == "release":
        saver.release(thread)
    else:
        saver.prune(thread, keep_last=1)
    assert serve(saver, app, clock) == 0
    (schedule,) = schedules.find_all(saver)
    assert schedule.last_due == clock() - HOUR / 2


def test_many_due_times_leave_a_short_history(saver, clock):
    schedules.add(saver, "often", "* * * * *", {}, created_at=clock())
    schedule = saver.get(RunnableConfig("graphkit:schedule:often"))
    read = engine._read(schedule, "often")
    for _ in range(205):
        schedule = engine._put(saver, read, schedule)
    assert len(saver.history(RunnableConfig("graphkit:schedule:often"))) < 20
    assert [each.name for each in schedules.find_all(saver)] == ["often"]


def test_times_that_pass_while_a_worker_is_busy_are_all_submitted(clock, monkeypatch):
    saver = MemorySaver()
    now = 1000.0
    monkeypatch.setattr(engine, "monotonic", lambda: now)

    def work(state):
        nonlocal now
        clock.advance(3 * HOUR)
        now += 3 * 3600

    app = make_chain(LOG, a=work).compile()
    worker = Worker(saver, app, clock=clock)
    worker.schedule("hourly", "0 * * * *", {})
    clock.advance(HOUR)

    def stop(thread, output):
        if output.is_end:
            worker.stop()

    worker = Worker(saver, app, clock=clock, on_output=stop)
    worker.run()
    assert runs(saver) == ["2026-11-30T09:00:00+00:00"]
    worker._schedules.submit_due()
    assert runs(saver) == [f"2026-11-30T{hour:02}:00:00+00:00" for hour in (9, 10, 11, 12)]


# What is stored


@pytest.mark.requirement("W14")
def test_another_definition_replaces_it_the_same_does_not_and_it_can_be_removed(saver, app, clock):
    schedules.add(saver, "x", "0 9 * * *", {"log": ["a"]}, created_at=clock())
    clock.advance(DAY)
    assert serve(saver, app, clock) == 1

    again = schedules.add(saver, "x", "0 9 * * *", {"log": ["a"]}, created_at=clock())
    assert (again.created_at, again.last_due) == (MONDAY, MONDAY.replace(hour=9, minute=0))

    schedules.add(saver, "x", "0 10 * * *", {}, created_at=clock())
    clock.advance(HOUR)
    assert serve(saver, app, clock) == 0, "10:00 of the day before was before this definition"
    clock.advance(HOUR)
    assert serve(saver, app, clock) == 1

    assert schedules.remove(saver, "x")
    assert not schedules.remove(saver, "x")
    clock.advance(DAY)
    assert serve(saver, app, clock) == 0
    assert len(runs(saver)) == 2


def test_a_schedule_is_no_idle_thread_and_survives_a_prune(saver):
    schedules.add(saver, "x", "0 9 * * *", {})
    if not isinstance(saver, MemorySaver):
        assert saver.delete_idle(idle_since=datetime.now(UTC) + DAY) == []
    saver.prune(keep_last=1)
    assert [schedule.name for schedule in schedules.find_all(saver)] == ["x"]


@pytest.mark.parametrize(
    ("name", "cron", "given", "zone", "error"),
    [
        ("", "0 9 * * *", {}, None, CheckpointerConfigurationError),
        ("x" * 201, "0 9 * * *", {}, None, CheckpointerConfigurationError),
        ("graphkit:schedule:x", "0 9 * * *", {}, None, CheckpointerConfigurationError),
        ("x", "0 9 * *", {}, None, CheckpointerConfigurationError),
        ("x", "L/2 * L/2 * *", {}, None, CheckpointerConfigurationError),
        ("x", "0 9 30 2 *", {}, None, CheckpointerConfigurationError),
        ("x", "0 9 */15 2 1#5", {}, None, CheckpointerConfigurationError),  # of each year, February has no such day
        ("x", None, {}, None, CheckpointerConfigurationError),
        ("x", "0 9 * * *", {}, "Europe/Zurch", CheckpointerConfigurationError),
        ("x", "0 9 * * *", {}, "../etc", CheckpointerConfigurationError),
        ("x", "0 9 * * *", {"log": object()}, None, CheckpointSerializationError),
        ("x", "0 9 * * *", ["log"], None, CheckpointSerializationError),
    ],
)
def test_what_is_wrong_changes_nothing(tmp_path, name, cron, given, zone, error):
    saver = FileSystemSaver(tmp_path / "store", fsync="never")
    with pytest.raises(error):
        schedules.add(saver, name, cron, given, timezone=zone)
    assert not saver.threads()
    if zone == "Europe/Zurch":
        with pytest.raises(error, match="did you mean 'Europe/Zurich'"):
            schedules.add(saver, name, cron, given, timezone=zone)


def test_a_worker_refuses_other_graphs_and_other_inputs(app):
    saver = MemorySaver()
    for graphs, options in (({"one": app, "two": app}, {}), ({"one": app}, {"graph_id": "two"})):
        with pytest.raises(CheckpointerConfigurationError):
            Worker(saver, graphs).schedule("x", "0 9 * * *", {}, **options)
    with pytest.raises(GraphRunnerError):
        Worker(saver, app).schedule("x", "0 9 * * *", ["log"])
    assert not saver.threads()


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(MissingDependencyError, match=r"\[schedules\]"):
        schedules.add(MemorySaver(), "x", "0 9 * * *", {})


def test_a_schedule_that_cannot_be_read_does_not_stop_the_others(clock, app, caplog):
    saver = MemorySaver()
    schedules.add(saver, "good", "0 9 * * *", {}, created_at=clock())
    bad = make_chain(LOG, a=lambda state: None).compile(checkpoint_saver=saver)
    bad.invoke({}, RunnableConfig("graphkit:schedule:bad"))
    clock.advance(HOUR)
    assert serve(saver, app, clock) == 1
    assert "schedule 'bad' failed" in caplog.text


def test_a_schedule_that_is_removed_at_the_last_moment_submits_nothing(clock, app):
    """Another process removes it just before a worker locks it."""
    saver = MemorySaver()
    schedules.add(saver, "x", "0 9 * * *", {}, created_at=clock())
    clock.advance(HOUR)
    scripted = ScriptedSaver(saver).on("run_lock", lambda: schedules.remove(saver, "x"))
    assert serve(scripted, app, clock) == 0
    assert scripted.count("run_lock") == 1
    assert not saver.threads()
