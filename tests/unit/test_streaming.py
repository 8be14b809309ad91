"""Nodes that hand out chunks while they run, and stream modes: what comes out when, and what is stored of it."""

import asyncio

import pytest

from graphkit import (
    END,
    START,
    Command,
    GraphResume,
    InterruptionMetadata,
    NodeOutput,
    StateGraph,
    StateSnapshot,
    StreamingOutput,
    interrupt,
)
from graphkit.errors import GraphRunnerError, NodeExecutionError
from tests.support.graphs import (
    CONFIG,
    LOG,
    close_at,
    is_chunk,
    logged,
    make_chain,
    make_graph,
    outputs as run,
    status_of,
    stored_nodes,
)

pytestmark = pytest.mark.sweep(1, of="saver", in_turn=True)


def items(outputs):
    """Node ids, and chunks as they are."""
    return [output.chunk if isinstance(output, StreamingOutput) else output.node for output in outputs]


class Talker:
    """A generator as a node: chunks, and what happens before each."""

    def __init__(self, *chunks, update=None):
        self.chunks, self.update = chunks, {"log": "done"} if update is None else update
        self.began, self.closed = 0, 0
        self.at = {}

    def plain(self, state):
        self.began += 1
        try:
            for chunk in self.chunks:
                if chunk in self.at:
                    self.at[chunk]()
                yield chunk
            return self.update
        finally:
            self.closed += 1

    async def later(self, state):
        self.began += 1
        try:
            for chunk in self.chunks:
                await asyncio.sleep(0)
                if chunk in self.at:
                    self.at[chunk]()
                yield chunk
            yield Command(update=self.update)
        finally:
            self.closed += 1

    def node(self, kind):
        return self.later if kind == "async" else self.plain


kinds = pytest.mark.parametrize(("how", "kind"), [("sync", "plain"), ("async", "plain"), ("async", "async")])


@pytest.mark.requirement("behaviour 14")
@kinds
def test_chunks_come_as_they_are_made_and_the_update_is_merged_once(saver, how, kind):
    talker = Talker("x", "y")
    graph = make_chain(a=lambda state: {"log": "a"}, g=talker.node(kind), z=lambda state: {"log": "z"})
    outputs = run(graph.compile(checkpoint_saver=saver, max_iterations=3), {}, how=how)

    assert items(outputs) == [START, "a", "x", "y", "g", "z", END]

    for chunk in outputs[2:4]:
        assert chunk.node == "g"
        assert chunk.state["log"] == ["a"]
        assert not chunk.is_subgraph

    assert logged(outputs) == ["a", "done", "z"]
    assert stored_nodes(saver) == ["z", "g", "a", START]
    assert (talker.began, talker.closed) == (1, 1)


def test_nothing_runs_ahead_of_the_caller():
    said = []

    def node(state):
        for word in "xy":
            said.append(word)
            yield word

    stream = make_chain(g=node).compile().stream({})
    assert next(stream).node == START
    assert said == []
    next(stream)
    assert said == ["x"]
    stream.close()
    assert said == ["x"]


@pytest.mark.parametrize("chunk", [None, {"log": "no update"}, ["list"], NodeOutput("custom", {})])
def test_a_chunk_may_be_anything(chunk):
    def node(state):
        yield chunk

    outputs = list(make_chain(g=node).compile().stream({}))
    assert (outputs[1] if isinstance(chunk, NodeOutput) else outputs[1].chunk) is chunk
    assert logged(outputs) == []


def test_a_command_at_the_end_may_go_elsewhere():
    def node(state):
        yield "x"
        yield Command("z", {"log": "g"})

    graph = make_chain(LOG, g=node, h=Talker("lost").plain, z=lambda state: {"log": "z"})
    outputs = list(graph.compile().stream({}))
    assert items(outputs) == [START, "x", "g", "z", END]
    assert logged(outputs) == ["g", "z"]


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("late", [[], ["chunk"], [Command()]], ids=["the update", "chunk", "command"])
def test_nothing_may_come_after_it(saver, kind, late):
    talker = Talker(Command(update={"log": "lost?"}), *late)
    graph = make_chain(g=talker.node(kind)).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match="Command last"):
        run(graph, {}, how="async" if kind == "async" else "sync")
    assert stored_nodes(saver) == [START]
    assert talker.closed == 1


