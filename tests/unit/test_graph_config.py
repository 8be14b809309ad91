"""GraphConfig and CheckpointConfig: go-agents-orchestration's configurations."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from graphkit.compat.go_agents import CheckpointConfig, CheckpointStore, GraphConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.observers import Metrics, get_observer
from graphkit.registry import get_checkpoint_store
from savers import FileSystemSaver, MemorySaver
from tests.support.sweeps import examples

DOCUMENTED = """{
  "name": "document-workflow",
  "observer": "slog",
  "max_iterations": 500,
  "checkpoint": {"store": "memory", "interval": 10, "preserve": true}
}"""


@pytest.mark.requirement("G10", "G12")
def test_defaults():
    config = GraphConfig("g")
    assert (config.name, config.observer, config.max_iterations) == ("g", "logging", 1000)
    assert config.checkpoint == CheckpointConfig()
    assert (config.checkpoint.store, config.checkpoint.interval, config.checkpoint.preserve) == ("memory", 0, False)
    assert GraphConfig().name == ""


@pytest.mark.requirement("G12")
def test_json():
    config = GraphConfig.from_json(DOCUMENTED)
    assert json.loads(config.to_json()) == json.loads(DOCUMENTED)
    assert config == GraphConfig(
        "document-workflow",
        observer="slog",
        max_iterations=500,
        checkpoint=CheckpointConfig(store="memory", interval=10, preserve=True),
    )
    assert GraphConfig.from_json("{}") == GraphConfig()


checkpoints = st.fixed_dictionaries(
    {},
    optional={
        "store": st.none() | st.text(),
        "interval": st.integers(0, 10**9),
        "preserve": st.booleans(),
        "path": st.none() | st.text(),
        "options": st.dictionaries(st.text(), st.none() | st.booleans() | st.integers(0, 9) | st.text()),
    },
)
graphs = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(),
        "observer": st.none() | st.text(),
        "max_iterations": st.integers(1, 10**9),
        "checkpoint": checkpoints,
    },
)


@pytest.mark.requirement("G11", "G12")
@settings(max_examples=examples(40))
@given(graphs, graphs)
def test_json_keeps_all_and_merge_takes_what_is_set(first, second):
    one, other = GraphConfig(**first), GraphConfig(**second)
    assert GraphConfig.from_json(one.to_json()) == one
    inner = {**first.get("checkpoint", {}), **second.get("checkpoint", {})}
    expected = {**first, **second} | ({"checkpoint": inner} if "checkpoint" in {*first, *second} else {})
    for left, right in ((one, other), (GraphConfig.from_json(one.to_json()), GraphConfig.from_json(other.to_json()))):
        assert left.merge(right) == GraphConfig(**expected)


@pytest.mark.requirement("G12")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "not JSON"),
        ("[]", "must be a mapping"),
        ('{"speed": 1}', "speed"),
        ('{"max_iterations": "3"}', "max_iterations"),
        ('{"checkpoint": {"interval": -1}}', "checkpoint.*interval"),
        ('{"checkpoint": {"intervall": 1}}', "checkpoint.*intervall"),
        ('{"checkpoint": 1}', "checkpoint"),
    ],
)
def test_what_is_wrong_is_named(text, reason):
    with pytest.raises(CheckpointerConfigurationError, match=reason):
        GraphConfig.from_json(text)


@pytest.mark.requirement("G10")
def test_no_repr_shows_a_connection_string():
    address = "postgresql://me:hunter2@host/db"
    options = CheckpointConfig(store="postgres", options={"connection_string": address})
    path = CheckpointConfig(store="postgres", path=address)
    assert "hunter2" not in repr(GraphConfig(checkpoint=options)) + repr(GraphConfig(checkpoint=path))


def test_configurations_do_not_change():
    for config in (GraphConfig("g"), CheckpointConfig()):
        with pytest.raises(ValueError):
            config.interval = 3


@pytest.mark.requirement("G10", "G12", "G13")
def test_the_options_of_compile():
    assert GraphConfig.from_json(DOCUMENTED).compile_options() == {
        "checkpoint_saver": get_checkpoint_store("memory"),
        "checkpoint_interval": 10,
        "preserve": True,
        "observers": (get_observer("slog"),),
        "max_iterations": 500,
        "graph_id": "document-workflow",
    }
    options = GraphConfig("g", observer=None).compile_options()
    assert (options["checkpoint_saver"], options["checkpoint_interval"], options["preserve"]) == (None, 0, False)
    assert options["observers"] == ()


@pytest.mark.requirement("G35")
@pytest.mark.parametrize("store", ["disk", "file"])
def test_the_disk_works_from_json_alone(store, tmp_path):
    where = tmp_path / "checkpoints"
    text = json.dumps(
        {"checkpoint": {"store": store, "interval": 1, "path": str(where), "options": {"fsync": "never"}}}
    )
    saver = GraphConfig.from_json(text).compile_options()["checkpoint_saver"]
    assert isinstance(saver, FileSystemSaver)
    assert saver.base_directory == str(where)
    assert where.is_dir()


@pytest.mark.requirement("G13", "G14")
def test_a_store_is_looked_up_when_the_graph_is_made_and_only_if_it_saves():
    nowhere = GraphConfig(checkpoint=CheckpointConfig(store="nowhere", interval=1))
    with pytest.raises(CheckpointerConfigurationError, match="unknown checkpoint store 'nowhere'"):
        nowhere.compile_options()
    off = nowhere.merge(GraphConfig(checkpoint=CheckpointConfig(interval=0)))
    assert off.compile_options()["checkpoint_saver"] is None
    for store in (None, ""):
        with pytest.raises(CheckpointerConfigurationError, match="needs a store"):
            GraphConfig(checkpoint=CheckpointConfig(store=store, interval=1)).compile_options()
    with pytest.raises(CheckpointerConfigurationError, match="base_directory"):
        GraphConfig(checkpoint=CheckpointConfig(store="disk", interval=1)).compile_options()
    with pytest.raises(CheckpointerConfigurationError, match="unknown observer 'missing'"):
        GraphConfig(observer="missing").compile_options()


@pytest.mark.requirement("G14")
def test_objects_in_place_of_names():
    config = GraphConfig(observer="missing", checkpoint=CheckpointConfig(store="nowhere", interval=2))
    saver, metrics = MemorySaver(), Metrics()
    for store in (saver, CheckpointStore(saver)):
        options = config.compile_options(store=store, observer=metrics)
        assert (options["checkpoint_saver"], options["observers"]) == (saver, (metrics,))
    off = config.merge(GraphConfig(checkpoint=CheckpointConfig(interval=0)))
    assert off.compile_options(store=saver, observer=metrics)["checkpoint_saver"] is None
