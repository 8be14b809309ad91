"""The hooks of the contract, which a subclass fills in, and the tools of its tests."""

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


class SaverTests:
    """What the tests of a subject stand on."""

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

    def open(self, *needed: Quality) -> BaseCheckpointSaver:
        """Return a new saver that knows the contract's types; skip the test if it lacks a needed capability."""
        saver = self.make_saver()
        for name in needed:
            if not getattr(saver, name):
                self.skip(f"the saver does not declare {name}")
        saver.register_types(*application_types())
        return saver

    def again(self, saver: BaseCheckpointSaver) -> BaseCheckpointSaver:
        """Another object on the store, that knows them too."""
        other = self.reopen(saver)
        other.register_types(*application_types())
        return other

    def versioned(self, *needed: Quality) -> Any:
        """Return a new saver that keeps versions; skip the test if it keeps none."""
        saver = self.open(*needed)
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


def elsewhere(call: Callable[..., R], *args: Any) -> R:
    """Call in another thread, as code of nobody's run."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result(PATIENCE)
