"""Errors: decisions that a caller can take; their arguments are attributes, and every one pickles."""

import inspect
import pickle
from datetime import UTC, datetime

import pytest

from graphkit import errors
from graphkit.errors import (
    AccessDeniedError,
    AgentConfigurationError,
    AgentFileNotFoundError,
    AgentFileSyntaxError,
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointKeyError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    CheckpointStorageError,
    GraphKitError,
    GraphRunnerError,
    GraphStateError,
    InterruptExpiredError,
    MaxIterationsError,
    McpServerError,
    McpToolError,
    MissingDependencyError,
    ModelError,
    NodeExecutionError,
    ThreadBusyError,
    ToolError,
)

EXAMPLES = [
    GraphKitError("x"),
    GraphStateError("one", "two"),
    GraphRunnerError("x", node_id="n", thread_id="t", state={"k": 1}, path=["a"], config={"c": 1}),
    NodeExecutionError("x", node_id="n"),
    MaxIterationsError("x"),
    CheckpointerError("x"),
    CheckpointNotFoundError("t", "checkpoint 'c'", "look there"),
    CheckpointCorruptionError("/p", 17, "bad"),
    CheckpointFormatError("/p", "version 9"),
    CheckpointSerializationError("m[3].when", "Foo", "do this", {"raw": 1}),
    CheckpointStorageError("/p", "write", OSError(28, "No space left on device")),
    CheckpointStorageError("/p", "write", "gone"),
    CheckpointConflictError("t", "changed"),
    ThreadBusyError("t", "process 1", 1.5),
    ToolError("search", "call_1", "ValueError: x"),
    CheckpointerConfigurationError("x"),
    AccessDeniedError("x"),
    AgentFileNotFoundError("x", file="agent.yaml"),
    AgentFileSyntaxError("x", file="agent.yaml", line=3),
    AgentConfigurationError("x", file="agent.yaml", line=3, key="steps[0].type"),
    ModelError("openai:m", "status 500", attempts=3, status=500),
    McpServerError("files", "does not start"),
    McpToolError("read_file", "no such file"),
    CheckpointKeyError("/p", "2026", "open the store with `cipher`"),
    CheckpointErasedError("/p", "ann"),
    MissingDependencyError("rich", "cli"),
    InterruptExpiredError("ask", datetime(2031, 4, 1, tzinfo=UTC)),
]


def classes():
    found = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, GraphKitError)]
    return list(dict.fromkeys(found))  # the Java names are the same classes


def test_every_error_has_an_example():
    assert {type(each) for each in EXAMPLES} == set(classes())


@pytest.mark.requirement("P80")
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_it_pickles(error):
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert (str(twin), twin.args) == (str(error), error.args)
    assert vars(twin) == vars(error)
    assert getattr(twin, "errno", None) == getattr(error, "errno", None)


@pytest.mark.requirement("P80")
@pytest.mark.parametrize(
    ("cls", "base"),
    [
        (GraphStateError, ValueError),
        (GraphRunnerError, RuntimeError),
        (NodeExecutionError, GraphRunnerError),
        (MaxIterationsError, GraphRunnerError),
        (CheckpointNotFoundError, LookupError),
        (CheckpointErasedError, CheckpointKeyError),
        (CheckpointSerializationError, TypeError),
        (CheckpointStorageError, OSError),
        (ThreadBusyError, TimeoutError),
        (CheckpointerConfigurationError, ValueError),
        (AccessDeniedError, PermissionError),
        (AgentConfigurationError, ValueError),
        (AgentFileNotFoundError, AgentConfigurationError),
        (AgentFileSyntaxError, AgentConfigurationError),
        (McpServerError, ConnectionError),
        (MissingDependencyError, ImportError),
        (ModelError, RuntimeError),
    ],
)
def test_it_is_caught_as_what_it_is(cls, base):
    assert issubclass(cls, base)


@pytest.mark.requirement("P80")
def test_savers_errors_have_one_root():
    savers_own = [cls for cls in classes() if cls.__name__.startswith(("Checkpoint", "Thread", "Access"))]
    assert all(issubclass(cls, CheckpointerError) for cls in savers_own)


def test_exit_codes_of_kinds_differ():
    codes = [cls.exit_code for cls in classes() if not issubclass(cls, GraphRunnerError)]
    assert len(set(codes)) == len(codes)
