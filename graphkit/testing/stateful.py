"""SaverMachine: Hypothesis compares any saver with a model, a dict of lists.

The model shares no code with the savers that it tests.

    class MyMachine(SaverMachine):
        def make_saver(self):
            return MySaver()

    TestMyMachine = MyMachine.TestCase
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions, SupportsRemove
from graphkit._saver.status import public_metadata
from graphkit._values.channels import REMOVE
from graphkit.testing import _check as check
from graphkit.testing._values import GROWING, derive, made, make_interrupt

THREADS: Final = ("t", "T", "../t")
NAMESPACES: Final = ("", "n")
TAGS: Final = ("keep", "other")
INTERRUPT: Final = make_interrupt(payload=(1,))


class HistoryKey(NamedTuple):
    """The thread and the namespace of a history."""

    thread: str
    namespace: str


# --- histories --------------------------------------------------------------------------------------------------------

threads = st.sampled_from(THREADS)
anywhere = st.builds(HistoryKey, threads, st.sampled_from(NAMESPACES))
# One history more often than all others together, so that it grows. Rules that remove take `anywhere`.
histories = st.just(HistoryKey("t", "")) | anywhere
positions = st.floats(0, 1, exclude_max=True)
"""Where in a history a rule picks a checkpoint; see `SaverMachine.pick`."""

# --- values -----------------------------------------------------------------------------------------------------------

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
)
# Few keys, so that two states often have one in common.
keys = st.text("abc", min_size=1, max_size=2) | st.integers(0, 3)


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make compound values of a strategy for their parts."""
    hashable = st.integers(0, 9) | st.text("ab", max_size=1)
    return (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.tuples(inner)
        | st.frozensets(hashable, max_size=3)
        | st.sets(st.integers(0, 9), max_size=3)
    )


values = st.recursive(_scalars, _nest, max_leaves=6)
items = st.lists(values, max_size=3)

# --- states -----------------------------------------------------------------------------------------------------------

names = st.sampled_from(("a", "b", "c", "deep"))


def _add_list(parts: dict[str, Any], growing: list[Any] | None) -> dict[str, Any]:
    return parts if growing is None else {**parts, "list": growing}


states = st.builds(_add_list, st.dictionaries(names, values, max_size=4), st.none() | items)
updates = st.builds(_add_list, st.dictionaries(names, values | st.just(REMOVE), max_size=3), st.none() | items)
"""What a node returns: `merge_in_model` applies it to a state."""
some_updates = st.lists(updates, min_size=1, max_size=3)

# --- pending writes ---------------------------------------------------------------------------------------------------

_plain_writes = st.dictionaries(st.sampled_from(("w", "x")), values, max_size=2)
_interrupt_writes = st.sampled_from(
    ({"interrupt:i": INTERRUPT}, {"answer:i": None}, {"interrupt:i": INTERRUPT, "answer:i": 1})
)
writes = _plain_writes | _interrupt_writes

# --- the machine ------------------------------------------------------------------------------------------------------

State = dict[str, Any]

_NEWEST = 0.9
"""A position for `SaverMachine.pick` that picks the newest row."""


@dataclasses.dataclass
class Row:
    """A checkpoint in the model."""

    checkpoint: Checkpoint
    """What was put; a derived checkpoint has it as its parent, as in the engine."""
    fields: dict[str, Any]
    """The values that the checkpoint must have, by the names of its attributes."""
    writes: dict[str, Any] = dataclasses.field(default_factory=dict)
    tags: list[str] = dataclasses.field(default_factory=list)

    @property
    def id(self) -> str:
        """The id of the checkpoint."""
        return str(self.fields["id"])

    def copy(self) -> Row:
        """Return the row of a copy of the checkpoint, which gets writes and tags of its own."""
        return Row(self.checkpoint, self.fields, dict(self.writes), [*self.tags])

    @property
    def stopped(self) -> str:
        """The expected `stopped` of the checkpoint in the history; the machine uses one interrupt."""
        if "interrupt:i" not in self.writes:
            return ""

        if "answer:i" in self.writes:
            return "answered"

        return "interrupted"

    def is_interrupted(self) -> bool:
        """Return whether the interrupt has no answer yet."""
        return self.stopped == "interrupted"


