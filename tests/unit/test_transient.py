"""Transient keys: nodes see them, and nothing stores or shows them. Ports langgraph4j's transient attributes."""

import pytest

from graphkit import END, START, Channels, Command, GraphResume, RunnableConfig, StateGraph, interrupt
from graphkit.errors import GraphRunnerError, NodeExecutionError
from savers import FileSystemSaver
from tests.support import graphs
from tests.support.graphs import CONFIG, CYCLE, LOG as PLAIN, both, logged, make_graph, outputs as run

pytestmark = pytest.mark.sweep(1, of=("saver", "how"), in_turn=True)

SECRET = "hunter2-hunter2"
SCHEMA = {"log": Channels.appender_with_duplicate(), "token": Channels.transient()}


def chain(schema=SCHEMA, **nodes):
    return graphs.make_chain(schema, **nodes)


def sees(seen):
    return lambda state: seen.append(state.get("token"))


def shown(outputs):
    return [
        text
        for output in outputs
        for text in (repr(output), repr(dict(output.state)), repr(output.update), repr(getattr(output, "metadata", "")))
    ]


class Watched:
    """A store of which every byte, and a graph of which every event and output, can be searched."""

    def __init__(self, path):
        self.path = path
        self.saver = FileSystemSaver(path / "store", fsync="never")
        self.events = []

    def compile(self, graph, **options):
        return graph.compile(checkpoint_saver=self.saver, observers=[self.events.append], **options)

    def everything(self):
        for file in self.path.rglob("*"):
            if file.is_file():
                yield file.read_bytes()
        for event in self.events:
            yield repr(event).encode()


@pytest.fixture
def watched(tmp_path):
    found = Watched(tmp_path)
    yield found
    assert found.events
    assert not [place for place in found.everything() if SECRET.encode() in place]


@pytest.mark.requirement("G32", "H52")
@both
def test_nodes_see_it_and_nothing_else_does(watched, how):
    seen = []
    graph = watched.compile(chain(a=sees(seen), b=lambda state: {"log": "b"}, c=sees(seen)))
    for mode in ("values", "updates", "snapshots"):
        outputs = run(graph, {"token": SECRET}, RunnableConfig(mode, stream_mode=mode), how=how)
        assert not [text for text in shown(outputs) if SECRET in text]
    assert seen == [SECRET] * 6
    assert "token" not in graph.get_state(RunnableConfig("values")).values


def test_a_node_and_an_edge_may_change_it(watched):
    seen = []
    graph = StateGraph(SCHEMA).add_node("a", lambda state: {"token": SECRET}).add_node("b", sees(seen))
    graph.add_edge(START, "a").add_conditional_edges("a", lambda state: Command("b", {"token": state["token"] + "!"}))
    outputs = list(watched.compile(graph.add_edge("b", END)).stream({}, RunnableConfig("t", stream_mode="updates")))
    assert seen == [SECRET + "!"]
    assert not [text for text in shown(outputs) if SECRET in text]


@pytest.mark.parametrize("is_nested", [False, True])
@both
def test_after_a_resume_it_is_gone_or_what_the_resume_brings(watched, is_nested, how):
    seen = []
    built = chain(a=lambda state: {"log": interrupt("?")}, b=sees(seen))
    graph = watched.compile(chain(s=built.compile()) if is_nested else built)
    for brings, expected in (({}, None), ({"token": SECRET}, SECRET)):
        run(graph, {"token": SECRET}, how=how)
        assert not [text for text in shown(run(graph, GraphResume("x", update=brings), how=how)) if SECRET in text]
        assert seen.pop() == expected


