"""Pending writes that no reader could use are refused; failures, and times in interrupts, may be anything."""

from datetime import UTC, datetime

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
from tests.support.sweeps import ALL
from tests.support.terminal import graphkit as command

pytestmark = pytest.mark.sweep(ALL)

T = RunnableConfig("t")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
GOOD = {"node_id": "a", "when": "inside", "payload": "why?", "metadata": {}, "created_at": NOW}


@pytest.mark.parametrize("words", [("threads",), ("show", "t"), ("interrupts",)])
def test_the_command_line_shows_what_has_no_time_and_no_reason(words, tmp_path):
    with FileSystemSaver(tmp_path / "store", fsync="never") as saver:
        for thread in ("t", "u"):
            saver.put(RunnableConfig(thread), Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
        saver.put_writes(T, {"interrupt:i": GOOD, "interrupt:j": {**GOOD, "created_at": 1}})
        saver.put_writes(RunnableConfig("u"), {"failure": {}})

    done = command(words[0], tmp_path / "store", *words[1:])

    assert done.code == 0
    assert done.err == ""
    assert "why?" in done.out


def test_what_is_no_failure_and_no_cancel_is_none_in_a_summary(saver):
    saver.put(T, Checkpoint(node_id="a", next_node_id="b", state={}))
    saver.put_writes(T, {"failure": "text", "cancelled": "text"})
    summary = saver.summary(T)
    assert (summary.failure, summary.cancellation) == (None, None)
