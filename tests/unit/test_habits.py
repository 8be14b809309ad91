"""What users of LangGraph and newcomers write: it works, or a sentence names graphkit's way."""

import copy
import pickle
import re

import pytest

from graphkit import END, START, Channels, Command, RunnableConfig, StateGraph, errors
from savers import MemorySaver
from tests.support.graphs import asking, make_chain, payloads_of


def first(state):
    return {"log": ["first"]}


def second(state):
    return {"log": ["second"]}


def make_graph():
    return StateGraph({"log": Channels.appender(list)})


def chain():
    return make_graph().add_sequence([first, second]).set_entry_point("first").set_finish_point("second")


def test_a_sequence_has_functions_and_named_actions():
    graph = make_graph().add_sequence([first, ("between", lambda state: {"log": ["between"]}), second])
    app = graph.set_entry_point("first").set_finish_point("second").compile()

    assert app.invoke({}) == {"log": ["first", "between", "second"]}
    with pytest.raises(errors.GraphStateError):
        make_graph().add_sequence([])


def test_checkpointer_is_checkpoint_saver():
    saver = MemorySaver()

    assert chain().compile(checkpointer=saver).compile_config.checkpoint_saver is saver
    with pytest.raises(TypeError, match="same option"):
        chain().compile(checkpointer=saver, checkpoint_saver=saver)


def test_a_run_may_have_stops_of_its_own():
    app = chain().compile(checkpointer=MemorySaver())

    stopped = app.invoke({}, "t", interrupt_before=["second"])
    assert stopped == {"log": ["first"]}
    assert stopped.interrupts[0].node_id == "second"
    assert app.invoke(None, "t") == {"log": ["first", "second"]}
    assert app.invoke({}, "u", interrupt_after="first").interrupts[0].when == "after"

    with pytest.raises(errors.GraphStateError, match="'secnd'"):
        app.invoke({}, "v", interrupt_before=["secnd"])


def test_a_command_resumes():
    app = make_chain(ask=asking("ok?")).compile(checkpointer=MemorySaver())
    app.invoke({}, "t")
    assert app.invoke(Command(resume="yes", update={"log": "well,"}), "t") == {"log": ["well,", "yes"]}


def test_a_compiled_graph_can_still_be_asked_for_anything():
    app = chain().compile()
    snapshot = ran().get_state("t")

    assert not hasattr(app, "_repr_svg_")
    assert not hasattr(snapshot, "zzzz")
    assert copy.copy(app).topology is app.topology
    assert copy.deepcopy(chain()).compile().invoke({}) == {"log": ["first", "second"]}
    assert copy.deepcopy(RunnableConfig("t")) == RunnableConfig("t")

    with pytest.raises(Exception, match=re.compile("pickle|local", re.IGNORECASE)):
        pickle.dumps(make_chain({}, a=lambda state: {}).compile())


def test_the_drawing_has_langgraphs_method():
    assert chain().compile().get_graph().draw_mermaid() == chain().compile().get_graph().content


class Send:
    """As LangGraph's class of this name."""

    def __init__(self, node, arg):
        self.node = node
        self.arg = arg


@pytest.mark.parametrize("target", [["a", "b"], [], Command(goto=["a", "b"]), Send("a", 1), [Send("a", 1)]])
def test_several_targets_name_a_fork_and_a_map(target):
    graph = make_graph().add_node("a", first).add_node("b", second).add_edge(START, "a").add_edge("b", END)
    graph.add_conditional_edges("a", lambda state: target)

    with pytest.raises(errors.GraphRunnerError, match=r"the edge of 'a' leads to .*add_edge.*add_map_node"):
        graph.compile().invoke({})


class Foreign:
    """As a class of another library, of whose name graphkit has one too."""


Foreign.__module__ = "langgraph.types"
Foreign.__qualname__ = "Command"


def routed_to(target):
    return make_graph().add_node(first).set_entry_point("first").add_conditional_edges("first", lambda state: target)


def run_node(node):
    return make_graph().add_node("a", node, destinations=[END]).set_entry_point("a").set_finish_point("a")


