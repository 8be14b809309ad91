"""SaverContract: what every saver promises, as tests that run under pytest and under unittest.

Subclass it and say how to make a saver:

    class TestMySaver(SaverContract):
        def make_saver(self):
            return MySaver()

A promise that a saver cannot keep is struck out by name (`test_size_... = None`), where a reader will see it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar
from unittest import SkipTest

from graphkit._abc import ANSWER, INTERRUPT, BaseCheckpointSaver, HasVersions, ThreadLike
from graphkit._checkpoint import Checkpoint, Tag
from graphkit._config import END, START, ConfigLike, RunnableConfig, StreamMode
from graphkit._output import CheckpointInfo, WaitingInterrupt
from graphkit._visit import CURRENT, Visit
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ThreadBusyError,
)
from graphkit.testing._values import (
    GROWING,
    HOSTILE_IDS,
    Note,
    Stranger,
    Unregistered,
    application_types,
    at,
    derived,
    grow_list,
    made,
    same,
    same_checkpoint,
    stop,
    zoo,
)

E = TypeVar("E", bound=BaseException)

PATIENCE: Final = 30.0
"""Seconds to wait for what must come; only a saver that fails is waited for as long."""


class Caught(Generic[E]):
    """What `SaverContract.raises` caught; `error` is there once the block has ended."""

    error: E


class Recorded(NamedTuple):
    """Everything that a thread's namespace shows; two of them are compared to prove that nothing was changed."""

    checkpoints: Sequence[Checkpoint]
    history: Sequence[CheckpointInfo]
    writes: list[Mapping[str, Any]]


def recorded(saver: BaseCheckpointSaver, config: RunnableConfig) -> Recorded:
    """Read everything that there is of a namespace."""
    listed = [*saver.list(config)]
    ids = [checkpoint.id for checkpoint in listed]
    writes = [saver.get_writes(config.replace(checkpoint_id=one)) for one in ids]
    # Sizes may tell where a checkpoint lies, which is not what it is.
    return Recorded(listed, [info._replace(size=0) for info in saver.history(config)], writes)


# --- the contract -----------------------------------------------------------------------------------------------------


