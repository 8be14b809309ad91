"""Isolation: a caller that changes its own objects does not change what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.versions import HasVersions
from graphkit.testing._contract.base import SaverTests, call_in_thread
from graphkit.testing._values import Note, at, derived, grow_list, made, same, same_checkpoint


class IsolationTests(SaverTests):
    """A saver and its callers share no mutable object."""

    def test_changing_what_was_put_changes_nothing(self) -> None:
        saver = self.open("isolates_values")
        items, note, metadata = [1, [2]], Note("n", ["a"]), {"deep": [1], "note": Note("m")}
        checkpoint = made({"items": items, "note": note, "notes": [note]}, metadata=metadata)
        saver.put(at(), checkpoint)
        writes = {"w": [1], "note": Note("w")}
        saver.put_writes(at(), writes)
        _deface(items, note, metadata["deep"], metadata["note"], writes["w"], writes["note"])
        _deface(*_mutables(checkpoint))
        found = saver.get(at())
        assert found is not None
        same(found.state, {"items": [1, [2]], "note": Note("n", ["a"]), "notes": [Note("n", ["a"])]})
        same(found.metadata, {"deep": [1], "note": Note("m")})
        same(saver.get_writes(at()), {"w": [1], "note": Note("w")})

    def test_changing_what_was_read_changes_nothing(self) -> None:
        saver = self.open("isolates_values")
        expected = made({"items": [1, {"k": [2]}], "note": Note("n"), "notes": [Note("o"), (Note("p"),)]})
        expected = derived(expected, {}, metadata={"note": Note("m")})
        saver.put(at(), made(expected.state, id=expected.id, parent_id=expected.parent_id, metadata=expected.metadata))
        saver.put_writes(at(), {"note": Note("w")})
        reads: list[Callable[[], Checkpoint | None]] = [lambda: saver.get(at()), lambda: saver.list(at())[0]]
        for read in [*reads, *reads]:
            found = read()
            assert found is not None
            same(found.state, {"items": [1, {"k": [2]}], "note": Note("n"), "notes": [Note("o"), (Note("p"),)]})
            same(found.metadata, {"note": Note("m")})
            same(saver.get_writes(at()), {"note": Note("w")})
            same(saver.history(at())[0].metadata, {"note": Note("m")})
            _deface(*_mutables(found), saver.get_writes(at())["note"], saver.history(at())[0].metadata["note"])
        _deface(*_mutables(saver.release(at()).checkpoints[0]))
        if isinstance(saver, HasVersions):
            for _ in range(2):
                (found,) = saver.tag(at()).checkpoints
                same(found.state["note"], Note("n"))
                _deface(*_mutables(found))

    def test_what_was_returned_never_changes(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 6)
        listed, history, newest = saver.list(at()), saver.history(at()), saver.get(at())
        saver.put(at("t", checkpoints[2].id), made({"list": "replaced"}))
        saver.put(at(), made({"list": "later"}))
        tag = saver.release(at())
        saver.put(at(), made({"list": "anew"}))
        assert [one.id for one in listed] == [one.id for one in history]
        for found, expected in zip(listed, reversed(checkpoints), strict=True):
            same_checkpoint(found, expected)
        same_checkpoint(newest, checkpoints[-1])
        same_checkpoint(tag.checkpoints[1], checkpoints[-1])

    def test_an_iterator_holds_nothing(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 4)
        for read in (saver.list, saver.history):
            iterator: Iterator[Any] = iter(read(at()))
            assert next(iterator).id == checkpoints[-1].id
            other = self.open_again(saver)
            checkpoints.append(made({"list": []}))
            call_in_thread(other.put, at(), checkpoints[-1])
            assert len([*iterator]) == len(checkpoints) - 2
        call_in_thread(self.open_again(saver).release, at())


def _mutables(checkpoint: Checkpoint) -> list[Any]:
    return _inside(checkpoint.state) + _inside(checkpoint.metadata)


def _inside(value: Any) -> list[Any]:
    """Return every list, dict and Note in a value, itself included."""
    found = [value] if isinstance(value, (list, dict, Note)) else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return found + [one for part in parts for one in _inside(part)]


def _deface(*values: Any) -> None:
    """Change what can be changed, and assert that the rest is read-only."""
    for value in values:
        try:
            if isinstance(value, Note):
                value.text = "defaced"
                value.lines.append("defaced")
            elif isinstance(value, list):
                value.append("defaced")
            else:
                value["defaced"] = True
        except TypeError as error:
            assert "read-only" in str(error)
