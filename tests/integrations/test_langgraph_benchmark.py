"""Every row of the table of LangGraph's checkpointers measures something, with little work."""

from contextlib import closing

import pytest

pytest.importorskip("langgraph.checkpoint.sqlite")

from benchmarks import langgraph_savers
from benchmarks.peers.bench import QUICK, Bench
from benchmarks.peers.contenders import CONTENDERS

MEMORY, OFF, _, NEVER, ALWAYS = CONTENDERS


def sample(key, contender, make_folder):
    (row,) = [row for row in langgraph_savers.make_rows(QUICK) if row.key == key]
    with closing(Bench(contender, QUICK, make_folder)) as bench:
        row.sample(bench)
    return row


def read_table(output):
    """The cells of the table in an output, row by row."""
    lines = [line for line in output.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_has_the_chosen_rows_and_their_ratios(make_folder, capsys):
    langgraph_savers.main(make_folder, keys=["bytes", "newest"], rounds=2, sizes=QUICK)
    printed = capsys.readouterr().out
    head, *rows = read_table(printed)
    *_, never_title, always_title = head
    assert never_title == "never / OFF"
    assert always_title == "always / FULL"
    names = [contender.name for contender in CONTENDERS]
    assert head[2:-2] == names
    first, second = rows
    assert first[0] == "`bytes`"
    assert second[0] == "`newest`"
    for row in rows:
        off, full, never, always = map(float, row[3:-2])
        never_to_off = float(row[-2])
        always_to_full = float(row[-1])
        assert never_to_off == pytest.approx(never / off, rel=0.1)
        assert always_to_full == pytest.approx(always / full, rel=0.1)
