"""Runs the branches of a fork concurrently, and merges their updates at the join.

`graphkit._build.joins` finds the join when the graph is compiled.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, final

from graphkit._engine.cursor import Steps
from graphkit._engine.node_runner import Halt, NodeRunner
from graphkit._engine.requests import Request
from graphkit._engine.update_codec import unpack
from graphkit._plan.topology import Fork, Node
from graphkit._saver.writes import TASK
from graphkit._values.frozen import FrozenDict
from graphkit.errors import GraphRunnerError


def execute_fork(runner: NodeRunner, fork: Fork, key: str) -> Steps:
    """Run the branches concurrently, then merge their updates once, in the order of the edges.

    Args:
        runner: the node runner that has reached the fork.
        fork: the fork.
        key: the key of this execution of the fork.

    Raises:
        Halt: a branch waits for a human, or was asked to pause.
    """
    yield from runner.run.ensure_stored()
    branches = _make_branches(runner, fork, key)
    yield from runner.run_parallel(fork.id, [branch.steps() for branch in branches])
    if any(branch.is_halted for branch in branches):
        raise Halt
    if runner.post is not None:
        updates = [(branch.head, branch.combined_update()) for branch in branches]
        runner.post_overwrites(fork.id, updates)
    for branch in branches:
        _merge_branch(runner, branch)


def _make_branches(runner: NodeRunner, fork: Fork, key: str) -> list[Branch]:
    prefix = f"{key}." if key else ""
    branches: list[Branch] = []
    for index, head in enumerate(fork.heads):
        branch_key = prefix + _escape_key(head)
        branches.append(Branch(runner, fork, index, branch_key))
    return branches


def _merge_branch(runner: NodeRunner, branch: Branch) -> None:
    for node_id, update in branch.updates:
        runner.merge(node_id, unpack(update))
    private = dict(runner.private)
    private.update(branch.changed_private())
    runner.private = FrozenDict(private)


@final
class Branch(NodeRunner):
    """One branch of a fork: from its head to the join, on a state of its own."""

    def __init__(self, parent: NodeRunner, fork: Fork, index: int, key: str) -> None:
        super().__init__(parent.program, parent.config, parent.saver)
        self.run = parent.run
        self.parent = parent
        """The node runner that has reached the fork."""
        self.fork_id = fork.id
        self.index = index
        self.total = len(fork.heads)
        self.head = fork.heads[index]
        self.node_ids = fork.branches[self.head]
        self.join = fork.join
        self.next_node_id = self.head
        self.key = key
        self.data = parent.data
        self.transient = parent.transient
        self.private = parent.private
        self.initial_private = parent.private
        self.post = parent.post
        self.executor = parent.find_executor(fork.source)
        self.updates: list[tuple[str, FrozenDict]] = []
        """The updates of the branch so far, packed, each with its node."""
        self.update_listeners.append(self._add_update)
        self.is_halted = False

    def _add_update(self, node_id: str, update: FrozenDict) -> None:
        self.updates.append((node_id, update))

    def steps(self) -> Steps:
        """Run to the join, or until the branch has to stop; record every finished node."""
        count = 0
        try:
            while self.next_node_id != self.join:
                self.next_node_id = yield from self._take_step(f"{self.key}.{count}")
                count += 1
        except Halt:
            self.is_halted = True
            return
        if self.post is not None:
            self.run.post_event(
                "parallel.branch",
                "info",
                self.fork_id,
                branch=self.key,
                nodes=count,
                index=self.index,
                total=self.total,
            )

    def combined_update(self) -> dict[str, Any]:
        """Return all that the branch wrote; of each key, the last update."""
        combined: dict[str, Any] = {}
        for _, update in self.updates:
            combined.update(unpack(update))
        return combined

    def changed_private(self) -> dict[str, Any]:
        """Return the transient keys that have another value than at the branch's start."""
        initial = self.initial_private
        absent = object()
        return {key: value for key, value in self.private.items() if value is not initial.get(key, absent)}

    def path(self) -> list[str]:
        """Return the nodes that have finished."""
        return self.parent.path()

    def _take_step(self, key: str) -> Generator[Request, Any, str]:
        """Execute the next node or fork, unless its result is recorded; return what follows it."""
        run = self.run
        task = run.writes.get(TASK + key)
        if task is not None:
            return self._repeat(task)
        if run.is_pausing:
            raise Halt
        fork = self.topology.forks.get(self.next_node_id)
        if fork is not None:  # its own branches record what they do
            yield from run.execute_fork(self, fork, key)
            return self._require_inside(fork.id, fork.join)
        first = len(self.updates)
        node = self.topology.nodes[self.next_node_id]
        goto = yield from self.execute(node, key)
        next_node_id = yield from self._find_next(node, goto)
        task = {
            "node": node.id,
            "next": next_node_id,
            "updates": [update for _, update in self.updates[first:]],
            # For readers that show the progress of a fork:
            "branches": self.total,
            "ends": next_node_id == self.join,
        }
        yield from run.record_or_defer({TASK + key: task})
        run.finished_nodes.append(node.id)
        if self.dispatched_outputs:
            yield from self.emit_all(self.dispatched_outputs)
        return next_node_id

    def _repeat(self, task: dict[str, Any]) -> str:
        """Merge the recorded updates of a finished node; return what follows it."""
        node_id = task["node"]
        self.run.count_execution(node_id)
        for update in task["updates"]:
            self.merge(node_id, unpack(update))
        return self._require_inside(node_id, task["next"])

    def _find_next(self, node: Node, goto: str | None) -> Generator[Request, Any, str]:
        if goto is not None:
            return self._require_inside(node.id, self.resolve_goto(node.id, goto))
        if node.id not in self.topology.edges and not node.destinations:  # a branch may just end
            return self.join
        return self._require_inside(node.id, (yield from self.follow_edge(node.id)))

    def _require_inside(self, source: str, target: str) -> str:
        """Return the target of an edge.

        Raises:
            GraphRunnerError: the target is neither in this branch nor its join.
        """
        if target == self.join:
            return target
        fork = self.topology.forks.get(target)
        node_id = target if fork is None else fork.source
        if node_id not in self.node_ids:
            raise self.make_error(
                GraphRunnerError,
                f"{source!r} leads to {target!r}, out of its branch of {self.fork_id!r}, whose branches meet in "
                f"{self.join!r}",
                source,
            )
        return target


def _escape_key(head: str) -> str:
    """Return a node's id as a part of a key; dots and colons separate the parts."""
    return head.replace("~", "~0").replace(".", "~1").replace(":", "~2")
