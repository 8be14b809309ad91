"""States that are longer than a statement may be."""

import os

from graphkit import RunnableConfig
from graphkit.testing import made
from savers import PostgresSaver
from tests.support.checkpoints import list_states
from tests.support.databases import PostgresSession, RowLogBytes, limit_part, limit_statement

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
