"""graphkit: durable graphs on plain files.

The public names live here; everything in a module that starts with an underscore is free to move. `savers` has the
places where state is kept, `graphkit.abc` what one implements to add another, `graphkit.testing` what tests it.
"""

from graphkit._abc import BaseCheckpointSaver as BaseCheckpointSaver
from graphkit._abc import HasVersions as HasVersions
from graphkit._abc import InterruptableAction as InterruptableAction
from graphkit._abc import StateSerializer as StateSerializer
from graphkit._channels import REMOVE as REMOVE
from graphkit._channels import RESET as RESET
from graphkit._channels import AppenderChannel as AppenderChannel
from graphkit._channels import Channel as Channel
from graphkit._channels import Channels as Channels
from graphkit._channels import Reducer as Reducer
from graphkit._channels import RemoveByHash as RemoveByHash
from graphkit._channels import RemoveIdentifier as RemoveIdentifier
from graphkit._channels import ReplaceAllWith as ReplaceAllWith
from graphkit._checkpoint import Checkpoint as Checkpoint
from graphkit._checkpoint import Tag as Tag
from graphkit._compile_config import CompileConfig as CompileConfig
from graphkit._compiled import CompiledGraph as CompiledGraph
from graphkit._config import END as END
from graphkit._config import START as START
from graphkit._config import RunnableConfig as RunnableConfig
from graphkit._config import StreamMode as StreamMode
from graphkit._graph import MessagesStateGraph as MessagesStateGraph
from graphkit._graph import StateGraph as StateGraph
from graphkit._output import CheckpointInfo as CheckpointInfo
from graphkit._output import Command as Command
from graphkit._output import GraphResume as GraphResume
from graphkit._output import InterruptionMetadata as InterruptionMetadata
from graphkit._output import NodeOutput as NodeOutput
from graphkit._output import StateSnapshot as StateSnapshot
from graphkit._output import StreamingOutput as StreamingOutput
from graphkit._output import WaitingInterrupt as WaitingInterrupt
from graphkit._state import AgentState as AgentState
from graphkit._state import MessagesState as MessagesState
from graphkit._visit import GraphInterrupt as GraphInterrupt
from graphkit._visit import interrupt as interrupt
from graphkit.errors import AccessDeniedError as AccessDeniedError
from graphkit.errors import CheckpointConflictError as CheckpointConflictError
from graphkit.errors import CheckpointCorruptionError as CheckpointCorruptionError
from graphkit.errors import CheckpointerConfigurationError as CheckpointerConfigurationError
from graphkit.errors import CheckpointerError as CheckpointerError
from graphkit.errors import CheckpointFormatError as CheckpointFormatError
from graphkit.errors import CheckpointNotFoundError as CheckpointNotFoundError
from graphkit.errors import CheckpointSerializationError as CheckpointSerializationError
from graphkit.errors import CheckpointStorageError as CheckpointStorageError
from graphkit.errors import GraphKitError as GraphKitError
from graphkit.errors import GraphRunnerError as GraphRunnerError
from graphkit.errors import GraphRunnerException as GraphRunnerException
from graphkit.errors import GraphStateError as GraphStateError
from graphkit.errors import GraphStateException as GraphStateException
from graphkit.errors import MaxIterationsError as MaxIterationsError
from graphkit.errors import MissingDependencyError as MissingDependencyError
from graphkit.errors import NodeExecutionError as NodeExecutionError
from graphkit.errors import ThreadBusyError as ThreadBusyError

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
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
    "CheckpointNotFoundError",
    "CheckpointSerializationError",
    "CheckpointStorageError",
    "CheckpointerConfigurationError",
    "CheckpointerError",
    "Command",
    "CompileConfig",
    "CompiledGraph",
    "END",
    "GraphInterrupt",
    "GraphKitError",
    "GraphResume",
    "GraphRunnerError",
    "GraphRunnerException",
    "GraphStateError",
    "GraphStateException",
    "HasVersions",
    "InterruptableAction",
    "InterruptionMetadata",
    "MaxIterationsError",
    "MessagesState",
    "MessagesStateGraph",
    "MissingDependencyError",
    "NodeExecutionError",
    "NodeOutput",
    "REMOVE",
    "RESET",
    "Reducer",
    "RemoveByHash",
    "RemoveIdentifier",
    "ReplaceAllWith",
    "RunnableConfig",
    "START",
    "StateGraph",
    "StateSerializer",
    "StateSnapshot",
    "StreamMode",
    "StreamingOutput",
    "Tag",
    "ThreadBusyError",
    "WaitingInterrupt",
    "interrupt",
]
