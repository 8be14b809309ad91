"""Operations on stored threads that need no graph: submit, cancel, answer, update, fork, erase and others.

    submit(saver, {"item": "lamp"}, "order-17")  # a run that a worker begins
    cancel(saver, "order-17", reason="sold out") # end the run, whichever process runs it
    pause(saver, "order-17")                     # stop it before its next node
    answer(saver, "order-17", "yes")             # answer a pending interrupt
    update(saver, "order-17", {"city": "Bern"})  # values that the next resume merges
    fork(saver, "order-17", "order-17-again")    # a new thread that begins like another
    rollback(saver, config)                      # an older checkpoint becomes the latest
    erase(saver, "order-17")                     # delete it, and leave no byte of it in the store

The command line and the worker call these functions; so can a web page, a bot or a test. They run
no node: the next resume of the thread, in any process, continues from what they stored.
`CompiledGraph.update_state` is the operation that needs the graph: it merges at once and can choose
the next node. Each of these functions has an async twin, such as `asubmit`, which does the same in a thread.

Every function takes the run lock of the thread that it changes, and blocks while another run holds
it, up to the saver's `lock_timeout`; `cancel` and `pause` leave a request to that run instead. Code
that holds the lock with `saver.run_lock(...)` may call them inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, final

from graphkit._engine.submit import freeze_update, freeze_value, refuse_other_engine, require_root, submit
from graphkit._erasure import ErasureLedger, ErasureReport, erase, erase_where
from graphkit._public_names import set_public_module
from graphkit._records.checkpoint import Checkpoint, generate_id
from graphkit._records.config import END, ConfigLike, RunnableConfig, ThreadLike, acts_for, resolve_thread_id
from graphkit._records.output import CheckpointInfo, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import check_rights, load_checkpoint
from graphkit._saver.incomplete import (
    StoredCheckpoint,
    check_complete,
    fill_new_thread,
    find_own_key,
    refuse_incomplete,
)
from graphkit._saver.run_lock import locks_held_by_runs
from graphkit._saver.status import (
    CANCEL_REQUEST,
    CONTINUED_EXECUTION,
    PAUSE_REQUEST,
    RESUMED_AT,
    WRITES_TAKEN_FROM,
    find_mailboxes,
    public_metadata,
    read_left_writes,
)
from graphkit._saver.writes import (
    ANSWER,
    CANCELLED,
    INTERRUPT,
    can_answer,
    has_expired,
    next_update_key,
    stops_in,
    writes_of_copy,
)
from graphkit._to_thread import make_async
from graphkit._values.frozen import FrozenDict
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ThreadBusyError,
)

__all__ = [
    "ErasureLedger",
    "ErasureReport",
    "ForkedThread",
    "aanswer",
    "acancel",
    "aerase",
    "aerase_where",
    "afork",
    "answer",
    "apause",
    "arollback",
    "asubmit",
    "aupdate",
    "cancel",
    "erase",
    "erase_where",
    "fork",
    "lineage",
    "pause",
    "rollback",
    "submit",
    "update",
]

_OF_ITS_RUN: Final = frozenset({WRITES_TAKEN_FROM, RESUMED_AT, CONTINUED_EXECUTION})
"""Metadata keys that tie a checkpoint to the run that stored it. A copy that starts a run of its
own has none of them."""


_PATIENCE: Final = 0.5
"""Seconds for which a request waits for the run to end. Longer than a run goes without a look for
requests: what stops or ends before it has looked has then released its lock, and is found ended."""
_WAITS_FOR_ENDING: Final = 3
"""How many times in a row it waits for a run that has recorded how it ends, to release its lock."""
_MAX_ROUNDS: Final = 20
"""How many times it follows a run that goes on without looking: that of an earlier version of graphkit."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedThread:
    """A thread that `fork` made."""

    config: RunnableConfig
    """Names the latest checkpoint of the new thread."""
    origin: CheckpointInfo
    """The checkpoint of the other thread at which they part."""
    checkpoints: int
    """How many checkpoints the new thread has."""