@kinds
def test_closing_the_stream_in_the_middle(saver, how, kind):
    talker = Talker("x", "y")
    graph = make_chain(a=lambda state: {"log": "a"}, g=talker.node(kind)).compile(checkpoint_saver=saver)
    close_at(graph, is_chunk, how=how)
    assert (talker.began, talker.closed) == (1, 1)
    assert saver.get(CONFIG).node_id == "a"
    assert status_of(saver) == "stalled"
    assert items(run(graph, None, how=how)) == ["x", "y", "g", END]


@kinds
def test_a_failure_in_the_middle(saver, how, kind):
    talker = Talker("x", "y")
    talker.at["y"] = lambda: 1 / 0
    graph = make_chain(g=talker.node(kind)).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError) as failed:
        run(graph, {}, how=how)
    assert failed.value.node_id == "g"
    assert type(failed.value.__cause__) is ZeroDivisionError
    assert talker.closed == 1

    talker.at.clear()
    assert items(run(graph, None, how=how)) == ["x", "y", "g", END]


@kinds
def test_a_question_in_the_middle(saver, how, kind):
    talker = Talker("x", "y")
    talker.at["y"] = lambda: interrupt("ok?")
    graph = make_chain(g=talker.node(kind)).compile(checkpoint_saver=saver)
    assert items(run(graph, {}, how=how)) == [START, "x", "g"]
    assert items(run(graph, GraphResume("yes"), how=how)) == ["x", "y", "g", END]


def test_an_asynchronous_generator_in_a_synchronous_run(saver):
    graph = make_chain(a=lambda state: None, g=Talker("x").later).compile(checkpoint_saver=saver)

    with pytest.raises(GraphRunnerError, match=r"'g'.*astream"):
        graph.stream({}, CONFIG)

    hidden = make_chain(g=lambda state: Talker("x").later(state)).compile()
    with pytest.raises(GraphRunnerError, match="astream"):
        hidden.invoke({})
    inside = make_chain(s=make_chain(g=Talker("x").later).compile()).compile()
    with pytest.raises(GraphRunnerError, match="astream"):
        inside.stream({})


def test_a_function_that_returns_a_generator_streams_too():
    assert items(make_chain(g=lambda state: Talker("x").plain(state)).compile().stream({})) == [START, "x", "g", END]
    graph = make_chain(g=lambda state: Talker("x").later(state)).compile()
    assert items(run(graph, {}, how="async")) == [START, "x", "g", END]


@kinds
def test_branches_and_subgraphs_stream(saver, how, kind):
    f = Talker("x", "y").node(kind)
    g = Talker("u", "v").node(kind)
    child = make_chain(g=g).compile()
    graph = make_graph(LOG, "START>f,s f>END s>END", f=f, s=child)
    app = graph.compile(checkpoint_saver=saver)

    outputs = run(app, {}, how=how)

    assert logged(outputs) == ["done", "done"]
    inside = [item for item in items(outputs) if item in {"u", "v", "g"}]
    assert inside == ["u", "v", "g"]
    chunks = [output for output in outputs if is_chunk(output)]
    assert [output.chunk for output in chunks if not output.is_subgraph] == ["x", "y"]
    assert [output.chunk for output in chunks if output.is_subgraph] == ["u", "v"]


# --- dispatch ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("behaviour 5")
def test_what_is_dispatched_comes_before_the_nodes_own_output_and_stays_out_of_the_state(saver):
    output = NodeOutput("custom", {})

    def node(state, config):
        config.dispatch("one")
        config.customDispatcher()(output)
        return {"log": "a"}

    outputs = list(make_chain(a=node).compile(checkpoint_saver=saver).stream({}, CONFIG))
    assert items(outputs) == [START, "one", "custom", "a", END]
    assert outputs[2] is output
    assert dict(saver.get(CONFIG).state) == {"log": ["a"]}
    with pytest.raises(GraphRunnerError):
        CONFIG.customDispatcher()


