"""Update: `update_state` as a loop of its own, with the same requests; it runs no node."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any

from graphkit._engine.cursor import (
    CONTINUED_EXECUTION,
    WRITES_TAKEN_FROM,
    GraphCursor,
    checkpoint_not_found,
)
from graphkit._engine.program import Program
from graphkit._engine.requests import Record, Request, Save
from graphkit._engine.subgraph_updates import SUBGRAPH_UPDATES, SubgraphUpdates
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import INTERRUPT, SUBGRAPH_INTERRUPT
from graphkit._values.frozen import FrozenDict, freeze
from graphkit._wording import message_of
from graphkit.errors import GraphRunnerError, NodeExecutionError


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
        """Prepare an update.

        Args:
            program: the graph.
            config: names the thread, and the checkpoint if not the latest.
            saver: where the history is stored.
            values: merged into the state.
            as_node: the node that the values are attributed to.
            goto: the next node.
            outer_channels: the keys that the outer graph has channels for, if there is one.
        """
        # No checkpoint id: a put at a checkpoint would replace it, and history is never rewritten.
        super().__init__(program, config.with_check_point_id(None), saver)
        self.requested_config = config
        self.outer_channels = outer_channels
        self.values = values
        self.as_node = as_node
        self.goto = goto

    def steps(self) -> Generator[Request, Any, RunnableConfig]:
        """Merge the values, decide the next node, and append; check everything before storing.

        Returns:
            The config of the new checkpoint.
        """
        self._check_arguments()
        assert self.saver is not None
        base, _ = yield from self.load_base(self.requested_config)
        if base is None:
            raise checkpoint_not_found(self.requested_config)
        self.move_to_checkpoint(base)
        subgraph_updates = self._continue_subgraph_updates(base)
        node_id = self.as_node or base.node_id
        self._merge_values(node_id)
        next_node_id = yield from self._find_next(base)
        writes = yield from self.load_writes(base)
        # Without a node of its own the update leaves the run where it is: the interrupts that wait
        # there, and their answers, remain valid.
        keeps_position = self.as_node is None and self.goto is None
        own = self._own_metadata(base, writes, keeps_position=keeps_position)
        metadata = freeze(
            {
                **self.inherited_metadata(base),
                **self._callers_metadata(),
                **self.graph_metadata(),
                **own,
            }
        )
        data: FrozenDict = self.data
        changes = self.changes
        if subgraph_updates is not None:
            data, changes = subgraph_updates.include_in(data, changes, subgraph_updates.entries)
        now = self.clock.now()
        checkpoint = Checkpoint.from_stored(
            id=self.clock.new_id(now // 1_000_000),
            node_id=node_id,
            next_node_id=next_node_id,
            parent_id=base.id,
            created_us=now // 1000,
            metadata=metadata,
            state=data,
            changes=changes,
        )
        child = yield Save(self.saver, self.config, checkpoint)
        child_config = self.config.replace(checkpoint_id=child.id, next_node=next_node_id)
        if keeps_position and writes:
            yield Record(self.saver, child_config, writes)
        return child_config

    def _merge_values(self, node_id: str) -> None:
        """Merge the values.

        Raises:
            NodeExecutionError: they do not fit the schema. No node has returned them, so the message
                blames none.
        """
        try:
            self.merge(node_id, self.values)
        except NodeExecutionError as error:
            reason = f"the values of update_state cannot be merged: {message_of(error.__cause__ or error)}"
            raise self.make_error(NodeExecutionError, reason, node_id) from error.__cause__

    def _find_next(self, base: Checkpoint) -> Generator[Request, Any, str | None]:
        if self.as_node is not None:
            return (yield from self.follow_edge(self.as_node))
        if self.goto is not None:
            return self.topology.resolve_target(self.goto)
        return base.next_node_id

    def _own_metadata(self, base: Checkpoint, writes: Mapping[str, Any], *, keeps_position: bool) -> dict[str, Any]:
        """Return the metadata that only the new checkpoint has."""
        was_interrupted = any(key.startswith((INTERRUPT, SUBGRAPH_INTERRUPT)) for key in writes)
        step = 0 if was_interrupted else base.metadata.get("step", 0)
        own = {"step": step, "source": "update"}
        if keeps_position:
            own[CONTINUED_EXECUTION] = base.metadata.get(CONTINUED_EXECUTION, base.id)
            if writes:
                # If the process dies before it has recorded the writes, a resume finds them there.
                own[WRITES_TAKEN_FROM] = base.id
        return own

    def _continue_subgraph_updates(self, base: Checkpoint) -> SubgraphUpdates | None:
        """Add this update to what a nested graph passes to its outer graph."""
        if SUBGRAPH_UPDATES not in base.state:
            return None
        subgraph_updates = SubgraphUpdates(self.outer_channels or ())
        subgraph_updates.entries = base.state[SUBGRAPH_UPDATES]
        self.update_listeners.append(subgraph_updates.add)
        return subgraph_updates

    def _callers_metadata(self) -> Mapping[str, Any]:
        return {key: value for key, value in self.config.metadata.items() if key != "run_id"}

    def _check_arguments(self) -> None:
        as_node = self.as_node
        goto = self.goto
        if as_node is not None and goto is not None:
            raise GraphRunnerError("give as_node or goto, not both: each says which node comes next")
        _check_node_id("as_node", as_node)
        _check_node_id("goto", goto)
        if as_node is not None and as_node not in self.topology.edges:
            reason = "is not a node of the graph"
            if as_node in self.topology.nodes:
                reason = "has no outgoing edge"
            raise GraphRunnerError(f"as_node={as_node!r} {reason}", node_id=as_node)
        if goto is not None and self.topology.resolve_target(goto) is None:
            reason = f"goto={goto!r} is not a node of the graph"
            raise GraphRunnerError(reason, node_id=goto)


def _check_node_id(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise GraphRunnerError(f"{name}={value!r} is not a node id: give one node id, a str")
