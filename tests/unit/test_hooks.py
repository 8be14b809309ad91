"""Hooks: who is called around what, in which order; and which hooks are problems."""

import inspect
import itertools
from functools import partial

import pytest

from graphkit import END, START, Command, GraphResume, RetryPolicy, RunnableConfig, StateGraph, interrupt
from graphkit.errors import GraphRunnerError, GraphStateError, MaxIterationsError, NodeExecutionError
from tests.support.graphs import (
    CONFIG,
    LOG,
    both,
    connect,
    fail_once,
    invoke,
    make_chain,
    make_chain_of,
    make_graph,
    stored_nodes,
)

pytestmark = pytest.mark.sweep(1, of="saver", in_turn=True)


def node(state):
    return None


def hook(name):
    def called(*arguments):
        return None

    called.__name__ = name
    return called


def names(calls):
    return " ".join(call.function.__name__ for call in calls)


def around(part):
    return names(part.before_hooks), names(part.wrap_hooks), names(part.after_hooks)


def chain(*names):
    return make_chain({}, **dict.fromkeys(names, node))


def add(graph, part, name, *place):
    for kind in ("before", "after", "wrap"):
        getattr(graph, f"add_{kind}_call_{part}_hook")(*place, hook(name))
    return graph


def test_an_embedded_graph_is_not_wrapped():
    graph = make_chain({}, S=chain("a").compile())
    add(graph, "node", "all")
    assert around(graph.compile().topology.nodes["S"]) == ("all", "", "all")
    with pytest.raises(GraphStateError, match="wrap hook is on 'S', a compiled graph"):
        graph.add_wrap_call_node_hook("S", hook("x")).compile()


@pytest.mark.requirement("behaviour 18")
def test_a_run_calls_them_in_this_order():
    seen = []

    def before(name):
        return lambda node_id, state, config: seen.append(f"before {name} {node_id}")

    def after(name):
        return lambda node_id, state, config, result: seen.append(f"after {name} {node_id}") or result

    def wrap(name):
        return lambda node_id, state, config, call: seen.append(f"wrap {name} {node_id}") or call()

    graph = make_graph({}, "START>a", a=lambda state: seen.append("a"))
    graph.add_conditional_edges("a", lambda state: seen.append("edge") or END)
    for name in ("1", "2"):
        for part in ("node", "edge"):
            getattr(graph, f"add_before_call_{part}_hook")(before(name))
            getattr(graph, f"add_after_call_{part}_hook")(after(name))
            getattr(graph, f"add_wrap_call_{part}_hook")(wrap(name))
    graph.compile().invoke({})
    around = ["before 1 a", "before 2 a", "wrap 1 a", "wrap 2 a"], ["after 2 a", "after 1 a"]

    assert seen == [*around[0], "a", *around[1], *around[0], "edge", *around[1]]


def test_hooks_by_position_and_by_keyword():
    graph = chain("a")
    graph.add_before_call_node_hook(hook("h1")).add_before_call_node_hook(hook=hook("h2"))
    graph.add_before_call_node_hook("a", hook("h3")).add_before_call_node_hook(node_id="a", hook=hook("h4"))
    graph.add_before_call_node_hook(None, hook("h5"))
    assert names(graph.compile().topology.nodes["a"].before_hooks) == "h1 h2 h5 h3 h4"


@pytest.mark.parametrize("arguments", [(), ("a",), ("a", "b"), (None, 3), ("", hook("x")), (3, hook("x"))])
def test_hooks_that_are_refused(arguments):
    for kind, part in itertools.product(("before", "after", "wrap"), ("node", "edge")):
        with pytest.raises(GraphStateError, match="hook"):
            getattr(chain("a"), f"add_{kind}_call_{part}_hook")(*arguments)


@pytest.mark.sweep(1, of="kind", in_turn=True)
@pytest.mark.parametrize("kind", ["before", "after", "wrap"])
@pytest.mark.parametrize(
    ("part", "place", "words"),
    [
        ("node", "gone", "hook is on 'gone', which is not a node"),
        ("node", START, "hook is on '__START__', which is not a node"),
        ("node", "S", "hook is on 'S', an inlined subgraph: put it on 'S-<node>'"),
        ("edge", "gone", "hook is on the edge of 'gone', which has no conditional edge"),
        ("edge", "a", "hook is on the edge of 'a', which has no conditional edge"),
        ("edge", "S", "hook is on the edge of 'S', which has no conditional edge"),
    ],
)
def test_hooks_that_compile_refuses(kind, part, place, words):
    graph = make_chain({}, a=node, S=chain("x"))
    getattr(graph, f"add_{kind}_call_{part}_hook")(place, hook("x"))
    with pytest.raises(GraphStateError, match=f"a {kind} {words}") as failed:
        graph.compile()
    assert len(failed.value.problems) == 1


