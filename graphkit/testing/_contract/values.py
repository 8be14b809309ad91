"""Every storable value is read back exactly; any other value is refused and nothing changes.

A caller that changes what it put or read changes nothing of what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions
from graphkit.errors import CheckpointSerializationError
from graphkit.testing import _check as check
from graphkit.testing._contract.base import ContractTests, call_in_thread
from graphkit.testing._values import (
    CONFIG,
    GROWING,
    OTHER,
    Note,
    UnknownType,
    Unregistered,
    config_of,
    derive,
    extend_list,
    grow_list,
    made,
    put_all,
    put_checkpoint,
    put_extended,
    put_state,
    replace_state,
    sample_values,
)


class ValueTests(ContractTests):
    """States of every kind, however they were made, and values that cannot be stored."""

    # States

    def test_unrelated_states_are_stored_exactly(self) -> None:
        """`put` keeps states that differ in values, keys, order or types only."""
        # Each state but one differs from the one before in another way: a saver that stores changes must
        # find every one, also those of order and of type only. The two that are equal are two checkpoints.
        states: list[dict[str, Any]] = [
            {},
            {"list": [1], "dict": {"a": {"b": [1, 2]}}, "text": "x" * 1000},
            {"list": [1, 2], "dict": {"a": {"b": [1, 2, 3]}}, "text": "x" * 1001},
            {"list": [2], "dict": {"a": {"b": []}}, "text": "y"},
            {"text": "y", "dict": {"a": {"b": []}}, "list": [2]},
            {"text": "y"},
            {"text": "y"},
            {"text": None},
            {"text": "y", "list": [], "dict": {}},
            {"text": b"y", "list": (), "dict": set()},
            {},
            {"": 0, "text": 1},
            {"": 0.0, "text": True},
        ]
        saver = self.open()
        checkpoints = [made(state) for state in states]
        put_all(saver, checkpoints)

        self.assert_history(saver, checkpoints)

    def test_a_state_derived_from_an_older_checkpoint(self) -> None:
        """`put` keeps a state whose parent is not the latest checkpoint."""
        saver = self.open()
        trunk = grow_list(saver, 5)

        # A branch from the second checkpoint, as after a run that was resumed there.
        first = derive(trunk[1], {"list": ["b"], "fixed": None}, GROWING)
        second = extend_list(first, "c")
        # The next checkpoint derives from the trunk again, not from the latest.
        back = extend_list(trunk[4], "d")

        put_all(saver, [first, second, back])

        self.assert_history(saver, [*trunk, first, second, back])

        expected = {"list": [0, 1, "b", "c"], "fixed": None, "last": 1}
        check.same(second.state, expected, "state")

    def test_a_state_derived_from_a_loaded_checkpoint_or_another_thread(self) -> None:
        """`put` keeps a state whose parent was read from the saver, or is in another thread."""
        saver = self.open()
        first = put_state(saver, {"list": [1], "note": Note("a")})

        # The second derives from an object that the saver itself has made.
        loaded = check.get_checkpoint(saver)
        second = put_extended(saver, loaded, 2)

        # In the other thread, the saver has not stored the state from which the second derives. The third
        # derives from one that it has.
        saver.put(OTHER, second)
        third = put_extended(saver, second, 3, OTHER)

        self.assert_history(saver, [first, second])
        self.assert_history(saver, [second, third], OTHER)
        check.same(third.state["list"], [1, 2, 3])

    def test_every_type_is_stored_exactly(self) -> None:
        """`put` and `put_writes` keep values of every type that graphkit supports."""
        saver = self.open()

        for name, value in sample_values().items():
            state = {name: value, "nested": [{"in": (value,)}]}
            metadata = {"m": value}
            writes = {"w": value}
            put_state(saver, state, metadata=metadata)
            saver.put_writes(CONFIG, writes)

            for reader in self.readers_of(saver):
                loaded = check.get_checkpoint(reader)
                latest = reader.history(CONFIG)[0]

                check.same(loaded.state, state, "state")
                check.assert_metadata(loaded, metadata)
                check.same(latest.metadata, metadata, "the metadata of history")
                check.assert_writes(reader, writes)

    # Values that cannot be stored

    def assert_refused(
        self, saver: BaseCheckpointSaver, checkpoint: Checkpoint, path: str, type_name: str = "UnknownType"
    ) -> None:
        """Assert that the saver refuses a checkpoint by the path of a value and changes nothing."""
        with self.raises_without_change(saver, CheckpointSerializationError) as caught:
            saver.put(CONFIG, checkpoint)

        error = caught.exception
        check.assert_equal(error.path, path, "the path of the error")
        check.assert_contains(error.type_name, type_name, "the type of the error")

    def test_an_unstorable_value_raises_with_its_path(self) -> None:
        """With `refuses_unstorable_values`, the error of `put` has the path and the type of the value."""
        saver = self.open("refuses_unstorable_values")
        put_state(saver, {"messages": [1]})

        storable = {"when": 1}
        unstorable = {"when": 2, "who": [0, UnknownType()]}
        nested = made({"messages": [storable, unstorable]})
        self.assert_refused(saver, nested, "messages[1].who[1]")

        unregistered = made({"x": Unregistered()})
        self.assert_refused(saver, unregistered, "x", "Unregistered")

        # A class is not a value, whatever it is the class of.
        type_itself = made({"x": (1, UnknownType)})
        self.assert_refused(saver, type_itself, "x[1]", "type")

    def test_an_unstorable_change_raises_with_its_path(self) -> None:
        """With `refuses_unstorable_values`, `put` also refuses what a derived state has added."""
        # A saver that checks only what changed must still name the path from the top of the state.
        saver = self.open("refuses_unstorable_values")
        first = put_state(saver, {"list": [1, (2,)], "other": (1,)})

        nested = extend_list(first, 3, [UnknownType()])
        self.assert_refused(saver, nested, "list[3][0]")

        new_key = derive(first, {"new": {"k": UnknownType()}})
        self.assert_refused(saver, new_key, "new.k")

        # After a refusal, the next change from the same parent is stored.
        storable = put_extended(saver, first, 3)

        appended = extend_list(storable, UnknownType())
        self.assert_refused(saver, appended, "list[3]")
        self.assert_history(saver, [first, storable])

    def test_unstorable_metadata_and_writes_raise(self) -> None:
        """With `refuses_unstorable_values`, metadata and pending writes are refused as a whole."""
        saver = self.open_with_checkpoint("refuses_unstorable_values")
        saver.put_writes(CONFIG, {"w": 1})

        with self.assert_unchanged(saver):
            # Savers may put a prefix before the path.
            with self.raises(CheckpointSerializationError) as caught:
                put_checkpoint(saver, metadata={"who": UnknownType()})
            check.assert_contains(caught.exception.path, "who", "the path of the error")

            # Not one of several writes is stored if one of them is refused.
            with self.raises(CheckpointSerializationError) as caught:
                saver.put_writes(CONFIG, {"fine": 1, "bad": [UnknownType()]})
            check.assert_contains(caught.exception.path, "bad[0]", "the path of the error")

    def test_a_refused_put_creates_no_thread(self) -> None:
        """With `refuses_unstorable_values`, a refused `put` changes nothing in an empty store either."""
        saver = self.open("refuses_unstorable_values")
        with self.raises(CheckpointSerializationError):
            put_state(saver, {"n": UnknownType()})
        check.assert_missing(saver)

        if saver.lists_threads:
            check.assert_threads(saver)


class IsolationTests(ContractTests):
    """A saver and its callers share no mutable object."""

    def test_mutating_a_put_checkpoint_does_not_change_the_store(self) -> None:
        """With `isolates_values`, the saver copies the mutable objects that it is given."""
        saver = self.open("isolates_values")
        items = [1, [2]]
        note = Note("n", ["a"])
        state = {"items": items, "note": note, "notes": [note]}
        metadata = {"deep": [1], "note": Note("m")}
        writes = {"w": [1], "note": Note("w")}
        given = (state, metadata, writes)
        expected_state, expected_metadata, expected_writes = deepcopy(given)

        checkpoint = put_state(saver, state, metadata=metadata)
        saver.put_writes(CONFIG, writes)
        for mutable in (*given, checkpoint):
            _mutate(mutable)

        check.assert_state(saver, expected_state)
        check.assert_metadata(check.get_checkpoint(saver), expected_metadata)
        check.assert_writes(saver, expected_writes)

    def test_mutating_a_loaded_checkpoint_does_not_change_the_store(self) -> None:
        """With `isolates_values`, the saver copies the mutable objects that it returns."""
        saver = self.open("isolates_values")
        # The derived checkpoint has a frozen state, as in a run.
        derived = derive(made(_make_state_of_notes()), {}, metadata={"note": Note("m")})
        put_state(saver, derived.state, metadata=derived.metadata)
        saver.put_writes(CONFIG, {"note": Note("w")})

        # Each way to read is used again after its first result was mutated: it may have a cache.
        for _ in range(2):
            _mutate_after_check(saver, check.get_checkpoint(saver))
            _mutate_after_check(saver, saver.list(CONFIG)[0])

        (released,) = saver.release(CONFIG).checkpoints
        _mutate(released)

        if isinstance(saver, HasVersions):
            for _ in range(2):
                (loaded,) = saver.tag(CONFIG).checkpoints
                check.same(loaded.state["note"], Note("n"), "the note in the state")
                _mutate(loaded)

    def test_returned_checkpoints_are_snapshots(self) -> None:
        """What `list`, `get` and `release` return never changes afterwards."""
        saver, other = self.open_two()
        checkpoints = grow_list(saver, 6)
        first, second, third, *_, latest = checkpoints
        listed = saver.list(CONFIG)
        listed_by_other = other.list(CONFIG)
        history = saver.history(CONFIG)
        newest = saver.get(CONFIG)

        replace_state(saver, first, {"list": "corrected"})
        put_state(saver, {"list": "replaced"}, config_of(third))
        put_state(saver, {"list": "later"}, id=latest.id)
        released = saver.release(CONFIG).checkpoints
        put_state(saver, {"list": "fresh"}, id=second.id)

        check.assert_checkpoints(listed, checkpoints)
        check.assert_checkpoints(listed_by_other, checkpoints)
        check.assert_equal(check.get_ids(history), check.get_ids(listed), "the ids of history")
        check.assert_same_checkpoint(newest, latest)
        check.assert_same_checkpoint(released[1], latest)

    def test_an_open_iterator_does_not_block_writers(self) -> None:
        """A caller that iterates over `list` or `history` holds no lock."""
        saver = self.open()
        checkpoints = grow_list(saver, 4)

        for read in (saver.list, saver.history):
            count = len(checkpoints)
            iterator: Iterator[Any] = iter(read(CONFIG))
            check.assert_equal(next(iterator).id, checkpoints[-1].id)

            other = self.open_again(saver)
            added = made({"list": []})
            call_in_thread(other.put, CONFIG, added)
            checkpoints.append(added)

            # The iterator does not return the checkpoint that was put after it started.
            check.assert_length([*iterator], count - 1)

        call_in_thread(self.open_again(saver).release, CONFIG)


def _make_state_of_notes() -> dict[str, Any]:
    return {"items": [1, {"k": [2]}], "note": Note("n"), "notes": [Note("o"), (Note("p"),)]}


def _mutate_after_check(saver: BaseCheckpointSaver, loaded: Checkpoint) -> None:
    """Assert that nothing that was put has changed; then mutate everything that was read."""
    writes = saver.get_writes(CONFIG)
    metadata = saver.history(CONFIG)[0].metadata
    expected = {"note": Note("m")}

    check.same(loaded.state, _make_state_of_notes(), "state")
    check.assert_metadata(loaded, expected)
    check.same(metadata, expected, "the metadata of history")
    check.same(writes, {"note": Note("w")}, "pending writes")

    _mutate(loaded)
    _mutate(writes["note"])
    _mutate(metadata["note"])


def _mutate(value: Any) -> None:
    """Mutate a value and the values in it; a read-only one must raise a TypeError with that word in its message."""
    parts: list[Any] = []
    if isinstance(value, Checkpoint):
        parts = [value.state, value.metadata]
    elif isinstance(value, dict):
        parts = [*value.values()]
    elif isinstance(value, (list, tuple)):
        parts = [*value]
    for part in parts:
        _mutate(part)

    try:
        if isinstance(value, Note):
            value.text = "modified"
            value.lines.append("modified")
        elif isinstance(value, list):
            value.append("modified")
        elif isinstance(value, dict):
            value["modified"] = True
    except TypeError as error:
        check.assert_contains(str(error), "read-only", "the error of a read-only value")