class SaverMachine(RuleBasedStateMachine):
    """Applies each rule to a saver and to a model, and compares them after each step.

    Every value is copied before it enters the model or the saver, so that neither can change what
    the other one stores.
    """

    # Hooks

    def make_saver(self) -> BaseCheckpointSaver:
        """Return a saver on a new, empty store."""
        raise NotImplementedError

    def reopen(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Return another saver on the same store, or `saver` if the store is the object itself."""
        return saver

    # The state

    @initialize()
    def start(self) -> None:
        """Open two savers on one empty store."""
        saver = self.make_saver()
        other = self.reopen(saver)
        self.savers = [saver, other]
        self.turn = 0

        # The model: the live histories, oldest row first, and the released ones of each thread.
        self.rows: dict[HistoryKey, list[Row]] = {}
        self.versions: dict[str, list[dict[str, list[Row]]]] = {}
        self.number = 0

    @property
    def saver(self) -> BaseCheckpointSaver:
        """The next saver; the two take turns, so that each reads what the other wrote."""
        self.turn += 1
        return self.savers[self.turn % len(self.savers)]

    def history(self, key: HistoryKey) -> list[Row]:
        """Return the rows of a history, oldest first."""
        return self.rows.get(key, [])

    def pick(self, key: HistoryKey, position: float) -> Row | None:
        """Return one row of a history; None if it is empty.

        A position from 0.5 on picks the newest row, which is thus as likely as all rows together.
        """
        history = self.history(key)
        if not history:
            return None

        if position >= 0.5:  # noqa: PLR2004
            return history[-1]

        index = int(position * 2 * len(history))
        return history[index]

    def config(self, key: HistoryKey, row: Row | None = None) -> RunnableConfig:
        """Make the config of a history or of one of its checkpoints."""
        checkpoint_id = row.id if row else None
        return RunnableConfig(key.thread, checkpoint_id, key.namespace)

    def next_fields(self) -> dict[str, Any]:
        """Make fields that differ from those of every other checkpoint."""
        self.number += 1
        number = self.number

        # The clock goes back and forth: a saver must not sort by it.
        offset = timedelta(microseconds=number if number % 2 == 0 else -number)
        is_last = number % 5 == 0
        return {
            "id": f"id {number}",
            "node_id": f"node {number}",
            "created_at": datetime(2026, 1, 1, tzinfo=UTC) + offset,
            "next_node_id": None if is_last else "next",
            "metadata": {"n": (number,)},
        }

    def append(self, key: HistoryKey, row: Row) -> None:
        """Put a checkpoint, and add it to the model."""
        stored = self.saver.put(self.config(key), row.checkpoint)
        check.assert_equal(stored, self.config(key, row))
        self.rows.setdefault(key, []).append(row)

    def put_state(self, key: HistoryKey, state: State) -> None:
        """Put a checkpoint with this state."""
        fields = {**self.next_fields(), "parent_id": None, "state": copy.deepcopy(state)}
        checkpoint = made(**copy.deepcopy(fields))
        self.append(key, Row(checkpoint, fields))

    def newest_state(self, key: HistoryKey) -> State:
        """Return a copy of the newest state of a history; an empty one if there is none."""
        newest = self.pick(key, _NEWEST)
        if newest is None:
            return {}
        return copy.deepcopy(newest.fields["state"])

    # Rules of putting

    @rule(key=histories, state=states)
    def put_any(self, key: HistoryKey, state: State) -> None:
        """Put a state that is unrelated to the one before."""
        self.put_state(key, state)

    @rule(key=histories, new_updates=some_updates)
    def put_updated(self, key: HistoryKey, new_updates: list[dict[str, Any]]) -> None:
        """Put states with other values, without keys or with a longer list; nothing says what changed."""
        for update in new_updates:
            self.put_state(key, merge_in_model(self.newest_state(key), update))

    @rule(key=histories, name=names)
    def put_reordered(self, key: HistoryKey, name: str) -> None:
        """Put a state with the same values and one key moved to the end."""
        state = self.newest_state(key)
        if name in state:
            state[name] = state.pop(name)
        self.put_state(key, state)

    @rule(key=histories, path=st.lists(keys, min_size=1, max_size=3), value=values)
    def put_deep(self, key: HistoryKey, path: list[Any], value: Any) -> None:
        """Put a state with a change deep inside a dict."""
        state = self.newest_state(key)
        *outer, last = "deep", *path
        inner: dict[Any, Any] = state

        for name in outer:
            child = inner.get(name)
            if not isinstance(child, dict):
                child = inner[name] = {}
            inner = child

        inner[last] = value
        self.put_state(key, state)

    @rule(key=histories, position=positions, new_updates=some_updates, is_loaded=st.booleans())
    def put_derived(self, key: HistoryKey, position: float, new_updates: list[dict[str, Any]], is_loaded: bool) -> None:
        """Put checkpoints as the engine makes them from a parent, which was either put or loaded."""
        row = self.pick(key, position)
        if row is None:
            return

        for update in new_updates:
            parent = row.checkpoint
            # What the saver returns may hold less than what was put.
            if is_loaded:
                parent = check.get_checkpoint(self.saver, self.config(key, row))

            fields = self.next_fields()
            checkpoint = derive(parent, update, GROWING, **copy.deepcopy(fields))

            fields["parent_id"] = row.id
            fields["state"] = merge_in_model(row.fields["state"], update)
            row = Row(checkpoint, fields)
            self.append(key, row)

    # Replacing

    @rule(key=histories, position=positions, state=states, is_new_id=st.booleans())
    def replace(self, key: HistoryKey, position: float, state: State, is_new_id: bool) -> None:
        """Replace a checkpoint that has no writes and no tags; other tests cover those."""
        row = self.pick(key, position)
        if row is None or row.writes or row.tags:
            return

        config = self.config(key, row)

        fields = {**self.next_fields(), "parent_id": "p", "state": copy.deepcopy(state)}
        if not is_new_id:
            fields["id"] = row.id

        checkpoint = made(**copy.deepcopy(fields))
        stored = self.saver.put(config, checkpoint)
        # put returns the config that it was given, also if the id has changed.
        check.assert_equal(stored, config)

        row.fields = fields
        row.checkpoint = checkpoint

    # Rules of pending writes and tags

    @rule(key=histories, position=positions, new=writes, is_latest=st.booleans())
    def put_writes(self, key: HistoryKey, position: float, new: dict[str, Any], is_latest: bool) -> None:
        """Record pending writes with the latest checkpoint, or with one that is named by its id."""
        row = self.pick(key, _NEWEST if is_latest else position)
        if row is None:
            return

        config = self.config(key, None if is_latest else row)
        self.saver.put_writes(config, copy.deepcopy(new))
        row.writes.update(copy.deepcopy(new))

    @rule(key=histories, position=positions, tag=st.sampled_from(TAGS))
    def add_tag(self, key: HistoryKey, position: float, tag: str) -> None:
        """Add a tag to a checkpoint, which may have it already."""
        row = self.pick(key, position)
        if row is None:
            return

        self.saver.add_tags(self.config(key, row), tag)
        if tag not in row.tags:
            row.tags.append(tag)

    @rule(key=histories, position=positions, tag=st.sampled_from(TAGS))
    def remove_tag(self, key: HistoryKey, position: float, tag: str) -> None:
        """Remove a tag from a checkpoint, which may not have it."""
        row = self.pick(key, position)
        if row is None:
            return

        self.saver.remove_tags(self.config(key, row), tag)
        if tag in row.tags:
            row.tags.remove(tag)

    # Rules of threads

    @rule(key=anywhere)
    def release(self, key: HistoryKey) -> None:
        """Release a thread; the namespace of the config does not matter."""
        released = self.remove_rows(key.thread)
        tag = self.saver.release(self.config(key))
        assert_rows(tag.checkpoints, released[""])

        # A version is made for the whole thread, unless it was empty.
        is_empty = not any(released.values())
        if is_empty or not isinstance(self.savers[0], HasVersions):
            check.same(tag.version, None)
            return

        versions = self.versions.setdefault(key.thread, [])
        versions.append(released)
        check.assert_equal(tag.version, len(versions))

    @rule(thread=threads)
    def delete(self, thread: str) -> None:
        """Remove a thread."""
        removed = self.remove_rows(thread)
        versions = self.versions.pop(thread, [])
        existed = any(removed.values()) or bool(versions)
        check.same(self.saver.delete(thread), existed)

    def remove_rows(self, thread: str) -> dict[str, list[Row]]:
        """Remove the histories of a thread from the model, and return them by namespace."""
        return {namespace: self.rows.pop(HistoryKey(thread, namespace), []) for namespace in NAMESPACES}

    @rule(source=threads, destination=threads)
    def copy(self, source: str, destination: str) -> None:
        """Copy a thread to one without checkpoints."""
        if not self.has_rows(source) or self.has_rows(destination):
            return

        self.saver.copy(source, destination)
        for namespace in NAMESPACES:
            rows = self.history(HistoryKey(source, namespace))
            self.rows[HistoryKey(destination, namespace)] = [row.copy() for row in rows]

    def has_rows(self, thread: str) -> bool:
        """Return whether a thread has checkpoints in the model."""
        return any(rows for key, rows in self.rows.items() if key.thread == thread)

    @rule(
        thread=st.none() | threads,
        keep_last=st.integers(1, 3),
        keep_tags=st.sampled_from([(), ("keep",)]),
        keep_interrupted=st.booleans(),
    )
    def prune(self, thread: str | None, keep_last: int, keep_tags: tuple[str, ...], keep_interrupted: bool) -> None:
        """Remove old checkpoints of one thread or of all."""
        expected = 0

        for key, rows in self.rows.items():
            if thread is not None and key.thread != thread:
                continue

            kept = []

            for row in rows[:-keep_last]:
                is_tagged = any(tag in row.tags for tag in keep_tags)
                is_waiting = keep_interrupted and row.is_interrupted()
                if is_tagged or is_waiting:
                    kept.append(row)

            kept += rows[-keep_last:]
            expected += len(rows) - len(kept)
            self.rows[key] = kept

        count = self.saver.prune(thread, keep_last=keep_last, keep_tags=keep_tags, keep_interrupted=keep_interrupted)
        check.assert_equal(count, expected, "the count of prune")

    @rule(key=anywhere, positions=st.lists(positions, max_size=3), is_all=st.booleans())
    def remove(self, key: HistoryKey, positions: list[float], is_all: bool) -> None:
        """Remove some checkpoints of a history, or all."""
        saver = self.saver
        if not isinstance(saver, SupportsRemove):
            return

        rows = self.history(key)
        ids = {row.id for row in rows}
        if not is_all:
            picked = [self.pick(key, position) for position in positions]
            ids.intersection_update(row.id for row in picked if row)
        kept = [row for row in rows if row.id not in ids]

        count = saver.remove(self.config(key), ids)
        check.assert_equal(count, len(rows) - len(kept), "the count of remove")
        self.rows[key] = kept

    @rule(index=st.integers(0, 1))
    def open_again(self, index: int) -> None:
        """Replace one saver by a new one on the same store."""
        self.savers[index] = self.reopen(self.savers[1 - index])

    # Comparing

    @invariant()
    def check_histories(self) -> None:
        """Compare every history with the model."""
        for thread, namespace in product(THREADS, NAMESPACES):
            self.compare_history(HistoryKey(thread, namespace))

    def compare_history(self, key: HistoryKey) -> None:
        """Read one history in every way, and compare it with the model."""
        # All reads of a history go through one saver.
        saver = self.saver
        config = self.config(key)
        rows = self.history(key)
        assert_rows(saver.list(config), rows)

        infos = saver.history(config)
        assert_infos(infos, rows)

        for row in rows:
            check.assert_writes(saver, row.writes, self.config(key, row))

        if not rows:
            check.assert_missing(saver, config)
            check.same(saver.summary(config), None, "summary")
            return

        newest = check.get_checkpoint(saver, config)
        assert_rows([newest], rows[-1:])

        summary = check.get_summary(saver, config)
        check.assert_equal(summary.latest, infos[0])
        check.assert_equal(summary.checkpoints, len(infos))

    @precondition(lambda self: self.rows)
    @rule(key=histories, position=positions)
    def get_one(self, key: HistoryKey, position: float) -> None:
        """Read one checkpoint by its id."""
        row = self.pick(key, position)
        if row is not None:
            checkpoint = check.get_checkpoint(self.saver, self.config(key, row))
            assert_rows([checkpoint], [row])

    @invariant()
    def check_threads(self) -> None:
        """Compare the lists of threads, namespaces and interrupts with the model."""
        saver = self.saver
        namespaces: dict[str, list[str]] = {}
        interrupted = []

        for key, rows in self.rows.items():
            if not rows:
                continue

            namespaces.setdefault(key.thread, []).append(key.namespace)
            # Only the latest checkpoint of a history can be interrupted.
            if rows[-1].is_interrupted():
                interrupted.append(key)

        check.assert_threads(saver, *namespaces)

        known = {*namespaces, *self.versions}
        check.assert_threads(saver, *known, released=True)

        for thread, expected in namespaces.items():
            check.assert_namespaces(saver, *expected, thread=thread)

        waiting = saver.interrupts()
        reported = [(interrupt.thread_id, interrupt.checkpoint_ns) for interrupt in waiting]
        check.assert_any_order(reported, interrupted, "interrupts")

    @rule(key=histories)
    def read_versions(self, key: HistoryKey) -> None:
        """Compare the released versions with the model."""
        saver = self.saver
        if not isinstance(saver, HasVersions):
            return

        config = self.config(key)
        versions = self.versions.get(key.thread, [])
        listed = saver.versions_by_thread_id(key.thread)
        expected = range(1, len(versions) + 1)
        check.assert_sequence_equal(listed, expected, "versions")

        for number, version in enumerate(versions, 1):
            rows = version[key.namespace]
            tag = saver.tag(config, number)
            assert_rows(tag.checkpoints, rows)


def merge_in_model(state: State, update: dict[str, Any]) -> State:
    """Return a state after an update, by the rules of the channels that the machine uses."""
    merged = copy.deepcopy(state)

    for name, value in update.items():
        if value is REMOVE:
            merged.pop(name, None)
        elif name == "list":
            merged[name] = merged.get(name, []) + copy.deepcopy(value)
        else:
            merged[name] = copy.deepcopy(value)

    return merged


def assert_rows(checkpoints: Sequence[Checkpoint], rows: Sequence[Row]) -> None:
    """Assert that checkpoints, newest first, strictly equal rows of the model, oldest first."""
    newest_first = rows[::-1]
    expected_ids = [row.id for row in newest_first]
    check.assert_equal(check.get_ids(checkpoints), expected_ids, "ids")

    for checkpoint, row in zip(checkpoints, newest_first, strict=True):
        # The default methods keep pending writes and tags in the metadata.
        metadata = public_metadata(checkpoint.metadata)
        found = checkpoint.with_metadata(metadata)

        fields = {name: getattr(found, name) for name in row.fields}
        check.same(fields, row.fields, "fields")


def assert_infos(infos: Sequence[CheckpointInfo], rows: Sequence[Row]) -> None:
    """Assert that infos, newest first, agree with rows of the model, oldest first."""
    newest_first = rows[::-1]
    expected_ids = [row.id for row in newest_first]
    check.assert_equal(check.get_ids(infos), expected_ids, "the ids of history")

    for info, row in zip(infos, newest_first, strict=True):
        check.assert_equal(info.tags, tuple(row.tags), "tags")
        check.assert_equal(info.stopped, row.stopped, "stopped")

    # Only the latest checkpoint has a status; the machine has neither active nor failed runs.
    expected_statuses = [""] * len(rows)
    if rows:
        expected_statuses[0] = rows[-1].stopped or "stalled"

    statuses = [info.status for info in infos]
    check.assert_equal(statuses, expected_statuses, "statuses")


__all__: Sequence[str] = ["SaverMachine"]
