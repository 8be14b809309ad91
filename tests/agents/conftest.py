"""Fixtures of the tests of agents."""

import asyncio
from textwrap import dedent

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file of the working directory, which is empty at first, and returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="agent.yaml"):
        path = tmp_path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write


IN_TURN = pytest.mark.cell(1, of="run", in_turn=True)
"""The default run takes one of the two ways of a test that is not about sync and async; `sweep(ALL)` takes both."""


@pytest.fixture(params=[pytest.param("run", marks=IN_TURN), pytest.param("arun", marks=IN_TURN)])
def run(request):
    """Runs an agent, in both ways."""

    def run(agent, *arguments):
        if request.param == "run":
            return agent.run(*arguments)
        return asyncio.run(agent.arun(*arguments))

    return run
