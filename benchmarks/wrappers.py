"""What each wrapper, a cipher and all of them add to a put and a get of a saver, in CPU time, beside the bare saver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.table import Row, run
from graphkit import BaseCheckpointSaver, Checkpoint, RunnableConfig
from savers import (
    AccessControlledSaver,
    AuditedSaver,
    AuditLog,
    FileSystemSaver,
    MemorySaver,
    SaverWrapper,
    SubjectKeys,
    acting_as,
    policies,
)

PUTS = 2000


def put_many(saver: BaseCheckpointSaver) -> float:
    """CPU seconds of a put of a small state, in a thread that exists."""
    config = RunnableConfig("ann/1")
    checkpoints = [Checkpoint(node_id="a", next_node_id="b", state={"n": n}) for n in range(PUTS)]
    with acting_as("ann"):
        saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": -1}))
        started = process_time()
        for checkpoint in checkpoints:
            saver.put(config, checkpoint)
        return (process_time() - started) / PUTS


def get_many(saver: BaseCheckpointSaver) -> float:
    """CPU seconds of a get of the latest checkpoint."""
    config = RunnableConfig("ann/1")
    with acting_as("ann"):
        saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": -1}))
        started = process_time()
        for _ in range(PUTS):
            saver.get(config)
        return (process_time() - started) / PUTS


SaverMaker = Callable[..., BaseCheckpointSaver]
WRAPPERS: dict[str, Callable[[BaseCheckpointSaver], BaseCheckpointSaver]] = {
    "bare": lambda saver: saver,
    "a SaverWrapper": SaverWrapper,
    "access, by a function": lambda saver: AccessControlledSaver(saver, lambda *_: True),
    "access, by prefix": lambda saver: AccessControlledSaver(saver, policies.prefix({"ann": "ann/"})),
    "access, by owner": lambda saver: AccessControlledSaver(saver, policies.owner()),
    "audit, a function": lambda saver: AuditedSaver(saver, lambda _: None),
}
"""An audit log is measured with them, in `main`: it needs a directory."""
SIGNING_KEY = bytes(range(32))
CIPHER = SubjectKeys({"current": bytes(32), "ann": bytes(range(32))}, key_for=lambda *_: "ann")


def make_rows(make_saver: SaverMaker, folder: Callable[[], Path], *, can_seal: bool) -> dict[str, SaverMaker]:
    """Return what opens a saver with each wrapper, with a cipher, and with all of them."""

    def open_audited() -> BaseCheckpointSaver:
        return AuditedSaver(make_saver(), AuditLog(folder()))

    def open_stack(**options: Any) -> BaseCheckpointSaver:
        guarded = AccessControlledSaver(make_saver(**options), policies.prefix({"ann": "ann/"}))
        return AuditedSaver(guarded, AuditLog(folder(), signing_key=SIGNING_KEY))

    rows: dict[str, SaverMaker] = {kind: lambda wrap=wrap: wrap(make_saver()) for kind, wrap in WRAPPERS.items()}
    rows["audit"] = open_audited
    if not can_seal:
        return {**rows, "audit, signed, and access": open_stack}
    rows["a key for each subject"] = lambda: make_saver(cipher=CIPHER)
    return {**rows, "all: audit, signed, access, a key": lambda: open_stack(cipher=CIPHER)}


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""
    savers: dict[str, SaverMaker] = {
        "MemorySaver": MemorySaver,
        "FileSystemSaver, never": lambda **options: FileSystemSaver(folder(), fsync="never", **options),
        "FileSystemSaver, always": lambda **options: FileSystemSaver(folder(), fsync="always", **options),
    }
    for name, make_saver in savers.items():
        openers = make_rows(make_saver, folder, can_seal=make_saver is not MemorySaver)
        # A get does not sync.
        measured = {"put": put_many} if name.endswith("always") else {"put": put_many, "get": get_many}
        for what, measure in measured.items():
            rows = [
                Row(kind, lambda open_saver=open_saver, measure=measure: measure(open_saver()))  # type: ignore[misc]
                for kind, open_saver in openers.items()
            ]
            run(f"A {what} through a wrapper: {name}", rows, rounds=7, base="bare")
