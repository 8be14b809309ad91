"""LangGraph's checkpointer with a cipher: graphs run as they do without one, and nothing of them is readable."""

from base64 import b64encode
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from graphkit import CheckpointKeyError
from savers.langgraph import FileSystemCheckpointSaver, import_langgraph_sqlite
from tests.cli.terminal import graphkit

KEYS = {"2026": bytes(range(32))}
SECRET = "my number is 4000 0012"
CONFIG = {"configurable": {"thread_id": "anna"}}


class State(TypedDict):
    messages: Annotated[list, add_messages]


def compiled(saver):
    def reply(state):
        answer = interrupt(f"may I answer that {SECRET}?")
        return {"messages": [("ai", f"{answer}: {SECRET}")]}

    graph = StateGraph(State)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    graph.add_edge("reply", END)
    return graph.compile(checkpointer=saver)


def talk(app, count=3):
    for number in range(count):
        app.invoke({"messages": [("user", f"{number}: {SECRET}")]}, CONFIG)
        app.invoke(Command(resume=f"yes {number}"), CONFIG)
    return [message.content for message in app.get_state(CONFIG).values["messages"]]


def stored(root):
    return b"".join(path.read_bytes() for path in Path(root).rglob("*") if path.is_file())


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_graph_with_interrupts_runs_on_a_sealed_store(tmp_path, durability):
    with FileSystemCheckpointSaver(tmp_path / "sealed", fsync="never", cipher=KEYS) as saver:
        app = compiled(saver)
        for number in range(3):
            app.invoke({"messages": [("user", f"{number}: {SECRET}")]}, CONFIG, durability=durability)
            app.invoke(Command(resume=f"yes {number}"), CONFIG, durability=durability)
        messages = app.get_state(CONFIG).values["messages"]
        history = [len(one.values.get("messages", ())) for one in app.get_state_history(CONFIG)]
    assert [message.content for message in messages][-1] == f"yes 2: {SECRET}"
    assert SECRET.encode() not in stored(tmp_path)
    with FileSystemCheckpointSaver(tmp_path / "sealed", cipher=KEYS) as saver:
        app = compiled(saver)
        assert app.get_state(CONFIG).values["messages"] == messages
        assert [len(one.values.get("messages", ())) for one in app.get_state_history(CONFIG)] == history
    with FileSystemCheckpointSaver(tmp_path / "sealed") as saver:
        with pytest.raises(CheckpointKeyError, match="'2026'"):
            saver.get_tuple(CONFIG)
        with pytest.raises(CheckpointKeyError, match="'2026'"):
            list(saver.list(None))


def test_an_import_is_sealed_with_the_keys_and_refused_without(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "old.sqlite")) as old:
        messages = talk(compiled(old))
    keys = tmp_path / "keys"
    keys.write_text(f"2026 {b64encode(KEYS['2026']).decode()}\n", encoding="utf-8")
    done = graphkit("import", "langgraph-sqlite", tmp_path / "old.sqlite", tmp_path / "runs", "--key-file", keys)
    assert (done.code, done.out.endswith("verified\n")) == (0, True)
    assert SECRET.encode() not in stored(tmp_path / "runs")
    with FileSystemCheckpointSaver(tmp_path / "runs", cipher=keys) as saver:
        found = compiled(saver).get_state(CONFIG).values["messages"]
        assert [message.content for message in found] == messages
        saver.delete_thread("anna")
    with pytest.raises(CheckpointKeyError, match="open the store with `cipher`"):
        import_langgraph_sqlite(tmp_path / "old.sqlite", tmp_path / "runs")
    assert import_langgraph_sqlite(tmp_path / "old.sqlite", tmp_path / "runs", cipher=KEYS).ok
