"""Retention policies: rules for a whole store, from code or a file; see `graphkit.retention`.

A policy chooses threads, and `prune` of the contract removes what its rules do not keep. What a rewrite
must never lose is therefore guarded in one place, `Retention`, and each saver prunes a history as it
does for every other caller: all of it or nothing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, final
from weakref import WeakKeyDictionary

from graphkit._options import check_count, parse_age
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.failed_threads import is_out_of_resources
from graphkit._saver.retention import Retention, RetentionOptions
from graphkit._saver.status import STATUSES
from graphkit._saver.submissions import is_schedule
from graphkit._wording import describe_error, suggest
from graphkit.errors import (
    CheckpointerConfigurationError,
    CheckpointerError,
    MissingDependencyError,
    ThreadBusyError,
)

_LOG: Final = getLogger("graphkit.retention")


class OverLimit(NamedTuple):
    """A thread, or a store, that takes more bytes than a policy allows."""

    thread_id: str | None
    """None: all threads together, those included that the policy does not choose."""
    size: int
    """Bytes."""
    limit: int
    """Bytes."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionReport:
    """What a policy did with a store, or would do."""

    threads: int = 0
    """How many threads the policy chose."""
    removed: int = 0
    """How many checkpoints were removed, or would be."""
    pruned: tuple[str, ...] = ()
    """The threads that lost checkpoints, or would."""
    busy: tuple[str, ...] = ()
    """The threads that a run held, on a saver whose `prune` waits for runs. Nothing of them was changed."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The error of each thread that could not be read or pruned; the others are done."""
    over_limit: tuple[OverLimit, ...] = ()
    """What takes more bytes than its limit after the removals, whether or not `on_limit` was called now."""
    dry_run: bool = False
    """Whether nothing was changed."""

    @property
    def ok(self) -> bool:
        """Whether no thread failed."""
        return not self.failed


