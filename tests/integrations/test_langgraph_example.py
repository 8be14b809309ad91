"""The LangGraph example is killed, resumed and answered, and `graphkit` reads its history."""

import signal
from pathlib import Path

import pytest

from savers import FileSystemSaver
from tests.support.terminal import graphkit, read_json

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "langgraph_review.py"


@pytest.fixture
def run(launcher):
    """A function that runs the example until it ends."""

    def run(folder, *options):
        return launcher.run(EXAMPLE, *options, cwd=folder)

    return run


def test_it_is_killed_and_goes_on_and_is_answered(run, tmp_path):
    killed = run(tmp_path, "--kill-after", "2")
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "writing: summary\nwriting: figures\n")
    history = read_json("history", tmp_path / "runs", "report")
    assert [(row["node"], row["next"]) for row in history[:2]] == [("write", "langgraph:write")] * 2

    resumed = run(tmp_path)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert resumed.stdout == "writing: risks\nwriting: advice\napprove 4 sections on the mill?\n"
    asked = run(tmp_path)
    assert asked.stdout == "approve 4 sections on the mill?\n"
    assert run(tmp_path, "--answer", "yes").stdout == "the report is approved\n"

    listed = graphkit("history", tmp_path / "runs", "report").out
    for word in ("write", "review", "__END__"):
        assert word in listed
    assert "report" in graphkit("threads", tmp_path / "runs").out
    assert FileSystemSaver(tmp_path / "runs").verify().ok
