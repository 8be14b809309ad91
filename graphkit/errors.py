"""Every error graphkit raises, each a decision that a caller can take.

The arguments of an error are its attributes, and its message is derived from them. Every error
pickles: `__reduce__` rebuilds it from its attributes. The command line exits with `exit_code`. The
Java names are at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

__all__ = [
    "AccessDeniedError",
    "AgentConfigurationError",
    "AgentFileNotFoundError",
    "AgentFileSyntaxError",
    "CheckpointConflictError",
    "CheckpointCorruptionError",
    "CheckpointErasedError",
    "CheckpointFormatError",
    "CheckpointKeyError",
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
    "InterruptExpiredError",
    "MaxIterationsError",
    "McpServerError",
    "McpToolError",
    "MissingDependencyError",
    "ModelError",
    "NodeExecutionError",
    "ThreadBusyError",
    "ToolError",
]

_DISTRIBUTION: Final = "graphkit-durable"
"""The name that pip installs. On the package index `graphkit` belongs to another project."""
_LONGEST_ID: Final = 80
"""How much of a thread id a message quotes."""


class GraphKitError(Exception):
    """Base class of all errors of graphkit."""

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the attributes: `args` holds the derived message, not the arguments."""
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(cls: type[GraphKitError], args: tuple[object, ...]) -> GraphKitError:
    error = cls.__new__(cls, *args)
    if isinstance(error, OSError):
        OSError.__init__(error, *args)  # OSError keeps errno outside __dict__
    return error


class GraphStateError(GraphKitError, ValueError):
    """The graph cannot be built. `problems` lists everything that is wrong, one sentence each."""

    exit_code = 3

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        lines = problems
        if len(problems) != 1:
            lines = (f"{len(problems)} problems:", *(f"  - {problem}" for problem in problems))
        super().__init__("\n".join(lines))


