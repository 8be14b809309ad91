"""Savers around another saver: SaverWrapper, which forwards the whole contract, and ValidatingSaver.

Each wraps any saver, so they can be nested. Below the classes is what the other wrappers share: the
overrides of a whole contract, openers, and the logs of the wrapped saver, which LangGraph's checkpointer uses.
"""

from __future__ import annotations

import pickle
from abc import update_abstractmethods
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, runtime_checkable

import graphkit.abc
from graphkit import Checkpoint, RunnableConfig, Tag
from graphkit.abc import BaseCheckpointSaver, HasVersions, SupportsReplay
from graphkit.errors import CheckpointerConfigurationError
from graphkit.saver_kit import ConfigLike, has_status_mark

if TYPE_CHECKING:
    from graphkit.saver_kit import FrozenDict
    from savers._log.catalogue import Head
    from savers._log.log import AnyLog
    from savers._log.stored_checkpoint import StoredCheckpoint

_Class = TypeVar("_Class")
OnPut = Callable[[Checkpoint, str | None], Checkpoint]
"""Takes a new checkpoint, and the id of the one that it replaces; returns what is put, perhaps with other metadata."""

OF_NO_THREAD: Final = frozenset({
    "close", "exists", "flush", "opener", "register_types", "run_lock_key", "threadId",
})  # fmt: skip
"""Methods that neither read nor change a thread."""


def overrides(
    contract: type, make: Callable[[FunctionType], Callable[..., Any]], *, omitted: Collection[str]
) -> Callable[[type[_Class]], type[_Class]]:
    """Return a decorator: a wrapper class overrides each method of a contract that it does not define.

    It forwards the properties. The signatures that editors and type checkers see are those of the contract.

    Args:
        contract: a contract of savers.
        make: returns the override of a method.
        omitted: the methods that the class inherits.
    """

    def add(cls: type[_Class]) -> type[_Class]:
        # Both spellings of a method are one function.
        made: dict[FunctionType, Callable[..., Any]] = {}
        for name, member in vars(contract).items():
            if name.startswith("_") or name in vars(cls) or name in omitted:
                continue
            if isinstance(member, property):
                forward = attrgetter(f"delegate.{name}")
                setattr(cls, name, property(forward, doc=member.__doc__))
            elif isinstance(member, FunctionType) and member.__name__ not in omitted:
                override = vars(cls).get(member.__name__)
                if override is None:
                    override = made.setdefault(member, make(member))
                vars(override).pop("__isabstractmethod__", None)  # `wraps` has copied it
                setattr(cls, name, override)
        return update_abstractmethods(cls)

    return add


def is_async(member: FunctionType) -> bool:
    """Return whether a method of a contract is the async twin of another; that of `BaseCheckpointSaver` calls it."""
    return iscoroutinefunction(member) or isasyncgenfunction(member)


def _make_forward(member: FunctionType) -> Callable[..., Any]:
    """Return what calls a method of the delegate."""

    @wraps(member)
    def forward(wrapper: SaverWrapper, *arguments: Any, **options: Any) -> Any:
        return getattr(wrapper.delegate, member.__name__)(*arguments, **options)

    if not iscoroutinefunction(member):
        return forward

    @wraps(member)
    async def await_forward(wrapper: SaverWrapper, *arguments: Any, **options: Any) -> Any:
        return await forward(wrapper, *arguments, **options)

    return await_forward


def _forwards(contract: type) -> Callable[[type[_Class]], type[_Class]]:
    """Return a decorator: a wrapper class forwards each method of a contract that it does not define."""
    return overrides(contract, _make_forward, omitted={"threadId"})  # that only reads its argument


