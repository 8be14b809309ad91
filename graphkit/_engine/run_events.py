"""RunEvents: posts to the observers what happens in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol, final

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.writes import ANSWER
from graphkit._values.frozen import FrozenDict
from graphkit._wording import message_of


class _Run(Protocol):
    """What the events say of their run."""

    step: int
    metadata: FrozenDict

    def post_event(self, type: str, level: str, node_id: str | None, **data: Any) -> None: ...


@final
class RunEvents:
    """The events of one run. Hot code calls these methods only if the run has observers."""

    __slots__ = ("execution_counts", "run")

    def __init__(self, run: _Run) -> None:
        self.run = run
        self.execution_counts: Counter[str] = Counter()
        """How often each node was executed."""

    def post_node_start(self, node_id: str, data: FrozenDict) -> None:
        """Post that a node starts, with the state that it receives."""
        run = self.run
        self.execution_counts[node_id] += 1
        count = self.execution_counts[node_id]
        if count > 1:
            run.post_event("cycle.detected", "info", node_id, visit_count=count)
        run.post_event("node.start", "info", node_id, step=run.step)
        run.post_event("node.state", "verbose", node_id, input=data)

    def post_node_complete(self, node_id: str, data: FrozenDict) -> None:
        """Post that a node has finished, with the state after it."""
        run = self.run
        run.post_event("node.state", "verbose", node_id, output=data)
        run.post_event("node.complete", "info", node_id, step=run.step, error=False)

    def post_node_failed(self, node_id: str, error: BaseException) -> None:
        """Post that a node has failed."""
        run = self.run
        reason = message_of(error)
        run.post_event("node.complete", "warning", node_id, step=run.step, error=True, reason=reason)

    def post_load(self, base: Checkpoint) -> None:
        """Post that a checkpoint was loaded."""
        self.run.post_event(
            "checkpoint.load",
            "info",
            base.node_id,
            run_id=base.metadata.get("run_id"),
            node=base.node_id,
            id=base.id,
        )

    def post_save(self, saved: Checkpoint, source: str) -> None:
        """Post that a checkpoint was stored."""
        self.run.post_event(
            "checkpoint.save",
            "info",
            saved.node_id,
            id=saved.id,
            run_id=self.run.metadata.get("run_id"),
            node=saved.node_id,
            next=saved.next_node_id,
            source=source,
        )

    def post_resume(self, base: Checkpoint, next_node_id: str | None, added: Mapping[str, Any]) -> None:
        """Post that the run resumes, and which interrupts the resume answers.

        Args:
            base: the checkpoint.
            next_node_id: the node that the run continues with.
            added: the pending writes that the resume adds.
        """
        run = self.run
        run.post_event(
            "checkpoint.resume",
            "info",
            next_node_id,
            run_id=run.metadata.get("run_id"),
            checkpoint_node=base.node_id,
            resume_node=next_node_id,
        )
        for key, answer in added.items():
            if key.startswith(ANSWER) and answer is not None:
                interrupt_id = key.removeprefix(ANSWER)
                run.post_event("interrupt.answered", "info", next_node_id, id=interrupt_id)
