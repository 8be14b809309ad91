"""ScriptedSaver: wraps any saver, records the calls, and fails or waits where a test wants it to."""

from __future__ import annotations

import abc
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import QUALITIES, SupportsCompact, SupportsRepair, SupportsVerify
from graphkit._saver.versions import HasVersions


class Call(NamedTuple):
    """A call of a ScriptedSaver."""

    method: str
    """The method. An async method goes by the name of its sync method."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Act:
    """An action at some calls of a method."""

    def __init__(self, act: Callable[[], object], skip: int, times: int | None, *, late: bool) -> None:
        self.act, self.skip, self.times, self.late = act, skip, times, late

    def is_due(self) -> bool:
        """Count a call, and return whether the action is due at it."""
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return self.times is None or self.times >= 0


def _forwarding(cls: type[Any]) -> type[Any]:
    """Give a class every public method and quality of the contracts that it derives from, forwarded."""
    for quality in QUALITIES:
        setattr(cls, quality, property(attrgetter(f"delegate.{quality}")))
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and name not in vars(cls) and name not in _OWN:
            # A Java name is an alias of the function, whose name is the Python name.
            make = _async_method if inspect.iscoroutinefunction(method) else _method
            setattr(cls, name, make(method.__name__))
    return abc.update_abstractmethods(cls)


def _method(name: str) -> Callable[..., Any]:
    def call(self: ScriptedSaver, *args: Any, **kwargs: Any) -> Any:
        late = self._note(name, args, kwargs)
        result = getattr(self.delegate, name)(*args, **kwargs)
        for act in late:
            act()
        return result

    call.__name__, call.__doc__ = name, f"As the delegate's `{name}`."
    return call


def _async_method(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(self: ScriptedSaver, *args: Any, **kwargs: Any) -> Any:
        late = self._note(name.removeprefix("a"), args, kwargs)
        result = await getattr(self.delegate, name)(*args, **kwargs)
        for act in late:
            act()
        return result

    call.__name__, call.__doc__ = name, f"As the delegate's `{name}`."
    return call


_OWN = frozenset({"on", "fail", "slow", "count"})


@_forwarding
class ScriptedSaver(BaseCheckpointSaver):
    """Forwards everything to a saver, records each call, and fails or waits where the test says so.

    Around a saver with versions it is a `HasVersions`. An action for a method applies to its async
    method and its Java name too. Several actions at one call run in the order in which they were
    added.

    Attributes:
        delegate: the saver that does the work.
        calls: every call, in order.
    """

    def __new__(cls, delegate: BaseCheckpointSaver, **_options: Any) -> Self:
        """Make a ScriptedSaver that has the versions and the capabilities of the delegate."""
        extras = tuple(extra for extra in _EXTRAS if isinstance(delegate, extra) and not issubclass(cls, extra))
        return super().__new__(_with_methods_of(cls, extras) if extras else cls)

    def __init__(self, delegate: BaseCheckpointSaver, *, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wrap a saver.

        Args:
            delegate: the saver that does the work.
            sleep: how `slow` waits, in seconds.
        """
        self.delegate: Any = delegate
        self.calls: list[Call] = []
        self._sleep = sleep
        self._acts: dict[str, list[_Act]] = {}
        self._lock = threading.Lock()

    def on(
        self, method: str, act: Callable[[], object], *, skip: int = 0, times: int | None = 1, late: bool = False
    ) -> Self:
        """Run an action at calls of a method: raise an error, wait for an event, check something.

        Args:
            method: the name of the method, such as `put`.
            act: the action. If it raises an error, the call raises it.
            skip: the number of calls that pass first.
            times: the number of calls at which the action runs; None is all calls.
            late: run the action after the delegate has done its part, instead of before: the call
                is done, but not acknowledged.

        Raises:
            ValueError: there is no such method.
        """
        if method not in _CONTRACT:
            raise ValueError(f"savers have no method {method!r}")
        with self._lock:
            self._acts.setdefault(method, []).append(_Act(act, skip, times, late=late))
        return self

    def fail(
        self, method: str, error: BaseException, *, skip: int = 0, times: int | None = 1, late: bool = False
    ) -> Self:
        """Raise an error at calls of a method; see `on`."""
        return self.on(method, partial(_throw, error), skip=skip, times=times, late=late)

    def slow(self, method: str, seconds: float, *, skip: int = 0, times: int | None = None) -> Self:
        """Make calls of a method wait; see `on`."""
        return self.on(method, lambda: self._sleep(seconds), skip=skip, times=times)

    def count(self, method: str) -> int:
        """Return how often a method was called."""
        with self._lock:
            return sum(call.method == method for call in self.calls)

    def _note(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Callable[[], object]]:
        """Record a call, run the actions due before it, and return those due after it."""
        with self._lock:
            self.calls.append(Call(name, args, kwargs))
            due = [act for act in self._acts.get(name, ()) if act.is_due()]
        for act in due:
            if not act.late:
                act.act()
        return [act.act for act in due if act.late]


_EXTRAS: Final[tuple[type[Any], ...]] = (HasVersions, SupportsVerify, SupportsRepair, SupportsCompact)
"""The contracts that only some delegates have."""


@cache
def _with_methods_of(cls: type[Any], extras: tuple[type, ...]) -> type[Any]:
    """Make a subclass of a ScriptedSaver that forwards more methods."""
    return _forwarding(type(cls.__name__, (cls, *extras), {"__module__": cls.__module__, "__doc__": cls.__doc__}))


_CONTRACT = frozenset(dir(BaseCheckpointSaver)) | frozenset(dir(HasVersions))


def _throw(error: BaseException) -> None:
    raise error
