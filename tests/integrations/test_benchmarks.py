"""The tables of the benchmarks have a figure in each cell that can have one, with little work."""

import pytest

pytest.importorskip("langgraph.checkpoint.sqlite")
pytest.importorskip("langgraph.checkpoint.postgres")

from benchmarks import databases, langgraph_savers
from benchmarks.peers.bench import QUICK
from benchmarks.peers.contenders import CONTENDERS
from benchmarks.peers.postgres import PROGRAMS


def read_tables(output):
    """The cells of the tables in an output, row by row."""
    tables = []
    for line in output.splitlines():
        if line.startswith("| row"):
            tables.append([])
        if line.startswith("| "):
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    return tables


def test_the_table_of_langgraphs_savers_has_the_chosen_rows_and_their_ratios(make_folder, capsys):
    langgraph_savers.main(make_folder, keys=["bytes", "newest"], rounds=2, sizes=QUICK)
    ((head, *rows),) = read_tables(capsys.readouterr().out)
    names = [contender.name for contender in CONTENDERS]

    assert head[2:] == [*names, "never / OFF", "always / FULL"]
    assert [row[0] for row in rows] == ["`bytes`", "`newest`"]

    for row in rows:
        off, full, never, always, never_to_off, always_to_full = map(float, row[3:])
        assert never_to_off == pytest.approx(never / off, rel=0.1)
        assert always_to_full == pytest.approx(always / full, rel=0.1)


@pytest.mark.skipif(not PROGRAMS, reason="PostgreSQL is not installed")
def test_every_column_of_the_databases_has_figures(make_folder, capsys):
    databases.main(make_folder, keys=["bytes", "delete"], rounds=1, sizes=QUICK)
    fast, durable = read_tables(capsys.readouterr().out)
    assert [row[0] for row in fast[1:]] == ["`bytes`", "`delete`"]
    assert [row[0] for row in durable[1:]] == ["`delete`"]
    assert {"SQLite, API", "PostgreSQL, API", "SqliteSaver", "PostgresSaver"} <= set(fast[0])
    assert {"SqliteSaver FULL", "PostgresSaver, fsync"} <= set(durable[0])
    assert all(cell for row in [*fast, *durable] for cell in row[2:])
