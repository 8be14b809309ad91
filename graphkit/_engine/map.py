"""Maps: a node that runs once for each item of a list.

The list and the update of each finished item are pending writes, so that a resume after a crash
finds the same items and runs only the unfinished ones. Two of these records are left out, because
each costs a sync:

* A single item that is found in the state is recorded with the first record that depends on it: its
  update, its interrupt, a result of `once`, or, for `idempotency_key`, by itself. Until then, a
  resume finds it in the state of the checkpoint.
* The update of the item that finishes last is not recorded if only its merge comes before the
  checkpoint, or the record of the branch, that contains it. If the merge fails, it is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any, final

from graphkit._engine.cursor import Steps, is_update
from graphkit._engine.node_runner import Halt, NodeRunner, describe_node
from graphkit._engine.requests import Request
from graphkit._engine.update_codec import pack, unpack
from graphkit._plan.topology import Node, StateItems
from graphkit._records.context import GraphInterrupt
from graphkit._records.output import Command
from graphkit._saver.writes import ITEMS, TASK
from graphkit._values.frozen import PLAIN, FrozenDict, freeze, kind_of
from graphkit._wording import describe_error
from graphkit.errors import GraphRunnerError, NodeExecutionError


@final
class MapExecution:
    """One execution of a map node.

    Attributes:
        runner: the node runner that has reached the map node.
        node: the map node.
        key: the key of this execution.
        updates: the packed update of each item; None while it is not finished.
    """

    def __init__(self, runner: NodeRunner, node: Node, key: str) -> None:
        self.runner = runner
        self.run = runner.run
        self.node = node
        self.key = key
        self.executor = runner.find_executor(node.id)
        self.updates: list[FrozenDict | None] = []
        self.unfinished = 0
        """How many items have not returned an update yet."""

    def steps(self) -> Steps:
        """Run the node for all items concurrently, then merge their updates in the items' order.

        Raises:
            Halt: an item waits for a human, or the run was asked to pause.
        """
        runner = self.runner
        items = yield from self._resolve_items()
        self.updates = [None] * len(items)
        self.unfinished = len(items)
        parts = [self._run_item(index, item) for index, item in enumerate(items)]
        yield from runner.run_parallel(self.node.id, parts, self.node.max_concurrency)
        if any(update is None for update in self.updates):
            raise Halt
        self._merge([unpack(update) for update in self.updates if update is not None])

    def _merge(self, updates: list[dict[str, Any]]) -> None:
        """Merge the updates of all items, in their order."""
        runner = self.runner
        node_id = self.node.id
        if runner.post is not None:
            named = [(str(index), update) for index, update in enumerate(updates)]
            runner.post_overwrites(node_id, named)
        for index, update in enumerate(updates):
            source = f"item {index} of {node_id!r}"
            runner.merge(node_id, update, source)

    def _resolve_items(self) -> Generator[Request, Any, Collection[Any]]:
        """Return the items; they are recorded once, so that a resume finds the same items."""
        run = self.run
        runner = self.runner
        node = self.node
        recorded: Collection[Any] | None = run.writes.get(ITEMS + self.key)
        if recorded is not None:
            return recorded
        assert node.items is not None
        failure_message = f"what {node.id!r} maps over cannot be listed"
        arguments = (runner.state(), runner.config)
        listed = yield from runner.call_user(node.id, failure_message, node.items, *arguments)
        try:
            items: Collection[Any] = freeze([*listed])
        except (Exception, GraphInterrupt) as error:
            reason = f"{failure_message}: {describe_error(error)}"
            raise runner.make_error(NodeExecutionError, reason, node.id) from error
        yield from run.ensure_stored()
        writes = {ITEMS + self.key: items}
        if self._may_find_again(items):
            run.defer(writes)
        else:
            yield from run.record_or_defer(writes)
        return items

    def _may_find_again(self, items: Collection[Any]) -> bool:
        """Return whether the items need no record before anything depends on them.

        Several items are recorded even so: readers see how many there are before the first has
        finished. Values that are not plain may be refused by the saver, which must happen before an
        item runs.
        """
        assert self.node.items is not None
        is_in_state = isinstance(self.node.items.function, StateItems)
        return is_in_state and len(items) <= 1 and kind_of(items) == PLAIN

    def _run_item(self, index: int, item: Any) -> Steps:
        """Run the node for one item, unless its result is recorded."""
        run = self.run
        runner = self.runner
        node = self.node
        key = f"{self.key}.{index}" if self.key else str(index)
        task = run.writes.get(TASK + key)
        if task is not None:
            self.unfinished -= 1
        else:
            if run.is_pausing:
                return
            try:
                result = yield from runner.run_action(node, item, key, self.executor, index)
            except Halt:
                return
            task = {"node": node.id, "update": self._pack_result(index, result)}
            self.unfinished -= 1
            yield from self._record_result({TASK + key: task})
            if runner.dispatched_outputs:
                yield from runner.emit_all(runner.dispatched_outputs)
        self.updates[index] = task["update"]
        if runner.post is not None:
            run.post_event(
                "parallel.branch",
                "info",
                node.id,
                branch=key,
                nodes=1,
                index=index,
                total=len(self.updates),
            )

    def _record_result(self, writes: dict[str, Any]) -> Steps:
        """Record the update of an item, unless it is the last one and will be stored with the node at once."""
        run = self.run
        is_last = self.unfinished == 0 and not self.runner.dispatched_outputs
        if is_last and run.stores_directly_after(self.node):
            run.defer(writes)
        else:
            yield from run.record_or_defer(writes)

    def _pack_result(self, index: int, result: Any) -> FrozenDict:
        """Return the update of an item as it is recorded."""
        runner = self.runner
        node_id = self.node.id
        name = describe_node(self.node, index)
        if result.__class__ is Command:
            if result.goto is not None:
                reason = f"{name} returned a Command that goes to {result.goto!r}: a map cannot go anywhere"
                raise runner.make_error(GraphRunnerError, reason, node_id)
            result = result.update
        if result is not None and not is_update(result):
            returned = type(result).__name__
            reason = f"{name} returned {returned}: return a mapping of updates, or None"
            raise runner.make_error(NodeExecutionError, reason, node_id)
        try:
            return pack(runner.schema.to_mapping(runner.absorb_private(result or {})))
        except ValueError as error:
            reason = f"the update of {name} cannot be stored: {error}"
            raise runner.make_error(NodeExecutionError, reason, node_id) from error
