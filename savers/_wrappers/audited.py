"""AuditedSaver: records each operation of the contract in an audit log.

Every public method of the contract and of the capabilities is recorded here, by `_records`, unless
`OF_NO_THREAD` names it. A method that `_READING` does not name is recorded as one that writes, and the
capabilities are found by introspection. So a new method cannot be left out.

Theory of operation. A writing operation leaves an entry before it begins, the intent, which is on the disk
and has the digests of what is stored; and an entry when it has ended, the outcome. If the process dies in
between, the log shows an operation whose result is unknown. A reading operation leaves one entry, the
call. docs/security.md has the fields. A `_Recorder` writes the entries; the saver and what LangGraph's
checkpointer uses of it share one.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial, wraps
from itertools import count
from logging import getLogger
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, Unpack, final

from graphkit import Checkpoint, RunnableConfig
from graphkit.abc import BaseCheckpointSaver, SupportsExists, SupportsFlush
from graphkit.errors import AccessDeniedError, CheckpointerConfigurationError, CheckpointerError, CheckpointStorageError
from graphkit.saver_kit import ConfigLike, RetentionOptions, ThreadLike, check_function, freeze, get_principal
from savers._audit.digests import ContentDigester, Digester, find_codec, unwrap
from savers._audit.entries import FORMAT, Entry, now, to_json
from savers._audit.log import AuditLog
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
from savers.policies import READING

if TYPE_CHECKING:
    from savers._log.catalogue import Head
    from savers._log.log import AnyLog

OnError = Literal["refuse", "warn"]
_READING: Final = (READING - {"copy"}) | {"run_lock", "check_access"}
"""The operations that change nothing."""
_WITH_IDS: Final = frozenset({"copy", "delete", "release"})
"""The operations whose intent names the checkpoints that are copied, or that go."""
_SUBJECTS: Final = ("config", "thread", "thread_id", "source")
"""The parameters that name a history or a thread."""
_DEFAULT_THREAD: Final = frozenset({
    "copy", "delete", "namespaces", "version_namespaces", "versions_by_thread_id",
})  # fmt: skip
"""The operations on a `thread` that take None for the default thread, and not for all threads."""
_ThreadIds = dict[str, list[str]]
"""The ids of the checkpoints of a thread, by namespace."""
_LOGGER: Final = getLogger("graphkit")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class")


@final
class _Recorder:
    """Records operations on a saver in a log.

    Attributes:
        content: makes the digests of what is stored.
        store: the saver within all wrappers.
    """

    def __init__(self, saver: BaseCheckpointSaver, log: AuditLog | Sink, *, reads: bool, on_error: OnError) -> None:
        self._log = log
        self._reads = reads
        self._on_error = on_error
        self.hide_name = log.digester.hide_name
        self.store: Any = unwrap(saver)
        self.content = ContentDigester(log.digester, find_codec(self.store))
        self._marks: list[Callable[[Any], Mapping[str, Any]]] = []
        """What the policies add to the metadata of each checkpoint."""
        for wrapper in iter_wrappers(saver):
            metadata_of = getattr(getattr(wrapper, "policy", None), "metadata_of", None)
            if metadata_of is not None:
                self._marks.append(metadata_of)

    def record(self, operation: str, given: Mapping[str, Any], call: Callable[[], Any]) -> Any:
        """Record an operation, given its arguments by name."""
        subject = next((given[name] for name in _SUBJECTS if given.get(name) is not None), None)
        config = RunnableConfig.of(subject)
        takes_config = "config" in given or operation in _DEFAULT_THREAD
        is_about_all = subject is None and not takes_config
        describe = partial(self.describe, operation, config, is_about_all=is_about_all)
        if operation == "run_lock":
            return self._take_lock(describe, self.record_error(describe, call))
        if operation == "replay":
            return self._read_on(describe, self.record_error(describe, call))
        if operation in _READING or given.get("dry_run"):
            return self.record_reading(describe, call)
        fields = describe()
        if "target" in given:
            fields["target"] = RunnableConfig.of(given["target"]).thread
        if "ids" in given:
            fields["ids"] = list(given["ids"])
        if operation in _WITH_IDS:
            fields["ids"] = self.list_ids(config.thread)
        return self.record_writing(fields, call, partial(self._describe_result, operation))

    def _describe_result(self, operation: str, result: Any) -> Entry:
        """Return what the outcome says of the result of an operation."""
        if result is None:
            return {}
        if operation == "release":
            return {"version": result.version}
        if operation == "delete_idle":
            return {"threads": [self.hide_name("thread_id", thread_id) for thread_id in result]}
        if operation == "repair" and not result.changed:
            return {"removed": {}}
        return {}

    def record_writing(
        self,
        fields: Entry,
        call: Callable[[], _Result],
        describe_end: Callable[[_Result | None], Entry] = lambda _: {},
    ) -> _Result:
        """Record the intent, call, and record the outcome."""
        intent = self.append({"kind": "intent", **fields})
        try:
            result = call()
        except BaseException as error:
            self.end(intent, _describe_error(error) | describe_end(None))
            raise
        self.end(intent, {"result": "ok"} | describe_end(result))
        return result

    def end(self, intent: int, outcome: Entry) -> None:
        """Record the outcome of an operation whose intent has a number, or 0 if it could not be written."""
        if intent:
            self.append({"kind": "outcome", "of": intent, **outcome})
        else:
            self._log.note_gap()

    def record_reading(self, describe: Callable[[], Entry], call: Callable[[], _Result]) -> _Result:
        """Call, and record the call."""
        result = self.record_error(describe, call)
        if self._reads:
            self.append({"kind": "call", **describe(), "result": "ok"})
        return result

    def record_error(self, describe: Callable[[], Entry], call: Callable[[], _Result]) -> _Result:
        """Call, and record only an error."""
        try:
            return call()
        except Exception as error:
            if self._reads or isinstance(error, AccessDeniedError):
                self.append({"kind": "call", **describe(), **_describe_error(error)})
            raise

    @contextmanager
    def _take_lock(self, describe: Callable[[], Entry], lock: AbstractContextManager[object]) -> Iterator[None]:
        """Hold a run lock, and record whether it was got."""
        with ExitStack() as stack:
            self.record_reading(describe, partial(stack.enter_context, lock))
            yield

    def _read_on(self, describe: Callable[[], Entry], checkpoints: Iterator[Checkpoint]) -> Iterator[Checkpoint]:
        """Yield what is read. The first one is recorded, since the reader may stop anywhere, and so is an error."""
        following = partial(next, checkpoints, None)
        checkpoint = self.record_reading(describe, following)
        while checkpoint is not None:
            yield checkpoint
            checkpoint = self.record_error(describe, following)

    def append(self, entry: Entry) -> int:
        """Append an entry; return its number, or 0 if it could not be written and the operation goes on."""
        is_intent = entry["kind"] == "intent"
        try:
            return self._log.append(entry, is_lasting=is_intent)
        except CheckpointerError:
            if is_intent and self._on_error == "refuse":
                raise
            self._log.note_gap()
            _LOGGER.warning("an entry of the audit log could not be written: %s", entry["kind"], exc_info=True)
            return 0

    # Describing

    def describe(self, operation: str, config: RunnableConfig, *, is_about_all: bool = False) -> Entry:
        """Return the fields that the entries of all operations have."""
        principal = get_principal(config)
        if principal is not None and not isinstance(principal, str):
            # An object may have secrets in its repr.
            principal = str(principal) if isinstance(principal, int) else f"of type {type(principal).__name__}"
        return {
            "operation": operation,
            "principal": principal,
            "thread_id": None if is_about_all else config.thread,
            "checkpoint_ns": config.checkpoint_ns,
            "checkpoint_id": config.checkpoint_id,
        }

    def describe_put(self, config: RunnableConfig, checkpoint: Checkpoint, replaced: str | None) -> Entry:
        if self._marks:
            # What the policies add is stored, too.
            metadata = dict(checkpoint.metadata)
            for metadata_of in self._marks:
                metadata |= metadata_of(get_principal(config))
            checkpoint = checkpoint.with_metadata(freeze(metadata))
        fields = self.describe("put", config)
        fields["checkpoint_id"] = checkpoint.id
        if replaced is not None:
            fields["replaces"] = replaced
        fields["digest"] = self.content.digest_checkpoint(checkpoint, (config.thread, config.checkpoint_ns))
        return fields

    def list_ids(self, thread_id: str) -> _ThreadIds | None:
        """Return the ids of the checkpoints of a thread, by namespace; None if they cannot be read."""
        try:
            namespaces = self.store.namespaces(thread_id) if self.store.lists_namespaces else [""]
            return {
                self.hide_name("checkpoint_ns", namespace): [
                    each.id for each in reversed(self.store.list(RunnableConfig(thread_id, checkpoint_ns=namespace)))
                ]
                for namespace in namespaces
            }
        except CheckpointerError:
            return None

    def list_removed(self, before: Mapping[str, _ThreadIds | None]) -> dict[str, _ThreadIds | None]:
        """Return the ids that have gone, by thread; None for a thread that cannot be read.

        Args:
            before: by thread id, what `list_ids` has returned.
        """
        removed: dict[str, _ThreadIds | None] = {}
        for thread_id, histories in before.items():
            name = self.hide_name("thread_id", thread_id)
            after = self.list_ids(thread_id)
            if histories is None or after is None:
                removed[name] = None
                continue
            gone: _ThreadIds = {}
            for namespace, ids in histories.items():
                missing = set(ids).difference(after.get(namespace, ()))
                if missing:
                    gone[namespace] = sorted(missing)
            if gone:
                removed[name] = gone
        return removed

    def name_latest(self, config: RunnableConfig) -> RunnableConfig:
        """Return a config that names the latest checkpoint, so that the record says which one was meant."""
        if config.checkpoint_id is not None:
            return config
        try:
            latest = self.store.recent(RunnableConfig(config.thread, checkpoint_ns=config.checkpoint_ns), limit=1)
        except CheckpointerError:
            return config  # the operation will say what is wrong
        return config.with_check_point_id(latest[0].id) if latest else config


def _describe_error(error: BaseException) -> Entry:
    # Never its message, which may have content.
    if isinstance(error, AccessDeniedError):
        return {"result": "refused", "error": type(error).__name__, "refused": error.operation}
    return {"result": "failed", "error": type(error).__name__}


def _make_recording(member: FunctionType) -> Callable[..., Any]:
    """Return a method that calls that of the delegate, and records it."""
    if is_async(member):
        return member
    operation = member.__name__
    signature = inspect.signature(member)

    @wraps(member)
    def record(saver: AuditedSaver, *arguments: Any, **options: Any) -> Any:
        given = signature.bind(saver, *arguments, **options)
        given.apply_defaults()
        call = partial(getattr(saver.delegate, operation), *arguments, **options)
        return saver._recorder.record(operation, given.arguments, call)  # noqa: SLF001 - it is a method

    return record


def _records(contract: type) -> Callable[[type[_Class]], type[_Class]]:
    """Return a decorator: a class records each method of a contract that it does not define."""
    return overrides(contract, _make_recording, omitted=OF_NO_THREAD)


@_records(BaseCheckpointSaver)
class AuditedSaver(SaverWrapper):
    """Records each operation in an audit log: who, what, which thread, when, and how it ended.

    A writing operation is recorded before it begins, with the digests of what it stores, on the disk;
    and again when it has ended. A reading one is recorded when it has ended. Content is never recorded.

    Put it around an AccessControlledSaver, not inside: only then are refusals recorded. See
    docs/security.md.

    Attributes:
        delegate: the wrapped saver.
        log: where the records go.
    """

    _records_refusals = True

    def __new__(cls, saver: BaseCheckpointSaver, log: Any, **_options: Any) -> Self:  # noqa: ARG004
        """Make a wrapper that has the capabilities of the saver."""
        return super().__new__(cls, saver)

    def __init__(
        self,
        saver: BaseCheckpointSaver,
        log: AuditLog | Sink | logging.Logger | logging.LoggerAdapter[Any] | Callable[[dict[str, Any]], object],
        *,
        reads: bool = True,
        on_error: OnError = "refuse",
    ) -> None:
        """Audit a saver.

        Args:
            saver: the saver.
            log: an AuditLog; or a logger, or a function that gets each entry as a dict. Only an AuditLog
                can be verified.
            reads: whether reading operations are recorded; refused ones always are.
            on_error: what happens to a writing operation if its intent cannot be recorded: it is refused
                with the error of the log, or goes on with a warning, and the next entry that can be
                written says how many are missing. Reading operations always go on.

        Raises:
            CheckpointerConfigurationError: an option is invalid.
        """
        if on_error not in {"refuse", "warn"}:
            raise CheckpointerConfigurationError(f'on_error must be "refuse" or "warn", not {on_error!r}')
        super().__init__(saver)
        given: Any = LoggerSink(log) if isinstance(log, (logging.Logger, logging.LoggerAdapter)) else log
        if not isinstance(given, (AuditLog, Sink)):
            check_function("a log that is no AuditLog or logger", given, CheckpointerConfigurationError)
            given = Sink(given)
        self.log: AuditLog | Sink = given
        self._options: dict[str, Any] = {"reads": reads, "on_error": on_error}
        self._recorder = _Recorder(saver, self.log, **self._options)

    def __repr__(self) -> str:
        """Return the class, the wrapped saver and the log."""
        return f"{type(self).__name__}({self.delegate!r}, {self.log!r})"

    # What is called at each step of a run. It is not generated: to bind the arguments takes 3 us.

    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        config = RunnableConfig.of(config)
        fields = self._recorder.describe_put(config, checkpoint, config.checkpoint_id)
        return self._recorder.record_writing(fields, partial(self.delegate.put, config, checkpoint))

    def put_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        config = self._recorder.name_latest(RunnableConfig.of(config))
        fields = self._recorder.describe("put_writes", config)
        if isinstance(writes, Mapping):  # the saver refuses anything else
            fields["writes"] = self._recorder.content.digest_writes(writes)
        self._recorder.record_writing(fields, partial(self.delegate.put_writes, config, writes))

    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        config = RunnableConfig.of(config)
        describe = partial(self._recorder.describe, "get", config)
        return self._recorder.record_reading(describe, partial(self.delegate.get, config))

    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        config = RunnableConfig.of(config)
        describe = partial(self._recorder.describe, "get_writes", config)
        return self._recorder.record_reading(describe, partial(self.delegate.get_writes, config))

    # What names the latest checkpoint, if it names none

    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        self._record_tags("add_tags", config, tags)

    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        self._record_tags("remove_tags", config, tags)

    def _record_tags(self, operation: str, config: ConfigLike, tags: Sequence[str]) -> None:
        recorder = self._recorder
        config = recorder.name_latest(RunnableConfig.of(config))
        fields = {**recorder.describe(operation, config), "tags": recorder.content.digest_tags(tags)}
        recorder.record_writing(fields, partial(getattr(self.delegate, operation), config, *tags))

    def prune(self, thread: ThreadLike = None, **retention: Unpack[RetentionOptions]) -> int:
        recorder = self._recorder
        config = RunnableConfig.of(thread)
        fields = recorder.describe("prune", config, is_about_all=thread is None)
        before: dict[str, _ThreadIds | None] | None = None

        def list_and_prune() -> int:
            # After the intent: what is put until then overlaps the prune, which may remove it.
            nonlocal before
            with suppress(CheckpointerError):
                thread_ids = recorder.store.threads() if thread is None else [config.thread]
                before = {each: recorder.list_ids(each) for each in thread_ids}
            return self.delegate.prune(thread, **retention)

        def describe_removed(_: object) -> Entry:
            return {} if before is None else {"removed": recorder.list_removed(before)}

        return recorder.record_writing(fields, list_and_prune, describe_removed)

    # The rest of the contract

    def close(self) -> None:
        self._recorder.content.forget()
        self.delegate.close()

    def register_types(self, *types: type) -> None:
        self.delegate.register_types(*types)
        self._recorder.content.codec.register(*types)

    registerTypes = register_types

    def opener(self) -> Callable[[], BaseCheckpointSaver] | None:
        """As in the contract; None if the log cannot be pickled: a function must be one of a module.

        What it returns holds the keys of the log, as it holds those of the saver.
        """
        return make_opener(self.delegate, partial(AuditedSaver, log=self.log, **self._options))

    @classmethod
    def _find_mixins(cls) -> Mapping[type, type]:
        return _RECORDED


# Where entries go, if that is no AuditLog


@final
class Sink:
    """Sends entries to a function, numbered but not chained: what it does with them, it answers for.

    A pickle holds the function, so it must be one that pickles.
    """

    def __init__(self, send: Callable[[Entry], object]) -> None:
        self._send = send
        self.digester = Digester(None)
        # Each call of these is atomic: there is no lock that a fork could copy while a thread holds it.
        self._numbers = count(1)
        self._gaps: deque[int] = deque()

    def __reduce__(self) -> tuple[Any, ...]:
        return Sink, (self._send,)

    def append(self, fields: Entry, *, is_lasting: bool) -> int:  # noqa: ARG002 - the function decides
        """Send an entry; return its number.

        Raises:
            CheckpointStorageError: the function has raised an exception.
        """
        seq = next(self._numbers)
        gaps = 0
        if self._gaps:
            with suppress(IndexError):  # another thread may take them, too
                while True:
                    gaps += self._gaps.popleft()
        entry = {**fields, "format": FORMAT, "seq": seq, "time": now()}
        if gaps:
            entry["gaps"] = gaps
        try:
            self._send(entry)
        except Exception as error:
            self._gaps.append(gaps)
            if isinstance(error, CheckpointerError):
                raise
            reason = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            raise CheckpointStorageError(repr(self._send), "write to", reason) from error
        return seq

    def note_gap(self) -> None:
        """Note that an entry could not be sent; the next one says so in its field `gaps`."""
        self._gaps.append(1)


@final
class LoggerSink:
    """Logs entries at the level INFO as JSON, and as the attribute `audit` of the log record.

    What handlers raise, the module `logging` catches: an operation is not refused because of it.
    """

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._logger: Final = logger

    def __repr__(self) -> str:
        return repr(self._logger)

    def __call__(self, entry: Entry) -> None:
        self._logger.info("%s", to_json(entry), extra={"audit": entry})


# LangGraph's checkpointer


class _RecordedLogs:
    """What LangGraph's checkpointer uses of a saver, recorded; see SupportsLogs. Part of AuditedSaver."""

    delegate: Any
    _recorder: _Recorder

    def read_log(
        self, config: RunnableConfig, read: Callable[[AnyLog], _Result], default: _Result, *, operation: str = "get"
    ) -> _Result:
        return self._recorder.record_reading(  # type: ignore[no-any-return]
            lambda: self._recorder.describe(operation, config),
            lambda: self.delegate.read_log(config, read, default, operation=operation),
        )

    def append_to_log(self, config: RunnableConfig, append: Callable[[Any], None]) -> None:
        # What is stored is known only inside, where the log is locked; so that is where the intent is recorded.
        # If another writer was faster, the checkpoint is made again, and may differ.
        recorder = self._recorder
        intents: list[int] = []

        def intend(checkpoint: Checkpoint, replaced: str | None) -> Checkpoint:
            fields = recorder.describe_put(config, checkpoint, replaced)
            intents.append(recorder.append({"kind": "intent", **fields}))
            return checkpoint

        try:
            self.delegate.append_to_log(config, lambda log: append(HookedLog(log, intend)))
        except BaseException as error:
            outcome = _describe_error(error)
            if not intents:
                recorder.append({"kind": "call", **recorder.describe("put", config), **outcome})
            for intent in intents:
                recorder.end(intent, outcome)
            raise
        for intent in intents[:-1]:
            recorder.end(intent, {"result": "failed", "error": "StaleLogError"})
        for intent in intents[-1:]:
            recorder.end(intent, {"result": "ok"})

    def put_packed_writes(
        self,
        config: RunnableConfig,
        id: str | None,
        packed: Mapping[str, bytes],
        keep: Collection[str] = (),
        **options: Any,
    ) -> None:
        recorder = self._recorder
        fields = {**recorder.describe("put_writes", config), "checkpoint_id": id}
        fields["writes"] = recorder.content.digest_packed_writes(packed)
        if keep:
            fields["keep"] = recorder.content.digest_keys(keep)
        recorder.record_writing(fields, partial(self.delegate.put_packed_writes, config, id, packed, keep, **options))

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:
        return self._recorder.record_reading(
            lambda: self._recorder.describe("list", RunnableConfig(), is_about_all=True),
            lambda: self.delegate.list_heads(metadata, with_newest=with_newest),
        )

    def call_without_waiting(self, *_: object, **_options: object) -> None:
        """Call nothing: an audit log waits for the disk."""


_RECORDED: Final[Mapping[type, type]] = {
    **{each: make_capability(each, _records) for each in CAPABILITIES},
    SupportsExists: make_capability(SupportsExists),
    SupportsFlush: make_capability(SupportsFlush),
    SupportsLogs: _RecordedLogs,
}
"""The class that records the methods of each capability, or forwards them if they are of no thread."""
