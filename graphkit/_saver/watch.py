"""Following a store live: what is told (`Change`), by whom (`Watch`), and the way for savers that tell nothing."""

from __future__ import annotations

import abc
import threading
from _thread import start_new_thread
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit.errors import CheckpointerConfigurationError

ChangeKind = Literal["checkpoint", "interrupt", "answer", "failure", "progress", "release", "delete", "idle"]
"""What has happened: see `Change`."""

_FOREVER: Final = threading.TIMEOUT_MAX


@final
class Change(NamedTuple):
    """Something that has happened in a store.

    checkpoint: one was stored. interrupt: a run waits for a human. answer: a stop was answered, or passed by; told of
    the graph around an embedded one too, once it goes on. failure: a run failed. progress: nodes of branches, or items
    of a map, have finished. release: a history has ended and is kept as a version. delete: a history is gone. idle:
    nobody runs the thread any more, its run having ended or its process having died; told by savers that can see it.
    """

    kind: ChangeKind
    thread_id: str
    checkpoint_ns: str
    checkpoint: CheckpointInfo | None = None
    """The checkpoint that it is about, its status as of then; None of release, delete and idle, and of what is
    recorded beside a checkpoint that is not the latest."""
    id: str | None = None
    """Of interrupt and answer: the interrupt's id."""
    value: Any = None
    """Of interrupt: {node_id, when, payload, metadata, created_at}. Of answer: the answer, None if it was passed by.
    Of failure: {node_id, type, message, at}. Of progress: {node_id}, the node that finished last."""
    at: datetime | None = None
    """When it was stored; None if the store does not record that, and the change was noticed just now. An answer, a
    release and a delete have no time of their own: on files it is that of the last write to their log."""


def _nothing() -> Generator[Change, None, None]:
    yield from ()


class Watch(abc.ABC):
    """The changes of a store from the moment it was made, each told at least once; iterate it, and close it.

    In the order of writing within a history (a thread's namespace), and as they are seen between histories. What is
    not asked for waits in the store and not here. To be read by one thread at a time; `wake` and `close` may be called
    from any other.

    For implementers: `_pause` waits until there may be something, `_look` tells what there is.
    """

    def __init__(self, interval: float) -> None:
        if not interval > 0:
            raise CheckpointerConfigurationError(f"interval must be seconds above 0, not {interval!r}")
        self._interval = interval
        """Seconds between looks, where there are no events."""
        self._reading = threading.RLock()
        """Held by whoever looks."""
        self._changed = threading.Condition()
        """Never held for long, nor while `_reading` is asked for: a signal handler may want it."""
        self._closed = self._woken = False
        self._found: Generator[Change, None, None] = _nothing()

    @abc.abstractmethod
    def _pause(self, deadline: float | None) -> bool:
        """Wait with `_changed`, which is held, until there may be something; false once the deadline is over."""

    @abc.abstractmethod
    def _look(self) -> Generator[Change, None, None]:
        """What has changed since the last look."""

    def _give_back(self) -> None:  # noqa: B027 - some have nothing open
        """Close what is open; nothing is looked at any more."""

    def get(self, timeout: float | None = None) -> Change | None:
        """The next change; None once the time is up, the watch closed, or after `wake`.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            CheckpointStorageError: the store cannot be read.
        """
        deadline = None if timeout is None else monotonic() + timeout
        has_looked = False
        with self._reading:
            while not self._closed:
                if (change := next(self._found, None)) is not None:
                    return change
                if has_looked and deadline is not None and monotonic() >= deadline:
                    return None  # even if another look is due: one may take longer than the interval
                with self._changed:
                    if self._woken or not self._pause(deadline):
                        self._woken = False
                        return None
                self._found = self._look()
                has_looked = True
        return None

    def _sleep(self, until: float | None) -> None:
        """Sleep until something is notified, or a point in time; `_changed` is held."""
        left = _FOREVER if until is None else until - monotonic()
        self._changed.wait(max(0.0, min(left, _FOREVER)))

    @property
    def _is_disturbed(self) -> bool:
        return self._closed or self._woken

    def wake(self) -> None:
        """Let the `get` that waits, or the next one, return None. May be called from a signal handler."""
        self._woken = True
        # From another thread: a handler interrupts its own, perhaps just before it sleeps, and would notify nobody.
        start_new_thread(self._notify, ())

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End it: whoever waits gets nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with self._reading:
            self._found.close()
            self._give_back()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        while not self._closed:
            if (change := self.get()) is not None:
                return change
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Readable(Protocol):
    """What a `PollingWatch` needs of a saver."""

    def get(self, config: RunnableConfig) -> Checkpoint | None:
        """The latest checkpoint."""
        ...

    def history(self, config: RunnableConfig) -> Sequence[CheckpointInfo]:
        """All of them."""
        ...

    def get_writes(self, config: RunnableConfig) -> Mapping[str, Any]:
        """What is recorded beside one."""
        ...

    def threads(self) -> Sequence[str]:
        """The threads."""
        ...

    def namespaces(self, thread: str) -> Sequence[str]:
        """Their namespaces."""
        ...


