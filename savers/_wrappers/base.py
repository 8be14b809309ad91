"""SaverWrapper: forwards the whole contract of a saver to another saver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, wraps
from typing import Any, Final, Self, Unpack

from graphkit import Checkpoint, CheckpointInfo, HistorySummary, RunnableConfig, Tag, WaitingInterrupt
from graphkit.abc import (
    BaseCheckpointSaver,
    ConfigLike,
    HasVersions,
    RetentionOptions,
    SupportsClose,
    SupportsCompact,
    SupportsDeleteIdle,
    SupportsExists,
    SupportsFlush,
    SupportsRemove,
    SupportsRepair,
    SupportsReplay,
    SupportsRotate,
    SupportsVerify,
    ThreadLike,
    Watch,
)
from graphkit.errors import CheckpointerConfigurationError


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

    def __new__(cls, delegate: BaseCheckpointSaver, *_args: Any, **_options: Any) -> Self:
        """Make a wrapper that has the capabilities of the delegate."""
        missing = tuple(
            mixin
            for capability, mixin in _MIXINS.items()
            if isinstance(delegate, capability) and not issubclass(cls, capability)
            # It would bypass what the wrapper does to checkpoints.
            if capability is not SupportsReplay or cls.list is SaverWrapper.list
        )
        return super().__new__(_with_mixins(cls, missing) if missing else cls)

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

    # The four required methods

    def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        return self.delegate.list(config)

    def get(self, config: ConfigLike = None) -> Checkpoint | None:
        return self.delegate.get(config)

    def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        return self.delegate.put(config, checkpoint)

    def release(self, config: ConfigLike = None) -> Tag:
        return self.delegate.release(config)

    # Capabilities

    @property
    def is_durable(self) -> bool:
        return self.delegate.is_durable

    @property
    def isolates_values(self) -> bool:
        return self.delegate.isolates_values

    @property
    def lists_namespaces(self) -> bool:
        return self.delegate.lists_namespaces

    @property
    def lists_threads(self) -> bool:
        return self.delegate.lists_threads

    @property
    def measures_size(self) -> bool:
        return self.delegate.measures_size

    @property
    def refuses_unstorable_values(self) -> bool:
        return self.delegate.refuses_unstorable_values

    @property
    def seals_records(self) -> bool:
        return self.delegate.seals_records

    @property
    def waits_for_runs(self) -> bool:
        return self.delegate.waits_for_runs

    # The other methods

    def namespaces(self, thread: ThreadLike = None) -> Sequence[str]:
        return self.delegate.namespaces(thread)

    def history(self, config: ConfigLike = None) -> Sequence[CheckpointInfo]:
        return self.delegate.history(config)

    def recent(self, config: ConfigLike = None, *, limit: int) -> Sequence[CheckpointInfo]:
        return self.delegate.recent(config, limit=limit)

    def summary(self, config: ConfigLike = None) -> HistorySummary | None:
        return self.delegate.summary(config)

    def put_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        self.delegate.put_writes(config, writes)

    def get_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        return self.delegate.get_writes(config)

    def add_tags(self, config: ConfigLike, *tags: str) -> None:
        self.delegate.add_tags(config, *tags)

    def remove_tags(self, config: ConfigLike, *tags: str) -> None:
        self.delegate.remove_tags(config, *tags)

    def tags_of(self, config: ConfigLike) -> tuple[str, ...]:
        return self.delegate.tags_of(config)

    def interrupts(self, thread_id: ThreadLike = None) -> Sequence[WaitingInterrupt]:
        return self.delegate.interrupts(thread_id)

    def threads(self, *, released: bool = False) -> Sequence[str]:
        return self.delegate.threads(released=released)

    def delete(self, thread: ThreadLike = None) -> bool:
        return self.delegate.delete(thread)

    def copy(self, source: ThreadLike, target: ThreadLike) -> None:
        self.delegate.copy(source, target)

    def search(
        self, metadata: Mapping[str, Any], *, thread_id: ThreadLike = None, limit: int | None = None
    ) -> Sequence[CheckpointInfo]:
        return self.delegate.search(metadata, thread_id=thread_id, limit=limit)

    def prune(self, thread: ThreadLike = None, **retention: Unpack[RetentionOptions]) -> int:
        return self.delegate.prune(thread, **retention)

    def size(self, thread: ThreadLike = None) -> int:
        return self.delegate.size(thread)

    def register_types(self, *types: type) -> None:
        self.delegate.register_types(*types)

    def opener(self) -> Callable[[], BaseCheckpointSaver] | None:
        """Return what opens the store of the delegate in another process; None if nothing does.

        A wrapper that changes what is stored must override it.
        """
        return self.delegate.opener()

    def run_lock(self, config: ConfigLike = None, timeout: float | None = None) -> AbstractContextManager[object]:
        return self.delegate.run_lock(config, timeout)

    def run_lock_key(self, config: ConfigLike = None) -> object:
        return self.delegate.run_lock_key(config)

    def is_run_locked(self, config: ConfigLike = None) -> bool:
        return self.delegate.is_run_locked(config)

    def watch(self, thread: ThreadLike = None, *, latest: bool = False, interval: float = 1.0) -> Watch:
        return self.delegate.watch(thread, latest=latest, interval=interval)

    def wait_for_resume(
        self, thread: ThreadLike = None, timeout: float | None = None, *, interval: float = 1.0
    ) -> bool:
        return self.delegate.wait_for_resume(thread, timeout, interval=interval)

    # Async methods

    async def alist(self, config: ConfigLike = None) -> Sequence[Checkpoint]:
        return await self.delegate.alist(config)

    async def aget(self, config: ConfigLike = None) -> Checkpoint | None:
        return await self.delegate.aget(config)

    async def aput(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig:
        return await self.delegate.aput(config, checkpoint)

    async def arelease(self, config: ConfigLike = None) -> Tag:
        return await self.delegate.arelease(config)

    async def aput_writes(self, config: ConfigLike, writes: Mapping[str, Any]) -> None:
        await self.delegate.aput_writes(config, writes)

    async def aget_writes(self, config: ConfigLike) -> Mapping[str, Any]:
        return await self.delegate.aget_writes(config)

    async def adelete(self, thread: ThreadLike = None) -> bool:
        return await self.delegate.adelete(thread)

    async def acopy(self, source: ThreadLike, target: ThreadLike) -> None:
        await self.delegate.acopy(source, target)

    async def aprune(self, thread: ThreadLike = None, **retention: Unpack[RetentionOptions]) -> int:
        return await self.delegate.aprune(thread, **retention)


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

    def last_version_by_thread_id(self, thread: ThreadLike = None) -> int | None:
        return self.delegate.last_version_by_thread_id(thread)  # type: ignore[no-any-return]

    def tag(self, config: ConfigLike, version: int | None = None) -> Tag:
        return self.delegate.tag(config, version)  # type: ignore[no-any-return]

    def last_tag(self, config: ConfigLike = None) -> Tag | None:
        return self.delegate.last_tag(config)  # type: ignore[no-any-return]

    def get_version(self, config: ConfigLike = None) -> str | None:
        return self.delegate.get_version(config)  # type: ignore[no-any-return]

    def version_namespaces(self, thread: ThreadLike = None, version: int | None = None) -> Sequence[str]:
        return self.delegate.version_namespaces(thread, version)  # type: ignore[no-any-return]


def _make_mixin(capability: type) -> type:
    """Return a class that forwards the methods of an optional capability to the delegate."""

    def forward(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def forwarded(wrapper: SaverWrapper, *arguments: Any, **options: Any) -> Any:
            return getattr(wrapper.delegate, name)(*arguments, **options)

        return forwarded

    methods = {name: forward(name, each) for name, each in vars(capability).items() if not name.startswith("_")}
    return type(f"Forwards{capability.__name__}", (), methods)


_OPTIONAL: Final = (
    SupportsVerify,
    SupportsRepair,
    SupportsCompact,
    SupportsFlush,
    SupportsDeleteIdle,
    SupportsRotate,
    SupportsReplay,
    SupportsRemove,
    SupportsClose,
    SupportsExists,
)
_MIXINS: Final[Mapping[type, type]] = {
    HasVersions: VersionedSaverWrapper,
    **{capability: _make_mixin(capability) for capability in _OPTIONAL},
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
