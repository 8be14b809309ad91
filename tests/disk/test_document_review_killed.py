"""The document review under SIGKILL: nothing that was stored runs again, and the report comes out the same.

A node that was killed between its last effect (its line in work.log) and its checkpoint runs again, which is right. So
the claim is told exactly: after each kill the store is read, and no line for a visit that is in it may be added later.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from graphkit import END, RunnableConfig
from graphkit.errors import ThreadBusyError
from savers import FileSystemSaver

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "01_document_review.py"
DOCUMENTS = ROOT / "examples" / "documents"
THREAD = RunnableConfig(thread_id="review")

DEADLY = """
import os, runpy, signal, sys
from savers import FileSystemSaver

example, when, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.argv[:] = [example, *sys.argv[4:]]
put = FileSystemSaver.put

def deadly(self, config, checkpoint):
    global left
    left -= 1
    if when == "before" and not left:
        os.kill(os.getpid(), signal.SIGKILL)
    put(self, config, checkpoint)
    if when == "after" and not left:
        os.kill(os.getpid(), signal.SIGKILL)

FileSystemSaver.put = deadly
runpy.run_path(example, run_name="__main__")
"""


class Review:
    """A review in a directory, and what its store and its work log say."""

    def __init__(self, directory, documents=DOCUMENTS):
        self.runs = directory
        self.options = ["--runs", str(directory), "--documents", str(documents)]

    def start(self, *arguments, answers="yes"):
        command = [sys.executable, *(arguments or [str(EXAMPLE)]), *self.options, "--answers", answers]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")

    def finish(self, *arguments, answers="yes"):
        with self.start(*arguments, answers=answers) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    @property
    def saver(self):
        return FileSystemSaver(self.runs / "checkpoints")

    @property
    def report(self):
        return (self.runs / "review" / "report.txt").read_bytes()

    def logged(self):
        path = self.runs / "review" / "work.log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def stored(self):
        """The visits whose checkpoint is in the store, oldest first, as the work log spells them."""
        history = reversed(self.saver.list(THREAD)) if (self.runs / "checkpoints").exists() else ()
        return [f"{one.node_id} {one.state['document']}" for one in history if one.parent_id]


@pytest.fixture(scope="module")
def many_documents(tmp_path_factory, sweep):
    """Enough of them that ten kills on a slow machine do not come after the end."""
    folder = tmp_path_factory.mktemp("documents")
    for copy in range(sweep.count(10, 4)):
        for path in DOCUMENTS.glob("*.txt"):
            (folder / f"{path.stem}-{copy}.txt").write_bytes(path.read_bytes())
    return folder


def undisturbed(directory, documents=DOCUMENTS):
    review = Review(directory / "undisturbed", documents)
    started = time.monotonic()
    code, out, err = review.finish()
    assert (code, err) == (0, "")
    assert review.logged() == review.stored()
    assert set(Counter(review.logged()).values()) == {1}
    return review, (time.monotonic() - started) / len(out.splitlines())


def kill(process, lines, delay):
    """Let it print so many lines and live a moment longer; whether it was killed before it ended."""
    for _ in range(lines):
        process.stdout.readline()
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def test_ten_random_kills_change_nothing(tmp_path, many_documents, sweep):
    reference, pace = undisturbed(tmp_path, many_documents)
    review, dice, runs_again = Review(tmp_path / "killed", many_documents), random.Random(20), Counter()
    for _ in range(sweep.count(10, 4)):
        before = len(review.logged())
        assert kill(review.start(), dice.randrange(13), dice.random() * pace)
        logged, stored = review.logged(), review.stored()
        assert stored == reference.stored()[: len(stored)]
        in_flight = [line for line in logged[before:] if line not in stored]
        assert in_flight == logged[len(logged) - len(in_flight) :]
        assert len(in_flight) <= 1
        runs_again.update(in_flight)
    code, _, err = review.finish()
    # The kernel ends the write of a killed process between two pages of memory, so the last record may be torn.
    assert code == 0
    assert re.fullmatch(r"(.*: the last write did not finish; its \d+ bytes are set aside in .*\n)?", err)
    assert review.report == reference.report
    assert review.stored() == reference.stored()
    # Each visit once, and once more for each time that its line was written and its checkpoint was not.
    assert Counter(review.logged()) == Counter(reference.logged()) + runs_again


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_third_put(tmp_path, when, sweep):
    """Before a put its visit has no checkpoint and runs again; right after the put it never does."""
    reference, _ = undisturbed(tmp_path)
    review, kills, most = Review(tmp_path / when), 0, sweep.count(100, 5)
    deadly = ["-c", DEADLY, str(EXAMPLE), when, "3"]
    while (code := review.finish(*deadly if kills < most else ())[0]) == -signal.SIGKILL:
        kills += 1
        missing = len(review.logged()) - len(review.stored())
        assert missing == (kills if when == "before" else 0)
    assert code == 0
    assert kills == min(17 if when == "before" else 11, most)
    assert review.report == reference.report
    assert review.stored() == reference.stored()
    assert set(review.logged()) == set(reference.logged())
    assert len(review.logged()) == len(reference.logged()) + (kills if when == "before" else 0)


def until_question(process):
    return next(line for line in process.stdout if "Accept it?" in line)


def test_another_process_sees_all_while_the_first_one_runs(tmp_path):
    review = Review(tmp_path)
    with review.start(answers="ask") as first:
        assert until_question(first) == "agreement.txt: a sentence of 58 words. Accept it? (y/n)\n"
        (waiting,) = review.saver.interrupts()
        assert (waiting.thread_id, waiting.node_id, waiting.when) == ("review", "judge", "inside")
        assert waiting.payload == "agreement.txt: a sentence of 58 words"
        assert [info.status for info in review.saver.history(THREAD)] == ["interrupted", "", ""]
        assert review.stored() == ["read agreement.txt", "measure agreement.txt"]

        first.stdin.write("no\n")
        first.stdin.flush()
        assert until_question(first).startswith("bread.txt: no date")
        answered = review.saver.get(THREAD).state["results"][0]
        assert answered == "rejected  agreement.txt  a sentence of 58 words"
        assert [waiting.payload for waiting in review.saver.interrupts()] == ["bread.txt: no date"]

        # The first still waits for its terminal; somebody else answers, and goes on to the end.
        code, out, _ = review.finish()
        assert code == 0
        assert out.startswith("bread.txt: no date. Accept it? (y/n)\njudge bread.txt\n")
        assert first.poll() is None
        assert review.saver.interrupts() == []
        report = review.report

        _, err = first.communicate("no\n", timeout=60)  # too late: nothing waits any more
        assert first.returncode == 1
        assert "nothing waits for an answer" in err
    assert review.report == report
    assert review.saver.get(THREAD).next_node_id == END
    assert set(Counter(review.logged()).values()) == {1}


ANSWERING = """
import sys
from graphkit import END, START, GraphResume, StateGraph, interrupt
from savers import FileSystemSaver

