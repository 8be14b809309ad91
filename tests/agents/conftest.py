"""Fixtures of the tests of agents."""

import asyncio
from textwrap import dedent

import pytest

from tests.support.sweeps import in_turn


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file of the working directory, which is empty at first, and returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="agent.yaml"):
        path = tmp_path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write


@pytest.fixture(params=in_turn(["run", "arun"], "run"))
def run(request):
    """Runs an agent: the default run takes one of the two ways, and `sweep(ALL)` both."""

    def run(agent, *arguments):
        if request.param == "run":
            return agent.run(*arguments)
        return asyncio.run(agent.arun(*arguments))

    return run
