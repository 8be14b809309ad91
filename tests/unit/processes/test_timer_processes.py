"""Timers and several processes: whoever dies and whoever comes first, each goes on once, and no time is lost."""

from collections import Counter
from pathlib import Path

from graphkit import RunnableConfig
from tests.support.workers import PATIENCE, log_of, status, wait_for

READY = "ready"
PROGRAM = """
import os, signal
from graphkit.worker import Worker


def nap(state, config):
    sleep(state["seconds"])
    with open(path + ".work", "a") as work:
        work.write(config.thread + "\\n")
    return {"log": "awake"}


graph = StateGraph({"log": Channels.appender_with_duplicate()})
graph.add_node("nap", nap).add_edge(START, "nap").add_edge("nap", END)
app = graph.compile(checkpoint_saver=saver)
print("ready", flush=True)
if what == "serve":
    Worker(saver, app, concurrency=2, interval=0.01).run()
else:
    seconds = float(what)
    app.invoke({"seconds": seconds}, RunnableConfig("t"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_time_survives_the_process(saver, start):
    assert start("0.5").wait(PATIENCE) == -9
    assert status(saver) == "sleeping"
    writes = dict(saver.get_writes(RunnableConfig("t")))
    del writes["asleep"]
    (timer,) = writes.values()
    start("serve")
    wait_for(saver, "finished")
    finished = saver.get(RunnableConfig("t"))
    assert finished.created_at >= timer["due"]
    assert log_of(saver) == ["awake"]


def test_one_of_two_workers_takes_a_thread_that_is_due(saver, app, start, path, sweep):
    for _ in range(2):
        start("serve")
    threads = [f"t{number}" for number in range(sweep.count(200, 20))]
    for thread in threads:  # both workers know of them long before
        app.invoke({"seconds": 0.1}, RunnableConfig(thread))
    for thread in threads:
        wait_for(saver, "finished", thread)
    assert Counter(Path(f"{path}.work").read_text().split()) == dict.fromkeys(threads, 1)
    for thread in threads:
        assert log_of(saver, thread) == ["awake"]
