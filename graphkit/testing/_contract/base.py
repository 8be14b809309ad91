"""The hooks of the contract, which a subclass implements, and the tools of its tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast
from unittest import SkipTest, TestCase

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import Quality
from graphkit.testing import _check as check
from graphkit.testing._values import CONFIG, application_types, put_checkpoint

if TYPE_CHECKING:
    from unittest.case import _AssertRaisesContext as Raises

E = TypeVar("E", bound=BaseException)
R = TypeVar("R")
S = TypeVar("S", bound=BaseCheckpointSaver)

TIMEOUT: Final = 30.0
"""Seconds to wait for an expected event; only a failing saver makes a test wait this long."""

INTERVAL: Final = 0.01
"""Seconds between two looks at the store, of a watch and of a node that waits."""


def read_everything(saver: BaseCheckpointSaver, config: RunnableConfig) -> dict[str, object]:
    """Read everything of a history; equal results prove that nothing changed."""
    checkpoints = [*saver.list(config)]
    writes = [saver.get_writes(config.replace(checkpoint_id=checkpoint.id)) for checkpoint in checkpoints]
    # The size of a checkpoint may depend on where it is stored, which is not part of its content.
    history = [info._replace(size=0) for info in saver.history(config)]
    return {"checkpoints": checkpoints, "history": history, "writes": writes}


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

    def raises(self, kind: type[E]) -> Raises[E]:
        """Assert that the block raises an error of a kind; it is the `exception` of the result."""
        return TestCase().assertRaises(kind)

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

    def open_with_checkpoint(self, *needed: Quality) -> BaseCheckpointSaver:
        """Return a new saver with one checkpoint, in the thread "t"; see `open`."""
        saver = self.open(*needed)
        put_checkpoint(saver)
        return saver

    def open_again(self, saver: S) -> S:
        """Return another saver on the same store that knows the contract's types."""
        other = cast("S", self.reopen(saver))
        other.register_types(*application_types())
        return other

    def open_two(self) -> tuple[BaseCheckpointSaver, BaseCheckpointSaver]:
        """Return two savers on one new store; see `open`."""
        return self.readers_of(self.open())

    def readers_of(self, saver: S) -> tuple[S, S]:
        """Return the saver that wrote and another one on its store; both must read the same."""
        return saver, self.open_again(saver)

    def open_with(self, capability: type[Any], *needed: Quality) -> Any:
        """Return a new saver that has the methods of a capability; skip the test if it has not. See `open`."""
        saver = self.open(*needed)
        if not isinstance(saver, capability):
            self.skip(f"the saver does not declare {capability.__name__}")
        return saver

    def assert_history(
        self, saver: BaseCheckpointSaver, oldest_first: Sequence[Checkpoint], config: RunnableConfig = CONFIG
    ) -> None:
        """Assert that a history holds exactly these checkpoints.

        Reads the history in every way, through this object and another one.
        """
        expected_ids = check.get_ids(oldest_first[::-1])

        for reader in self.readers_of(saver):
            check.assert_listed(reader, oldest_first, config)

            infos = reader.history(config)
            check.assert_equal(check.get_ids(infos), expected_ids, "the ids of history")

            for expected in oldest_first:
                checkpoint_config = config.replace(checkpoint_id=expected.id)
                check.assert_checkpoint(reader, expected, checkpoint_config)

            if oldest_first:
                check.assert_checkpoint(reader, oldest_first[-1], config)
            else:
                check.assert_missing(reader, config)

    @contextmanager
    def raises_without_change(self, saver: BaseCheckpointSaver, kind: type[E]) -> Iterator[Raises[E]]:
        """Assert that the block raises an error and changes nothing of the thread "t"."""
        with self.assert_unchanged(saver), self.raises(kind) as caught:
            yield caught

    @contextmanager
    def assert_unchanged(self, saver: BaseCheckpointSaver, config: RunnableConfig = CONFIG) -> Iterator[None]:
        """Assert that the block changes nothing of a history."""
        before = read_everything(saver, config)
        yield
        for reader in self.readers_of(saver):
            after = read_everything(reader, config)
            check.assert_equal(after, before, "the history")


def call_in_thread(call: Callable[..., R], *args: Any) -> R:
    """Call a function in another thread, outside of any run. A call that hangs is left behind."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(TIMEOUT)
