"""hive's CheckpointManager: saves, restores, lists, compares and prunes the checkpoints of loops that are not graphs.

A graph needs none of it: see `graphkit.recovery`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from logging import getLogger
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeVar, final

from graphkit._options import check_age, check_choice, check_count
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import load_checkpoint
from graphkit.errors import CheckpointCorruptionError, CheckpointerError, CheckpointNotFoundError
from graphkit.recovery import last_good

__all__ = ["CheckpointManager", "CheckpointPolicy", "Comparison", "compare"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LOGGER: Final = getLogger(__name__)
_MAX_LENGTH: Final = 500
_KIND: Final = "source"
_CLEAN: Final = "clean"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointPolicy:
    """When a CheckpointManager saves, and what it keeps."""

    enabled: bool = True
    save_frequency: Literal["every_node", "every_n_nodes"] = "every_node"
    n_nodes: int = 1
    """With `every_n_nodes`: how many nodes there are from one save to the next."""
    retention_strategy: Literal["latest_only", "all", "prune_old"] = "latest_only"
    """What remains after a save: the last checkpoint, all, or the last
    `max_checkpoints_per_run`."""
    max_checkpoints_per_run: int = 100
    max_age: timedelta | None = None
    """Older checkpoints are removed, but never the latest of a run; None: age does not matter."""
    on_error: Literal["raise", "warn"] = "raise"
    """If the store fails: raise its error, or log a warning to `graphkit.compat.hive` and return no
    result."""

    def __post_init__(self) -> None:
        check_choice("save_frequency", self.save_frequency, "every_node", "every_n_nodes")
        check_choice("retention_strategy", self.retention_strategy, "latest_only", "all", "prune_old")
        check_choice("on_error", self.on_error, "raise", "warn")
        for name in ("n_nodes", "max_checkpoints_per_run"):
            check_count(name, getattr(self, name))
        if self.max_age is not None:
            object.__setattr__(self, "max_age", check_age("max_age", self.max_age))


@final
class Comparison(NamedTuple):
    """What differs between the states of two checkpoints.

    Keys are sorted. Values are text, cut at 500 characters.
    """

    added: Mapping[str, str]
    """The keys that only the second state has, with their values as text."""
    removed: Mapping[str, str]
    """The keys that only the first state has, with their values as text."""
    changed: Mapping[str, tuple[str, str]]
    """The keys whose values differ, with both values as text."""
    new_nodes: Sequence[str] = ()
    """The nodes that finished after the first checkpoint, up to the second; empty if the history is
    unknown."""


def compare(first: Checkpoint, second: Checkpoint) -> Comparison:
    """Return what changed from one checkpoint to another. O(the two states)."""
    old = first.state
    new = second.state
    added = {key: _shorten(new[key]) for key in sorted(new.keys() - old.keys())}
    removed = {key: _shorten(old[key]) for key in sorted(old.keys() - new.keys())}
    changed: dict[str, tuple[str, str]] = {}
    for key in sorted(old.keys() & new.keys()):
        if old[key] != new[key]:
            changed[key] = (_shorten(old[key]), _shorten(new[key]))
    return Comparison(added=added, removed=removed, changed=changed)


def _shorten(value: Any) -> str:
    text = repr(value)
    if len(text) <= _MAX_LENGTH:
        return text
    return f"{text[:_MAX_LENGTH]}... ({len(text)} characters)"


def _warn_on_error(make_default: Callable[[], Any]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """With on_error="warn", log an error of the store as a warning and return a default result."""

    # Around whole methods, so that a loop which calls one goes on with a result of the right type: None, an
    # empty list, or 0. An error of the caller, such as a memory that is no mapping, is a CheckpointerError
    # too, and is logged as well.
    def decorate(method: Callable[_P, _T]) -> Callable[_P, _T]:
        @wraps(method)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return method(*args, **kwargs)
            except (CheckpointerError, OSError) as error:
                if args[0].policy.on_error == "raise":  # type: ignore[attr-defined]
                    raise
                _LOGGER.warning("%s failed; the caller continues without it: %s", method.__name__, error)
                return make_default()  # type: ignore[no-any-return]

        return call

    return decorate


@final
class CheckpointManager:
    """Manages the checkpoints of loops that are not graphs, by run id, in any saver.

    Any thread may call its methods. A manager has no state of its own: several managers, in several
    processes, may share a store. A run is a thread of the store, so the command line and graphs
    find it, too. Every method but `should_checkpoint` raises the errors of the store, unless the
    policy has `on_error="warn"`.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        policy: CheckpointPolicy | None = None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Manage the checkpoints in a store.

        Args:
            saver: the store.
            policy: when to save and what to keep.
            clock: returns the current time, aware; for tests.
        """
        self.saver = saver
        self.policy = policy or CheckpointPolicy()
        self._clock = clock

    def should_checkpoint(self, step: int) -> bool:
        """Return whether to save after this step, counted from 1."""
        if not self.policy.enabled:
            return False
        if self.policy.save_frequency == "every_node":
            return True
        return step % self.policy.n_nodes == 0

    @_warn_on_error(lambda: None)
    def save_checkpoint(
        self,
        run_id: str,
        node_id: str,
        memory: Mapping[str, Any],
        *,
        next_node_id: str | None = None,
        kind: str = "node_complete",
        clean: bool = True,
        context: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save the position of a run and prune by the policy; return the id of the checkpoint.

        Args:
            run_id: the run.
            node_id: the node or step that has finished.
            memory: the data of the run.
            next_node_id: the node that runs next, so that a restored run does not repeat `node_id`;
                None if it is unknown.
            kind: why: "node_complete", "user_checkpoint", "safe_point", "pause", or a word of the
                caller's.
            clean: whether the run came here without a failure or a retry.
            context: further data to store and to search for: tokens, seconds, a plan.
        """
        config = RunnableConfig(run_id)
        metadata = {**(context or {}), "run_id": run_id, _KIND: kind, _CLEAN: clean}
        with self.saver.run_lock(config):
            latest = self.saver.get(config)
            checkpoint = Checkpoint(
                node_id=node_id,
                next_node_id=next_node_id,
                state=memory,
                parent_id=None if latest is None else latest.id,
                created_at=self._clock(),
                metadata=metadata,
            )
            self.saver.put(config, checkpoint)
            # After the put: the old checkpoint is removed when the new one is stored.
            policy = self.policy
            if policy.retention_strategy == "latest_only":
                self.saver.prune(run_id, keep_last=1)
            elif policy.retention_strategy == "prune_old":
                self.saver.prune(run_id, keep_last=policy.max_checkpoints_per_run)
            if policy.max_age is not None:
                self.saver.prune(run_id, older_than=self._clock() - policy.max_age)
        return checkpoint.id

    @_warn_on_error(lambda: (None, None))
    def restore_from_checkpoint(
        self, run_id: str, checkpoint_id: str | None = None
    ) -> tuple[Mapping[str, Any] | None, str | None]:
        """Return the memory of a run, read-only, and the node to continue with.

        That node is the next one, or the last one if the next one is unknown. (None, None) if there
        is no checkpoint; a memory may be empty.

        Without an id this is the latest checkpoint that can be read. If later ones are damaged, a
        warning is logged.
        """
        checkpoint = self._restore(run_id, checkpoint_id)
        if checkpoint is None:
            return None, None
        return checkpoint.state, _node_to_resume(checkpoint)

    @_warn_on_error(lambda: None)
    def session_state(self, run_id: str, checkpoint_id: str | None = None) -> dict[str, Any] | None:
        """Return what a loop needs to continue a run, or None if there is no checkpoint.

        The keys are paused_at, resume_from, memory, execution_path, checkpoint_id and context. The
        path has the nodes of the history up to the checkpoint, oldest first, as far as it was kept.
        """
        checkpoint = self._restore(run_id, checkpoint_id)
        if checkpoint is None:
            return None
        # What `save_checkpoint` has added to the context of the caller.
        own_keys = {"run_id", _KIND, _CLEAN}
        return {
            "paused_at": checkpoint.node_id,
            "resume_from": _node_to_resume(checkpoint),
            "memory": dict(checkpoint.state),
            "execution_path": self._path_to(run_id, checkpoint.id),
            "checkpoint_id": checkpoint.id,
            "context": {key: value for key, value in checkpoint.metadata.items() if key not in own_keys},
        }

    def _restore(self, run_id: str, checkpoint_id: str | None) -> Checkpoint | None:
        if checkpoint_id is not None:
            return self._require(run_id, checkpoint_id)
        try:
            return last_good(self.saver, run_id)
        except CheckpointNotFoundError:
            return None

    def _path_to(self, run_id: str, checkpoint_id: str) -> list[str]:
        """Return the nodes of the history up to a checkpoint, oldest first."""
        history = [*reversed(self.saver.history(RunnableConfig(run_id)))]
        ids = [info.id for info in history]
        end = ids.index(checkpoint_id) + 1
        return [info.node_id for info in history[:end]]

    def _require(self, run_id: str, checkpoint_id: str) -> Checkpoint:
        return load_checkpoint(self.saver, RunnableConfig(run_id, checkpoint_id), "see list_checkpoints")

    @_warn_on_error(lambda: None)
    def get_checkpoint(self, run_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """Return a checkpoint of a run, the latest without an id; None if there is none."""
        return self.saver.get(RunnableConfig(run_id, checkpoint_id))

    @_warn_on_error(list)
    def list_checkpoints(
        self, run_id: str, *, kind: str | None = None, clean: bool | None = None, node_id: str | None = None
    ) -> Sequence[CheckpointInfo]:
        """Return the checkpoints of a run without their memory, oldest first.

        Args:
            run_id: the run.
            kind: only those of this kind (`metadata["source"]`: a graph's are "input", "loop",
                "update", ...).
            clean: only those that are clean, or only those that are not.
            node_id: only those after this node.
        """
        return [
            info
            for info in reversed(self.saver.history(RunnableConfig(run_id)))
            if kind in (None, info.metadata.get(_KIND))
            if clean in (None, _is_clean(info))
            if node_id in (None, info.node_id)
        ]

    @_warn_on_error(list)
    def list_runs(
        self, *, status: str | None = None, limit: int | None = None, offset: int = 0
    ) -> list[CheckpointInfo]:
        """Return the latest checkpoint of each run, also of graphs, by run id.

        Reads metadata, no memory. A run that is damaged is left out, and a warning is logged.

        Args:
            status: only runs with this status, such as "stalled" or "finished".
            limit: the maximal number of runs; None: all.
            offset: how many runs to skip first.

        Raises:
            CheckpointerConfigurationError: the saver cannot list its threads.
        """
        latest: list[CheckpointInfo] = []
        for run_id in sorted(self.saver.threads()):
            try:
                summary = self.saver.summary(RunnableConfig(run_id))
            except CheckpointCorruptionError as error:
                _LOGGER.warning("run %r is left out: %s", run_id, error)
                continue
            if summary is not None and status in {None, summary.latest.status}:
                latest.append(summary.latest)
        end = None if limit is None else offset + limit
        return latest[offset:end]

    @_warn_on_error(lambda: None)
    def latest_clean(self, run_id: str) -> CheckpointInfo | None:
        """Return the newest checkpoint that was reached without a failure or a retry, or None."""
        infos = self.saver.history(RunnableConfig(run_id))
        return next(filter(_is_clean, infos), None)

    @_warn_on_error(lambda: 0)
    def delete_checkpoints(self, run_id: str) -> int:
        """Delete a run with all its checkpoints; return how many there were."""
        summary = self.saver.summary(RunnableConfig(run_id))
        self.saver.delete(run_id)
        if summary is None:
            return 0
        return summary.checkpoints

    @_warn_on_error(lambda: 0)
    def prune(self, run_id: str | None = None) -> int:
        """Prune a run, or all runs (None), by the age of the policy; return the number removed.

        The latest checkpoint of a run is never removed.
        """
        if self.policy.max_age is None:
            return 0
        return self.saver.prune(run_id, older_than=self._clock() - self.policy.max_age)

    @_warn_on_error(lambda: Comparison({}, {}, {}))
    def compare(self, run_id: str, first_id: str, second_id: str) -> Comparison:
        """Return what changed between two checkpoints of a run, and the nodes that finished between."""
        comparison = compare(self._require(run_id, first_id), self._require(run_id, second_id))
        # Both paths begin at the start of the run, so what the second has more is what came after.
        finished_before = len(self._path_to(run_id, first_id))
        return comparison._replace(new_nodes=self._path_to(run_id, second_id)[finished_before:])


def _node_to_resume(checkpoint: Checkpoint) -> str:
    return checkpoint.next_node_id or checkpoint.node_id


def _is_clean(info: CheckpointInfo) -> bool:
    return bool(info.metadata.get(_CLEAN, True))
