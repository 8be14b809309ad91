"""The table of the databases has a figure in each cell that can have one, with little work."""

import pytest

pytest.importorskip("langgraph.checkpoint.sqlite")
pytest.importorskip("langgraph.checkpoint.postgres")

from benchmarks import databases
from benchmarks.peers.bench import QUICK
from benchmarks.peers.postgres import PROGRAMS


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
    databases.main(make_folder, keys=["bytes", "delete"], rounds=1, sizes=QUICK)
    fast, durable = read_tables(capsys.readouterr().out)
    assert [row[0] for row in fast[1:]] == ["`bytes`", "`delete`"]
    assert [row[0] for row in durable[1:]] == ["`delete`"]
    assert {"SQLite, API", "PostgreSQL, API", "SqliteSaver", "PostgresSaver"} <= set(fast[0])
    assert {"SqliteSaver FULL", "PostgresSaver, fsync"} <= set(durable[0])
    assert all(cell for row in [*fast, *durable] for cell in row[2:])
