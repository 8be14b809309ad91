"""RunState: the state that a run, a branch or an update works on, and what changed in it.

A nested graph passes its updates to its outer graph, in order. The outer graph merges each of them,
so that a reducer counts each once. They must survive a crash inside the nested graph. Therefore they
are part of its stored state, under a key that is never shown: a list that only grows, so that a
store writes just the growth. An update is kept as it was only for keys that a channel of the outer
graph has to merge. For any other key the name is enough, because the final value is in the nested
graph's state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, final

from graphkit._engine.reporter import RunReporter
from graphkit._engine.requests import Position
from graphkit._plan.topology import Topology
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import START
from graphkit._saver.langgraph_writes import MADE_BY
from graphkit._saver.writes import Submission
from graphkit._values.channels import REMOVE, RESET, RemoveByHash, ReplaceAllWith
from graphkit._values.frozen import FrozenDict, FrozenList, extend_frozen, freeze
from graphkit._values.state import SET, AgentState, Changes
from graphkit._wording import describe_error, message_of, name_type
from graphkit.errors import GraphRunnerError, NodeExecutionError

EMPTY: Final = FrozenDict()
SUBGRAPH_UPDATES: Final = "graphkit:updates"
"""The key of the updates for the outer graph, in the stored state of a nested graph."""
SCHEMA_VERSION: Final = "schema_version"
"""In the metadata: how many migrations the state has been through; absent for none."""


@final
class RunState:
    """The state of a run, of a branch or of an update, as far as its nodes have come.

    Attributes:
        topology: the graph.
        reporter: reports for the run that the state belongs to.
        data: the state, without the transient keys.
        changes: what changed since the latest stored checkpoint; None if there is no checkpoint, or
            if the difference is not known.
        transient: the keys that are neither stored nor shown: those of the schema and of the outer
            graphs.
        private: the values of the transient keys.
        listeners: called with the node id and the packed update after each merge.
        subgraph_updates: of a nested graph: what it passes to the outer graph; else None.
    """

    def __init__(self, topology: Topology, reporter: RunReporter, *, outer: RunState | None = None) -> None:
        """Make an empty state.

        Args:
            topology: the graph.
            reporter: reports errors and events.
            outer: the state of the outer graph, if this is the state of a nested graph.
        """
        self.topology = topology
        self.schema = topology.schema
        self.reporter = reporter
        self.data = EMPTY
        self.changes: Changes | None = None
        self.transient: frozenset[str] = topology.schema.transient
        self.private: FrozenDict = EMPTY
        self.listeners: list[Callable[[str, FrozenDict], None]] = []
        self.subgraph_updates: SubgraphUpdates | None = None
        if outer is not None:
            self.transient |= outer.transient
            self.private = outer.private
            self.collect_subgraph_updates(outer.schema.channels)

    def copy_for_branch(self) -> RunState:
        """Return a state that begins like this one; a branch changes it without changing this one."""
        copy = RunState(self.topology, self.reporter)
        copy.data = self.data
        copy.transient = self.transient
        copy.private = self.private
        return copy

    def begin(self) -> None:
        """Begin with the defaults of the channels."""
        self.data = self.schema.initial_state()

    def adopt(self, outer_data: Mapping[str, Any]) -> None:
        """Begin with the state of the outer graph.

        Raises:
            GraphRunnerError: it does not fit the schema.
        """
        try:
            self.data = self.schema.adopt(outer_data)
        except Exception as error:
            reason = f"the state of the outer graph does not fit the schema: {message_of(error)}"
            raise self.make_error(GraphRunnerError, reason, START) from error

    def restore(self, position: Position) -> None:
        """Return to an earlier state, its changes, and the updates for the outer graph until then."""
        self.data = position.data
        self.changes = position.changes
        if self.subgraph_updates is not None and position.subgraph_entries is not None:
            self.subgraph_updates.entries = position.subgraph_entries

    def view(self) -> AgentState:
        """Return the state as nodes see it, with the transient keys."""
        data = self.data
        if self.private:
            data = FrozenDict({**data, **self.private})
        return self.schema.state_factory(data)

    def make_error(self, kind: type[GraphRunnerError], reason: str, node_id: str | None = None) -> GraphRunnerError:
        """Make an error that describes the run, with this state."""
        return self.reporter.make_error(kind, reason, node_id, self.data)

    # Merging

    def merge(self, node_id: str, update: Any, source: str = "") -> None:
        """Merge the update that a node or an edge returned.

        Args:
            node_id: the node.
            update: a mapping, an object of the schema or None.
            source: names what returned the update in an error; the node if empty.

        Raises:
            NodeExecutionError: the update is something else, or does not fit the schema. The state
                is unchanged, except for transient keys.
        """
        if update is None:
            return
        if update.__class__ is not dict:
            update = self._parse_update(node_id, update, source)
        try:
            if self.transient:
                update = self.absorb_private(update)
            data, ops = self.schema.merge(self.data, update)
            packed = pack(self.schema.normalize_update(update, data)) if self.listeners else None
        except Exception as error:
            raise self._make_merge_error(node_id, source, error) from error
        if self.reporter.post is not None:
            self.reporter.post_event("state.merge", node_id, {"keys": list(ops)})
        # All of an update or nothing: what can fail has been done above.
        self.data = data
        if self.changes is not None and ops:
            self.changes = self.changes.compose(ops)
        if packed is not None:
            for listener in self.listeners:
                listener(node_id, packed)

    def _parse_update(self, node_id: str, update: object, source: str) -> Mapping[str, Any]:
        try:
            values = self.schema.parse_update(update)
        except Exception as error:  # a field of an object that cannot be read
            raise self._make_merge_error(node_id, source, error) from error
        if values is None:
            returned = name_type(update)
            reason = f"{node_id!r} returned {returned}: return a mapping of updates, a graphkit.Command or None"
            raise self.make_error(NodeExecutionError, reason, node_id)
        return values

    def _make_merge_error(self, node_id: str, source: str, error: Exception) -> GraphRunnerError:
        reason = f"the update of {source or repr(node_id)} cannot be merged: {message_of(error)}"
        return self.make_error(NodeExecutionError, reason, node_id)

    def merge_input(self, run_input: Mapping[str, Any]) -> None:
        """Merge the input of a run; it is the update of no node, so no listener sees it.

        Raises:
            GraphRunnerError: it does not fit the schema.
        """
        try:
            data, ops = self.schema.merge_input(self.data, self.absorb_private(run_input))
        except Exception as error:
            reason = f"the input cannot be merged: {message_of(error)}"
            raise self.make_error(GraphRunnerError, reason, START) from error
        self.data = data
        if self.changes is not None and ops:
            self.changes = self.changes.compose(ops)

    def set_private_defaults(self) -> None:
        """Give the transient keys that have no value their defaults."""
        if self.transient:
            self.private = self.schema.merge_transient(self.private, EMPTY)

    def absorb_private(self, update: Mapping[str, Any]) -> Mapping[str, Any]:
        """Merge the transient keys of an update into `private`; return the update without them."""
        public, private = self.split_private(update)
        if private:
            self.private = self.schema.merge_transient(self.private, private)
        return public

    def set_private(self, values: Mapping[str, Any]) -> None:
        """Take over values of transient keys, from a branch or a nested graph, without merging them."""
        self.private = FrozenDict({**self.private, **values})

    def split_private(self, update: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return an update without its transient keys, and the part with these keys."""
        if not self.transient:
            return update, EMPTY
        private = {key: value for key, value in update.items() if key in self.transient}
        if not private:
            return update, EMPTY
        return {key: value for key, value in update.items() if key not in private}, private

    # The stored state

    def move_to(self, base: Checkpoint, migrations: Sequence[Callable[[dict[str, Any]], Mapping[str, Any]]]) -> None:
        """Take over the state of a stored checkpoint, migrated to this version of the graph.

        Raises:
            GraphRunnerError: another engine made the checkpoint, or newer code; or a migration
                failed.
        """
        other_engine = base.metadata.get(MADE_BY)
        if other_engine is not None:
            raise self.make_error(
                GraphRunnerError,
                f"thread {self.reporter.config.thread!r} belongs to {other_engine}: run it there, "
                f"or choose another thread_id here",
            )
        stored = strip_subgraph_updates(base.state)
        self.data = stored
        self.changes = Changes(base.state, {})
        submission = Submission.find(base.next_node_id, base.metadata)
        if submission is not None and submission.is_new:
            # No version of the graph has made this state: nothing in it needs a migration.
            self.data = FrozenDict({**self.schema.initial_state(), **stored})
            self.changes = None
            return
        version = base.metadata.get(SCHEMA_VERSION, 0)
        if version > len(migrations):
            raise self.make_error(
                GraphRunnerError,
                f"checkpoint {base.id!r} has schema version {version}, but this graph knows {len(migrations)}: "
                f"run the newer code, or pass all migrations to compile(migrations=...)",
            )
        for migrate in migrations[version:]:
            try:
                self.data = freeze(dict(migrate(dict(self.data))))
            except Exception as error:
                reason = f"the migration of checkpoint {base.id!r} failed: {describe_error(error)}"
                raise self.make_error(GraphRunnerError, reason) from error
            self.changes = None
        if self.subgraph_updates is not None:
            collected = self.subgraph_updates
            collected.entries = base.state.get(SUBGRAPH_UPDATES, collected.entries)
            if self.changes is None:
                collected.add_renamed_keys(stored, self.data)

    def note_stored(self, stored: FrozenDict, data: FrozenDict) -> Changes:
        """Count the changes from a checkpoint that was just stored.

        Args:
            stored: the state in the checkpoint.
            data: the same without the updates for an outer graph.

        Returns:
            No changes since this checkpoint.
        """
        unchanged = Changes(stored, {})
        if self.data is data:
            self.changes = unchanged
        elif self.changes is None or self.changes.base is not stored:
            self.changes = None  # the run is ahead of the checkpoint, by an unknown difference
        return unchanged

    def collect_subgraph_updates(self, outer_channels: Collection[str]) -> None:
        """Collect the updates that are passed to an outer graph with these channels."""
        self.subgraph_updates = SubgraphUpdates(outer_channels)
        self.listeners.append(self.subgraph_updates.add)


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
        self.entries.base = None  # it enters a state, see `extend_frozen`

    def for_outer_graph(self, data: FrozenDict) -> list[dict[str, Any]]:
        """Return what the outer graph merges, given the nested graph's final state."""
        updates = [unpack(entry["update"]) for entry in self.entries]
        others = dict.fromkeys(key for entry in self.entries for key in entry["others"])
        updates.append({key: data.get(key, REMOVE) for key in others})
        return [update for update in updates if update]


