"""Schedules and several processes: one run for each due time, whoever is first and whoever dies."""

import signal
from datetime import UTC, datetime, timedelta

import pytest

from graphkit import RunnableConfig, schedules
from tests.support.sweeps import in_turn
from tests.support.workers import PATIENCE, status

HOUR = timedelta(hours=1)
BEGIN = datetime(2026, 11, 30, 8, 30, tzinfo=UTC)

READY = "serving"
PROGRAM = """
import os, signal
from datetime import UTC, datetime
from pathlib import Path
from graphkit._engine import schedules as engine
from graphkit.worker import Worker

clock_file, work_file = arguments


def clock():
    return datetime.fromisoformat(Path(clock_file).read_text())


def note(state, config):
    with open(work_file, "a") as work:
        work.write(config.thread + "\\n")


def die(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)


if what == "die before the submit":
    engine.submit_once = die
elif what == "die before the record":
    engine._put = die
graph = StateGraph({}).add_node("note", note).add_edge(START, "note").add_edge("note", END)
worker = Worker(saver, graph.compile(), clock=clock, interval=0.01)
signal.signal(signal.SIGTERM, lambda *_: worker.stop())
print("serving", flush=True)
worker.run(once=what == "once")

"""


@pytest.fixture(params=in_turn(["file", "sqlite", "postgres"], "kind"))
def kind(request):
    return request.param


class Clock:
    """The clock of all processes: a file, replaced as a whole."""

    def __init__(self, directory):
        self.path = directory / "clock"
        self.set(BEGIN)

    def set(self, time):
        self.time = time
        new = self.path.with_suffix(".new")
        new.write_text(time.isoformat())
        new.replace(self.path)


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path)


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def start(start, clock, work):
    return lambda what: start(what, clock.path, work)


def due_times(saver, work):
    """The due times of the runs whose node was executed, each as often as it was."""
    threads = work.read_text().split()
    return [saver.recent(RunnableConfig(thread), limit=1)[0].metadata["due"] for thread in threads]


def wait_for(saver, count):
    """Wait until so many runs have finished."""
    finished = set()
    with saver.watch(latest=True, interval=0.01) as changes:
        while len(finished) < count:
            change = changes.get(PATIENCE)
            if change.thread_id.startswith("hourly-") and status(saver, change.thread_id) == "finished":
                finished.add(change.thread_id)


@pytest.mark.requirement("W11")
def test_two_workers_submit_one_run_for_a_due_time(saver, start, clock, work, sweep):
    schedules.add(saver, "hourly", "0 * * * *", {}, created_at=BEGIN)
    for _ in range(2):
        start("serve")
    due = []
    for number in range(1, sweep.count(200, 20) + 1):
        clock.set(clock.time + HOUR)
        due.append((clock.time - HOUR / 2).isoformat())
        wait_for(saver, number)
    assert sorted(due_times(saver, work)) == due


@pytest.mark.parametrize("moment", ["die before the submit", "die before the record"])
def test_a_worker_that_is_killed_between_the_due_time_and_its_record(saver, start, clock, work, moment):
    thread = "hourly-2026-11-30T09:00Z"
    schedules.add(saver, "hourly", "0 * * * *", {}, created_at=BEGIN)
    clock.set(BEGIN + HOUR)
    assert start(moment).wait(PATIENCE) == -signal.SIGKILL
    assert (thread in saver.threads()) == (moment == "die before the record")

    for _ in range(2):
        assert start("once").wait(PATIENCE) == 0

    assert due_times(saver, work) == ["2026-11-30T09:00:00+00:00"]
    assert status(saver, thread) == "finished"
    (schedule,) = schedules.find_all(saver)
    assert schedule.last_due == BEGIN + HOUR / 2
    assert len(saver.threads()) == 2  # with the one of the schedule
