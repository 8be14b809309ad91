"""Stores that are no directories: sqlite:FILE, postgres:DSN, postgresql://...; and passwords, which no output shows."""

import sqlite3

import pytest

from graphkit import RunnableConfig
from graphkit.cli.options import complete_thread
from graphkit.cli.stores import StoreName, find_passwords, hide_passwords, parse_store_name
from graphkit.errors import CheckpointStorageError
from graphkit.registry import _SAVERS, register_saver
from savers import FileSystemSaver, MemorySaver
from tests.support.savers import ListingSaver
from tests.support.terminal import assert_refused, checkpoint, graphkit, read_json

SECRET = "s3cret-word"
NAMES = [
    f"postgresql://anna:{SECRET}@host/db",
    f"postgres:postgresql://anna:{SECRET}@host:5432/db?sslmode=require",
    f"postgres://anna:{SECRET}@host/db",
    f"postgres:host=h user=anna password={SECRET} dbname=db",
    f"postgres:password='{SECRET}' host=h",
    f"postgresql://host/db?user=anna&password={SECRET}",
    f"postgres:host=h password='{SECRET}",
    f"POSTGRESQL://anna:{SECRET}@host/db",
    f"postgresql+psycopg://anna:{SECRET}@host/db",
    f"s3://key:{SECRET}@host/bucket",
]


@pytest.fixture
def databases(monkeypatch):
    """A saver under the names of the databases; returns what it was opened with."""
    opened = []
    memory = MemorySaver()
    memory.put("t", checkpoint(1, "a", "b", {"n": 1}))
    monkeypatch.setattr(_SAVERS, "registered", dict(_SAVERS.registered))
    for kind in ("sqlite", "postgres"):
        register_saver(kind, lambda path: opened.append(path) or memory)
    return opened


def test_what_a_name_stands_for():
    for name, parsed in (
        ("./sqlite/runs", StoreName("file", "./sqlite/runs")),
        ("C:\\runs", StoreName("file", "C:\\runs")),
        ("nonsense:x", StoreName("file", "nonsense:x")),
        ("disk:x", StoreName("file", "x")),
        ("sqlite:/a:b.db", StoreName("sqlite", "/a:b.db")),
        ("postgres:postgresql://u@h/d", StoreName("postgres", "postgresql://u@h/d")),
        ("postgres:host=h dbname=d", StoreName("postgres", "host=h dbname=d")),
        ("postgres://u@h/d", StoreName("postgres", "postgres://u@h/d")),
        ("postgresql://u@h/d?schema=x", StoreName("postgres", "postgresql://u@h/d", "x")),
        ("postgres:postgres://h/d?a=b&schema=my%20x&c=d", StoreName("postgres", "postgres://h/d?a=b&c=d", "my x")),
        ("postgresql://h/d?schema=x&schema=y", StoreName("postgres", "postgresql://h/d", "y")),
        ("postgresql://h/d?schema=x&password=a?", StoreName("postgres", "postgresql://h/d?password=a?", "x")),
        ("postgresql://h/d?myschema=x", StoreName("postgres", "postgresql://h/d?myschema=x")),
        ("postgres:host=h schema=x dbname=d", StoreName("postgres", "host=h dbname=d", "x")),
        ("postgres:schema = 'it\\'s' host=h", StoreName("postgres", "host=h", "it's")),
        ("postgres:schema=", StoreName("postgres", "", "")),
        ("postgres:host=h user='a schema=x'", StoreName("postgres", "host=h user='a schema=x'")),
        ("postgres:nonsense schema=x", StoreName("postgres", "nonsense schema=x")),
        ("postgres:password=" + 999 * "x", StoreName("postgres", "password=" + 999 * "x")),
    ):
        assert parse_store_name(name) == parsed


def test_a_directory_of_that_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sqlite:x").mkdir()
    assert parse_store_name("sqlite:x") == StoreName("file", "sqlite:x")


def test_the_first_word_is_no_store_if_the_environment_names_one(store):
    here = {"GRAPHKIT_DIR": str(store)}
    (thread,) = read_json("interrupts", "order-17", **here)
    assert thread["thread"] == "order-17"
    assert read_json("stats", "order-18", **here)["threads"] == 1
    assert read_json("stats", store, **here)["threads"] == 3
    assert read_json("search", "user=bert", "step=1", **here)[0]["thread"] == "order-18"
    assert read_json("search", "user=" + 5_000 * "x", "step=1", **here) == []
    assert graphkit("diff", "order-18", "0013", "0011", **here).code == 0
    assert graphkit("copy", "order-17", "new", **here).out == "copied 2 checkpoints of order-17 to new\n"
    assert_refused(graphkit("stats", "sqlite:missing.db", **here), 18, "there is no database file")
    assert_refused(graphkit("stats", "disk:missing", **here), 18, "there is no directory")
    assert (
        graphkit("export", "order-17", "--dry-run", **here).out
        == "would export 1 thread to standard output: order-17\n"
    )


@pytest.mark.usefixtures("databases")
def test_a_thread_of_a_saver_that_knows_no_sizes_is_shown_and_can_be_deleted(tmp_path):
    saver = ListingSaver()
    saver.put(RunnableConfig("t"), checkpoint(1, "a", "b", {"n": 1}))
    register_saver("sqlite", lambda path: saver)
    (tmp_path / "runs.db").write_bytes(b"")
    name = f"sqlite:{tmp_path / 'runs.db'}"

    (row,) = read_json("threads", name)
    assert (row["thread"], row["size"]) == ("t", None)
    assert read_json("stats", name)["size"] is None
    assert graphkit("delete", name, "t", "--yes").out == "deleted t\n"
    assert read_json("threads", name) == []


