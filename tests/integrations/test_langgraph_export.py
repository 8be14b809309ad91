"""From files to a database of LangGraph's SqliteSaver, and back."""

import shutil
import sqlite3
import sys
from contextlib import closing, contextmanager

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from graphkit import (
    Checkpoint,
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)
from graphkit.errors import MissingDependencyError
from savers import FileSystemSaver
from savers.langgraph import (
    FileSystemCheckpointSaver,
    FileSystemStore,
    export_langgraph_sqlite,
    import_langgraph_sqlite,
)
from tests.integrations import langgraph_graphs as graphs
from tests.integrations.langgraph_graphs import Note, notes
from tests.integrations.test_langgraph_import import fill, seen, thread
from tests.integrations.test_langgraph_store import Rot
from tests.support.langgraph_checkpoints import put
from tests.support.terminal import assert_shows, graphkit

CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
PERMISSIVE = JsonPlusSerializer(allowed_msgpack_modules=[(Note.__module__, "Note")])


def assert_same(runs, file):
    """Check that the database has all that the store has."""
    with database(file) as saver:
        assert seen(saver) == seen(open_store(runs))


def change(file, *statements):
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@contextmanager
def database(file, serde=PERMISSIVE):
    with closing(sqlite3.connect(file, check_same_thread=False)) as connection:
        saver = SqliteSaver(connection, serde=serde)
        saver.setup()
        yield saver


def open_store(directory, serde=PERMISSIVE):
    return FileSystemCheckpointSaver(directory, serde=serde, fsync="never")


