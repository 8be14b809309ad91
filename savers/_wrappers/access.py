"""AccessControlledSaver: asks a policy before each operation of the contract.

Every public method of the contract and of the capabilities is guarded here, by `_guards`, unless
`_NOT_ASKED` names it. Only the methods of one history are guarded automatically: for any other, this
module needs a method of its own, or its import fails. So a new method cannot be left unguarded.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from itertools import chain
from logging import getLogger
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

import graphkit.abc  # whose reports are loaded when they are first used
from graphkit import Checkpoint, CheckpointInfo, HistorySummary, RunnableConfig, WaitingInterrupt
from graphkit.abc import (
    BaseCheckpointSaver,
    HasVersions,
    SupportsCheckAccess,
    SupportsErase,
    SupportsExists,
    SupportsFlush,
    Watch,
)
from graphkit.errors import AccessDeniedError, CheckpointErasedError, CheckpointerConfigurationError, CheckpointerError
from graphkit.saver_kit import (
    Change,
    ConfigLike,
    FailedThreads,
    ThreadLike,
    WatchEnd,
    check_function,
    check_limit,
    freeze,
    get_principal,
)
from savers._wrappers.base import (
    CAPABILITIES,
    OF_NO_THREAD,
    HookedLog,
    SaverWrapper,
    SupportsLogs,
    is_async,
    iter_wrappers,
    make_capability,
    make_opener,
    overrides,
)

if TYPE_CHECKING:
    from savers._log.catalogue import Head
    from savers._log.log import AnyLog

Policy = Callable[[Any, str, str, str], object]
"""Decides as policy(principal, operation, thread_id, checkpoint_ns); only True allows."""

_NOT_ASKED: Final = OF_NO_THREAD | {"erase_deleted"}
"""Methods that are not asked about. What `opener` opens is guarded, too."""
_WHOLE_THREAD: Final = frozenset({
    "compact", "copy", "delete", "delete_idle", "prune", "release", "repair", "rotate", "size", "verify",
})  # fmt: skip
"""Operations on all namespaces of a thread: they need the right in each of them."""
_OF_A_HISTORY: Final = frozenset({"config", "thread", "thread_id"})
"""The names of the first parameter of methods of one history."""
_OF_EACH_THREAD: Final = frozenset({"compact", "delete_idle", "prune", "repair", "rotate", "verify"})
"""Methods that take None for all threads: they are called for each that the principal may use."""
_GROWTH: Final = 4
"""Each time that too few results of a search are allowed, this many times more are read."""
_LOGGER: Final = getLogger("graphkit")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class")


@final
class _Guard:
    """Asks a policy about operations on a saver.

    Attributes:
        metadata_of: returns what the policy adds to the metadata of the checkpoints of a principal; None if it
            marks none.
    """

    def __init__(self, saver: BaseCheckpointSaver, policy: Policy) -> None:
        self._saver = saver
        self._policy = policy
        self.metadata_of: Callable[[Any], Mapping[str, Any]] | None = getattr(policy, "metadata_of", None)
        self._first_put = threading.RLock()
        """Held to put the first checkpoint of a thread, if the policy marks checkpoints."""
        self._running: dict[object, str] = {}
        """The threads whose run lock is held through this object, once for each time that the holder has entered it."""

    # Asking

    def is_allowed(self, principal: Any, operation: str, thread_id: str, checkpoint_ns: str = "") -> bool:
        """Return whether the policy allows an operation. If it raises an error, that is logged, and refuses."""
        try:
            return self._ask(principal, operation, thread_id, checkpoint_ns)
        except Exception:
            _LOGGER.exception("the access policy failed, which refuses %s", operation)
            return False

    def _ask(self, principal: Any, operation: str, thread_id: str, checkpoint_ns: str) -> bool:
        answer = self._policy(principal, operation, thread_id, checkpoint_ns)
        if answer is True:
            return True
        if inspect.iscoroutine(answer):
            answer.close()  # no code awaits it
        return False

    def require(self, operation: str, subject: ConfigLike) -> RunnableConfig:
        """Check that the principal of a call may do something with a history, or with a whole thread.

        Returns:
            The config of what was asked about.

        Raises:
            AccessDeniedError: it may not.
        """
        config = RunnableConfig.of(subject)
        principal = get_principal(config)
        try:
            is_allowed = self._ask(principal, operation, config.thread, config.checkpoint_ns)
        except Exception as error:
            raise _make_error(principal, operation, config) from error
        if not is_allowed:
            raise _make_error(principal, operation, config)
        if operation in _WHOLE_THREAD and not self._may_use_others(principal, operation, config):
            raise _make_error(principal, operation, config)
        return config

    def _may_use_others(self, principal: Any, operation: str, config: RunnableConfig) -> bool:
        """Return whether the principal may do something in all namespaces of a thread but that of a config."""
        others = [name for name in self._saver.namespaces(config.thread) if name != config.checkpoint_ns]
        return all(self.is_allowed(principal, operation, config.thread, name) for name in others)

    def list_allowed(self, operation: str) -> Sequence[str]:
        """Return the threads with which the principal may do something."""
        principal = get_principal()
        return [
            thread_id
            for thread_id in self._saver.threads(released=True)
            if self.is_allowed(principal, operation, thread_id)
            and self._may_use_others(principal, operation, RunnableConfig(thread_id))
        ]

    def filter(
        self,
        operation: str,
        config: RunnableConfig | None,
        found: Iterable[_Result],
        place: Callable[[_Result], tuple[str, str]],
    ) -> list[_Result]:
        """Return the items of a listing that the principal of a call may see.

        Args:
            operation: the method that lists them.
            config: that of the call, if it has one, which is allowed.
            found: the items.
            place: returns the thread id and the namespace of an item.
        """
        principal = get_principal(config)
        answers = {} if config is None else {(config.thread, config.checkpoint_ns): True}
        allowed: list[_Result] = []
        for each in found:
            key = place(each)
            if key not in answers:
                answers[key] = self.is_allowed(principal, operation, *key)
            if answers[key]:
                allowed.append(each)
        return allowed

    def read(
        self, operation: str, thread: ThreadLike, read: Callable[[ThreadLike], Iterable[_Result]]
    ) -> list[_Result]:
        """Read from one thread, or from all (None), not yet filtered.

        If one of all threads cannot be read, that may be one that the principal may not know, and whose
        name is in the error. Then only the allowed ones are read.
        """
        if thread is not None:
            return [*read(self.require(operation, thread))]
        try:
            return [*read(None)]
        except CheckpointerError:
            return [each for thread_id in self.list_allowed(operation) for each in read(thread_id)]

    def change(self, operation: str, thread: ThreadLike, **options: Any) -> Any:
        """Call a method of the delegate for one thread, or for each that is allowed (None), also if some fail."""
        change = getattr(self._saver, operation)
        if thread is not None:
            return change(self.require(operation, thread).thread, **options)
        progress = options.pop("progress", None)
        failed = FailedThreads(operation, passes_over=(CheckpointErasedError,))
        results = failed.change_each(self.list_allowed(operation), partial(change, **options), progress)
        return _join(operation, results, is_dry_run=options.get("dry_run", False))

    # Putting

    @contextmanager
    def claim(self, config: RunnableConfig) -> Iterator[Mapping[str, Any]]:
        """Ask for a put if the policy marks checkpoints; only one caller puts the first one of a thread.

        A policy such as `owner` allows anybody to put to a thread that does not exist. Of two that ask at
        the same time, both would be allowed, and the second would have the thread of the first. So the
        first put holds the run lock of the thread, which excludes other processes, and a lock of this
        object, and asks again.

        Yields:
            What the policy adds to the metadata.
        """
        assert self.metadata_of is not None
        # Read before the policy is asked: if there is a checkpoint, the policy sees it, too.
        is_first = self._saver.get(RunnableConfig(config.thread)) is None
        self.require("put", config)
        mark = self.metadata_of(get_principal(config))
        if not is_first:
            yield mark
            return
        with ExitStack() as stack:
            # In this order: what holds the lock of this object never waits for a run.
            if config.thread not in list(self._running.values()):
                stack.enter_context(self._saver.run_lock(config))
            stack.enter_context(self._first_put)
            self.require("put", config)
            yield mark

    @contextmanager
    def note_run(self, thread_id: str, lock: AbstractContextManager[object]) -> Iterator[None]:
        """Hold a run lock in the block, so that a put there does not take it."""
        entry = object()
        with lock:
            try:
                self._running[entry] = thread_id
                yield
            finally:
                self._running.pop(entry, None)


def _make_error(principal: Any, operation: str, config: RunnableConfig) -> AccessDeniedError:
    # An object may have secrets in its repr.
    name = repr(principal) if isinstance(principal, (str, int)) else f"of type {type(principal).__name__}"
    return AccessDeniedError(
        operation, config.thread, config.checkpoint_ns, principal=None if principal is None else name
    )


def _join(operation: str, results: Sequence[Any], *, is_dry_run: bool) -> Any:
    """Return one result of an operation on several threads."""

    def collect(name: str) -> tuple[Any, ...]:
        return tuple(chain.from_iterable(getattr(report, name) for report in results))

    match operation:
        case "compact" | "prune":
            return sum(results)
        case "delete_idle":
            return sorted(chain.from_iterable(results))
        case "verify":
            return graphkit.abc.VerifyReport(threads=collect("threads"), size=sum(report.size for report in results))
        case "repair":
            return graphkit.abc.RepairReport(
                files=collect("files"),
                finished=collect("finished"),
                removed=collect("removed"),
                dry_run=is_dry_run,
            )
        case _:
            return graphkit.abc.RotationReport(
                rewritten=collect("rewritten"), set_aside=collect("set_aside"), erased=collect("erased")
            )


def _make_guard(member: FunctionType) -> Callable[..., Any]:
    """Return a method that asks the policy about one history before it calls the delegate."""
    if is_async(member):
        return member
    operation = member.__name__
    signature = inspect.signature(member)
    _, first, *_others = [*signature.parameters, ""]
    if first not in _OF_A_HISTORY:
        raise TypeError(f"AccessControlledSaver needs a method {operation!r}: it is not one of a single history")

    @wraps(member)
    def change(saver: AccessControlledSaver, thread: ThreadLike = None, **options: Any) -> Any:
        signature.bind(saver, thread, **options)  # wrong options are refused also if no thread is allowed
        return saver._guard.change(operation, thread, **options)  # noqa: SLF001 - it is a method

    @wraps(member)
    def guard(saver: AccessControlledSaver, *arguments: Any, **options: Any) -> Any:
        if arguments:
            subject, *others = arguments
        else:
            subject, others = options.pop(first, None), []
        # The delegate gets what was asked about, and never None, which means all threads to some methods.
        config = saver._guard.require(operation, subject)  # noqa: SLF001 - it is a method
        return getattr(saver.delegate, operation)(config, *others, **options)

    return change if operation in _OF_EACH_THREAD else guard


def _guards(contract: type) -> Callable[[type[_Class]], type[_Class]]:
    """Return a decorator: a class asks the policy before each method of a contract that it does not define."""
    return overrides(contract, _make_guard, omitted=_NOT_ASKED)


@_guards(BaseCheckpointSaver)
class AccessControlledSaver(SaverWrapper):
    """Asks a policy before each operation, on behalf of the principal of the call.

    The principal is that of the config (`RunnableConfig.with_principal`), or else that of
    `savers.acting_as`. Operations have the names of the methods of the contract, also for their async
    twins and for LangGraph's checkpointer on this saver. What a method calls inside is not asked
    again. `copy` asks for `copy` on the source and for `put` on the target.

    A refused operation raises AccessDeniedError, and changes nothing. What covers several threads or
    namespaces leaves out those that the principal may not read, and changes those that it may change:
    it asks about each of them, under its own name. `release`, `delete`, `copy`, `size` and others that
    cover all namespaces of a thread need the right in all of them.

    It is not authentication, and no border inside a process: code that has the delegate needs no right.
    See docs/security.md.

    Attributes:
        delegate: the wrapped saver.
        policy: decides.
    """

    def __new__(cls, saver: BaseCheckpointSaver, policy: Policy) -> Self:  # noqa: ARG004
        """Make a wrapper that has the capabilities of the saver."""
        return super().__new__(cls, saver)

    def __init__(self, saver: BaseCheckpointSaver, policy: Policy) -> None:
        """Guard a saver.

        Args:
            saver: the saver.
            policy: called as policy(principal, operation, thread_id, checkpoint_ns); the principal is
                None if there is none. Only True allows. If it raises an Exception, that refuses. It may
                be called from any thread, also for listings, so it should be fast. It may have two
                methods: `bind(saver)` is called once, with the saver that is guarded; and
                `metadata_of(principal)` returns metadata to store with each checkpoint that the
                principal puts. See `savers.policies`.

        Raises:
            CheckpointerConfigurationError: the policy is not callable with four arguments, or is
                asynchronous.
        """
        super().__init__(saver)
        check_function("policy", policy, CheckpointerConfigurationError)
        try:
            inspect.signature(policy).bind("principal", "operation", "thread_id", "checkpoint_ns")
        except TypeError as error:
            reason = f"a policy must take (principal, operation, thread_id, checkpoint_ns): {error}"
            raise CheckpointerConfigurationError(reason) from error
        except ValueError:
            pass  # a callable without a signature
        self.policy = policy
        self._guard = _Guard(saver, policy)
        bind = getattr(policy, "bind", None)
        if bind is not None:
            bind(saver)
        if any(wrapper._records_refusals for wrapper in iter_wrappers(saver)):  # noqa: SLF001 - asked of wrappers alone
            _LOGGER.warning(
                "refusals are not recorded: AuditedSaver(AccessControlledSaver(saver, policy), log) is the order"
            )

    def __repr__(self) -> str:
        """Return the class, that of the saver, and the policy; not how many threads there are."""
        return f"{type(self).__name__}({type(self.delegate).__name__}, {self.policy!r})"

    def check_access(self, config: ConfigLike, operations: Collection[str]) -> None:
        """Check that the principal of the call may do several things; see `graphkit.abc.SupportsCheckAccess`."""
        for operation in operations:
            self._guard.require(operation, config)
        if isinstance(self.delegate, SupportsCheckAccess):
            self.delegate.check_access(config, operations)

    # Putting

    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        if self._guard.metadata_of is None:
            return self.delegate.put(self._guard.require("put", config), checkpoint)
        config = RunnableConfig.of(config)
        with self._guard.claim(config) as mark:
            return self.delegate.put(config, _mark(checkpoint, mark))

    def put_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        # Not generated: it is called at each step of a run.
        self.delegate.put_writes(self._guard.require("put_writes", config), writes)

    def run_lock(self, config: ConfigLike = None, timeout: float | None = None) -> AbstractContextManager[object]:
        config = self._guard.require("run_lock", config)
        lock = self.delegate.run_lock(config, timeout)
        return lock if self._guard.metadata_of is None else self._guard.note_run(config.thread, lock)

    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        source = self._guard.require("copy", source)
        target = self._guard.require("put", target)
        self.delegate.copy(source, target)

    # Listings

    def threads(self, *, released: bool = False) -> Sequence[str]:
        found = self.delegate.threads(released=released)
        return self._guard.filter("threads", None, found, lambda thread_id: (thread_id, ""))

    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        config = self._guard.require("namespaces", thread)
        found = self.delegate.namespaces(config)
        return self._guard.filter("namespaces", config, found, lambda name: (config.thread, name))

    def search(
        self, metadata: Mapping[str, Any], *, thread_id: ThreadLike = None, limit: int | None = None
    ) -> Sequence[CheckpointInfo]:
        config = None if thread_id is None else RunnableConfig.of(thread_id)
        wanted = None if limit is None else check_limit(limit)

        def search(thread: ThreadLike) -> Sequence[CheckpointInfo]:
            return self.delegate.search(metadata, thread_id=thread, limit=wanted)

        while True:
            found = self._guard.read("search", thread_id, search)
            allowed = self._guard.filter("search", config, found, _get_place)
            if limit is None or wanted is None or len(found) < wanted or len(allowed) >= limit:
                return allowed[:limit]
            wanted *= _GROWTH

    def interrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        config = None if thread_id is None else RunnableConfig.of(thread_id)
        found = self._guard.read("interrupts", thread_id, self.delegate.interrupts)
        return self._guard.filter("interrupts", config, found, _get_place)

    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        config = self._guard.require("summary", config)
        summary = self.delegate.summary(config)
        if summary is None:
            return None
        # Those of nested graphs are in namespaces of their own.
        waiting = self._guard.filter("summary", config, summary.waiting, _get_place)
        return summary._replace(waiting=tuple(waiting))

    def size(self, thread: ThreadLike = None) -> int:
        if thread is not None:
            return self.delegate.size(self._guard.require("size", thread).thread)
        return sum(map(self.delegate.size, self._guard.list_allowed("size")))

    def watch(
        self, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0, until: str | None = None
    ) -> Watch:
        """Report the changes that the principal may see; it is that of this call, whoever reads the watch.

        With `until`, only threads that it may see are waited for.
        """
        delegate = self.delegate
        config = None if thread is None else self._guard.require("watch", thread)
        is_allowed = partial(self._guard.is_allowed, get_principal(config), "watch")

        def list_visible() -> list[str]:
            return [thread_id for thread_id in delegate.threads() if is_allowed(thread_id, "")]

        end = None
        if until is not None:
            # Of the saver, an end reads the threads that are waited for, and their statuses.
            visible: Any = SimpleNamespace(threads=list_visible, recent=delegate.recent)
            end = WatchEnd(visible, config, until)
        watch = delegate.watch(config, latest=latest, interval=interval)
        thread_ids = delegate.threads(released=True) if config is None else [config.thread]
        known = [(each, namespace) for each in thread_ids for namespace in {"", *delegate.namespaces(each)}]
        # The last answer about each history. When a history has ended, only this says whether the principal knew
        # of it: a policy that reads the store finds nothing any more.
        answers = {history: is_allowed(*history) for history in known}

        def is_visible(change: Change) -> bool:
            history = (change.thread_id, change.checkpoint_ns)
            if change.kind not in {"delete", "idle", "release"}:
                answers[history] = is_allowed(*history)
            return answers.get(history, False)

        watch.report_only(is_visible)
        if end is not None:
            watch.end_at(end)
        return watch

    # Other processes

    def opener(self) -> Callable[[], BaseCheckpointSaver] | None:
        """As in the contract; None if the policy cannot be pickled."""
        return make_opener(self.delegate, partial(AccessControlledSaver, policy=self.policy))

    # Java names
    checkAccess = check_access

    @classmethod
    def _find_mixins(cls) -> Mapping[type, type]:
        return _GUARDED


def _get_place(found: CheckpointInfo | WaitingInterrupt) -> tuple[str, str]:
    return found.thread_id, found.checkpoint_ns


def _mark(checkpoint: Checkpoint, mark: Mapping[str, Any]) -> Checkpoint:
    return checkpoint.with_metadata(freeze({**checkpoint.metadata, **mark}))


# Capabilities


class _Guarded:
    """What the guarded capabilities use of AccessControlledSaver, of which they become part."""

    delegate: Any
    _guard: _Guard


@_guards(HasVersions)
class _GuardedVersions(_Guarded, HasVersions):
    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        config = self._guard.require("version_namespaces", thread)
        found = self.delegate.version_namespaces(config, version)
        return self._guard.filter("version_namespaces", config, found, lambda name: (config.thread, name))


class _GuardedLogs(_Guarded):
    """What LangGraph's checkpointer uses; see SupportsLogs."""

    def read_log(
        self, config: RunnableConfig, read: Callable[[AnyLog], _Result], default: _Result, *, operation: str = "get"
    ) -> _Result:
        config = self._guard.require(operation, config)
        return self.delegate.read_log(config, read, default, operation=operation)  # type: ignore[no-any-return]

    def append_to_log(self, config: RunnableConfig, append: Callable[[Any], None]) -> None:
        if self._guard.metadata_of is None:
            self.delegate.append_to_log(self._guard.require("put", config), append)
            return
        with self._guard.claim(config) as mark:
            self.delegate.append_to_log(
                config, lambda log: append(HookedLog(log, lambda checkpoint, _: _mark(checkpoint, mark)))
            )

    def put_packed_writes(self, config: RunnableConfig, *arguments: Any, **options: Any) -> None:
        self.delegate.put_packed_writes(self._guard.require("put_writes", config), *arguments, **options)

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:
        heads = self.delegate.list_heads(metadata, with_newest=with_newest)
        return self._guard.filter("list", None, heads, lambda head: (head.thread_id, head.namespace))

    def call_without_waiting(self, *_: object, **_options: object) -> None:
        """Call nothing: a policy may take its time."""


_GUARDED: Final[Mapping[type, type]] = {
    **{each: make_capability(each, _guards) for each in CAPABILITIES},
    **{each: make_capability(each) for each in (SupportsErase, SupportsExists, SupportsFlush)},
    HasVersions: _GuardedVersions,
    SupportsLogs: _GuardedLogs,
}
"""The class that guards the methods of each capability."""
