"""Predicates, chains, parallel items and choices: nodes and edges made of functions."""

import asyncio
import itertools
import os
import pickle
from contextlib import nullcontext

import pytest

from graphkit import END, GraphResume, NodeExecutionError, interrupt
from graphkit.compat.go_agents import (
    always,
    and_,
    branch_on,
    key_equals,
    key_exists,
    not_,
    or_,
    process_chain,
    process_conditional,
    process_parallel,
)
from graphkit.errors import GraphRunnerError
from savers import MemorySaver
from tests.support.graphs import CONFIG, ConcurrentCalls, invoke, make_chain


def events_of(action, state=None, expected=None):
    """Run an action in a graph; return (type, data) of the events that it posts itself."""
    events = []
    app = in_graph(action, observers=[events.append], saver=MemorySaver())
    with nullcontext() if expected is None else pytest.raises(NodeExecutionError, match=expected):
        asyncio.run(app.ainvoke(state or {}))
    own = [event for event in events if event.type.startswith(("chain.", "step.", "route.", "parallel.", "worker."))]
    return [(event.type, dict(event.data)) for event in own]


def errors_of(events):
    return [data["error"] for _, data in events if "error" in data]


# Predicates


def yes(state):
    return True


def no(state):
    return []


async def later(state):
    return True


@pytest.mark.requirement("G29")
@pytest.mark.parametrize(
    ("predicate", "state", "expected"),
    [
        (always, {}, True),
        (key_exists("k"), {"k": None}, True),
        (key_exists("k"), {}, False),
        (key_equals("k", 1), {"k": 1}, True),
        (key_equals("k", 1), {"k": 2}, False),
        (key_equals("k", None), {}, False),
        (not_(no), {}, True),
    ],
)
def test_predicates(predicate, state, expected):
    assert predicate(state) is expected


@pytest.mark.requirement("G29")
@pytest.mark.parametrize("values", [*itertools.product([yes, no], repeat=3), (yes,), (no,), ()])
def test_truth_tables(values):
    assert and_(*values)({}) is all(value is yes for value in values)
    assert or_(*values)({}) is any(value is yes for value in values)
    assert not_(and_(*values))({}) is or_(*map(not_, values))({})
    # No more is asked than needed.
    assert and_(*values, no, lambda _: 1 / 0)({}) is False
    assert or_(*values, yes, lambda _: 1 / 0)({}) is True


@pytest.mark.requirement("G29")
@pytest.mark.parametrize(
    "make", [not_, and_, or_, lambda p: branch_on((p, "x")), lambda p: process_conditional(p, yes)]
)
def test_a_predicate_neither_is_nor_returns_a_coroutine(make):
    with pytest.raises(TypeError, match="later is asynchronous"):
        make(later)
    with pytest.raises(TypeError):
        make(3)
    with pytest.raises(GraphRunnerError, match="is asynchronous: define it with async def"):
        not_(lambda state: later(state) or None)({})


class Rule:
    """A predicate that is an object, with or without a name."""

    def __init__(self, name):
        self.name = name

    def __call__(self, state):
        return True


@pytest.mark.parametrize(
    ("predicate", "name"), [(yes, "yes"), (Rule("is paid"), "is paid"), (Rule(None), "Rule"), (Rule(7), "Rule")]
)
def test_a_predicate_is_named_by_its_name_its_function_or_its_class(predicate, name):
    assert not_(predicate).name == f"not {name}"


# Branches


@pytest.mark.requirement("G29")
def test_the_first_true_predicate_decides():
    branch = branch_on((key_exists("a"), "A"), (key_exists("b"), "B"), otherwise=END)

    assert [branch({"a": 1, "b": 1}), branch({"b": 1}), branch({})] == ["A", "B", END]
    assert branch.mappings == {"A": "A", "B": "B", END: END}
    assert branch.name == "branch_on(key_exists('a'), key_exists('b'))"
    assert and_(yes, or_(key_equals("b", 1), not_(yes))).name == "(yes and (key_equals('b', 1) or not yes))"
    assert pickle.loads(pickle.dumps(branch))({"b": 1}) == "B"
    assert branch_on(otherwise="x")({}) == "x"

    with pytest.raises(ValueError):
        branch_on()


@pytest.mark.requirement("G26", "G29")
def test_each_answer_is_an_event():
    branch = branch_on((key_exists("a"), "A"), (yes, "B"), (always, "C"))
    assert events_of(lambda state: {"to": branch(state)}) == [
        ("route.evaluate", {"predicate_name": "key_exists('a')", "predicate_result": False, "edge_index": 0}),
        ("route.evaluate", {"predicate_name": "yes", "predicate_result": True, "edge_index": 1}),
    ]