def content(file):
    """All rows of a database: those of checkpoints, and those of writes."""
    names = "thread_id, checkpoint_ns, checkpoint_id"
    orders = {"checkpoints": names, "writes": f"{names}, task_id, idx"}
    with closing(sqlite3.connect(file)) as connection:
        return [list(connection.execute(f"SELECT * FROM {table} ORDER BY {orders[table]}")) for table in orders]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with threads of every kind, one of which waits at an interrupt in a subgraph."""
    directory = tmp_path_factory.mktemp("filled") / "runs"
    saver = open_store(directory)
    fill(saver)
    graphs.mapped().compile(checkpointer=saver, interrupt_before=["one"]).invoke({"log": []}, thread("sends"))
    saver.store.close()
    return directory


@pytest.fixture
def runs(filled, tmp_path):
    """A copy of that store, which the test may change."""
    return shutil.copytree(filled, tmp_path / "runs")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "langgraph.db"


# What an export keeps


def test_an_export_of_an_import_is_the_database_again(file, tmp_path):
    with database(tmp_path / "first.db") as saver:
        fill(saver)
        before = seen(saver)
    assert import_langgraph_sqlite(tmp_path / "first.db", tmp_path / "runs").ok
    assert export_langgraph_sqlite(tmp_path / "runs", file).ok

    with database(file) as saver:
        assert seen(saver) == before
    assert content(file)[1] == content(tmp_path / "first.db")[1]
    # Into the database that they came from, nothing has to be written.
    again = export_langgraph_sqlite(tmp_path / "runs", tmp_path / "first.db")
    assert (again.ok, again.checkpoints, again.skipped) == (True, 0, len(before))


def test_no_object_of_the_application_is_made(runs, file, monkeypatch):
    def refuse(*_):
        raise AssertionError("an object was made from data")

    with monkeypatch.context() as patch:
        patch.setattr(Note, "__init__", refuse)
        assert export_langgraph_sqlite(runs, file).ok
    with database(file) as saver:
        found = notes().compile(checkpointer=saver).get_state(thread("notes"))
        assert found.values["note"] == Note("new")


def test_every_kind_of_value_is_moved(tmp_path, file):
    saver = open_store(tmp_path / "runs")
    kinds = [None, b"bytes", bytearray(b"array"), {(1, 2): 3}, float("nan"), {1, 2}, 2**63, "", [None] * 9]
    values = {str(number): value for number, value in enumerate(kinds)}
    saver.put_writes(put(saver, **values), [*values.items()], "task", "path")

    assert export_langgraph_sqlite(tmp_path / "runs", file).ok
    assert import_langgraph_sqlite(file, tmp_path / "again").ok

    original = repr(saver.get_tuple(CONFIG).pending_writes)
    with database(file) as target:
        assert repr(target.get_tuple(CONFIG).pending_writes) == original


def test_a_write_keeps_its_index_where_the_one_before_it_was_a_special_one(tmp_path, file):
    saver = open_store(tmp_path / "runs")
    stored = saver.put(CONFIG, empty_checkpoint(), {}, {})
    saver.put_writes(stored, [("__interrupt__", 1), ("__interrupt__", 2), ("a", 3)], "task")
    assert export_langgraph_sqlite(tmp_path / "runs", file).ok
    with closing(sqlite3.connect(file)) as connection:
        assert dict(connection.execute("SELECT idx, channel FROM writes")) == {-3: "__interrupt__", 2: "a"}


# Which threads


def test_runs_of_graphkits_own_are_left_out_and_named(runs, file):
    FileSystemSaver(runs).put("own", Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
    report = export_langgraph_sqlite(runs, file)
    assert (report.ok, report.left_out, report.threads) == (True, ("own",), 7)
    before = content(file)
    with pytest.raises(CheckpointConflictError, match="own"):
        export_langgraph_sqlite(runs, file, threads=["loop", "own"])
    with pytest.raises(CheckpointNotFoundError, match="unknown"):
        export_langgraph_sqlite(runs, file, threads=["unknown"])
    with pytest.raises(TypeError, match=r"\['loop'\]"):
        export_langgraph_sqlite(runs, file, threads="loop")
    assert content(file) == before

    def export(*options):
        return graphkit("export-langgraph-sqlite", runs, file, *options)

    assert export("--thread", "loo", "--thread", "nested", "--json").json["threads"] == 2
    assert export("--thread", "none").code == 11
    assert export("--thread", "own").code == 16
    assert "left out 1 thread with runs of graphkit: own" in export().out


# Again


@pytest.mark.sweep(4)
@pytest.mark.parametrize("last", range(0, 60, 6))
def test_a_database_that_fails_at_any_moment_is_completed_later(runs, file, monkeypatch, last):
    """Between the writes of a checkpoint and the checkpoint itself, too."""
    cursor = SqliteSaver.cursor
    calls = []

    def fail(saver, **options):
        calls.append(1)
        if len(calls) > last:
            raise sqlite3.OperationalError("database or disk is full")
        return cursor(saver, **options)

    monkeypatch.setattr(SqliteSaver, "cursor", fail)
    with pytest.raises(CheckpointStorageError, match="disk is full"):
        export_langgraph_sqlite(runs, file)
    monkeypatch.undo()
    whole = seen(open_store(runs))
    with database(file) as saver:
        assert all(stored in whole for stored in seen(saver))
    assert export_langgraph_sqlite(runs, file).ok
    assert_same(runs, file)


def test_what_was_added_since_is_added(runs, file):
    """The waiting checkpoint gets the answer as another write; then new checkpoints follow."""
    steps = []
    first = export_langgraph_sqlite(runs, file, progress=lambda *step: steps.append(step))
    total = len(seen(open_store(runs)))
    assert first.checkpoints == len(steps) == total
    assert steps[-1][:2] == (total, total)

    assert_same(runs, file)
    app = graphs.nested().compile(checkpointer=open_store(runs))
    app.invoke(Command(resume="yes"), thread("nested"))
    second = export_langgraph_sqlite(runs, file)
    assert (second.ok, second.skipped) == (True, total)
    assert second.checkpoints > 0

    assert_same(runs, file)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE checkpoints SET parent_checkpoint_id = 'other' WHERE thread_id = 'loop'", "with another parent"),
        ("UPDATE checkpoints SET metadata = '{}' WHERE thread_id = 'loop'", "with another metadata"),
        ("UPDATE writes SET task_id = 'x' || task_id WHERE thread_id = 'loop'", "with another writes"),
        (
            "UPDATE checkpoints SET checkpoint = (SELECT min(checkpoint) FROM checkpoints) WHERE thread_id = 'loop'",
            "with another checkpoint",
        ),
        ("UPDATE checkpoints SET checkpoint = x'80' WHERE thread_id = 'loop'", "damaged: KeyError: 'channel_versions'"),
    ],
)
def test_a_checkpoint_that_differs_is_not_overwritten(runs, file, statement, what):
    export_langgraph_sqlite(runs, file)
    change(file, statement)
    before = content(file)
    report = export_langgraph_sqlite(runs, file)
    assert (report.ok, report.checkpoints) == (False, 0)
    for problem in report.problems:
        assert "thread 'loop'" in problem
        assert f"has it {what}; nothing was overwritten" in problem
    assert content(file) == before


def test_other_writes_of_a_checkpoint_that_is_missing_are_not_overwritten(runs, file):
    export_langgraph_sqlite(runs, file)
    change(
        file,
        "UPDATE writes SET value = x'01' WHERE thread_id = 'nested' AND checkpoint_ns = ''",
        "DELETE FROM checkpoints WHERE thread_id = 'nested'",
    )
    writes = content(file)[1]
    reasons = {problem.rsplit(": ", 1)[1] for problem in export_langgraph_sqlite(runs, file).problems}
    assert reasons == {"the database has other writes of it; nothing was overwritten"}
    assert content(file)[1] == writes


def test_what_differs_when_it_is_read_back_is_reported(runs, file, monkeypatch):
    put = SqliteSaver.put

    def forget(saver, config, checkpoint, metadata, new_versions):
        return put(saver, config, checkpoint, {**metadata, "step": 99}, new_versions)

    monkeypatch.setattr(SqliteSaver, "put", forget)
    report = export_langgraph_sqlite(runs, file, threads=["loop"])
    assert len(report.problems) == report.checkpoints > 0
    assert all(problem.endswith("its metadata differs") for problem in report.problems)


def test_another_order_than_that_of_the_ids_is_reported(tmp_path, file):
    saver = open_store(tmp_path / "runs")
    for id_ in ("2", "1"):  # the clock was set back
        saver.put(CONFIG, {**empty_checkpoint(), "id": id_}, {}, {})
    (problem,) = export_langgraph_sqlite(tmp_path / "runs", file).problems
    assert "sorts checkpoints by id" in problem
    assert "is 1, and SqliteSaver's is 2" in problem
    assert len(content(file)[0]) == 2


@pytest.mark.parametrize(("name", "ok"), [("a\0b", True), ("", True), ("\U0001f600" * 99, True), ("\ud800", False)])
def test_any_id_is_moved_or_reported(tmp_path, file, name, ok):
    saver = open_store(tmp_path / "runs")
    for thread_id in (name, "other"):
        put(saver, {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
    report = export_langgraph_sqlite(tmp_path / "runs", file)
    assert report.ok is ok
    assert {thread_id for thread_id, *_ in content(file)[0]} == ({name, "other"} if ok else {"other"})

    if not ok:
        assert "SQLite cannot store this id" in report.problems[0]


def test_metadata_that_json_cannot_hold_is_reported(tmp_path, file):
    open_store(tmp_path / "runs").put(CONFIG, empty_checkpoint(), {"path": b"bytes"}, {})
    (problem,) = export_langgraph_sqlite(tmp_path / "runs", file).problems
    assert "cannot store its metadata" in problem
    assert content(file) == [[], []]


# Encryption


def test_an_encrypted_store_becomes_an_encrypted_database(tmp_path, file):
    serde = EncryptedSerializer(Rot(), PERMISSIVE)
    runs = tmp_path / "runs"
    source = open_store(runs, serde)
    fill(source)
    first = export_langgraph_sqlite(runs, file, serde=serde)
    again = export_langgraph_sqlite(runs, file, serde=serde)
    assert first.ok
    assert (again.ok, again.skipped) == (True, first.checkpoints)

    with database(file, serde) as target:
        assert seen(target) == seen(source)
    checkpoints, _ = content(file)
    assert {row[4] for row in checkpoints} == {"msgpack+rot"}
    assert import_langgraph_sqlite(file, tmp_path / "again", serde=serde).ok
    assert seen(open_store(tmp_path / "again", serde)) == seen(source)


def test_a_serializer_that_is_missing_is_asked_for(tmp_path, file):
    sealed = tmp_path / "sealed"
    serde = EncryptedSerializer(Rot(), PERMISSIVE)
    saver = open_store(sealed, serde)
    graphs.loop().compile(checkpointer=saver).invoke({"n": 0}, thread("loop"))
    with pytest.raises(CheckpointerConfigurationError, match=r"of the store.*\+rot.*serde="):
        export_langgraph_sqlite(sealed, file)
    assert content(file) == [[], []]

    export_langgraph_sqlite(sealed, file, serde=serde)
    plain = open_store(tmp_path / "plain")
    for saved in saver.list(thread("loop")):
        plain.put({"configurable": {"thread_id": "loop", "checkpoint_ns": ""}}, saved.checkpoint, saved.metadata, {})
    with pytest.raises(CheckpointerConfigurationError, match=r"of the database.*\+rot.*serde="):
        export_langgraph_sqlite(tmp_path / "plain", file)


# What cannot be done


def test_a_directory_that_is_no_store_is_refused_and_nothing_is_made(tmp_path, file):
    with pytest.raises(CheckpointerConfigurationError, match="there is no directory"):
        export_langgraph_sqlite(tmp_path / "missing", file)
    (tmp_path / "empty").mkdir()
    with FileSystemStore(tmp_path / "entries") as store:
        store.put(("a",), "k", {"n": 1})
    for name in ("empty", "entries"):
        with pytest.raises(CheckpointerConfigurationError, match="not a checkpoint directory"):
            export_langgraph_sqlite(tmp_path / name, file)
    assert graphkit("export-langgraph-sqlite", tmp_path / "entries", file).code == 18
    assert not file.exists()
    assert not (tmp_path / "missing").exists()
    assert not list((tmp_path / "empty").iterdir())


def test_a_file_that_is_no_database_is_left_as_it_is(runs, tmp_path):
    (tmp_path / "text").write_text("no database " * 100)
    change(tmp_path / "other.db", "CREATE TABLE checkpoints (other)")
    for name in ("text", "missing/file.db", "other.db"):
        with pytest.raises(CheckpointStorageError, match=name):
            export_langgraph_sqlite(runs, tmp_path / name)
    assert (tmp_path / "text").read_text() == "no database " * 100


def test_a_package_that_is_missing_is_named(runs, file, monkeypatch):
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.sqlite", None)
    with pytest.raises(
        MissingDependencyError, match=r"langgraph-checkpoint-sqlite.*graphkit-durable\[langgraph-sqlite\]"
    ):
        export_langgraph_sqlite(runs, file)
    assert not file.exists()


def test_the_keys_of_a_store_are_refused_with_a_saver(file):
    with database(file), FileSystemSaver(file.parent / "runs") as saver:
        for move, places in ((export_langgraph_sqlite, (saver, file)), (import_langgraph_sqlite, (file, saver))):
            with pytest.raises(CheckpointerConfigurationError, match="give the keys to the saver"):
                move(*places, cipher={"k": bytes(32)})


# The command


@pytest.mark.parametrize("kind", ["directory", "sqlite", "postgres"])
def test_the_command_exports_any_store_and_reports_what_was_done(runs, file, kind, request, tmp_path):
    name = runs
    if kind != "directory":
        place = tmp_path / "runs.db" if kind == "sqlite" else request.getfixturevalue("server").create_database()
        name = f"{kind}:{place}"
        assert graphkit("copy", runs, "--to", name).code == 0

    export_langgraph_sqlite(runs, tmp_path / "other.db")
    number = len(content(tmp_path / "other.db")[0])
    done = graphkit("export-langgraph-sqlite", name, f"sqlite:{file}")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"exported {number} checkpoints to sqlite:{file}; 7 threads, verified\n"
    assert content(file) == content(tmp_path / "other.db")

    again = graphkit("export", "langgraph-sqlite", name, file, "--json")
    assert again.json == {"threads": 7, "checkpoints": 0, "skipped": number, "left_out": [], "problems": []}

    change(file, "UPDATE checkpoints SET parent_checkpoint_id = 'other' WHERE thread_id = 'loop'")
    assert_shows(graphkit("export-langgraph-sqlite", name, file), 1, "nothing was overwritten")
