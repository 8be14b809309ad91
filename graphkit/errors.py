"""Every error graphkit raises, each a decision that a caller can take.

Arguments are attributes, the message is derived from them, and every error pickles: `__reduce__` rebuilds it from its
arguments. `exit_code` is what the command line exits with. The Java names stand at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

__all__ = [
    "DISTRIBUTION",
    "AccessDeniedError",
    "CheckpointConflictError",
    "CheckpointCorruptionError",
    "CheckpointFormatError",
    "CheckpointNotFoundError",
    "CheckpointSerializationError",
    "CheckpointStorageError",
    "CheckpointerConfigurationError",
    "CheckpointerError",
    "DefaultThreadWarning",
    "GraphKitError",
    "GraphRunnerError",
    "GraphRunnerException",
    "GraphStateError",
    "GraphStateException",
    "MaxIterationsError",
    "MissingDependencyError",
    "NodeExecutionError",
    "ThreadBusyError",
]

DISTRIBUTION: Final = "graphkit-durable"
"""What pip installs. The name `graphkit` on the package index belongs to another project."""


class GraphKitError(Exception):
    """The root of all of graphkit's errors."""

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the attributes: `args` holds the derived message, not the arguments."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[GraphKitError], args: tuple[object, ...], attributes: dict[str, object]) -> GraphKitError:
    error = cls.__new__(cls, *args)
    if isinstance(error, OSError):
        OSError.__init__(error, *args)  # which keeps errno elsewhere than in the attributes
    error.args = args
    error.__dict__.update(attributes)
    return error


class GraphStateError(GraphKitError, ValueError):
    """A graph that cannot be built. `problems` lists everything that is wrong, one sentence each."""

    exit_code = 3

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        text = (
            problems[0]
            if len(problems) == 1
            else f"{len(problems)} problems:\n" + "\n".join(f"  - {problem}" for problem in problems)
        )
        super().__init__(text)


class GraphRunnerError(GraphKitError, RuntimeError):
    """A run failed. What was checkpointed before stays, and the run can be resumed.

    Attributes:
        node_id: the node or the edge's source at which the run stopped, if any.
        thread_id: the thread of the run; None if it had neither a saver nor a thread id.
        state: the state that the node was given.
        path: the nodes this run had finished, oldest first (the last 100).
        config: the configuration of the run.
    """

    exit_code = 4

    def __init__(
        self,
        reason: str,
        *,
        node_id: str | None = None,
        thread_id: str | None = None,
        state: Mapping[str, Any] | None = None,
        path: Sequence[str] = (),
        config: object = None,
    ) -> None:
        self.reason, self.node_id, self.thread_id = reason, node_id, thread_id
        self.state, self.path, self.config = state, tuple(path), config
        super().__init__(reason)


class NodeExecutionError(GraphRunnerError):
    """A node, or the condition of its outgoing edge, raised; the cause is chained. Nothing of that step is stored."""


class MaxIterationsError(GraphRunnerError):
    """The run reached `max_iterations` nodes. Everything up to there is stored; a higher limit lets a resume go on."""


class CheckpointerError(GraphKitError):
    """The root of the errors of savers."""

    exit_code = 10


class CheckpointNotFoundError(CheckpointerError, LookupError):
    """There is no such thread, checkpoint or version. Nothing was changed."""

    exit_code = 11

    def __init__(self, thread_id: str, what: str = "a checkpoint", hint: str = "") -> None:
        self.thread_id, self.what, self.hint = thread_id, what, hint
        super().__init__(f"thread {_short(thread_id)} has no {what.removeprefix('a ')}" + (f"; {hint}" if hint else ""))


class CheckpointCorruptionError(CheckpointerError):
    """Stored bytes are damaged. Nothing was changed; other threads are not concerned.

    Attributes:
        path: the damaged file.
        offset: where in it the damage was noticed, in bytes.
        reason: what is wrong there.
    """

    exit_code = 12

    def __init__(self, path: str, offset: int, reason: str) -> None:
        self.path, self.offset, self.reason = str(path), offset, reason
        super().__init__(
            f"{self.path} is damaged at byte {offset}: {reason}; copy the directory, then repair it or restore a backup"
        )


