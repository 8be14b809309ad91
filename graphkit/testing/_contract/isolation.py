"""A caller that changes what it put or read changes nothing of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.versions import HasVersions
from graphkit.testing._contract.base import ContractTests, call_in_thread, get_ids
from graphkit.testing._values import (
    CONFIG,
    Note,
    assert_equal,
    assert_not_none,
    assert_same,
    assert_same_checkpoint,
    assert_true,
    derive,
    grow_list,
    made,
    make_config,
)


class IsolationTests(ContractTests):
    """A saver and its callers share no mutable object."""

    def test_mutating_a_put_checkpoint_does_not_change_the_store(self) -> None:
        saver = self.open("isolates_values")
        items = [1, [2]]
        note = Note("n", ["a"])
        metadata = {"deep": [1], "note": Note("m")}
        checkpoint = made({"items": items, "note": note, "notes": [note]}, metadata=metadata)
        saver.put(CONFIG, checkpoint)
        writes = {"w": [1], "note": Note("w")}
        saver.put_writes(CONFIG, writes)
        _modify_all(items, note, *metadata.values(), *writes.values())
        _modify_all(*_list_mutables(checkpoint))
        loaded = assert_not_none(saver.get(CONFIG))
        assert_same(loaded.state, {"items": [1, [2]], "note": Note("n", ["a"]), "notes": [Note("n", ["a"])]})
        assert_same(public_metadata(loaded.metadata), {"deep": [1], "note": Note("m")})
        assert_same(saver.get_writes(CONFIG), {"w": [1], "note": Note("w")})

    def test_mutating_a_loaded_checkpoint_does_not_change_the_store(self) -> None:
        saver = self.open("isolates_values")
        expected = made({"items": [1, {"k": [2]}], "note": Note("n"), "notes": [Note("o"), (Note("p"),)]})
        expected = derive(expected, {}, metadata={"note": Note("m")})
        saver.put(
            CONFIG,
            made(expected.state, id=expected.id, parent_id=expected.parent_id, metadata=expected.metadata),
        )
        saver.put_writes(CONFIG, {"note": Note("w")})
        reads: list[Callable[[], Checkpoint | None]] = [
            lambda: saver.get(CONFIG),
            lambda: saver.list(CONFIG)[0],
        ]
        for read in [*reads, *reads]:
            loaded = assert_not_none(read())
            assert_same(loaded.state, {"items": [1, {"k": [2]}], "note": Note("n"), "notes": [Note("o"), (Note("p"),)]})
            assert_same(public_metadata(loaded.metadata), {"note": Note("m")})
            assert_same(saver.get_writes(CONFIG), {"note": Note("w")})
            assert_same(saver.history(CONFIG)[0].metadata, {"note": Note("m")})
            _modify_all(
                *_list_mutables(loaded),
                saver.get_writes(CONFIG)["note"],
                saver.history(CONFIG)[0].metadata["note"],
            )
        _modify_all(*_list_mutables(saver.release(CONFIG).checkpoints[0]))
        if isinstance(saver, HasVersions):
            for _ in range(2):
                (loaded,) = saver.tag(CONFIG).checkpoints
                assert_same(loaded.state["note"], Note("n"))
                _modify_all(*_list_mutables(loaded))

    def test_returned_checkpoints_are_snapshots(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 6)
        listed = saver.list(CONFIG)
        history = saver.history(CONFIG)
        newest = saver.get(CONFIG)
        saver.put(make_config("t", checkpoints[2].id), made({"list": "replaced"}))
        saver.put(CONFIG, made({"list": "later"}))
        tag = saver.release(CONFIG)
        saver.put(CONFIG, made({"list": "fresh"}))
        assert_equal(get_ids(listed), get_ids(history))
        for loaded, expected in zip(listed, reversed(checkpoints), strict=True):
            assert_same_checkpoint(loaded, expected)
        assert_same_checkpoint(newest, checkpoints[-1])
        assert_same_checkpoint(tag.checkpoints[1], checkpoints[-1])

    def test_an_open_iterator_does_not_block_writers(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 4)
        for read in (saver.list, saver.history):
            iterator: Iterator[Any] = iter(read(CONFIG))
            assert_equal(next(iterator).id, checkpoints[-1].id)
            other = self.open_again(saver)
            checkpoints.append(made({"list": []}))
            call_in_thread(other.put, CONFIG, checkpoints[-1])
            assert_equal(len([*iterator]), len(checkpoints) - 2)
        call_in_thread(self.open_again(saver).release, CONFIG)


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


def _modify_all(*values: Any) -> None:
    """Modify each value, unless it is read-only and raises an error that says so."""
    for value in values:
        try:
            if isinstance(value, Note):
                value.text = "modified"
                value.lines.append("modified")
            elif isinstance(value, list):
                value.append("modified")
            else:
                value["modified"] = True
        except TypeError as error:
            assert_true("read-only" in str(error), f"the error of a read-only value does not say so: {error}")
