"""graphkit: durable graphs on plain files.

This module exports the public names. Modules whose name starts with an underscore are private and
may change. `savers` contains the savers, `graphkit.abc` the contract for further ones, and
`graphkit.testing` the tests of that contract.
"""

from typing import TYPE_CHECKING, Any, Final

from graphkit._public_names import set_public_module
from graphkit._records.checkpoint import Checkpoint as Checkpoint, Tag as Tag
from graphkit._records.config import (
    END as END,
    START as START,
    RunnableConfig as RunnableConfig,
    StreamMode as StreamMode,
)
from graphkit._records.context import (
    GraphInterrupt as GraphInterrupt,
    GraphInterruptException as GraphInterruptException,
    interrupt as interrupt,
)
from graphkit._records.output import (
    CheckpointInfo as CheckpointInfo,
    Command as Command,
    GraphInput as GraphInput,
    GraphResume as GraphResume,
    HistorySummary as HistorySummary,
    InterruptableAction as InterruptableAction,
    InterruptionMetadata as InterruptionMetadata,
    MapProgress as MapProgress,
    NodeOutput as NodeOutput,
    StateSnapshot as StateSnapshot,
    StreamingOutput as StreamingOutput,
    WaitingInterrupt as WaitingInterrupt,
)
from graphkit._saver.base import BaseCheckpointSaver as BaseCheckpointSaver
from graphkit._saver.versions import HasVersions as HasVersions
from graphkit._values.channels import (
    REMOVE as REMOVE,
    RESET as RESET,
    AppenderChannel as AppenderChannel,
    Channel as Channel,
    Channels as Channels,
    Reducer as Reducer,
    RemoveByHash as RemoveByHash,
    RemoveIdentifier as RemoveIdentifier,
    ReplaceAllWith as ReplaceAllWith,
)
from graphkit._values.state import (
    AgentState as AgentState,
    MapFailure as MapFailure,
    MessagesState as MessagesState,
    StateSerializer as StateSerializer,
)
from graphkit.errors import (
    AccessDeniedError as AccessDeniedError,
    AgentConfigurationError as AgentConfigurationError,
    AgentFileNotFoundError as AgentFileNotFoundError,
    AgentFileSyntaxError as AgentFileSyntaxError,
    CheckpointConflictError as CheckpointConflictError,
    CheckpointCorruptionError as CheckpointCorruptionError,
    CheckpointerConfigurationError as CheckpointerConfigurationError,
    CheckpointerError as CheckpointerError,
    CheckpointFormatError as CheckpointFormatError,
    CheckpointKeyError as CheckpointKeyError,
    CheckpointNotFoundError as CheckpointNotFoundError,
    CheckpointSerializationError as CheckpointSerializationError,
    CheckpointStorageError as CheckpointStorageError,
    DefaultThreadWarning as DefaultThreadWarning,
    GraphKitError as GraphKitError,
    GraphRunnerError as GraphRunnerError,
    GraphRunnerException as GraphRunnerException,
    GraphStateError as GraphStateError,
    GraphStateException as GraphStateException,
    MaxIterationsError as MaxIterationsError,
    McpServerError as McpServerError,
    McpToolError as McpToolError,
    MissingDependencyError as MissingDependencyError,
    ModelError as ModelError,
    NodeExecutionError as NodeExecutionError,
    ThreadBusyError as ThreadBusyError,
    ToolError as ToolError,
)

if TYPE_CHECKING:
    from graphkit._build.state_graph import MessagesStateGraph as MessagesStateGraph, StateGraph as StateGraph
    from graphkit._compiled import CompiledGraph as CompiledGraph
    from graphkit._diagram.render import GraphRepresentation as GraphRepresentation
    from graphkit._plan.compile_config import CompileConfig as CompileConfig
    from graphkit._plan.events import Event as Event, Observer as Observer
    from graphkit._plan.retry import RetryPolicy as RetryPolicy

__version__ = "0.1.0"

__all__ = [
    "END",
    "REMOVE",
    "RESET",
    "START",
    "AccessDeniedError",
    "AgentConfigurationError",
    "AgentFileNotFoundError",
    "AgentFileSyntaxError",
    "AgentState",
    "AppenderChannel",
    "BaseCheckpointSaver",
    "Channel",
    "Channels",
    "Checkpoint",
    "CheckpointConflictError",
    "CheckpointCorruptionError",
    "CheckpointFormatError",
    "CheckpointInfo",
    "CheckpointKeyError",
    "CheckpointNotFoundError",
    "CheckpointSerializationError",
    "CheckpointStorageError",
    "CheckpointerConfigurationError",
    "CheckpointerError",
    "Command",
    "CompileConfig",
    "CompiledGraph",
    "DefaultThreadWarning",
    "Event",
    "GraphInput",
    "GraphInterrupt",
    "GraphInterruptException",
    "GraphKitError",
    "GraphRepresentation",
    "GraphResume",
    "GraphRunnerError",
    "GraphRunnerException",
    "GraphStateError",
    "GraphStateException",
    "HasVersions",
    "HistorySummary",
    "InterruptableAction",
    "InterruptionMetadata",
    "MapFailure",
    "MapProgress",
    "MaxIterationsError",
    "McpServerError",
    "McpToolError",
    "MessagesState",
    "MessagesStateGraph",
    "MissingDependencyError",
    "ModelError",
    "NodeExecutionError",
    "NodeOutput",
    "Observer",
    "Reducer",
    "RemoveByHash",
    "RemoveIdentifier",
    "ReplaceAllWith",
    "RetryPolicy",
    "RunnableConfig",
    "StateGraph",
    "StateSerializer",
    "StateSnapshot",
    "StreamMode",
    "StreamingOutput",
    "Tag",
    "ThreadBusyError",
    "ToolError",
    "WaitingInterrupt",
    "interrupt",
]

_LAZY: Final = {
    "CompileConfig": "graphkit._plan.compile_config",
    "CompiledGraph": "graphkit._compiled",
    "Event": "graphkit._plan.events",
    "GraphRepresentation": "graphkit._diagram.render",
    "MessagesStateGraph": "graphkit._build.state_graph",
    "Observer": "graphkit._plan.events",
    "RetryPolicy": "graphkit._plan.retry",
    "StateGraph": "graphkit._build.state_graph",
}
"""The modules of what builds and runs graphs: a process that only uses a store needs none of it."""


def __getattr__(name: str) -> Any:
    """Import what builds and runs graphs when one of its names is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    # All of them, so that each class has its public path, whoever made an object of it.
    for each, module in _LAZY.items():
        globals()[each] = getattr(import_module(module), each)
    set_public_module(globals(), __name__)
    return globals()[name]


def __dir__() -> list[str]:
    """List the public names, even before their first use."""
    return sorted({*globals(), *__all__})


set_public_module(globals(), __name__)
