"""SaverWrapper: forwards the whole contract of a saver to another saver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, wraps
from inspect import isasyncgenfunction, iscoroutinefunction
from operator import attrgetter
from types import FunctionType
from typing import Any, Final, Self, TypeVar

from graphkit import Checkpoint, RunnableConfig, Tag
from graphkit.abc import (
    BaseCheckpointSaver,
    HasVersions,
    SupportsCheckAccess,
    SupportsCompact,
    SupportsDeleteIdle,
    SupportsErase,
    SupportsExists,
    SupportsFlush,
    SupportsOwnKeys,
    SupportsRemove,
    SupportsRepair,
    SupportsReplay,
    SupportsRotate,
    SupportsVerify,
)
from graphkit.errors import CheckpointerConfigurationError
from graphkit.saver_kit import ConfigLike, ThreadLike

_Wrapper = TypeVar("_Wrapper")

OF_NO_THREAD: Final = frozenset({
    "close", "exists", "flush", "opener", "register_types", "run_lock_key", "threadId",
})  # fmt: skip
"""Methods that neither read nor change a thread."""


def _make_forward(name: str, member: Any) -> Any:
    """Return what calls a method of the delegate, or reads a property of it, in place of the wrapper's own."""
    if isinstance(member, property):
        return property(attrgetter(f"delegate.{name}"), doc=member.__doc__)

    @wraps(member)
    def forward(wrapper: SaverWrapper, *arguments: Any, **options: Any) -> Any:
        return getattr(wrapper.delegate, member.__name__)(*arguments, **options)

    if not iscoroutinefunction(member):
        return forward

    @wraps(member)
    async def await_forward(wrapper: SaverWrapper, *arguments: Any, **options: Any) -> Any:
        return await forward(wrapper, *arguments, **options)

    return await_forward


def _forwards(contract: type) -> Callable[[type[_Wrapper]], type[_Wrapper]]:
    """Return a decorator: a wrapper class forwards what it does not define of the methods of a contract.

    The signatures that editors and type checkers see are those of the contract.
    """
    forwards: dict[Any, Any] = {}
    """Both spellings of a method are one function."""

    def add(cls: type[_Wrapper]) -> type[_Wrapper]:
        for name, member in vars(contract).items():
            is_forwarded = not name.startswith("_") and isinstance(member, property | FunctionType)
            # `threadId` only reads its argument.
            if is_forwarded and name not in {*vars(cls), "threadId"}:
                setattr(cls, name, forwards.setdefault(member, _make_forward(name, member)))
        return cls

    return add


def overrides(
    contract: type, make: Callable[[FunctionType], FunctionType], *, omitted: Collection[str]
) -> Callable[[type[_Wrapper]], type[_Wrapper]]:
    """Return a decorator: a wrapper class gets an override of each method of a contract that it does not define.

    Args:
        contract: a contract of savers.
        make: returns the override of a method.
        omitted: the methods that are only forwarded.
    """

    def add(cls: type[_Wrapper]) -> type[_Wrapper]:
        made: dict[FunctionType, FunctionType] = {}
        for name, member in vars(contract).items():
            if name.startswith("_") or not isinstance(member, FunctionType):
                continue
            if name in {*vars(cls), *omitted} or member.__name__ in omitted:
                continue
            if member.__name__ in vars(cls):
                override = vars(cls)[member.__name__]  # another spelling
            elif iscoroutinefunction(member) or isasyncgenfunction(member):
                override = member  # that of the contract calls the sync method
            else:
                override = made.setdefault(member, make(member))
            setattr(cls, name, override)
        return cls

    return add


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
        """Wrap a saver."""
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
            if async_method is not None and f"a{name}" not in vars(cls):
                for spelling in _find_spellings(async_method):
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


@_forwards(HasVersions)
class VersionedSaverWrapper(SaverWrapper, HasVersions):
    """A SaverWrapper around a saver with versions.

    Wrapping such a saver in a SaverWrapper gives one. Subclass it, rather than SaverWrapper, to
    override methods about versions.
    """

    delegate: Any
    """A BaseCheckpointSaver that is a HasVersions too."""

    def __init__(self, delegate: BaseCheckpointSaver) -> None:
        """Wrap a saver.

        Raises:
            CheckpointerConfigurationError: the saver keeps no versions.
        """
        if not isinstance(delegate, HasVersions):
            raise CheckpointerConfigurationError(f"{type(delegate).__name__} keeps no versions; use a SaverWrapper")
        super().__init__(delegate)

    def versions_by_thread_id(self, thread: ThreadLike = None) -> Sequence[int]:
        return self.delegate.versions_by_thread_id(thread)  # type: ignore[no-any-return]

    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        return self.delegate.tag(config, version)  # type: ignore[no-any-return]


def make_capability(protocol: type) -> type:
    """Return a class that forwards the methods of a capability."""
    return _forwards(protocol)(type(f"Forwards{protocol.__name__}", (), {}))


_OPTIONAL: Final = (
    SupportsVerify,
    SupportsRepair,
    SupportsCompact,
    SupportsFlush,
    SupportsDeleteIdle,
    SupportsErase,
    SupportsRotate,
    SupportsReplay,
    SupportsRemove,
    SupportsOwnKeys,
    SupportsExists,
    SupportsCheckAccess,
)
_MIXINS: Final[Mapping[type, type]] = {
    HasVersions: VersionedSaverWrapper,
    **{each: make_capability(each) for each in _OPTIONAL},
}
"""The class that forwards the methods of each capability."""


@cache
def _with_mixins(cls: type[Any], mixins: tuple[type, ...]) -> type[Any]:
    """Return a subclass of a wrapper class with more capabilities, under the name of the class."""
    # VersionedSaverWrapper is a subclass of SaverWrapper and takes its place among the bases.
    is_plain_wrapper = cls is SaverWrapper and VersionedSaverWrapper in mixins
    bases = mixins if is_plain_wrapper else (cls, *mixins)
    if bases == (VersionedSaverWrapper,):
        return VersionedSaverWrapper
    return type(cls.__name__, bases, {"__module__": cls.__module__, "__doc__": cls.__doc__})


@cache
def _find_spellings(method: Callable[..., Any]) -> Sequence[str]:
    """Return the names of a method of the contract: its Python name, and its Java name if it has one."""
    return [name for name in dir(BaseCheckpointSaver) if getattr(BaseCheckpointSaver, name) is method]
