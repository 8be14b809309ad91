"""An action in two forms: sync runs call it, async runs await it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict

import pytest

from graphkit import END, START, RetryPolicy, StateGraph
from graphkit._plan.topology import TwoForms


class Outcome(TypedDict):
    done: bool


FAST = RetryPolicy(max_attempts=2, initial_delay=0)


def make_action(failures=0):
    used = []

    def note(form):
        used.append(form)
        if len(used) <= failures:
            raise OSError(form)
        return {"done": True}

    async def acall(state):
        asyncio.get_running_loop()
        return note("async")

    return TwoForms(lambda state: note("sync"), acall), used


def make_graph(action, **options):
    graph = StateGraph(Outcome)
    graph.add_node("act", action, **options)
    graph.add_edge(START, "act")
    graph.add_edge("act", END)
    return graph


def run_both(graph):
    assert graph.invoke({})["done"]
    assert asyncio.run(graph.ainvoke({}))["done"]


@pytest.mark.parametrize("options", [{}, {"timeout": 60}, {"retry": FAST}, {"retry": FAST, "timeout": 60}])
def test_each_run_uses_its_form(options):
    action, used = make_action()
    graph = make_graph(action, **options).compile()
    assert not graph.topology.asynchronous
    run_both(graph)
    assert used == ["sync", "async"]


def test_the_asynchronous_form_is_tried_again():
    action, used = make_action(failures=1)
    asyncio.run(make_graph(action, retry=FAST).compile().ainvoke({}))
    assert used == ["async", "async"]


def test_the_asynchronous_form_is_cancelled_at_its_timeout():
    cancelled = []

    async def wait_forever(state):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    graph = make_graph(TwoForms(lambda state: {"done": True}, wait_forever), timeout=0.01).compile()
    with pytest.raises(Exception, match="longer than its timeout"):
        asyncio.run(graph.ainvoke({}))
    assert cancelled == [True]


def test_an_asynchronous_hook_awaits_and_a_synchronous_one_calls():
    async def ahook(node_id, state, config, call):
        return await call()

    def hook(node_id, state, config, call):
        return {"done": call()["done"]}

    for wrap, expected in ((ahook, "async"), (hook, "sync")):
        action, used = make_action()
        graph = make_graph(action)
        graph.add_wrap_call_node_hook("act", wrap)
        asyncio.run(graph.compile().ainvoke({}))
        assert used == [expected]


def test_branches_await_it_at_the_same_time():
    barrier = asyncio.Barrier(2)

    async def meet(state):
        async with asyncio.timeout(60):
            await barrier.wait()
        return {}

    graph = StateGraph(Outcome)
    for name in ("left", "right"):
        graph.add_node(name, TwoForms(lambda state: pytest.fail("called on a thread"), meet))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    assert asyncio.run(graph.compile().ainvoke({"done": True}))["done"]


def test_an_executor_runs_the_synchronous_form():
    action, used = make_action()
    with ThreadPoolExecutor(1) as executor:
        run_both(make_graph(action, executor=executor).compile())
    assert used == ["sync", "sync"]
