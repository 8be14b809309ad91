"""submit, and what the other commands say of a queued thread."""

from datetime import UTC, datetime, timedelta
from functools import partial

from tests.support.terminal import assert_refused, assert_shows, graphkit, read_json

INPUT = '{"item": "lamp"}'


def submit(store, *options, app="shop:app"):
    return graphkit("submit", store, "--app", app, "--input", INPUT, *options)


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
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    at = tomorrow.isoformat(timespec="seconds")
    submit_order = partial(submit, runs, "--key", "order-17", "--json")
    first = submit_order("--at", at).json
    thread = first["thread"]
    assert first["status"] == "queued"
    assert first["at"] == at
    assert first["key"] == "order-17"
    again = submit_order().json
    assert again["thread"] == thread
    assert again["at"] == at
    assert_shows(graphkit("threads", runs), 0, f"not before {at}")
    assert graphkit("worker", runs, "--app", shop, "--once").out == "resumed 0 runs\n"
    early = graphkit("resume", runs, thread, "--app", shop)
    assert early.lines[-1] == f"{thread} is queued: its time has not come"
    assert_refused(submit(runs, "--at", "tomorrow"), 2, "--at: tomorrow is not a time")