class SaverContract:
    """The promises of `BaseCheckpointSaver`, and of `HasVersions` for savers that are one. A test each."""

    # Hooks

    def make_saver(self) -> BaseCheckpointSaver:
        """A saver on a new, empty store."""
        raise NotImplementedError

    def reopen(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Another saver object on the same store, as another process would have; the first one stays in use.

        A saver whose store is the object itself returns it.
        """
        return saver

    def plant(self, saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint) -> bool:  # noqa: ARG002
        """Write a checkpoint as the newest, behind the saver's back; False if there is no way."""
        return False

    def peek(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> Sequence[Mapping[str, Any]] | None:  # noqa: ARG002
        """The states of a history, newest first, read behind the saver's back; None if there is no way."""
        return None

    # Tools

    def skip(self, reason: str) -> NoReturn:
        """Leave a test out, under pytest and unittest."""
        raise SkipTest(reason)

    @contextmanager
    def raises(self, kind: type[E]) -> Iterator[Caught[E]]:
        """Assert that the block raises an error of a kind."""
        caught = Caught[E]()
        try:
            yield caught
        except kind as error:
            caught.error = error
        else:
            raise AssertionError(f"{kind.__name__} was not raised")

    def open(self) -> BaseCheckpointSaver:
        """A new saver that knows the contract's types."""
        saver = self.make_saver()
        saver.register_types(*application_types())
        return saver

    def again(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Another object on the store, that knows them too."""
        other = self.reopen(saver)
        other.register_types(*application_types())
        return other

    def versioned(self) -> Any:
        """A new saver, if it keeps versions."""
        saver = self.open()
        if not isinstance(saver, HasVersions):
            self.skip("keeps no versions")
        return saver

    def assert_history(
        self, saver: BaseCheckpointSaver, config: RunnableConfig, oldest_first: Sequence[Checkpoint]
    ) -> None:
        """Assert that a history holds exactly these checkpoints, read in every way and by another object too."""
        for reader in (saver, self.again(saver)):
            listed = reader.list(config)
            assert [found.id for found in listed] == [expected.id for expected in reversed(oldest_first)]
            for found, expected in zip(listed, reversed(oldest_first), strict=True):
                same_checkpoint(found, expected)
                one = reader.get(config.replace(checkpoint_id=expected.id))
                assert one is not None
                same_checkpoint(one, expected)
            assert [info.id for info in reader.history(config)] == [found.id for found in listed]
            latest = reader.get(config)
            assert (latest and latest.id) == (oldest_first[-1].id if oldest_first else None)

    @contextmanager
    def unchanged(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> Iterator[None]:
        """Assert that the block changes nothing of a history."""
        before = recorded(saver, config)
        yield
        assert recorded(saver, config) == before
        assert recorded(self.again(saver), config) == before

    # Put, get, list

    def test_an_unknown_thread_is_empty(self) -> None:
        saver = self.open()
        assert [*saver.list(at())] == []
        assert saver.get(at()) is None
        assert saver.get(at("t", "some id")) is None
        assert [*saver.history(at())] == []
        assert dict(saver.get_writes(at())) == {}
        assert saver.tags_of(at()) == ()
        assert [*saver.namespaces("t")] == []

    def test_put_returns_the_config_with_the_new_id_and_all_else_as_it_was(self) -> None:
        saver = self.open()
        config = RunnableConfig("t", checkpoint_ns="n", stream_mode=StreamMode.SNAPSHOTS, metadata={"user": 7})
        checkpoint = made({"x": 1})
        stored = saver.put(config, checkpoint)
        assert stored.checkpoint_id == checkpoint.id
        assert stored.replace(checkpoint_id=None) == config
        found = saver.get(stored)
        assert found is not None
        same_checkpoint(found, checkpoint)

    def test_the_order_is_that_of_writing_not_of_clocks_or_ids(self) -> None:
        saver = self.open()
        now = datetime(2026, 1, 1, tzinfo=UTC)
        checkpoints = [made({"n": n}, id=f"id {9 - n}", created_at=now - timedelta(hours=n)) for n in range(5)]
        for checkpoint in checkpoints:
            saver.put(at(), checkpoint)
        self.assert_history(saver, at(), checkpoints)

    def test_equal_states_are_different_checkpoints(self) -> None:
        saver = self.open()
        checkpoints = [made({"x": [1]}) for _ in range(4)]
        for checkpoint in checkpoints:
            saver.put(at(), checkpoint)
        self.assert_history(saver, at(), checkpoints)

    def test_get_by_id(self) -> None:
        saver = self.open()
        first, second = made({"n": 1}), made({"n": 2})
        saver.put(at("t"), first)
        saver.put(at("other"), second)
        same_checkpoint(saver.get(at("t", first.id)), first)
        assert saver.get(at("t", second.id)) is None
        assert saver.get(at("t", first.id, "elsewhere")) is None
        assert saver.get(at("t", "")) is None

    def test_every_field_survives(self) -> None:
        saver = self.open()
        when = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=5)))
        metadata = {"step": 3, "who": ("a", 1), "when": when, "none": None, "deep": {"list": [1.5, b"x"]}}
        checkpoints = [
            made({"x": 1}, node_id=START, next_node_id="first", id="the id / of \0 mine"),
            made({}, node_id="first", next_node_id=None, parent_id="the id / of \0 mine", created_at=when),
            made({"x": None}, node_id="last", next_node_id=END, metadata=metadata),
        ]
        for checkpoint in checkpoints:
            saver.put(at(), checkpoint)
        self.assert_history(saver, at(), checkpoints)
        found = saver.get(at())
        assert found is not None
        same(found.metadata, metadata)
        assert (found.node_id, found.next_node_id) == ("last", END)

    def test_a_missing_thread_id_is_the_default_thread(self) -> None:
        saver = self.open()
        checkpoint = made({"x": 1})
        saver.put(None, checkpoint)
        assert saver.THREAD_ID_DEFAULT == "$default"
        ways: list[ConfigLike] = [None, RunnableConfig(), {}, {"configurable": {}}, at("$default")]
        for config in ways:
            assert [one.id for one in saver.list(config)] == [checkpoint.id], config
            assert saver.get(config) is not None
        second = made({"x": 2})
        saver.put({"configurable": {}}, second)
        self.assert_history(saver, at("$default"), [checkpoint, second])
        assert saver.get(at("default")) is None

    def test_a_config_may_be_langgraphs(self) -> None:
        saver = self.open()
        where = {"thread_id": "t", "checkpoint_ns": "n"}
        first, second = made({"n": 1}), made({"n": 2})
        stored = saver.put({"configurable": where}, first)
        saver.put({"configurable": where}, second)
        assert stored["configurable"]["checkpoint_id"] == first.id
        same_checkpoint(saver.get({"configurable": {**where, "checkpoint_id": first.id}}), first)
        same_checkpoint(saver.get({"configurable": where}), second)
        same_checkpoint(saver.get(at("t", None, "n")), second)
        replacing = made({"n": 3})
        saver.put({"configurable": {**where, "checkpoint_id": first.id}}, replacing)
        self.assert_history(saver, at("t", None, "n"), [replacing, second])

    # Replacing

    def test_replacing_keeps_the_position(self) -> None:
        for position in range(3):
            saver = self.open()
            checkpoints = [made({"n": n, "list": [*range(n)]}) for n in range(3)]
            for checkpoint in checkpoints:
                saver.put(at(), checkpoint)
            config = at("t", checkpoints[position].id)
            checkpoints[position] = made({"n": "replaced"}, id=checkpoints[position].id, node_id="r")
            assert saver.put(config, checkpoints[position]) == config
            self.assert_history(saver, at(), checkpoints)

    def test_replacing_may_change_the_id(self) -> None:
        saver = self.open()
        checkpoints = [made({"n": n}) for n in range(3)]
        for checkpoint in checkpoints:
            saver.put(at(), checkpoint)
        old, checkpoints[1] = checkpoints[1], made({"n": "new"})
        config = at("t", old.id)
        assert saver.put(config, checkpoints[1]) == config
        self.assert_history(saver, at(), checkpoints)
        assert saver.get(config) is None
        with self.raises(CheckpointNotFoundError):
            saver.put(config, made({"n": "again"}))

    def test_replacing_changes_no_checkpoint_that_grew_from_it(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 8)
        for position in (3, 0, 7):
            replacing = made({"list": ["r"]}, id=checkpoints[position].id)
            saver.put(at("t", checkpoints[position].id), replacing)
            checkpoints[position] = replacing
            self.assert_history(saver, at(), checkpoints)
        following = derived(checkpoints[-1], {"list": ["next"]}, GROWING)
        saver.put(at(), following)
        self.assert_history(saver, at(), [*checkpoints, following])

    def test_replacing_what_is_not_there_changes_nothing(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        with self.unchanged(saver, at()), self.raises(CheckpointNotFoundError) as caught:
            saver.put(at("t", "unknown"), made({"n": 2}))
        assert isinstance(caught.error, LookupError)
        assert caught.error.thread_id == "t"
        with self.raises(CheckpointNotFoundError):
            saver.put(at("never used", "unknown"), made({"n": 2}))
        assert saver.get(at("never used")) is None

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
            for reader in (saver, self.again(saver)):
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
        for reader in (saver, self.again(saver)):
            newest, oldest = reader.list(at())
            same(oldest.state, {"list": [*zoo().values()], **zoo()})
            same(newest.state, {"list": [*zoo().values(), *zoo().values()], **zoo(), "none": 0})

    # What cannot be stored

    def refuses(
        self, saver: BaseCheckpointSaver, checkpoint: Checkpoint, path: str, type_name: str = "Stranger"
    ) -> None:
        """Assert that a checkpoint is refused, and that this changed nothing."""
        with self.unchanged(saver, at()), self.raises(CheckpointSerializationError) as caught:
            saver.put(at(), checkpoint)
        assert isinstance(caught.error, TypeError)
        assert caught.error.path == path
        assert caught.error.type_name.endswith(type_name)

    def test_a_value_that_cannot_be_stored_is_refused_by_its_path(self) -> None:
        saver = self.open()
        first = made({"messages": [1]})
        saver.put(at(), first)
        deep = {"ok": 1, "messages": [{"when": 1}, {"when": 2, "who": [0, Stranger()]}]}
        self.refuses(saver, made(deep), "messages[1].who[1]")
        self.refuses(saver, made({"x": Unregistered()}), "x", "Unregistered")
        self.refuses(saver, made({"x": (1, Stranger)}), "x[1]", "type")
        saver.put(at(), made({"messages": [1, 2]}))
        assert len(saver.list(at())) == 2  # noqa: PLR2004

    def test_a_change_that_cannot_be_stored_is_refused_by_its_path(self) -> None:
        saver = self.open()
        first = made({"list": [1, (2,)], "other": (1,)})
        saver.put(at(), first)
        self.refuses(saver, derived(first, {"list": [3, [Stranger()]]}, GROWING), "list[3][0]")
        self.refuses(saver, derived(first, {"new": {"k": Stranger()}}), "new.k")
        fine = derived(first, {"list": [3]}, GROWING)
        saver.put(at(), fine)
        self.refuses(saver, derived(fine, {"list": [Stranger()]}, GROWING), "list[3]")
        self.assert_history(saver, at(), [first, fine])

    def test_a_replacement_that_cannot_be_stored_is_refused(self) -> None:
        saver = self.open()
        first, second = made({"n": 1}), made({"n": 2})
        saver.put(at(), first)
        saver.put(at(), second)
        with self.unchanged(saver, at()), self.raises(CheckpointSerializationError):
            saver.put(at("t", first.id), made({"n": Stranger()}))

    def test_metadata_and_writes_that_cannot_be_stored_are_refused(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put_writes(at(), {"w": 1})
        with self.unchanged(saver, at()):
            with self.raises(CheckpointSerializationError) as caught:
                saver.put(at(), made({"n": 2}, metadata={"who": Stranger()}))
            assert "who" in caught.error.path
            with self.raises(CheckpointSerializationError) as caught:
                saver.put_writes(at(), {"fine": 1, "bad": [Stranger()]})
            assert "bad[0]" in caught.error.path

    def test_a_refused_checkpoint_makes_no_thread(self) -> None:
        saver = self.open()
        with self.raises(CheckpointSerializationError):
            saver.put(at(), made({"n": Stranger()}))
        assert saver.get(at()) is None
        assert [*saver.threads()] == []

    # Nothing is shared

    def test_changing_what_was_put_changes_nothing(self) -> None:
        saver = self.open()
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
        saver = self.open()
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
            other = self.again(saver)
            checkpoints.append(made({"list": []}))
            _elsewhere(other.put, at(), checkpoints[-1])
            assert len([*iterator]) == len(checkpoints) - 2
        _elsewhere(self.again(saver).release, at())

    # Release

    def test_release_returns_the_history_and_empties_the_thread(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 4)
        saver.put(at("other"), made({"n": 1}))
        tag = saver.release(at())
        assert isinstance(tag, Tag)
        assert tag.thread_id == "t"
        assert len(tag.checkpoints) == len(checkpoints)
        for found, expected in zip(tag.checkpoints, reversed(checkpoints), strict=True):
            same_checkpoint(found, expected)
        self.assert_history(saver, at(), [])
        assert len(saver.list(at("other"))) == 1
        anew = made({"n": "anew"})
        saver.put(at(), anew)
        self.assert_history(saver, at(), [anew])
        same_checkpoint(tag.checkpoints[0], checkpoints[-1])

    def test_releasing_an_empty_thread_gives_an_empty_tag(self) -> None:
        saver = self.open()
        for _ in range(2):
            tag = saver.release(at())
            assert (tag.thread_id, [*tag.checkpoints], tag.version) == ("t", [], None)
        assert saver.get(at()) is None

    def test_release_covers_every_namespace_and_returns_the_root(self) -> None:
        saver = self.open()
        root, inner = made({"n": "root"}), made({"n": "inner"})
        saver.put(at("t"), root)
        saver.put(at("t", None, "n/m"), inner)
        tag = saver.release(at("t", None, "n/m"))
        assert [one.id for one in tag.checkpoints] == [root.id]
        self.assert_history(saver, at("t"), [])
        self.assert_history(saver, at("t", None, "n/m"), [])
        assert [*saver.namespaces("t")] == []

    # Threads and namespaces

    def test_threads_and_namespaces_are_worlds_apart(self) -> None:
        saver = self.open()
        places = [at(thread, None, namespace) for thread in ("t", "u") for namespace in ("", "n", "n/m", "N")]
        histories = [[made({"where": [number, n]}, id=f"id {n}") for n in range(3)] for number in range(len(places))]
        for n in range(3):
            for place, history in zip(places, histories, strict=True):
                saver.put(place, history[n])
                saver.put_writes(place, {"w": n})
        for place, history in zip(places, histories, strict=True):
            self.assert_history(saver, place, history)
        histories[1][0] = made({"where": "replaced"}, id="id 0")
        saver.put(places[1].replace(checkpoint_id="id 0"), histories[1][0])
        for place, history in zip(places, histories, strict=True):
            self.assert_history(saver, place, history)

    def test_namespaces_are_those_that_hold_checkpoints(self) -> None:
        saver = self.open()
        for namespace in ("n/m", "", "n"):
            saver.put(at("t", None, namespace), made({"n": namespace}))
        for reader in (saver, self.again(saver)):
            assert sorted(reader.namespaces("t")) == ["", "n", "n/m"]
            assert sorted(reader.namespaces(at("t", None, "n"))) == ["", "n", "n/m"]
            assert [*reader.namespaces("u")] == []

    def test_any_string_is_a_thread_id(self) -> None:
        saver = self.open()
        for thread in HOSTILE_IDS:
            saver.put(at(thread), made({"id": thread}))
        for reader in (saver, self.again(saver)):
            for thread in HOSTILE_IDS:
                (found,) = reader.list(at(thread))
                same(found.state, {"id": thread})
                assert reader.history(at(thread))[0].thread_id == thread
        for thread in HOSTILE_IDS[::2]:
            assert len(saver.release(at(thread)).checkpoints) == 1
        for number, thread in enumerate(HOSTILE_IDS):
            assert len(saver.list(at(thread))) == number % 2

    def test_any_string_is_a_namespace(self) -> None:
        saver = self.open()
        for namespace in HOSTILE_IDS:
            saver.put(at("t", None, namespace), made({"id": namespace}))
        for reader in (saver, self.again(saver)):
            for namespace in HOSTILE_IDS:
                (found,) = reader.list(at("t", None, namespace))
                same(found.state, {"id": namespace})

    def test_threads_lists_those_that_hold_checkpoints(self) -> None:
        saver = self.open()
        assert [*saver.threads()] == []
        for thread in HOSTILE_IDS:
            saver.put(at(thread), made({"n": 1}))
        saver.put(at("only inside", None, "n"), made({"n": 1}))
        saver.release(at("a"))
        saver.delete("A")
        for reader in (saver, self.again(saver)):
            assert sorted(reader.threads()) == sorted({*HOSTILE_IDS, "only inside"} - {"a", "A"})

    def test_delete_removes_every_namespace(self) -> None:
        saver = self.open()
        for one in ("t", "u", "$default"):
            grow_list(saver, at(one), 3)
            saver.put_writes(at(one), {"w": 1})
        saver.put(at("t", None, "n"), made({"n": 1}))
        saver.put(at("only inside", None, "n"), made({"n": 1}))
        named: list[ThreadLike] = ["t", at("only inside"), None]
        for thread in named:
            assert saver.delete(thread) is True
            assert saver.delete(thread) is False
        assert [*self.again(saver).threads()] == ["u"]
        assert len(saver.list(at("u"))) == 3  # noqa: PLR2004
        for namespace in ("", "n"):
            self.assert_history(saver, at("t", None, namespace), [])
        anew = made({"n": "anew"})
        saver.put(at("t"), anew)
        self.assert_history(saver, at("t"), [anew])
        assert dict(saver.get_writes(at("t"))) == {}

    # History

    def test_history_tells_all_but_the_state(self) -> None:
        saver = self.open()
        checkpoints = [
            made({"n": 1}, node_id=START, next_node_id="x", metadata={"user": "u", "when": date(2026, 1, 1)}),
            made({"n": 2}, node_id="x", next_node_id=None),
            made({"n": 3}, node_id="y", next_node_id=END),
        ]
        for checkpoint in checkpoints:
            saver.put(at("t", None, "n"), checkpoint)
        for reader in (saver, self.again(saver)):
            infos = reader.history(at("t", None, "n"))
            for info, checkpoint in zip(infos, reversed(checkpoints), strict=True):
                assert (info.thread_id, info.checkpoint_ns, info.tags) == ("t", "n", ())
                assert (info.id, info.parent_id) == (checkpoint.id, checkpoint.parent_id)
                assert (info.node_id, info.next_node_id) == (checkpoint.node_id, checkpoint.next_node_id)
                same(info.created_at, checkpoint.created_at)
                same(info.metadata, checkpoint.metadata)
                assert isinstance(info.size, int)
                assert info.size >= 0
            assert [info.status for info in infos] == ["finished", "running", "running"]

    # Writes

    def test_writes_are_merged_in_the_order_of_their_first_recording(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put_writes(at(), {"b": 1, "a": [2]})
        saver.put_writes(at(), {})
        saver.put_writes(at(), {"c": (3,), "b": None})
        for reader in (saver, self.again(saver)):
            same(reader.get_writes(at()), {"b": None, "a": [2], "c": (3,)})

    def test_writes_belong_to_one_checkpoint(self) -> None:
        saver = self.open()
        first, second = made({"n": 1}), made({"n": 2})
        saver.put(at(), first)
        saver.put_writes(at(), {"w": "of the first"})
        saver.put(at(), second)
        assert dict(saver.get_writes(at())) == {}
        saver.put_writes(at(), {"w": "of the second"})
        saver.put_writes(at("t", first.id), {"x": 1})
        for reader in (saver, self.again(saver)):
            same(reader.get_writes(at("t", first.id)), {"w": "of the first", "x": 1})
            same(reader.get_writes(at("t", second.id)), {"w": "of the second"})
            same(reader.get_writes(at()), {"w": "of the second"})
            assert dict(reader.get_writes(at("t", "unknown"))) == {}
            assert [info.id for info in reader.history(at())] == [second.id, first.id]
            same([one.state for one in reader.list(at())], [{"n": 2}, {"n": 1}])

    def test_writes_stay_when_their_checkpoint_is_updated_in_place(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put(at(), made({"n": 2}))
        stored = saver.get(at())
        assert stored is not None
        saver.put_writes(at(), {"w": 1})
        saver.add_tags(at(), "kept")
        stored = saver.get(at())
        assert stored is not None
        saver.put(at("t", stored.id), stored.update_state({"n": 3}, {}))
        for reader in (saver, self.again(saver)):
            same(reader.get_writes(at()), {"w": 1})
            assert reader.tags_of(at()) == ("kept",)
            newest = reader.get(at())
            assert newest is not None
            same(newest.state, {"n": 3})

    def test_writes_beside_no_checkpoint_are_refused(self) -> None:
        saver = self.open()
        with self.raises(CheckpointNotFoundError):
            saver.put_writes(at(), {"w": 1})
        saver.put(at(), made({"n": 1}))
        with self.unchanged(saver, at()), self.raises(CheckpointNotFoundError):
            saver.put_writes(at("t", "unknown"), {"w": 1})

    def test_writes_are_gone_with_their_thread(self) -> None:
        saver = self.open()
        checkpoint = made({"n": 1})
        saver.put(at(), checkpoint)
        saver.put_writes(at(), {"w": 1})
        saver.release(at())
        saver.put(at(), made({"n": 1}, id=checkpoint.id))
        assert dict(saver.get_writes(at())) == {}
        assert dict(self.again(saver).get_writes(at("t", checkpoint.id))) == {}

    # Interrupts

    def test_what_waits_is_found_until_it_is_answered(self) -> None:
        saver = self.open()
        checkpoint = made({"n": 1})
        saver.put(at("t", None, "n"), checkpoint)
        saver.put(at("t"), made({"n": 2}))
        saver.put_writes(at("t", None, "n"), {INTERRUPT + "i1": stop("x", {"q": (1,)}), INTERRUPT + "i2": stop("y")})
        for reader in (saver, self.again(saver)):
            first, second = reader.interrupts("t")
            assert isinstance(first, WaitingInterrupt)
            assert (first.thread_id, first.checkpoint_ns, first.checkpoint_id) == ("t", "n", checkpoint.id)
            assert (first.node_id, first.when, first.id) == ("x", "inside", "i1")
            same(first.payload, {"q": (1,)})
            same(first.created_at, stop()["created_at"])
            assert second.id == "i2"
            assert [info.status for info in reader.history(at("t", None, "n"))] == ["interrupted"]
            assert len(reader.interrupts(at("t"))) == 2  # noqa: PLR2004
        saver.put_writes(at("t", checkpoint.id, "n"), {ANSWER + "i1": None})
        assert [one.id for one in self.again(saver).interrupts("t")] == ["i2"]
        saver.put_writes(at("t", checkpoint.id, "n"), {ANSWER + "i2": "yes"})
        assert [*self.again(saver).interrupts("t")] == []
        assert [info.status for info in saver.history(at("t", None, "n"))] == ["running"]

    def test_only_the_latest_checkpoint_waits(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put_writes(at(), {INTERRUPT + "i": stop()})
        assert len(saver.interrupts("t")) == 1
        saver.put(at(), made({"n": 2}))
        assert [*saver.interrupts("t")] == []
        assert [info.status for info in saver.history(at())] == ["running", "interrupted"]

    def test_what_waits_is_found_in_all_threads(self) -> None:
        saver = self.open()
        for thread in ("t", "u", "v"):
            saver.put(at(thread), made({"n": 1}))
        for thread in ("t", "v"):
            saver.put_writes(at(thread), {INTERRUPT + thread: stop()})
        assert sorted(one.thread_id for one in self.again(saver).interrupts()) == ["t", "v"]
        saver.release(at("t"))
        assert [one.id for one in saver.interrupts()] == ["v"]

    # Tags

    def test_tags(self) -> None:
        saver = self.open()
        first, second = made({"n": 1}, metadata={"k": 1}), made({"n": 2})
        saver.put(at(), first)
        saver.put(at(), second)
        saver.add_tags(at("t", first.id), "good", "best")
        saver.add_tags(at("t", first.id), "good", "last")
        saver.add_tags(at(), "newest")
        for reader in (saver, self.again(saver)):
            assert reader.tags_of(at("t", first.id)) == ("good", "best", "last")
            assert reader.tags_of(at()) == ("newest",)
            newest, oldest = reader.history(at())
            assert (newest.tags, oldest.tags) == (("newest",), ("good", "best", "last"))
            same(oldest.metadata, {"k": 1})
        saver.remove_tags(at("t", first.id), "best", "never there")
        saver.remove_tags(at(), "newest")
        for reader in (saver, self.again(saver)):
            assert reader.tags_of(at("t", first.id)) == ("good", "last")
            assert reader.tags_of(at()) == ()
            assert reader.tags_of(at("t", "unknown")) == ()
        same([one.state for one in saver.list(at())], [{"n": 2}, {"n": 1}])

    def test_tags_of_no_checkpoint_are_refused(self) -> None:
        saver = self.open()
        for config in (at(), at("t", "unknown")):
            with self.raises(CheckpointNotFoundError):
                saver.add_tags(config, "tag")
            with self.raises(CheckpointNotFoundError):
                saver.remove_tags(config, "tag")
        assert saver.get(at()) is None

    # Copy

    def test_copy_copies_all_of_the_active_history(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at("t"), 5)
        inner = made({"n": "inner", "note": Note("n")}, metadata={"k": (1,)})
        saver.put(at("t", None, "n"), inner)
        saver.put_writes(at("t", checkpoints[1].id), {"w": (1,)})
        saver.add_tags(at("t", checkpoints[2].id), "tag")
        with self.unchanged(saver, at("t")):
            saver.copy("t", at("u"))
        self.assert_history(saver, at("u"), checkpoints)
        self.assert_history(saver, at("u", None, "n"), [inner])
        same(saver.get_writes(at("u", checkpoints[1].id)), {"w": (1,)})
        assert saver.tags_of(at("u", checkpoints[2].id)) == ("tag",)
        following = derived(checkpoints[-1], {"list": ["copy"]}, GROWING)
        saver.put(at("u"), following)
        saver.put_writes(at("u", checkpoints[1].id), {"w": 2})
        self.assert_history(saver, at("t"), checkpoints)
        same(saver.get_writes(at("t", checkpoints[1].id)), {"w": (1,)})
        saver.delete("t")
        self.assert_history(saver, at("u"), [*checkpoints, following])

    def test_copy_of_nothing_or_onto_something_changes_nothing(self) -> None:
        saver = self.open()
        saver.put(at("t"), made({"n": 1}))
        saver.put(at("u"), made({"n": 2}))
        with self.unchanged(saver, at("t")), self.unchanged(saver, at("u")):
            with self.raises(CheckpointNotFoundError):
                saver.copy("unknown", "new")
            with self.raises(CheckpointConflictError):
                saver.copy("t", "u")
            with self.raises(CheckpointConflictError):
                saver.copy("t", "t")
        assert saver.get(at("new")) is None

    # Search

    def test_search_compares_metadata(self) -> None:
        saver = self.open()
        for number in range(4):
            metadata = {"user": "u", "n": number, "none": None, "deep": {"a": [number % 2]}}
            saver.put(at("t"), made({"n": number}, metadata=metadata))
        saver.put(at("t", None, "n"), made({"n": 5}, metadata={"user": "u", "n": 5}))
        saver.put(at("u"), made({"n": 6}, metadata={"user": "v", "n": 6}))
        for reader in (saver, self.again(saver)):
            found = reader.search({"user": "u"}, thread_id="t")
            assert sorted(info.metadata["n"] for info in found) == [0, 1, 2, 3, 5]
            root = [info.metadata["n"] for info in found if not info.checkpoint_ns]
            assert root == [3, 2, 1, 0]
            assert [info.metadata["n"] for info in reader.search({"deep": {"a": [1]}}, thread_id="t")] == [3, 1]
            assert [info.metadata["n"] for info in reader.search({"n": 2, "user": "u"}, thread_id="t")] == [2]
            assert len(reader.search({"none": None}, thread_id="t")) == 4  # noqa: PLR2004
            assert [*reader.search({"missing": None}, thread_id="t")] == []
            assert [*reader.search({"n": 2, "user": "v"}, thread_id="t")] == []
            assert [*reader.search({"user": "u"}, thread_id="u")] == []

    def test_search_stops_at_the_limit(self) -> None:
        saver = self.open()
        for number in range(4):
            saver.put(at("t"), made({}, metadata={"user": "u", "n": number}))
        assert [info.metadata["n"] for info in saver.search({"user": "u"}, thread_id="t", limit=2)] == [3, 2]
        assert [*saver.search({"user": "u"}, thread_id="t", limit=0)] == []
        assert len(saver.search({}, thread_id=at("t"), limit=9)) == 4  # noqa: PLR2004

    def test_search_in_all_threads(self) -> None:
        saver = self.open()
        for thread in ("t", "u"):
            saver.put(at(thread), made({}, metadata={"user": "u"}))
        saver.put(at("v"), made({}))
        assert sorted(info.thread_id for info in saver.search({"user": "u"})) == ["t", "u"]
        assert len(saver.search({"user": "u"}, limit=1)) == 1

    # Prune

    def test_prune_keeps_the_last(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 6)
        assert saver.prune("t", keep_last=2) == 4  # noqa: PLR2004
        self.assert_history(saver, at(), checkpoints[4:])
        assert saver.prune("t", keep_last=2) == 0
        following = derived(checkpoints[-1], {"list": ["next"]}, GROWING)
        saver.put(at(), following)
        self.assert_history(saver, at(), [*checkpoints[4:], following])
        if isinstance(saver, HasVersions):
            assert [*saver.versions_by_thread_id("t")] == []

    def test_prune_goes_by_age(self) -> None:
        now = datetime(2026, 1, 10, tzinfo=UTC)
        ages = [9, 1, 5, 7, 6]  # days; the clock went back and forth
        saver = self.open()
        checkpoints = [made({"n": age}, created_at=now - timedelta(days=age)) for age in ages]
        for checkpoint in checkpoints:
            saver.put(at(), checkpoint)
        before = now - timedelta(days=5)
        assert saver.prune("t", older_than=before, keep_last=3) == 1
        self.assert_history(saver, at(), checkpoints[1:])
        assert saver.prune("t", older_than=before) == 1
        # The latest never goes, and what is as old as the limit is not older.
        self.assert_history(saver, at(), [checkpoints[1], checkpoints[2], checkpoints[4]])

    def test_prune_keeps_what_is_tagged_or_waits(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 6)
        saver.add_tags(at("t", checkpoints[0].id), "keep")
        saver.add_tags(at("t", checkpoints[1].id), "other")
        saver.put_writes(at("t", checkpoints[2].id), {INTERRUPT + "i": stop()})
        saver.put_writes(at("t", checkpoints[3].id), {INTERRUPT + "i": stop(), ANSWER + "i": 1})
        assert saver.prune("t", keep_last=1, keep_tags=["keep"]) == 3 - 0
        self.assert_history_ids(saver, [checkpoints[0], checkpoints[2], checkpoints[5]])
        assert saver.tags_of(at("t", checkpoints[0].id)) == ("keep",)
        same(saver.get_writes(at("t", checkpoints[2].id)), {INTERRUPT + "i": stop()})
        assert saver.prune("t", keep_last=1, keep_interrupted=False) == 2  # noqa: PLR2004
        self.assert_history_ids(saver, [checkpoints[5]])

    def assert_history_ids(self, saver: BaseCheckpointSaver, oldest_first: Sequence[Checkpoint]) -> None:
        """As `assert_history`, for checkpoints beside which something is recorded."""
        for reader in (saver, self.again(saver)):
            listed = reader.list(at())
            assert [one.id for one in listed] == [one.id for one in reversed(oldest_first)]
            for found, expected in zip(listed, reversed(oldest_first), strict=True):
                same(found.state, expected.state)

    def test_prune_covers_every_namespace_each_for_itself(self) -> None:
        saver = self.open()
        root = grow_list(saver, at("t"), 3)
        inner = grow_list(saver, at("t", None, "n"), 4)
        assert saver.prune(at("t"), keep_last=2) == 3  # noqa: PLR2004
        self.assert_history(saver, at("t"), root[1:])
        self.assert_history(saver, at("t", None, "n"), inner[2:])

    def test_prune_covers_every_thread(self) -> None:
        saver = self.open()
        histories = {thread: grow_list(saver, at(thread), 3) for thread in ("t", "u")}
        assert saver.prune("unknown", keep_last=1) == 0
        assert saver.prune(keep_last=1) == 4  # noqa: PLR2004
        for thread, history in histories.items():
            self.assert_history(saver, at(thread), history[2:])

    def test_prune_wants_to_be_told_what(self) -> None:
        for thread in ("t", "u"):
            saver = self.open()
            grow_list(saver, at("t"), 2)
            with self.raises(ValueError):
                saver.prune(thread)
            with self.raises(ValueError):
                saver.prune(thread, keep_last=0)
            with self.raises(ValueError):
                saver.prune(thread, keep_tags=["tag"])
            assert len(saver.list(at("t"))) == 2  # noqa: PLR2004

    # Size

    def test_size(self) -> None:
        saver = self.open()
        assert saver.size("t") == 0
        saver.put(at("t"), made({"text": "x" * 5_000}))
        one = saver.size("t")
        assert one >= 5_000  # noqa: PLR2004
        saver.put(at("t"), made({"text": "y" * 5_000}))
        two = saver.size("t")
        assert two >= 10_000  # noqa: PLR2004
        saver.put(at("t", None, "n"), made({"text": "z" * 5_000}))
        assert saver.size(at("t")) >= two + 5_000
        saver.put(at("u"), made({"text": "u" * 5_000}))
        assert saver.size() >= saver.size("t") + saver.size("u")
        saver.delete("t")
        assert saver.size("t") == 0

    # The run lock

    def test_the_run_lock_excludes_other_runs(self) -> None:
        saver = self.open()
        other = self.again(saver)
        for namespace in ("", "n"):
            config = at("t", None, namespace)
            with saver.run_lock(at("t")):
                with self.raises(ThreadBusyError) as caught:
                    _elsewhere(_hold, other, config, 0.05)
                assert isinstance(caught.error, TimeoutError)
                assert caught.error.thread_id == "t"
                assert caught.error.holder
                assert caught.error.waited >= 0.04  # noqa: PLR2004 - clocks are coarse
                _elsewhere(_hold, other, at("u"), 0)
            _elsewhere(_hold, other, config, 0)

    def test_the_run_lock_is_let_go_on_failure(self) -> None:
        saver = self.open()
        with self.raises(KeyError), saver.run_lock(at()):
            _fail()
        _elsewhere(_hold, saver, at(), 0)

    def test_whoever_waits_for_the_run_lock_gets_it(self) -> None:
        saver = self.open()
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            _hold(saver, at(), PATIENCE)

        with ThreadPoolExecutor(1) as pool:
            with saver.run_lock(at()):
                waiter = pool.submit(wait)
                assert waiting.wait(PATIENCE)
                assert not waiter.done()
            waiter.result(PATIENCE)

    def test_the_nodes_of_a_run_may_enter_its_lock_again(self) -> None:
        saver = self.open()
        other = self.again(saver)
        saver.put(at(), made({"n": 1}))
        with saver.run_lock(at()), _visit(saver, at()):
            _hold(saver, at("t", None, "n"), 0)
            _hold(other, at(), 0)
            with self.raises(ThreadBusyError):
                _elsewhere(_hold, other, at(), 0)
            assert len(saver.release(at()).checkpoints) == 1
            assert other.delete("t") is False or isinstance(saver, HasVersions)
            with self.raises(ThreadBusyError):
                _elsewhere(_hold, other, at(), 0)

    def test_whoever_holds_the_run_lock_may_release_copy_and_delete(self) -> None:
        saver = self.open()
        saver.put(at("t"), made({"n": 1}))
        with saver.run_lock(at("t")):
            saver.copy("t", "u")
            assert len(saver.release(at("t")).checkpoints) == 1
            saver.put(at("t"), made({"n": 2}))
            assert saver.delete("t") is True
            with self.raises(ThreadBusyError):
                _elsewhere(_hold, saver, at("t"), 0)
        assert [*saver.threads()] == ["u"]

    def test_the_key_of_the_run_lock_tells_threads_apart_not_objects(self) -> None:
        saver = self.open()
        other = self.again(saver)
        assert saver.run_lock_key(at("t")) == other.run_lock_key(at("t", "id", "n"))
        assert saver.run_lock_key(at("t")) != saver.run_lock_key(at("u"))
        assert saver.run_lock_key(None) == saver.run_lock_key(at("$default"))
        assert self.make_saver().run_lock_key(at("t")) != saver.run_lock_key(at("t"))

    def test_readers_and_puts_do_not_wait_for_a_run(self) -> None:
        saver = self.open()
        with saver.run_lock(at()):
            other = self.again(saver)
            _elsewhere(lambda: other.put(at(), made({"n": 1})))
            assert _elsewhere(lambda: len(other.list(at()))) == 1
            assert _elsewhere(lambda: other.get(at())) is not None
            _elsewhere(lambda: other.put_writes(at(), {"w": 1}))

    def test_release_delete_and_copy_wait_for_a_run(self) -> None:
        calls: list[Callable[[BaseCheckpointSaver], object]] = [
            lambda saver: saver.release(at("t")),
            lambda saver: saver.delete("t"),
            lambda saver: saver.copy("t", "new"),
            lambda saver: saver.copy("u", "t"),
        ]
        for call in calls:
            saver = self.open()
            saver.put(at("u"), made({"n": 2}))
            if call is not calls[-1]:
                saver.put(at("t"), made({"n": 1}))
            with ThreadPoolExecutor(1) as pool:
                with saver.run_lock(at("t")):
                    waiter = pool.submit(call, self.again(saver))
                    with self.raises(TimeoutError):
                        waiter.result(0.1)
                    assert len(saver.list(at("t"))) == (call is not calls[-1])
                waiter.result(PATIENCE)

    # Async

    def test_async_twins_do_the_same(self) -> None:
        _run(self._walk_the_async_twins(self.open()))

    async def _walk_the_async_twins(self, saver: BaseCheckpointSaver) -> None:
        first, second = made({"n": 1}, metadata={"k": 1}), made({"n": 2})
        stored = await saver.aput(at(), first)
        assert stored == at("t", first.id)
        await saver.aput(at(), second)
        assert [one.id for one in await saver.alist(at())] == [second.id, first.id]
        same_checkpoint(await saver.aget(stored), first)
        same_checkpoint(await saver.aget(at()), second)
        assert [one.id for one in await saver.ahistory(at())] == [second.id, first.id]
        assert [*await saver.anamespaces("t")] == [""]
        await saver.aput_writes(at(), {INTERRUPT + "i": stop()})
        same(await saver.aget_writes(at()), {INTERRUPT + "i": stop()})
        assert [one.id for one in await saver.ainterrupts("t")] == ["i"]
        await saver.aadd_tags(stored, "one", "two")
        await saver.aremove_tags(stored, "one")
        assert await saver.atags_of(stored) == ("two",)
        assert [one.id for one in await saver.asearch({"k": 1}, thread_id="t", limit=5)] == [first.id]
        await saver.acopy("t", "u")
        assert await saver.aprune("t", keep_last=1, keep_tags=("two",)) == 0
        assert await saver.aprune("t", keep_last=1) == 1
        with self.raises(ValueError):
            await saver.aprune("t")
        with self.raises(CheckpointNotFoundError):
            await saver.aput(at("t", "unknown"), second)
        tag = await saver.arelease(at())
        assert [one.id for one in tag.checkpoints] == [second.id]
        assert await saver.adelete("u") is True
        assert await saver.aget(at("u")) is None

    def test_async_twins_of_what_needs_a_list_of_threads(self) -> None:
        saver = self.open()

        async def walk() -> None:
            await saver.aput(at(), made({"n": 1}))
            assert [*await saver.athreads()] == ["t"]
            assert [*await saver.athreads(released=True)] == ["t"]
            assert await saver.asize("t") > 0
            assert await saver.asize() > 0
            assert [*await saver.ainterrupts()] == []

        _run(walk())

    # Many at once

    def test_nothing_is_lost_when_many_write_one_thread(self) -> None:
        saver = self.open()
        savers = [saver if n % 2 else self.again(saver) for n in range(6)]

        def write(number: int) -> list[str]:
            ids = []
            for n in range(10):
                stored = savers[number].put(at(), made({"who": [number, n], "text": "x" * n}))
                ids.append(stored.checkpoint_id or "")
                seen = savers[number].list(at())
                assert ids[-1] in {one.id for one in seen}
                same(next(one for one in seen if one.id == ids[-1]).state["who"], [number, n])
            return ids

        written = _all_at_once(write, len(savers))
        for reader in (saver, self.again(saver)):
            order = [one.id for one in reversed(reader.list(at()))]
            assert len(order) == len(set(order)) == 60  # noqa: PLR2004
            for number, ids in enumerate(written):
                assert [one for one in order if one in set(ids)] == ids, "each writer's own order stays"
                for n, one in enumerate(ids):
                    found = reader.get(at("t", one))
                    assert found is not None
                    same(found.state, {"who": [number, n], "text": "x" * n})

    def test_nothing_is_mixed_up_when_many_write_many_threads(self) -> None:
        saver = self.open()

        def write(number: int) -> list[Checkpoint]:
            return grow_list(saver, at(f"thread {number}"), 12)

        for number, history in enumerate(_all_at_once(write, 8)):
            self.assert_history(saver, at(f"thread {number}"), history)

    def test_no_write_is_lost_when_many_record_beside_one_checkpoint(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))

        def write(number: int) -> None:
            for n in range(5):
                saver.put_writes(at(), {f"{number} {n}": n})
                saver.add_tags(at(), f"{number} {n}")

        _all_at_once(write, 6)
        expected = sorted(f"{number} {n}" for number in range(6) for n in range(5))
        assert sorted(self.again(saver).get_writes(at())) == expected
        assert sorted(self.again(saver).tags_of(at())) == expected

    # Another object, another process

    def test_two_objects_on_one_store_see_each_other_at_once(self) -> None:
        saver = self.open()
        other = self.again(saver)
        checkpoints: list[Checkpoint] = []
        for number in range(6):
            writer, reader = (saver, other) if number % 2 else (other, saver)
            checkpoints.append(made({"list": [*range(number)]}))
            writer.put(at(), checkpoints[-1])
            same_checkpoint(reader.get(at()), checkpoints[-1])
            writer.put_writes(at(), {"w": number})
            same(reader.get_writes(at()), {"w": number})
            assert len(reader.list(at())) == number + 1
        following = derived(checkpoints[-1], {"list": ["x"]}, GROWING)
        saver.put(at(), following)
        last = derived(following, {"list": ["y"]}, GROWING)
        other.put(at(), last)
        same_checkpoint(saver.get(at()), last)
        checkpoints[0] = made({"list": "replaced"}, id=checkpoints[0].id)
        other.put(at("t", checkpoints[0].id), checkpoints[0])
        same_checkpoint(saver.get(at("t", checkpoints[0].id)), checkpoints[0])
        assert len(other.release(at()).checkpoints) == 8  # noqa: PLR2004
        assert saver.get(at()) is None
        anew = made({"list": "anew"})
        saver.put(at(), anew)
        same_checkpoint(other.get(at()), anew)

    def test_what_was_written_behind_its_back_is_read(self) -> None:
        saver = self.open()
        first, planted = made({"list": [1, (2,)]}), made({"list": [1, (2,), 3]})
        saver.put(at(), first)
        if not self.plant(saver, at(), planted):
            self.skip("there is no other way to write")
        self.assert_history(saver, at(), [first, planted])

    def test_what_it_writes_is_there_for_others(self) -> None:
        saver = self.open()
        grow_list(saver, at(), 3)
        states = self.peek(saver, at())
        if states is None:
            self.skip("there is no other way to read")
        assert [state["list"] for state in states] == [[0, 1, 2], [0, 1], [0]]

    # Versions

    def test_a_release_keeps_a_version(self) -> None:
        saver = self.versioned()
        first = grow_list(saver, at(), 3)
        assert saver.release(at()).version == 1
        second = made({"n": "second"})
        saver.put(at(), second)
        saver.put(at("t", None, "n"), made({"n": "inner"}))
        assert saver.release(at()).version == 2  # noqa: PLR2004
        for reader in (saver, self.again(saver)):
            assert isinstance(reader, HasVersions)
            assert [*reader.versions_by_thread_id("t")] == [1, 2]
            assert [*reader.versions_by_thread_id(at("t"))] == [1, 2]
            assert reader.last_version_by_thread_id("t") == 2  # noqa: PLR2004
            assert reader.get_version(at("t")) == "2"
            tag = reader.tag(at("t"), 1)
            assert (tag.thread_id, tag.version, len(tag.checkpoints)) == ("t", 1, 3)
            for found, expected in zip(tag.checkpoints, reversed(first), strict=True):
                same_checkpoint(found, expected)
            for version in (2, None):
                tag = reader.tag(at("t"), version)
                assert (tag.version, len(tag.checkpoints)) == (2, 1)
                same_checkpoint(tag.checkpoints[0], second)

    def test_an_empty_release_makes_no_version(self) -> None:
        saver = self.versioned()
        assert saver.release(at()).version is None
        saver.put(at(), made({"n": 1}))
        saver.release(at())
        assert saver.release(at()).version is None
        assert [*self.again(saver).versions_by_thread_id("t")] == [1]  # type: ignore[attr-defined]

    def test_an_unknown_version_is_an_error(self) -> None:
        saver = self.versioned()
        assert [*saver.versions_by_thread_id("t")] == []
        assert saver.last_version_by_thread_id("t") is None
        assert saver.get_version(at()) is None
        with self.raises(CheckpointNotFoundError):
            saver.tag(at())
        saver.put(at(), made({"n": 1}))
        saver.release(at())
        for version in (0, 2, -1, 99):
            with self.raises(CheckpointNotFoundError):
                saver.tag(at(), version)
        with self.raises(CheckpointNotFoundError):
            saver.tag(at("t-v1"), 1)

    def test_versions_of_threads_are_apart(self) -> None:
        saver = self.versioned()
        for thread in HOSTILE_IDS:
            saver.put(at(thread), made({"id": thread}))
            saver.release(at(thread))
        for thread in HOSTILE_IDS:
            assert [*saver.versions_by_thread_id(thread)] == [1]
            same(saver.tag(at(thread), 1).checkpoints[0].state, {"id": thread})
            assert saver.get(at(thread)) is None

    def test_released_threads_are_listed_on_demand_until_deleted(self) -> None:
        saver = self.versioned()
        for thread in ("released", "both", "live"):
            saver.put(at(thread), made({"n": 1}))
        saver.release(at("released"))
        saver.release(at("both"))
        saver.put(at("both"), made({"n": 2}))
        assert sorted(saver.threads()) == ["both", "live"]
        assert sorted(self.again(saver).threads(released=True)) == ["both", "live", "released"]
        assert saver.size("released") > 0
        assert saver.delete("released") is True
        assert saver.delete("released") is False
        assert [*saver.versions_by_thread_id("released")] == []
        assert sorted(saver.threads(released=True)) == ["both", "live"]
        with self.raises(CheckpointNotFoundError):
            saver.tag(at("released"), 1)
        saver.put(at("released"), made({"n": 3}))
        assert saver.release(at("released")).version == 1

    def test_copy_takes_no_versions_along_and_leaves_those_of_the_target(self) -> None:
        saver = self.versioned()
        for thread in ("t", "u"):
            saver.put(at(thread), made({"n": thread}))
            saver.release(at(thread))
        saver.put(at("t"), made({"n": 2}))
        saver.release(at("t"))
        saver.put(at("t"), made({"n": 3}))
        saver.copy("t", "u")
        assert [*saver.versions_by_thread_id("u")] == [1]
        same(saver.tag(at("u")).checkpoints[0].state, {"n": "u"})
        assert saver.release(at("u")).version == 2  # noqa: PLR2004

    def test_the_old_names_of_versions(self) -> None:
        saver = self.versioned()
        saver.put(at(), made({"n": 1}))
        saver.release(at())
        assert [*saver.versionsByThreadId("t")] == [1]
        assert saver.lastVersionByThreadId("t") == 1
        assert saver.getVersion(at()) == "1"


# --- helpers ----------------------------------------------------------------------------------------------------------


def _mutables(checkpoint: Checkpoint) -> list[Any]:
    return _inside(checkpoint.state) + _inside(checkpoint.metadata)


def _inside(value: Any) -> list[Any]:
    """Every list, dict and Note below a value, itself included."""
    found = [value] if isinstance(value, (list, dict, Note)) else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return found + [one for part in parts for one in _inside(part)]


def _deface(*values: Any) -> None:
    """Change what can be changed; what is read-only says so."""
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


def _fail() -> None:
    raise KeyError


def _hold(saver: BaseCheckpointSaver, config: RunnableConfig, timeout: float) -> None:
    with saver.run_lock(config, timeout):
        pass


@contextmanager
def _visit(saver: BaseCheckpointSaver, config: RunnableConfig) -> Iterator[None]:
    """As inside a node of a run that holds the thread."""
    token = CURRENT.set(Visit("node", (), frozenset({saver.run_lock_key(config)})))
    try:
        yield
    finally:
        CURRENT.reset(token)


R = TypeVar("R")


def _elsewhere(call: Callable[..., R], *args: Any) -> R:
    """Call in another thread, as code of nobody's run."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result(PATIENCE)


def _all_at_once(call: Callable[[int], R], count: int) -> list[R]:
    start = threading.Barrier(count)

    def run(number: int) -> R:
        start.wait(PATIENCE)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(run, range(count))]


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    import asyncio

    asyncio.run(coroutine)
