"""An agent under SIGKILL: no recorded model call and no recorded tool call is made again; see killing.py."""

import os
import random
from functools import partial

import pytest

from tests.agents import chat_server, killing
from tests.agents.chat_server import Reply
from tests.agents.killing import MODEL_CALLS, REPLIES, TOOL_CALLS, Killed, logged, transcript_of

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX"), pytest.mark.requirement("P82")]


@pytest.fixture(scope="module", params=["sync", "stream", "async", "nested sync"])
def program(request, launcher):
    with killing.start(launcher, request.param) as program:
        yield program


@pytest.fixture(scope="module")
def undisturbed(program, tmp_path_factory):
    """The number of store calls and the transcript of a run that nothing disturbs."""
    directory = tmp_path_factory.mktemp("undisturbed") / "t"
    assert not program.run(directory)
    assert sorted(logged(directory)) == sorted(MODEL_CALLS + TOOL_CALLS)
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


# The model is a server of chat completions, which counts the calls


def number_of(request):
    """Which reply of the script a request asks for."""
    return sum(message["role"] == "assistant" for message in request["messages"])


def answer(request):
    reply = REPLIES[number_of(request)]
    return Reply({"role": "assistant", "content": reply} if isinstance(reply, str) else reply)


@pytest.mark.parametrize("how", ["sync", "stream", "async"])
def test_at_random_times_no_recorded_call_reaches_the_server_again(tmp_path, launcher, how, sweep):
    with chat_server.start(answer) as server, killing.start(launcher, how, server.base_url) as program:

        def made_in(directory):
            return [f"model {number_of(request)}" for request in server.requests] + logged(directory)

        undisturbed = tmp_path / "undisturbed"
        assert not program.run(undisturbed)
        assert sorted(made_in(undisturbed)) == sorted(MODEL_CALLS + TOOL_CALLS)
        expected = transcript_of(undisturbed)

        wanted = sweep.count(10, 1)  # 30 for the three ways to run
        chance = random.Random(f"protocol {how}")
        kills = 0
        for number in range(4 * wanted):
            directory = tmp_path / f"{number}"
            server.requests.clear()
            killed = Killed(program, directory, expected, partial(made_in, directory))
            for _ in range(4):  # not until it ends: a busy machine may never get that far
                kills += killed.run("timer", chance.uniform(0.02, 0.3))
            killed.finish()
            if number >= wanted - 1 and kills >= wanted:
                break
        assert kills >= wanted
