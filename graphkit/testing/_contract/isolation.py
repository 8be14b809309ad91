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
    derive,
    equal,
    expect,
    grow_list,
    made,
    make_config,
    present,
    same,
    same_checkpoint,
)


class IsolationTests(ContractTests):
    """A saver and its callers share no mutable object."""

    def test_changing_what_was_put_changes_nothing(self) -> None:
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
        loaded = present(saver.get(CONFIG))
        same(loaded.state, {"items": [1, [2]], "note": Note("n", ["a"]), "notes": [Note("n", ["a"])]})
        same(public_metadata(loaded.metadata), {"deep": [1], "note": Note("m")})
        same(saver.get_writes(CONFIG), {"w": [1], "note": Note("w")})

    def test_changing_what_was_read_changes_nothing(self) -> None:
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
            loaded = present(read())
            same(loaded.state, {"items": [1, {"k": [2]}], "note": Note("n"), "notes": [Note("o"), (Note("p"),)]})
            same(public_metadata(loaded.metadata), {"note": Note("m")})
            same(saver.get_writes(CONFIG), {"note": Note("w")})
            same(saver.history(CONFIG)[0].metadata, {"note": Note("m")})
            _modify_all(
                *_list_mutables(loaded),
                saver.get_writes(CONFIG)["note"],
                saver.history(CONFIG)[0].metadata["note"],
            )
        _modify_all(*_list_mutables(saver.release(CONFIG).checkpoints[0]))
        if isinstance(saver, HasVersions):
            for _ in range(2):
                (loaded,) = saver.tag(CONFIG).checkpoints
                same(loaded.state["note"], Note("n"))
                _modify_all(*_list_mutables(loaded))

    def test_what_was_returned_never_changes(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 6)
        listed = saver.list(CONFIG)
        history = saver.history(CONFIG)
        newest = saver.get(CONFIG)
        saver.put(make_config("t", checkpoints[2].id), made({"list": "replaced"}))
        saver.put(CONFIG, made({"list": "later"}))
        tag = saver.release(CONFIG)
        saver.put(CONFIG, made({"list": "fresh"}))
        equal(get_ids(listed), get_ids(history))
        for loaded, expected in zip(listed, reversed(checkpoints), strict=True):
            same_checkpoint(loaded, expected)
        same_checkpoint(newest, checkpoints[-1])
        same_checkpoint(tag.checkpoints[1], checkpoints[-1])

    def test_an_iterator_holds_nothing(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 4)
        for read in (saver.list, saver.history):
            iterator: Iterator[Any] = iter(read(CONFIG))
            equal(next(iterator).id, checkpoints[-1].id)
            other = self.open_again(saver)
            checkpoints.append(made({"list": []}))
            call_in_thread(other.put, CONFIG, checkpoints[-1])
            equal(len([*iterator]), len(checkpoints) - 2)
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
            expect("read-only" in str(error), f"the error of a read-only value does not say so: {error}")
