"""Rows of docs/requirements.md that are about the configuration of databases."""

import json

import pytest

from graphkit import RunnableConfig
from graphkit.compat.go_agents import GraphConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.registry import get_saver
from tests.support.graphs import make_chain


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
