"""schedule add, list and remove, and what the other commands show of schedules."""

from graphkit import schedules
from savers import FileSystemSaver
from tests.support.terminal import graphkit, read_json

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


def test_what_is_wrong_is_said(runs):
    for done, text in (
        (add(runs, cron="0 9 * *"), "five fields"),
        (add(runs, "--input", "[1]"), "JSON object"),
    ):
        assert (done.code in {2, 18}, text in done.err) == (True, True), done.err
    assert not runs.exists()
