"""Savers on both databases, and what the tests do with them."""

import pytest

from graphkit import Checkpoint, RunnableConfig

every_store = pytest.mark.parametrize("open_saver", ["files", "sqlite", "postgres"], indirect=True)


def names_of(saver):
    return saver._database.names


def run_sql(saver, sql, parameters=()):
    """Execute one statement, with the names of the tables in braces."""
    return saver._database.write(sql.format(**names_of(saver)._asdict()), parameters)


def fill(saver, count, thread="t"):
    """Put checkpoints of a growing list, some with pending writes; and some in another namespace."""
    items = []
    for number in range(count):
        items = [*items, f"item {number}"]
        put(saver, {"items": items, "number": number}, thread)
        if number % 3 == 0:
            saver.put_writes(RunnableConfig(thread), {"key": number})
    put(saver, {"x": 1}, thread, "sub")
    return items


def put(saver, state, thread="t", namespace=""):
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state=state, metadata={"n": len(state)})
    saver.put(RunnableConfig(thread, checkpoint_ns=namespace), checkpoint)
    return checkpoint
