"""SupportsLogs: what LangGraph's checkpointer needs of a saver to write only what changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from graphkit import RunnableConfig

if TYPE_CHECKING:
    from savers._log.catalogue import Head
    from savers._log.log import AnyLog

_Result = TypeVar("_Result")


@runtime_checkable
class SupportsLogs(Protocol):
    """A saver whose histories are logs, or one around it that sees what goes to the logs.

    A wrapper that does not see it must not forward these methods: they would bypass it. See LogSaver
    for what they do.
    """

    def read_log(
        self, config: RunnableConfig, read: Callable[[AnyLog], _Result], default: _Result, *, operation: str = "get"
    ) -> _Result:
        """Call a function with the log of a history, for an operation of the contract."""
        ...

    def append_to_log(self, config: RunnableConfig, append: Callable[[AnyLog], None]) -> None:
        """Append records of checkpoints to a history."""
        ...

    def put_packed_writes(
        self,
        config: RunnableConfig,
        id: str | None,
        packed: Mapping[str, bytes],
        keep: Collection[str] = (),
        *,
        early: bool = False,
        expects_put: bool = False,
        find_metadata: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Store pending writes that are packed."""
        ...

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:
        """Return the histories that may have a checkpoint with such metadata."""
        ...

    def call_without_waiting(
        self, config: RunnableConfig, call: Callable[[], _Result], *, appends: bool
    ) -> tuple[_Result] | None:
        """Call a function now if it takes only some microseconds."""
        ...

    def describe(self) -> str:
        """Return the name of the store, for messages."""
        ...