def include_subgraph_updates(
    data: FrozenDict, changes: Changes | None, entries: FrozenList
) -> tuple[FrozenDict, Changes | None]:
    """Return a state with the updates for the outer graph in it, as it is stored, and what changed."""
    stored = FrozenDict(data)
    stored.kind = data.kind
    stored._set_frozen(SUBGRAPH_UPDATES, entries)  # noqa: SLF001 - as a merge does
    if changes is None:
        return stored, None
    # The entries only grow: the operation names their length in the checkpoint before.
    stored_before = changes.base.get(SUBGRAPH_UPDATES)
    op = len(stored_before) if stored_before else SET
    return stored, Changes(changes.base, {**changes.ops, SUBGRAPH_UPDATES: op})


def strip_subgraph_updates(data: FrozenDict) -> FrozenDict:
    """Return a stored state without the updates for the outer graph."""
    if SUBGRAPH_UPDATES not in data:
        return data
    return FrozenDict({key: value for key, value in data.items() if key != SUBGRAPH_UPDATES})


# Updates as plain values, so that they can be recorded and merged later, in another process too
#
# The markers of an update (RESET, REMOVE, ReplaceAllWith, RemoveByHash) are objects that no store can
# encode; here they become lists. A RemoveIdentifier of the application stays as it is: it can be
# merged, and a store refuses it by name.

