"""Histories: what LangGraph's checkpointer needs of the saver below it.

LangGraph puts writes before their checkpoint, puts a checkpoint that depends on the one before it,
and lists checkpoints of a whole store. The contract of graphkit's savers has no methods for these.
There are two implementations: on logs (`log_histories.py`), and on the contract alone
(`contract_histories.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from graphkit import RunnableConfig
from graphkit.abc import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError
from savers._log.catalogue import Head

if TYPE_CHECKING:
    from graphkit.values import FrozenDict
    from savers._log.packed_history import PackedState
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers.langgraph.channels import Successor
    from savers.langgraph.writes import TaskWrites

EARLY: Final = "#early:"
"""The prefix of the namespace in which a saver without a log keeps the early writes of another one."""
Result = TypeVar("Result")


class GrowingHistory(Protocol):
    """A history to which a checkpoint is put; no other writer can put to it meanwhile."""

    def find(self, id: str | None) -> StoredCheckpoint | None:
        """Return the checkpoint with an id, or the latest; None if there is none."""

    def load_state(self, stored: StoredCheckpoint) -> FrozenDict:
        """Return the state of a checkpoint of this history."""

    def walk_back(self) -> Iterator[StoredCheckpoint]:
        """Yield all checkpoints, newest first."""

    def pack(self, value: object, path: str) -> bytes:
        """Pack a value for the history, given its path in the state."""

    def put(self, new: StoredCheckpoint, successor: Successor, base: FrozenDict) -> None:
        """Put a checkpoint, which replaces one that has the same id.

        Args:
            new: all of it but its state.
            successor: its state, and how it differs from the last one.
            base: that state.
        """


class FoundCheckpoint(NamedTuple):
    """A checkpoint, and what is recorded with it."""

    stored: StoredCheckpoint
    state: PackedState | Mapping[str, Any]
    """The values by key: packed, or as they are."""
    writes: Mapping[str, Any]
    """The pending writes by key, likewise."""
    is_packed: bool
    path: str
    """Names the history in errors."""


Seen = tuple[int, int]
"""What a reader has seen of a history: which log, and how many bytes of it."""
Take = Callable[[FoundCheckpoint], Result]
"""Takes what the caller wants out of a checkpoint. Runs while the history is locked, so it calls no code
of the application."""


class Histories(ABC):
    """The histories in one saver, as LangGraph's checkpointer uses them.

    Attributes:
        saver: the saver.
    """

    def __init__(self, saver: BaseCheckpointSaver) -> None:
        self.saver = saver

    # Writing

    @abstractmethod
    def put_next(self, history: RunnableConfig, put_next: Callable[[GrowingHistory], None]) -> None:
        """Put a checkpoint that is made from the history as it is at that moment.

        Args:
            history: the history.
            put_next: puts it; may be called again, with the history as another writer has changed it.

        Raises:
            Exception: what `put_next` and the saver's `put` raise. Nothing was changed.
        """

    @abstractmethod
    def put_writes(self, history: RunnableConfig, checkpoint_id: str | None, writes: TaskWrites) -> None:
        """Store writes for a checkpoint, whether it exists or not.

        Args:
            history: names the history of the checkpoint.
            checkpoint_id: its id; None for the latest.
            writes: the writes.
        """

    def call_without_waiting(
        self,
        target: RunnableConfig,  # noqa: ARG002 - for savers that can
        call: Callable[[], Result],  # noqa: ARG002
        *,
        appends: bool,  # noqa: ARG002
    ) -> tuple[Result] | None:
        """Call a function now if it takes only some microseconds; see `LogSaver.call_without_waiting`."""
        return None

    # Reading

    @abstractmethod
    def read(self, config: RunnableConfig, take: Take[Result]) -> Result | None:
        """Take something out of the checkpoint that a config names, or the latest; None if there is none."""

    def list_namespaces(self, thread_id: str) -> Sequence[str]:
        """Return the namespaces of a thread that are LangGraph's.

        Raises:
            CheckpointerConfigurationError: the saver cannot list them.
        """
        if not self.saver.lists_namespaces:
            raise CheckpointerConfigurationError(
                f"{type(self.saver).__name__} cannot list the namespaces of a thread, and LangGraph's subgraphs have"
                " namespaces; give `namespaces` to the saver"
            )
        return [name for name in self.saver.namespaces(thread_id) if not name.startswith(EARLY)]

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:  # noqa: ARG002 - for savers with an index
        """Return the histories that may have a checkpoint whose metadata have these keys with these values."""
        for thread_id in self.saver.threads():
            for namespace in self.list_namespaces(thread_id):
                yield Head(thread_id, namespace, None)

    @abstractmethod
    def select(
        self,
        history: RunnableConfig,
        choose: Callable[[Iterator[StoredCheckpoint]], Result],
        expected: int | None,
    ) -> tuple[Result, Seen]:
        """Choose checkpoints of a history.

        Args:
            history: the history.
            choose: gets all checkpoints, newest first, and takes as many as it needs; may be called
                again.
            expected: about how many it will take; None for all.

        Returns:
            What was chosen, and what was seen of the history then.
        """

    @abstractmethod
    def read_selected(
        self, history: RunnableConfig, stored: StoredCheckpoint, seen: Seen, take: Take[Result]
    ) -> Result | None:
        """As `read`, for a checkpoint that `select` has chosen; None if it was removed meanwhile."""

    # Removing

    @abstractmethod
    def remove(self, history: RunnableConfig, ids: Sequence[str]) -> None:
        """Remove checkpoints of a history, and their early writes; ids that it does not have are ignored."""

    @abstractmethod
    def delete_idle(self, thread_id: str, *, idle_since: datetime, dry_run: bool = False) -> bool:
        """Delete a thread if no process has written to it since a moment.

        Args:
            thread_id: the thread.
            idle_since: the moment. A thread that was written to at this time or later stays.
            dry_run: change nothing.

        Returns:
            Whether it was deleted, or would be.
        """

    def describe(self) -> str:
        """Return the name of the store, for log messages."""
        return type(self.saver).__name__


def is_made_before(saver: BaseCheckpointSaver, thread_id: str, moment: datetime) -> bool:
    """Return whether the latest checkpoints of all histories of a thread were made before a moment."""
    return all(
        info.created_at < moment
        for namespace in saver.namespaces(thread_id)
        for info in saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1)
    )