def test_a_missing_database_file_is_not_created(databases, tmp_path):
    (tmp_path / "runs.db").write_bytes(b"")
    done = graphkit("threads", f"sqlite:{tmp_path / 'rnus.db'}")
    assert done.code == 18
    assert done.err == f"graphkit: there is no database file {tmp_path / 'rnus.db'}; did you mean runs.db?\n"
    assert graphkit("threads", f"sqlite:{tmp_path}").code == 18
    assert databases == []
    (tmp_path / "runs.db").write_bytes(b"SQLite format 3\0...")
    done = graphkit("threads", tmp_path / "runs.db")
    assert_refused(done, 18, f"type sqlite:{tmp_path / 'runs.db'}")
    for name in ("sqlite:", "postgres:", "file:"):
        assert graphkit("threads", name).code == 2


@pytest.mark.parametrize("name", ["sqlit:runs.db", "postgre:host=h", "postgresql:host=h"])
def test_a_misspelt_kind_makes_no_directory(store, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for command in (["threads", name], ["copy", store, "--to", name], ["import-langgraph-sqlite", "x.db", name]):
        assert_refused(graphkit(*command), 18, "no kind of store", "did you mean")
        assert sorted(tmp_path.iterdir()) == before
    assert graphkit("copy", store, "--to", f"file:{name}").code == 0
    assert (tmp_path / name).is_dir()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_whose_saver_is_not_installed_is_an_error(monkeypatch, store, tmp_path, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_SAVERS, "_defaults", lambda: {"file": FileSystemSaver})
    assert_refused(graphkit("copy", store, "--to", f"{kind}:x"), 18, f"unknown saver '{kind}'")
    assert not (tmp_path / f"{kind}:x").exists()


# Passwords


def test_an_escaped_password_is_hidden_in_both_forms():
    passwords = find_passwords(["postgresql://anna:p%40ss%2Fword@host/db"])
    assert passwords == {"p%40ss%2Fword", "p@ss/word"}
    assert hide_passwords("login with p@ss/word failed", passwords) == "login with *** failed"
    assert hide_passwords("postgresql://anna:p@ss@host/db") == "postgresql://anna:***@host/db"


def test_a_password_with_a_slash_is_hidden_although_the_client_takes_it_for_a_port():
    passwords = find_passwords(["postgresql://anna:p/ssword@host/db"])
    assert hide_passwords("cannot connect to anna:p/ssword@host/db", passwords) == "cannot connect to anna:***@host/db"


def test_what_is_no_password_stays():
    for text in ("runs", "postgresql://anna@host/db", "a@b.c: x", "sqlite:a@b", "the password is wrong"):
        assert hide_passwords(text, find_passwords([text])) == text


class Refused(Exception):
    pass


@pytest.mark.sweep(1, of="debug", in_turn=True)
@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", [CheckpointStorageError, Refused])
def test_no_message_or_traceback_shows_a_password(monkeypatch, shop, name, error, debug):
    def refuse(path):
        if error is Refused:
            raise Refused(f"cannot connect with {path}, {SECRET!r}")
        raise CheckpointStorageError(path, "connect to", f"password {SECRET} refused") from Refused(path)

    monkeypatch.setattr(_SAVERS, "registered", dict(_SAVERS.registered))
    register_saver("postgres", refuse)
    for command, environment in (
        (["threads", name], {}),
        (["threads"], {"GRAPHKIT_DIR": name}),
        (["run", "--app", shop], {"GRAPHKIT_DIR": name}),
        (["copy", "nowhere", "--to", name], {}),
        (["threads", name, "--json", "--nonsense"], {}),
        (["thread", name], {}),
        (["threads", "runs", name, "extra"], {}),
        (["threads", f" {name}"], {}),
    ):
        done = graphkit(*command, *debug, **environment)
        assert done.code != 0
        assert done.err
        assert SECRET not in done.out + done.err


def test_no_result_shows_a_password(databases, store, tmp_path):
    name = NAMES[0]
    database = sqlite3.connect(tmp_path / "langgraph.db")
    key = "thread_id, checkpoint_ns, checkpoint_id"
    database.execute(f"create table checkpoints ({key}, parent_checkpoint_id, type, checkpoint, metadata)")
    database.execute(f"create table writes ({key}, task_id, idx, channel, type, value)")
    database.close()
    for words, environment in (([name], {}), ([], {"GRAPHKIT_DIR": name})):
        done = graphkit("import-langgraph-sqlite", tmp_path / "langgraph.db", *words, **environment)
        assert (done.code, done.out) == (0, f"imported 0 checkpoints to {hide_passwords(name)}; 0 threads, verified\n")
    for more in ([], ["--json"], ["--dry-run"], ["--dry-run", "--json"]):
        done = graphkit("copy", store, "order-18", "--to", name, "--no-versions", *more)
        assert (done.code, SECRET in done.out + done.err, "***@host" in done.out) == (0, False, True)


def test_completion_works_with_databases_and_is_silent_about_failures(databases):
    class Typed:
        params = {"directory": NAMES[0]}
        args = []

    assert complete_thread(Typed(), None, "") == ["t"]
    Typed.params = {"directory": "sqlite:missing.db"}
    assert complete_thread(Typed(), None, "") == []