def test_edge_hooks_on_a_merged_graph_are_on_the_edge_it_is_left_by():
    child = StateGraph({}).add_node("a", node).add_edge("a", END).add_conditional_edges(START, node, ["a"])
    add(child, "edge", "child", START)
    parent = StateGraph({}).add_node("S", child).add_edge(START, "S").add_conditional_edges("S", node, [END])
    add(parent, "edge", "out", "S")
    edges = parent.compile().topology.edges
    assert around(edges["S-__START__"])[0] == "child"
    assert around(edges["S-__END__"])[0] == "out"


def test_a_childs_own_hooks_are_checked_when_it_is_added():
    child = chain("a").add_before_call_node_hook("gone", hook("x"))
    with pytest.raises(GraphStateError, match="subgraph 'S': a before hook is on 'gone'"):
        chain("Z").add_node("S", child)


# --- in a run ---------------------------------------------------------------------------------------------------------

logs = partial(make_chain_of, LOG, {})
"""A graph a -> b -> ... of nodes that log their names, or of given ones."""


def of(how, function):
    """A hook, asynchronous in an asynchronous run."""
    if how == "sync":
        return function

    async def called(*arguments):
        result = function(*arguments)
        return await result if inspect.isawaitable(result) else result

    return called


@both
def test_what_a_before_hook_returns_is_merged_before_the_node_and_not_stored_alone(saver, how):
    b = fail_once(lambda state: {"log": f"b after {state['log'][-1]}"})
    graph = logs("a", b=b).add_before_call_node_hook("b", of(how, lambda node_id, state, config: {"log": "before"}))
    compiled = graph.compile(checkpoint_saver=saver)

    with pytest.raises(NodeExecutionError):
        invoke(compiled, {}, how=how)

    assert saver.get(CONFIG).state["log"] == ["a"]
    assert invoke(compiled, None, how=how)["log"] == ["a", "before", "b after before"]
    assert stored_nodes(saver) == ["b", "a", START]


@both
def test_an_after_hook_changes_the_update_or_where_it_goes(saver, how):
    def after(node_id, state, config, update):
        assert node_id not in state["log"]  # not merged yet
        return Command("c", {"log": [update["log"], "after"]}) if node_id == "a" else update

    graph = logs("a", "b", "c").add_after_call_node_hook(of(how, after))
    assert invoke(graph.compile(checkpoint_saver=saver), {}, how=how)["log"] == ["a", "after", "c"]


def test_the_limit_is_checked_before_the_hooks_of_the_node():
    ran = []
    graph = logs("a", "b").add_before_call_node_hook("b", lambda *arguments: ran.append("hook"))
    with pytest.raises(MaxIterationsError):
        graph.compile(max_iterations=1).invoke({})
    assert ran == []


GO_ON = {
    "before": lambda node_id, state, config: None,
    "after": lambda node_id, state, config, result: result,
    "wrap": lambda node_id, state, config, call: call(),
}


@pytest.mark.parametrize("kind", GO_ON)
@pytest.mark.parametrize("part", ["node", "edge"])
@both
def test_a_hook_that_fails_fails_the_step_and_stores_nothing_of_it(saver, kind, part, how):
    broken = fail_once(GO_ON[kind], ValueError("broken"))
    graph = make_graph(LOG, "START>a").add_conditional_edges("a", lambda state: END)
    getattr(graph, f"add_{kind}_call_{part}_hook")("a", of(how, broken))
    compiled = graph.compile(checkpoint_saver=saver)

    with pytest.raises(NodeExecutionError, match=r"'a'.*broken") as failed:
        invoke(compiled, {}, how=how)

    assert failed.value.node_id == "a"
    assert type(failed.value.__cause__) is ValueError
    assert stored_nodes(saver) == [START]
    assert invoke(compiled, None, how=how)["log"] == ["a"]


@pytest.mark.parametrize("kind", ["before", "after"])
def test_only_what_wraps_a_node_may_ask_a_human(saver, kind):
    graph = logs("a")
    getattr(graph, f"add_{kind}_call_node_hook")(lambda *arguments: interrupt("?"))
    with pytest.raises(NodeExecutionError, match=r"a hook of 'a' failed: .*inside a node"):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert saver.interrupts("t") == []


