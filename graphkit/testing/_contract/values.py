"""Values are restored exactly, or refused without a change."""

from __future__ import annotations

from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointSerializationError
from graphkit.testing._contract.base import SaverTests
from graphkit.testing._values import GROWING, Note, Stranger, Unregistered, at, derived, grow_list, made, same, zoo


class ValueTests(SaverTests):
    """States of every kind, and values that cannot be stored."""

    # States

    def test_what_changes_between_two_states_does_not_matter(self) -> None:
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
            saver.put(at(), checkpoint)
        self.assert_history(saver, at(), checkpoints)
        for found, state in zip(reversed(saver.list(at())), states, strict=True):
            same(found.state, state)

    def test_a_state_that_grows(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 40)
        self.assert_history(saver, at(), checkpoints)
        found = saver.get(at("t", checkpoints[24].id))
        assert found is not None
        same(found.state, {"list": [*range(25)], "fixed": "f" * 100, "last": 24})

    def test_a_state_that_grew_from_another_than_the_newest(self) -> None:
        saver = self.open()
        trunk = grow_list(saver, at(), 5)
        branch = [derived(trunk[1], {"list": ["b"], "fixed": None}, GROWING)]
        saver.put(at(), branch[0])
        branch.append(derived(branch[0], {"list": ["c"]}, GROWING))
        saver.put(at(), branch[1])
        back = derived(trunk[4], {"list": ["d"]}, GROWING)
        saver.put(at(), back)
        self.assert_history(saver, at(), [*trunk, *branch, back])
        found = saver.get(at("t", branch[1].id))
        assert found is not None
        same(found.state, {"list": [0, 1, "b", "c"], "fixed": None, "last": 1})

    def test_a_state_that_grew_from_what_was_read_or_stored_elsewhere(self) -> None:
        saver = self.open()
        first = made({"list": [1], "note": Note("a")})
        saver.put(at(), first)
        read = saver.get(at())
        assert read is not None
        second = derived(read, {"list": [2]}, GROWING)
        saver.put(at(), second)
        saver.put(at("other"), second)
        third = derived(second, {"list": [3]}, GROWING)
        saver.put(at("other"), third)
        self.assert_history(saver, at(), [first, second])
        self.assert_history(saver, at("other"), [second, third])
        same(third.state["list"], [1, 2, 3])

    def test_every_type_comes_back_exactly(self) -> None:
        saver = self.open()
        for name, value in zoo().items():
            state = {name: value, "nested": [{"in": (value,)}]}
            saver.put(at(), made(state, metadata={"m": value}))
            saver.put_writes(at(), {"w": value})
            for reader in (saver, self.open_again(saver)):
                found = reader.get(at())
                assert found is not None
                same(found.state, state)
                same(found.metadata["m"], value)
                same(reader.get_writes(at()), {"w": value})
                same(reader.history(at())[0].metadata, {"m": value})

    def test_every_type_at_once_and_appended(self) -> None:
        saver = self.open()
        first = made({"list": [*zoo().values()], **zoo()})
        saver.put(at(), first)
        second = derived(first, {"list": [*zoo().values()], "none": 0}, GROWING)
        saver.put(at(), second)
        for reader in (saver, self.open_again(saver)):
            newest, oldest = reader.list(at())
            same(oldest.state, {"list": [*zoo().values()], **zoo()})
            same(newest.state, {"list": [*zoo().values(), *zoo().values()], **zoo(), "none": 0})

    # Values that cannot be stored

    def refuses(
        self, saver: BaseCheckpointSaver, checkpoint: Checkpoint, path: str, type_name: str = "Stranger"
    ) -> None:
        """Assert that a checkpoint is refused, and that nothing was changed."""
        with self.assert_unchanged(saver, at()), self.raises(CheckpointSerializationError) as caught:
            saver.put(at(), checkpoint)
        assert isinstance(caught.error, TypeError)
        assert caught.error.path == path
        assert caught.error.type_name.endswith(type_name)

    def test_a_value_that_cannot_be_stored_is_refused_by_its_path(self) -> None:
        saver = self.open("refuses_unstorable_values")
        first = made({"messages": [1]})
        saver.put(at(), first)
        deep = {"ok": 1, "messages": [{"when": 1}, {"when": 2, "who": [0, Stranger()]}]}
        self.refuses(saver, made(deep), "messages[1].who[1]")
        self.refuses(saver, made({"x": Unregistered()}), "x", "Unregistered")
        self.refuses(saver, made({"x": (1, Stranger)}), "x[1]", "type")
        saver.put(at(), made({"messages": [1, 2]}))
        assert len(saver.list(at())) == 2  # noqa: PLR2004

    def test_a_change_that_cannot_be_stored_is_refused_by_its_path(self) -> None:
        saver = self.open("refuses_unstorable_values")
        first = made({"list": [1, (2,)], "other": (1,)})
        saver.put(at(), first)
        self.refuses(saver, derived(first, {"list": [3, [Stranger()]]}, GROWING), "list[3][0]")
        self.refuses(saver, derived(first, {"new": {"k": Stranger()}}), "new.k")
        fine = derived(first, {"list": [3]}, GROWING)
        saver.put(at(), fine)
        self.refuses(saver, derived(fine, {"list": [Stranger()]}, GROWING), "list[3]")
        self.assert_history(saver, at(), [first, fine])

    def test_a_replacement_that_cannot_be_stored_is_refused(self) -> None:
        saver = self.open("refuses_unstorable_values")
        first, second = made({"n": 1}), made({"n": 2})
        saver.put(at(), first)
        saver.put(at(), second)
        with self.assert_unchanged(saver, at()), self.raises(CheckpointSerializationError):
            saver.put(at("t", first.id), made({"n": Stranger()}))

    def test_metadata_and_writes_that_cannot_be_stored_are_refused(self) -> None:
        saver = self.open("refuses_unstorable_values")
        saver.put(at(), made({"n": 1}))
        saver.put_writes(at(), {"w": 1})
        with self.assert_unchanged(saver, at()):
            with self.raises(CheckpointSerializationError) as caught:
                saver.put(at(), made({"n": 2}, metadata={"who": Stranger()}))
            assert "who" in caught.error.path
            with self.raises(CheckpointSerializationError) as caught:
                saver.put_writes(at(), {"fine": 1, "bad": [Stranger()]})
            assert "bad[0]" in caught.error.path

    def test_a_refused_checkpoint_makes_no_thread(self) -> None:
        saver = self.open("refuses_unstorable_values")
        with self.raises(CheckpointSerializationError):
            saver.put(at(), made({"n": Stranger()}))
        assert saver.get(at()) is None
        if saver.lists_threads:
            assert [*saver.threads()] == []