EXPLAINED = [
    (lambda: make_graph().add_node(lambda state: {}), errors.GraphStateError, "id"),
    (lambda: make_graph().add_node(object()), errors.GraphStateError, "id"),
    (lambda: chain().compile(checkpoint_savr=None), TypeError, "checkpoint_savr.*checkpoint_saver"),
    (lambda: chain().compile(debug=None), TypeError, "debug.*observers"),
    (lambda: chain().compile(MemorySaver()), TypeError, "checkpoint_saver"),
    (lambda: chain().compile(checkpoint_saver=MemorySaver), errors.CheckpointerConfigurationError, "the class MemorySaver"),
    (lambda: chain().compile(checkpointer=Foreign()), errors.CheckpointerConfigurationError, "package savers, not langgraph"),
    (lambda: chain().compile(interrupt_before=["frist"]), errors.GraphStateError, "'frist'.*'first'"),
    (lambda: chain().compile().invoke({}, interupt_before=[]), TypeError, "interupt_before.*interrupt_before"),
    (lambda: chain().compile().stream({}, context={}), TypeError, "context.*metadata"),
    (lambda: chain().compile().invoke_final({}, x={}), TypeError, "x.*interrupt_after"),
    (lambda: chain().compile().invoke({}, stream_mode="updates"), TypeError, "no option 'stream_mode'.*astream"),
    (lambda: chain().compile().invoke(Command("second")), errors.GraphRunnerError, "Command"),
    (lambda: chain().compile().invoke(Foreign()), errors.GraphRunnerError, r"langgraph\.types\.Command"),
    (lambda: chain().compile().stream({}, stream_mode="messages"), ValueError, "'messages'.*'values'.*'custom'"),
    (lambda: chain().compile().stream({}, stream_mode=["values", "debug"]), ValueError, "'debug'.*'values'.*'custom'"),
    (lambda: chain().compile().with_config, AttributeError, "config"),
    (lambda: chain().compile().batch, AttributeError, "invoke"),
    (lambda: chain().compile().invok, AttributeError, "invoke"),
    (lambda: chain().compile().zzzz, AttributeError, "no 'zzzz'"),
    (lambda: chain().invoke, AttributeError, "compile"),
    (lambda: chain().add_edg, AttributeError, "add_edge"),
    (lambda: make_graph().add_node(first).add_edge(["first", "b"], "c"), errors.GraphStateError, "add_edge from each"),
    (lambda: make_graph().add_node(first).add_edge(START, "frist").compile(), errors.GraphStateError, "'first'"),
    (lambda: make_graph().add_node(first).add_edge("__start__", "first").compile(), errors.GraphStateError, "import START"),
    (lambda: make_graph().add_node("a", first, retry=Foreign()), errors.GraphStateError, r"graphkit\.RetryPolicy, not langgraph"),
    (lambda: routed_to("frist").compile().invoke({}), errors.GraphRunnerError, "'frist'.*'first'"),
    (lambda: routed_to("__end__").compile().invoke({}), errors.GraphRunnerError, "import START and END from graphkit"),
    (lambda: run_node(lambda state, runtime: runtime.context).compile().invoke({}), errors.NodeExecutionError, "metadata"),
    (lambda: run_node(lambda state: Foreign()).compile().invoke({}), errors.NodeExecutionError, r"langgraph\.types\.Command"),
    (lambda: ran().get_state("t").tasks, AttributeError, "interrupts"),
]  # fmt: skip


def ran():
    app = chain().compile(checkpointer=MemorySaver())
    app.invoke({}, "t")
    return app


@pytest.mark.parametrize(("use", "error", "words"), EXPLAINED)
def test_what_other_libraries_have_is_explained(use, error, words):
    with pytest.raises(error, match=words):
        use()


@pytest.mark.parametrize("key", ["threadId", "thread-id", "threadid"])
def test_a_misspelt_thread_id_does_not_run_on_the_thread_of_all(key):
    saver = MemorySaver()

    with pytest.raises(errors.CheckpointerConfigurationError, match="thread_id"):
        chain().compile(checkpointer=saver).invoke({}, {"configurable": {key: "mine"}})
    assert not saver.threads()
    chain().compile(checkpointer=saver).invoke({}, {"configurable": {"thread_id": "mine", key: "a note"}})
    assert list(saver.threads()) == ["mine"]


def test_an_interrupt_without_a_saver_is_seen_and_cannot_be_answered():
    app = make_chain(ask=asking("ok?")).compile()
    state = app.invoke({}, "t")
    assert payloads_of(state) == ["ok?"]
    assert "ok?" in str(state)
    with pytest.raises(errors.CheckpointerConfigurationError, match="saver"):
        app.resume("t")
