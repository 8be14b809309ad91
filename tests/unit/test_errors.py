"""Errors: decisions that a caller can take; their arguments are attributes, and every one pickles."""

import inspect
import pickle
from datetime import UTC, datetime

import pytest

from graphkit import errors
from graphkit.errors import CheckpointerError, GraphKitError, GraphRunnerError

EXAMPLES = [
    GraphKitError("x"),
    errors.GraphStateError("one", "two"),
    errors.GraphRunnerError("x", node_id="n", thread_id="t", state={"k": 1}, path=["a"], config={"c": 1}),
    errors.NodeExecutionError("x", node_id="n"),
    errors.MaxIterationsError("x"),
    errors.CheckpointerError("x"),
    errors.CheckpointNotFoundError("t", "checkpoint 'c'", "look there"),
    errors.CheckpointCorruptionError("/p", 17, "bad"),
    errors.CheckpointFormatError("/p", "version 9"),
    errors.CheckpointSerializationError("m[3].when", "Foo", "do this", {"raw": 1}),
    errors.CheckpointStorageError("/p", "write", OSError(28, "No space left on device")),
    errors.CheckpointStorageError("/p", "write", "gone"),
    errors.CheckpointConflictError("t", "changed"),
    errors.ThreadBusyError("t", "process 1", 1.5),
    errors.ToolError("search", "call_1", "ValueError: x"),
    errors.CheckpointerConfigurationError("x"),
    errors.AccessDeniedError("x"),
    errors.AgentFileNotFoundError("x", file="agent.yaml"),
    errors.AgentFileSyntaxError("x", file="agent.yaml", line=3),
    errors.AgentConfigurationError("x", file="agent.yaml", line=3, key="steps[0].type"),
    errors.ModelError("openai:m", "status 500", attempts=3, status=500),
    errors.McpServerError("files", "does not start"),
    errors.McpToolError("read_file", "no such file"),
    errors.CheckpointKeyError("/p", "2026", "open the store with `cipher`"),
    errors.CheckpointErasedError("/p", "ann"),
    errors.MissingDependencyError("rich", "cli"),
    errors.InterruptExpiredError("ask", datetime(2031, 4, 1, tzinfo=UTC)),
]


def classes():
    # A set, because the Java names are the same classes.
    return {each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, GraphKitError)}


def test_every_error_has_an_example():
    assert {type(each) for each in EXAMPLES} == classes()


@pytest.mark.requirement("P80")
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_it_pickles(error):
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert (str(twin), twin.args) == (str(error), error.args)
    assert vars(twin) == vars(error)
    assert getattr(twin, "errno", None) == getattr(error, "errno", None)


def test_an_error_of_another_saver_shows_all_its_arguments():
    assert str(CheckpointerError("bucket", "key")) == "('bucket', 'key')"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_its_arguments_are_attributes(error):
    arguments = inspect.signature(type(error).__init__).parameters.keys() - {"self", "args", "kwargs"}
    # The error of a CheckpointStorageError is its cause, and its number is `errno`.
    assert arguments <= vars(error).keys() | {"error"}


@pytest.mark.requirement("P80")
@pytest.mark.parametrize(
    ("base", "caught"),
    [
        (ValueError, [errors.GraphStateError, errors.CheckpointerConfigurationError, errors.AgentConfigurationError]),
        (RuntimeError, [errors.GraphRunnerError, errors.ModelError]),
        (errors.GraphRunnerError, [errors.NodeExecutionError, errors.MaxIterationsError]),
        (LookupError, [errors.CheckpointNotFoundError]),
        (errors.CheckpointKeyError, [errors.CheckpointErasedError]),
        (TypeError, [errors.CheckpointSerializationError]),
        (TimeoutError, [errors.ThreadBusyError]),
        (OSError, [errors.CheckpointStorageError]),
        (PermissionError, [errors.AccessDeniedError]),
        (errors.AgentConfigurationError, [errors.AgentFileNotFoundError, errors.AgentFileSyntaxError]),
        (ConnectionError, [errors.McpServerError]),
        (ImportError, [errors.MissingDependencyError]),
    ],
)
def test_they_are_caught_as_what_they_are(base, caught):
    assert all(issubclass(cls, base) for cls in caught)


@pytest.mark.requirement("P80")
def test_savers_errors_have_one_root():
    savers_own = [cls for cls in classes() if cls.__name__.startswith(("Checkpoint", "Thread", "Access"))]
    assert all(issubclass(cls, CheckpointerError) for cls in savers_own)


def test_exit_codes_of_kinds_differ():
    codes = [cls.exit_code for cls in classes() if not issubclass(cls, GraphRunnerError)]
    assert len(set(codes)) == len(codes)