class CheckpointFormatError(CheckpointerError):
    """The files were written by a newer graphkit, or are not graphkit's at all. Nothing was changed."""

    exit_code = 13

    def __init__(self, path: str, reason: str) -> None:
        self.path, self.reason = str(path), reason
        super().__init__(f"{self.path}: {reason}")


class CheckpointSerializationError(CheckpointerError, TypeError):
    """A value cannot be stored, or stored data names a type that is not registered. Nothing was changed.

    Attributes:
        path: where in the state the value stands, such as `messages[3].when`.
        type_name: the type of the value.
        reason: what to do.
        raw: on reading, the decoded but unrestored data.
    """

    exit_code = 14

    def __init__(self, path: str, type_name: str, reason: str, raw: object = None) -> None:
        self.path, self.type_name, self.reason, self.raw = path, type_name, reason, raw
        super().__init__(f"{path or 'the value'} ({type_name}): {reason}")


class CheckpointStorageError(CheckpointerError, OSError):
    """The file system refused: disk full, no permission, an I/O error. What was stored before still is.

    Attributes:
        path: the file or directory.
        operation: what was being done.
        errno: the operating system's error number, chained as the cause.
    """

    exit_code = 15

    def __init__(self, path: str, operation: str, error: OSError | str) -> None:
        self.path, self.operation = str(path), operation
        reason = error.strerror or str(error) if isinstance(error, OSError) else error
        message = f"cannot {operation} {self.path}: {reason}"
        if isinstance(error, OSError) and error.errno is not None:
            super().__init__(error.errno, message)
        else:
            super().__init__(message)

    def __str__(self) -> str:
        """The sentence alone; OSError would put the number before it."""
        return str(self.args[-1])


class CheckpointConflictError(CheckpointerError):
    """Somebody else changed the thread in between. Nothing was changed; read again and decide."""

    exit_code = 16

    def __init__(self, thread_id: str, reason: str) -> None:
        self.thread_id, self.reason = thread_id, reason
        super().__init__(f"thread {_short(thread_id)}: {reason}")


class ThreadBusyError(CheckpointerError, TimeoutError):
    """Another run holds the thread. Nothing was changed.

    Attributes:
        thread_id: the thread.
        holder: who holds it, such as `process 4711 on host "mill" since 2026-11-20T10:00:00+00:00`.
        waited: how long was waited, in seconds.
    """

    exit_code = 17

    def __init__(self, thread_id: str, holder: str, waited: float) -> None:
        self.thread_id, self.holder, self.waited = thread_id, holder, waited
        super().__init__(
            f"thread {_short(thread_id)} is busy: held by {holder}; waited {waited:g} s. "
            f"Wait for that run to end, or raise lock_timeout"
        )


class CheckpointerConfigurationError(CheckpointerError, ValueError):
    """A saver is missing or wrongly configured. Nothing was touched."""

    exit_code = 18


class AccessDeniedError(CheckpointerError, PermissionError):
    """The caller may not do this. Nothing was changed."""

    exit_code = 19


class MissingDependencyError(GraphKitError, ImportError):
    """An optional package is not installed.

    Attributes:
        package: the package that is missing.
        extra: the extra of the distribution that brings it.
    """

    exit_code = 20

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed; run: pip install '{DISTRIBUTION}[{extra}]'")


class DefaultThreadWarning(UserWarning):
    """A run without a thread id on a durable saver: it shares the thread `$default` with all others that have none."""


def _short(text: str, limit: int = 80) -> str:
    """Quote a thread id for a message; ids may be 10,000 characters long."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text)} characters)"


# Java names
GraphStateException = GraphStateError
GraphRunnerException = GraphRunnerError
