"""An agent under SIGKILL whose model is a server of chat completions: the server counts the calls; see killing.py."""

import os
import random

import pytest

from tests.agents import chat_server, killing
from tests.agents.chat_server import Reply
from tests.agents.killing import MODEL_CALLS, REPLIES, TOOL_CALLS, Killed, logged, transcript_of

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")


def number_of(request):
    """Which reply of the script a request asks for."""
    return sum(message["role"] == "assistant" for message in request["messages"])


def answer(request):
    reply = REPLIES[number_of(request)]
    return Reply({"role": "assistant", "content": reply} if isinstance(reply, str) else reply)


@pytest.mark.requirement("P82")
@pytest.mark.parametrize("how", ["sync", "stream", "async"])
def test_at_random_times_no_recorded_call_reaches_the_server_again(tmp_path, launcher, how, sweep):
    chance = random.Random(f"protocol {how}")
    with chat_server.start(answer) as server, killing.start(launcher, how, server.base_url) as program:

        def made_in(directory):
            return [f"model {number_of(request)}" for request in server.requests] + logged(directory)

        undisturbed = tmp_path / "undisturbed"
        assert not program.run(undisturbed)
        assert sorted(made_in(undisturbed)) == sorted(MODEL_CALLS + TOOL_CALLS)
        expected = transcript_of(undisturbed)

        kills = 0
        wanted = sweep.count(10, 1)  # 30 for the three ways to run
        for number in range(4 * wanted):
            directory = tmp_path / f"{number}"
            server.requests.clear()
            killed = Killed(program, directory, expected, lambda directory=directory: made_in(directory))
            for _ in range(4):  # not until it ends: a busy machine may never get that far
                kills += killed.run("timer", chance.uniform(0.02, 0.3))
            killed.finish()
            if kills >= wanted:
                break
        assert kills >= wanted
