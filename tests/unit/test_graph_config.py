"""GraphConfig and CheckpointConfig: go-agents-orchestration's configurations."""

import json
from itertools import combinations, product

import pytest

from graphkit.compat.go_agents import CheckpointConfig, CheckpointStore, GraphConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.observers import Metrics, get_observer
from graphkit.registry import get_checkpoint_store
from savers import FileSystemSaver, MemorySaver
from tests.support.graphs import make_chain

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
    checkpoint = config.checkpoint
    assert checkpoint == CheckpointConfig()
    assert (checkpoint.store, checkpoint.interval, checkpoint.preserve) == ("memory", 0, False)
    assert GraphConfig().name == ""
    assert GraphConfig.from_json("{}") == GraphConfig()
    with pytest.raises(ValueError):
        config.name = "other"


STORED = {"store": "disk", "interval": 5, "preserve": True, "options": {"fsync": "never"}}
FIRST = {"name": "g", "observer": "slog", "max_iterations": 3, "checkpoint": STORED}
SECOND = {"name": "", "observer": None, "max_iterations": 9, "checkpoint": {"store": None, "interval": 0, "path": "x"}}


def subsets(fields):
    return [{name: fields[name] for name in names} for count in range(5) for names in combinations(fields, count)]


@pytest.mark.requirement("G11", "G12")
def test_json_keeps_all_and_merge_takes_what_is_set():
    for first, second in product(subsets(FIRST), subsets(SECOND)):
        one, other = GraphConfig(**first), GraphConfig(**second)
        assert GraphConfig.from_json(one.to_json()) == one
        expected = first | second
        if "checkpoint" in expected:
            expected["checkpoint"] = first.get("checkpoint", {}) | second.get("checkpoint", {})
        assert one.merge(other) == GraphConfig(**expected)
        assert one.merge(GraphConfig.from_json(other.to_json())) == GraphConfig(**expected)


@pytest.mark.requirement("G12")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "not JSON"),
        ('{"checkpoint": {"options": {"k": NaN}}}', "not JSON"),
        ('{"speed": 1}', "speed"),
        ('{"max_iterations": "3"}', "max_iterations"),
        ('{"checkpoint": {"interval": -1}}', "checkpoint.*interval"),
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
    assert (options["checkpoint_saver"], options["checkpoint_interval"], options["observers"]) == (None, 0, ())


def test_a_graph_without_a_name_can_be_submitted():
    saver = MemorySaver()
    options = GraphConfig(checkpoint=CheckpointConfig(interval=1)).compile_options(store=saver)

    make_chain({}, a=lambda _: {}).compile(**options).submit({}, "t")

    assert saver.summary("t").status == "queued"


@pytest.mark.requirement("G35")
@pytest.mark.parametrize("store", ["disk", "file"])
def test_the_disk_works_from_json_alone(store, tmp_path):
    checkpoint = {"store": store, "interval": 1, "path": str(tmp_path), "options": {"fsync": "never"}}
    saver = GraphConfig.from_json(json.dumps({"checkpoint": checkpoint})).compile_options()["checkpoint_saver"]
    assert isinstance(saver, FileSystemSaver)
    assert saver.base_directory == str(tmp_path)


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
    for path, option in ((None, "name"), ("runs", "name"), ("runs", "path")):
        twice = CheckpointConfig(store="disk", interval=1, path=path, options={option: "other"})
        with pytest.raises(CheckpointerConfigurationError, match=f"'{option}' cannot be one of the options"):
            twice.open()


@pytest.mark.requirement("G14")
def test_objects_in_place_of_names():
    config = GraphConfig(observer="missing", checkpoint=CheckpointConfig(store="nowhere", interval=2))
    saver, metrics = MemorySaver(), Metrics()
    for store in (saver, CheckpointStore(saver)):
        options = config.compile_options(store=store, observer=metrics)
        assert (options["checkpoint_saver"], options["observers"]) == (saver, (metrics,))
    off = config.merge(GraphConfig(checkpoint=CheckpointConfig(interval=0)))
    assert off.compile_options(store=saver, observer=metrics)["checkpoint_saver"] is None
