"""What users of LangGraph and newcomers write: it works, or a sentence names graphkit's way."""

import copy
import pickle
import re

import pytest

from graphkit import (
    END,
    START,
    Channels,
    CheckpointerConfigurationError,
    Command,
    GraphRunnerError,
    GraphStateError,
    NodeExecutionError,
    RunnableConfig,
    StateGraph,
    interrupt,
)
from savers import MemorySaver
from tests.support.graphs import make_chain, payloads_of


def first(state):
    return {"log": ["first"]}


def second(state):
    return {"log": ["second"]}


def make_graph():
    return StateGraph({"log": Channels.appender(list)})


def chain():
    return make_graph().add_sequence([first, second]).set_entry_point("first").set_finish_point("second")


@pytest.mark.parametrize("function", [lambda state: {}, copy.deepcopy(object)()])
def test_what_has_no_name_needs_an_id(function):
    with pytest.raises(GraphStateError):
        make_graph().add_node(function)


def test_a_sequence_has_functions_and_named_actions():
    graph = make_graph().add_sequence([first, ("between", lambda state: {"log": ["between"]}), second])
    app = graph.set_entry_point("first").set_finish_point("second").compile()

    assert app.invoke({}) == {"log": ["first", "between", "second"]}
    with pytest.raises(GraphStateError):
        make_graph().add_sequence([])


def test_checkpointer_is_checkpoint_saver():
    saver = MemorySaver()

    assert chain().compile(checkpointer=saver).compile_config.checkpoint_saver is saver
    with pytest.raises(TypeError, match="same option"):
        chain().compile(checkpointer=saver, checkpoint_saver=saver)


@pytest.mark.parametrize(
    ("option", "hint"),
    [("checkpoint_savr", "checkpoint_saver"), ("interupt_before", "interrupt_before"), ("debug", "observers")],
)
def test_an_unknown_option_of_compile_names_the_right_one(option, hint):
    with pytest.raises(TypeError, match=rf"{option}.*{hint}"):
        chain().compile(**{option: None})


@pytest.mark.parametrize("method", ["invoke", "invoke_final", "stream"])
@pytest.mark.parametrize(
    ("option", "hint"), [("interupt_before", "interrupt_before"), ("context", "metadata"), ("x", "interrupt_after")]
)
def test_an_unknown_option_of_a_run_names_the_right_one(method, option, hint):
    with pytest.raises(TypeError, match=rf"{option}.*{hint}"):
        getattr(chain().compile(), method)({}, **{option: {}})


def test_a_run_may_have_stops_of_its_own():
    app = chain().compile(checkpointer=MemorySaver())

    stopped = app.invoke({}, "t", interrupt_before=["second"])
    assert stopped == {"log": ["first"]}
    assert stopped.interrupts[0].node_id == "second"
    assert app.invoke(None, "t") == {"log": ["first", "second"]}
    assert app.invoke({}, "u", interrupt_after="first").interrupts[0].when == "after"

    with pytest.raises(GraphStateError, match="'secnd'"):
        app.invoke({}, "v", interrupt_before=["secnd"])


def test_a_command_resumes():
    def ask(state):
        return {"log": [interrupt("ok?")]}

    graph = make_graph().add_node(ask).set_entry_point("ask").set_finish_point("ask")
    app = graph.compile(checkpointer=MemorySaver())
    app.invoke({}, "t")

    assert app.invoke(Command(resume="yes"), "t") == {"log": ["yes"]}


def test_a_command_with_a_goto_is_no_input():
    with pytest.raises(GraphRunnerError, match="Command"):
        chain().compile().invoke(Command("second"))


@pytest.mark.parametrize(
    ("name", "hint"), [("with_config", "config"), ("batch", "invoke"), ("invok", "invoke"), ("zzzz", "no 'zzzz'")]
)
def test_a_method_of_other_libraries_is_explained(name, hint):
    with pytest.raises(AttributeError, match=hint):
        getattr(chain().compile(), name)


def test_a_compiled_graph_can_still_be_asked_for_anything():
    app = chain().compile()

    assert not hasattr(app, "_repr_svg_")
    assert copy.copy(app).topology is app.topology
    with pytest.raises(Exception, match=re.compile("pickle|local", re.IGNORECASE)):
        pickle.dumps(make_chain({}, a=lambda state: {}).compile())


def test_the_drawing_has_langgraphs_method():
    assert chain().compile().get_graph().draw_mermaid() == chain().compile().get_graph().content


class Send:
    """As LangGraph's class of this name."""

    def __init__(self, node, arg):
        self.node = node
        self.arg = arg


@pytest.mark.parametrize(
    "target", [["a", "b"], ("a",), {"b"}, [], Command(goto=["a", "b"]), Send("a", 1), [Send("a", 1)]]
)
def test_several_targets_name_a_fork_and_a_map(target):
    graph = make_graph().add_node("a", first).add_node("b", second).add_edge(START, "a").add_edge("b", END)
    graph.add_conditional_edges("a", lambda state: target)

    with pytest.raises(GraphRunnerError, match=r"the edge of 'a' leads to .*add_edge.*add_map_node"):
        graph.compile().invoke({})


