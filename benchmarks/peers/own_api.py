"""Graphkit's savers through their own API, under the names of LangGraph's methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from benchmarks.table import timed
from graphkit import END, START, Checkpoint, RunnableConfig, StateGraph
from graphkit.abc import BaseCheckpointSaver
from graphkit.saver_kit import freeze


class OwnApi:
    """A saver of graphkit that the rows of LangGraph's checkpointers can be measured with."""

    def __init__(self, saver: BaseCheckpointSaver) -> None:
        self.store: Any = saver
        self._messages: Any = freeze([])
        """Those of the last put: a graph of graphkit has them frozen already."""

    def get_next_version(self, current: int | None, _channel: None) -> int:
        """Return the version of a channel, which graphkit does not have."""
        return (current or 0) + 1

    def put(self, config: Any, checkpoint: Any, metadata: Mapping[str, Any], _versions: Any) -> Any:
        """Put the values of a checkpoint of LangGraph as a state."""
        thread = config["configurable"]["thread_id"]
        messages = checkpoint["channel_values"]["messages"]
        known = self._messages if len(self._messages) < len(messages) else freeze([])
        self._messages = freeze([*known, *messages[len(known) :]])
        self.store.put(
            RunnableConfig(thread),
            Checkpoint(
                id=checkpoint["id"],
                node_id="loop",
                next_node_id="loop",
                state={"messages": self._messages},
                metadata=metadata,
            ),
        )
        return config

    def get_tuple(self, config: Any) -> Any:
        """Read a state."""
        found = config["configurable"]
        checkpoint = self.store.get(RunnableConfig(found["thread_id"], found.get("checkpoint_id")))
        return checkpoint and checkpoint.state

    def list(
        self,
        config: Any,
        *,
        filter: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """Read checkpoints with their states: of a thread, or of all."""
        if config is not None:
            for checkpoint in islice(self.store.list(RunnableConfig(config["configurable"]["thread_id"])), limit):
                yield checkpoint.state
        elif filter:
            yield from self.store.search(filter, limit=limit)
        else:
            configs = map(RunnableConfig, self.store.threads())
            checkpoints = (found for own in configs for found in self.store.list(own))
            yield from (checkpoint.state for checkpoint in islice(checkpoints, limit))

    def delete_thread(self, thread: str) -> None:
        """Delete a thread."""
        self.store.delete(thread)

    def run_steps(self, steps: int) -> float:
        """Measure one step of a graph of two nodes that take turns, in seconds."""
        graph = StateGraph({})
        for name in ("a", "b"):
            graph.add_node(name, lambda state: {"n": state["n"] + 1})
        graph.add_edge(START, "a").add_edge("a", "b")
        graph.add_conditional_edges("b", lambda state: END if state["n"] >= steps else "a")
        app = graph.compile(checkpoint_saver=self.store)
        app.invoke_final({"n": steps - 2}, RunnableConfig("first"))
        config = RunnableConfig("bench")
        return timed(lambda: app.invoke_final({"n": 0}, config)) / steps
