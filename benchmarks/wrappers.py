"""What a wrapper adds to a put and a get of a saver, in CPU time, beside the bare saver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import thread_time

from benchmarks.table import Row, run
from graphkit import BaseCheckpointSaver, Checkpoint, RunnableConfig
from savers import (
    AccessControlledSaver,
    AuditedSaver,
    AuditLog,
    FileSystemSaver,
    MemorySaver,
    SaverWrapper,
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
        started = thread_time()
        for checkpoint in checkpoints:
            saver.put(config, checkpoint)
        return (thread_time() - started) / PUTS


def get_many(saver: BaseCheckpointSaver) -> float:
    """CPU seconds of a get of the latest checkpoint."""
    config = RunnableConfig("ann/1")
    with acting_as("ann"):
        saver.put(config, Checkpoint(node_id="a", next_node_id="b", state={"n": -1}))
        started = thread_time()
        for _ in range(PUTS):
            saver.get(config)
        return (thread_time() - started) / PUTS


WRAPPERS: dict[str, Callable[[BaseCheckpointSaver], BaseCheckpointSaver]] = {
    "bare": lambda saver: saver,
    "a SaverWrapper": SaverWrapper,
    "access, by a function": lambda saver: AccessControlledSaver(saver, lambda *_: True),
    "access, by prefix": lambda saver: AccessControlledSaver(saver, policies.prefix({"ann": "ann/"})),
    "access, by owner": lambda saver: AccessControlledSaver(saver, policies.owner()),
}
"""An audit is measured with them, in `main`: its log needs a directory."""


def main(folder: Callable[[], Path]) -> None:
    """Print the tables."""
    savers: dict[str, Callable[[], BaseCheckpointSaver]] = {
        "MemorySaver": MemorySaver,
        "FileSystemSaver, never": lambda: FileSystemSaver(folder(), fsync="never"),
    }
    wrappers = {
        **WRAPPERS,
        "audit": lambda saver: AuditedSaver(saver, AuditLog(folder())),
        "audit, a function": lambda saver: AuditedSaver(saver, lambda _: None),
    }
    for name, make_saver in savers.items():
        for what, measure in {"put": put_many, "get": get_many}.items():
            rows = [
                Row(kind, lambda wrap=wrap, measure=measure, make=make_saver: measure(wrap(make())))  # type: ignore[misc]
                for kind, wrap in wrappers.items()
            ]
            run(f"A {what} through a wrapper: {name}", rows, rounds=7, base="bare")
