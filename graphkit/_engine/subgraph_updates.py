"""What an embedded graph hands to the graph around it: its updates, in order, so that reducers count each once.

They must outlive a crash inside, so they are kept in the child's stored state, under a key that nothing shows: a list
that grows, of which a store writes the growth. Only what a channel of the parent has to merge is kept as it was given;
of any other key only the name, for its final value stands in the child's state anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, final

from graphkit._engine.update_codec import keys_of, only, pack, unpack
from graphkit._values.channels import REMOVE
from graphkit._values.frozen import FrozenDict, FrozenList, extend_frozen, freeze
from graphkit._values.state import SET, Changes

EXTRA: Final = "graphkit:updates"
"""The key, in the stored state of an embedded graph."""


@final
class SubgraphUpdates:
    """The updates of one visit of an embedded graph.

    Attributes:
        entries: per update, what the parent's channels must merge, and the names of the other keys.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self.wanted = frozenset(wanted)
        self.entries: FrozenList = freeze([])

    def add(self, _node_id: str, update: FrozenDict) -> None:
        """Note an update of the child."""
        others = [key for key in keys_of(update) if key not in self.wanted]
        self.entries = extend_frozen(self.entries, [freeze({"update": only(update, self.wanted), "others": others})])
        self.entries.base = None

    def migrated(self, old: FrozenDict, new: FrozenDict) -> None:
        """Note under which names stands now what was noted, after the child's stored state was migrated.

        A migration knows whole states only, so an update that a channel of the parent has to merge stays as it is.
        """
        touched = {key for entry in self.entries for key in entry["others"]}
        if touched - new.keys():
            others = [key for key in new if key not in old and key not in self.wanted]
            self.entries = extend_frozen(self.entries, [freeze({"update": pack({}), "others": others})])
            self.entries.base = None

    def stored(
        self, data: FrozenDict, changes: Changes | None, entries: FrozenList
    ) -> tuple[FrozenDict, Changes | None]:
        """The state as it is stored, with the entries as they were there, and what changed in it."""
        whole = FrozenDict(data)
        whole.kind = data.kind
        whole._set_frozen(EXTRA, entries)  # noqa: SLF001 - as a merge does
        if changes is None:
            return whole, None
        had = changes.base.get(EXTRA)
        op = SET if had is None or not had else len(had)
        return whole, Changes(changes.base, {**changes.ops, EXTRA: op})

    def updates(self, data: FrozenDict) -> list[dict[str, Any]]:
        """What the parent merges, given the child's final state."""
        updates = [unpack(entry["update"]) for entry in self.entries]
        others = dict.fromkeys(key for entry in self.entries for key in entry["others"])
        final = {key: data.get(key, REMOVE) for key in others}
        return [update for update in (*updates, final) if update]


def strip_subgraph_updates(data: FrozenDict) -> FrozenDict:
    """A stored state without what is nobody's business."""
    if EXTRA not in data:
        return data
    return FrozenDict({key: value for key, value in data.items() if key != EXTRA})
