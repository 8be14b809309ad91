"""Agents in agents under SIGKILL: as a step, and asked by a tool. No recorded call is made again."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver
from tests.agents.killing import ROOT, Program, logged
from tests.agents.nested_program import CALLS, THREAD
from tests.support.agents import messages_in, transcript

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")


@pytest.fixture(scope="module", params=["sync", "async"])
def program(request):
    command = [sys.executable, "-m", "tests.agents.nested_program", request.param]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        yield Program(process)
        process.stdin.close()


@pytest.fixture(scope="module")
def undisturbed(program, tmp_path_factory):
    """The number of store calls and the transcripts of a run that nothing disturbs."""
    directory = tmp_path_factory.mktemp("undisturbed") / "t"
    assert not program.run(directory)
    assert Counter(logged(directory)) == Counter(CALLS)
    return int((directory / "calls").read_text()), transcripts(directory)


def transcripts(directory):
    """The conversations of all threads and namespaces at their ends."""
    saver = FileSystemSaver(directory / "runs")
    configs = [
        RunnableConfig(thread, checkpoint_ns=namespace)
        for thread in saver.threads()
        for namespace in saver.namespaces(thread)
    ]
    return sorted((transcript(saver.get(config).state) for config in configs), key=str)


def recorded(directory):
    """The calls that the store has, in the words of the log."""
    saver = FileSystemSaver(directory / "runs")
    found = set()
    for thread in saver.threads():
        name = "model" if thread == THREAD else "advice"
        for namespace in saver.namespaces(thread):
            found |= recorded_in(saver, RunnableConfig(thread, checkpoint_ns=namespace), name)
    return found


def recorded_in(saver, config, name):
    found = set()
    for checkpoint in saver.list(config):
        messages = checkpoint.state.get("messages", ())
        replies = sum(message["role"] == "assistant" for message in messages)
        found |= {f"{name} {number}" for number in range(replies)}
        writes = saver.get_writes(config.replace(checkpoint_id=checkpoint.id))
        found |= {message["tool_call_id"] for message in messages_in([messages, writes]) if message["role"] == "tool"}
    return found


@pytest.mark.requirement("P82")
@pytest.mark.parametrize("when", ["before", "after"])
def test_nested_agents_killed_at_any_store_call_repeat_nothing_recorded(tmp_path, program, undisturbed, when, sweep):
    calls, expected = undisturbed
    assert calls > 15
    kills = 0
    for call in sweep.some(range(1, calls), 4):
        directory = tmp_path / f"{call}"
        kills += program.run(directory, when, call)
        known = recorded(directory)
        before = Counter(logged(directory))
        assert not program.run(directory)
        repeated = known.intersection(Counter(logged(directory)) - before)
        assert repeated == set(), f"recorded, and made again: {repeated}"
        assert set(logged(directory)) == CALLS
        assert transcripts(directory) == expected
    assert kills >= sweep.count(calls - 4, 2)
