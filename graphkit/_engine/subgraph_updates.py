"""The updates that a nested graph passes to its outer graph, in order.

The outer graph merges each of them, so that a reducer counts each once. They must survive a crash
inside the nested graph. Therefore they are part of its stored state, under a key that is never
shown: a list that only grows, so that a store writes just the growth. An update is kept as it was
only for keys that a channel of the outer graph has to merge. For any other key the name is enough,
because the final value is in the nested graph's state.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, final

from graphkit._engine.update_codec import keys_of, pack, select_keys, unpack
from graphkit._values.channels import REMOVE
from graphkit._values.frozen import FrozenDict, FrozenList, extend_frozen, freeze
from graphkit._values.state import SET, Changes

SUBGRAPH_UPDATES: Final = "graphkit:updates"
"""The key of the updates in the stored state of a nested graph."""


@final
class SubgraphUpdates:
    """The updates of one execution of a nested graph.

    Attributes:
        entries: one mapping per update: `update`, the part that channels of the outer graph merge,
            and `others`, the names of the remaining keys.
    """

    def __init__(self, outer_channels: Collection[str]) -> None:
        self.outer_channels = frozenset(outer_channels)
        self.entries: FrozenList = freeze([])

    def add(self, _node_id: str, update: FrozenDict) -> None:
        """Add an update of the nested graph."""
        others = [key for key in keys_of(update) if key not in self.outer_channels]
        self._append(select_keys(update, self.outer_channels), others)

    def add_renamed_keys(self, old: FrozenDict, new: FrozenDict) -> None:
        """Add the keys that a migration of the nested graph's stored state has introduced.

        A migration knows whole states only, so the part of an update that a channel of the outer
        graph merges stays as it is.
        """
        known = {key for entry in self.entries for key in entry["others"]}
        if known - new.keys():
            introduced = [key for key in new if key not in old and key not in self.outer_channels]
            self._append(pack({}), introduced)

    def _append(self, update: FrozenDict, others: list[str]) -> None:
        entry = freeze({"update": update, "others": others})
        self.entries = extend_frozen(self.entries, [entry])
        self.entries.base = None

    def include_in(
        self, data: FrozenDict, changes: Changes | None, entries: FrozenList
    ) -> tuple[FrozenDict, Changes | None]:
        """Return a state with entries in it, as it is stored, and what changed in it."""
        include_in = FrozenDict(data)
        include_in.kind = data.kind
        include_in._set_frozen(SUBGRAPH_UPDATES, entries)  # noqa: SLF001 - as a merge does
        if changes is None:
            return include_in, None
        stored_before = changes.base.get(SUBGRAPH_UPDATES)
        op = len(stored_before) if stored_before else SET
        return include_in, Changes(changes.base, {**changes.ops, SUBGRAPH_UPDATES: op})

    def updates_for_outer_graph(self, data: FrozenDict) -> list[dict[str, Any]]:
        """Return what the outer graph merges, given the nested graph's final state."""
        updates = [unpack(entry["update"]) for entry in self.entries]
        others = dict.fromkeys(key for entry in self.entries for key in entry["others"])
        updates.append({key: data.get(key, REMOVE) for key in others})
        return [update for update in updates if update]


def strip_subgraph_updates(data: FrozenDict) -> FrozenDict:
    """Return a stored state without the updates for the outer graph."""
    if SUBGRAPH_UPDATES not in data:
        return data
    return FrozenDict({key: value for key, value in data.items() if key != SUBGRAPH_UPDATES})