@acts_for("thread")
def cancel(saver: BaseCheckpointSaver, thread: ThreadLike, *, reason: str | None = None) -> bool:
    """Cancel the run of a thread, whichever process runs it.

    A run that is going on ends before its next node, with everything stored; a node that asks
    `config.is_cancelled` may return early. It looks for requests at most five times a second, and may
    begin a node in between. A thread that is queued, sleeping, interrupted, answered, stalled or failed
    is cancelled at once. No worker takes a cancelled thread, and it waits for no answer; `resume`
    continues it, and it takes new input.

    Args:
        saver: the store of the thread.
        thread: the thread id, or a config that names the thread.
        reason: stored with the thread.

    Returns:
        True if the thread is cancelled, or if its run has the request; waits half a second for the run to
        end. A run that is in its last node then finishes all the same. False if the thread has
        finished, or was cancelled before.

    Raises:
        CheckpointNotFoundError: there is no such thread; a run with `durability="exit"` may not have
            stored one yet.
        CheckpointConflictError: the thread is incomplete, or belongs to LangGraph.
        CheckpointSerializationError: the reason cannot be stored.
        CheckpointerConfigurationError: the config names the namespace of a nested graph.
        CheckpointStorageError: the store failed. The thread is as it was; its run may have the
            request.
    """
    config = RunnableConfig(require_root(thread).thread)
    request = freeze_value("reason", {"reason": reason, "at": datetime.now(UTC)})

    def cancel_idle(latest: CheckpointInfo, asked: Sequence[str]) -> bool:
        if latest.stopped == "cancelled":
            return bool(asked)
        if not latest.stopped and latest.next_node_id == END:
            return False
        stopped = config.with_check_point_id(latest.id)
        left = read_left_writes(saver, stopped, latest)
        saver.put_writes(stopped, {**left, CANCELLED: request})
        return True

    return _stop_run(saver, config, {CANCEL_REQUEST: request}, cancel_idle)


@acts_for("thread")
def pause(saver: BaseCheckpointSaver, thread: ThreadLike) -> bool:
    """Pause the run of a thread, whichever process runs it; it stops as with `CompiledGraph.pause`.

    The run stops before its next node, with everything stored, and is `interrupted`. `resume` or an
    answer to the pause continues it.

    Args:
        saver: the store of the thread.
        thread: the thread id, or a config that names the thread.

    Returns:
        True if a run has the request, or has stopped; as with `cancel`, a run in its last node finishes.
        False if no run is going on.

    Raises:
        As `cancel`.
    """
    config = RunnableConfig(require_root(thread).thread)
    request = freeze_value("at", {"reason": None, "at": datetime.now(UTC)})

    def is_stopped(latest: CheckpointInfo, asked: Sequence[str]) -> bool:
        return bool(asked) and latest.stopped == "interrupted"

    return _stop_run(saver, config, {PAUSE_REQUEST: request}, is_stopped)


@acts_for("thread")
def answer(
    saver: BaseCheckpointSaver,
    thread: ThreadLike,
    value: Any,
    *,
    interrupt: str | None = None,
    clock: Callable[[], datetime] | None = None,
) -> WaitingInterrupt:
    """Answer a pending interrupt of a thread; return the interrupt that was answered.

    No node runs: the answer is stored, and the next resume of the thread continues with it.

    Args:
        saver: the store of the thread.
        thread: the thread id, or a config that names the thread.
        value: what `interrupt()` returns. At a declared stop, before or after a node, a mapping to
            merge into the state, or None to continue without a change.
        interrupt: the id of the interrupt; required if several are pending.
        clock: returns the time, aware; that of the system by default.

    Raises:
        CheckpointConflictError: no interrupt is pending, or several are and `interrupt` names none
            of them; its deadline has passed; or the thread is incomplete, or belongs to LangGraph.
        CheckpointNotFoundError: there is no such thread, or it has no pending interrupt with this id.
        CheckpointSerializationError: the value cannot be stored, or a declared stop is answered
            with something else than a mapping or None.
        ThreadBusyError: another run holds the thread.

        None of them changes the store.
    """
    thread_id = resolve_thread_id(thread)
    with saver.run_lock(RunnableConfig(thread_id)):
        refuse_incomplete(saver, thread_id)
        stop = _find_interrupt(saver, thread_id, interrupt)
        # Under the lock that a resume holds when it looks whether the deadline has passed: one of the two wins.
        if has_expired(stop.deadline, datetime.now(UTC) if clock is None else clock()):
            assert stop.deadline is not None
            reason = f"the answer is too late: the deadline of interrupt {stop.id} was {stop.deadline.isoformat()}"
            raise CheckpointConflictError(thread_id, f"{reason}; a worker, or a resume, goes on without it")
        config = RunnableConfig(thread_id, stop.checkpoint_id, stop.checkpoint_ns)
        history = config.with_check_point_id(None)
        (latest,) = saver.recent(history, limit=1)
        refuse_other_engine(latest.metadata, thread_id)
        if not can_answer(stop.when, value) and value is not None:
            raise CheckpointSerializationError(
                "value",
                type(value).__name__,
                f"the run stopped {stop.when} {stop.node_id!r}: "
                "answer with a mapping to merge into the state, or with None",
            )
        stored = value  # None: the run moves past a declared stop
        if stop.when == "inside":
            stored = freeze_value("value", value)
        elif value is not None:
            stored = freeze_update("value", value)
        saver.put_writes(config, {ANSWER + stop.id: stored})
    return stop


