"""From the databases of LangGraph's own savers to files or to our tables, and on from there."""

import sqlite3
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command, Send

from graphkit import CheckpointStorageError
from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError
from savers import FileSystemSaver, MemorySaver
from savers.langgraph import (
    CheckpointSaver,
    FileSystemCheckpointSaver,
    PostgresCheckpointSaver,
    SqliteCheckpointSaver,
    import_langgraph_postgres,
    import_langgraph_sqlite,
)
from tests.integrations import langgraph_graphs as graphs
from tests.integrations.langgraph_graphs import Note, notes
from tests.integrations.test_langgraph_store import Rot
from tests.support import postgres_server
from tests.support.terminal import assert_shows, graphkit


class Database(NamedTuple):
    """A saver of LangGraph's own, the import from it, and SQL for it."""

    saver: Any
    bring: Callable
    execute: Callable


def thread(name):
    return {"configurable": {"thread_id": name}}


@contextmanager
def _sqlite(tmp_path, serde=None):
    file = tmp_path / "langgraph.db"
    connection = sqlite3.connect(file, check_same_thread=False)
    saver = SqliteSaver(connection, serde=serde)
    saver.setup()

    def execute(statement):
        connection.execute(statement.replace("%s", "?"))
        connection.commit()

    try:
        yield Database(saver, lambda *args, **options: import_langgraph_sqlite(file, *args, **options), execute)
    finally:
        connection.close()


@contextmanager
def _postgres(connection_string, serde=None):
    with PostgresSaver.from_conn_string(connection_string) as saver:
        saver.serde = serde or saver.serde
        saver.setup()
        try:
            yield Database(
                saver,
                lambda *args, **options: import_langgraph_postgres(connection_string, *args, **options),
                saver.conn.execute,
            )
        finally:
            for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
                saver.conn.execute(f"DELETE FROM {table}")


@pytest.fixture(params=["sqlite", "postgres"])
def opening(request, tmp_path):
    """Opens a database of LangGraph's, with a serializer."""
    if request.param == "sqlite":
        return lambda serde=None: _sqlite(tmp_path, serde)
    connection_string = request.getfixturevalue("own_database")
    return lambda serde=None: _postgres(connection_string, serde)


@pytest.fixture
def database(opening):
    with opening() as found:
        yield found


def fill(saver):
    """Threads of every kind: finished, waiting, failed, forked, with subgraphs and delta channels."""

    def run(graph, given, name, **more):
        app = graph.compile(checkpointer=saver)
        app.invoke(given, {**thread(name), **more})
        return app

    run(graphs.loop(), {"n": 0}, "loop", metadata={"user": "ada"})
    run(graphs.nested(), {"log": ["in"]}, "nested")
    for n in range(4):
        run(graphs.chat(), graphs.said(n), "a/../chat \U0001f600")

    with pytest.raises(ValueError, match="for a while"):
        run(graphs.parallel([1]), {"log": []}, "failed", max_concurrency=1)
    deltas = run(graphs.delta(3), {"log": ["in"], "n": 0}, "delta")
    history = [*deltas.get_state_history(thread("delta"))]
    past = history[3].config
    deltas.update_state(past, {"log": ["fork"], "n": 1}, as_node="b")
    run(notes(), {"note": Note("old")}, "notes")


def seen(saver):
    """All of a store, without what only tells where it is."""
    return [
        (saved.config, saved.checkpoint, saved.metadata, saved.parent_config, saved.pending_writes)
        for saved in sorted(saver.list(None), key=lambda one: str(one.config))
    ]


def test_everything_is_there_and_the_same(database, tmp_path):
    fill(database.saver)
    steps = []
    runs = tmp_path / "runs"
    report = database.bring(runs, progress=lambda *step: steps.append(step))
    count = len([*database.saver.list(None)])
    assert (report.ok, report.problems, report.threads, report.skipped, report.checkpoints) == (True, (), 6, 0, count)

    ours = FileSystemCheckpointSaver(runs, types=[Note])

    assert [step[:2] for step in steps] == [(done, count) for done in range(1, count + 1)]
    assert {thread_id for *_, thread_id in steps} == {*ours.store.threads()}

    database.saver.serde = ours.serde

    assert seen(ours) == seen(database.saver)
    assert ours.store.verify().ok
    assert ours.store.search({"user": "ada", "step": 1})
    # Damage of the store is reported, although nothing has to be written.
    (log,) = runs.glob("t-notes-*/log")
    log.with_name("v000001.log").write_bytes(log.read_bytes()[:-5])

    assert not database.bring(runs).ok


