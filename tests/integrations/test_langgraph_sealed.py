"""LangGraph's checkpointer with a cipher: graphs run as they do without one, and nothing of them is readable."""

import uuid
from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command, interrupt

from graphkit import CheckpointErasedError, CheckpointerConfigurationError, CheckpointKeyError, RunnableConfig
from savers import DESTROYED, FileSystemSaver, SubjectKeys, ValidatingSaver
from savers.langgraph import (
    CheckpointSaver,
    FileSystemCheckpointSaver,
    export_langgraph_sqlite,
    import_langgraph_sqlite,
)
from tests.integrations.langgraph_graphs import Chat, chain
from tests.integrations.langgraph_stores import DATABASES, parametrize
from tests.support.langgraph_checkpoints import thread_of
from tests.support.terminal import assert_refused, assert_shows, graphkit

KEYS = {"2026": bytes(range(32))}
SECRET = "my number is 4000 0012"
CONFIG = {"configurable": {"thread_id": "anna"}}


def compiled(saver):
    def reply(state):
        answer = interrupt(f"may I answer that {SECRET}?")
        return {"messages": [("ai", f"{answer}: {SECRET}")]}

    return chain(Chat, reply=reply).compile(checkpointer=saver)


def talk(app, count=3, **options):
    for number in range(count):
        app.invoke({"messages": [("user", f"{number}: {SECRET}")]}, CONFIG, **options)
        app.invoke(Command(resume=f"yes {number}"), CONFIG, **options)
    return texts(app)


def texts(app):
    return [message.content for message in app.get_state(CONFIG).values["messages"]]


def stored(root):
    return b"".join(path.read_bytes() for path in Path(root).rglob("*") if path.is_file())


@parametrize("file", *DATABASES)
@pytest.mark.sweep(1, of="durability", in_turn=True)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_graph_with_interrupts_runs_on_a_sealed_store(opener, tmp_path, durability):
    with opener.open("sealed", cipher=KEYS) as saver:
        app = compiled(saver)
        messages = talk(app, durability=durability)
        history = [one.values for one in app.get_state_history(CONFIG)]

    assert messages[-1] == f"yes 2: {SECRET}"
    assert SECRET.encode() not in stored(tmp_path)

    with opener.open("sealed", cipher=KEYS) as saver:
        assert [one.values for one in compiled(saver).get_state_history(CONFIG)] == history
        of_the_thread, of_all = (
            [saved.config for saved in saver.list(config, filter={"source": "loop"})] for config in (CONFIG, None)
        )
        assert of_all == of_the_thread != []
    with opener.open("sealed") as saver:
        for read in (lambda: saver.get_tuple(CONFIG), lambda: list(saver.list(None))):
            with pytest.raises(CheckpointKeyError, match="'2026'"):
                read()


def config_of(user, thread=None):
    return {"configurable": {"thread_id": thread or user, "user_id": user}}


@parametrize("file", *DATABASES)
@pytest.mark.requirement("P73")
@pytest.mark.sweep(1, of="durability", in_turn=True)
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_each_user_has_a_key_that_can_be_destroyed(opener, durability):
    keys = {**KEYS, "anna": bytes(32), "ben": bytes(range(1, 33))}
    with opener.open("sealed", cipher=of_the_user(keys)) as saver:
        app = compiled(saver)
        for user in ("anna", "ben"):
            config = config_of(user)
            app.invoke({"messages": [("user", SECRET)]}, config, durability=durability)
            app.invoke(Command(resume="yes"), config, durability=durability)
        saver.copy_thread("anna", "copied")
        for thread, key in (("anna", "anna"), ("ben", "ben"), ("copied", "anna")):
            assert saver.store.own_key(thread) == key
    destroyed = {**keys, "anna": DESTROYED}
    with opener.open("sealed", cipher=destroyed) as saver:
        for thread in ("anna", "copied"):
            erased = config_of("anna", thread)
            with pytest.raises(CheckpointErasedError):
                saver.get_tuple(erased)
            with pytest.raises(CheckpointErasedError):
                list(saver.list(erased))
        for limit in (None, 50):
            assert {thread_of(saved.config) for saved in saver.list(None, limit=limit)} == {"ben"}
        saver.delete_for_runs(["no such run"])
        saver.delete_thread("copied")
    with opener.open("sealed", cipher=destroyed, ttl=timedelta(milliseconds=1)) as saver:
        while "ben" in saver.store.threads():
            saver.sweep_ttl()
        assert saver.store.threads() == ["anna"]  # nobody knows whether it was LangGraph's


def of_the_user(keys):
    return SubjectKeys({**KEYS, **keys}, key_for=lambda _, metadata: metadata["user_id"])