@acts_for("config")
def update(saver: BaseCheckpointSaver, config: ThreadLike, values: Mapping[str, Any]) -> RunnableConfig:
    """Store values that the next resume merges into the state, through the graph's channels.

    No checkpoint is added: the values are pending writes of the latest one. The result of several
    updates is that of merging them one after the other.

    Args:
        saver: the store of the thread.
        config: a thread id, or a config that names the thread and the namespace. If it names a
            checkpoint, that must be the latest.
        values: the update. It may have markers such as RESET; it must not have transient keys,
            which only the graph knows.

    Returns:
        The config of the checkpoint that the values were stored with.

    Raises:
        CheckpointNotFoundError: the thread has no checkpoint in this namespace.
        CheckpointConflictError: the checkpoint that the config names is not the latest; or the
            thread is incomplete, or belongs to LangGraph.
        CheckpointSerializationError: the values are not a mapping, or one of them cannot be stored.
        ThreadBusyError: another run holds the thread.

        None of them changes the store.
    """
    config = RunnableConfig.of(config)
    recorded = freeze_update("values", values)
    with saver.run_lock(config):
        latest = _find_own_latest(saver, config.with_check_point_id(None))
        if config.checkpoint_id not in {None, latest.id}:
            raise CheckpointConflictError(
                config.thread,
                f"checkpoint {config.checkpoint_id} is not the latest, which is {latest.id}",
            )
        config = config.with_check_point_id(latest.id)
        left = read_left_writes(saver, config, latest)
        key = next_update_key({**left, **saver.get_writes(config)})
        saver.put_writes(config, {**left, key: recorded})

    return config


@acts_for("config")
def fork(
    saver: BaseCheckpointSaver,
    config: ThreadLike,
    target: ThreadLike,
    *,
    created_at: datetime | None = None,
) -> ForkedThread:
    """Make a new thread from a checkpoint of another and from the checkpoints that led to it.

    The checkpoints keep their ids, and all but the last keep their times and tags. The interrupts
    that were recorded with the last one are pending in the new thread, unanswered; of a node that
    asked several times, the first. Histories of nested graphs are not copied. The other thread is
    only read, without its lock, and does not change.

    Args:
        saver: the store of both threads.
        config: a config that names the thread to fork and the checkpoint; without a checkpoint id,
            or as a thread id alone, the latest.
        target: the new thread.
        created_at: the time of the new thread's last checkpoint; now by default.

    Raises:
        CheckpointNotFoundError: there is no such thread or checkpoint.
        CheckpointConflictError: the new thread is not empty; or the other one is incomplete, and the
            config names none of the checkpoints that led to its latest.
        CheckpointerConfigurationError: the config names the namespace of a nested graph.
        CheckpointSerializationError: a checkpoint has a value whose type is not registered.
        ThreadBusyError: another run holds the new thread.

        None of them changes the store. If the process dies midway, the new thread is incomplete: no
        run and no worker takes it, and the next fork to its id replaces it.
    """
    source = require_root(config)
    new = RunnableConfig(resolve_thread_id(target), principal=source.principal)
    if source.checkpoint_id is None:
        refuse_incomplete(saver, source.thread)
    path = _path_to(saver, source)
    origin = path[-1]
    check_complete(source.thread, origin.metadata)
    source = source.with_check_point_id(origin.id)
    # All of it is read before the first put, because most that can go wrong goes wrong here. It is
    # read again for the copy: together, the states may not fit into memory.
    for info in path[:-1]:
        _read_for_fork(saver, info)
    original = load_checkpoint(saver, source)
    copy = _copy_as_fork(original, created_at, id=original.id, parent_id=original.parent_id)
    head = StoredCheckpoint(copy, writes=_read_interrupts(saver, source, original, copy.created_at))
    # A copy without the first state, which is not needed: the last one will do.
    first = original.with_metadata(FrozenDict(path[0].metadata))
    key = find_own_key(saver, source)
    with (
        saver.run_lock(new),
        fill_new_thread(saver, new.thread, source.thread, [""], first, key) as incoming,
    ):
        for info in path[:-1]:
            incoming.put("", _read_for_fork(saver, info))
        incoming.put("", head)

    return ForkedThread(config=new.with_check_point_id(original.id), origin=origin, checkpoints=len(path))


