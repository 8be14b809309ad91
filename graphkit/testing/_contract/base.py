"""The hooks of the contract, which a subclass implements, and the tools of its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar
from unittest import SkipTest

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import ConfigLike, RunnableConfig
from graphkit._records.output import CheckpointInfo, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions, Quality
from graphkit.testing._values import (
    CONFIG,
    application_types,
    assert_equal,
    assert_not_none,
    assert_same,
    assert_same_checkpoint,
)

E = TypeVar("E", bound=BaseException)
R = TypeVar("R")

TIMEOUT: Final = 30.0
"""Seconds to wait for an expected event; only a failing saver makes a test wait this long."""


class Caught(Generic[E]):
    """The error that `SaverContract.raises` caught; `error` is set at the end of the block."""

    error: E


class HistoryContent(NamedTuple):
    """Everything that a reader sees of a history; equal contents prove that nothing changed."""

    checkpoints: Sequence[Checkpoint]
    history: Sequence[CheckpointInfo]
    writes: list[Mapping[str, Any]]


def read_everything(saver: BaseCheckpointSaver, config: RunnableConfig) -> HistoryContent:
    """Read everything of a history."""
    checkpoints = [*saver.list(config)]
    writes = []
    for checkpoint in checkpoints:
        checkpoint_config = config.replace(checkpoint_id=checkpoint.id)
        writes.append(saver.get_writes(checkpoint_config))

    # The size of a checkpoint may depend on where it is stored, which is not part of its content.
    history = [info._replace(size=0) for info in saver.history(config)]
    return HistoryContent(checkpoints=checkpoints, history=history, writes=writes)


def get_ids(records: Iterable[Checkpoint | CheckpointInfo | WaitingInterrupt]) -> list[str]:
    """Return the ids of checkpoints, infos or interrupts, in their order."""
    return [record.id for record in records]


def assert_ids(
    got: Iterable[Checkpoint | CheckpointInfo],
    expected: Iterable[Checkpoint],
    what: str = "ids",
) -> None:
    """Assert that checkpoints or infos have the ids of the expected checkpoints, in this order."""
    assert_equal(get_ids(got), get_ids(expected), what)


def assert_count(got: Sized, expected: int, what: str = "count") -> None:
    """Assert how many items a collection has."""
    assert_equal(len(got), expected, what)


def assert_threads(saver: BaseCheckpointSaver, *expected: str, released: bool = False) -> None:
    """Assert that a saver lists exactly these threads, in any order."""
    threads = saver.threads(released=released)
    assert_equal(sorted(threads), sorted(expected), "threads")


def get_statuses(infos: Iterable[CheckpointInfo]) -> list[str]:
    """Return the status of each info, in their order."""
    return [info.status for info in infos]


def assert_statuses(saver: BaseCheckpointSaver, config: RunnableConfig, *expected: str) -> None:
    """Assert the status of each checkpoint of a history, newest first."""
    infos = saver.history(config)
    assert_equal(get_statuses(infos), [*expected], "statuses")


def assert_interrupts(saver: BaseCheckpointSaver, *expected: str) -> None:
    """Assert the ids of the pending interrupts of the thread "t"."""
    interrupts = saver.interrupts("t")
    assert_equal(get_ids(interrupts), [*expected], "interrupts")


def get_checkpoint(saver: BaseCheckpointSaver, config: RunnableConfig = CONFIG) -> Checkpoint:
    """Return a checkpoint that must exist."""
    return assert_not_none(saver.get(config))


def assert_checkpoint(saver: BaseCheckpointSaver, config: ConfigLike, expected: Checkpoint) -> None:
    """Assert that `get` returns this checkpoint."""
    assert_same_checkpoint(saver.get(config), expected)


def assert_missing(saver: BaseCheckpointSaver, config: RunnableConfig = CONFIG) -> None:
    """Assert that `get` returns None."""
    assert_same(saver.get(config), None)


def assert_state(saver: BaseCheckpointSaver, config: RunnableConfig, expected: Mapping[str, Any]) -> None:
    """Assert that `get` returns a checkpoint with this state."""
    checkpoint = get_checkpoint(saver, config)
    assert_same(checkpoint.state, expected, "state")


def assert_writes(saver: BaseCheckpointSaver, config: RunnableConfig, expected: Mapping[str, Any]) -> None:
    """Assert that a checkpoint has exactly these pending writes, in this order."""
    writes = saver.get_writes(config)
    assert_same(writes, expected, "pending writes")


def assert_no_writes(saver: BaseCheckpointSaver, config: RunnableConfig) -> None:
    """Assert that a checkpoint has no pending writes; any empty mapping will do."""
    assert_equal(dict(saver.get_writes(config)), {}, "pending writes")


def assert_tags(saver: BaseCheckpointSaver, config: RunnableConfig, *expected: str) -> None:
    """Assert that a checkpoint has exactly these tags, in this order."""
    assert_equal(saver.tags_of(config), expected, "tags")


def assert_checkpoints(got: Sequence[Checkpoint], oldest_first: Sequence[Checkpoint]) -> None:
    """Assert that checkpoints, newest first, equal the expected ones, oldest first."""
    newest_first = oldest_first[::-1]
    assert_equal(get_ids(got), get_ids(newest_first), "ids")

    for checkpoint, expected in zip(got, newest_first, strict=True):
        assert_same_checkpoint(checkpoint, expected)


class ContractTests:
    """The base class of the tests of each subject."""

    # Hooks

    def make_saver(self) -> BaseCheckpointSaver:
        """Return a saver on a new, empty store."""
        raise NotImplementedError

    def reopen(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Return another saver on the same store, as another process would have.

        The first stays in use. Return `saver` if the store is the object itself.
        """
        return saver

    def plant(self, saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint) -> bool:  # noqa: ARG002
        """Write a checkpoint as the newest without the saver; False if that is impossible."""
        return False

    def peek(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> Sequence[Mapping[str, Any]] | None:  # noqa: ARG002
        """Return the states of a history, newest first, read without the saver; None if impossible."""
        return None

    # Tools

    def skip(self, reason: str) -> NoReturn:
        """Skip the test, under pytest and unittest."""
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

    def open(self, *needed: Quality) -> BaseCheckpointSaver:
        """Return a new saver that knows the contract's types.

        Skip the test if the saver lacks a needed capability.
        """
        saver = self.make_saver()
        for name in needed:
            if not getattr(saver, name):
                self.skip(f"the saver does not declare {name}")

        saver.register_types(*application_types())
        return saver

    def open_again(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Return another saver on the same store that knows the contract's types."""
        other = self.reopen(saver)
        other.register_types(*application_types())
        return other

    def open_two(self, *needed: Quality) -> tuple[BaseCheckpointSaver, BaseCheckpointSaver]:
        """Return two savers on one new store; see `open`."""
        saver = self.open(*needed)
        return saver, self.open_again(saver)

    def readers_of(self, saver: BaseCheckpointSaver) -> tuple[BaseCheckpointSaver, BaseCheckpointSaver]:
        """Return the saver that wrote and another one on its store; both must read the same."""
        return saver, self.open_again(saver)

    def open_versioned(self, *needed: Quality) -> Any:
        """Return a new saver that keeps versions; skip the test if it keeps none."""
        saver = self.open(*needed)
        if not isinstance(saver, HasVersions):
            self.skip("keeps no versions")
        return saver

    def assert_history(
        self, saver: BaseCheckpointSaver, config: RunnableConfig, oldest_first: Sequence[Checkpoint]
    ) -> None:
        """Assert that a history holds exactly these checkpoints.

        Reads the history in every way, through this object and another one.
        """
        newest_first = oldest_first[::-1]
        expected_ids = get_ids(newest_first)
        newest_id = expected_ids[0] if expected_ids else None

        for reader in self.readers_of(saver):
            listed = reader.list(config)
            assert_equal(get_ids(listed), expected_ids, "the ids of list")

            infos = reader.history(config)
            assert_equal(get_ids(infos), expected_ids, "the ids of history")

            for checkpoint, expected in zip(listed, newest_first, strict=True):
                assert_same_checkpoint(checkpoint, expected)

                checkpoint_config = config.replace(checkpoint_id=expected.id)
                assert_checkpoint(reader, checkpoint_config, expected)

            latest = reader.get(config)
            latest_id = None if latest is None else latest.id
            assert_equal(latest_id, newest_id, "the id of get")

    @contextmanager
    def raises_without_change(self, saver: BaseCheckpointSaver, kind: type[E]) -> Iterator[Caught[E]]:
        """Assert that the block raises an error and changes nothing of the thread "t"."""
        with self.assert_unchanged(saver, CONFIG), self.raises(kind) as caught:
            yield caught

    @contextmanager
    def assert_unchanged(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> Iterator[None]:
        """Assert that the block changes nothing of a history."""
        before = read_everything(saver, config)
        yield
        for reader in self.readers_of(saver):
            after = read_everything(reader, config)
            assert_equal(after, before, "the history")


def call_in_thread(call: Callable[..., R], *args: Any) -> R:
    """Call a function in another thread, outside of any run."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result(TIMEOUT)
