"""ScriptedSaver, which records the calls of a saver and fails on request, and ManualClock."""

from __future__ import annotations

import abc
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, final

from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import ConfigLike, RunnableConfig
from graphkit._saver import capabilities
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import QUALITIES, HasVersions

_Saver = TypeVar("_Saver")


class Call(NamedTuple):
    """A call that a ScriptedSaver received."""

    method: str
    """The name of the method; for an async method, the name of its sync method."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(kw_only=True)
class _Action:
    """A function to call at some of the calls of a method."""

    run: Callable[[], object]
    skip: int
    times: int | None
    late: bool

    def count_call(self) -> bool:
        """Count a call of the method; return whether the action applies to it."""
        if self.skip > 0:
            self.skip -= 1
            return False

        if self.times is None:
            return True

        self.times -= 1
        return self.times >= 0


def _add_forwarding(cls: type[_Saver], *, contracts: Sequence[type]) -> type[_Saver]:
    """Add methods that record each call and forward it, for the public methods that a class has from some contracts."""
    for contract in contracts:
        for name, method in inspect.getmembers(contract, inspect.isfunction):
            if not name.startswith("_") and getattr(cls, name) is method:
                setattr(cls, name, _make_method(method))

    return abc.update_abstractmethods(cls)


def _make_method(method: Callable[..., Any]) -> Callable[..., Any]:
    # A Java name is an alias, so this is the Python name.
    name = method.__name__

    def call(self: ScriptedSaver, *args: Any, **kwargs: Any) -> Any:
        with self._record(name, args, kwargs):
            return getattr(self.delegate, name)(*args, **kwargs)

    async def await_call(self: ScriptedSaver, *args: Any, **kwargs: Any) -> Any:
        with self._record(name.removeprefix("a"), args, kwargs):
            return await getattr(self.delegate, name)(*args, **kwargs)

    made: Callable[..., Any] = await_call if inspect.iscoroutinefunction(method) else call
    made.__name__ = name
    made.__doc__ = f"Record the call and forward it to `delegate.{name}`."
    return made


@partial(_add_forwarding, contracts=[BaseCheckpointSaver])
class ScriptedSaver(BaseCheckpointSaver):
    """Forwards every call to a saver, records it, and fails or waits where the test scripted that.

    If the wrapped saver has versions, the wrapper is a `HasVersions` too. A script for a method also
    applies to its async method and its Java name. Several scripts for one call run in the order in
    which they were added.

    Attributes:
        delegate: the saver that does the work.
        calls: every call, in order.
    """

    if TYPE_CHECKING:
        # The decorator adds them. Checkers take a class without them for an abstract one.
        def list(self, config: ConfigLike = None) -> Sequence[Checkpoint]: ...
        def get(self, config: ConfigLike = None) -> Checkpoint | None: ...
        def put(self, config: ConfigLike, checkpoint: Checkpoint) -> RunnableConfig: ...
        def release(self, config: ConfigLike = None) -> Tag: ...

    def __new__(cls, saver: BaseCheckpointSaver, *_args: Any, **_options: Any) -> Self:
        """Make a wrapper that has the versions and the capabilities of the saver."""
        extras = tuple(extra for extra in _EXTRAS if isinstance(saver, extra) and not issubclass(cls, extra))
        wrapper_class: type[Self] = cls
        if extras:
            wrapper_class = _add_bases(cls, extras)
        return super().__new__(wrapper_class)

    def __init__(self, saver: BaseCheckpointSaver) -> None:
        """Wrap a saver, which does the work."""
        self.delegate: Any = saver
        self.calls: list[Call] = []
        self._actions: dict[str, list[_Action]] = {}
        self._lock = threading.Lock()

    def on(
        self, method: str, act: Callable[[], object], *, skip: int = 0, times: int | None = 1, late: bool = False
    ) -> Self:
        """Call a function at calls of a method, to raise an error, wait, or inspect the store.

        Args:
            method: the name of the method, such as `put`.
            act: the function. The call raises what it raises.
            skip: the number of calls to let pass first.
            times: the number of calls to apply it to; None for all calls.
            late: call it after the delegate instead of before: the effect is stored but not
                acknowledged.

        Raises:
            ValueError: the saver has no such method.
        """
        if not hasattr(type(self), method):
            raise ValueError(f"the saver has no method {method!r}")
        with self._lock:
            self._actions.setdefault(method, []).append(_Action(run=act, skip=skip, times=times, late=late))
        return self

    def fail(
        self, method: str, error: BaseException, *, skip: int = 0, times: int | None = 1, late: bool = False
    ) -> Self:
        """Raise an error at calls of a method; see `on`."""
        return self.on(method, partial(_raise_error, error), skip=skip, times=times, late=late)

    def slow(self, method: str, seconds: float) -> Self:
        """Make all calls of a method wait; see `on`."""
        return self.on(method, partial(time.sleep, seconds), times=None)

    def count(self, method: str) -> int:
        """Return how many times a method was called."""
        with self._lock:
            return sum(call.method == method for call in self.calls)

    @contextmanager
    def _record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Record a call that is made in the block, and run the actions due before it and after it."""
        with self._lock:
            self.calls.append(Call(name, args, kwargs))
            due = [action for action in self._actions.get(name, ()) if action.count_call()]

        for action in due:
            if not action.late:
                action.run()
        yield
        for action in due:
            if action.late:
                action.run()


_EXTRAS: Final[tuple[type[Any], ...]] = (
    HasVersions,
    *(protocol for name, protocol in vars(capabilities).items() if name.startswith("Supports")),
)
"""The protocols that only some delegates implement."""


# The qualities that savers declare are those of the delegate.
for _quality in QUALITIES:
    setattr(ScriptedSaver, _quality, property(attrgetter(f"delegate.{_quality}")))


@cache
def _add_bases(cls: type[Any], extras: tuple[type, ...]) -> type[Any]:
    """Make a subclass that also forwards the methods of these protocols."""
    made = type(cls.__name__, (cls, *extras), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    return _add_forwarding(made, contracts=extras)


def _raise_error(error: BaseException) -> None:
    raise error


@final
class ManualClock:
    """A clock that moves only when a test says so. Any thread may use it.

    A graph and a worker take it in place of the clock of the machine:

        clock = ManualClock()
        app = graph.compile(checkpoint_saver=saver, clock=clock)
        worker = Worker(saver, app, clock=clock)
        clock.advance(timedelta(weeks=1))

    Calling it gives the time.
    """

    def __init__(self, start: float | datetime = 0.0) -> None:
        """Set the clock.

        Args:
            start: the time, in seconds since 1970 or as an aware datetime.
        """
        if isinstance(start, datetime):
            start = start.timestamp()
        self._now = datetime.fromtimestamp(start, UTC)
        self._lock = threading.Lock()

    def __call__(self) -> datetime:
        """Return the time, in UTC."""
        return self._now

    def advance(self, seconds: float | timedelta) -> None:
        """Move the clock forward.

        Raises:
            ValueError: the time is negative. The clock has not moved.
        """
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if not seconds >= 0:
            raise ValueError(f"advance() needs seconds >= 0, got {seconds!r}")
        with self._lock:
            self._now += timedelta(seconds=seconds)
