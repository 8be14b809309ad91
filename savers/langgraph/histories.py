"""Histories: what LangGraph's checkpointer needs of the saver below it.

LangGraph puts writes before their checkpoint, puts a checkpoint that depends on the one before it,
and lists checkpoints of a whole store. The contract of graphkit's savers has no methods for these.
Each kind of saver has its own implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from graphkit import Checkpoint, RunnableConfig
from graphkit.abc import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError
from savers.langgraph.channels import WRITES
from savers.langgraph.writes import TaskWrites, Write, merge_writes

if TYPE_CHECKING:
    from graphkit.codec import Codec
    from graphkit.values import FrozenDict
    from savers._log.history_view import AncestorReader, HistoryView
    from savers._log.past_checkpoint import PastCheckpoint
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers.langgraph.selection import Query, Selected

EARLY: Final = "#early:"
"""The prefix of the namespace in which the early writes of another namespace are kept: by savers
without a log, and by earlier versions."""

Saver = TypeVar("Saver", bound=BaseCheckpointSaver)
Result = TypeVar("Result")


class CheckpointIndex(Protocol):
    """All checkpoints of a history."""

    @property
    def checkpoints(self) -> Sequence[StoredCheckpoint]:
        """The checkpoints, oldest first."""


class GrowingHistory(Protocol):
    """A history to which a checkpoint is put. A LogWriter is one."""

    @property
    def codec(self) -> Codec:
        """Packs values for the history."""

    @property
    def state(self) -> FrozenDict | None:
        """The state of the last checkpoint, if it is in memory."""

    def find_latest(self) -> StoredCheckpoint | None:
        """Return the latest checkpoint; None if there is none."""

    def find(self, id: str | None) -> StoredCheckpoint | None:
        """Return the checkpoint with an id, or the latest; None if there is none."""

    def load_state(self, checkpoint: StoredCheckpoint) -> FrozenDict:
        """Return the state of a checkpoint of this history."""

    def load_index(self) -> CheckpointIndex:
        """Return all checkpoints."""


PutNext = Callable[[GrowingHistory], Checkpoint | None]
"""Returns the checkpoint to put, from the history as it is; or None after it has appended it. It
may be called again, with the history as another writer has changed it."""


class CheckpointWithWrites(NamedTuple):
    """A checkpoint, and what is recorded with it."""

    checkpoint: Checkpoint
    writes: Mapping[str, Any]


class Histories(ABC, Generic[Saver]):
    """The histories in one saver, as LangGraph's checkpointer uses them.

    Attributes:
        saver: the saver.
    """

    def __init__(self, saver: Saver) -> None:
        self.saver = saver

    # Writing

    @abstractmethod
    def put_next(self, history: RunnableConfig, put_next: PutNext) -> None:
        """Put a checkpoint that is made from the history as it is at that moment.

        It replaces a checkpoint of the same id.

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
        """Call a function now if it takes only some microseconds; for callers in an event loop.

        Args:
            target: names the checkpoint.
            call: uses no other history.
            appends: whether it appends to the history.

        Returns:
            A tuple with its result; None if it was not called.
        """
        return None

    # Reading

    def read(self, config: RunnableConfig) -> CheckpointWithWrites | None:
        """Return the checkpoint that a config names, or the latest, with what is recorded with it."""
        checkpoint = self.saver.get(config)
        if checkpoint is None:
            return None
        return CheckpointWithWrites(checkpoint, self.saver.get_writes(config.replace(checkpoint_id=checkpoint.id)))

    def read_past(self, config: RunnableConfig) -> PastCheckpoint | None:  # noqa: ARG002 - for savers that can
        """Return the past checkpoint that a config names, packed.

        None if `read` must find it, or there may be early writes beside its own.
        """
        return None

    @abstractmethod
    def has_early(self, history: RunnableConfig) -> bool:
        """Return whether there may be a namespace of early writes beside that of a history."""

    def read_early(self, history: RunnableConfig, checkpoint_id: str) -> Mapping[str, Any]:
        """Return the writes of a checkpoint in the namespace of early writes."""
        return self.saver.get_writes(make_early_config(history.replace(checkpoint_id=checkpoint_id)))

    def read_writes(
        self,
        history: RunnableConfig,
        checkpoint_id: str,
        state: Mapping[str, Any],
        own: Mapping[str, Any],
    ) -> list[Write]:
        """Return the writes of a checkpoint in LangGraph's order.

        Args:
            history: names the history of the checkpoint.
            checkpoint_id: its id.
            state: its state.
            own: what is recorded with the checkpoint itself.
        """
        early: Mapping[str, Any] = {}
        if self.has_early(history):
            early = self.read_early(history, checkpoint_id)
        return merge_writes(state.get(WRITES, {}), early, own)

    @abstractmethod
    def open_ancestors(self, history: RunnableConfig) -> AncestorReader:
        """Return a reader for the checkpoints of a history."""

    def list_namespaces(self, thread_id: str) -> Sequence[str]:
        """Return the namespaces of a thread, except those of early writes.

        Raises:
            CheckpointerConfigurationError: the saver cannot list them.
        """
        if not self.saver.lists_namespaces:
            raise CheckpointerConfigurationError(
                f"{type(self.saver).__name__} cannot list the namespaces of a thread, and LangGraph's subgraphs have"
                " namespaces; give `namespaces` to the saver"
            )
        return [name for name in self.saver.namespaces(thread_id) if not name.startswith(EARLY)]

    def find_histories(self, key: str, values: Iterable[object]) -> Iterator[RunnableConfig]:  # noqa: ARG002
        """Yield the histories that may have a checkpoint whose metadata have one of these values.

        Args:
            key: the key of the metadata.
            values: the values; numbers or strings.
        """
        for thread_id in self.saver.threads():
            for namespace in self.list_namespaces(thread_id):
                yield RunnableConfig(thread_id, checkpoint_ns=namespace)

    # Listing

    @abstractmethod
    def select(self, thread: str, namespace: str | None, query: Query) -> Iterable[Selected]:
        """Return the checkpoints that a query selects from a thread, or from one of its histories.

        Args:
            thread: the thread.
            namespace: the namespace; None for all of them.
            query: which checkpoints are wanted.
        """

    @abstractmethod
    def select_from_all(self, query: Query) -> Iterable[Selected]:
        """Return the checkpoints that a query selects from all threads."""

    def release(self, view: HistoryView) -> None:
        """Take note that nothing else of a view is wanted."""
        view.forget()

    def end_listing(self) -> None:
        """Take note that a listing of all threads has ended."""

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


def make_early_config(config: RunnableConfig) -> RunnableConfig:
    """Return the config for the early writes of a checkpoint, or of a history."""
    return RunnableConfig(
        config.thread_id, checkpoint_ns=EARLY + config.checkpoint_ns, checkpoint_id=config.checkpoint_id
    )


def is_made_before(saver: BaseCheckpointSaver, thread_id: str, moment: datetime) -> bool:
    """Return whether the latest checkpoints of all histories of a thread were made before a moment."""
    return all(
        info.created_at < moment
        for namespace in saver.namespaces(thread_id)
        for info in saver.recent(RunnableConfig(thread_id, checkpoint_ns=namespace), limit=1)
    )