def test_what_differs_when_it_is_read_back_is_reported(database, tmp_path):
    fill(database.saver)
    database.bring(tmp_path / "runs")
    table = "checkpoint_writes" if isinstance(database.saver, PostgresSaver) else "writes"
    database.execute("UPDATE checkpoints SET parent_checkpoint_id = 'other' WHERE thread_id = 'loop'")
    database.execute(f"UPDATE {table} SET task_id = 'x' || task_id WHERE thread_id = 'failed'")
    report = database.bring(tmp_path / "runs")
    assert not report.ok

    found = {(problem.split("'")[1], problem.rsplit(" ", 2)[1]) for problem in report.problems}
    assert found == {("loop", "parent"), ("failed", "writes")}


def test_encrypted_values_stay_encrypted(opening, tmp_path):
    runs = tmp_path / "runs"
    serde = EncryptedSerializer(Rot(), JsonPlusSerializer(allowed_msgpack_modules=None))
    ours = FileSystemCheckpointSaver(runs, serde=serde, types=[Note])

    with opening(serde) as database:
        app = graphs.loop().compile(checkpointer=database.saver)
        app.invoke({"n": 0}, thread("loop"))
        noting = notes().compile(checkpointer=database.saver)
        noting.invoke({"note": Note("old")}, thread("notes"))
        with pytest.raises(CheckpointerConfigurationError, match="pass the serializer that wrote them"):
            database.bring(tmp_path / "without")

        first = database.bring(runs, serde=serde)
        assert (first.ok, first.skipped) == (True, 0)

        again = database.bring(runs, serde=serde)
        assert (again.ok, again.checkpoints, again.skipped) == (True, 0, first.checkpoints)

        assert ours.get_tuple(thread("notes")).checkpoint["channel_values"]["note"] == Note("new")

        loop = {"configurable": {"thread_id": "loop", "checkpoint_ns": ""}}
        found = [saved.checkpoint for saved in ours.list(loop)]
        assert found == [saved.checkpoint for saved in database.saver.list(loop)]
        # What the database has lost stays in the store, beside what is new.
        database.execute("DELETE FROM checkpoints")
        app.invoke({"n": 1}, thread("loop"))
        added = database.bring(runs, serde=serde).checkpoints
        assert added > 0
        assert [saved.checkpoint for saved in ours.list(loop)][added:] == found


def test_a_damaged_checkpoint_is_named_and_the_others_are_imported(database, tmp_path):
    graphs.loop().compile(checkpointer=database.saver).invoke({"n": 0}, thread("loop"))
    count = len([*database.saver.list(None)])
    database.execute(
        "UPDATE checkpoints SET metadata = '[]' WHERE checkpoint_id = (SELECT min(checkpoint_id) FROM checkpoints)"
    )
    for stored in (0, count - 1):
        report = database.bring(tmp_path / "runs")
        assert (report.checkpoints, report.skipped) == (count - 1 - stored, stored)
        (problem,) = report.problems
        assert problem.startswith("thread 'loop', namespace '', checkpoint ")
        assert "it is damaged in the database" in problem


def test_what_was_added_since_is_added(database, tmp_path):
    app = graphs.nested().compile(checkpointer=database.saver)
    app.invoke({"log": ["in"]}, thread("nested"))
    store = MemorySaver()
    targets = [tmp_path / "runs", store]
    for target in targets:
        assert database.bring(target).ok
    app.invoke(Command(resume="yes"), thread("nested"))
    for target in targets:
        report = database.bring(target)
        assert (report.ok, report.problems) == (True, ())
        assert report.checkpoints > 0
        assert report.skipped > 0
    files = FileSystemCheckpointSaver(tmp_path / "runs")
    assert seen(files) == seen(CheckpointSaver(store)) == seen(database.saver)


def test_sends_of_an_old_format_are_found_at_the_parent(own_database, tmp_path):
    send = Send("node", {"a": 1})

    with _postgres(own_database) as database:
        saver = database.saver
        config = {"configurable": {"thread_id": "old", "checkpoint_ns": ""}}
        first = saver.put(config, {**empty_checkpoint(), "v": 3}, {}, {})
        saver.put_writes(first, [("__pregel_tasks", send)], "task")
        saver.put(first, {**empty_checkpoint(), "v": 3}, {}, {})
        expected = saver.get_tuple(thread("old")).checkpoint
        assert database.bring(tmp_path / "runs").ok

    found = FileSystemCheckpointSaver(tmp_path / "runs").get_tuple(thread("old")).checkpoint
    assert found["channel_values"] == {"__pregel_tasks": [send]}
    assert found == expected | {"channel_versions": found["channel_versions"]}


