"""States that are longer than a statement may be."""

import os

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import PostgresSaver
from tests.support.databases import PostgresSession, RowLogBytes, limit_part, limit_statement

T = RunnableConfig("t")
RECORD = 1 << 16
"""A long record in these tests, in place of 1 MB or 750 MB."""
STATEMENT = 3 * RECORD
"""The most that one statement inserts, if it inserts several records."""


def count_bytes(values):
    return sum(len(value) for value in values if isinstance(value, bytes))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_long_value_is_in_rows_of_its_own_and_a_long_change_is_not(kind, request, monkeypatch):
    monkeypatch.setattr(RowLogBytes, "max_part", 4 * RECORD)
    open_saver = request.getfixturevalue(f"{kind}_opener")
    text = "".join(f"{number:08}" for number in range(11 * RECORD // 8))
    with open_saver(compression=None) as saver:
        for more in ("", "x" * (5 * RECORD)):
            saver.put(T, Checkpoint(node_id="a", next_node_id="b", state={"text": text + more}))
        frames = saver._database.read(
            f"SELECT length(frame) FROM {saver._database.names.records} WHERE position > 0 ORDER BY position"
        )
        assert [round(length / RECORD) for (length,) in frames] == [4, 4, 3, 0, 5]
    with open_saver() as saver:
        assert [len(checkpoint.state["text"]) for checkpoint in saver.list(T)] == [16 * RECORD, 11 * RECORD]
        assert saver.get(T).state["text"] == text + more
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
            saver.put(T, Checkpoint(node_id="a", next_node_id="b", state=state))
        assert 0 < max(sent) < STATEMENT
        assert [checkpoint.state for checkpoint in saver.list(T)] == states[::-1]
        assert saver.verify().ok
    with PostgresSaver(server.connection_string, schema=schema) as saver:
        assert [checkpoint.state for checkpoint in saver.list(T)] == states[::-1]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_rewrite_reads_what_its_transaction_has_inserted(kind, request, monkeypatch):
    limit_part(monkeypatch, RECORD)
    open_saver = request.getfixturevalue(f"{kind}_opener")
    # Each keyframe names the one before it, for the items that it does not repeat.
    states = [
        {"items": ["y" * 2 * RECORD] * count, "bytes": os.urandom(size * RECORD)}
        for count, size in [(1, 1), (1, 5), (3, 9), (4, 9), (4, 13), (4, 13), (2, 12)]
    ]
    with open_saver(compression=None) as saver:
        for state in states:
            saver.put(T, Checkpoint(node_id="a", next_node_id="b", state=state))
        saver.copy(T, RunnableConfig("copy"))
        saver.compact("copy")
        assert saver.prune("copy", keep_last=5) == 2
    with open_saver() as saver:
        assert [checkpoint.state for checkpoint in saver.list(T)] == states[::-1]
        assert [checkpoint.state for checkpoint in saver.list(RunnableConfig("copy"))] == states[:1:-1]
        assert saver.verify().ok


PART = 1 << 20
"""A rewrite inserts its records in parts of this size."""


def test_a_rewrite_reads_keyframes_that_it_has_not_inserted_yet(open_saver):
    # Each keyframe names the one before it, and all of them are in one part.
    items = [f"{number:04}" * 400 for number in range(300)]
    states = [{"items": items[:count]} for count in range(300)]
    copy = RunnableConfig("copy")
    with open_saver() as saver:
        for state in states:
            saver.put(T, Checkpoint(node_id="a", next_node_id="b", state=state))
        latest = T.with_check_point_id(saver.get(T).id)
        saver.put(latest, Checkpoint(node_id="a", next_node_id="b", state=states[-1]))
        assert saver.size("t") < PART
        saver.copy(T, copy)
        assert saver.compact("t") > 0
        assert saver.prune("copy", keep_last=200) == 100
    with open_saver() as saver:
        assert [checkpoint.state for checkpoint in saver.list(T)] == states[::-1]
        assert [checkpoint.state for checkpoint in saver.list(copy)] == states[:99:-1]
