"""The contracts, for people who implement one: a saver, a serializer, an action or a channel.

Savers also find here what the savers of graphkit use: pending writes and the status that follows
from them, retention, run locks and watches. `graphkit.codec` has the codec for savers that store
bytes, and `graphkit.values` the read-only values of a state. docs/writing-a-saver.md is the guide.

Except for the contracts themselves, this module is provisional until 1.0: its names may change
between minor versions.
"""

from graphkit._public_names import set_public_module as set_public_module
from graphkit._records.checkpoint import generate_id as generate_id
from graphkit._records.config import ConfigLike as ConfigLike
from graphkit._records.interruptable import (
    InterruptableAction as InterruptableAction,
    InterruptibleAction as InterruptibleAction,
)
from graphkit._saver.arguments import (
    ThreadLike as ThreadLike,
    check_limit as check_limit,
    resolve_thread_id as resolve_thread_id,
)
from graphkit._saver.base import BaseCheckpointSaver as BaseCheckpointSaver
from graphkit._saver.capabilities import (
    HasBaseDirectory as HasBaseDirectory,
    LostCheckpoint as LostCheckpoint,
    Progress as Progress,
    RepairReport as RepairReport,
    RotationReport as RotationReport,
    SupportsClose as SupportsClose,
    SupportsCompact as SupportsCompact,
    SupportsDeleteIdle as SupportsDeleteIdle,
    SupportsExists as SupportsExists,
    SupportsFlush as SupportsFlush,
    SupportsRemove as SupportsRemove,
    SupportsRepair as SupportsRepair,
    SupportsReplay as SupportsReplay,
    SupportsRotate as SupportsRotate,
    SupportsVerify as SupportsVerify,
    VerifyReport as VerifyReport,
)
from graphkit._saver.checkpoint_info import make_checkpoint_info as make_checkpoint_info
from graphkit._saver.incomplete import (
    IncomingThread as IncomingThread,
    check_complete as check_complete,
    check_copy as check_copy,
    copy_thread as copy_thread,
    read_history as read_history,
)
from graphkit._saver.langgraph_writes import (
    LANGGRAPH as LANGGRAPH,
    MADE_BY as MADE_BY,
    WRITE as LANGGRAPH_WRITE,
)
from graphkit._saver.retention import Retention as Retention, RetentionOptions as RetentionOptions
from graphkit._saver.run_lock import get_held_run_locks as get_held_run_locks
from graphkit._saver.serializer import StateSerializer as StateSerializer
from graphkit._saver.status import (
    with_status as with_status,
    with_status_when_stored as with_status_when_stored,
)
from graphkit._saver.versions import HasVersions as HasVersions
from graphkit._saver.watch import (
    Change as Change,
    ChangeKind as ChangeKind,
    Watch as Watch,
    is_namespace_inside as is_namespace_inside,
)
from graphkit._saver.writes import (
    LatestCheckpoint as LatestCheckpoint,
    check_tags as check_tags,
    check_writes as check_writes,
    derive_status as derive_status,
    derive_stop as derive_stop,
    find_failure as find_failure,
    find_waiting_interrupts as find_waiting_interrupts,
    is_incomplete as is_incomplete,
    iter_changes as iter_changes,
)
from graphkit._to_thread import run_in_thread as run_in_thread
from graphkit._values.channels import Channel as Channel, Reducer as Reducer, RemoveIdentifier as RemoveIdentifier

__all__ = [
    "LANGGRAPH",
    "LANGGRAPH_WRITE",
    "MADE_BY",
    "BaseCheckpointSaver",
    "Change",
    "ChangeKind",
    "Channel",
    "ConfigLike",
    "HasBaseDirectory",
    "HasVersions",
    "IncomingThread",
    "InterruptableAction",
    "InterruptibleAction",
    "LatestCheckpoint",
    "LostCheckpoint",
    "Progress",
    "Reducer",
    "RemoveIdentifier",
    "RepairReport",
    "Retention",
    "RetentionOptions",
    "RotationReport",
    "StateSerializer",
    "SupportsClose",
    "SupportsCompact",
    "SupportsDeleteIdle",
    "SupportsExists",
    "SupportsFlush",
    "SupportsRemove",
    "SupportsRepair",
    "SupportsReplay",
    "SupportsRotate",
    "SupportsVerify",
    "ThreadLike",
    "VerifyReport",
    "Watch",
    "check_complete",
    "check_copy",
    "check_limit",
    "check_tags",
    "check_writes",
    "copy_thread",
    "derive_status",
    "derive_stop",
    "find_failure",
    "find_waiting_interrupts",
    "generate_id",
    "get_held_run_locks",
    "is_incomplete",
    "is_namespace_inside",
    "iter_changes",
    "make_checkpoint_info",
    "read_history",
    "resolve_thread_id",
    "run_in_thread",
    "set_public_module",
    "with_status",
    "with_status_when_stored",
]

set_public_module(globals(), __name__)