class Foreign:
    """As a class of another library, of whose name graphkit has one too."""


Foreign.__module__ = "langgraph.types"
Foreign.__qualname__ = "Command"


def test_a_command_of_another_library_is_recognized():
    graph = make_graph().add_node("a", lambda state: Foreign(), destinations=[END]).set_entry_point("a")

    with pytest.raises(NodeExecutionError, match=r"langgraph\.types\.Command.*a graphkit\.Command"):
        graph.compile().invoke({})
    with pytest.raises(GraphRunnerError, match=r"langgraph\.types\.Command"):
        chain().compile().invoke(Foreign())
    with pytest.raises(GraphStateError, match=r"graphkit\.RetryPolicy, not langgraph"):
        make_graph().add_node("a", first, retry=Foreign())
    with pytest.raises(CheckpointerConfigurationError, match=r"package savers, not langgraph"):
        chain().compile(checkpointer=Foreign())


def test_start_and_end_of_langgraph_are_explained():
    with pytest.raises(GraphStateError) as caught:
        make_graph().add_node(first).add_edge("__start__", "first").add_edge("first", "__end__").compile()
    assert str(caught.value).count("import START and END from graphkit") == 2

    graph = make_graph().add_node(first).set_entry_point("first")
    graph.add_conditional_edges("first", lambda state: "__end__")
    with pytest.raises(GraphRunnerError, match="import START and END from graphkit"):
        graph.compile().invoke({})


def test_an_edge_of_several_sources_is_explained():
    with pytest.raises(GraphStateError, match=r"add_edge from each"):
        make_graph().add_node(first).add_node(second).add_edge(["first", "second"], "third")


@pytest.mark.parametrize("mode", ["messages", ["values", "debug"]])
def test_an_unknown_stream_mode_names_those_that_exist(mode):
    with pytest.raises(ValueError, match=r"'(messages|debug)'.*'values'.*'custom'"):
        chain().compile().stream({}, stream_mode=mode)


def test_what_runtime_has_is_explained():
    graph = make_graph().add_node("a", lambda state, runtime: runtime.context).set_entry_point("a")

    with pytest.raises(NodeExecutionError, match="metadata"):
        graph.set_finish_point("a").compile().invoke({})
    assert copy.deepcopy(RunnableConfig("t")) == pickle.loads(pickle.dumps(RunnableConfig("t"))) == RunnableConfig("t")


def test_attributes_of_langgraphs_snapshots_are_explained():
    app = chain().compile(checkpointer=MemorySaver())
    app.invoke({}, "t")

    with pytest.raises(AttributeError, match="interrupts"):
        app.get_state("t").tasks  # noqa: B018
    assert not hasattr(app.get_state("t"), "zzzz")


def test_an_unknown_node_is_answered_with_the_nearest_one():
    graph = make_graph().add_node(first)

    with pytest.raises(GraphStateError, match="'first'"):
        graph.add_edge(START, "frist").compile()
    with pytest.raises(GraphStateError, match=r"'frist'.*'first'"):
        chain().compile(interrupt_before=["frist"])
    routed = make_graph().add_node(first).set_entry_point("first").add_conditional_edges("first", lambda state: "frist")
    with pytest.raises(GraphRunnerError, match=r"'frist'.*'first'"):
        routed.compile().invoke({})


def test_a_graph_that_is_not_compiled_is_explained():
    with pytest.raises(AttributeError, match="compile"):
        _ = chain().invoke
    with pytest.raises(AttributeError, match="add_edge"):
        _ = chain().add_edg
    assert copy.deepcopy(chain()).compile().invoke({}) == {"log": ["first", "second"]}


def test_a_saver_in_place_of_the_config_names_the_option():
    with pytest.raises(TypeError, match="checkpoint_saver"):
        chain().compile(MemorySaver())


@pytest.mark.parametrize("key", ["threadId", "thread-id", "threadid"])
def test_a_misspelt_thread_id_does_not_run_on_the_thread_of_all(key):
    saver = MemorySaver()

    with pytest.raises(CheckpointerConfigurationError, match="thread_id"):
        chain().compile(checkpointer=saver).invoke({}, {"configurable": {key: "mine"}})
    assert not saver.threads()
    chain().compile(checkpointer=saver).invoke({}, {"configurable": {"thread_id": "mine", key: "a note"}})
    assert list(saver.threads()) == ["mine"]


def test_an_interrupt_without_a_saver_is_seen_and_cannot_be_answered():
    def ask(state):
        return {"log": [interrupt("ok?")]}

    app = make_graph().add_node(ask).set_entry_point("ask").set_finish_point("ask").compile()
    state = app.invoke({}, "t")
    assert payloads_of(state) == ["ok?"]
    assert "ok?" in str(state)
    with pytest.raises(CheckpointerConfigurationError, match="saver"):
        app.resume("t")
