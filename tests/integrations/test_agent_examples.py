"""The examples of agents and of LangGraph: what they print, and what they repeat after they were killed."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from graphkit import END, RunnableConfig
from graphkit.agents.yaml_loader import check_agent_file
from savers import FileSystemSaver, SqliteSaver
from tests.agents import chat_server
from tests.support.terminal import graphkit, read_json

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")


@pytest.fixture
def run(launcher):
    """A function that runs an example until it ends, and returns what it printed."""

    def run(folder, name, *options, given=""):
        done = launcher.run(EXAMPLES / name, "--runs", folder, *options, given=given)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture
def kill_after(launcher):
    """A function that runs an example until it has printed a line, and kills it."""

    def kill_after(folder, name, line, *options):
        with launcher.start(EXAMPLES / name, "--runs", folder, *options) as process:
            assert any(printed == line for printed in process.stdout)
            process.kill()
        assert process.returncode in {-signal.SIGKILL, 0}  # it may have ended just before

    return kill_after


def count_calls(folder):
    return Counter((folder / "calls.log").read_text(encoding="utf-8").splitlines())


def test_the_conversation_remembers_each_user(run, tmp_path):
    name = "10_agent_conversation.py"
    assert run(tmp_path, name, given="I like tea\nhello\n") == (
        "I have read 1 of your messages.\nI have read 2 of your messages.\n"
    )
    assert run(tmp_path, name, given="What do I like?\n") == ("Welcome back, ada. Messages so far: 4.\nYou like tea.\n")
    assert run(tmp_path, name, "--user", "bob", given="What do I like?\n") == "You have not told me.\n"


WAITS = 'waits for approval: book {"train": "09:40"}\n'


def test_the_booking_waits_for_a_human(run, tmp_path):
    name = "11_agent_approval.py"
    *calls, last = run(tmp_path, name).splitlines(keepends=True)
    assert sorted(calls) == ["find_trains Porto\n", "forecast Porto\n"]
    assert last == WAITS
    assert run(tmp_path, name) == WAITS
    reply = run(tmp_path, name, "--answer", "too early")
    assert "too early" in reply
    assert run(tmp_path, name) == reply, "a finished journey only shows its last message again"
    assert count_calls(tmp_path) == {"find_trains Porto": 1, "forecast Porto": 1}


@pytest.mark.requirement("P89")
@pytest.mark.parametrize("line", ["find_trains Porto\n", "forecast Porto\n"])
def test_a_killed_journey_ends_as_an_undisturbed_one(run, kill_after, tmp_path, line):
    name = "11_agent_approval.py"
    answer = ["--answer", "yes", "--seats", "2"]
    kill_after(tmp_path, name, line)
    assert run(tmp_path, name).endswith(WAITS)
    kill_after(tmp_path, name, "book 09:40 x2\n", *answer)
    assert run(tmp_path, name, *answer).endswith("booked 2 x 09:40\n")
    # A call may run again only if it was killed between its line and its record.
    calls = count_calls(tmp_path)
    assert set(calls) == {"find_trains Porto", "forecast Porto", "book 09:40 x2"}
    assert max(calls.values()) <= 2


@pytest.mark.requirement("P89")
def test_a_killed_research_reads_no_chapter_again(run, kill_after, tmp_path):
    name = "12_agent_research.py"
    undisturbed = run(tmp_path / "undisturbed", name)
    assert undisturbed.splitlines()[-2:] == ["read 12 of 12 chapters", "12 chapters, 78 pages"]

    kill_after(tmp_path, name, "read 4 of 12 chapters\n", "--pause", "0.05")
    resumed = run(tmp_path, name).splitlines()
    assert resumed[0].startswith("going on after ")
    assert resumed[-1] == "12 chapters, 78 pages"
    calls = count_calls(tmp_path)
    assert calls.keys() == count_calls(tmp_path / "undisturbed").keys()
    assert {calls[f"read_chapter {number}"] for number in range(1, 5)} == {1}


@pytest.mark.parametrize(("answer", "reply", "booked"), [("yes", "booked 09:40\n", 1), ("too early", "too early\n", 0)])
def test_the_agent_of_pydantic_ai_waits_for_a_human_and_repeats_no_call(
    run, kill_after, tmp_path, answer, reply, booked
):
    name = "13_pydantic_ai.py"
    kill_after(tmp_path, name, "forecast Porto\n", "--pause", "0.05")
    waits = "waits for approval: book {'train': '09:40'}\n"
    assert run(tmp_path, name).endswith(waits)
    assert run(tmp_path, name) == waits
    assert run(tmp_path, name, "--answer", answer).endswith(reply)
    assert run(tmp_path, name).endswith(reply)
    calls = count_calls(tmp_path)
    assert calls["book 09:40"] == booked
    assert {*calls} - {"book 09:40"} == {"find_trains Porto", "forecast Porto"}
    assert max(calls.values()) <= 2


class Service:
    """The service on a free port, and a client of it."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-W", "error", EXAMPLES / "agent_service.py", "--runs", folder, "--port", self.port]
        self.process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
        assert any("Uvicorn running on" in line for line in self.process.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def ask(self, path, body=None, user="ada"):
        data = None if body is None else body.encode()
        headers = {"Authorization": f"Bearer {user}"} if user else {}
        with urlopen(Request(f"http://127.0.0.1:{self.port}{path}", data, headers), timeout=60) as response:
            return response.read().decode()


def read_events(text):
    """Return the names and values of server-sent events."""
    events = [event.split("\n") for event in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in events]


@pytest.mark.requirement("P89")
def test_a_service_is_killed_and_another_one_pays_what_was_approved(tmp_path):
    with Service(tmp_path) as service:
        events = read_events(service.ask("/messages", "hello there"))
        assert events == [("text", "hello "), ("text", "there"), ("end", [])]

        waiting = {"tool": "pay", "arguments": {"amount": 20}, "id": "call-3"}
        assert read_events(service.ask("/messages", "pay 20")) == [("waiting", [waiting])]
        assert json.loads(service.ask("/messages", user="bob")) == {"messages": [], "waiting": []}

        with pytest.raises(HTTPError, match="401"):
            service.ask("/messages", user=None)

        with pytest.raises(HTTPError, match="404"):
            service.ask("/answer", '{"approved": true}', user="bob")

    with Service(tmp_path) as service, FileSystemSaver(tmp_path / "checkpoints") as saver:
        assert json.loads(service.ask("/messages"))["waiting"] == [waiting]
        with saver.watch("user-ada", latest=True) as changes:
            assert json.loads(service.ask("/answer", '{"approved": true}')) == {"answered": waiting}
            assert any(saver.get("user-ada").next_node_id == END for _ in changes)
        assert json.loads(service.ask("/messages"))["messages"][-1]["content"] == "paid 20"


# Agent files

FILES = EXAMPLES / "agents"


@pytest.fixture
def run_file(launcher):
    """A function that holds a conversation with an agent of a file at the terminal, and returns what was printed."""

    def run_file(folder, name, server, *, given="", thread="ada"):
        command = ["-m", "graphkit", "agents", "run", str(FILES / name), "--thread", thread]
        environment = {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "none",
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), str(FILES)]),
        }
        done = launcher.run(*command, cwd=folder, environment=environment, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_file


@pytest.mark.requirement("P45")
@pytest.mark.parametrize("path", sorted(FILES.glob("*.yaml")), ids=lambda path: path.name)
def test_each_agent_file_is_valid(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FILES), *sys.path])
    environment = {"DATABASE_URL": "postgresql://localhost/agents"}
    assert check_agent_file(path, environment=environment).name == path.stem


