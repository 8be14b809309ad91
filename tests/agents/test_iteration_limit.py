"""max_iterations: how long a model may go on calling tools."""

import pytest

from graphkit import MaxIterationsError
from graphkit.agents import AgentBuilder, AgentConfig, load_agent
from graphkit.errors import AgentConfigurationError
from savers import MemorySaver
from tests.agents import application
from tests.support.agents import APP, call, calling

THREAD = "customer"


class Greedy:
    """Calls the tool at each request, until the conversation says enough."""

    def __init__(self):
        self.requests = 0

    def __call__(self, messages):
        self.requests += 1
        if messages[-1]["content"] == "enough":
            return "I stop."
        return calling(call("look", number=self.requests))


def look(number: int) -> str:
    """Look."""
    return f"result {number}"


def make_builder(model):
    return AgentBuilder().with_chat(model, name="chat").with_tools(look)


def roles(agent):
    return [message["role"] for message in agent.get_state(THREAD).state["messages"]]


def test_a_run_stops_at_the_limit_and_the_next_message_goes_on_with_what_it_has_done(run):
    model = Greedy()
    agent = make_builder(model).with_max_iterations(3).with_checkpointer(MemorySaver()).build()
    with pytest.raises(MaxIterationsError, match="its max_iterations, 3,") as caught:
        run(agent, "look around", THREAD)
    assert caught.value.thread_id == THREAD
    assert model.requests == 2
    assert roles(agent) == ["user", "assistant", "tool", "assistant"]
    state = run(agent, "enough", THREAD)
    assert state["messages"][-1]["content"] == "I stop."
    assert roles(agent) == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    with pytest.raises(MaxIterationsError):  # each input may execute as many nodes
        run(agent, "look again", THREAD)
    assert model.requests == 5


def test_the_calls_of_one_message_count_once():
    replies = iter([calling(*(call("look", number=number) for number in range(10))), "seen"])
    agent = make_builder(lambda messages: next(replies)).with_max_iterations(3).build()
    assert agent.run("look")["messages"][-1]["content"] == "seen"


def test_an_agent_in_a_step_counts_its_own_nodes_to_the_limit_of_the_outer_one():
    model = Greedy()
    inner = make_builder(model).with_max_iterations(2).build()
    outer = AgentBuilder().with_step("inner", inner).with_max_iterations(5).build()
    with pytest.raises(MaxIterationsError, match="its max_iterations, 5,"):
        outer.run({"messages": [{"role": "user", "content": "look"}]})
    assert model.requests == 3


def test_a_wrong_limit_is_refused():
    for limit in (0, True, "3"):
        with pytest.raises(AgentConfigurationError, match=r"^max_iterations: must be "):
            AgentBuilder().with_max_iterations(limit)
        with pytest.raises(AgentConfigurationError, match=r"^max_iterations: must be "):
            AgentConfig(steps=[{"type": "llm", "model": application.echo}], max_iterations=limit)


@pytest.mark.parametrize("agent", ["agent: {max_iterations: 3, steps: [LLM]}", "file: inner.yaml"])
def test_a_limit_that_would_have_no_effect_is_refused(agent, write):
    step = f"{{type: llm, model: '{APP}:echo'}}"
    write(f"max_iterations: 3\nsteps: [{step}]\n", "inner.yaml")
    path = write(f"steps:\n  - {step}\n  - type: agent\n    {agent.replace('LLM', step)}\n")
    with pytest.raises(AgentConfigurationError, match="set that of the outer agent") as caught:
        load_agent(path)
    assert (caught.value.line, caught.value.key) == (3, "steps[1]")
