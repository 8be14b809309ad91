"""`update_state` as a loop of its own: the same requests, the same drivers, no node run."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from graphkit._abc import INTERRUPT
from graphkit._compile_config import CompileConfig
from graphkit._config import RunnableConfig
from graphkit._engine.loop import KEEPS, Walk
from graphkit._engine.requests import Load, Record, Request, Save
from graphkit._frozen import freeze
from graphkit._state import Changes
from graphkit._topology import Topology
from graphkit.errors import CheckpointNotFoundError, GraphRunnerError


class Update(Walk):
    """Appends a child of a checkpoint, with values merged in; see `CompiledGraph.update_state`."""

    def __init__(
        self,
        topology: Topology,
        options: CompileConfig,
        config: RunnableConfig,
        values: Mapping[str, Any] | None,
        as_node: str | None,
        goto: str | None,
    ) -> None:
        super().__init__(topology, options, config)
        self.values = values
        self.as_node = as_node
        self.goto = goto

    def steps(self) -> Generator[Request, Any, RunnableConfig]:
        """Merge, decide the next node, append. Everything is checked before anything is stored."""
        self._check()
        base = yield Load(self.config)
        if base is None:
            wanted = self.config.checkpoint_id
            what = "a checkpoint" if wanted is None else f"checkpoint {wanted!r}"
            raise CheckpointNotFoundError(self.config.thread, what)
        self.data, self.changes = base.state, Changes(base.state, {})
        node_id = self.as_node or base.node_id
        self.merge(node_id, self.values)
        following = base.next_node_id
        if self.as_node is not None:
            following = yield from self.follow(self.as_node)
        elif self.goto is not None:
            following = self.goto
        recorded = yield from self.recorded(base)
        # Without a node of its own the run stands where it stood: what waits there, and what was answered, stays true.
        stays = bool(recorded) and self.as_node is None and self.goto is None
        was_stopped = any(key.startswith(INTERRUPT) for key in recorded)
        own = {"step": 0 if was_stopped else base.metadata.get("step", 0), "source": "update"}
        if stays:
            own[KEEPS] = base.id  # so that a process that dies before it is recorded here loses no stop
        graph = {"graph": self.topology.fingerprint}
        metadata = freeze({**self.carried(base), **self._callers(), **graph, **own})
        child = yield Save(node_id, following, self.data, parent=base, metadata=metadata, changes=self.changes)
        here = self.config.replace(checkpoint_id=child.id, next_node=following)
        if stays:
            yield Record(here, recorded)
        return here

    def _callers(self) -> Mapping[str, Any]:
        return {key: value for key, value in self.config.metadata.items() if key != "run_id"}

    def _check(self) -> None:
        if self.as_node is not None and self.goto is not None:
            raise GraphRunnerError("give as_node or goto, not both: each says which node comes next")
        if self.as_node is not None and self.as_node not in self.topology.edges:
            known = self.as_node in self.topology.nodes
            reason = "has no outgoing edge" if known else "is not a node of the graph"
            raise GraphRunnerError(f"as_node={self.as_node!r} {reason}", node_id=self.as_node)
        if self.goto is not None and not self.topology.has_target(self.goto):
            raise GraphRunnerError(f"goto={self.goto!r} is not a node of the graph", node_id=self.goto)