def ask(state):
    answer = interrupt("May I?")
    print("got", answer, flush=True)
    sys.stdin.readline()
    return {"answer": answer}

graph = StateGraph({}).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
app = graph.compile(checkpoint_saver=FileSystemSaver(sys.argv[1]))
app.invoke({"answer": None}, {"configurable": {"thread_id": "review"}})
print(app.invoke(GraphResume("yes"), {"configurable": {"thread_id": "review"}})["answer"], flush=True)
sys.stdin.readline()
"""


def test_another_process_sees_the_answer_before_the_node_is_done(tmp_path):
    command = [sys.executable, "-c", ANSWERING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "got yes\n"
        saver = FileSystemSaver(tmp_path, lock_timeout=0.05)
        latest = saver.get(THREAD)
        assert (latest.node_id, latest.next_node_id) == ("__START__", "ask")
        writes = saver.get_writes(THREAD.with_check_point_id(latest.id))
        assert [value for key, value in writes.items() if key.startswith("answer:")] == ["yes"]
        assert saver.interrupts() == []
        with pytest.raises(ThreadBusyError), saver.run_lock(THREAD):
            pass

        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline() == "yes\n"
        assert saver.get(THREAD).state["answer"] == "yes"
        assert first.poll() is None
        first.communicate("\n", timeout=60)
    assert first.returncode == 0
