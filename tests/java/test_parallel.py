"""langgraph4j's parallel branches, re-stated; and its defects there, which are not copied."""

import operator
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import END, START, Channels, CompileConfig, RunnableConfig, StateGraph
from savers import MemorySaver

CONFIG = RunnableConfig.builder().threadId("t").build()


def graph(*edges, channels=None, **nodes):
    built = StateGraph({"messages": Channels.appenderWithDuplicate()} if channels is None else channels)
    names = dict.fromkeys(name for edge in edges for name in edge if name not in {START, END})
    for name in names:
        built.addNode(name, nodes.get(name) or (lambda state, name=name: {"messages": name}))
    for source, target in edges:
        built.addEdge(source, target)
    return built


def nodes(stream):
    return [output.node for output in stream]


DIAMOND = [
    (START, "A"),
    ("A", "A1"),
    ("A", "A2"),
    ("A", "A3"),
    ("A1", "B"),
    ("A2", "B"),
    ("A3", "B"),
    ("B", "C"),
    ("C", END),
]


@pytest.mark.requirement("behaviour 13")
def test_one_output_and_one_checkpoint_per_fork():
    saver = MemorySaver()
    compiled = graph(*DIAMOND).compile(CompileConfig.builder().checkpointSaver(saver).build())
    assert nodes(compiled.stream({}, CONFIG)) == [START, "A", "__PARALLEL__(A)", "B", "C", END]
    history = [(snapshot.getNodeId(), snapshot.getNextNodeId()) for snapshot in compiled.getStateHistory(CONFIG)]
    assert history == [
        ("C", END),
        ("B", "C"),
        ("__PARALLEL__(A)", "B"),
        ("A", "__PARALLEL__(A)"),
        (START, "A"),
    ]
    assert compiled.getState(CONFIG).state["messages"] == ["A", "A1", "A2", "A3", "B", "C"]


@pytest.mark.requirement("behaviour 13")
def test_reducers_run_once_and_a_default_counts_once():  # there 23 in b5, for 13 in sequence
    channels = {"sum": Channels.base(operator.add, lambda: 10)}
    edges = [(START, "A1"), (START, "A2"), ("A1", END), ("A2", END)]
    compiled = graph(*edges, channels=channels, A1=lambda state: {"sum": 1}, A2=lambda state: {"sum": 2}).compile()
    assert compiled.invoke({})["sum"] == 13


def test_an_executor_per_fork():
    where = lambda state: {"messages": threading.current_thread().name}  # noqa: E731
    edges = [(START, "A"), ("A", "A1"), ("A", "A2"), ("A1", END), ("A2", END)]
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        config = RunnableConfig.builder().addParallelNodeExecutor("A", pool).build()
        compiled = graph(*edges, A=lambda state: None, A1=where, A2=where).compile()
        assert compiled.invoke({}, config)["messages"] == ["mine_0", "mine_0"]
