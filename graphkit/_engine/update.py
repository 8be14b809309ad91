"""`update_state` as a loop of its own: the same requests, the same drivers, no node run."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any

from graphkit._engine.cursor import CONTINUED_EXECUTION, WRITES_TAKEN_FROM, GraphCursor, checkpoint_not_found
from graphkit._engine.program import Program
from graphkit._engine.requests import Load, Record, Request, Save
from graphkit._engine.subgraph_updates import EXTRA, SubgraphUpdates
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import INTERRUPT, SUBGRAPH_INTERRUPT
from graphkit._values.frozen import freeze
from graphkit.errors import GraphRunnerError


class Update(GraphCursor):
    """Appends a child of a checkpoint, with values merged in; see `CompiledGraph.update_state`."""

    def __init__(
        self,
        program: Program,
        config: RunnableConfig,
        saver: BaseCheckpointSaver,
        *,
        values: Mapping[str, Any] | None,
        as_node: str | None,
        goto: str | None,
        outer_channels: Collection[str] | None = None,
    ) -> None:
        """Prepare one; `outer_channels` are the channel names of the outer graph, if there is one."""
        # At no checkpoint: a put at one would replace it, and history is never rewritten.
        super().__init__(program, config.with_check_point_id(None), saver)
        self.asked_for = config
        self.outer_channels = outer_channels
        self.values = values
        self.as_node = as_node
        self.goto = goto

    def steps(self) -> Generator[Request, Any, RunnableConfig]:
        """Merge, decide the next node, append. Everything is checked before anything is stored."""
        self._check()
        assert self.saver is not None
        base = yield Load(self.saver, self.asked_for)
        if base is None:
            raise checkpoint_not_found(self.asked_for)
        self.move_to_checkpoint(base)
        contribution = self._contribution(base)
        node_id = self.as_node or base.node_id
        self.merge(node_id, self.values)
        following = base.next_node_id
        if self.as_node is not None:
            following = yield from self.follow(self.as_node)
        elif self.goto is not None:
            following = self.topology.resolve_target(self.goto)
        recorded = yield from self.load_writes(base)
        # Without a node of its own the run stands where it stood: what waits there, and what was answered, stays true.
        stays = self.as_node is None and self.goto is None
        was_stopped = any(key.startswith((INTERRUPT, SUBGRAPH_INTERRUPT)) for key in recorded)
        own = {"step": 0 if was_stopped else base.metadata.get("step", 0), "source": "update"}
        if stays:
            own[CONTINUED_EXECUTION] = base.metadata.get(CONTINUED_EXECUTION, base.id)
        if stays and recorded:
            own[WRITES_TAKEN_FROM] = base.id  # so that a process that dies before it is recorded here loses no stop
        metadata = freeze({**self.carried(base), **self._callers(), **self.stamp(), **own})
        data, changes = self.data, self.changes
        if contribution is not None:
            data, changes = contribution.stored(data, changes, contribution.entries)
        child = yield Save(
            self.saver, self.config, node_id, following, data, parent=base, metadata=metadata, changes=changes
        )
        here = self.config.replace(checkpoint_id=child.id, next_node=following)
        if stays and recorded:
            yield Record(self.saver, here, recorded)
        return here

    def _contribution(self, base: Checkpoint) -> SubgraphUpdates | None:
        """Of an embedded graph: what it hands to the graph around it, to which this update belongs."""
        if EXTRA not in base.state:
            return None
        contribution = SubgraphUpdates(self.outer_channels or ())
        contribution.entries = base.state[EXTRA]
        self.taps.append(contribution.add)
        return contribution

    def _callers(self) -> Mapping[str, Any]:
        return {key: value for key, value in self.config.metadata.items() if key != "run_id"}

    def _check(self) -> None:
        if self.as_node is not None and self.goto is not None:
            raise GraphRunnerError("give as_node or goto, not both: each says which node comes next")
        for name, value in (("as_node", self.as_node), ("goto", self.goto)):
            if value is not None and not isinstance(value, str):
                raise GraphRunnerError(f"{name}={value!r} is not a node id: give one node id, a str")
        if self.as_node is not None and self.as_node not in self.topology.edges:
            known = self.as_node in self.topology.nodes
            reason = "has no outgoing edge" if known else "is not a node of the graph"
            raise GraphRunnerError(f"as_node={self.as_node!r} {reason}", node_id=self.as_node)
        if self.goto is not None and self.topology.resolve_target(self.goto) is None:
            raise GraphRunnerError(f"goto={self.goto!r} is not a node of the graph", node_id=self.goto)
