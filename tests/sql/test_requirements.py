"""Rows of docs/requirements.md that are about databases: configuration and moving."""

import json
import shutil
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from graphkit.compat.go_agents import GraphConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.registry import get_saver
from graphkit.transfer import copy_threads
from savers import FileSystemSaver, SqliteSaver
from tests.disk.golden import make as golden
from tests.support.graphs import make_chain
from tests.support.threads import assert_same

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "disk" / "golden"


@pytest.fixture
def options(request, tmp_path):
    """Returns the options of a saver, as its documentation names them."""

    def make(kind):
        if kind == "sqlite":
            return {"db_file": str(tmp_path / "missing" / "parent" / "runs.db")}
        if kind == "postgres":
            server = request.getfixturevalue("server")
            return {"connection_string": server.connection_string, "schema": request.getfixturevalue("schema")}
        return {"base_directory": str(tmp_path / "missing" / "runs")}

    return make


@pytest.mark.requirement("G35", "P3")
@pytest.mark.parametrize("kind", ["disk", "file", "sqlite", "postgres"])
def test_a_graph_runs_and_continues_on_each_store_from_json_alone(kind, options):
    checkpoint = {"store": kind, "interval": 1, "preserve": True, "options": options(kind)}
    text = json.dumps({"checkpoint": checkpoint})

    graph = make_chain({}, add=lambda state: {"n": state.get("n", 0) + 1})
    for expected in (1, 2):
        config = GraphConfig.from_json(text)
        app = graph.compile(**config.compile_options())
        with app.compile_config.saver:
            assert app.invoke({}, RunnableConfig("t"))["n"] == expected

    with pytest.raises(CheckpointerConfigurationError, match=next(iter(checkpoint["options"]))):
        get_saver(kind)


@pytest.mark.requirement("P54")
@pytest.mark.parametrize("version", ["v2", "v2.1"])
def test_directories_of_older_formats_move_to_a_database(tmp_path, version):
    old = shutil.copytree(GOLDEN / version, tmp_path / "old")
    new = tmp_path / "new.db"
    with FileSystemSaver(old) as source, SqliteSaver(new) as target:
        for name, cls in golden.TYPES.items():
            source._codec.register_as(name, cls)
            target._codec.register_as(name, cls)
        copy_threads(source, target)
        for thread in source.threads():
            assert_same(source, target, thread, thread)
        for saver in (source, target):
            assert saver.versions_by_thread_id("released") == [1, 2]
