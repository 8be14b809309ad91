"""submit, and what the other commands say of a queued thread."""

from datetime import UTC, datetime, timedelta
from functools import partial

from savers import FileSystemSaver
from tests.support.terminal import assert_refused, assert_shows, graphkit, read_json

INPUT = '{"item": "lamp"}'


def submit(store, *options, app="shop:app"):
    return graphkit("submit", store, "--app", app, "--input", INPUT, *options)


def test_a_submitted_run_waits_for_a_worker(tmp_path, shop):
    store = tmp_path / "runs"
    submitted = submit(store, "-t", "t", "--meta", "user=anna")
    assert submitted.out == "t is queued\n"
    (row,) = read_json("threads", store, "--status", "queued")
    assert row["metadata"]["user"] == "anna"
    shown = read_json("show", store, "t")
    assert shown["status"] == "queued"
    assert read_json("stats", store)["statuses"] == {"queued": 1}
    watched = graphkit("watch", store, "t", "--limit", "1")
    _, *change = watched.lines[0].split()
    assert change == ["t", "queued"]
    assert_refused(submit(store, "-t", "t"), 17, "its run is queued")
    assert_shows(graphkit("worker", store, "--app", shop, "--once"), 0, "resumed 1 run\n")
    (row,) = read_json("threads", store)
    assert row["status"] == "interrupted"


def test_a_time_and_a_key(tmp_path, shop):
    store = tmp_path / "runs"
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    at = tomorrow.isoformat(timespec="seconds")
    submit_order = partial(submit, store, "--key", "order-17", "--json")
    first = submit_order("--at", at).json
    thread = first["thread"]
    assert first["status"] == "queued"
    assert first["at"] == at
    assert first["key"] == "order-17"
    again = submit_order().json
    assert again == {**again, "thread": thread, "at": at}
    assert_shows(graphkit("threads", store), 0, f"not before {at}")
    served = graphkit("worker", store, "--app", shop, "--once")
    assert served.out == "resumed 0 runs\n"
    early = graphkit("resume", store, thread, "--app", shop)
    assert early.lines[-1] == f"{thread} is queued: its time has not come"
    assert_refused(submit(store, "--at", "tomorrow"), 2, "--at: tomorrow is not a time")


def test_a_queued_thread_is_not_idle(tmp_path, shop):
    store = tmp_path / "runs"
    submit(store, "-t", "t")
    with FileSystemSaver(store) as saver:
        assert [*saver.delete_idle(idle_since=datetime.now(UTC) + timedelta(days=1), dry_run=True)] == ["t"]
    assert graphkit("prune", store, "--idle", "0s", "--interrupted", "--yes").out == "no thread is idle for 0s\n"
    assert read_json("threads", store)[0]["status"] == "queued"
