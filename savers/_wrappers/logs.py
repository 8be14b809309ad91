"""What wrappers do with the logs of the saver that they wrap; LangGraph's checkpointer uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from graphkit import RunnableConfig
    from savers._log.log import AnyLog

_Result = TypeVar("_Result")


class LogsOfDelegate:
    """The methods of SupportsLogs that are the same in each wrapper."""

    delegate: Any

    def call_without_waiting(
        self,
        config: RunnableConfig,  # noqa: ARG002
        call: Callable[[], _Result],  # noqa: ARG002
        *,
        appends: bool,  # noqa: ARG002
    ) -> tuple[_Result] | None:
        return None  # a policy may take its time, and an audit log waits for the disk

    def describe(self) -> str:
        return self.delegate.describe()  # type: ignore[no-any-return]


class LogWithWriter:
    """A log whose checkpoints are put by another writer."""

    def __init__(self, log: AnyLog, writer: WriterWrapper) -> None:
        self._log = log
        self.writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class WriterWrapper:
    """Forwards everything to the writer of a log. Subclass it, and override `put` and `put_packed`."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
