"""The invoice service under SIGKILL: two workers and a server are killed at random, and it ends right.

What is stored is never done again. After each kill the test reads the store first and the log of effects then: an effect
whose result was stored had its line in the log, and must never get another one.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "invoice_service.py"
COUNT = 200
ENDS = {"finished", "failed", "cancelled"}


def find_free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Service:
    """A server and two workers on one directory, each of which may be killed."""

    def __init__(self, directory):
        self.directory = directory
        self.port = find_free_port()
        self.roles = ["serve", "work", "work"]
        self.processes = [self.start(role) for role in self.roles]

    def start(self, role):
        options = ["--runs", self.directory, "--port", self.port]
        options += ["--cool-off", 1, "--report", "* * * * *"]
        command = [sys.executable, str(EXAMPLE), role, *map(str, options)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, number):
        """Kill one process, and start it again."""
        self.processes[number].kill()
        self.processes[number].wait()
        self.processes[number] = self.start(self.roles[number])

    def stop(self):
        """End all of them; one that has just been started may not have its handler of SIGTERM yet."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(timeout=60)

    def post(self, path, body, **headers):
        """Send a request, again while the server is down; return the status and the answer."""
        url = f"http://127.0.0.1:{self.port}/{path}"
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = json.dumps(body).encode()
        request = urllib.request.Request(url, data, names)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    return response.status, json.load(response)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)  # the server was killed, and starts again

    @property
    def effects(self):
        path = self.directory / "effects.log"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter()

    def find_stored(self, saver):
        """Return the effects whose results are stored."""
        stored = set()
        for thread in saver.threads():
            history = saver.list(thread)
            nodes = {checkpoint.node_id for checkpoint in history}
            nodes &= {"load", "pay", "report"}
            stored |= {f"{thread} {node}" for node in nodes}
            if history:
                latest = history[0]
                writes = saver.get_writes(RunnableConfig(thread, latest.id))
                items = {key.removeprefix("task:") for key in writes if key.startswith("task:")}
                items.update(map(str, latest.state.get("checked", ())))
                stored |= {f"{thread} check {item}" for item in items}
        return stored


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path)
    yield service
    for process in service.processes:
        process.kill()
        process.wait()


def begin(service, name, seconds):
    """Begin a batch by two equal requests; return its thread."""
    answers = [service.post("batches", {"count": COUNT, "seconds": seconds}, idempotency_key=name) for _ in range(2)]
    assert [status for status, _ in answers] == [202, 202]
    first, second = (body["thread"] for _, body in answers)
    assert first == second
    return first


def is_over(saver, *threads):
    return all(saver.recent(RunnableConfig(thread), limit=1)[0].status in ENDS for thread in threads)


def test_random_kills_lose_and_repeat_nothing(service, tmp_path, sweep):
    """Three batches: one is approved, one waits until its deadline, one is cancelled; and a report each minute."""
    dice = random.Random(26)
    saver = FileSystemSaver(tmp_path / "checkpoints")
    kills = sweep.count(30, 5)
    paid = begin(service, "paid", 3600)
    late = begin(service, "late", 2)
    cancelled = begin(service, "cancelled", 3600)
    service.post(f"batches/{cancelled}/cancel", {"reason": "sent twice"})
    seen = []
    with saver.watch(interval=0.1) as changes:
        while kills or not is_over(saver, paid, late, cancelled):
            for _ in range(dice.randrange(1, 60)):
                if changes.get(0.5) is None:
                    break
            if kills:
                service.kill(dice.randrange(3))
                kills -= 1
            seen.append((service.find_stored(saver), service.effects))
            if saver.interrupts(paid):
                status, _ = service.post(f"batches/{paid}/answer", {"answer": True})
                assert status in {202, 409}  # 409: the request was repeated, because the server was killed
    service.stop()

    state_of_paid = saver.get(paid).state
    state_of_late = saver.get(late).state
    for state in (state_of_paid, state_of_late):
        assert sorted(state["checked"]) == [*range(COUNT)]
    assert state_of_paid["paid"] == sum(range(COUNT))
    assert state_of_late["approved"] is False
    assert "paid" not in state_of_late
    assert saver.summary(cancelled).cancellation["reason"] == "sent twice"
    effects = service.effects
    for stored, logged in seen:
        assert {effect for effect in stored if effects[effect] != logged[effect]} == set()
    assert service.find_stored(saver) <= effects.keys()
    assert saver.verify().ok