@pytest.mark.requirement("G28")
def test_no_true_predicate_is_an_error():
    branch = branch_on((key_exists("a"), "A"), (no, "B"))
    with pytest.raises(GraphRunnerError, match=r"no valid transition: none of key_exists\('a'\), no is true"):
        branch({})


def in_graph(action, *, saver=None, observers=()):
    return make_chain({}, n=action).compile(checkpoint_saver=saver, observers=observers)


def run(app, given, how):
    return dict(invoke(app, given, how=how))


# Chains


def double(value):
    return {"n": value["n"] * 2}


def with_config(value, config):
    return {"n": value["n"], "thread": config.thread}


async def increment(value):
    return {"n": value["n"] + 1}


def fails(value):
    raise ValueError("no")


@pytest.mark.requirement("G31")
@pytest.mark.parametrize(("last", "how", "n"), [(double, "sync", 12), (increment, "async", 7)])
def test_a_chain_hands_on_what_each_step_returns(last, how, n):
    seen = []
    chain = process_chain(double, last, with_config, on_step=lambda index, value: seen.append((index, value)))
    assert run(in_graph(chain), {"n": 3}, how) == {"n": n, "thread": "t"}
    assert seen == [(0, {"n": 6}), (1, {"n": n}), (2, {"n": n, "thread": "t"})]
    if how == "async":
        with pytest.raises(GraphRunnerError, match="astream"):
            in_graph(chain).invoke({"n": 3})


@pytest.mark.requirement("G31")
@pytest.mark.parametrize(
    "action",
    [
        process_chain(double, increment),
        process_conditional(key_exists("n"), double, fails),
        process_parallel(abs, "items", "n"),
    ],
)
def test_actions_pickle(action):
    state = {"n": 1, "items": [-1]}
    assert called(pickle.loads(pickle.dumps(action)), state) == called(action, state)


@pytest.mark.requirement("G26")
def test_a_chain_posts_events():
    assert events_of(process_chain(double, double), {"n": 1}) == [
        ("chain.start", {"chain": "double > double", "steps": 2}),
        ("step.start", {"chain": "double > double", "step": "double", "index": 0}),
        ("step.complete", {"chain": "double > double", "step": "double", "index": 0, "error": None}),
        ("step.start", {"chain": "double > double", "step": "double", "index": 1}),
        ("step.complete", {"chain": "double > double", "step": "double", "index": 1, "error": None}),
        ("chain.complete", {"chain": "double > double", "steps": 2, "error": None}),
    ]

    failed = events_of(process_chain(double, fails), {"n": 1}, "no")
    assert [type_ for type_, _ in failed[-2:]] == ["step.complete", "chain.complete"]
    assert errors_of(failed) == [None, "ValueError: no", "ValueError: no"]


@pytest.mark.requirement("G31")
def test_a_step_may_ask_a_human_and_a_stop_completes_no_chain():
    async def ask(value):
        return {"answer": interrupt("ready?")}

    app = in_graph(process_chain(double, ask), saver=MemorySaver())
    run(app, {"n": 1}, "async")
    assert run(app, GraphResume("yes"), "async")["answer"] == "yes"
    events = events_of(process_chain(lambda state: interrupt("?")))
    assert [type_ for type_, _ in events] == ["chain.start", "step.start"]


def generator(value):
    yield value


@pytest.mark.requirement("G31")
def test_what_no_action_can_be_made_of():
    makers = [process_chain, lambda f: process_conditional(yes, f), lambda f: process_parallel(f, "a", "b")]
    for make in makers:
        with pytest.raises(TypeError, match="generator"):
            make(generator)
        with pytest.raises(TypeError):
            make(3)
    with pytest.raises(ValueError):
        process_chain()
    with pytest.raises(GraphRunnerError, match="is asynchronous: define it with async def"):
        process_chain(lambda value: increment(value) or None)({"n": 1}, None)


# Choices


@pytest.mark.requirement("G31")
@pytest.mark.parametrize(("then", "doubled"), [(double, 4), (increment, 3)])
def test_conditional(then, doubled):
    choice = process_conditional(key_exists("n"), then, lambda state, config: {"n": config})
    without_else = process_conditional(no, then)

    assert called(choice, {"n": 2}) == {"n": doubled}
    assert called(choice, {}, 7) == {"n": 7}
    assert called(without_else, {}) is None
    ((event, data),) = events_of(choice, {"n": 2})
    assert event == "route.select"
    assert data == {"predicate_name": "key_exists('n')", "predicate_result": True, "route": then.__name__}
    ((_, data),) = events_of(without_else)
    assert data["route"] is None


# Parallel items


async def asquare(n):
    return n * n


def square(n):
    return n * n


