"""What writers of savers need besides the contract in `graphkit.abc`.

Pending writes and the status that follows from them, retention, incomplete threads, run locks, ids,
and calls in threads: what the savers of graphkit use themselves.

This module is provisional until 1.0: its names may change between minor versions.
"""

from graphkit._public_names import set_public_module
from graphkit._records.checkpoint import generate_id
from graphkit._records.config import check_limit, resolve_thread_id
from graphkit._records.principal import acting_as, get_principal
from graphkit._saver.failed_threads import FailedThreads, is_out_of_resources
from graphkit._saver.incomplete import (
    IncomingThread,
    check_complete,
    check_copy,
    copy_thread,
    find_copied_key,
    read_history,
)
from graphkit._saver.langgraph_writes import EARLY_WRITES, LANGGRAPH, MADE_BY, WRITE as LANGGRAPH_WRITE
from graphkit._saver.retention import Retention
from graphkit._saver.run_lock import get_held_run_locks
from graphkit._saver.status import make_checkpoint_info, with_status, with_status_when_stored
from graphkit._saver.submissions import is_schedule
from graphkit._saver.watch import WatchEnd, is_namespace_inside, iter_changes
from graphkit._saver.writes import (
    LatestCheckpoint,
    check_tags,
    check_writes,
    derive_status,
    derive_stop,
    find_failure,
    find_waiting_interrupts,
    has_status_mark,
    is_incomplete,
)
from graphkit._to_thread import run_in_thread

__all__ = [
    "EARLY_WRITES",
    "LANGGRAPH",
    "LANGGRAPH_WRITE",
    "MADE_BY",
    "FailedThreads",
    "IncomingThread",
    "LatestCheckpoint",
    "Retention",
    "WatchEnd",
    "acting_as",
    "check_complete",
    "check_copy",
    "check_limit",
    "check_tags",
    "check_writes",
    "copy_thread",
    "derive_status",
    "derive_stop",
    "find_copied_key",
    "find_failure",
    "find_waiting_interrupts",
    "generate_id",
    "get_held_run_locks",
    "get_principal",
    "has_status_mark",
    "is_incomplete",
    "is_namespace_inside",
    "is_out_of_resources",
    "is_schedule",
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
