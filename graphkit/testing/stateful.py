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
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.versions import HasVersions
from graphkit._values.channels import REMOVE
from graphkit.errors import CheckpointConflictError, CheckpointNotFoundError
from graphkit.testing._strategies import (
    NAMESPACES,
    TAGS,
    THREADS,
    items,
    keys,
    names,
    namespaces,
    positions,
    states,
    threads,
    values,
    writes,
)
from graphkit.testing._values import GROWING, assert_equal, assert_not_none, assert_same, derive, made


@dataclasses.dataclass
class Row:
    """A checkpoint in the model."""

    fields: dict[str, Any]
    writes: dict[str, Any] = dataclasses.field(default_factory=dict)
    tags: list[str] = dataclasses.field(default_factory=list)

    def is_interrupted(self) -> bool:
        """Return whether the interrupt is unanswered."""
        return self.stopped == "interrupted"

    @property
    def stopped(self) -> str:
        """What a listing says of the interrupt."""
        if "interrupt:i" not in self.writes:
            return ""
        return "answered" if "answer:i" in self.writes else "interrupted"


HistoryKey = tuple[str, str]
"""The thread and the namespace of a history."""


class SaverMachine(RuleBasedStateMachine):
    """Applies each rule to a saver and to a model, and compares them after each step."""

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
        self.savers = [saver, self.reopen(saver)]
        self.turn = 0
        self.rows: dict[HistoryKey, list[Row]] = {}
        self.versions: dict[str, list[dict[str, list[Row]]]] = {}
        self.objects: dict[tuple[HistoryKey, str], Checkpoint] = {}
        self.number = 0

    @property
    def saver(self) -> BaseCheckpointSaver:
        """The next saver; the two take turns."""
        self.turn += 1
        return self.savers[self.turn % len(self.savers)]

    def history(self, key: HistoryKey) -> list[Row]:
        """Return the rows of a history, oldest first."""
        return self.rows.get(key, [])

    def pick(self, key: HistoryKey, position: float) -> Row | None:
        """Return one row of a history; None if it is empty.

        The newest row is as likely as all others together.
        """
        history = self.history(key)
        if not history:
            return None
        if position >= 0.5:  # noqa: PLR2004
            return history[-1]
        return history[int(position * 2 * len(history))]

    def config(self, key: HistoryKey, row: Row | None = None) -> RunnableConfig:
        """Make the config of a history or of one of its checkpoints."""
        thread, namespace = key
        checkpoint_id = row.fields["id"] if row else None
        return RunnableConfig(thread, checkpoint_id, namespace)

    def next_fields(self) -> dict[str, Any]:
        """Make fields that differ from those of every other checkpoint."""
        self.number += 1
        sign = (-1) ** self.number  # the clock goes back and forth
        offset = timedelta(microseconds=sign * self.number)
        is_last = self.number % 5 == 0
        return {
            "id": f"id {self.number}",
            "node_id": f"node {self.number}",
            "created_at": datetime(2026, 1, 1, tzinfo=UTC) + offset,
            "next_node_id": None if is_last else "next",
            "metadata": {"n": (self.number,)},
        }

    def append(self, key: HistoryKey, checkpoint: Checkpoint, row: Row) -> None:
        """Put a checkpoint, and add it to the model."""
        stored = self.saver.put(self.config(key), checkpoint)
        assert_equal(stored, self.config(key, row))
        self.rows.setdefault(key, []).append(row)
        self.objects[key, row.fields["id"]] = checkpoint

    def put_state(self, key: HistoryKey, state: dict[str, Any]) -> None:
        """Put a checkpoint with this state."""
        fields = {**self.next_fields(), "parent_id": None, "state": copy.deepcopy(state)}
        self.append(key, made(**copy.deepcopy(fields)), Row(fields))

    def put_changed(self, key: HistoryKey, change: Callable[[dict[str, Any]], object]) -> None:
        """Put a checkpoint with the newest state after a change."""
        newest = self.pick(key, 0.9)
        state = copy.deepcopy(newest.fields["state"]) if newest else {}
        change(state)
        self.put_state(key, state)

    # Rules of putting

    @rule(thread=threads, namespace=namespaces, state=states)
    def put_any(self, thread: str, namespace: str, state: dict[str, Any]) -> None:
        """Put a state that is unrelated to the one before."""
        self.put_state((thread, namespace), state)

    @rule(thread=threads, namespace=namespaces, new=items)
    def put_grown(self, thread: str, namespace: str, new: list[Any]) -> None:
        """Put a state with a longer list."""
        self.put_changed((thread, namespace), lambda state: state.setdefault("list", []).extend(new))

    @rule(thread=threads, namespace=namespaces, name=names, value=values)
    def put_edited(self, thread: str, namespace: str, name: str, value: Any) -> None:
        """Put a state with another value for one key."""
        self.put_changed((thread, namespace), lambda state: state.update({name: value}))

    @rule(thread=threads, namespace=namespaces, name=names)
    def put_without(self, thread: str, namespace: str, name: str) -> None:
        """Put a state without a key."""
        self.put_changed((thread, namespace), lambda state: state.pop(name, None))

    @rule(thread=threads, namespace=namespaces, first=names)
    def put_reordered(self, thread: str, namespace: str, first: str) -> None:
        """Put a state with the same values and one key moved to the end."""

        def change(state: dict[str, Any]) -> None:
            if first in state:
                state[first] = state.pop(first)

        self.put_changed((thread, namespace), change)

    @rule(thread=threads, namespace=namespaces, path=st.lists(keys, min_size=1, max_size=3), value=values)
    def put_deep(self, thread: str, namespace: str, path: list[Any], value: Any) -> None:
        """Put a state with a change deep inside a dict."""

        def change(state: dict[Any, Any]) -> None:
            inner = state
            for key in ("deep", *path[:-1]):
                if not isinstance(inner.get(key), dict):
                    inner[key] = {}
                inner = inner[key]
            inner[path[-1]] = value

        self.put_changed((thread, namespace), change)

    @rule(
        thread=threads,
        namespace=namespaces,
        position=positions,
        update=st.dictionaries(names, values | st.just(REMOVE), max_size=3),
        new=st.none() | items,
        is_read=st.booleans(),
    )
    def put_derived(
        self, thread: str, namespace: str, position: float, update: dict[str, Any], new: list[Any] | None, is_read: bool
    ) -> None:
        """Put a checkpoint as the engine makes it from a parent, which was either put or read."""
        key = (thread, namespace)
        parent = self.pick(key, position)
        if parent is None:
            return
        state = copy.deepcopy(parent.fields["state"])
        for name, value in update.items():
            if value is REMOVE:
                state.pop(name, None)
            else:
                state[name] = copy.deepcopy(value)
        if new is not None:
            state["list"] = [*state.get("list", []), *copy.deepcopy(new)]
            update = {**update, "list": new}
        origin = self.objects[key, parent.fields["id"]]
        if is_read:
            origin = self.saver.get(self.config(key, parent)) or origin
        fields = self.next_fields()
        checkpoint = derive(origin, update, GROWING, **copy.deepcopy(fields))
        self.append(key, checkpoint, Row({**fields, "parent_id": parent.fields["id"], "state": state}))

    # Rules of replacing

    @rule(thread=threads, namespace=namespaces, position=positions, state=states, is_new=st.booleans())
    def replace(self, thread: str, namespace: str, position: float, state: dict[str, Any], is_new: bool) -> None:
        """Replace a checkpoint that has no writes and no tags; other tests cover those."""
        key = (thread, namespace)
        row = self.pick(key, position)
        if row is None or row.writes or row.tags:
            return
        config = self.config(key, row)
        fields = {**self.next_fields(), "parent_id": "p", "state": copy.deepcopy(state)}
        if not is_new:
            fields["id"] = row.fields["id"]
        checkpoint = made(**copy.deepcopy(fields))
        assert_equal(self.saver.put(config, checkpoint), config)
        row.fields = fields
        self.objects[key, fields["id"]] = checkpoint

    @rule(thread=threads, namespace=namespaces, state=states)
    def replace_unknown(self, thread: str, namespace: str, state: dict[str, Any]) -> None:
        """Try to replace a checkpoint that does not exist."""
        try:
            self.saver.put(RunnableConfig(thread, "unknown", namespace), made(state))
        except CheckpointNotFoundError:
            return
        raise AssertionError("a checkpoint that does not exist was replaced")

    # Rules of pending writes and tags

    @rule(thread=threads, namespace=namespaces, position=positions, new=writes, is_named=st.booleans())
    def put_writes(self, thread: str, namespace: str, position: float, new: dict[str, Any], is_named: bool) -> None:
        """Record pending writes with a checkpoint."""
        key = (thread, namespace)
        row = self.pick(key, position if is_named else 0.9)
        if row is not None:
            self.saver.put_writes(self.config(key, row if is_named else None), copy.deepcopy(new))
            row.writes.update(copy.deepcopy(new))

    @rule(thread=threads, namespace=namespaces, position=positions, tag=st.sampled_from(TAGS), is_added=st.booleans())
    def change_tags(self, thread: str, namespace: str, position: float, tag: str, is_added: bool) -> None:
        """Add a tag to a checkpoint, or remove it."""
        key = (thread, namespace)
        row = self.pick(key, position)
        if row is None:
            return
        if is_added:
            self.saver.add_tags(self.config(key, row), tag)
            if tag not in row.tags:
                row.tags.append(tag)
        else:
            self.saver.remove_tags(self.config(key, row), tag)
            row.tags = [other for other in row.tags if other != tag]

    # Rules of threads

    @rule(thread=threads, namespace=namespaces)
    def release(self, thread: str, namespace: str) -> None:
        """Release a thread."""
        released = {name: self.rows.pop((thread, name), []) for name in NAMESPACES}
        tag = self.saver.release(RunnableConfig(thread, checkpoint_ns=namespace))
        compare(tag.checkpoints, released[""])
        if isinstance(self.savers[0], HasVersions) and any(released.values()):
            self.versions.setdefault(thread, []).append(released)
            assert_equal(tag.version, len(self.versions[thread]))
        else:
            assert_same(tag.version, None)

    @rule(thread=threads)
    def delete(self, thread: str) -> None:
        """Remove a thread."""
        removed = [self.rows.pop((thread, name), []) for name in NAMESPACES]
        versions = self.versions.pop(thread, [])
        existed = any(removed) or bool(versions)
        assert_same(self.saver.delete(thread), existed)

    @rule(source=threads, destination=threads)
    def copy(self, source: str, destination: str) -> None:
        """Copy a thread."""
        origin = {name: self.history((source, name)) for name in NAMESPACES}
        error: type[Exception] | None = None
        if not any(origin.values()):
            error = CheckpointNotFoundError
        elif any(self.history((destination, name)) for name in NAMESPACES):
            error = CheckpointConflictError
        try:
            self.saver.copy(source, destination)
        except (CheckpointNotFoundError, CheckpointConflictError) as caught:
            assert_equal(type(caught), error)
            return
        assert_equal(None, error)
        for name, rows in origin.items():
            if rows:
                self.rows[destination, name] = copy.deepcopy(rows)
            for row in rows:
                self.objects[(destination, name), row.fields["id"]] = self.objects[(source, name), row.fields["id"]]

    @rule(
        thread=st.none() | threads, last=st.integers(1, 3), is_tag_kept=st.booleans(), is_interrupt_kept=st.booleans()
    )
    def prune(self, thread: str | None, last: int, is_tag_kept: bool, is_interrupt_kept: bool) -> None:
        """Remove old checkpoints."""
        expected = 0
        for key, rows in self.rows.items():
            if thread not in {None, key[0]}:
                continue
            kept = []
            for row in rows[:-last]:
                is_tagged = is_tag_kept and "keep" in row.tags
                is_stopped = is_interrupt_kept and row.is_interrupted()
                if is_tagged or is_stopped:
                    kept.append(row)
            kept += rows[-last:]
            expected += len(rows) - len(kept)
            self.rows[key] = kept
        keep_tags = ["keep"] if is_tag_kept else []
        count = self.saver.prune(thread, keep_last=last, keep_tags=keep_tags, keep_interrupted=is_interrupt_kept)
        assert_equal(count, expected)

    @rule(index=st.integers(0, 1))
    def open_again(self, index: int) -> None:
        """Replace one saver by a new one on the same store."""
        self.savers[index] = self.reopen(self.savers[1 - index])

    # Comparing

    @invariant()
    def every_history_is_as_the_model_has_it(self) -> None:
        """Compare every history with the model."""
        for thread in THREADS:
            for name in NAMESPACES:
                self.compare_history((thread, name))

    def compare_history(self, key: HistoryKey) -> None:
        """Read one history in every way, and compare it with the model."""
        saver = self.saver
        config = self.config(key)
        rows = self.history(key)
        compare(saver.list(config), rows)
        infos = saver.history(config)
        assert_equal([info.id for info in infos], [row.fields["id"] for row in reversed(rows)])
        for info, row in zip(infos, reversed(rows), strict=True):
            assert_equal(info.tags, tuple(row.tags))
            assert_equal(info.stopped, row.stopped)
            assert_equal(info.status, "" if info is not infos[0] else info.stopped or "stalled")
            assert_same(saver.get_writes(self.config(key, row)), row.writes)
        newest = saver.get(config)
        compare([newest] if newest else [], rows[-1:])
        summary = saver.summary(config)
        if infos:
            summary = assert_not_none(summary)
            assert_equal(summary.latest, infos[0])
            assert_equal(summary.checkpoints, len(infos))
        else:
            assert_same(summary, None)

    @precondition(lambda self: self.rows)
    @rule(thread=threads, namespace=namespaces, position=positions)
    def get_one(self, thread: str, namespace: str, position: float) -> None:
        """Read one checkpoint by its id; an empty history must not have the id of another."""
        row = self.pick((thread, namespace), position)
        if row is None:
            assert_same(self.saver.get(RunnableConfig(thread, "id 1", namespace)), None)
            return
        checkpoint = self.saver.get(self.config((thread, namespace), row))
        compare([checkpoint] if checkpoint else [], [row])

    @invariant()
    def threads_and_versions_are_as_the_model_has_them(self) -> None:
        """Compare the lists of threads, namespaces and interrupts with the model."""
        saver = self.saver
        histories = {key: rows for key, rows in self.rows.items() if rows}
        live = {thread for thread, _ in histories}
        assert_equal(sorted(saver.threads()), sorted(live))
        assert_equal(sorted(saver.threads(released=True)), sorted({*live, *self.versions}))
        for thread in live:
            expected = [name for name in NAMESPACES if self.history((thread, name))]
            assert_equal(sorted(saver.namespaces(thread)), expected)
        interrupted = {key for key, rows in histories.items() if rows[-1].is_interrupted()}
        reported = {(interrupt.thread_id, interrupt.checkpoint_ns) for interrupt in saver.interrupts()}
        assert_equal(reported, interrupted)

    @rule(thread=threads, namespace=namespaces)
    def read_versions(self, thread: str, namespace: str) -> None:
        """Compare the released versions with the model."""
        saver = self.saver
        versions = self.versions.get(thread, [])
        if not isinstance(saver, HasVersions):
            return
        assert_equal([*saver.versions_by_thread_id(thread)], [*range(1, len(versions) + 1)])
        for number, version in enumerate(versions, 1):
            tag = saver.tag(RunnableConfig(thread, checkpoint_ns=namespace), number)
            compare(tag.checkpoints, version[namespace])


def compare(checkpoints: Sequence[Checkpoint], rows: Sequence[Row]) -> None:
    """Assert that checkpoints, newest first, strictly equal rows of the model, oldest first."""
    assert_equal([checkpoint.id for checkpoint in checkpoints], [row.fields["id"] for row in reversed(rows)])
    for checkpoint, row in zip(checkpoints, reversed(rows), strict=True):
        # Without what the default methods keep in the metadata.
        found = checkpoint.with_metadata(public_metadata(checkpoint.metadata))
        assert_same({name: getattr(found, name) for name in row.fields}, row.fields)


__all__: Sequence[str] = ["SaverMachine"]
