"""langgraph4j's constants, options, serializer and its list of defects, re-stated.

What was reproduced there must not happen here. The tests of what it became bear its numbers; here is the rest.
"""

import pytest

from graphkit import END, START, CompileConfig, StateGraph
from savers import MemorySaver
from tests.support.graphs import connect, nodes_of


@pytest.mark.requirement("behaviour 1")
def test_constants():
    """START, END, the default thread, and the ids of forks and merged nodes."""
    assert (START, END, MemorySaver.THREAD_ID_DEFAULT) == ("__START__", "__END__", "$default")
    child = StateGraph({}).add_node("a", lambda state: None).add_edge(START, "a").add_edge("a", END)
    graph = connect(StateGraph({}).add_node("s", child).add_node("b", lambda state: None), "START>s,b s>END b>END")
    nodes = nodes_of(graph.compile().stream({}))
    assert nodes == [START, "__PARALLEL__(__START__)", END]
    assert set(graph.compile().topology.nodes) == {"s-a", "b"}


@pytest.mark.requirement("behaviour 4")
def test_options_of_a_compiled_graph_show_the_merged_ids():
    """Each call of the builder replaces the set, and S becomes its first node."""
    config = CompileConfig.builder().interruptBefore("x", "y").interruptBefore("s").build()
    assert config.interruptsBefore() == ("s",)
    child = StateGraph({}).add_node("a", lambda state: None).add_edge(START, "a").add_edge("a", END)
    graph = StateGraph({}).add_node("s", child).add_edge(START, "s").add_edge("s", END)
    assert graph.compile(config).compileConfig().interruptsBefore() == ("s-a",)
