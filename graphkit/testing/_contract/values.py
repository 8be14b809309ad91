"""Every storable value is read back exactly; any other value is refused and nothing changes."""

from __future__ import annotations

from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointSerializationError
from graphkit.testing._contract.base import ContractTests
from graphkit.testing._values import (
    CONFIG,
    GROWING,
    Note,
    UnknownType,
    Unregistered,
    assert_equal,
    assert_isinstance,
    assert_not_none,
    assert_same,
    assert_true,
    derive,
    grow_list,
    made,
    make_config,
    sample_values,
)


class ValueTests(ContractTests):
    """States of every kind, however they were made, and values that cannot be stored."""

    # States

    def test_unrelated_states_are_stored_exactly(self) -> None:
        states: list[dict[str, Any]] = [
            {},
            {"list": [1], "dict": {"a": {"b": [1, 2]}}, "text": "x" * 1000},
            {"list": [1, 2], "dict": {"a": {"b": [1, 2, 3]}}, "text": "x" * 1001},
            {"list": [2], "dict": {"a": {"b": []}}, "text": "y"},
            {"text": "y", "dict": {"a": {"b": []}}, "list": [2]},
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
        for checkpoint in checkpoints:
            saver.put(CONFIG, checkpoint)
        self.assert_history(saver, CONFIG, checkpoints)
        for loaded, state in zip(reversed(saver.list(CONFIG)), states, strict=True):
            assert_same(loaded.state, state)

    def test_a_growing_state(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 40)
        self.assert_history(saver, CONFIG, checkpoints)
        loaded = assert_not_none(saver.get(make_config("t", checkpoints[24].id)))
        assert_same(loaded.state, {"list": [*range(25)], "fixed": "f" * 100, "last": 24})

    def test_a_state_derived_from_an_older_checkpoint(self) -> None:
        saver = self.open()
        trunk = grow_list(saver, CONFIG, 5)
        branch = [derive(trunk[1], {"list": ["b"], "fixed": None}, GROWING)]
        saver.put(CONFIG, branch[0])
        branch.append(derive(branch[0], {"list": ["c"]}, GROWING))
        saver.put(CONFIG, branch[1])
        back = derive(trunk[4], {"list": ["d"]}, GROWING)
        saver.put(CONFIG, back)
        self.assert_history(saver, CONFIG, [*trunk, *branch, back])
        loaded = assert_not_none(saver.get(make_config("t", branch[1].id)))
        assert_same(loaded.state, {"list": [0, 1, "b", "c"], "fixed": None, "last": 1})

    def test_a_state_derived_from_a_loaded_checkpoint_or_another_thread(self) -> None:
        saver = self.open()
        first = made({"list": [1], "note": Note("a")})
        saver.put(CONFIG, first)
        read = assert_not_none(saver.get(CONFIG))
        second = derive(read, {"list": [2]}, GROWING)
        saver.put(CONFIG, second)
        saver.put(make_config("other"), second)
        third = derive(second, {"list": [3]}, GROWING)
        saver.put(make_config("other"), third)
        self.assert_history(saver, CONFIG, [first, second])
        self.assert_history(saver, make_config("other"), [second, third])
        assert_same(third.state["list"], [1, 2, 3])

    def test_every_type_is_stored_exactly(self) -> None:
        saver = self.open()
        for name, value in sample_values().items():
            state = {name: value, "nested": [{"in": (value,)}]}
            saver.put(CONFIG, made(state, metadata={"m": value}))
            saver.put_writes(CONFIG, {"w": value})
            for reader in (saver, self.open_again(saver)):
                loaded = assert_not_none(reader.get(CONFIG))
                assert_same(loaded.state, state)
                assert_same(loaded.metadata["m"], value)
                assert_same(reader.get_writes(CONFIG), {"w": value})
                assert_same(reader.history(CONFIG)[0].metadata, {"m": value})

    def test_all_types_in_one_state(self) -> None:
        saver = self.open()
        first = made({"list": [*sample_values().values()], **sample_values()})
        saver.put(CONFIG, first)
        second = derive(first, {"list": [*sample_values().values()], "none": 0}, GROWING)
        saver.put(CONFIG, second)
        for reader in (saver, self.open_again(saver)):
            newest, oldest = reader.list(CONFIG)
            assert_same(oldest.state, {"list": [*sample_values().values()], **sample_values()})
            assert_same(
                newest.state,
                {"list": [*sample_values().values(), *sample_values().values()], **sample_values(), "none": 0},
            )

    # What cannot be stored

    def assert_refused(
        self, saver: BaseCheckpointSaver, checkpoint: Checkpoint, path: str, type_name: str = "UnknownType"
    ) -> None:
        """Assert that the saver refuses a checkpoint by the path of a value and changes nothing."""
        with self.assert_unchanged(saver, CONFIG), self.raises(CheckpointSerializationError) as caught:
            saver.put(CONFIG, checkpoint)
        assert_isinstance(caught.error, TypeError)
        assert_equal(caught.error.path, path)
        named = caught.error.type_name
        assert_true(named.endswith(type_name), f"the error names the type {named} instead of {type_name}")

    def test_an_unstorable_value_raises_with_its_path(self) -> None:
        saver = self.open("refuses_unstorable_values")
        first = made({"messages": [1]})
        saver.put(CONFIG, first)
        deep = {"ok": 1, "messages": [{"when": 1}, {"when": 2, "who": [0, UnknownType()]}]}
        self.assert_refused(saver, made(deep), "messages[1].who[1]")
        self.assert_refused(saver, made({"x": Unregistered()}), "x", "Unregistered")
        self.assert_refused(saver, made({"x": (1, UnknownType)}), "x[1]", "type")
        saver.put(CONFIG, made({"messages": [1, 2]}))
        assert_equal(len(saver.list(CONFIG)), 2)

    def test_an_unstorable_change_raises_with_its_path(self) -> None:
        saver = self.open("refuses_unstorable_values")
        first = made({"list": [1, (2,)], "other": (1,)})
        saver.put(CONFIG, first)
        nested = derive(first, {"list": [3, [UnknownType()]]}, GROWING)
        self.assert_refused(saver, nested, "list[3][0]")
        new_key = derive(first, {"new": {"k": UnknownType()}})
        self.assert_refused(saver, new_key, "new.k")

        storable = derive(first, {"list": [3]}, GROWING)
        saver.put(CONFIG, storable)
        appended = derive(storable, {"list": [UnknownType()]}, GROWING)
        self.assert_refused(saver, appended, "list[3]")
        self.assert_history(saver, CONFIG, [first, storable])

    def test_an_unstorable_replacement_raises(self) -> None:
        saver = self.open("refuses_unstorable_values")
        first = made({"n": 1})
        second = made({"n": 2})
        saver.put(CONFIG, first)
        saver.put(CONFIG, second)
        with self.assert_unchanged(saver, CONFIG), self.raises(CheckpointSerializationError):
            saver.put(make_config("t", first.id), made({"n": UnknownType()}))

    def test_unstorable_metadata_and_writes_raise(self) -> None:
        saver = self.open("refuses_unstorable_values")
        saver.put(CONFIG, made({"n": 1}))
        saver.put_writes(CONFIG, {"w": 1})
        with self.assert_unchanged(saver, CONFIG):
            with self.raises(CheckpointSerializationError) as caught:
                saver.put(CONFIG, made({"n": 2}, metadata={"who": UnknownType()}))
            assert_true("who" in caught.error.path, f"the error names the path {caught.error.path!r} instead of who")
            with self.raises(CheckpointSerializationError) as caught:
                saver.put_writes(CONFIG, {"fine": 1, "bad": [UnknownType()]})
            assert_true(
                "bad[0]" in caught.error.path, f"the error names the path {caught.error.path!r} instead of bad[0]"
            )

    def test_a_refused_put_creates_no_thread(self) -> None:
        saver = self.open("refuses_unstorable_values")
        with self.raises(CheckpointSerializationError):
            saver.put(CONFIG, made({"n": UnknownType()}))
        assert_same(saver.get(CONFIG), None)
        if saver.lists_threads:
            assert_equal([*saver.threads()], [])
