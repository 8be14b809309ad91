"""An agent under SIGKILL: no recorded model call and no recorded tool call is made again; see killing.py."""

import os
import random

import pytest

from tests.agents import killing
from tests.agents.killing import MODEL_CALLS, TOOL_CALLS, Killed, transcript_of

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX"), pytest.mark.requirement("P82")]


@pytest.fixture(scope="module", params=["sync", "stream", "async", "nested sync"])
def program(request, launcher):
    with killing.start(launcher, request.param) as program:
        yield program


@pytest.fixture(scope="module")
def undisturbed(program, tmp_path_factory):
    """The number of store calls and the transcript of a run that nothing disturbs."""
    directory = tmp_path_factory.mktemp("undisturbed") / "t"
    program.server.requests.clear()
    assert not program.run(directory)
    assert sorted(program.calls_of(directory)) == sorted(MODEL_CALLS + TOOL_CALLS)
    return int((directory / "calls").read_text()), transcript_of(directory)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_store_call_nothing_recorded_is_made_again(tmp_path, program, undisturbed, when, sweep):
    calls, expected = undisturbed
    assert calls > 20
    kills = 0
    for call in sweep.some(range(1, calls), 5):
        killed = Killed(program, tmp_path / f"{call}", expected)
        kills += killed.run(when, call)
        killed.finish()
    # Records of parallel calls are combined if they come together, so the number of store calls varies.
    assert kills >= sweep.count(20, 3)


def test_killed_at_random_times(tmp_path, program, undisturbed, sweep):
    _, expected = undisturbed
    wanted = sweep.count(10, 1)  # 40 for the four ways to run
    chance = random.Random("kills")
    kills = 0
    for number in range(4 * wanted):
        killed = Killed(program, tmp_path / f"{number}", expected)
        for _ in range(4):  # not until it ends: a busy machine may never get that far
            kills += killed.run("timer", chance.uniform(0.02, 0.3))
        killed.finish()
        if number >= wanted - 1 and kills >= wanted:
            break
    assert kills >= wanted
