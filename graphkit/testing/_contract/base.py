"""The hooks of the contract suite, which subclasses override, and the tools of its tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar
from unittest import SkipTest

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import Quality
from graphkit._saver.versions import HasVersions
from graphkit.testing._values import application_types, same_checkpoint

E = TypeVar("E", bound=BaseException)
R = TypeVar("R")

PATIENCE: Final = 30.0
"""Seconds to wait for an event that must happen. Only a failing saver takes as long."""


class Caught(Generic[E]):
    """What `SaverContract.raises` has caught. `error` is set when the block ends."""

    error: E


class Everything(NamedTuple):
    """Everything that can be read of a history. Two of them are compared to prove that nothing was changed."""

    checkpoints: Sequence[Checkpoint]
    history: Sequence[CheckpointInfo]
    writes: list[Mapping[str, Any]]


def read_everything(saver: BaseCheckpointSaver, config: RunnableConfig) -> Everything:
    """Return everything that can be read of a history."""
    listed = [*saver.list(config)]
    ids = [checkpoint.id for checkpoint in listed]
    writes = [saver.get_writes(config.replace(checkpoint_id=one)) for one in ids]
    # Without sizes: they may depend on where a checkpoint is stored.
    return Everything(listed, [info._replace(size=0) for info in saver.history(config)], writes)


class SaverTests:
    """The base class of the tests of one subject."""

    # Hooks

    def make_saver(self) -> BaseCheckpointSaver:
        """Return a saver on a new, empty store."""
        raise NotImplementedError

    def reopen(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Return another saver object on the same store, as another process would have it.

        The first object stays in use. If the store is the object itself, return that object.
        """
        return saver

    def plant(self, saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint) -> bool:  # noqa: ARG002
        """Write a checkpoint as the newest, without the saver. Return False if that is not possible."""
        return False

    def peek(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> Sequence[Mapping[str, Any]] | None:  # noqa: ARG002
        """Return the states of a history, newest first, read without the saver; None if that is not possible."""
        return None

    # Tools

    def skip(self, reason: str) -> NoReturn:
        """Skip the test, under pytest and unittest."""
        raise SkipTest(reason)

    @contextmanager
    def raises(self, kind: type[E]) -> Iterator[Caught[E]]:
        """Assert that the block raises an error of this class."""
        caught = Caught[E]()
        try:
            yield caught
        except kind as error:
            caught.error = error
        else:
            raise AssertionError(f"{kind.__name__} was not raised")

    def open(self, *needed: Quality) -> BaseCheckpointSaver:
        """Return a new saver that knows the contract's types; skip the test if it lacks a needed capability."""
        saver = self.make_saver()
        for name in needed:
            if not getattr(saver, name):
                self.skip(f"the saver does not declare {name}")
        saver.register_types(*application_types())
        return saver

    def open_again(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Return another saver object on the same store, which knows the contract's types too."""
        other = self.reopen(saver)
        other.register_types(*application_types())
        return other

    def open_versioned(self, *needed: Quality) -> Any:
        """Return a new saver that keeps versions; skip the test if it keeps none."""
        saver = self.open(*needed)
        if not isinstance(saver, HasVersions):
            self.skip("keeps no versions")
        return saver

    def assert_history(
        self, saver: BaseCheckpointSaver, config: RunnableConfig, oldest_first: Sequence[Checkpoint]
    ) -> None:
        """Assert that a history has exactly these checkpoints, read in every way and by another object too."""
        for reader in (saver, self.open_again(saver)):
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
    def assert_unchanged(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> Iterator[None]:
        """Assert that the block does not change a history."""
        before = read_everything(saver, config)
        yield
        assert read_everything(saver, config) == before
        assert read_everything(self.open_again(saver), config) == before


def call_in_thread(call: Callable[..., R], *args: Any) -> R:
    """Call a function in another thread, outside any run."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result(PATIENCE)