@final
@dataclass(frozen=True, kw_only=True)
class RetentionPolicy:
    """Which checkpoints of a store stay, and how large it may grow before somebody is told.

    A checkpoint stays if any rule keeps it. Whatever the rules say, the latest checkpoint of each
    history stays, and so do a checkpoint that a kept one needs and one with a pending interrupt.
    Schedules are left alone. Byte limits remove nothing.

    Raises:
        CheckpointerConfigurationError: an option has a value that it cannot have; or none of
            `keep_last`, `max_age` and the byte limits is given, so that the policy would do nothing
            or remove nearly everything.
    """

    keep_last: int | None = None
    """How many of the newest checkpoints of each history stay, whatever their age; None is one."""
    max_age: timedelta | str | None = None
    """Younger checkpoints stay: a timedelta, or text such as "30d" or "12h". None ignores the age."""
    keep_tags: Collection[str] = ()
    """Checkpoints with one of these tags stay."""
    statuses: Collection[str] = ()
    """The policy is for threads with one of these statuses; of all if empty."""
    threads: str = "*"
    """The policy is for threads whose id matches this pattern, in which `*` is any text, `?` any character."""
    max_bytes_per_thread: int | None = None
    """Alert when a thread of the policy takes more bytes."""
    max_bytes: int | None = None
    """Alert when the whole store takes more bytes."""
    on_limit: Callable[[str | None, int, int], object] | None = None
    """Called as `on_limit(thread_id | None, size, limit)` when a size has grown beyond its limit; again only after it
    has been below. None logs a warning. What it raises is logged."""
    _alerted: WeakKeyDictionary[BaseCheckpointSaver, set[str | None]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False, compare=False
    )
    """What was over its limit when the policy was applied to a saver last: the thread, or None for the store."""

    def __post_init__(self) -> None:
        for name in ("keep_last", "max_bytes_per_thread", "max_bytes"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value, CheckpointerConfigurationError)
        if self.keep_last is None and self.max_age is None and not self._has_limits:
            raise CheckpointerConfigurationError(
                "a retention policy needs keep_last, max_age, max_bytes_per_thread or max_bytes"
            )
        object.__setattr__(self, "max_age", _parse_max_age(self.max_age))
        for name in ("keep_tags", "statuses"):
            object.__setattr__(self, name, _check_texts(name, getattr(self, name)))
        for status in self.statuses:
            if status not in STATUSES:
                hint = suggest(status, STATUSES) or f"; they are {', '.join(STATUSES)}"
                raise CheckpointerConfigurationError(f"there is no status {status!r}{hint}")
        pattern: object = self.threads
        if not isinstance(pattern, str) or not pattern:
            raise CheckpointerConfigurationError(f"threads must be a pattern such as 'chat-*', not {pattern!r}")
        if self.on_limit is not None and not callable(self.on_limit):
            raise CheckpointerConfigurationError(f"on_limit must be callable, not {self.on_limit!r}")

    @property
    def _has_limits(self) -> bool:
        return self.max_bytes_per_thread is not None or self.max_bytes is not None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the policy that a file in YAML or JSON describes: a mapping with the options as keys.

        Args:
            path: the file. One that ends in `.json` is JSON; others are YAML, for which PyYAML must be installed.

        Raises:
            CheckpointerConfigurationError: there is no such file; it cannot be parsed; a key is unknown
                or occurs twice; or the policy is not valid. The message names the file.
            MissingDependencyError: the file is YAML, and PyYAML is not installed.
        """
        file = Path(os.fsdecode(path))
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointerConfigurationError(f"{file} cannot be read: {describe_error(error)}") from error
        parse = _parse_json if file.suffix == ".json" else _parse_yaml
        try:
            return cls(**_check_keys(parse(text)))
        except CheckpointerConfigurationError as error:
            raise CheckpointerConfigurationError(f"{file}: {error}") from error

    def apply(self, saver: BaseCheckpointSaver, *, dry_run: bool = False) -> RetentionReport:
        """Remove what the rules do not keep, and alert if a size is over its limit.

        It goes on after a thread that cannot be read. A process that dies in between leaves each
        history unchanged or pruned, if `prune` of the saver does; apply the policy again.

        Args:
            saver: the store. One of LangGraph's savers stands for its `store`.
            dry_run: change nothing and call nothing; only return what would be done.

        Raises:
            CheckpointerConfigurationError: the saver cannot list its threads; or there is a byte limit,
                and it cannot measure sizes. Nothing was changed.
            CheckpointStorageError: the threads cannot be listed.
        """
        return apply_policy(self, saver, now=datetime.now(UTC), dry_run=dry_run)


def apply_policy(
    policy: RetentionPolicy,
    saver: BaseCheckpointSaver,
    *,
    now: datetime,
    dry_run: bool = False,
    rest: Callable[[], bool] = lambda: False,
) -> RetentionReport:
    """Apply a policy to a store.

    Args:
        policy: the policy.
        saver: as for `RetentionPolicy.apply`.
        now: the time from which ages count.
        dry_run: only return what would be done.
        rest: called after each thread; True ends the pass, without a look at the sizes.

    Raises:
        CheckpointerConfigurationError: as `RetentionPolicy.apply`.
        CheckpointStorageError: as `RetentionPolicy.apply`.
    """
    store = _find_store(saver)
    if policy._has_limits and not store.measures_size:  # noqa: SLF001 - a part of the policy
        raise CheckpointerConfigurationError(f"{type(store).__name__} cannot measure sizes: it has no byte limits")
    one_pass = _Pass(policy, store, now=now, dry_run=dry_run)
    for thread_id in store.threads():
        if is_schedule(thread_id) or not fnmatchcase(thread_id, policy.threads):
            continue
        one_pass.prune(thread_id)
        if rest():
            return one_pass.report()
    one_pass.check_sizes()
    return one_pass.report()


@final
class _Pass:
    """One application of a policy to a store."""

    def __init__(self, policy: RetentionPolicy, store: BaseCheckpointSaver, *, now: datetime, dry_run: bool) -> None:
        self._policy = policy
        self._store = store
        self._dry_run = dry_run
        self._options = _make_options(policy, now)
        self._chosen: list[str] = []
        self._removed: Counter[str] = Counter()
        self._busy: list[str] = []
        self._failed: dict[str, str] = {}
        self._over_limit: list[OverLimit] = []

    def prune(self, thread_id: str) -> None:
        """Prune a thread, if the policy chooses it; note an error of it."""
        try:
            histories = self._read_histories(thread_id)
            if not self._is_chosen(histories):
                return
            self._chosen.append(thread_id)
            self._removed[thread_id] += self._remove(thread_id, histories)
        except ThreadBusyError:
            self._busy.append(thread_id)
        except (CheckpointerError, OSError) as error:
            if is_out_of_resources(error):
                raise
            # Not the error itself: the frames of its traceback hold the states of the thread.
            self._failed[thread_id] = describe_error(error)

    def _read_histories(self, thread_id: str) -> Sequence[Sequence[CheckpointInfo]]:
        """Return what is known of the checkpoints of each namespace, the root first."""
        if self._options is None and not self._policy.statuses:
            return [[]]  # only sizes matter
        namespaces = sorted(self._store.namespaces(thread_id))
        return [self._store.history(RunnableConfig(thread_id, checkpoint_ns=name)) for name in namespaces]

    def _is_chosen(self, histories: Sequence[Sequence[CheckpointInfo]]) -> bool:
        if not self._policy.statuses:
            return True
        # The thread may have been deleted since it was listed.
        latest = next((history[0] for history in histories if history), None)
        return latest is not None and latest.status in self._policy.statuses

    def _remove(self, thread_id: str, histories: Sequence[Sequence[CheckpointInfo]]) -> int:
        """Prune a thread, or count what `prune` would remove; return the number of checkpoints."""
        if self._options is None:
            return 0
        # Most threads lose nothing, and a listing needs no lock and rewrites nothing. `prune` decides again under
        # its lock, because a run may have put checkpoints since then.
        retention = Retention(**self._options)
        count = sum(len(retention.select_removable(history)) for history in histories if history)
        if self._dry_run or not count:
            return count
        return self._store.prune(thread_id, **self._options)

    def check_sizes(self) -> None:
        """Compare the sizes with their limits, and alert if one has been crossed."""
        limit = self._policy.max_bytes_per_thread
        if limit is not None:
            for thread_id in self._chosen:
                try:
                    self._check_size(OverLimit(thread_id, self._store.size(thread_id), limit))
                except (CheckpointerError, OSError) as error:
                    if is_out_of_resources(error):
                        raise
                    self._failed[thread_id] = describe_error(error)
        if self._policy.max_bytes is not None:
            self._check_size(OverLimit(None, self._store.size(), self._policy.max_bytes))
        if not self._dry_run:
            self._alert()

    def _check_size(self, found: OverLimit) -> None:
        if found.size > found.limit:
            self._over_limit.append(found)

    def _alert(self) -> None:
        """Call `on_limit` for what is over its limit and was not when the policy was applied last."""
        known = self._policy._alerted.get(self._store, set())  # noqa: SLF001 - a part of the policy
        # A thread that could not be measured this time has not been below its limit.
        over = {found.thread_id for found in self._over_limit} | known.intersection(self._failed)
        self._policy._alerted[self._store] = over  # noqa: SLF001 - a part of the policy
        for found in self._over_limit:
            if found.thread_id not in known:
                _call(self._policy, found)

    def report(self) -> RetentionReport:
        """Return what the pass has done so far."""
        return RetentionReport(
            threads=len(self._chosen),
            removed=self._removed.total(),
            pruned=tuple(thread_id for thread_id, count in self._removed.items() if count),
            busy=tuple(self._busy),
            failed=self._failed,
            over_limit=tuple(self._over_limit),
            dry_run=self._dry_run,
        )


def _make_options(policy: RetentionPolicy, now: datetime) -> RetentionOptions | None:
    """Return the keywords of `prune`; None if the policy only has byte limits."""
    options: RetentionOptions = {"keep_last": policy.keep_last, "keep_tags": policy.keep_tags}
    if isinstance(policy.max_age, timedelta):
        options["older_than"] = now - policy.max_age
    elif policy.keep_last is None:
        return None
    return options


def _call(policy: RetentionPolicy, found: OverLimit) -> None:
    if policy.on_limit is None:
        what = "the store"
        if found.thread_id is not None:
            what = f"thread {found.thread_id!r}"
        _LOG.warning("%s takes %d bytes; its limit is %d", what, found.size, found.limit)
        return
    try:
        policy.on_limit(*found)
    except Exception:  # noqa: BLE001 - an alert that fails ends no pass
        _LOG.exception("on_limit failed")


def _find_store(saver: object) -> BaseCheckpointSaver:
    """Return the saver itself, or the one in which a saver of LangGraph keeps its threads.

    Raises:
        CheckpointerConfigurationError: it is neither.
    """
    for candidate in (saver, getattr(saver, "store", None)):
        if isinstance(candidate, BaseCheckpointSaver):
            return candidate
    raise CheckpointerConfigurationError(f"a retention policy needs a saver, not {saver!r}")


# Options and files


def _parse_max_age(value: object) -> timedelta | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return parse_age(value)
        except ValueError as error:
            raise CheckpointerConfigurationError(f"max_age: {error}") from error
    if not isinstance(value, timedelta) or value < timedelta():
        raise CheckpointerConfigurationError(f"max_age must be an age such as '30d', or a timedelta, not {value!r}")
    return value


def _check_texts(name: str, value: object) -> frozenset[str]:
    is_collection = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    if not is_collection or not all(isinstance(item, str) for item in value):  # type: ignore[attr-defined]
        raise CheckpointerConfigurationError(f"{name} must be a list of texts, not {value!r}")
    return frozenset(value)  # type: ignore[call-overload, no-any-return]


def _check_keys(pairs: Iterator[tuple[Any, Any]] | None) -> dict[str, Any]:
    """Return the options that a file gives.

    Raises:
        CheckpointerConfigurationError: a key is unknown, or occurs twice; or the file has no keys.
    """
    if pairs is None:
        raise CheckpointerConfigurationError("a retention policy is a mapping with keys such as keep_last")
    known = sorted(each.name for each in fields(RetentionPolicy) if each.init and each.name != "on_limit")
    options: dict[str, Any] = {}
    for key, value in pairs:
        if key not in known:
            hint = suggest(str(key), known, most=1) or f"; the keys are {', '.join(known)}"
            raise CheckpointerConfigurationError(f"there is no key {key!r}{hint}")
        if key in options:
            raise CheckpointerConfigurationError(f"the key {key!r} occurs twice")
        options[key] = value
    return options


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of an object in JSON."""


def _parse_json(text: str) -> Iterator[tuple[Any, Any]] | None:
    """Return the keys and values of a JSON object, in order; None if the text is something else."""
    try:
        root = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise CheckpointerConfigurationError(f"it is not JSON: {error}") from error
    return iter(root) if isinstance(root, _Pairs) else None


def _parse_yaml(text: str) -> Iterator[tuple[Any, Any]] | None:
    """Return the keys and values of a YAML mapping, in order; None if the text is something else."""
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("PyYAML", "agents") from error
    loader = yaml.SafeLoader(text)
    try:
        # The node, not the dict: a dict has each key once.
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            return None
        pairs = [
            (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
            for key, value in root.value
        ]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointerConfigurationError(f"it is not YAML: {error}") from error
    finally:
        loader.dispose()
    return iter(pairs)
