"""schedule add, list and remove, and what the other commands show of schedules."""

from graphkit import schedules
from savers import FileSystemSaver
from tests.support.terminal import graphkit, read_json

CRON = "0 9 * * 1-5"


def add(store, *options, name="report", cron=CRON):
    return graphkit("schedule", "add", store, name, cron, *options)


def test_a_schedule_is_added_listed_and_removed(tmp_path):
    store = tmp_path / "runs"
    added = add(store, "--input", '{"kind": "daily"}', "--timezone", "Europe/Zurich", "--graph-id", "g")
    assert (added.code, added.out.startswith("report is due next at 2026-11-23 ")) == (0, True)
    (row,) = read_json("schedule", "list", store)
    assert row == {
        "name": "report", "cron": CRON, "timezone": "Europe/Zurich", "graph_id": "g", "input": {"kind": "daily"},
        "next_due": "2026-11-23T08:00:00+00:00", "last_due": None, "created_at": "2026-11-20T12:00:00+00:00",
    }  # fmt: skip
    assert "report" in graphkit("schedule", "list", store).out
    assert graphkit("schedule", "remove", store, "report").out == "removed report\n"
    assert read_json("schedule", "list", store) == []


def test_an_unknown_schedule_is_not_found_and_the_known_ones_are_named(tmp_path):
    store = tmp_path / "runs"
    add(store)
    schedules.remove(FileSystemSaver(store), "report")

    def remove(name):
        done = graphkit("schedule", "remove", store, name)
        assert done.code == 11
        return done.err.partition("graphkit: ")[2]

    assert remove("x") == "there is no schedule x; the store has none\n"
    add(store)
    add(store, name="nightly", cron="0 2 * * *")
    assert remove("reprot") == "there is no schedule reprot; did you mean report?\n"
    assert remove("x") == "there is no schedule x; there are nightly, report\n"


def test_a_schedule_is_not_among_the_threads(tmp_path):
    store = tmp_path / "runs"
    add(store)
    target = tmp_path / "copy"
    assert read_json("threads", store) == []
    assert read_json("stats", store)["threads"] == 0
    pruned = graphkit("prune", store, "--idle", "0s", "--yes")
    assert pruned.out == "no thread is idle for 0s\n"
    assert graphkit("copy", store, "--to", target).code == 0
    with FileSystemSaver(target) as saver:
        (schedule,) = schedules.find_all(saver)
    assert schedule.name == "report"


def test_what_is_wrong_is_said(tmp_path):
    store = tmp_path / "runs"
    for done, text in (
        (add(store, cron="0 9 * *"), "five fields"),
        (add(store, cron="61 9 * * *"), "Bad minute"),
        (add(store, "--timezone", "Europe/Zurch"), "did you mean 'Europe/Zurich'"),
        (add(store, name=""), "name of a schedule"),
        (add(store, "--input", "[1]"), "JSON object"),
    ):
        assert (done.code in {2, 18}, text in done.err) == (True, True), done.err
    assert not graphkit("schedule", "list", store).out
