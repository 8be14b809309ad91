"""CheckpointManager: saving, restoring and looking at the checkpoints of any loop; hive's, ported."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from logging import getLogger
from typing import Any, Final, Literal, NamedTuple, ParamSpec, TypeVar, final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.last_readable import last_good
from graphkit.errors import CheckpointerError, CheckpointNotFoundError

P = ParamSpec("P")
T = TypeVar("T")

_LOGGER: Final = getLogger("graphkit.recovery")
_LONGEST: Final = 500
_KIND: Final = "source"
_CLEAN: Final = "clean"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointPolicy:
    """When a CheckpointManager saves, and what it keeps."""

    enabled: bool = True
    save_frequency: Literal["every_node", "every_n_nodes"] = "every_node"
    n_nodes: int = 1
    """With `every_n_nodes`: how many."""
    retention_strategy: Literal["latest_only", "all", "prune_old"] = "latest_only"
    """What stays after a save: the last one, all, or the last `max_checkpoints_per_run`."""
    max_checkpoints_per_run: int = 100
    max_age: timedelta | None = None
    """Older ones go, but never the latest of a run; None: age does not matter."""
    on_error: Literal["raise", "warn"] = "raise"
    """What a failing store does to the caller: an error, or a warning in the log `graphkit.recovery` and no result."""

    def __post_init__(self) -> None:
        _one_of("save_frequency", self.save_frequency, "every_node", "every_n_nodes")
        _one_of("retention_strategy", self.retention_strategy, "latest_only", "all", "prune_old")
        _one_of("on_error", self.on_error, "raise", "warn")
        for name in ("n_nodes", "max_checkpoints_per_run"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


def _one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")


@final
class Comparison(NamedTuple):
    """What differs between the states of two checkpoints, keys in order. Long values are cut at 500 characters."""

    added: Mapping[str, str]
    """The keys that only the second has, with their values as text."""
    removed: Mapping[str, str]
    """The keys that only the first has."""
    changed: Mapping[str, tuple[str, str]]
    """The keys that both have, with both values."""
    new_nodes: Sequence[str] = ()
    """The nodes that finished after the first, up to the second; empty where the history is not known."""


def compare(first: Checkpoint, second: Checkpoint) -> Comparison:
    """What changed from one checkpoint to another. O(the two states)."""
    old, new = first.state, second.state
    return Comparison(
        {key: _short(new[key]) for key in sorted(new.keys() - old.keys())},
        {key: _short(old[key]) for key in sorted(old.keys() - new.keys())},
        {key: (_short(old[key]), _short(new[key])) for key in sorted(old.keys() & new.keys()) if old[key] != new[key]},
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _fails_open(nothing: Callable[[], Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Under on_error="warn", turn what a store raises into a warning and an empty result."""

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def fails_open(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except (CheckpointerError, OSError) as error:
                if args[0].policy.on_error == "raise":  # type: ignore[attr-defined]
                    raise
                _LOGGER.warning("%s failed, and nobody waits for it: %s", method.__name__, error)
                return nothing()  # type: ignore[no-any-return]

        return fails_open

    return decorate


@final
class CheckpointManager:
    """Checkpoints of loops that are no graph, by run id, on any saver. From any thread.

    It keeps nothing itself: several managers, in several processes, may share a store. A run is a thread of the store,
    so the command line and a graph find it too. Every method but `should_checkpoint` raises what the store raises,
    unless the policy says `on_error="warn"`.
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
            clock: tells the time, aware; for tests.
        """
        self.saver = saver
        self.policy = policy or CheckpointPolicy()
        self._clock = clock

    def should_checkpoint(self, step: int) -> bool:
        """Whether to save after this step, counted from 1."""
        if not self.policy.enabled:
            return False
        return self.policy.save_frequency == "every_node" or step % self.policy.n_nodes == 0

    @_fails_open(lambda: None)
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
        """Save where a run stands, and prune as the policy says; returns the id.

        Args:
            run_id: the run.
            node_id: the node or step that has finished.
            memory: its data.
            next_node_id: what runs next, so that a restore does not run `node_id` again; None if nobody knows.
            kind: what for: "node_complete", "user_checkpoint", "safe_point", "pause", or a word of the caller's.
            clean: whether the run came here without a failure or a retry.
            context: what else to keep and to find: tokens, seconds, a plan.
        """
        at = RunnableConfig(run_id)
        metadata = {**(context or {}), "run_id": run_id, _KIND: kind, _CLEAN: clean}
        with self.saver.run_lock(at):
            latest = self.saver.get(at)
            checkpoint = Checkpoint(
                node_id=node_id,
                next_node_id=next_node_id,
                state=memory,
                parent_id=None if latest is None else latest.id,
                created_at=self._clock(),
                metadata=metadata,
            )
            self.saver.put(at, checkpoint)
            self._retain(run_id)  # after the put: the old one goes when the new one is safe
        return checkpoint.id

    def _retain(self, run_id: str) -> None:
        policy = self.policy
        keep_last = {"latest_only": 1, "prune_old": policy.max_checkpoints_per_run}.get(policy.retention_strategy)
        if keep_last is not None:
            self.saver.prune(run_id, keep_last=keep_last)
        if policy.max_age is not None:
            self.saver.prune(run_id, older_than=self._clock() - policy.max_age)

    @_fails_open(lambda: (None, None))
    def restore_from_checkpoint(
        self, run_id: str, checkpoint_id: str | None = None
    ) -> tuple[Mapping[str, Any] | None, str | None]:
        """The memory of a run, read-only, and the node to go on with: the next one, or the last if none was named.

        Without an id: the latest that reads; where that is damaged, an earlier one, which is logged.
        (None, None) if there is no checkpoint; a memory may be empty.
        """
        checkpoint = self._restored(run_id, checkpoint_id)
        return (None, None) if checkpoint is None else (checkpoint.state, _resumes_at(checkpoint))

    @_fails_open(lambda: None)
    def session_state(self, run_id: str, checkpoint_id: str | None = None) -> dict[str, Any] | None:
        """What a loop goes on from, or None: paused_at, resume_from, memory, execution_path, checkpoint_id, context.

        The path are the nodes of the history up to there, as far as it was kept, oldest first.
        """
        checkpoint = self._restored(run_id, checkpoint_id)
        if checkpoint is None:
            return None
        own = {"run_id", _KIND, _CLEAN}
        return {
            "paused_at": checkpoint.node_id,
            "resume_from": _resumes_at(checkpoint),
            "memory": dict(checkpoint.state),
            "execution_path": self._path_to(run_id, checkpoint.id),
            "checkpoint_id": checkpoint.id,
            "context": {key: value for key, value in checkpoint.metadata.items() if key not in own},
        }

    def _restored(self, run_id: str, checkpoint_id: str | None) -> Checkpoint | None:
        if checkpoint_id is not None:
            return self._found(run_id, checkpoint_id)
        try:
            return last_good(self.saver, run_id)
        except CheckpointNotFoundError:
            return None

    def _path_to(self, run_id: str, checkpoint_id: str) -> list[str]:
        history = [*reversed(self.saver.history(RunnableConfig(run_id)))]
        ids = [info.id for info in history]
        return [info.node_id for info in history[: ids.index(checkpoint_id) + 1]]

    def _found(self, run_id: str, checkpoint_id: str) -> Checkpoint:
        checkpoint = self.saver.get(RunnableConfig(run_id, checkpoint_id))
        if checkpoint is None:
            raise CheckpointNotFoundError(run_id, f"checkpoint {checkpoint_id!r}", "see list_checkpoints")
        return checkpoint

    @_fails_open(lambda: None)
    def get_checkpoint(self, run_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """A checkpoint of a run, the latest without an id; None if there is none."""
        return self.saver.get(RunnableConfig(run_id, checkpoint_id))

    @_fails_open(list)
    def list_checkpoints(
        self, run_id: str, *, kind: str | None = None, clean: bool | None = None, node_id: str | None = None
    ) -> Sequence[CheckpointInfo]:
        """What is known of a run's checkpoints without reading their memory, oldest first.

        Args:
            run_id: the run.
            kind: only those saved for this (`metadata["source"]`: a graph's are "input", "loop", "update", ...).
            clean: only those that are clean, or only the others.
            node_id: only those after this node.
        """
        wanted = {"kind": kind, "clean": clean, "node_id": node_id}
        found = reversed(self.saver.history(RunnableConfig(run_id)))
        return [info for info in found if all(value in (None, _facts(info)[name]) for name, value in wanted.items())]

    @_fails_open(list)
    def list_runs(
        self, *, status: str | None = None, limit: int | None = None, offset: int = 0
    ) -> list[CheckpointInfo]:
        """The latest checkpoint of each run, graphs' too, by run id. Reads metadata, no memory.

        Args:
            status: only runs that are "running", "interrupted", "failed" or "finished".
            limit: how many at most; None: all.
            offset: how many to pass over first.

        Raises:
            CheckpointerConfigurationError: the saver keeps no list of its threads.
        """
        runs = [self.saver.summary(RunnableConfig(run)) for run in sorted(self.saver.threads())]
        found = [run.latest for run in runs if run is not None and status in {None, run.latest.status}]
        return found[offset : None if limit is None else offset + limit]

    @_fails_open(lambda: None)
    def latest_clean(self, run_id: str) -> CheckpointInfo | None:
        """The newest checkpoint that was reached without a failure or a retry, or None."""
        infos = self.saver.history(RunnableConfig(run_id))
        return next((info for info in infos if _facts(info)["clean"]), None)

    @_fails_open(lambda: 0)
    def delete_checkpoints(self, run_id: str) -> int:
        """Remove a run with all its checkpoints; returns how many there were."""
        run = self.saver.summary(RunnableConfig(run_id))
        self.saver.delete(run_id)
        return 0 if run is None else run.checkpoints

    @_fails_open(lambda: 0)
    def prune(self, run_id: str | None = None) -> int:
        """Prune a run, or all of them (None), by the policy's age; returns how many went. The latest never goes."""
        if self.policy.max_age is None:
            return 0
        return self.saver.prune(run_id, older_than=self._clock() - self.policy.max_age)

    @_fails_open(lambda: Comparison({}, {}, {}))
    def compare(self, run_id: str, first_id: str, second_id: str) -> Comparison:
        """What changed from one checkpoint of a run to another, and which nodes finished between them."""
        found = compare(self._found(run_id, first_id), self._found(run_id, second_id))
        passed = len(self._path_to(run_id, first_id))
        return found._replace(new_nodes=self._path_to(run_id, second_id)[passed:])


def _resumes_at(checkpoint: Checkpoint) -> str:
    return checkpoint.next_node_id or checkpoint.node_id


def _facts(info: CheckpointInfo) -> dict[str, Any]:
    clean = bool(info.metadata.get(_CLEAN, True))
    return {"kind": info.metadata.get(_KIND), "clean": clean, "node_id": info.node_id}
