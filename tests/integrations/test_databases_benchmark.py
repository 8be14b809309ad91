"""The table of the databases has a figure in each cell that can have one, with little work."""

from unittest.mock import Mock

import pytest

pytest.importorskip("langgraph.checkpoint.sqlite")
pytest.importorskip("langgraph.checkpoint.postgres")

from benchmarks import databases
from benchmarks.peers import bench as benches
from benchmarks.peers.bench import QUICK
from benchmarks.peers.postgres import PROGRAMS


@pytest.fixture(autouse=True)
def leave_the_machine_and_the_collector_alone(monkeypatch):
    monkeypatch.setattr(benches.os, "sync", lambda: None)
    monkeypatch.setattr(benches, "gc", Mock())


@pytest.fixture
def make_folder(tmp_path):
    numbers = iter(range(1000))

    def make():
        folder = tmp_path / f"store-{next(numbers)}"
        folder.mkdir()
        return folder

    return make


def read_tables(output):
    tables = []
    for line in output.splitlines():
        if line.startswith("| row"):
            tables.append([])
        if line.startswith("| "):
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    return tables


@pytest.mark.skipif(not PROGRAMS, reason="PostgreSQL is not installed")
def test_every_column_that_is_there_has_figures(make_folder, capsys):
    databases.main(make_folder, keys=["bytes", "past-cold", "delete"], rounds=1, sizes=QUICK)
    fast, durable = read_tables(capsys.readouterr().out)
    assert [row[0] for row in fast[1:]] == ["`bytes`", "`past-cold`", "`delete`"]
    assert [row[0] for row in durable[1:]] == ["`delete`"]
    assert {"SQLite, API", "PostgreSQL, API", "SqliteSaver", "PostgresSaver"} <= set(fast[0])
    assert {"SqliteSaver FULL", "PostgresSaver, fsync"} <= set(durable[0])
    assert all(cell for row in [*fast, *durable] for cell in row[2:])


def test_a_contender_that_is_missing_is_left_out_with_a_message(make_folder, capsys, monkeypatch):
    reasons = {"own-sqlite": None, "sqlite": "LangGraph is not there"}
    explain = lambda contender: reasons.get(contender.kind, "it is not asked for")  # noqa: E731 - a method
    monkeypatch.setattr(databases.Contender, "explain_missing", explain)
    databases.main(make_folder, keys=["bytes"], rounds=1, sizes=QUICK)
    printed = capsys.readouterr()
    assert "SqliteSaver is left out: LangGraph is not there" in printed.err
    ((head, row),) = read_tables(printed.out)
    assert head[2:] == ["SQLite, API"]
    assert float(row[2]) > 0
