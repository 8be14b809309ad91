"""DefaultThreadWarning: a run without a thread id on a durable saver says, once per saver, whose state it takes."""

import asyncio
import warnings

import pytest

from graphkit import DefaultThreadWarning, GraphResume, RunnableConfig
from savers import FileSystemSaver, MemorySaver, SaverWrapper, VersionedMemorySaver
from tests.support.graphs import make_chain


@pytest.fixture
def graph():
    return make_chain({}, a=lambda state: {"n": 1})


@pytest.fixture
def saver(tmp_path):
    return FileSystemSaver(tmp_path)


RUNS = {
    "invoke": lambda app: app.invoke({}),
    "stream": lambda app: list(app.stream({}, {"configurable": {}})),
    "ainvoke": lambda app: asyncio.run(app.ainvoke({})),
    "resume": lambda app: app.invoke(GraphResume(update={"n": 2})),
}


@pytest.mark.requirement("P13")
@pytest.mark.parametrize("run", RUNS)
def test_a_run_without_a_thread_id_on_a_durable_saver_warns_once(graph, saver, run):
    app = graph.compile(checkpoint_saver=saver)
    app.invoke({}, RunnableConfig("$default"))
    with pytest.warns(DefaultThreadWarning, match=r"no thread id.*'\$default'.*thread_id") as caught:
        RUNS[run](app)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RUNS[run](app)
        RUNS[run](graph.compile(checkpoint_saver=saver))


def test_it_blames_the_line_that_runs_the_graph(graph, saver):
    with pytest.warns(DefaultThreadWarning) as caught:
        graph.compile(checkpoint_saver=saver).invoke({})
    assert caught[0].filename == __file__


def test_a_wrapper_is_as_durable_as_what_it_wraps(graph, saver):
    with pytest.warns(DefaultThreadWarning):
        graph.compile(checkpoint_saver=SaverWrapper(saver)).invoke({})
    assert not SaverWrapper(MemorySaver()).is_durable


@pytest.mark.parametrize("saver", [MemorySaver(), VersionedMemorySaver(), None])
def test_what_forgets_everything_does_not_warn(graph, saver):
    graph.compile(checkpoint_saver=saver).invoke({})


def test_a_thread_id_and_looking_and_correcting_do_not_warn(graph, saver):
    app = graph.compile(checkpoint_saver=saver)
    app.invoke({}, RunnableConfig("$default"))
    app.update_state(None, {"n": 3})
    assert app.get_state().state["n"] == 3


def test_as_an_error_it_is_raised_before_anything_runs(graph, saver):
    app = graph.compile(checkpoint_saver=saver)
    with pytest.raises(DefaultThreadWarning):
        app.invoke({})
    assert not saver.list()
