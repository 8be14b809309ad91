"""Workers in several processes on one schema of PostgreSQL: each run is claimed once, and none is lost."""

import itertools
from collections import Counter

from graphkit import RunnableConfig
from graphkit.operations import answer, submit
from tests.sql import flow
from tests.support.workers import log_of, wait_for


def begin(saver, folder, threads):
    """Leave runs as their process does that dies after the first checkpoint."""
    app = flow.make_served_graph(str(folder)).compile(checkpoint_saver=saver)
    for thread_id in threads:
        next(app.stream({}, RunnableConfig(thread_id)))


def wait_for_each(saver, status, threads):
    for thread_id in threads:
        wait_for(saver, status, thread_id)


def test_four_workers_serve_runs_that_have_begun_or_were_submitted_and_each_step_once(
    open_postgres_saver, start_flow, tmp_path, sweep
):
    saver = open_postgres_saver()
    count = sweep.count(40, 16)
    threads = [f"t{number:02}" for number in range(count)]
    half = count // 2
    begin(saver, tmp_path, threads[:half])
    for _ in range(4):
        assert start_flow("serve", str(tmp_path), None).stdout.readline() == "serving\n"

    for thread in threads[half:]:
        submit(saver, {}, thread)
    wait_for_each(saver, "interrupted", threads)
    for thread in threads:
        answer(saver, thread, "yes")
    wait_for_each(saver, "finished", threads)

    lines = (tmp_path / "work").read_text().splitlines()
    each_step = itertools.product(threads, ("draft", "publish"))
    assert Counter(tuple(line.split()[:2]) for line in lines) == dict.fromkeys(each_step, 1)
    for thread in threads:
        assert log_of(saver, thread) == ["draft", "yes", "publish"]


def test_the_run_of_a_worker_that_was_killed_is_taken_over(open_postgres_saver, start_flow, tmp_path):
    """One that was stopped for a while is in test_fencing.py."""
    saver = open_postgres_saver(lease=3600.0)
    first = start_flow("serve", str(tmp_path), "t", lease=3600.0)
    assert first.stdout.readline() == "serving\n"
    begin(saver, tmp_path, ["t"])
    wait_for_each(saver, "interrupted", ["t"])
    answer(saver, "t", "yes")
    assert first.stdout.readline() == "waiting\n"
    first.kill()
    start_flow("serve", str(tmp_path), None, lease=3600.0)
    wait_for_each(saver, "finished", ["t"])
    assert log_of(saver, "t") == ["draft", "yes", "publish"]
