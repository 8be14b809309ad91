"""Every example runs, in an empty directory and a process of its own, and prints what its top says."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


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
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")
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
