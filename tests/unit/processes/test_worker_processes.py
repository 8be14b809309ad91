"""Submitted runs, timers and several processes: each run goes on once, and a key submits once, whoever dies and whoever comes first."""

from collections import Counter
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from graphkit.operations import submit
from tests.support.workers import PATIENCE, log_of, status, wait_for

PROGRAM = """
import os
from graphkit.worker import Worker


def note(state, config):
    sleep(state.get("seconds", 0))
    with open(path + ".work", "a") as work:
        work.write(config.thread + "\\n")
    return {"log": "a"}


def die(state):
    os._exit(9)


def enter(state):
    return die(state) if what == "die at the edge" else "a"


graph = StateGraph({"log": Channels.appender_with_duplicate()})
graph.add_node("a", die if what == "die in the node" else note).add_edge("a", END)
graph.add_conditional_edges(START, enter, {"a": "a"})
app = graph.compile(checkpoint_saver=saver)
if what == "serve":
    print("serving", flush=True)
    Worker(saver, app, concurrency=2, interval=0.01).run()
elif what == "submit":
    for line in sys.stdin:
        config = operations.submit(saver, {"log": what}, key=line.strip())
        print(config.thread, flush=True)
elif what == "submit and die":
    app.submit({"log": "in"}, RunnableConfig("t"))
    os._exit(9)
elif what == "sleep and die":
    app.invoke({"seconds": 0.5}, RunnableConfig("t"))
    os._exit(9)
else:
    app.invoke(None, RunnableConfig("t"))
"""


def serve_twice(start):
    """Start two workers, and wait until they serve."""
    for worker in [start("serve"), start("serve")]:
        assert worker.stdout.readline() == "serving\n"


@pytest.mark.requirement("W2")
def test_a_process_that_dies_after_the_submit_leaves_a_queued_run(saver, start):
    assert start("submit and die").wait(PATIENCE) == 9
    assert status(saver) == "queued"
    assert start("resume").wait(PATIENCE) == 0
    assert saver.get(RunnableConfig("t")).state["log"] == ["in", "a"]


@pytest.mark.parametrize(("where", "left"), [("die at the edge", "queued"), ("die in the node", "stalled")])
def test_a_process_that_dies_while_it_begins_the_run(saver, start, where, left):
    submit(saver, {"log": "in"}, "t")
    assert start(where).wait(PATIENCE) == 9
    assert status(saver) == left
    assert start("resume").wait(PATIENCE) == 0
    assert saver.get(RunnableConfig("t")).state["log"] == ["in", "a"]


@pytest.mark.requirement("W4")
def test_one_of_two_workers_begins_a_run(saver, start, path, sweep):
    serve_twice(start)
    threads = [f"t{number}" for number in range(sweep.count(200, 20))]
    with saver.watch(latest=True, interval=0.01) as changes:
        for thread in threads:
            submit(saver, {}, thread)
            # One after the other: both workers are idle, and see it at the same time.
            while status(saver, thread) != "finished":
                assert changes.get(PATIENCE) is not None
    begun = Path(f"{path}.work").read_text().split()
    assert sorted(begun) == sorted(threads)
    for thread in threads:
        sources = [info.metadata["source"] for info in saver.history(RunnableConfig(thread))]
        assert sources == ["loop", "input", "submit"]


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgres"])
def test_one_of_two_submits_with_a_key_stores_the_run(saver, start, sweep):
    submitters = [start("submit") for _ in range(2)]
    for number in range(sweep.count(200, 20)):
        for submitter in submitters:
            submitter.stdin.write(f"key {number}\n")
            submitter.stdin.flush()
        (thread,) = {submitter.stdout.readline().strip() for submitter in submitters}
        assert [info.status for info in saver.history(RunnableConfig(thread))] == ["queued"]


def test_the_time_survives_the_process(saver, start):
    assert start("sleep and die").wait(PATIENCE) == 9
    assert status(saver) == "sleeping"
    writes = dict(saver.get_writes(RunnableConfig("t")))
    del writes["asleep"]
    (timer,) = writes.values()
    start("serve")
    wait_for(saver, "finished")
    finished = saver.get(RunnableConfig("t"))
    assert finished.created_at >= timer["due"]
    assert log_of(saver) == ["a"]


def test_one_of_two_workers_takes_a_thread_that_is_due(saver, app, start, path, sweep):
    serve_twice(start)
    threads = [f"t{number}" for number in range(sweep.count(200, 20))]
    for thread in threads:  # both workers know of them long before
        app.invoke({"seconds": 0.1}, RunnableConfig(thread))
    for thread in threads:
        wait_for(saver, "finished", thread)
    assert Counter(Path(f"{path}.work").read_text().split()) == dict.fromkeys(threads, 1)
    for thread in threads:
        assert log_of(saver, thread) == ["a"]
