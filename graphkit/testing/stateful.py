"""SaverMachine: any saver against a dict of lists, by Hypothesis. The model shares no helper with what it tests.

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
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit._values.channels import REMOVE
from graphkit.errors import CheckpointConflictError, CheckpointNotFoundError
from graphkit.testing._values import GROWING, derived, made, same

THREADS: Final = ("t", "T", "../t")
NAMESPACES: Final = ("", "n")
TAGS: Final = ("keep", "other")
STOP: Final = {
    "node_id": "a",
    "when": "inside",
    "payload": (1,),
    "metadata": {},
    "created_at": datetime(2026, 1, 2, tzinfo=UTC),
}

leaves = (
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
keys = st.text("abc", min_size=1, max_size=2) | st.integers(0, 3)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.tuples(inner)
        | st.frozensets(st.integers(0, 9) | st.text("ab", max_size=1), max_size=3)
        | st.sets(st.integers(0, 9), max_size=3)
    ),
    max_leaves=6,
)
names = st.sampled_from(("a", "b", "c", "deep"))
items = st.lists(values, max_size=3)
states = st.builds(
    lambda rest, growing: rest if growing is None else {**rest, "list": growing},
    st.dictionaries(names, values, max_size=4),
    st.none() | items,
)
positions = st.floats(0, 1, exclude_max=True)
threads, namespaces = st.sampled_from(THREADS), st.sampled_from(NAMESPACES)
writes = st.dictionaries(st.sampled_from(("w", "x")), values, max_size=2) | st.sampled_from(
    ({"interrupt:i": STOP}, {"answer:i": None}, {"interrupt:i": STOP, "answer:i": 1})
)


@dataclasses.dataclass
class Row:
    """A checkpoint, as the model keeps it."""

    fields: dict[str, Any]
    writes: dict[str, Any] = dataclasses.field(default_factory=dict)
    tags: list[str] = dataclasses.field(default_factory=list)

    def waits(self) -> bool:
        """Whether a human has not answered yet."""
        return "interrupt:i" in self.writes and "answer:i" not in self.writes


Place = tuple[str, str]


class SaverMachine(RuleBasedStateMachine):
    """Does to a saver and to a model what a rule says, and compares all that can be read after each step."""

    # Hooks

    def make_saver(self) -> BaseCheckpointSaver:
        """A saver on a new, empty store."""
        raise NotImplementedError

    def reopen(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Another saver object on the same store; one whose store is the object itself returns it."""
        return saver

    # What there is

    @initialize()
    def start(self) -> None:
        """Begin with two objects on one empty store."""
        saver = self.make_saver()
        self.savers = [saver, self.reopen(saver)]
        self.turn = 0
        self.rows: dict[Place, list[Row]] = {}
        self.versions: dict[str, list[dict[str, list[Row]]]] = {}
        self.objects: dict[tuple[Place, str], Checkpoint] = {}
        self.number = 0

    @property
    def saver(self) -> BaseCheckpointSaver:
        """The objects take turns."""
        self.turn += 1
        return self.savers[self.turn % len(self.savers)]

    def history(self, place: Place) -> list[Row]:
        """The model's history, oldest first."""
        return self.rows.get(place, [])

    def pick(self, place: Place, position: float) -> Row | None:
        """One of a history's checkpoints, the newest as likely as all others together."""
        history = self.history(place)
        if not history:
            return None
        return history[-1] if position >= 0.5 else history[int(position * 2 * len(history))]  # noqa: PLR2004

    def config(self, place: Place, row: Row | None = None) -> RunnableConfig:
        """The address of a history or of one of its checkpoints."""
        return RunnableConfig(place[0], row.fields["id"] if row else None, place[1])

    def next_fields(self) -> dict[str, Any]:
        """Fields that differ from those of every other checkpoint."""
        self.number += 1
        when = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.number * (-1) ** self.number)
        fields = {"id": f"id {self.number}", "node_id": f"node {self.number}", "created_at": when}
        return {**fields, "next_node_id": None if self.number % 5 == 0 else "next", "metadata": {"n": (self.number,)}}

    def append(self, place: Place, checkpoint: Checkpoint, row: Row) -> None:
        """Put a checkpoint, and put it into the model."""
        stored = self.saver.put(self.config(place), checkpoint)
        assert stored == self.config(place, row)
        self.rows.setdefault(place, []).append(row)
        self.objects[place, row.fields["id"]] = checkpoint

    def put_state(self, place: Place, state: dict[str, Any]) -> None:
        """Put a state by hand."""
        fields = {**self.next_fields(), "parent_id": None, "state": copy.deepcopy(state)}
        self.append(place, made(**copy.deepcopy(fields)), Row(fields))

    def put_changed(self, place: Place, change: Callable[[dict[str, Any]], object]) -> None:
        """Put the newest state, changed, by hand."""
        newest = self.pick(place, 0.9)
        state = copy.deepcopy(newest.fields["state"]) if newest else {}
        change(state)
        self.put_state(place, state)

    # Rules of putting

    @rule(thread=threads, namespace=namespaces, state=states)
    def put_any(self, thread: str, namespace: str, state: dict[str, Any]) -> None:
        """A state that has nothing to do with the one before."""
        self.put_state((thread, namespace), state)

    @rule(thread=threads, namespace=namespaces, new=items)
    def put_grown(self, thread: str, namespace: str, new: list[Any]) -> None:
        """A list that is longer."""
        self.put_changed((thread, namespace), lambda state: state.setdefault("list", []).extend(new))

    @rule(thread=threads, namespace=namespaces, name=names, value=values)
    def put_edited(self, thread: str, namespace: str, name: str, value: Any) -> None:
        """Another value for one key."""
        self.put_changed((thread, namespace), lambda state: state.update({name: value}))

    @rule(thread=threads, namespace=namespaces, name=names)
    def put_without(self, thread: str, namespace: str, name: str) -> None:
        """A key less."""
        self.put_changed((thread, namespace), lambda state: state.pop(name, None))

    @rule(thread=threads, namespace=namespaces, first=names)
    def put_reordered(self, thread: str, namespace: str, first: str) -> None:
        """The same values, with a key moved to the end."""
        self.put_changed((thread, namespace), lambda state: first in state and state.update({first: state.pop(first)}))

    @rule(thread=threads, namespace=namespaces, path=st.lists(keys, min_size=1, max_size=3), value=values)
    def put_deep(self, thread: str, namespace: str, path: list[Any], value: Any) -> None:
        """A change far down in a dict."""

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
        """What the engine makes of a checkpoint: one that was put or one that was read."""
        place = (thread, namespace)
        parent = self.pick(place, position)
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
        read = self.saver.get(self.config(place, parent)) if is_read else None
        origin = read or self.objects[place, parent.fields["id"]]
        fields = self.next_fields()
        checkpoint = derived(origin, update, GROWING, **copy.deepcopy(fields))
        self.append(place, checkpoint, Row({**fields, "parent_id": parent.fields["id"], "state": state}))

    # Rules of replacing

    @rule(thread=threads, namespace=namespaces, position=positions, state=states, is_new=st.booleans())
    def replace(self, thread: str, namespace: str, position: float, state: dict[str, Any], is_new: bool) -> None:
        """Put another checkpoint in a place; what is recorded beside one belongs to its own test."""
        place = (thread, namespace)
        row = self.pick(place, position)
        if row is None or row.writes or row.tags:
            return
        config = self.config(place, row)
        fields = {**self.next_fields(), "parent_id": "p", "state": copy.deepcopy(state)}
        if not is_new:
            fields["id"] = row.fields["id"]
        checkpoint = made(**copy.deepcopy(fields))
        assert self.saver.put(config, checkpoint) == config
        row.fields = fields
        self.objects[place, fields["id"]] = checkpoint

    @rule(thread=threads, namespace=namespaces, state=states)
    def replace_unknown(self, thread: str, namespace: str, state: dict[str, Any]) -> None:
        """There is nothing to replace."""
        try:
            self.saver.put(RunnableConfig(thread, "unknown", namespace), made(state))
        except CheckpointNotFoundError:
            return
        raise AssertionError("a checkpoint that does not exist was replaced")

    # Rules of beside checkpoints

    @rule(thread=threads, namespace=namespaces, position=positions, new=writes, is_named=st.booleans())
    def put_writes(self, thread: str, namespace: str, position: float, new: dict[str, Any], is_named: bool) -> None:
        """Record values beside a checkpoint."""
        place = (thread, namespace)
        row = self.pick(place, position if is_named else 0.9)
        if row is not None:
            self.saver.put_writes(self.config(place, row if is_named else None), copy.deepcopy(new))
            row.writes.update(copy.deepcopy(new))

    @rule(thread=threads, namespace=namespaces, position=positions, tag=st.sampled_from(TAGS), is_added=st.booleans())
    def change_tags(self, thread: str, namespace: str, position: float, tag: str, is_added: bool) -> None:
        """Tag a checkpoint, or take a tag off."""
        place = (thread, namespace)
        row = self.pick(place, position)
        if row is None:
            return
        if is_added:
            self.saver.add_tags(self.config(place, row), tag)
            row.tags += [] if tag in row.tags else [tag]
        else:
            self.saver.remove_tags(self.config(place, row), tag)
            row.tags = [one for one in row.tags if one != tag]

    # Rules of threads

    @rule(thread=threads, namespace=namespaces)
    def release(self, thread: str, namespace: str) -> None:
        """End a history."""
        released = {name: self.rows.pop((thread, name), []) for name in NAMESPACES}
        tag = self.saver.release(RunnableConfig(thread, checkpoint_ns=namespace))
        compare(tag.checkpoints, released[""])
        if isinstance(self.savers[0], HasVersions) and any(released.values()):
            self.versions.setdefault(thread, []).append(released)
            assert tag.version == len(self.versions[thread])
        else:
            assert tag.version is None

    @rule(thread=threads)
    def delete(self, thread: str) -> None:
        """Remove a thread."""
        gone = [self.rows.pop((thread, name), []) for name in NAMESPACES]
        versions = self.versions.pop(thread, [])
        assert self.saver.delete(thread) is bool(any(gone) or versions)

    @rule(source=threads, goal=threads)
    def copy(self, source: str, goal: str) -> None:
        """Copy a thread."""
        origin = {name: self.history((source, name)) for name in NAMESPACES}
        error: type[Exception] | None = None
        if not any(origin.values()):
            error = CheckpointNotFoundError
        elif any(self.history((goal, name)) for name in NAMESPACES):
            error = CheckpointConflictError
        try:
            self.saver.copy(source, goal)
        except (CheckpointNotFoundError, CheckpointConflictError) as caught:
            assert type(caught) is error
            return
        assert error is None
        for name, rows in origin.items():
            if rows:
                self.rows[goal, name] = copy.deepcopy(rows)
            for row in rows:
                self.objects[(goal, name), row.fields["id"]] = self.objects[(source, name), row.fields["id"]]

    @rule(thread=st.none() | threads, last=st.integers(1, 3), is_tag_kept=st.booleans(), is_stop_kept=st.booleans())
    def prune(self, thread: str | None, last: int, is_tag_kept: bool, is_stop_kept: bool) -> None:
        """Remove what is old."""
        count = 0
        for place, rows in self.rows.items():
            if thread is None or place[0] == thread:
                old = [
                    row
                    for row in rows[:-last]
                    if not (is_tag_kept and "keep" in row.tags) and not (is_stop_kept and row.waits())
                ]
                count += len(old)
                self.rows[place] = [row for row in rows if not any(row is one for one in old)]
        keep_tags = ["keep"] if is_tag_kept else []
        assert self.saver.prune(thread, keep_last=last, keep_tags=keep_tags, keep_interrupted=is_stop_kept) == count

    @rule(index=st.integers(0, 1))
    def open_again(self, index: int) -> None:
        """Go on with a new object."""
        self.savers[index] = self.reopen(self.savers[1 - index])

    # Comparing

    @invariant()
    def every_history_is_as_the_model_has_it(self) -> None:
        """Read everything."""
        for thread in THREADS:
            for name in NAMESPACES:
                self.compare_history((thread, name))

    def compare_history(self, place: Place) -> None:
        """Read one history in every way."""
        saver, history = self.saver, self.history(place)
        compare(saver.list(self.config(place)), history)
        infos = saver.history(self.config(place))
        assert [info.id for info in infos] == [row.fields["id"] for row in reversed(history)]
        for info, row in zip(infos, reversed(history), strict=True):
            assert info.tags == tuple(row.tags)
            assert info.status == ("interrupted" if row.waits() else "running")
            same(saver.get_writes(self.config(place, row)), row.writes)
        newest = saver.get(self.config(place))
        compare([newest] if newest else [], history[-1:])
        found = saver.summary(self.config(place))
        assert (found and (found.latest, found.checkpoints)) == (infos[0], len(infos)) if infos else found is None

    @precondition(lambda self: self.rows)
    @rule(thread=threads, namespace=namespaces, position=positions)
    def get_one(self, thread: str, namespace: str, position: float) -> None:
        """Read one checkpoint by its id, and none by that of another history."""
        row = self.pick((thread, namespace), position)
        if row is None:
            assert self.saver.get(RunnableConfig(thread, "id 1", namespace)) is None
            return
        found = self.saver.get(self.config((thread, namespace), row))
        compare([found] if found else [], [row])

    @invariant()
    def threads_and_versions_are_as_the_model_has_them(self) -> None:
        """Read what there is of threads."""
        saver = self.saver
        live = {thread for (thread, _), rows in self.rows.items() if rows}
        assert sorted(saver.threads()) == sorted(live)
        assert sorted(saver.threads(released=True)) == sorted({*live, *self.versions})
        for thread in live:
            expected = [name for name in NAMESPACES if self.history((thread, name))]
            assert sorted(saver.namespaces(thread)) == expected
        waiting = {place for place, rows in self.rows.items() if rows and rows[-1].waits()}
        assert {(one.thread_id, one.checkpoint_ns) for one in saver.interrupts()} == waiting

    @rule(thread=threads, namespace=namespaces)
    def read_versions(self, thread: str, namespace: str) -> None:
        """Read what was released."""
        saver, versions = self.saver, self.versions.get(thread, [])
        if isinstance(saver, HasVersions):
            assert [*saver.versions_by_thread_id(thread)] == [*range(1, len(versions) + 1)]
            for number, version in enumerate(versions, 1):
                tag = saver.tag(RunnableConfig(thread, checkpoint_ns=namespace), number)
                compare(tag.checkpoints, version[namespace])


def compare(found: Sequence[Checkpoint], rows: Sequence[Row]) -> None:
    """Assert that checkpoints, newest first, are those of the model, oldest first; strictly."""
    assert [one.id for one in found] == [row.fields["id"] for row in reversed(rows)]
    for one, row in zip(found, reversed(rows), strict=True):
        same({name: getattr(one, name) for name in row.fields}, row.fields)


__all__: Sequence[str] = ["SaverMachine"]
