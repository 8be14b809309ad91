"""Every example runs, in an empty directory and a process of its own, and prints what its top says."""

import ast
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

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
FILES = ROOT / "examples" / "agents"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")


@pytest.fixture
def start(launcher):
    return lambda name, *options: launcher.start(ROOT / "examples" / name, *options, has_errors=True)


@pytest.fixture
def run(launcher):
    """Runs an example; returns what it prints."""

    def run_to_the_end(name, *options, given=""):
        done = launcher.run(ROOT / "examples" / name, *options, given=given)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run_to_the_end


def test_an_example_runs_in_a_fresh_interpreter():
    command = [sys.executable, "-W", "error", ROOT / "examples" / "03_many_users.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.fixture(autouse=True)
def fresh_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_short_explained_and_tested(path):
    text = path.read_text(encoding="utf-8")
    if path.name[0].isdigit():
        assert len(text.splitlines()) <= 92
    top = ast.get_docstring(ast.parse(text))
    assert "\nShows: " in top
    assert f"\nRun:   python examples/{path.name}" in top
    assert "rints " in top

    integrations = ROOT / "tests" / "integrations"
    tests = [Path(__file__), *integrations.glob("test_*.py")]
    named = f'"{path.name}"'
    texts = [test.read_text(encoding="utf-8") for test in tests]
    assert any(named in text for text in texts)


REPORT = """\
{0}  agreement.txt  a sentence of 58 words
accepted  apology.txt
{0}  bread.txt  no date
{0}  complaint.txt  a sentence of 60 words
{0}  evacuation.txt  6 words in capitals
{0}  invitation.txt  no date
accepted  meeting.txt
accepted  observation.txt
accepted  receipt.txt
{0}  reminder.txt  5 words in capitals, no date
accepted  welcome.txt
"""


def test_document_review(run, fresh_folder):
    report = REPORT.format("rejected")
    assert run("01_document_review.py", "--answers", "no").endswith(f"report report.txt\n{report}")
    assert (fresh_folder / "runs/review/report.txt").read_text(encoding="utf-8") == report
    assert run("01_document_review.py") == report, "a finished review only shows its report again"
    assert sorted(path.name for path in (fresh_folder / "runs/review").iterdir()) == ["report.txt", "work.log"]


def test_document_review_leaves_a_question_open_for_the_next_process(run, fresh_folder):
    name = "01_document_review.py"
    problem = "agreement.txt: a sentence of 58 words"
    question = f"{problem}. Accept it? (y/n)"
    *_, last = run(name).splitlines()
    assert last == question
    (waiting,) = FileSystemSaver(fresh_folder / "runs/checkpoints").interrupts()
    assert waiting.payload == problem
    first, second, *_, last = run(name, given="no\n").splitlines()
    assert first == question
    assert second == "judge agreement.txt"
    assert last == "bread.txt: no date. Accept it? (y/n)"
    report = REPORT.format("accepted").replace("accepted  agreement", "rejected  agreement")
    assert run(name, "--answers", "yes").endswith(report)


@pytest.mark.requirement("P16")
def test_conversation_remembers_in_another_process(run):
    assert run("02_conversation.py", given="my name is Ada\nhello\nhello\n").splitlines() == [
        "Message 1. I know of you: name Ada.",
        "Message 2. I know of you: name Ada.",
        "Message 3. I know of you: name Ada.",
    ]
    assert run("02_conversation.py", given="What is my name?\nwhat is my age?\n").splitlines() == [
        "We have spoken before: 6 messages.",
        "Your name is Ada.",
        "You have not told me your age.",
    ]


@pytest.mark.requirement("P16", "P89")
def test_many_users(run):
    assert run("03_many_users.py").splitlines() == [
        "user 0: apples, bread, eggs = 12",
        "user 1: bread, cheese, apples = 16",
        "user 2: cheese, dates, bread = 19",
        "50 threads, 50 finished",
        "user 0 deleted: 49 threads",
    ]
    assert run("03_many_users.py").splitlines()[1].endswith("= 32"), "a second run of a user goes on with its list"


def test_long_job(run):
    lines = run("04_long_job.py").splitlines()
    assert len(lines) == 21
    assert lines[7] == " 40%  4203 primes below 40000"
    assert lines[-1] == "9592 primes below 100000"
    assert run("04_long_job.py").splitlines() == ["going on at 100000", "9592 primes below 100000"]


@pytest.mark.requirement("P89")
def test_long_job_is_killed_and_goes_on(run, start):
    options = ["--limit", "60000", "--piece", "1000"]
    config = RunnableConfig(thread_id="primes below 60000")
    for pieces in (1, 4):
        with start("04_long_job.py", *options) as process:
            for _ in range(pieces):
                process.stdout.readline()
            process.kill()
        assert process.returncode == -signal.SIGKILL
    last = FileSystemSaver("runs/checkpoints").get(config).state["below"]
    first_line, *_, last_line = run("04_long_job.py", *options).splitlines()
    assert first_line == f"going on at {last}"
    assert last_line == "6057 primes below 60000"
    history = FileSystemSaver("runs/checkpoints").replay(config)
    assert [checkpoint.state["below"] for checkpoint in history] == list(range(0, 61_000, 1000))


@pytest.mark.requirement("L16", "P16")
def test_time_travel(run):
    out = run("05_time_travel.py")
    before, after = out.split("After going back and taking the train:\n")
    _, *plane = before.splitlines()
    train, *lines = after.splitlines()
    assert "{'money': 30, 'by': 'plane', 'log': ['leave with 120', 'plane for 90', 'tent']}" in plane[0]
    assert "{'money': 80, 'by': 'train', 'log': ['leave with 120', 'train for 40', 'hotel']}" in train
    assert lines[2:6] == plane, "what was before the change of mind is still there"
    assert lines[-2] == "stay <- leave <- leave <- START ['robbed', 'tent']"
    assert run("05_time_travel.py") == out


def test_java_style(run):
    *_, last = run("java_style.py").splitlines()
    assert last == "FileSystemSaver: tool -> __END__ agent -> tool __START__ -> agent"


@pytest.mark.requirement("G34")
def test_data_pipeline_fails_once_and_goes_on_in_another_process(run, start):
    """Four stages, the third fails the first time; the resume skips the first two."""
    with start("06_data_pipeline.py") as process:
        out, err = process.communicate()
    assert process.returncode == 1
    assert err == "failed: node 'analyze' failed: ConnectionError: the service does not answer\n"
    assert out.splitlines() == ["stage 1: ingest", "stage 2: preprocess", "stage 3: analyze"]
    assert run("06_data_pipeline.py").splitlines() == [
        "failed: going on with analyze",
        "stage 3: analyze",
        "stage 4: report",
        "4 values, 20.0 on average, 23.0 at most",
    ]


def test_parallel_research_keeps_the_order_of_the_edges(run):
    *found, last = run("07_parallel_research.py").splitlines()[:5]
    found = [line.split(": ") for line in found]
    assert [shelf for shelf, _ in found] == ["history", "physics", "travel", "travel"]
    notes = [f"{title} ({shelf})" for shelf, title in found]
    assert last.strip() == "; ".join(notes)
    assert "nothing found" in run("07_parallel_research.py", "zeppelin")


def test_subgraph_approval_goes_on_inside(run):
    waits = "250 for a boat? It waits in 'checking', at 'approve'."
    assert run("08_subgraph_approval.py").splitlines() == ["check", waits]
    assert run("08_subgraph_approval.py").splitlines() == [waits]
    assert run("08_subgraph_approval.py", "--answer", "no").splitlines() == ["250 for a boat: refused"]


def test_retry_and_timeout_pays_once(run):
    assert run("09_retry_and_timeout.py").splitlines() == [
        "pays 12.50",
        "attempt 1 failed: TimeoutError: node 'order' took longer than its timeout of 0.2 s",
        "attempt 2 failed: ConnectionError: busy",
        "receipt 1",
    ]


# Agents, which are killed


@pytest.fixture
def kill_after(start):
    """A function that runs an example until it has printed a line, and kills it."""

    def kill_after(name, line, *options):
        with start(name, *options) as process:
            assert any(printed == line for printed in process.stdout)
            process.kill()
        assert process.returncode in {-signal.SIGKILL, 0}  # it may have ended just before

    return kill_after


def count_calls(folder="runs"):
    return Counter(Path(folder, "calls.log").read_text(encoding="utf-8").splitlines())


def test_the_conversation_remembers_each_user(run):
    name = "10_agent_conversation.py"
    assert run(name, given="I like tea\nhello\n") == (
        "I have read 1 of your messages.\nI have read 2 of your messages.\n"
    )
    assert run(name, given="What do I like?\n") == ("Welcome back, ada. Messages so far: 4.\nYou like tea.\n")
    assert run(name, "--user", "bob", given="What do I like?\n") == "You have not told me.\n"


WAITS = 'waits for approval: book {"train": "09:40"}\n'


def test_the_booking_waits_for_a_human(run):
    name = "11_agent_approval.py"
    *calls, last = run(name).splitlines(keepends=True)
    assert sorted(calls) == ["find_trains Porto\n", "forecast Porto\n"]
    assert last == WAITS
    assert run(name) == WAITS
    reply = run(name, "--answer", "too early")
    assert "too early" in reply
    assert run(name) == reply, "a finished journey only shows its last message again"
    assert count_calls() == {"find_trains Porto": 1, "forecast Porto": 1}


@pytest.mark.requirement("P89")
@pytest.mark.parametrize("line", ["find_trains Porto\n", "forecast Porto\n"])
def test_a_killed_journey_ends_as_an_undisturbed_one(run, kill_after, line):
    name = "11_agent_approval.py"
    answer = ["--answer", "yes", "--seats", "2"]
    kill_after(name, line)
    assert run(name).endswith(WAITS)
    kill_after(name, "book 09:40 x2\n", *answer)
    assert run(name, *answer).endswith("booked 2 x 09:40\n")
    # A call may run again only if it was killed between its line and its record.
    calls = count_calls()
    assert set(calls) == {"find_trains Porto", "forecast Porto", "book 09:40 x2"}
    assert max(calls.values()) <= 2


@pytest.mark.requirement("P89")
def test_a_killed_research_reads_no_chapter_again(run, kill_after):
    name = "12_agent_research.py"
    undisturbed = run(name, "--runs", "undisturbed")
    assert undisturbed.splitlines()[-2:] == ["read 12 of 12 chapters", "12 chapters, 78 pages"]

    kill_after(name, "read 4 of 12 chapters\n", "--pause", "0.05")
    resumed = run(name).splitlines()
    assert resumed[0].startswith("going on after ")
    assert resumed[-1] == "12 chapters, 78 pages"
    calls = count_calls()
    assert calls.keys() == count_calls("undisturbed").keys()
    assert {calls[f"read_chapter {number}"] for number in range(1, 5)} == {1}


@pytest.mark.parametrize(("answer", "reply", "booked"), [("yes", "booked 09:40\n", 1), ("too early", "too early\n", 0)])
def test_the_agent_of_pydantic_ai_waits_for_a_human_and_repeats_no_call(run, kill_after, answer, reply, booked):
    name = "13_pydantic_ai.py"
    kill_after(name, "forecast Porto\n", "--pause", "0.05")
    waits = "waits for approval: book {'train': '09:40'}\n"
    assert run(name).endswith(waits)
    assert run(name) == waits
    assert run(name, "--answer", answer).endswith(reply)
    assert run(name).endswith(reply)
    calls = count_calls()
    assert calls["book 09:40"] == booked
    assert {*calls} - {"book 09:40"} == {"find_trains Porto", "forecast Porto"}
    assert max(calls.values()) <= 2


class Service:
    """The service on a free port, and a client of it."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        program = ROOT / "examples" / "agent_service.py"
        command = [sys.executable, "-W", "error", program, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
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
def test_a_service_is_killed_and_another_one_pays_what_was_approved():
    with Service() as service:
        events = read_events(service.ask("/messages", "hello there"))
        assert events == [("text", "hello "), ("text", "there"), ("end", [])]

        waiting = {"tool": "pay", "arguments": {"amount": 20}, "id": "call-3"}
        assert read_events(service.ask("/messages", "pay 20")) == [("waiting", [waiting])]
        assert json.loads(service.ask("/messages", user="bob")) == {"messages": [], "waiting": []}

        with pytest.raises(HTTPError, match="401"):
            service.ask("/messages", user=None)

        with pytest.raises(HTTPError, match="404"):
            service.ask("/answer", '{"approved": true}', user="bob")

    with Service() as service, FileSystemSaver("runs/checkpoints") as saver:
        assert json.loads(service.ask("/messages"))["waiting"] == [waiting]
        with saver.watch("user-ada", latest=True) as changes:
            assert json.loads(service.ask("/answer", '{"approved": true}')) == {"answered": waiting}
            assert any(saver.get("user-ada").next_node_id == END for _ in changes)
        assert json.loads(service.ask("/messages"))["messages"][-1]["content"] == "paid 20"


# Agent files


@pytest.fixture
def run_file(launcher):
    """A function that holds a conversation with an agent of a file at the terminal, and returns what was printed."""

    def run_file(name, server, given):
        command = ["-m", "graphkit", "agents", "run", FILES / name, "--thread", "ada"]
        environment = {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "none",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(FILES)]),
        }
        done = launcher.run(*command, environment=environment, given=given)
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


def test_the_journey_of_a_file_is_approved_in_another_process(run_file):
    with chat_server.start(plan) as server:
        run_file("journey.yaml", server, "To Porto\n")
        assert len(server.requests) == 2
        with FileSystemSaver("runs") as saver:
            (waiting,) = saver.interrupts("ada")
            assert waiting.payload == {"tool": "book", "arguments": {"train": "09:40"}, "id": "call_1"}
        out = run_file("journey.yaml", server, "y\n")
        assert "booked 1 x 09:40" in out
        assert len(server.requests) == 3


def read_three(request):
    """Answer as a model that reads three chapters, one after another."""
    read = sum(message["role"] == "tool" for message in request["messages"])
    if read == 3:
        return chat_server.text("done")
    return chat_server.calls(("read_chapter", {"number": read + 1}))


def test_the_research_of_a_file_sums_up(run_file):
    with chat_server.start(read_three) as server:
        assert "done" in run_file("research.yaml", server, "Read it\n")
        assert len(server.requests) == 4
    with SqliteSaver("runs/research.db") as saver:
        assert saver.get(RunnableConfig("ada")).state["pages"] == 11 + 12 + 13


# LangGraph


def test_the_langgraph_example_is_killed_and_goes_on_and_is_answered_and_graphkit_reads_it(launcher):
    def run(*options):
        return launcher.run(ROOT / "examples" / "langgraph_review.py", *options)

    killed = run("--kill-after", "2")
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "writing: summary\nwriting: figures\n")
    history = read_json("history", "runs", "report")
    assert [(row["node"], row["next"]) for row in history[:2]] == [("write", "langgraph:write")] * 2

    resumed = run()
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert resumed.stdout == "writing: risks\nwriting: advice\napprove 4 sections on the mill?\n"
    assert run().stdout == "approve 4 sections on the mill?\n"
    assert run("--answer", "yes").stdout == "the report is approved\n"

    listed = graphkit("history", "runs", "report").out
    for word in ("write", "review", "__END__"):
        assert word in listed
    assert "report" in graphkit("threads", "runs").out
    assert FileSystemSaver("runs").verify().ok