@acts_for("config")
def rollback(saver: BaseCheckpointSaver, config: ConfigLike, *, created_at: datetime | None = None) -> RunnableConfig:
    """Append a copy of an older checkpoint, from which the thread continues.

    The copy has an id of its own and the older checkpoint as its parent. Nothing is removed. The
    interrupts that were recorded with the older checkpoint are pending again, unanswered; of a node
    that asked several times, the first.

    Args:
        saver: the store of the thread.
        config: the thread and the checkpoint to return to.
        created_at: the time of the copy; now by default.

    Returns:
        The config of the copy, which is the latest checkpoint now.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        CheckpointConflictError: the thread is incomplete.
        CheckpointerConfigurationError: the config names no checkpoint, or the namespace of a nested
            graph.
        ThreadBusyError: another run holds the thread.

        None of them changes the store.
    """
    config = require_root(config)
    if config.checkpoint_id is None:
        raise CheckpointerConfigurationError("rollback needs a checkpoint_id: the checkpoint to return to")
    with saver.run_lock(config):
        refuse_incomplete(saver, config.thread)
        checkpoint = load_checkpoint(saver, config)
        check_rights(saver, config, "put", "put_writes")
        copy = _copy_as_fork(checkpoint, created_at, id=generate_id(), parent_id=checkpoint.id)
        writes = _read_interrupts(saver, config, checkpoint, copy.created_at)
        if writes:  # if the process dies before it has recorded them, a resume finds them there
            taken_from = checkpoint.id
            if read_left_writes(saver, config, checkpoint):
                taken_from = checkpoint.metadata[WRITES_TAKEN_FROM]
            copy = copy.with_metadata(FrozenDict({**copy.metadata, WRITES_TAKEN_FROM: taken_from}))
        # At a config with a checkpoint id, put replaces that checkpoint.
        return StoredCheckpoint(copy, writes).put(saver, config.with_check_point_id(None))


def lineage(history: Sequence[CheckpointInfo], checkpoint_id: str) -> list[CheckpointInfo]:
    """Return the checkpoints that led to one, oldest first and itself last.

    Follows the parents, and begins where a parent is no longer kept. The list is empty if the
    history does not have the checkpoint.
    """
    # Of several checkpoints with one id, the newest counts.
    by_id = {info.id: info for info in reversed(history)}
    path: list[CheckpointInfo] = []
    current = by_id.get(checkpoint_id)
    while current is not None and len(path) <= len(by_id):  # a damaged or foreign history may have a cycle
        path.append(current)
        current = by_id.get(current.parent_id or "")
    path.reverse()
    return path


# For async code. A cancelled caller does not leave the thread behind: what it began is done.
asubmit = make_async(submit)
acancel = make_async(cancel)
apause = make_async(pause)
aanswer = make_async(answer)
aupdate = make_async(update)
afork = make_async(fork)
arollback = make_async(rollback)
aerase = make_async(erase)
aerase_where = make_async(erase_where)


# Helpers


def _stop_run(
    saver: BaseCheckpointSaver,
    config: RunnableConfig,
    request: Mapping[str, Any],
    stop_idle: Callable[[CheckpointInfo, Sequence[str]], bool],
) -> bool:
    """Leave a request to the run of a thread, or act on the thread if it has no run.

    Args:
        saver: the store.
        config: names the thread.
        request: the pending write that is the request.
        stop_idle: called under the run lock if no run holds it, with the latest checkpoint, and the
            mailboxes at which a run was asked before; returns what the operation returns.
    """
    if saver.run_lock_key(config) in locks_held_by_runs():  # a node of the run itself, which could enter its lock
        _find_own_latest(saver, config)
        _put_requests(saver, config, find_mailboxes(saver, config), request)
        return True
    asked: list[str] = []
    waits = 0
    timeout = 0.0
    try:
        for _ in range(_MAX_ROUNDS):
            latest = _find_own_latest(saver, config)
            with suppress(ThreadBusyError), saver.run_lock(config, timeout):
                # A later run of the thread must not find what this one did not read.
                _put_requests(saver, config, asked, dict.fromkeys(request))
                return stop_idle(_find_own_latest(saver, config), asked)
            # The run goes on. It has the request if its mailbox is the one at which it was asked; if it is
            # another one, the run may have looked before the request was there. A run that has recorded how
            # it ends does not look any more, and is about to release its lock. But a branch may wait for a
            # human while others go on, and a run may have begun without storing anything.
            mailboxes = find_mailboxes(saver, config)
            is_ending = latest.stopped or latest.next_node_id == END
            if mailboxes == asked:
                waits += 1
                if not is_ending or waits == _WAITS_FOR_ENDING:
                    break
            else:
                _put_requests(saver, config, mailboxes, request)
                asked = mailboxes
            timeout = _PATIENCE
    except CheckpointNotFoundError:
        if not asked:
            raise
        return False  # the run has finished, and its thread was released or deleted
    return True


