"""How many statements the operations of a SQL saver take: each is a round trip on PostgreSQL."""

from functools import partial

import pytest

from graphkit import END, Checkpoint, RunnableConfig
from graphkit.saver_kit import FrozenList
from graphkit.testing import made
from savers import PostgresSaver
from tests.support.databases import MOST_NUMBERS
from tests.support.statements import StatementCounter

CONFIG = RunnableConfig("t")


def make_checkpoint(number, **options):
    options.setdefault("metadata", {"step": number, "source": "loop"})
    options.setdefault("next_node_id", "chat")
    return Checkpoint(node_id="chat", state={"n": number}, **options)


def fill(saver, count, thread="t"):
    checkpoints = [make_checkpoint(number) for number in range(count)]
    for checkpoint in checkpoints:
        saver.put(RunnableConfig(thread), checkpoint)
    return checkpoints


def find_steps(saver, step):
    return [info.metadata["step"] for info in saver.search({"step": step})]


def test_a_put_on_postgres_is_one_round_trip(server, schema, monkeypatch):
    with PostgresSaver(server.connection_string, schema=schema) as saver:
        counter = StatementCounter(saver, monkeypatch)

        def count(number, **options):
            checkpoint = make_checkpoint(number, **options)
            return counter.count(lambda: saver.put(CONFIG, checkpoint))

        # The first one looks whether there is a history.
        assert count(0) == 2
        assert {count(number) for number in range(1, 200)} == {1}
        assert count(200, next_node_id=END) == 1
        with saver.run_lock(CONFIG):
            assert count(201) == 1
            assert count(202) == 1
        assert [info.metadata["step"] for info in saver.history(CONFIG)] == [*range(202, -1, -1)]


def test_metadata_are_found_by_each_of_many_numbers(open_saver):
    saver = open_saver()
    fill(saver, 30, "long")
    fill(saver, 4, "short")
    for number in (0, MOST_NUMBERS - 1, MOST_NUMBERS, MOST_NUMBERS + 1, 29):
        assert find_steps(open_saver(), number) == [number] * (2 if number < 4 else 1)
    assert saver.search({"step": 30}) == []
    # A writer that knows nothing of the history counts again.
    again = open_saver()
    for number in range(30, 60):
        again.put(RunnableConfig("long"), make_checkpoint(number))
    for number in (29, 30, 45, 59):
        assert find_steps(saver, number) == [number]


def test_a_search_reads_only_histories_that_have_all_terms(open_saver, monkeypatch):
    saver = open_saver()
    for number in range(5):
        fill(saver, number + 1, f"t{number}")
    other = make_checkpoint(3, metadata={"step": 3, "source": "input"})
    saver.put(RunnableConfig("other"), other)
    fresh = open_saver()
    fresh.threads()
    counter = StatementCounter(fresh, monkeypatch)
    found = []

    def search(source):
        found[:] = fresh.search({"step": 3, "source": source})

    # One statement finds the histories, and one opens each.
    assert counter.count(lambda: search("loop")) == 1 + 2
    assert [info.thread_id for info in found] == ["t3", "t4"]
    assert [info.metadata["step"] for info in found] == [3, 3]
    assert counter.count(lambda: search(None)) == 1
    assert found == []


def test_a_search_with_a_limit_opens_no_more_histories_than_wanted(open_saver, monkeypatch):
    saver = open_saver()
    for number in range(20):
        fill(saver, 2, f"t{number}")
    fresh = open_saver()
    fresh.threads()
    counter = StatementCounter(fresh, monkeypatch)
    assert counter.count(lambda: fresh.search({"step": 1}, limit=3)) == 1 + 3


def grow(saver, count):
    """Put checkpoints whose list grows; return their ids."""
    messages = FrozenList()
    ids = []
    for number in range(count):
        messages = FrozenList([*messages, f"message {number} " * 10])
        checkpoint = Checkpoint(node_id="chat", next_node_id="chat", state={"messages": messages})
        saver.put(CONFIG, checkpoint)
        ids.append(checkpoint.id)
    return ids


def test_reading_takes_few_statements_however_long_the_history_is(open_saver, monkeypatch):
    ids = grow(open_saver(), 1500)

    def count(read):
        saver = open_saver()
        saver.get(RunnableConfig("other"))
        return StatementCounter(saver, monkeypatch).count(partial(read, saver))

    def read_past(saver):
        assert len(saver.get(RunnableConfig("t", ids[700])).state["messages"]) == 701

    def read_absent(saver):
        assert saver.get(RunnableConfig("t", "absent")) is None

    def read_latest(saver):
        assert len(saver.get(CONFIG).state["messages"]) == 1500

    def read_history(saver):
        assert [info.id for info in saver.history(CONFIG)] == ids[::-1]

    def read_recent(saver):
        assert [info.id for info in saver._recent(CONFIG, 10)] == ids[:-11:-1]

    saver = open_saver()
    # A read on SQLite waits for no server, and little memory at once costs less time.
    more = saver.size("t") // saver._database.read_size
    # Of the whole history, more is read with each statement.
    limits = {read_latest: 3 + more, read_past: 4 + more, read_absent: 2, read_history: 6 + more, read_recent: 1}
    found = {read: count(read) for read in limits}
    assert all(found[read] <= limits[read] for read in limits), found


@pytest.mark.requirement("H33", "P85")
def test_a_cold_read_of_the_latest_state_does_not_grow_with_the_history(open_saver, monkeypatch):
    writer = open_saver()
    document = "document " * 1000
    for number in range(2000):
        writer.put(CONFIG, made({"document": document, "n": number}))
        if number in {300, 1999}:
            reader = open_saver()
            reader.threads()  # opens the database
            counter = StatementCounter(reader, monkeypatch)
            assert counter.count(lambda reader=reader: reader.get(CONFIG).state["document"]) <= 4
            # The state, and between its parts what is cheaper read than left out.
            assert counter.read_size < 6 * len(document)
    assert writer.size("t") > 15 * len(document)
