"""Rows of docs/requirements.md that are about databases: configuration, moving, cold reads."""

import json
import random
import shutil
from pathlib import Path

import pytest

from graphkit import Checkpoint, RunnableConfig
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


def count_cold_read(open_saver, config):
    """Return the statements and the bytes that a new saver reads for the state of a checkpoint."""
    with open_saver() as saver:
        saver.threads()  # opens the database
        statements: list[int] = []
        read = saver._database.read

        def count(sql, parameters=()):
            rows = read(sql, parameters)
            statements.append(sum(len(value) for row in rows for value in row if isinstance(value, bytes)))
            return rows

        saver._database.read = count
        state = saver.get(config).state
        assert len(state["document"]) == 1_000_000
        return len(statements), sum(statements), state["n"]


@pytest.mark.requirement("H33", "P85")
def test_a_cold_read_of_a_long_history_costs_what_the_state_costs(tmp_path, sweep):
    checkpoints = sweep.count(10_000, 2_000)

    def open_saver():
        return SqliteSaver(tmp_path / "runs.db", fsync="never")

    document = random.Random(85).randbytes(1_000_000)
    thread = RunnableConfig("t")
    with open_saver() as saver:
        ids = []
        for n in range(checkpoints):
            checkpoint = Checkpoint(node_id="a", next_node_id="a", state={"document": document, "n": n})
            saver.put(thread, checkpoint)
            ids.append(checkpoint.id)
    for wanted in (checkpoints - 1, checkpoints // 2, 3):
        config = thread if wanted == checkpoints - 1 else thread.with_check_point_id(ids[wanted])
        statements, size, found = count_cold_read(open_saver, config)
        assert found == wanted
        assert statements <= 12
        # The state, and between its parts what is cheaper read than left out.
        assert size < 4_000_000
