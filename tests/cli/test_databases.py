"""The command line on databases: SQLite and PostgreSQL."""

import os
import sqlite3
from contextlib import closing
from unittest.mock import Mock

import psycopg
import pytest

from graphkit import Checkpoint
from graphkit.registry import get_saver
from graphkit.transfer import copy_threads
from savers import FileSystemSaver, SqliteSaver
from tests.support.logs import replace_bytes
from tests.support.terminal import assert_refused, damage, graphkit, read_json


@pytest.fixture
def connection(own_database):
    """A connection to a database without the schema of graphkit."""
    with psycopg.connect(own_database, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS graphkit CASCADE")


@pytest.fixture(params=["sqlite", "postgres"])
def empty(request, tmp_path):
    """The name of a database that does not exist, or has no tables."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'deep' / 'runs.db'}"
    request.getfixturevalue("connection")
    return f"postgres:{request.getfixturevalue('own_database')}"


@pytest.fixture
def database(empty, store):
    """The same threads as in `store`, in a database."""
    kind, _, path = empty.partition(":")
    with FileSystemSaver(store) as source, get_saver(kind, path=path) as target:
        copy_threads(source, target)
    return empty


def without_sizes(found):
    """Return JSON without the sizes, which differ from those of files, and what follows from them."""
    if isinstance(found, list):
        return [without_sizes(each) for each in found]
    if isinstance(found, dict):
        return {key: without_sizes(value) for key, value in found.items() if "size" not in key and key != "bytes"}
    return found


READS = [
    "threads {}", "threads {} --status interrupted --sort age", "threads {} --tag golden", "history {} order-18",
    "show {} order-18", "diff {} order-18", "stats {}", "interrupts {}", "search {} user=bert", "search {} source=input",
    "graph {} order-17",
]  # fmt: skip


def test_reading_shows_what_it_shows_of_a_directory(database, store):
    for command in READS:
        done, expected = (
            graphkit(*(word.format(name) for word in command.split()), "--json") for name in (database, store)
        )
        assert (done.code, done.err) == (0, ""), command
        assert without_sizes(done.json) == without_sizes(expected.json), command


def test_an_operator_changes_a_database_and_a_graph_runs_on_it(database, tmp_path, shop):
    def out(*words):
        done = graphkit(*words)
        assert (done.code, done.err) == (0, "")
        return done.out

    assert "waits inside approve" in out("run", database, "--app", shop, "--thread", "t", "--input", '{"item": "cup"}')
    assert graphkit("delete", database, "t", "--yes").code == 0

    assert "the next resume continues" in out("answer", database, "order-17", "--value", '"yes"')
    assert "stored for order-18" in out("update", database, "order-18", "--set", "item=box")
    assert out("fork", database, "order-18", "new").startswith("new begins with 2 checkpoints")
    assert out("copy", database, "order-18", "other") == "copied 2 checkpoints of order-18 to other\n"

    assert out("prune", database, "--keep-last", "1", "--dry-run") == "would remove 4 checkpoints of 5 threads\n"
    assert out("prune", database, "--keep-last", "1") == "removed 4 checkpoints of 5 threads\n"
    assert out("compact", database).startswith("freed ")
    assert out("release", database, "order-18") == "released 1 checkpoint of order-18 as version 1\n"
    assert out("export", database, "order-18", "--output", tmp_path / "one.jsonl").startswith("exported 1 thread")
    assert out("delete", database, "order-18", "--yes").startswith("deleted order-18, ")
    assert out("import", database, tmp_path / "one.jsonl").endswith("verified\n")
    assert read_json("history", database, "new")[0]["source"] == "fork"


def test_what_a_database_cannot_do_is_an_error_with_advice(database):
    for command, advice in (
        (["repair", database], "restore a backup, or copy the other threads"),
        (["rotate", database], "rotate needs the keys: --key-file names them"),
        (["export", database, "--raw"], "use the readable form"),
    ):
        done = graphkit(*command)
        assert_refused(done, 18, advice)


def test_a_store_that_cannot_be_repaired_is_not_sent_to_repair(monkeypatch, store):
    damage(store, "order-17")
    unrepairable = Mock(spec=["register_types", "verify", "close"], verify=FileSystemSaver(store).verify)
    monkeypatch.setattr("graphkit.registry.get_saver", lambda *_, **__: unrepairable)
    done = graphkit("verify", "memory:")
    assert (done.code, "graphkit repair" in done.out, "restore a backup" in done.out) == (12, False, True)


def test_a_connection_string_names_the_schema(own_database, connection, store):
    schema = "my orders"
    default = f"postgres:{own_database}"
    name = f"{default} schema='{schema}'"
    assert_refused(graphkit("threads", name), 13, f"no tables of graphkit in schema {schema} of")
    found = connection.execute("SELECT to_regnamespace(%s)", [f'"{schema}"'])
    row = found.fetchone()
    assert row == (None,), "reading makes none"
    assert graphkit("copy", store, "--to", name).code == 0
    with get_saver("postgres", path=own_database, schema=schema) as saver:
        assert sorted(saver.threads()) == ["import-a", "order-17", "order-18"]
    assert len(read_json("threads", name)) == 3
    assert graphkit("threads", default).code == 13
    # Another schema of the same database is another store.
    assert graphkit("copy", name, "--to", default).code == 0
    assert graphkit("delete", name, "order-17", "--yes").code == 0
    assert len(read_json("threads", default)) == 3


# Bad input


@pytest.mark.parametrize("sql", ["CREATE TABLE theirs (x)", "SELECT 1"], ids=["another program's", "an empty file"])
def test_reading_creates_no_tables_in_a_database_without_those_of_graphkit(tmp_path, sql):
    path = tmp_path / "other.db"
    path.touch()
    with closing(sqlite3.connect(path)) as other:
        other.execute(sql)
        other.commit()
    before = path.read_bytes()
    for command in (["threads"], ["verify"], ["compact"], ["delete", "--yes", "t"]):
        done = graphkit(command[0], f"sqlite:{path}", *command[1:])
        assert_refused(done, 13, "there are no tables of graphkit")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["other.db"]


def test_a_damaged_file_gives_up_the_threads_that_can_be_read(tmp_path):
    path = tmp_path / "runs.db"
    new = tmp_path / "new.db"
    texts = {thread: [os.urandom(3000) for _ in range(4)] for thread in "ab"}
    with SqliteSaver(path) as saver:
        for thread, values in texts.items():
            for value in values:
                checkpoint = Checkpoint(node_id="n", next_node_id="n", state={"value": value})
                saver.put(thread, checkpoint)
    data = path.read_bytes()
    page = data.index(texts["a"][2][-100:]) // 4096 * 4096
    path.write_bytes(replace_bytes(data, page, b"\xff" * 8))

    done = graphkit("copy", f"sqlite:{path}", "--to", f"sqlite:{new}")
    assert_refused(done, 12, "graphkit copy --to; .recover of")
    assert "repair" not in done.err
    assert "(cannot copy a; all others are done)" in done.err
    assert graphkit("verify", f"sqlite:{new}").code == 0

    with SqliteSaver(new) as saver:
        assert saver.threads() == ["b"]
        assert [checkpoint.state["value"] for checkpoint in saver.replay("b")] == texts["b"]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("postgres:nonsense", 18, "connection_string is not understood"),
        ("postgres:host=/nowhere", 15, "check the connection string, and that the server runs"),
        ("postgres:{} user=absent", 15, 'role "absent" does not exist'),
        ("postgres:{} dbname=absent", 15, 'database "absent" does not exist'),
        ("sqlite:{directory}/absent/runs.db", 18, "there is no database file"),
    ],
)
def test_a_wrong_name(own_database, tmp_path, name, code, message):
    done = graphkit("threads", name.format(own_database, directory=tmp_path))
    assert (done.code, message in done.err, done.err.count("\n")) == (code, True, 1)
