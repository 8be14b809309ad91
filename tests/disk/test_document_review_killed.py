"""The document review under SIGKILL: nothing that was stored runs again, and the report comes out the same.

A node that was killed between its last effect (its line in work.log) and its checkpoint runs again, which is right. So
the claim is exact: after each kill the store is read, and no line for a visit that is in it may be added later.
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

from graphkit import RunnableConfig
from savers import FileSystemSaver

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "01_document_review.py"
DOCUMENTS = ROOT / "examples" / "documents"
THREAD = RunnableConfig(thread_id="review")


class Review:
    """A review in a directory, and what its store and its work log say."""

    def __init__(self, directory, documents=DOCUMENTS):
        self.runs = directory
        self.options = ["--runs", str(directory), "--documents", str(documents)]

    def start(self):
        command = [sys.executable, str(EXAMPLE), *self.options, "--answers", "yes"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")

    def finish(self):
        with self.start() as process:
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
        return [
            f"{checkpoint.node_id} {checkpoint.state['document']}" for checkpoint in history if checkpoint.parent_id
        ]


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


@pytest.mark.requirement("P89")
def test_ten_random_kills_change_nothing(tmp_path, many_documents, sweep):
    reference, pace = undisturbed(tmp_path, many_documents)
    review = Review(tmp_path / "killed", many_documents)
    dice = random.Random(20)
    runs_again = Counter()
    for _ in range(sweep.count(10, 4)):
        before = len(review.logged())
        assert kill(review.start(), dice.randrange(13), dice.random() * pace)
        logged = review.logged()
        stored = review.stored()
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