@_forwards(BaseCheckpointSaver)
class SaverWrapper(BaseCheckpointSaver):
    """Forwards everything to another saver. Subclass it, and override what should differ.

    An overridden method applies to its Java name too, and to its async method unless that is
    overridden as well. Methods do not call each other through the wrapper. A wrapper that changes
    what is stored must therefore override each method that reads or writes it, such as `put` and
    `put_writes`.

    A wrapper has the capabilities of the saver that it wraps: it is a `HasVersions` if the delegate
    is one, and it supports `verify`, `repair` and `compact` if the delegate does.

    Attributes:
        delegate: the wrapped saver.
    """

    _records_refusals = False
    """Whether it records what is refused outside of it, and only there."""

    def __new__(cls, delegate: BaseCheckpointSaver, *_args: Any, **_options: Any) -> Self:
        """Make a wrapper that has the capabilities of the delegate."""
        missing = tuple(
            mixin
            for capability, mixin in cls._find_mixins().items()
            if isinstance(delegate, capability) and not issubclass(cls, capability)
        )
        return super().__new__(_with_mixins(cls, missing) if missing else cls)

    @classmethod
    def _find_mixins(cls) -> Mapping[type, type]:
        """Return the class that forwards the methods of each capability, as far as the wrapper may have it."""
        if cls.list is SaverWrapper.list:
            return _MIXINS
        # `replay` would bypass what the wrapper does to checkpoints.
        return {capability: mixin for capability, mixin in _MIXINS.items() if capability is not SupportsReplay}

    def __init__(self, delegate: BaseCheckpointSaver) -> None:
        """Wrap a saver.

        Raises:
            CheckpointerConfigurationError: this is not a saver; or the wrapper is of a class that was made for
                savers with versions, and the saver keeps none.
        """
        given: object = delegate
        if not isinstance(given, BaseCheckpointSaver):
            raise CheckpointerConfigurationError(f"{type(self).__name__} wraps a saver, not a {type(given).__name__}")
        if isinstance(self, _MIXINS[HasVersions]) and not isinstance(delegate, HasVersions):
            raise CheckpointerConfigurationError(f"{type(delegate).__name__} keeps no versions; use a SaverWrapper")
        self.delegate = delegate

    def __repr__(self) -> str:
        """Return the class, and the wrapped saver."""
        return f"{type(self).__name__}({self.delegate!r})"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the async method of each overridden method call the override.

        The async methods of this class call the delegate. Those of `BaseCheckpointSaver`, which run
        the sync method, take their place.
        """
        super().__init_subclass__(**kwargs)
        for name in [name for name in vars(cls) if not name.startswith("_")]:
            async_method = getattr(BaseCheckpointSaver, f"a{name}", None)
            if async_method is None or f"a{name}" in vars(cls):
                continue
            for spelling in dir(BaseCheckpointSaver):
                if getattr(BaseCheckpointSaver, spelling) is async_method:
                    setattr(cls, spelling, async_method)

    # The four required methods; `_forwards` makes the others

    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        return self.delegate.list(config)

    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        return self.delegate.get(config)

    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        return self.delegate.put(config, checkpoint)

    def release(self, config: ConfigLike = None) -> Tag:
        return self.delegate.release(config)


CAPABILITIES: Final[Sequence[type]] = (
    HasVersions,
    *(member for name, member in vars(graphkit.abc).items() if name.startswith("Supports")),
)
"""What only some savers can do."""


def make_capability(protocol: type, override: Callable[[type], Callable[[type], type]] = _forwards) -> type:
    """Return a class that overrides the methods of a capability; they are forwarded, unless told otherwise."""
    # A saver has versions if it is a subclass of HasVersions, and any other capability if it has the methods.
    bases = (HasVersions,) if protocol is HasVersions else ()
    return override(protocol)(type(f"Wrapped{protocol.__name__}", bases, {}))


_MIXINS: Final[Mapping[type, type]] = {each: make_capability(each) for each in CAPABILITIES}
"""The class that forwards the methods of each capability."""


@cache
def _with_mixins(cls: type[Any], mixins: tuple[type, ...]) -> type[Any]:
    """Return a subclass of a wrapper class with more capabilities, under the name of the class."""
    return type(cls.__name__, (cls, *mixins), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class ValidatingSaver(SaverWrapper):
    """Refuses checkpoints that have no node or an empty state; a run that was submitted has no state yet."""

    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        """Store a checkpoint if it has a node and a state.

        Raises:
            CheckpointerConfigurationError: the node id or the state is empty. Nothing was changed.
                Errors of the delegate are raised too.
        """
        if not checkpoint.node_id:
            raise CheckpointerConfigurationError("the checkpoint was not stored: its node_id is empty")
        if not checkpoint.state and not has_status_mark(checkpoint.metadata):
            raise CheckpointerConfigurationError("the checkpoint was not stored: its state is empty")
        return super().put(config, checkpoint)


def iter_wrappers(saver: BaseCheckpointSaver) -> Iterator[SaverWrapper]:
    """Yield the wrappers around a saver, the outermost first."""
    while isinstance(saver, SaverWrapper):
        yield saver
        saver = saver.delegate


def make_opener(
    delegate: BaseCheckpointSaver, wrap: Callable[[BaseCheckpointSaver], BaseCheckpointSaver]
) -> Callable[[], BaseCheckpointSaver] | None:
    """Return what opens a wrapper around a saver in another process; None if that cannot be pickled."""
    open_delegate = delegate.opener()
    if open_delegate is None:
        return None
    try:
        pickle.dumps(wrap)
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return None
    return partial(_open_wrapped, open_delegate, wrap)


def _open_wrapped(
    open_delegate: Callable[[], BaseCheckpointSaver], wrap: Callable[[BaseCheckpointSaver], BaseCheckpointSaver]
) -> BaseCheckpointSaver:
    return wrap(open_delegate())


# The logs of the wrapped saver


@runtime_checkable
class SupportsLogs(Protocol):
    """A saver whose histories are logs, or one around it that sees what goes to the logs.

    A wrapper that does not see it must not forward these methods: they would bypass it. See LogSaver
    for what they do.
    """

    def read_log(self, config: RunnableConfig, *arguments: Any, **options: Any) -> Any:
        """Call a function with the log of a history, for an operation of the contract."""

    def append_to_log(self, config: RunnableConfig, *arguments: Any, **options: Any) -> None:
        """Append records of checkpoints to a history."""

    def put_packed_writes(self, config: RunnableConfig, *arguments: Any, **options: Any) -> None:
        """Store pending writes that are packed."""

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:
        """Return the histories that may have a checkpoint with such metadata."""

    def call_without_waiting(self, config: RunnableConfig, *arguments: Any, **options: Any) -> Any:
        """Call a function now if it takes only some microseconds."""


class HookedLog:
    """A log whose new checkpoints pass a function first; what it returns is put."""

    def __init__(self, log: AnyLog, on_put: OnPut) -> None:
        self._log = log
        self.writer = _HookedWriter(log.writer, on_put)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class _HookedWriter:
    def __init__(self, writer: Any, on_put: OnPut) -> None:
        self._writer = writer
        self._on_put = on_put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def put(self, checkpoint: Checkpoint, target: str | None) -> None:
        self._writer.put(self._on_put(checkpoint, target), target)

    def put_packed(self, stored: StoredCheckpoint, state: FrozenDict, changes: Mapping[str, bytes | None]) -> None:
        stored.metadata = self._on_put(stored.make_checkpoint(state), None).metadata
        self._writer.put_packed(stored, state, changes)
