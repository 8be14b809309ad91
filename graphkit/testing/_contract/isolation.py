"""A caller that changes what it put or read changes nothing of what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions
from graphkit._saver.status import public_metadata
from graphkit.testing import _check as check
from graphkit.testing._contract.base import ContractTests, call_in_thread
from graphkit.testing._values import CONFIG, Note, config_of, derive, grow_list, made, put_state


class IsolationTests(ContractTests):
    """A saver and its callers share no mutable object."""

    def test_mutating_a_put_checkpoint_does_not_change_the_store(self) -> None:
        saver = self.open("isolates_values")
        items = [1, [2]]
        note = Note("n", ["a"])
        state = {"items": items, "note": note, "notes": [note]}
        metadata = {"deep": [1], "note": Note("m")}
        writes = {"w": [1], "note": Note("w")}
        checkpoint = put_state(saver, state, metadata=metadata)
        saver.put_writes(CONFIG, writes)

        _mutate_all(items, note)
        _mutate_all(*metadata.values())
        _mutate_all(*writes.values())
        _mutate_all(*_list_mutables(checkpoint))

        loaded = check.get_checkpoint(saver)
        expected_state = {
            "items": [1, [2]],
            "note": Note("n", ["a"]),
            "notes": [Note("n", ["a"])],
        }

        check.same(loaded.state, expected_state)
        assert_metadata(loaded, {"deep": [1], "note": Note("m")})
        check.writes(saver, CONFIG, {"w": [1], "note": Note("w")})

    def test_mutating_a_loaded_checkpoint_does_not_change_the_store(self) -> None:
        saver = self.open("isolates_values")
        state = {
            "items": [1, {"k": [2]}],
            "note": Note("n"),
            "notes": [Note("o"), (Note("p"),)],
        }
        # The derived checkpoint has a frozen state, as in a run.
        derived = derive(made(state), {}, metadata={"note": Note("m")})
        put_state(
            saver,
            derived.state,
            id=derived.id,
            parent_id=derived.parent_id,
            metadata=derived.metadata,
        )
        saver.put_writes(CONFIG, {"note": Note("w")})

        # Each way to read is used again after its first result was mutated: it may have a cache.
        for _ in range(2):
            _mutate_after_check(saver, check.get_checkpoint(saver))
            _mutate_after_check(saver, saver.list(CONFIG)[0])

        released = saver.release(CONFIG).checkpoints[0]
        _mutate_all(*_list_mutables(released))

        if isinstance(saver, HasVersions):
            for _ in range(2):
                (loaded,) = saver.tag(CONFIG).checkpoints
                check.same(loaded.state["note"], Note("n"))

                _mutate_all(*_list_mutables(loaded))

    def test_returned_checkpoints_are_snapshots(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 6)
        listed = saver.list(CONFIG)
        history = saver.history(CONFIG)
        newest = saver.get(CONFIG)

        put_state(saver, {"list": "replaced"}, config_of(checkpoints[2]))
        put_state(saver, {"list": "later"})
        tag = saver.release(CONFIG)
        put_state(saver, {"list": "fresh"})

        check.equal(check.get_ids(listed), check.get_ids(history))
        check.checkpoints(listed, checkpoints)
        check.same_checkpoint(newest, checkpoints[-1])
        check.same_checkpoint(tag.checkpoints[1], checkpoints[-1])

    def test_an_open_iterator_does_not_block_writers(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 4)

        for read in (saver.list, saver.history):
            count = len(checkpoints)
            iterator: Iterator[Any] = iter(read(CONFIG))
            check.equal(next(iterator).id, checkpoints[-1].id)

            other = self.open_again(saver)
            added = made({"list": []})
            call_in_thread(other.put, CONFIG, added)
            checkpoints.append(added)

            # The iterator does not return the checkpoint that was put after it started.
            remaining = [*iterator]
            check.equal(len(remaining), count - 1)

        call_in_thread(self.open_again(saver).release, CONFIG)


def assert_metadata(checkpoint: Checkpoint, expected: Mapping[str, Any]) -> None:
    """Assert that a checkpoint has this metadata, besides what default methods store there."""
    found = public_metadata(checkpoint.metadata)
    check.same(found, expected, "metadata")


def _mutate_after_check(saver: BaseCheckpointSaver, loaded: Checkpoint) -> None:
    """Assert that nothing that was put has changed; then mutate everything that was read."""
    expected_state = {
        "items": [1, {"k": [2]}],
        "note": Note("n"),
        "notes": [Note("o"), (Note("p"),)],
    }
    writes = saver.get_writes(CONFIG)
    metadata = saver.history(CONFIG)[0].metadata

    check.same(loaded.state, expected_state)
    assert_metadata(loaded, {"note": Note("m")})
    check.same(writes, {"note": Note("w")})
    check.same(metadata, {"note": Note("m")})

    _mutate_all(*_list_mutables(loaded))
    _mutate_all(writes["note"])
    _mutate_all(metadata["note"])


def _list_mutables(checkpoint: Checkpoint) -> list[Any]:
    return _list_nested(checkpoint.state) + _list_nested(checkpoint.metadata)


def _list_nested(value: Any) -> list[Any]:
    """Return every list, dict and Note within a value, including the value itself."""
    nested: list[Any] = []
    if isinstance(value, (list, dict, Note)):
        nested.append(value)
    parts: Iterable[Any] = ()

    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value

    for part in parts:
        nested += _list_nested(part)
    return nested


def _mutate_all(*values: Any) -> None:
    """Mutate each value; a read-only one must raise a TypeError with that word in its message."""
    for value in values:
        try:
            _mutate(value)
        except TypeError as error:
            is_explained = "read-only" in str(error)
            check.true(is_explained, f"the error of a read-only value does not contain 'read-only': {error}")


def _mutate(value: Any) -> None:
    if isinstance(value, Note):
        value.text = "modified"
        value.lines.append("modified")
    elif isinstance(value, list):
        value.append("modified")
    else:
        value["modified"] = True
