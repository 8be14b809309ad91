"""Update: `update_state` as a loop of its own, with the same requests; it runs no node."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any, final

from graphkit._engine.history import (
    CONTINUED_EXECUTION,
    WRITES_TAKEN_FROM,
    RunHistory,
    checkpoint_not_found,
    graph_metadata,
    inherited_metadata,
)
from graphkit._engine.requests import Record, Request, Save
from graphkit._engine.routing import follow_edge
from graphkit._engine.state import SUBGRAPH_UPDATES, include_subgraph_updates
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.submissions import SUBMIT
from graphkit._saver.writes import STOP_PREFIXES
from graphkit._values.frozen import freeze
from graphkit._wording import message_of
from graphkit.errors import GraphRunnerError, NodeExecutionError


@final
class Update:
    """Appends a child of a checkpoint, with values merged in; see `CompiledGraph.update_state`."""

    def __init__(
        self,
        history: RunHistory,
        *,
        values: Mapping[str, Any] | None,
        as_node: str | None,
        goto: str | None,
        outer_channels: Collection[str] = (),
    ) -> None:
        """Prepare an update.

        Args:
            history: the history that it continues.
            values: merged into the state.
            as_node: the node that the values are attributed to.
            goto: the next node.
            outer_channels: the keys that the outer graph has channels for, if there is one.
        """
        self.history = history
        self.state = history.state
        self.topology = history.program.topology
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
        history = self.history
        state = self.state
        assert history.saver is not None
        base = yield from history.load_base()
        if base is None:
            raise checkpoint_not_found(history.requested_config)
        if SUBGRAPH_UPDATES in base.state:  # the update is one more that the outer graph merges
            state.collect_subgraph_updates(self.outer_channels)
        state.move_to(base, history.program.options.migrations)
        node_id = self.as_node or base.node_id
        try:
            state.merge(node_id, self.values)
        except NodeExecutionError as error:  # no node has returned the values: the message blames none
            reason = f"the values of update_state cannot be merged: {message_of(error.__cause__ or error)}"
            raise state.make_error(NodeExecutionError, reason, node_id) from error.__cause__
        next_node_id = yield from self._find_next(base)
        writes = yield from history.load_writes(base)
        # Without a node of its own the update leaves the run where it is: the interrupts that wait
        # there, and their answers, remain valid.
        keeps_position = self.as_node is None and self.goto is None
        metadata = inherited_metadata(base)
        metadata |= {key: value for key, value in history.config.metadata.items() if key != "run_id"}
        metadata |= graph_metadata(history.program)
        was_interrupted = any(key.startswith(STOP_PREFIXES) for key in writes)
        metadata["step"] = 0 if was_interrupted else base.metadata.get("step", 0)
        metadata["source"] = "update"
        if keeps_position:
            metadata[CONTINUED_EXECUTION] = base.metadata.get(CONTINUED_EXECUTION, base.id)
            if SUBMIT in base.metadata:
                metadata[SUBMIT] = base.metadata[SUBMIT]
            if writes:
                # If the process dies before it has recorded the writes, a resume finds them there.
                metadata[WRITES_TAKEN_FROM] = base.id
        data = state.data
        changes = state.changes
        if state.subgraph_updates is not None:
            data, changes = include_subgraph_updates(data, changes, state.subgraph_updates.entries)
        now = history.clock.now()
        checkpoint = Checkpoint.from_stored(
            id=history.clock.new_id(now // 1_000_000),
            node_id=node_id,
            next_node_id=next_node_id,
            parent_id=base.id,
            created_us=now // 1000,
            metadata=freeze(metadata),
            state=data,
            changes=changes,
        )
        child = yield Save(history.saver, history.config, checkpoint)
        child_config = history.config.replace(checkpoint_id=child.id, next_node=next_node_id)
        if keeps_position and writes:
            yield Record(history.saver, child_config, writes)
        return child_config

    def _find_next(self, base: Checkpoint) -> Generator[Request, Any, str | None]:
        if self.as_node is not None:
            return (yield from follow_edge(self.state, self.as_node))
        if self.goto is not None:
            return self.topology.resolve_target(self.goto)
        return base.next_node_id

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