def test_an_import_through_a_pooler_of_transactions_leaves_no_prepared_statement(server, own_database, tmp_path):
    with _postgres(own_database) as database:
        graphs.loop().compile(checkpointer=database.saver).invoke({"n": 0}, thread("t"))
        name = own_database.rpartition("dbname=")[2]
        with postgres_server.start_pooler(server, "transaction", name) as pooled:
            assert import_langgraph_postgres(pooled, tmp_path / "runs").ok
            with psycopg.connect(pooled) as connection:
                assert connection.execute("SELECT name FROM pg_prepared_statements").fetchall() == []


def test_a_database_of_before_task_paths_can_be_read(tmp_path):
    with _sqlite(tmp_path) as database:
        graphs.parallel().compile(checkpointer=database.saver).invoke({"log": []}, thread("t"))
        database.execute("ALTER TABLE writes DROP COLUMN task_path")
        assert database.bring(tmp_path / "runs").ok


def test_what_cannot_be_read_is_an_error(tmp_path, monkeypatch, server):
    (tmp_path / "text.db").write_text("no database " * 100)
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE other (id)").connection.close()
    for file, message in (
        ("none.db", r"cannot read .*none.db: there is no such file$"),
        ("text.db", "not a database; name the database of a SqliteSaver"),
        ("empty.db", "no such table: checkpoints; name the database of a SqliteSaver"),
    ):
        with pytest.raises(CheckpointStorageError, match=message):
            import_langgraph_sqlite(tmp_path / file, tmp_path / "runs")
    for connection_string, message in (
        (server.create_database(), r'cannot read the database: relation "checkpoints" does not exist; name the.*\Z'),
        (f"host={tmp_path} user=nobody", "cannot read the database"),
    ):
        with pytest.raises(CheckpointStorageError, match=message):
            import_langgraph_postgres(connection_string, tmp_path / "runs")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match="psycopg"):
        import_langgraph_postgres("", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_imported_thread_that_waits_at_a_send_shows_the_node_that_comes_next(opening, tmp_path):
    live = FileSystemCheckpointSaver(tmp_path / "live", fsync="never")
    with opening() as database:
        for saver in (database.saver, live):
            app = graphs.mapped().compile(checkpointer=saver, interrupt_before=["one"])
            app.invoke({"log": []}, thread("t"))
        assert database.bring(tmp_path / "store").ok

    imported, expected = (
        [(info.node_id, info.next_node_id, info.status) for info in store.history("t")]
        for store in (FileSystemSaver(tmp_path / "store"), live.store)
    )
    assert imported == expected
    assert imported[0] == ("split", "langgraph:one", "running")


# Into a database


@pytest.fixture(params=["sqlite", "postgres"])
def in_place(request, tmp_path):
    """A database of LangGraph's, the name of the same database as a store, and how to open it as one."""
    if request.param == "sqlite":
        with _sqlite(tmp_path) as database:
            path = tmp_path / "langgraph.db"
            yield database, f"sqlite:{path}", lambda: SqliteCheckpointSaver(path, fsync="never", types=[Note])
        return
    dsn = request.getfixturevalue("server").create_database()
    with _postgres(dsn) as database:
        yield database, f"postgres:{dsn}", lambda: PostgresCheckpointSaver(dsn, types=[Note])


def test_a_database_is_moved_in_place(in_place):
    database, _, open_ours = in_place
    fill(database.saver)
    before = seen(database.saver)

    def stop(done, _total, _thread):
        if done == 10:
            raise KeyboardInterrupt

    with open_ours() as ours:
        with pytest.raises(KeyboardInterrupt):
            database.bring(ours.store, progress=stop)
        report = database.bring(ours.store)
        assert (report.ok, report.problems, report.threads, report.skipped) == (True, (), 6, 10)
        assert report.checkpoints == len(before) - 10
        assert database.bring(ours.store).skipped == len(before)
        database.saver.serde = ours.serde
        assert seen(ours) == seen(database.saver)
        graph = graphs.nested().compile(checkpointer=ours)
        assert graph.invoke(Command(resume="yes"), thread("nested"))
    assert len(seen(database.saver)) == len(before)


def test_the_commands_move_a_database_in_place(in_place):
    database, name, _ = in_place
    graphs.loop().compile(checkpointer=database.saver).invoke({"n": 0}, thread("loop"))
    count = len(seen(database.saver))
    kind, _, place = name.partition(":")

    done = graphkit("import", f"langgraph-{kind}", place, name)
    assert (done.code, done.out) == (0, f"imported {count} checkpoints to {name}; 1 thread, verified\n")

    again = graphkit(f"import-langgraph-{kind}", name, name, "--json")

    assert again.json == {"threads": 1, "checkpoints": 0, "skipped": count, "problems": []}
    assert "loop" in graphkit("threads", name).out

    database.execute("UPDATE checkpoints SET parent_checkpoint_id = 'other'")
    assert_shows(graphkit("import", f"langgraph-{kind}", place, name), 1, "its parent differs")