@both
def test_edge_hooks_update_the_state_and_redirect(saver, how):
    graph = make_graph(LOG, "START>a b>END c>END")
    graph.add_conditional_edges("a", lambda state: state["key"], {"to b": "b", "to c": "c"})
    graph.add_before_call_edge_hook("a", of(how, lambda source, state, config: {"key": "to b"}))
    graph.add_after_call_edge_hook("a", of(how, lambda source, state, config, key: Command("to c", {"log": key})))
    assert invoke(graph.compile(checkpoint_saver=saver), {}, how=how)["log"] == ["a", "to b", "c"]
    assert saver.list(CONFIG)[1].state["log"] == ["a", "to b"]


@both
def test_around_an_embedded_graph_hooks_count_once_though_it_waits_and_the_after_hook_gets_none(saver, how):
    child = logs("p", q=lambda state: {"log": interrupt("?")}).compile()
    graph = logs(s=child).add_before_call_node_hook("s", of(how, lambda node_id, state, config: {"log": "before"}))
    graph.add_after_call_node_hook(of(how, lambda node_id, state, config, update: {"log": f"after {update}"}))
    compiled = graph.compile(checkpoint_saver=saver)
    invoke(compiled, {}, how=how)
    assert invoke(compiled, GraphResume("x"), how=how)["log"] == ["before", "p", "x", "after None"]


@both
def test_hooks_of_the_graph_inside_and_of_the_one_it_is_merged_into(saver, how):
    def before(name):
        return of(how, lambda node_id, state, config: {"log": f"{name} {node_id}"})

    child = logs("p").add_before_call_node_hook(before("child"))
    merged = logs(S=child).add_before_call_node_hook(before("parent")).compile(checkpoint_saver=saver)

    assert invoke(merged, {}, how=how)["log"] == ["parent S-p", "child S-p", "p"]

    embedded = logs(S=child.compile()).compile()
    assert invoke(embedded, {}, how=how)["log"] == ["child p", "p"]


@both
def test_in_branches_and_around_maps(saver, how):
    def before(node_id, state, config):
        return {"log": f"before {node_id}", "items": [0, 1]}

    def wrap(node_id, item, config, call):
        return {"log": [f"item {item}", call()["log"]]}

    graph = make_graph(LOG, "START>b b>j j>END").add_map_node("m", lambda n: {"log": n}, "items")
    connect(graph, "START>m m>j").add_before_call_node_hook(of(how, before)).add_wrap_call_node_hook("m", wrap)
    graph.add_after_call_node_hook("m", of(how, lambda node_id, state, config, update: {"log": f"after {update}"}))

    log = invoke(graph.compile(checkpoint_saver=saver), {}, how=how)["log"]

    assert log == ["before b", "b", "before m", "item 0", 0, "item 1", 1, "after None", "before j", "j"]


def test_an_asynchronous_hook_in_a_synchronous_run(saver):
    graph = logs("a").add_before_call_node_hook(of("async", lambda *arguments: None))
    with pytest.raises(GraphRunnerError, match="astream"):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)
    assert not saver.list(CONFIG)


# --- call(state), call(state, config) ---------------------------------------------------------------------------------


CALLS = {
    "call()": (lambda call, state: call(), (1, "t")),
    "call(state)": (lambda call, state: call({**state, "n": 2}), (2, "t")),
    "call(state, config)": (lambda call, state: call({**state, "n": 2}, RunnableConfig("other")), (2, "other")),
    "by keyword": (lambda call, state: call(config=RunnableConfig("other"), state={"n": 2}), (2, "other")),
}


def see(state, config):
    return {"seen": (state["n"], config.thread_id)}


@pytest.mark.parametrize("way", CALLS)
@pytest.mark.parametrize("options", [{}, {"retry": RetryPolicy()}, {"timeout": 60}], ids=["bare", "retry", "timeout"])
def test_a_wrap_hook_may_run_the_node_with_another_state_and_config_and_log_what_it_calls(way, options):
    run_node, seen = CALLS[way]
    graph = connect(StateGraph({}).add_node("a", see, **options), "START>a a>END")
    graph.add_wrap_call_node_hook(lambda node_id, state, config, call: run_node(call, state))
    log = []
    graph.add_wrap_call_node_hook(lambda node_id, state, config, call: log.append(repr(call)) or call())

    assert graph.compile().invoke({"n": 1}, RunnableConfig("t"))["seen"] == seen
    assert "{'n'" not in log[0]  # no state
