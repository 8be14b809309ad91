"""What waits for a human is found, answered and gone on with by other processes, killed ones in between."""

import json

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver

CONFIG = RunnableConfig("t")

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
from graphkit import END, START, Channels, GraphResume, RunnableConfig, StateGraph, interrupt
from savers import FileSystemSaver

store, work, given, kill = sys.argv[1:]
CONFIG = RunnableConfig("t")


def note(word):
    with open(work, "a") as file:
        file.write(word + "\\n")


def die(place):
    if kill == place:
        os.kill(os.getpid(), signal.SIGKILL)


def read(state):
    note("read")
    return {"log": "read"}


def ask(state):
    note("ask")
    first = interrupt({"question": "first?", "so far": list(state["log"])})
    second = interrupt("second?")
    die("answered")
    return {"log": [first, second]}


def write(state):
    die("write")
    note("write")
    return {"log": "write"}


graph = StateGraph({"log": Channels.appender_with_duplicate()})
graph.add_node("read", read).add_node("ask", ask).add_node("write", write)
graph.add_edge(START, "read").add_edge("read", "ask").add_edge("ask", "write").add_edge("write", END)
compiled = graph.compile(checkpoint_saver=FileSystemSaver(store, fsync="never"), interrupt_before=["write"])

if __name__ == "__main__":
    given = json.loads(given)
    if "answer" in given:
        given = GraphResume(given["answer"])
    elif "resume" in given:
        given = GraphResume()
    last = compiled.invoke_final(given, CONFIG)
    payload = getattr(last, "payload", None)
    payload = dict(payload) if isinstance(payload, dict) else payload
    print(json.dumps({"when": getattr(last, "when", "end"), "payload": payload, "log": list(last.state["log"])}))
"""


@pytest.fixture
def process(tmp_path, launcher):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "work").touch()

    def run(given, kill=""):
        done = launcher.run(program, tmp_path / "store", tmp_path / "work", json.dumps(given), kill)
        if kill:
            assert done.returncode == -9, done.stderr
            return None
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    run.work = lambda: (tmp_path / "work").read_text().split()
    run.saver = lambda: FileSystemSaver(tmp_path / "store", fsync="never")
    return run


@pytest.mark.requirement("L15")
def test_each_step_in_a_process_of_its_own_and_a_killed_answer_is_found_again(process):
    question = {"question": "first?", "so far": ["read"]}
    assert process({}) == {"when": "inside", "payload": question, "log": ["read"]}
    (waiting,) = process.saver().interrupts()
    assert (waiting.thread_id, waiting.node_id, waiting.when) == ("t", "ask", "inside")
    assert waiting.payload == question
    assert process({"answer": "one"})["payload"] == "second?"
    process({"answer": None}, kill="answered")
    assert process.saver().interrupts() == []  # the answer is stored, nobody has to give it again
    assert process({"resume": True}) == {"when": "before", "payload": None, "log": ["read", "one", None]}
    (waiting,) = process.saver().interrupts()
    assert waiting.when == "before"
    process({"answer": {"log": "approved"}}, kill="write")
    assert process.saver().interrupts() == []
    finished = process({"resume": True})
    assert finished["log"] == ["read", "one", None, "approved", "write"]
    assert process.saver().interrupts() == []
    assert process.work() == ["read", *["ask"] * 4, "write"]  # once more after the kill
