"""What writers of savers need besides the contract in `graphkit.abc`.

What the savers of graphkit use themselves:

- `Codec` packs every value that a state may hold into msgpack and restores it exactly. It refuses other values with
  a `CheckpointSerializationError` that names their path. `ApplicationType`, `find_class` and what belongs to them
  take objects of an application apart and make them again, for a serializer with a format of its own.
- `freeze`, `FrozenDict` and `FrozenList`: states, metadata and pending writes consist of lists and dicts that cannot
  change, and that every later state and every checkpoint share. `Changes` is what a step changed.
- Pending writes and the status that follows from them, retention, incomplete threads, run locks, ids, the parts of
  reports, checks of options, and calls in threads.

This module is provisional until 1.0: its names may change between minor versions.
"""

from typing import TYPE_CHECKING, Final

from graphkit._options import check_count, check_function, check_time
from graphkit._public_names import import_when_used, set_public_module
from graphkit._records.checkpoint import generate_id
from graphkit._records.config import ConfigLike, ThreadLike, acting_as, check_limit, get_principal, resolve_thread_id
from graphkit._saver.capabilities import Progress
from graphkit._saver.failed_threads import FailedThreads, concerns_all_threads
from graphkit._saver.incomplete import (
    IncomingThread,
    check_complete,
    check_copy,
    copy_thread,
    find_copied_key,
    remove_by_rewriting,
)
from graphkit._saver.langgraph_writes import EARLY_WRITES, LANGGRAPH, MADE_BY, WRITE as LANGGRAPH_WRITE
from graphkit._saver.retention import Retention, RetentionOptions
from graphkit._saver.run_lock import get_held_run_locks, hold_process_lock, is_process_lock_held, is_process_lock_mine
from graphkit._saver.status import make_checkpoint_info, with_status, with_status_when_stored
from graphkit._saver.watch import Change, ChangeKind, WatchEnd, is_namespace_inside, iter_changes
from graphkit._saver.writes import (
    check_tags,
    check_writes,
    derive_status,
    derive_stop,
    find_waiting_interrupts,
    has_status_mark,
    is_incomplete,
    is_schedule,
)
from graphkit._to_thread import run_in_thread
from graphkit._values.frozen import PLAIN, PRIVATE, VALUE, FrozenDict, FrozenList, freeze, kind_of, private_copy
from graphkit._values.state import REMOVED, SET, Changes

if TYPE_CHECKING:
    from graphkit._saver.reports import FileRepair, FileReport, FileState, LostCheckpoint, ThreadReport, Unfinished
    from graphkit._values.codec import Codec, MalformedDataError
    from graphkit._values.codec.type_registry import (
        ApplicationType,
        FieldsError,
        find_class,
        get_module_name,
        is_renamed,
    )

__all__ = [
    "EARLY_WRITES",
    "LANGGRAPH",
    "LANGGRAPH_WRITE",
    "MADE_BY",
    "PLAIN",
    "PRIVATE",
    "REMOVED",
    "SET",
    "VALUE",
    "ApplicationType",
    "Change",
    "ChangeKind",
    "Changes",
    "Codec",
    "ConfigLike",
    "FailedThreads",
    "FieldsError",
    "FileRepair",
    "FileReport",
    "FileState",
    "FrozenDict",
    "FrozenList",
    "IncomingThread",
    "LostCheckpoint",
    "MalformedDataError",
    "Progress",
    "Retention",
    "RetentionOptions",
    "ThreadLike",
    "ThreadReport",
    "Unfinished",
    "WatchEnd",
    "acting_as",
    "check_complete",
    "check_copy",
    "check_count",
    "check_function",
    "check_limit",
    "check_tags",
    "check_time",
    "check_writes",
    "concerns_all_threads",
    "copy_thread",
    "derive_status",
    "derive_stop",
    "find_class",
    "find_copied_key",
    "find_waiting_interrupts",
    "freeze",
    "generate_id",
    "get_held_run_locks",
    "get_module_name",
    "get_principal",
    "has_status_mark",
    "hold_process_lock",
    "import_when_used",
    "is_incomplete",
    "is_namespace_inside",
    "is_process_lock_held",
    "is_process_lock_mine",
    "is_renamed",
    "is_schedule",
    "iter_changes",
    "kind_of",
    "make_checkpoint_info",
    "private_copy",
    "remove_by_rewriting",
    "resolve_thread_id",
    "run_in_thread",
    "set_public_module",
    "with_status",
    "with_status_when_stored",
]

_CODEC: Final = ("Codec", "MalformedDataError")
_TYPES: Final = ("ApplicationType", "FieldsError", "find_class", "get_module_name", "is_renamed")
_REPORTS: Final = ("FileRepair", "FileReport", "FileState", "LostCheckpoint", "ThreadReport", "Unfinished")

__getattr__, __dir__ = import_when_used(
    globals(),
    {
        **dict.fromkeys(_CODEC, "graphkit._values.codec"),
        **dict.fromkeys(_TYPES, "graphkit._values.codec.type_registry"),
    },
    dict.fromkeys(_REPORTS, "graphkit._saver.reports"),
)

set_public_module(globals(), __name__)