@pytest.mark.parametrize("when", [{"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}])
def test_at_a_declared_stop_an_answer_may_bring_it(watched, when):
    seen = []
    graph = watched.compile(chain(a=lambda state: {"log": "a"}, b=sees(seen)), **when)
    graph.invoke({"token": SECRET}, CONFIG)
    graph.invoke(GraphResume({"token": SECRET, "log": "answer"}), CONFIG)
    assert seen == [SECRET]
    assert graph.get_state(CONFIG).values == {"log": ["a", "answer"]}


def test_a_resume_with_a_value_that_cannot_be_merged_leaves_no_trace(saver):
    graph = chain(a=lambda state: {"log": interrupt("?")}).compile(checkpoint_saver=saver)
    graph.invoke({}, CONFIG)
    before = saver.get_writes(CONFIG)
    with pytest.raises(GraphRunnerError, match="the value or update of the resume cannot be merged"):
        graph.invoke(GraphResume("x", update={"token": CYCLE}), CONFIG)
    assert saver.get_writes(CONFIG) == before
    assert graph.invoke(GraphResume("x", update={"token": SECRET}), CONFIG)["log"] == ["x"]


def test_its_default_is_there_after_a_resume_too(saver):
    seen = []
    schema = {"token": Channels.transient(lambda: "default")}
    graph = chain(schema, a=sees(seen), b=lambda state: interrupt("?"), c=sees(seen)).compile(checkpoint_saver=saver)
    given = ({}, GraphResume(None), {"token": "given"}, GraphResume(None, update={"token": "again"}))
    for each in given:
        graph.invoke(each, CONFIG)
    assert seen == ["default", "default", "given", "again"]


def test_an_update_by_hand_leaves_it_out(watched):
    graph = watched.compile(chain(a=lambda state: {"log": "a"}), interrupt_before=["a"])
    graph.invoke({}, CONFIG)
    graph.update_state(CONFIG, {"token": SECRET, "log": "u"})
    assert graph.get_state(CONFIG).values == {"log": ["u"]}


def test_errors_do_not_show_it(watched):
    def fails(state):
        raise ValueError(state["log"])

    graph = watched.compile(chain(a=fails))
    with pytest.raises(NodeExecutionError) as failed:
        graph.invoke({"token": SECRET, "log": "i"}, CONFIG)
    assert SECRET not in repr(failed.value)
    assert SECRET not in repr(vars(failed.value))
    assert failed.value.state == {"log": ["i"]}


def fork(*heads, **nodes):
    edges = [f"START>{head} {head}>j" for head in heads]
    return make_graph(SCHEMA, " ".join([*edges, "j>END"]), **nodes)


@both
def test_branches_see_it_and_what_one_changes_stays_changed(watched, how):
    seen = []
    nodes = {"a": sees(seen), "b": lambda state: {"token": SECRET + "b", "log": "b"}, "c": sees(seen), "j": sees(seen)}
    graph = watched.compile(fork("a", "b", "c", **nodes))
    run(graph, {"token": SECRET}, how=how)
    assert seen == [SECRET, SECRET, SECRET + "b"]


@both
def test_the_record_of_an_item_is_without_it(watched, how):
    seen = []

    def item(n):
        if n == 2:
            return {"log": interrupt("?")}
        return {"log": n, "token": SECRET}

    graph = StateGraph(SCHEMA).add_map_node("m", item, lambda state: range(3)).add_node("z", sees(seen))
    graph = watched.compile(graph.add_edge(START, "m").add_edge("m", "z").add_edge("z", END))
    run(graph, {}, how=how)
    assert logged(run(graph, GraphResume("x"), how=how)) == [0, 1, "x"]
    run(graph, {}, RunnableConfig("u"), how=how)


@pytest.mark.parametrize(("around", "inside"), [(SCHEMA, SCHEMA), (SCHEMA, PLAIN), (PLAIN, SCHEMA)])
@both
def test_subgraphs_see_and_change_it_and_store_it_as_little(watched, around, inside, how):
    seen = []
    given = {"token": SECRET} if around is SCHEMA else {}
    child = chain(inside, p=sees(seen), q=lambda state: {"token": SECRET + "q"}, r=sees(seen)).compile()
    graph = watched.compile(chain(around, s=child, z=sees(seen)))
    run(graph, given, how=how)
    assert seen == [given.get("token"), SECRET + "q", SECRET + "q" if around is SCHEMA else None]