def plan(request):
    """Answer as a model that plans a journey."""
    results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    if not results:
        return chat_server.calls(("find_trains", {"city": "Porto"}), ("forecast", {"city": "Porto"}))
    if len(results) == 2:
        return chat_server.calls(("book", {"train": "09:40"}))
    return chat_server.text(results[-1])


def test_the_journey_of_a_file_is_approved_in_another_process(run_file, tmp_path):
    with chat_server.start(plan) as server:
        run_file(tmp_path, "journey.yaml", server, given="To Porto\n")
        assert len(server.requests) == 2
        with FileSystemSaver(tmp_path / "runs") as saver:
            (waiting,) = saver.interrupts("ada")
            assert waiting.payload == {"tool": "book", "arguments": {"train": "09:40"}, "id": "call_1"}
        out = run_file(tmp_path, "journey.yaml", server, given="y\n")
        assert "booked 1 x 09:40" in out
        assert len(server.requests) == 3


def read_three(request):
    """Answer as a model that reads three chapters, one after another."""
    read = sum(message["role"] == "tool" for message in request["messages"])
    if read == 3:
        return chat_server.text("done")
    return chat_server.calls(("read_chapter", {"number": read + 1}))


def test_the_research_of_a_file_sums_up(run_file, tmp_path):
    with chat_server.start(read_three) as server:
        assert "done" in run_file(tmp_path, "research.yaml", server, given="Read it\n")
        assert len(server.requests) == 4
    with SqliteSaver(tmp_path / "runs" / "research.db") as saver:
        assert saver.get(RunnableConfig("ada")).state["pages"] == 11 + 12 + 13


# LangGraph


def test_the_langgraph_example_is_killed_and_goes_on_and_is_answered_and_graphkit_reads_it(launcher, tmp_path):
    def run(*options):
        return launcher.run(EXAMPLES / "langgraph_review.py", *options, cwd=tmp_path)

    killed = run("--kill-after", "2")
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "writing: summary\nwriting: figures\n")
    history = read_json("history", tmp_path / "runs", "report")
    assert [(row["node"], row["next"]) for row in history[:2]] == [("write", "langgraph:write")] * 2

    resumed = run()
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert resumed.stdout == "writing: risks\nwriting: advice\napprove 4 sections on the mill?\n"
    assert run().stdout == "approve 4 sections on the mill?\n"
    assert run("--answer", "yes").stdout == "the report is approved\n"

    listed = graphkit("history", tmp_path / "runs", "report").out
    for word in ("write", "review", "__END__"):
        assert word in listed
    assert "report" in graphkit("threads", tmp_path / "runs").out
    assert FileSystemSaver(tmp_path / "runs").verify().ok
