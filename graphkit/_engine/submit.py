"""Submit: stores a run that a worker begins; see `graphkit.operations`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any

from graphkit._engine.history import callers_metadata
from graphkit._engine.state import EMPTY, SCHEMA_VERSION, pack_if_marked
from graphkit._options import check_text, check_time
from graphkit._records.checkpoint import Checkpoint, generate_id
from graphkit._records.config import START, RunnableConfig, ThreadLike, acts_for
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import list_versions
from graphkit._saver.incomplete import refuse_incomplete
from graphkit._saver.langgraph_writes import MADE_BY
from graphkit._saver.status import ENDED
from graphkit._saver.writes import GRAPH_ID, SUBMIT, Submission
from graphkit._values.frozen import freeze
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ThreadBusyError,
)


@acts_for("thread_id")
def submit(
    saver: BaseCheckpointSaver,
    input: Mapping[str, Any],
    thread_id: ThreadLike | None = None,
    *,
    graph_id: str | None = None,
    at: datetime | None = None,
    key: str | None = None,
) -> RunnableConfig:
    """Store a run for a worker to begin, and return; no node runs here.

    The run starts from the latest state of the thread, as `invoke` with this input does. The thread
    is `queued` until a worker, `resume` or `invoke(None)` begins the run, in any process.

    Args:
        saver: the store.
        input: the input of the run. It may have markers such as RESET; it must not have transient
            keys, which are never stored.
        thread_id: the thread, or a config that names it and has the metadata of the run. None makes
            a new one; with a key, one that follows from the key.
        graph_id: the graph, for a worker that serves several.
        at: begin no earlier; aware. None: at once.
        key: makes the call idempotent. If a run with this key was submitted to the thread before,
            nothing changes. A checkpoint that `prune` removes takes its key along, but for threads
            that were made from the key.

    Returns:
        The config of the thread.

    Raises:
        ThreadBusyError: the thread has a run that has not ended, or another run holds it.
        CheckpointSerializationError: the input is not a mapping, or cannot be stored.
        CheckpointConflictError: the thread is incomplete, or belongs to LangGraph.
        CheckpointNotFoundError: the config names a checkpoint that does not exist.
        CheckpointerConfigurationError: the config names the namespace of a nested graph.
        ValueError: `at` is no aware datetime, or the key or the id of the graph is no text, or empty.

        None of them changes the store.
    """
    if at is not None:
        check_time("at", at)
    for name, text in (("key", key), ("graph_id", graph_id)):
        if text is not None:
            check_text(name, text)
    own_thread = None
    if key is not None:
        own_thread = f"key-{blake2b(key.encode(), digest_size=16).hexdigest()}"
    config = RunnableConfig(own_thread or generate_id())
    if thread_id is not None:
        config = require_root(thread_id)
    submission = Submission(freeze_update("input", input), at, key, is_new=False)
    return submit_once(saver, config, submission, graph_id, is_own=config.thread == own_thread)


# Helpers that `graphkit.operations` and schedules use, too


def submit_once(
    saver: BaseCheckpointSaver,
    config: RunnableConfig,
    submission: Submission,
    graph_id: str | None,
    *,
    is_own: bool,
) -> RunnableConfig:
    """Store a submission, unless a run with its key was submitted before; return the config of the thread.

    Args:
        saver: the store.
        config: names the thread, and has the metadata of the run.
        submission: the run.
        graph_id: the graph, for a worker that serves several.
        is_own: whether the thread is there for this key only: if it exists, the run was submitted.

    Raises:
        As `submit`.
    """
    thread = RunnableConfig(config.thread, principal=config.principal)

    def is_submitted() -> bool:
        if is_own:
            return _exists(saver, thread)
        if submission.key is None:
            return False
        # `prune` may have removed it.
        known = (Submission.find(info.next_node_id, info.metadata) for info in saver.history(thread))
        return any(found is not None and found.key == submission.key for found in known)

    if is_submitted():
        return thread
    try:
        _refuse_unfinished(saver, thread)
        with saver.run_lock(thread):
            # Again, because another process may have submitted since.
            if not is_submitted():
                _refuse_unfinished(saver, thread)
                saver.put(thread, _make_submission(saver, config, submission, graph_id))
    except ThreadBusyError:
        # It is perhaps the run with this key that another process has submitted since.
        if not is_submitted():
            raise
    return thread


def refuse_other_engine(metadata: Mapping[str, Any], thread_id: str) -> None:
    """Refuse to record what only a run of graphkit can read with a checkpoint of another engine.

    Raises:
        CheckpointConflictError: another engine made the checkpoint.
    """
    other_engine = metadata.get(MADE_BY)
    if other_engine is not None:
        hint = "answer it there with Command(resume=...), change it with update_state, cancel the task that runs it"
        raise CheckpointConflictError(thread_id, f"it belongs to {other_engine}; {hint}")


def freeze_update(name: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise CheckpointSerializationError(name, type(values).__name__, "an update is a mapping of keys to values")
    for key in values:
        if not isinstance(key, str):  # no graph could merge it, and the thread could not go on
            raise CheckpointSerializationError(f"{name}[{key!r}]", type(key).__name__, "the keys are strings")
    try:
        return freeze(dict(pack_if_marked(values)))
    except ValueError as error:
        raise CheckpointSerializationError(name, type(values).__name__, str(error)) from error


def freeze_value(name: str, value: Any) -> Any:
    try:
        return freeze(value)
    except ValueError as error:
        raise CheckpointSerializationError(name, type(value).__name__, str(error)) from error


def require_root(thread: ThreadLike) -> RunnableConfig:
    config = RunnableConfig.of(thread)
    if config.checkpoint_ns:
        raise CheckpointerConfigurationError(
            f"checkpoint_ns={config.checkpoint_ns!r} is the history of a nested graph, which only the graph around it "
            f"runs: leave checkpoint_ns out"
        )
    return config


# Helpers


def _exists(saver: BaseCheckpointSaver, thread: RunnableConfig) -> bool:
    """Return whether a thread has a history or a version; an incomplete one has neither yet."""
    for latest in saver.recent(thread, limit=1):
        return latest.status != "incomplete"
    return bool(list_versions(saver, thread.thread))


def _refuse_unfinished(saver: BaseCheckpointSaver, thread: RunnableConfig) -> None:
    """Check that a thread takes a new run.

    Raises:
        ThreadBusyError: it has a run that has not ended.
        CheckpointConflictError: the thread is incomplete, or another engine made it.
    """
    refuse_incomplete(saver, thread.thread)
    for latest in saver.recent(thread, limit=1):
        refuse_other_engine(latest.metadata, thread.thread)
        if latest.status not in ENDED:
            reason = f"its run is {latest.status}. Wait for the run to end, or choose another thread"
            raise ThreadBusyError(thread.thread, "its run", 0.0, reason=reason)


def _make_submission(
    saver: BaseCheckpointSaver, config: RunnableConfig, submission: Submission, graph_id: str | None
) -> Checkpoint:
    """Return the checkpoint that stores a submission.

    Raises:
        CheckpointNotFoundError: the config names a checkpoint that does not exist.
        CheckpointSerializationError: the metadata of the config cannot be stored.
    """
    base = saver.get(config)
    if base is None and config.checkpoint_id is not None:
        raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id!r}")
    metadata: dict[str, Any] = {**callers_metadata(config), "source": "submit", "step": 0}
    if graph_id is not None:
        metadata[GRAPH_ID] = graph_id
    if base is None:
        submission = submission._replace(is_new=True)
    elif SCHEMA_VERSION in base.metadata:
        metadata[SCHEMA_VERSION] = base.metadata[SCHEMA_VERSION]
    metadata[SUBMIT] = submission._asdict()
    return Checkpoint(
        node_id=START,
        next_node_id=START,
        state=EMPTY if base is None else base.state,
        parent_id=None if base is None else base.id,
        metadata=freeze_value("metadata", metadata),
    )