def _put_requests(
    saver: BaseCheckpointSaver, config: RunnableConfig, mailboxes: Sequence[str], writes: Mapping[str, Any]
) -> None:
    for mailbox in mailboxes:
        with suppress(CheckpointNotFoundError):  # it was pruned; the run goes on to another one
            saver.put_writes(config.with_check_point_id(mailbox), writes)


def _find_own_latest(saver: BaseCheckpointSaver, config: RunnableConfig) -> CheckpointInfo:
    """Return the latest checkpoint of a history.

    Raises:
        CheckpointNotFoundError: there is none.
        CheckpointConflictError: the thread is incomplete, or another engine made it.
    """
    refuse_incomplete(saver, config.thread)
    for latest in saver.recent(config, limit=1):
        refuse_other_engine(latest.metadata, config.thread)
        return latest
    raise CheckpointNotFoundError(config.thread)


def _find_interrupt(saver: BaseCheckpointSaver, thread_id: str, wanted: str | None) -> WaitingInterrupt:
    """Return the pending interrupt with an id, or the only one (None)."""
    pending = saver.interrupts(thread_id)
    if not pending:
        config = RunnableConfig(thread_id)
        for latest in saver.recent(config, limit=1):
            reason = f"no interrupt is pending, because the thread is {latest.status}"
            writes = saver.get_writes(config.with_check_point_id(latest.id))
            if any(ANSWER + interrupt_id in writes for interrupt_id in stops_in(writes, INTERRUPT)):
                reason += f"; if an answer was wrong, rollback to checkpoint {latest.id} asks again"
            raise CheckpointConflictError(thread_id, reason)
        raise CheckpointNotFoundError(thread_id)
    if wanted is None and len(pending) == 1:
        return pending[0]
    for stop in pending:
        if stop.id == wanted:
            return stop
    ids = ", ".join(stop.id for stop in pending)
    if wanted is not None:
        what = f"pending interrupt {wanted!r}"
        raise CheckpointNotFoundError(thread_id, what, f"pending: {ids}")
    count = len(pending)
    raise CheckpointConflictError(thread_id, f"{count} interrupts are pending, name one of them: {ids}")


def _path_to(saver: BaseCheckpointSaver, config: RunnableConfig) -> list[CheckpointInfo]:
    """Return the checkpoint that the config names, or the latest, after those that led to it.

    Raises:
        CheckpointNotFoundError: there is none.
    """
    history = saver.history(config.with_check_point_id(None))
    if not history:
        raise CheckpointNotFoundError(config.thread)
    path = lineage(history, config.checkpoint_id or history[0].id)
    if not path:
        raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id!r}")
    return path


def _read_for_fork(saver: BaseCheckpointSaver, info: CheckpointInfo) -> StoredCheckpoint:
    """Read a checkpoint that led to the one to fork, with its tags."""
    checkpoint = load_checkpoint(saver, RunnableConfig(info.thread_id, info.id))
    plain = checkpoint.with_metadata(public_metadata(checkpoint.metadata))
    return StoredCheckpoint(plain, tags=info.tags)


def _copy_as_fork(checkpoint: Checkpoint, created_at: datetime | None, *, id: str, parent_id: str | None) -> Checkpoint:
    """Return a copy from which a run starts the next node afresh.

    That is what a resume from a past checkpoint does too.
    """
    metadata = public_metadata(checkpoint.metadata)
    kept = {key: value for key, value in metadata.items() if key not in _OF_ITS_RUN}
    return Checkpoint(
        id=id,
        node_id=checkpoint.node_id,
        next_node_id=checkpoint.next_node_id,
        state=checkpoint.state,
        parent_id=parent_id,
        created_at=created_at,
        metadata={**kept, "source": "fork"},
    )


def _read_interrupts(
    saver: BaseCheckpointSaver, config: RunnableConfig, checkpoint: Checkpoint, now: datetime
) -> Mapping[str, Any]:
    """Return what waits again at a copy of a checkpoint."""
    recorded = {**read_left_writes(saver, config, checkpoint), **saver.get_writes(config)}
    return writes_of_copy(recorded, now)


set_public_module(globals(), __name__)