_PLAIN_VALUES: Final = "set"
_MARKERS: Final = "do"
_PACKED_UPDATE: Final = "graphkit:marked"
"""The only key of an update that was recorded with markers; older versions recorded none."""


def pack(update: Mapping[str, Any]) -> FrozenDict:
    """Return an update as a frozen mapping of plain values. Cost: the update.

    Raises:
        ValueError: a value contains itself.
    """
    plain: dict[str, Any] = {}
    markers: dict[str, Any] = {}
    for key, value in update.items():
        marker = _encode_marker(value)
        if marker is None:
            plain[key] = value
        else:
            markers[key] = marker
    parts = {_PLAIN_VALUES: plain}
    if markers:
        parts[_MARKERS] = markers
    packed: FrozenDict = freeze(parts)
    return packed


def unpack(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the update that `pack` was given."""
    update = dict(packed[_PLAIN_VALUES])
    for key, marker in packed.get(_MARKERS, {}).items():
        update[key] = _decode_marker(marker)
    return update


def pack_if_marked(update: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an update as it is recorded: packed if it has markers, else unchanged."""
    packed = pack(update)
    return {_PACKED_UPDATE: packed} if _MARKERS in packed else update


def unpack_if_marked(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the update that `pack_if_marked` was given."""
    if recorded.keys() == {_PACKED_UPDATE}:
        return unpack(recorded[_PACKED_UPDATE])
    return recorded


def keys_of(packed: Mapping[str, Any]) -> Collection[str]:
    """Return the keys of a packed update."""
    return [*packed[_PLAIN_VALUES], *packed.get(_MARKERS, {})]


def select_keys(packed: Mapping[str, Any], keys: Collection[str]) -> FrozenDict:
    """Return the part of a packed update that concerns some keys."""
    selected: dict[str, dict[str, Any]] = {}
    for part, values in packed.items():
        selected[part] = {key: value for key, value in values.items() if key in keys}
    frozen: FrozenDict = freeze(selected)
    return frozen


def _encode_marker(value: Any) -> list[Any] | None:
    """Encode a marker, or a list that contains markers; return None for a plain value."""
    if value is RESET:
        return ["reset"]
    if value is REMOVE:
        return ["remove"]
    if isinstance(value, ReplaceAllWith):
        return ["replace", value.values]
    if isinstance(value, RemoveByHash):
        return ["drop", value.value]
    if type(value) in (list, tuple) and any(isinstance(item, RemoveByHash) for item in value):
        return ["mixed", [_encode_marker(item) or ["new", item] for item in value]]
    return None


def _decode_marker(marker: list[Any]) -> Any:
    kind, *content = marker
    if kind == "reset":
        return RESET
    if kind == "remove":
        return REMOVE
    if kind == "replace":
        return ReplaceAllWith(content[0])
    if kind == "drop":
        return RemoveByHash(content[0])
    if kind == "mixed":
        return [_decode_marker(item) for item in content[0]]
    return content[0]