def called(action, state, config=None):
    result = action(state, config)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


both = pytest.mark.parametrize("function", [square, asquare])


@pytest.mark.requirement("G31")
@both
def test_results_come_in_the_order_of_the_items(function):
    action = process_parallel(function, "items", "squares")
    assert called(action, {"items": list(range(100))}) == {"squares": [n * n for n in range(100)]}
    assert called(action, {"items": []}) == {"squares": []}
    chosen = process_parallel(
        function, lambda state: (n for n in state["items"] if n > 1), lambda results: {"sum": sum(results)}
    )
    assert called(chosen, {"items": [1, 2, 3]}) == {"sum": 13}


@pytest.mark.requirement("G31")
def test_an_item_may_take_the_config():
    app = in_graph(process_parallel(lambda item, config: config.thread, "items", "to"))
    assert app.invoke({"items": [1]}, CONFIG)["to"] == ["t"]


@pytest.mark.requirement("G31")
@pytest.mark.parametrize(
    ("workers", "items", "expected"), [(3, 9, 3), (100, 4, 4), (None, 64, min(2 * os.cpu_count(), 16))]
)
def test_how_many_run_at_once(workers, items, expected):
    calls = ConcurrentCalls(expected)
    called(process_parallel(calls, "items", "out", workers=workers), {"items": list(range(items))})
    assert calls.most == expected
    acalls = []

    async def work(item):
        acalls.append(1)
        most = len(acalls)
        await asyncio.sleep(0)
        acalls.pop()
        return most

    state = called(process_parallel(work, "items", "out", workers=workers), {"items": list(range(items))})
    assert max(state["out"]) == expected


@pytest.mark.requirement("G31")
def test_the_first_failure_ends_it():
    begun = []

    def work(n):
        begun.append(n)
        raise ValueError(f"no {n}")

    with pytest.raises(ValueError, match="no 0"):
        called(process_parallel(work, "items", "out", workers=1), {"items": list(range(50))})
    assert begun == [0]

    ended = []

    async def awork(n):
        try:
            await asyncio.sleep(0 if n == 1 else 3600)
        finally:
            ended.append(n)
        raise ValueError("no 1")

    with pytest.raises(ValueError, match="no 1"):
        called(process_parallel(awork, "items", "out", workers=3), {"items": list(range(50))})
    assert sorted(ended) == [0, 1, 2]


def odd(n):
    if n % 2 == 0:
        raise ValueError(f"{n} is even")
    return n


async def aodd(n):
    await asyncio.sleep(n / 1000)  # the first fails while the others run
    return odd(n)


@pytest.mark.requirement("G31")
@pytest.mark.parametrize("function", [odd, aodd])
def test_all_failures_are_collected(function):
    state = {"items": list(range(5))}
    with pytest.raises(ExceptionGroup, match="3 of 5 items failed") as caught:
        called(process_parallel(function, "items", "odd", fail_fast=False), state)
    assert [str(error) for error in caught.value.exceptions] == ["0 is even", "2 is even", "4 is even"]
    kept = process_parallel(function, "items", "odd", fail_fast=False, errors="even")
    assert called(kept, state) == {"odd": [1, 3], "even": {str(n): f"ValueError: {n} is even" for n in (0, 2, 4)}}
    assert called(kept, {"items": [1]}) == {"odd": [1], "even": {}}


@pytest.mark.requirement("G26")
def test_items_post_events():
    assert events_of(process_parallel(asquare, "items", "out", workers=1), {"items": [1, 2]}) == [
        ("parallel.start", {"items": 2, "workers": 1}),
        ("worker.start", {"index": 0}),
        ("worker.complete", {"index": 0, "error": None}),
        ("worker.start", {"index": 1}),
        ("worker.complete", {"index": 1, "error": None}),
        ("parallel.complete", {"items": 2, "workers": 1, "error": None}),
    ]
    failed = events_of(process_parallel(odd, "items", "out", workers=1), {"items": [2]}, "2 is even")
    assert errors_of(failed) == ["ValueError: 2 is even"] * 2


@pytest.mark.requirement("G31")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_an_item_cannot_ask_a_human(how):
    async def ask_later(item):
        return interrupt("?")

    ask = ask_later if how == "async" else interrupt
    with pytest.raises(NodeExecutionError, match="map node"):
        run(in_graph(process_parallel(ask, "items", "out"), saver=MemorySaver()), {"items": [1]}, how)


@pytest.mark.requirement("G31")
def test_what_parallel_refuses():
    with pytest.raises(ValueError, match="workers"):
        process_parallel(square, "a", "b", workers=0)
    with pytest.raises(ValueError, match="fail_fast=False"):
        process_parallel(square, "a", "b", errors="e")