@parametrize("file", *DATABASES)
def test_a_history_that_begins_with_writes_has_the_key_of_its_user(opener, tmp_path):
    cipher = of_the_user({"anna": bytes(32)})
    config = config_of("anna")
    config["configurable"] |= {"checkpoint_ns": "", "checkpoint_id": str(uuid.UUID(int=7))}
    files = FileSystemSaver(tmp_path / "contract", cipher=cipher)
    contract = CheckpointSaver(ValidatingSaver(files))

    for saver in (opener.open("sealed", cipher=cipher), contract):
        with saver:
            saver.put_writes(config, [("messages", SECRET)], "task")
            (namespace,) = saver.store.namespaces("anna") or [""]  # of early writes, where there is no log
            history = RunnableConfig("anna", checkpoint_ns=namespace)
            assert saver.store.own_key(history) == "anna"


def test_an_import_gives_each_user_a_key(tmp_path):
    source = tmp_path / "old.sqlite"
    with SqliteSaver.from_conn_string(str(source)) as old:
        compiled(old).invoke({"messages": [("user", SECRET)]}, config_of("anna"))
    with FileSystemSaver(tmp_path / "runs", cipher=of_the_user({"anna": bytes(32)})) as saver:
        assert import_langgraph_sqlite(source, saver).ok
        assert saver.own_key("anna") == "anna"


def test_an_import_is_sealed_with_the_keys_and_refused_without(tmp_path, key_file):
    source = tmp_path / "old.sqlite"
    runs = tmp_path / "runs"
    with SqliteSaver.from_conn_string(str(source)) as old:
        messages = talk(compiled(old))
    done = graphkit("import", "langgraph-sqlite", source, runs, "--key-file", key_file)
    assert_shows(done, 0, "verified\n")
    assert SECRET.encode() not in stored(runs)
    with FileSystemCheckpointSaver(runs, cipher=key_file) as saver:
        assert texts(compiled(saver)) == messages
        saver.delete_thread("anna")
    with pytest.raises(CheckpointKeyError, match="open the store with `cipher`"):
        import_langgraph_sqlite(source, runs)
    assert import_langgraph_sqlite(source, runs, cipher=KEYS).ok


# Exports


@pytest.fixture
def sealed(tmp_path):
    with FileSystemCheckpointSaver(tmp_path / "runs", fsync="never", cipher=KEYS) as saver:
        talk(compiled(saver))
    return tmp_path / "runs"


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"2026 {b64encode(KEYS['2026']).decode()}\n", encoding="utf-8")
    return path


def test_a_sealed_store_is_exported_when_plaintext_is_asked_for(sealed, tmp_path):
    database = tmp_path / "target.sqlite"
    report = export_langgraph_sqlite(sealed, database, cipher=KEYS, plaintext=True)
    assert (report.ok, report.threads) == (True, 1)

    with (
        SqliteSaver.from_conn_string(str(database)) as target,
        FileSystemCheckpointSaver(sealed, cipher=KEYS) as source,
    ):
        exported, original = ([saved.checkpoint for saved in saver.list(CONFIG)] for saver in (target, source))
        assert exported == original != []
    assert SECRET.encode() in database.read_bytes()
    assert SECRET.encode() not in stored(sealed)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cipher": KEYS}, CheckpointerConfigurationError, "plaintext=True, --plaintext"),
        ({"plaintext": True}, CheckpointKeyError, "'2026'"),
        ({"cipher": {"2027": bytes(32)}, "plaintext": True}, CheckpointKeyError, "'2026'"),
        ({"cipher": {"2026": bytes(32)}, "plaintext": True}, CheckpointKeyError, "'2026'"),
    ],
    ids=["no request", "no key", "another key", "wrong key"],
)
def test_without_the_request_or_the_key_nothing_is_exported(sealed, tmp_path, options, error, message):
    before = stored(sealed)
    with pytest.raises(error, match=message):
        export_langgraph_sqlite(sealed, tmp_path / "target.sqlite", **options)
    assert not (tmp_path / "target.sqlite").exists()
    assert stored(sealed) == before


def test_the_command_takes_the_keys_and_must_be_asked(sealed, tmp_path, key_file):
    database = tmp_path / "target.sqlite"
    export = ["export-langgraph-sqlite", sealed, database]
    assert_refused(graphkit(*export, "--key-file", key_file), 18, "--plaintext")
    assert_refused(graphkit(*export, "--plaintext"), 21, "'2026'")
    assert not database.exists()
    done = graphkit(*export, "--plaintext", "--thread", "an", GRAPHKIT_KEYS=str(key_file))
    assert_shows(done, 0, "1 thread, verified\n")
