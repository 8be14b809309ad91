"""Workers as processes: answers from elsewhere, kill -9 in the middle of a node, several side by side, SIGTERM."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver
from savers._filesystem import layout
from tests.support.command_process import PATIENCE, CommandProcess
from tests.support.retention import fill, ids
from tests.support.terminal import assert_refused, damage, graphkit as run_command
from tests.support.workers import log_of, wait_for

FLOW = """
import os
from graphkit import interrupt
from tests.support.graphs import make_chain

here = os.path.dirname(os.path.abspath(__file__))


def note(word, config):
    fd = os.open(os.path.join(here, "work"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{config.thread} {word}\\n".encode())
    os.close(fd)


def alone(config):
    # Two processes in nodes of one thread would meet here.
    path = os.path.join(here, f"inside-{config.thread}")
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    os.unlink(path)


def draft(state, config):
    alone(config)
    note("draft", config)
    return {"log": "draft"}


def review(state, config):
    alone(config)
    return {"log": interrupt({"question": "ok?"})}


def hold(state, config):
    if os.path.exists(os.path.join(here, "gate")):
        note("hold", config)
        with open(os.path.join(here, "gate")) as gate:
            gate.read()
    note("held", config)
    return {"log": "held"}


def publish(state, config):
    alone(config)
    note("publish", config)
    return {"log": "publish"}


graph = make_chain(draft=draft, review=review, hold=hold, publish=publish)
app = graph.compile()
"""
COMMAND = """
import sys
import graphkit.worker
from graphkit import RetryPolicy
from graphkit.cli.main import main
graphkit.worker._BUSY = RetryPolicy(initial_delay=3600, max_delay=3600)  # only events call it back
main()
"""


class Process(CommandProcess):
    """A worker in a process of its own, whose lines are waited for."""

    def __init__(self, launcher, place, *args):
        super().__init__(launcher, *args, code=("-c", COMMAND), cwd=place)

    def line(self):
        return json.loads(self.process.stdout.readline() or "null")

    def until(self, wanted):
        """Lines up to one of which this holds."""
        while (line := self.line()) is not None:
            if wanted(line):
                return line
        raise AssertionError(self.process.stderr.read())

    def rows(self):
        """What else it says, and its exit code."""
        lines, err, code = self.end()
        return [json.loads(line) for line in lines], err, code


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "flow.py").write_text(FLOW)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("flow", None)


@pytest.fixture
def saver(place):
    with FileSystemSaver(place / "runs", fsync="never") as saver:
        yield saver


@pytest.fixture
def start(place, launcher):
    """Starts workers, and kills those that are left."""
    started = []

    def start_worker(*options):
        # An hour between looks: what is noticed is noticed by an event.
        args = ("worker", "runs", "--app", "flow:app", "--json", "--interval", "3600", *options)
        started.append(Process(launcher, place, *args))
        assert started[-1].process.stderr.readline().startswith("serving; "), "it has not begun"
        return started[-1]

    yield start_worker
    for worker in started:
        worker.process.kill()
        worker.killer.cancel()
        with worker.process:
            pass


def begin(saver, *threads):
    """Leave runs as their process does that dies after the first checkpoint."""
    import flow

    app = flow.graph.compile(checkpoint_saver=saver)
    for thread in threads:
        next(app.stream({}, RunnableConfig(thread)))


def answer(saver, thread, value):
    """As any other process does it, once the thread asks."""
    with saver.watch(thread) as changes:
        while not (waiting := saver.interrupts(thread)):
            assert changes.get(PATIENCE) is not None
    saver.put_writes(RunnableConfig(thread, waiting[0].checkpoint_id), {f"answer:{waiting[0].id}": value})


def work(place):
    """How often each thread did each step."""
    return Counter((place / "work").read_text().splitlines())


STORY = ["draft", "yes", "held", "publish"]
ONCE = {"t draft": 1, "t hold": 1, "t held": 1, "t publish": 1}


def test_a_second_worker_takes_over_from_one_that_is_killed_in_a_node(place, saver, start):
    os.mkfifo(place / "gate")
    begin(saver, "t")
    first = start()
    first.until(lambda line: line["interrupts"])
    second = start()
    answer(saver, "t", "yes")
    with inside_the_node(place):
        (holder,) = [worker for worker in (first, second) if holds_lock(worker, saver, "t")]
        other = second if holder is first else first
        holder.process.send_signal(signal.SIGKILL)
        holder.process.wait(PATIENCE)
    other.until(lambda line: line["node"] == "__END__")
    assert log_of(saver, "t") == STORY
    assert work(place) == ONCE


def holds_lock(one, saver, thread):
    """Whether a process is the one that the lock file of a running thread names."""
    path = Path(saver.base_directory, layout.locate_thread(thread).name, "run.lock")
    return f"process {one.process.pid} " in path.read_text()


@contextlib.contextmanager
def inside_the_node(place):
    """From the moment when a node stands at the gate, where the next one finds none; the node goes on at the end."""
    gate = place / "gate"
    late = threading.Timer(PATIENCE, lambda: os.open(gate, os.O_RDONLY | os.O_NONBLOCK))
    late.start()
    with gate.open("w"):
        assert late.is_alive(), "no node came to the gate"
        late.cancel()
        gate.unlink()  # before anybody is killed: whoever takes over at once must not stop here too
        yield


def test_workers_side_by_side_never_run_a_thread_at_the_same_time(place, saver, start):
    threads = [f"t{number}" for number in range(12)]
    begin(saver, *threads[:6])
    workers = [start() for _ in range(3)]
    begin(saver, *threads[6:])
    for thread in threads:
        answer(saver, thread, "yes")
    for thread in threads:
        wait_for(saver, "finished", thread)
    taken = 0
    for worker in workers:
        worker.process.send_signal(signal.SIGTERM)
        rest, err, code = worker.rows()
        assert (code, [line for line in err.splitlines() if "stopping" not in line]) == (0, [])
        taken += rest[-1]["runs"]
    steps = [f"{thread} {node}" for thread in threads for node in ("draft", "held", "publish")]

    assert work(place) == dict.fromkeys(steps, 1)
    for thread in threads:
        assert log_of(saver, thread) == STORY
    assert taken >= len(threads)


def test_sigterm_stops_at_the_node_boundary_with_everything_saved(place, start):
    os.mkfifo(place / "gate")
    worker = start()  # before there is a store: what happens to it is noticed without polling
    with FileSystemSaver(place / "runs", fsync="never") as saver:
        begin(saver, "t")
        asked = worker.until(lambda line: line["interrupts"])
        assert asked["thread"] == "t"
        assert asked["interrupts"][0]["reason"] == {"question": "ok?"}
        answer(saver, "t", "yes")
        with inside_the_node(place):
            worker.process.send_signal(signal.SIGTERM)
            assert "stopping after the current node" in worker.process.stderr.readline()
        rest, _, code = worker.rows()
        assert code == 0
        assert rest[-1] == {"runs": 2}
        assert log_of(saver, "t") == STORY[:-1]
        assert not saver.interrupts("t")  # nobody has to answer for it
        again, _, code = start("--once").rows()
        assert (again[-1], code) == ({"runs": 1}, 0)
        assert log_of(saver, "t") == STORY
    assert work(place) == ONCE


def test_people_read_lines_and_a_damaged_thread_does_not_keep_the_others_waiting(place, saver, launcher):
    begin(saver, "bad", "good")
    damage(place / "runs", "bad")
    args = ["worker", "runs", "--app", "flow:app", "--once"]
    lines, err, code = Process(launcher, place, *args).end()
    first, *rest = err.splitlines()
    assert (code, first) == (0, "serving; Ctrl-C or SIGTERM stops before the next node")
    assert all("is damaged at byte" in line for line in rest)
    *said, last = lines
    assert [line[10:] for line in said] == [f"{'good':24} draft", f"{'good':24} waits inside review: ok?"]
    assert last == "resumed 1 run"


def test_a_worker_applies_the_policy_of_a_file(shop, tmp_path):
    with FileSystemSaver(tmp_path / "runs", fsync="never") as saver:
        fill(saver, "old")
        policy = tmp_path / "policy.yaml"
        policy.write_text("keep_last: 2\nthreads: old*\n")
        command = ("worker", tmp_path / "runs", "--app", shop, "--once", "--policy", policy)
        assert run_command(*command).out == "resumed 0 runs\n"
        assert ids(saver, "old") == ["c4", "c3"]
        policy.write_text("keep_lats: 2\n")
        assert_refused(run_command(*command), 18, "did you mean 'keep_last'")