# --- stream modes -----------------------------------------------------------------------------------------------------


def updates(graph, given, *, how="sync", mode="updates", config=CONFIG):
    return [(output.node, output.update) for output in run(graph, given, config.replace(stream_mode=mode), how=how)]


def node(word):
    return lambda state: {"log": word}


@pytest.mark.parametrize("how", ["sync", "async"])
def test_updates_of_nodes_and_of_the_commands_of_edges(saver, how):
    graph = StateGraph(LOG).add_node("a", node("a")).add_node("b", lambda state: None)
    graph.add_conditional_edges(START, lambda state: Command("a", {"start": 1}))
    graph.add_conditional_edges("a", lambda state: Command("b", {"edge": 2})).add_edge("b", END)

    assert updates(graph.compile(checkpoint_saver=saver), {"log": "input"}, how=how) == [
        (START, {START: {"start": 1}}),
        ("a", {"a": {"log": "a", "edge": 2}}),
        ("b", {}),
        (END, None),
    ]


def test_the_update_of_an_edge_that_a_resume_takes_is_shown_and_that_of_the_resume_is_not(saver):
    graph = make_graph(LOG, "START>a b>END", a=node("a"), b=node("b"))
    graph.add_conditional_edges("a", lambda state: Command("b", {"edge": 1}))
    compiled = graph.compile(checkpoint_saver=saver, interrupt_after=["a"], interrupt_before_edge=True)
    compiled.invoke({}, CONFIG)
    assert updates(compiled, GraphResume(update={"mine": 2}))[0] == ("b", {"a": {"edge": 1}, "b": {"log": "b"}})


def test_updates_of_forks_and_subgraphs(saver):
    child = make_chain(p=node("p"), q=lambda state: {"mine": 1}).compile()
    graph = make_graph(LOG, "START>b,c b>b2 b2>s c>s", b=node("b"), b2=node("b2"), c=node("c"), s=child)
    assert updates(graph.add_edge("s", END).compile(checkpoint_saver=saver), {}) == [
        (START, {}),
        ("__PARALLEL__(__START__)", {"b": {"log": "b"}, "b2": {"log": "b2"}, "c": {"log": "c"}}),
        (START, {}),
        ("p", {"p": {"log": "p"}}),
        ("q", {"q": {"mine": 1}}),
        (END, None),
        ("s", {"s": {"log": "p", "mine": 1}}),
        (END, None),
    ]


@kinds
def test_snapshots_with_all_of_it(saver, how, kind):
    child = make_chain(p=node("p")).compile()
    graph = make_chain(g=Talker("x").node(kind), s=child, z=lambda state: {"log": interrupt("?")})
    compiled = graph.compile(checkpoint_saver=saver)
    config = CONFIG.replace(stream_mode="snapshots")
    outputs = run(compiled, {}, config, how=how)
    of = {StateSnapshot: "snapshot", StreamingOutput: "chunk", NodeOutput: "output", InterruptionMetadata: "stop"}
    assert [(of[type(output)], output.node) for output in outputs] == [
        ("snapshot", START),
        ("chunk", "g"),
        ("snapshot", "g"),
        ("snapshot", START),
        ("snapshot", "p"),
        ("output", END),
        ("snapshot", "s"),
        ("stop", "z"),
    ]
    for output in outputs:
        if isinstance(output, StateSnapshot):
            assert compiled.get_state(output.config).values == dict(output.state) == output.values
    assert [of[type(each)] for each in run(compiled, GraphResume("!"), config, how=how)] == ["snapshot", "output"]


def test_without_a_saver_snapshots_are_plain_outputs_in_subgraphs_too():
    graph = make_chain(s=make_chain(p=node("p")).compile()).compile()
    assert {type(snapshot) for snapshot in graph.stream_snapshots({})} == {NodeOutput}
