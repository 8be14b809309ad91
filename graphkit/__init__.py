"""graphkit: durable graphs on plain files.

This module exports the public names. Modules whose name starts with an underscore are private and
may change. `savers` contains the savers, `graphkit.abc` the contract for further ones, and
`graphkit.testing` the tests of that contract.
"""

from typing import TYPE_CHECKING, Final

from graphkit._public_names import import_when_used, set_public_module
from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import END, START, RunnableConfig, StreamMode
from graphkit._records.context import GraphInterrupt, GraphInterruptException, interrupt, sleep, wait_until
from graphkit._records.output import (
    CheckpointInfo,
    Command,
    GraphInput,
    GraphResume,
    HistorySummary,
    InterruptableAction,
    InterruptionMetadata,
    MapProgress,
    NodeOutput,
    StateSnapshot,
    StreamingOutput,
    WaitingInterrupt,
)
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions
from graphkit._values.channels import (
    REMOVE,
    RESET,
    AppenderChannel,
    Channel,
    Channels,
    Reducer,
    RemoveByHash,
    RemoveIdentifier,
    ReplaceAllWith,
)
from graphkit._values.state import AgentState, MapFailure, MessagesState, StateSerializer
from graphkit.errors import *

if TYPE_CHECKING:
    from graphkit._build.state_graph import MessagesStateGraph, StateGraph
    from graphkit._compiled import CompiledGraph
    from graphkit._diagram import GraphRepresentation
    from graphkit._plan.compile_config import CompileConfig
    from graphkit._plan.events import Event, Observer
    from graphkit._plan.retry import RetryPolicy

__version__ = "0.1.0"

# All names of graphkit.errors are among them: mypy understands only a list that is written out.
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
    "CheckpointErasedError",
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
    "InterruptExpiredError",
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
    "sleep",
    "wait_until",
]

_LAZY: Final = {
    "CompileConfig": "graphkit._plan.compile_config",
    "CompiledGraph": "graphkit._compiled",
    "Event": "graphkit._plan.events",
    "GraphRepresentation": "graphkit._diagram",
    "MessagesStateGraph": "graphkit._build.state_graph",
    "Observer": "graphkit._plan.events",
    "RetryPolicy": "graphkit._plan.retry",
    "StateGraph": "graphkit._build.state_graph",
}
"""The modules of what builds and runs graphs: a process that only uses a store needs none of it."""


__getattr__, __dir__ = import_when_used(globals(), _LAZY)

set_public_module(globals(), __name__)
