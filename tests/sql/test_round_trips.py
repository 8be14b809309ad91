"""How many statements the operations of a SQL saver take: each is a round trip on PostgreSQL."""

import os
from functools import partial

import pytest

from graphkit import END, Checkpoint, RunnableConfig
from graphkit.saver_kit import FrozenList
from graphkit.testing import made
from savers import PostgresSaver
from tests.support.checkpoints import list_states
from tests.support.databases import MOST_NUMBERS, PostgresSession, RowLogBytes, limit_part, limit_statement
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


# States that are longer than a statement may be


RECORD = 1 << 16
"""A long record in these tests, in place of 1 MB or 750 MB."""
STATEMENT = 3 * RECORD
"""The most that one statement inserts, if it inserts several records."""


def count_bytes(values):
    return sum(len(value) for value in values if isinstance(value, bytes))


def put(saver, state):
    saver.put("t", made(state))


def lengths_of_records(saver):
    """How many long records each row but the first has room for."""
    records = saver._database.names.records
    frames = saver._database.read(f"SELECT length(frame) FROM {records} WHERE position > 0 ORDER BY position")
    return [round(length / RECORD) for (length,) in frames]


def test_a_long_value_is_in_rows_of_its_own_and_a_long_change_is_not(open_saver, monkeypatch):
    monkeypatch.setattr(RowLogBytes, "max_part", 4 * RECORD)
    count = 11 * RECORD // 8
    text = "".join(f"{number:08}" for number in range(count))
    longer = text + "x" * (5 * RECORD)
    states = [{"text": text}, {"text": longer}]
    with open_saver(compression=None) as saver:
        for state in states:
            put(saver, state)
        assert lengths_of_records(saver) == [4, 4, 3, 0, 5]
    with open_saver() as saver:
        assert list_states(saver, "t") == states[::-1]
        latest = saver.get("t")
        assert latest.state["text"] == longer
        assert saver.verify().ok


def test_no_statement_on_postgresql_has_more_bytes_than_the_server_accepts(server, schema, monkeypatch):
    monkeypatch.setattr(RowLogBytes, "max_payload", RECORD)
    limit_statement(monkeypatch, STATEMENT)
    run = PostgresSession.run
    sent = []

    def note(session, sql, parameters=()):
        sent.append(count_bytes(parameters))
        return run(session, sql, parameters)

    monkeypatch.setattr(PostgresSession, "run", note)
    with PostgresSaver(server.connection_string, schema=schema, compression=None) as saver:
        states = [{"bytes": os.urandom(records * RECORD)} for records in (1, 2, 5)]
        for state in states:
            put(saver, state)
        assert 0 < max(sent) < STATEMENT
        assert list_states(saver, "t") == states[::-1]
        assert saver.verify().ok
    with PostgresSaver(server.connection_string, schema=schema) as saver:
        assert list_states(saver, "t") == states[::-1]


def test_a_rewrite_reads_what_its_transaction_has_inserted(open_saver, monkeypatch):
    limit_part(monkeypatch, RECORD)
    # Each keyframe names the one before it, for the items that it does not repeat.
    states = []
    for count, size in [(1, 1), (1, 5), (3, 9), (4, 9), (4, 13), (4, 13), (2, 12)]:
        items = ["y" * 2 * RECORD] * count
        states.append({"items": items, "bytes": os.urandom(size * RECORD)})
    with open_saver(compression=None) as saver:
        for state in states:
            put(saver, state)
        saver.copy("t", "copy")
        saver.compact("copy")
        assert saver.prune("copy", keep_last=5) == 2
    with open_saver() as saver:
        assert list_states(saver, "t") == states[::-1]
        assert list_states(saver, "copy") == states[:1:-1]
        assert saver.verify().ok


PART = 1 << 20
"""A rewrite inserts its records in parts of this size."""


def test_a_rewrite_reads_keyframes_that_it_has_not_inserted_yet(open_saver):
    # Each keyframe names the one before it, and all of them are in one part.
    items = []
    states = []
    with open_saver() as saver:
        for number in range(300):
            state = {"items": [*items]}
            put(saver, state)
            states.append(state)
            items.append(f"{number:04}" * 400)
        latest = saver.get("t")
        saver.put(RunnableConfig("t", latest.id), made(states[-1]))
        assert saver.size("t") < PART
        saver.copy("t", "copy")
        assert saver.compact("t") > 0
        assert saver.prune("copy", keep_last=200) == 100
    with open_saver() as saver:
        assert list_states(saver, "t") == states[::-1]
        assert list_states(saver, "copy") == states[:99:-1]
