"""RunnableConfig and CompileConfig: frozen objects, builders, and LangGraph's mappings."""

import pickle

import pytest

from graphkit import CompileConfig, RunnableConfig, StreamMode
from graphkit.errors import CheckpointerConfigurationError


def test_it_is_immutable():
    mine = {"k": 1}
    config = RunnableConfig("t", metadata=mine)
    mine["k"] = 2
    assert config.metadata == {"k": 1}
    with pytest.raises(AttributeError):
        config.thread_id = "u"
    with pytest.raises(TypeError):
        config.metadata["k"] = 2


def test_it_reads_like_langgraphs():
    config = RunnableConfig("t", "c", "ns", metadata={"user": "ann"}, max_iterations=3, max_concurrency=2)
    assert config["configurable"] == {"user": "ann", "thread_id": "t", "checkpoint_ns": "ns", "checkpoint_id": "c"}
    assert (config["metadata"], config["recursion_limit"], config["max_concurrency"]) == ({"user": "ann"}, 3, 2)
    assert config.get("nothing", 1) == 1
    assert RunnableConfig().get("recursion_limit") is None
    with pytest.raises(KeyError):
        config["nothing"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, RunnableConfig()),
        ({"configurable": {"thread_id": None}}, RunnableConfig()),
        ({"configurable": {"thread_id": 7}}, RunnableConfig("7")),
        (
            {"configurable": {"thread_id": "t", "checkpoint_id": "c", "checkpoint_ns": "n"}},
            RunnableConfig("t", "c", "n"),
        ),
        ({"configurable": {"user": "ann"}, "metadata": {"k": 1}}, RunnableConfig(metadata={"user": "ann", "k": 1})),
        ({"recursion_limit": 5, "tags": ["x"], "callbacks": None}, RunnableConfig(max_iterations=5)),
        ({"tags": ["x"], "callbacks": [print], "run_name": "n", "run_id": "r"}, RunnableConfig()),
        ({"max_concurrency": 3}, RunnableConfig(max_concurrency=3)),
        ({"max_concurrency": 0}, RunnableConfig()),
    ],
)
def test_what_a_config_may_be(given, expected):
    assert RunnableConfig.of(given) == expected
    assert RunnableConfig.of(expected) is expected
    assert pickle.loads(pickle.dumps(expected)) == expected


@pytest.mark.parametrize(
    "wrong",
    [3, ["t"], {"thread_id": "t"}, {"configurable": {"thread_id": 1.5}}, {"configurable": "t"}, {"metadata": 3}],
)
def test_what_no_config_is(wrong):
    with pytest.raises(CheckpointerConfigurationError):
        RunnableConfig.of(wrong)


@pytest.mark.parametrize("name", ["max_iterations", "max_concurrency", "thread_id", "checkpoint_ns", "metadata"])
def test_the_error_names_the_field_that_cannot_be_zero(name):
    with pytest.raises(ValueError, match=name):
        RunnableConfig(**{name: 0})


@pytest.mark.parametrize("wrong", [{"metadata": {5: 1}}, {"stream_mode": 5}, {"stream_mode": "chunks"}])
def test_a_wrong_key_of_metadata_and_an_unknown_stream_mode_are_named(wrong):
    with pytest.raises(ValueError, match=r"a key of metadata must be a str|there is no stream mode"):
        RunnableConfig(**wrong)


def test_with_methods_return_the_same_object_if_nothing_changes():
    config = RunnableConfig("t", "c")
    assert config.with_stream_mode(StreamMode.VALUES) is config
    assert config.with_check_point_id("c") is config
    other = config.with_stream_mode("snapshots").with_check_point_id(None)
    assert (other.stream_mode, other.checkpoint_id, other.thread_id) == (StreamMode.SNAPSHOTS, None, "t")


# --- CompileConfig ----------------------------------------------------------------------------------------------------


def test_stops_are_kept_once_and_in_order():
    config = CompileConfig(interrupt_before="abc", interrupt_after=["b", "a", "b"])
    assert (config.interrupt_before, config.interrupt_after) == (("abc",), ("b", "a"))