class GraphRunnerError(GraphKitError, RuntimeError):
    """A run failed. The checkpoints that it stored remain, and the run can be resumed.

    Attributes:
        node_id: the node, or the source of the edge, at which the run stopped, if any.
        thread_id: the thread of the run; None if it had neither a saver nor a thread id.
        state: the state that the node received.
        path: the nodes that this run had finished, oldest first (the last 100).
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
        self.reason = reason
        self.node_id = node_id
        self.thread_id = thread_id
        self.state = state
        self.path = tuple(path)
        self.config = config
        super().__init__(reason)


class NodeExecutionError(GraphRunnerError):
    """A node or the condition of its outgoing edge raised; the cause is chained.

    Nothing of that step is stored. A node that raises an error of a subclass ends the run with that
    error, so that the caller of the run can catch it by its class.
    """


class InterruptExpiredError(NodeExecutionError):
    """The deadline of an `interrupt()` passed without an answer, and it has no default.

    The node may catch it. A resume raises it again; a rollback to the checkpoint asks again.

    Attributes:
        node_id: the node that asked.
        deadline: the deadline.
    """

    def __init__(self, node_id: str, deadline: datetime) -> None:
        super().__init__(
            f"no answer came to the question of {node_id!r} before its deadline, {deadline.isoformat()}; "
            f"operations.rollback to its checkpoint asks again",
            node_id=node_id,
        )
        self.deadline = deadline


class MaxIterationsError(GraphRunnerError):
    """The run executed `max_iterations` nodes. They are stored; resume it with a higher limit."""


class ToolError(NodeExecutionError):
    """A tool failed that stops the run when it fails; the cause is chained.

    The results of other calls are recorded. A resume executes the failed call again.
    """

    def __init__(self, tool: str, call_id: str, reason: str) -> None:
        self.tool = tool
        self.call_id = call_id
        super().__init__(f"tool {tool!r} failed in call {call_id!r}: {reason}")


class ModelError(NodeExecutionError):
    """A model gave no usable answer. Nothing of it was recorded; a resume asks again.

    No key is in the message, and the error of the client is not chained: it may quote one. A model
    that is asked outside of a run leaves `node_id`, `thread_id`, `state` and `config` None.

    Attributes:
        model: the model, as `provider:model`.
        reason: what went wrong in the last attempt.
        attempts: how often the model was asked.
        status: the HTTP status of the last answer; None if there was none.
    """

    exit_code = 23

    def __init__(self, model: str, reason: str, *, attempts: int = 1, status: int | None = None) -> None:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"the model {model} gave no usable answer after {times}: {reason}")
        self.model = model
        self.reason = reason
        self.attempts = attempts
        self.status = status


class CheckpointerError(GraphKitError):
    """Base class of the errors of savers.

    Attributes:
        advice: what to do, with which the text of the error ends; "" if its message says that.
        option: the option of the saver that would have let it wait longer, which the text names, too;
            "" if there is none.
    """

    exit_code = 10
    advice: str = ""
    option: str = ""

    def __str__(self) -> str:
        """Return the message, and after it the advice."""
        message = super().__str__()
        if isinstance(self, OSError) and self.args:
            message = str(self.args[-1])  # without the error number, which OSError puts before it
        if not self.advice:
            return message
        option = f", or raise {self.option}" if self.option else ""
        return f"{message}; {self.advice}{option}"


class CheckpointNotFoundError(CheckpointerError, LookupError):
    """There is no such thread, checkpoint or version. Nothing was changed."""

    exit_code = 11

    def __init__(self, thread_id: str, what: str = "a checkpoint", hint: str = "") -> None:
        self.thread_id = thread_id
        self.what = what
        self.hint = hint
        message = f"thread {_quote(thread_id)} has no {what.removeprefix('a ')}"
        if hint:
            message = f"{message}; {hint}"
        super().__init__(message)


class CheckpointCorruptionError(CheckpointerError):
    """Stored bytes are damaged. Nothing was changed; other threads are not affected.

    Attributes:
        path: the damaged file.
        offset: where the damage was found, in bytes from the start of the file.
        reason: what is wrong there.
        problem: offset and reason as text, which the message has after the path.
        advice: what to do.
    """

    exit_code = 12

    def __init__(
        self,
        path: str,
        offset: int,
        reason: str,
        advice: str = "copy the directory, then repair it or restore a backup",
    ) -> None:
        self.path = str(path)
        self.offset = offset
        self.reason = reason
        self.problem = f"damaged at byte {offset}: {reason}"
        self.advice = advice
        super().__init__(f"{self.path} is {self.problem}")


class CheckpointFormatError(CheckpointerError):
    """The files are from a newer graphkit, or not from graphkit at all. Nothing was changed."""

    exit_code = 13

    def __init__(self, path: str, reason: str) -> None:
        self.path = str(path)
        self.reason = reason
        super().__init__(f"{self.path}: {reason}")


class CheckpointSerializationError(CheckpointerError, TypeError):
    """A value cannot be stored, or stored data name an unregistered type. Nothing was changed.

    Attributes:
        path: where in the state the value is, such as `messages[3].when`.
        type_name: the type of the value.
        reason: what is wrong, and what to do.
        raw: from a reader, the decoded data of a value that it could not restore.
    """

    exit_code = 14

    def __init__(self, path: str, type_name: str, reason: str, raw: object = None) -> None:
        self.path = path
        self.type_name = type_name
        self.reason = reason
        self.raw = raw
        super().__init__(f"{path or 'the value'} ({type_name}): {reason}")


class CheckpointStorageError(CheckpointerError, OSError):
    """The file system refused: disk full, no permission, an I/O error. Stored data remain.

    Attributes:
        path: the file or directory.
        operation: what the saver was doing, such as "write".
        errno: the error number of the operating system; its OSError is chained as the cause.
    """

    exit_code = 15

    def __init__(self, path: str, operation: str, error: OSError | str, *, advice: str = "", option: str = "") -> None:
        self.path = str(path)
        self.operation = operation
        self.advice = advice
        self.option = option
        reason = error
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        message = f"cannot {operation} {self.path}: {reason}"
        if isinstance(error, OSError) and error.errno is not None:
            super().__init__(error.errno, message)
        else:
            super().__init__(message)


class CheckpointConflictError(CheckpointerError):
    """Another writer has changed the thread. Nothing was changed; read it again and decide."""

    exit_code = 16

    def __init__(self, thread_id: str, reason: str) -> None:
        self.thread_id = thread_id
        self.reason = reason
        super().__init__(f"thread {_quote(thread_id)}: {reason}")


class ThreadBusyError(CheckpointerError, TimeoutError):
    """Another run holds the run lock of the thread, or has not ended. Nothing was changed.

    Attributes:
        thread_id: the thread.
        holder: the process that holds it, such as
            `process 4711 on host "mill" since 2026-11-20T10:00:00+00:00`.
        waited: how long the caller waited, in seconds.
        reason: why it is busy; what to do is the advice, or follows here.
    """

    exit_code = 17

    def __init__(self, thread_id: str, holder: str, waited: float, *, reason: str = "") -> None:
        self.thread_id = thread_id
        self.holder = holder
        self.waited = waited
        self.reason = reason
        if not reason:
            self.reason = f"held by {holder}; waited {waited:g} s"
            self.advice = "wait for that run to end"
            self.option = "lock_timeout"
        super().__init__(f"thread {_quote(thread_id)} is busy: {self.reason}")


class CheckpointerConfigurationError(CheckpointerError, ValueError):
    """A saver is missing or wrongly configured. Nothing was changed."""

    exit_code = 18


class AccessDeniedError(CheckpointerError, PermissionError):
    """The principal of the call may not do this. Nothing was changed.

    The message says nothing that the caller has not named: not even whether the thread exists.

    Attributes:
        operation: the method of the saver, such as "put".
        thread_id: the thread that the caller named.
        checkpoint_ns: the namespace that the caller named.
        principal: the principal, as text; None is nobody.
    """

    exit_code = 19

    def __init__(
        self, operation: str, thread_id: str = "", checkpoint_ns: str = "", principal: str | None = None
    ) -> None:
        self.operation = operation
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.principal = principal
        who = "nobody is named as principal, so the call"
        hint = "; name one with savers.acting_as(...) or config.with_principal(...)"
        if principal is not None:
            who = f"the principal {principal}"
            hint = ""
        namespace = f" in namespace {_quote(checkpoint_ns)}" if checkpoint_ns else ""
        super().__init__(f"{who} may not {operation} thread {_quote(thread_id)}{namespace}{hint}")


class MissingDependencyError(GraphKitError, ImportError):
    """An optional package is not installed.

    Attributes:
        package: the package that is missing.
        extra: the extra of the distribution that installs it.
    """

    exit_code = 20

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"{package} is not installed; run: pip install '{_DISTRIBUTION}[{extra}]'")


class CheckpointKeyError(CheckpointerError):
    """A key is missing or wrong, so sealed data cannot be read or written. Nothing was changed.

    Attributes:
        path: the sealed file.
        key_id: the id of the key.
        reason: what is wrong with the key, and what to do.
        has_keys: whether the store was opened with any keys.
    """

    exit_code = 21

    def __init__(self, path: str, key_id: str, reason: str, *, has_keys: bool = True) -> None:
        self.path = str(path)
        self.key_id = key_id
        self.reason = reason
        self.has_keys = has_keys
        super().__init__(f"{self.path} is sealed with key {_quote(key_id)}: {reason}")


class CheckpointErasedError(CheckpointKeyError):
    """A key was destroyed, so what it sealed is erased for good. Nothing was changed.

    The attributes are those of CheckpointKeyError.
    """

    exit_code = 28

    def __init__(self, path: str, key_id: str) -> None:
        super().__init__(path, key_id, "the key was destroyed, so this is erased for good; only `delete` is left")


class AgentConfigurationError(GraphKitError, ValueError):
    """An agent is wrongly configured. Nothing was changed.

    Attributes:
        reason: what is wrong, and what to do.
        file: the configuration file, if there is one.
        line: the line of the file, from 1, if it is known.
        key: the key in the configuration, such as `steps[0].function`; "" for all of it.
    """

    exit_code = 22

    def __init__(self, reason: str, *, file: str | None = None, line: int | None = None, key: str = "") -> None:
        self.reason = reason
        self.file = file
        self.line = line
        self.key = key
        number = None if line is None else f"line {line}"
        place = ", ".join(filter(None, (file, number)))
        super().__init__(": ".join(filter(None, (place, key, reason))))


class AgentFileNotFoundError(AgentConfigurationError):
    """There is no such configuration file."""

    exit_code = 26


class AgentFileSyntaxError(AgentConfigurationError):
    """A configuration file is not YAML, or its root is not a mapping."""

    exit_code = 27


class McpServerError(GraphKitError, ConnectionError):
    """An MCP server cannot be used: it does not start, answer or speak the protocol.

    Attributes:
        server: the name of the server in the settings.
        reason: what went wrong.
    """

    exit_code = 24

    def __init__(self, server: str, reason: str) -> None:
        self.server = server
        self.reason = reason
        super().__init__(f"the MCP server {server!r}: {reason}")


class McpToolError(GraphKitError, RuntimeError):
    """A tool of an MCP server failed, as the server reports.

    Attributes:
        tool: the name of the tool at the server.
        reason: what the server says.
    """

    exit_code = 25

    def __init__(self, tool: str, reason: str) -> None:
        self.tool = tool
        self.reason = reason
        super().__init__(f"the tool {tool!r} failed: {reason}")


class DefaultThreadWarning(UserWarning):
    """A run on a durable saver has no thread id; all such runs share the thread `$default`."""


def _quote(thread_id: str) -> str:
    """Quote a thread id for a message; ids may be 10,000 characters long."""
    if len(thread_id) <= _LONGEST_ID:
        return repr(thread_id)
    return f"{thread_id[:_LONGEST_ID]!r}... ({len(thread_id)} characters)"


# Java names
GraphStateException = GraphStateError
GraphRunnerException = GraphRunnerError