_Place = tuple[str, str]
"""A thread and a namespace."""
Told = Callable[[_Place, CheckpointInfo | None, Mapping[str, Any]], Iterator[Change]]
"""Tells values recorded beside a checkpoint."""


@final
class PollingWatch(Watch):
    """Looks at the store every so many seconds: for savers that have nothing better. A look costs O(threads)."""

    def __init__(
        self,
        saver: Readable,
        config: RunnableConfig | None,
        tell: Told,
        versions: Callable[[str], object],
        *,
        latest: bool,
        interval: float,
    ) -> None:
        """Begin to follow a saver.

        Args:
            saver: whose store it is.
            config: what to follow; see `BaseCheckpointSaver.watch`.
            tell: how to tell what is recorded beside a checkpoint.
            versions: the versions of a thread, whose change tells a release from a delete.
            latest: begin with the latest checkpoint of each history.
            interval: seconds between looks.
        """
        super().__init__(interval)
        self._saver, self._config, self._tell, self._versions = saver, config, tell, versions
        self._seen: dict[_Place, tuple[str, frozenset[tuple[str, bool]], object]] = {}
        """Of each history the latest checkpoint, what is recorded beside it, and the thread's versions."""
        for place in self._places():
            self._bookmark(place, latest=latest)
        self._next = monotonic()

    def _pause(self, deadline: float | None) -> bool:
        while not self._is_disturbed and (now := monotonic()) < self._next:
            if deadline is not None and now >= deadline:
                return False
            self._sleep(self._next if deadline is None else min(deadline, self._next))
        return True

    def _places(self) -> list[_Place]:
        config, saver = self._config, self._saver
        if config is None:
            return [(thread, namespace) for thread in saver.threads() for namespace in saver.namespaces(thread)]
        thread, wanted = config.thread, config.checkpoint_ns
        namespaces = [one for one in saver.namespaces(thread) if is_namespace_inside(one, wanted)]
        inside = [(thread, namespace) for namespace in namespaces if namespace != wanted]
        # A saver that cannot list its namespaces does not name one that the application chose.
        return [(thread, wanted), *inside] if saver.get(config.with_check_point_id(None)) else inside

    def _bookmark(self, place: _Place, *, latest: bool) -> None:
        config = self._config
        if config is not None and config.checkpoint_id is not None and place[1] == config.checkpoint_ns:
            self._seen[place] = config.checkpoint_id, frozenset(), self._versions(place[0])
            return
        history = self._saver.history(_at(place))
        if latest:
            history = history[1:]
        if history:
            self._remember(place, history[0].id)

    def _remember(self, place: _Place, id: str) -> Mapping[str, Any]:
        writes = self._saver.get_writes(_at(place, id))
        self._seen[place] = id, _outline(writes), self._versions(place[0])
        return writes

    def _look(self) -> Generator[Change, None, None]:
        places = self._places()
        for place in [place for place in self._seen if place not in places]:
            yield self._end_of(place)
        for place in places:
            yield from self._look_at(place)
        self._next = monotonic() + self._interval

    def _end_of(self, place: _Place) -> Change:
        kind: ChangeKind = "delete" if self._versions(place[0]) == self._seen.pop(place)[2] else "release"
        return Change(kind, *place)

    def _look_at(self, place: _Place) -> Iterator[Change]:
        if place in self._seen and self._seen[place][2] != self._versions(place[0]):
            yield self._end_of(place)
        known, keys, _ = self._seen.get(place, ("", frozenset(), None))
        for info in self._since(place, known):
            if info.id != known:
                keys = frozenset()
                yield Change("checkpoint", *place, info, at=info.created_at)
            writes = self._remember(place, info.id)
            new = {key for key, _ in _outline(writes) - keys}
            yield from self._tell(place, info, {key: value for key, value in writes.items() if key in new})

    def _since(self, place: _Place, known: str) -> Sequence[CheckpointInfo]:
        """The checkpoint known already and those after it, oldest first; all of them if it is gone."""
        history = self._saver.history(_at(place))
        ids = [info.id for info in history]
        return [*reversed(history[: ids.index(known) + 1] if known in ids else history)]


def _at(place: _Place, id: str | None = None) -> RunnableConfig:
    thread, namespace = place
    return RunnableConfig(thread, id, namespace)


def _outline(writes: Mapping[str, Any]) -> frozenset[tuple[str, bool]]:
    """What tells whether there is something new: a key, or one whose value was taken back."""
    return frozenset((key, value is None) for key, value in writes.items())


def is_namespace_inside(namespace: str, of: str) -> bool:
    """Whether a namespace is another one, or below it; all are below the root's."""
    return not of or namespace == of or namespace.startswith(f"{of}/")
