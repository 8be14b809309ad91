"""The logs of a saver: which there are (`LogCatalogue`), and those that it keeps open (`OpenLogs`)."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from contextlib import closing, suppress
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from graphkit.errors import CheckpointCorruptionError
from savers._log.frame import digest_thread
from savers._log.frame_log import Medium, ThreadIdentity
from savers._log.log import Log
from savers._threads import call_after_fork, hold_if_free

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphkit.abc import StateSerializer
    from graphkit.saver_kit import Codec
    from savers._cipher import KeyRing
    from savers._compression import Compression


OPEN_LOGS: Final = 4096
"""The most logs that the savers of a process keep open, if the process may have so many
descriptors: they use a quarter of them at most. An open log takes about 6 KB of memory."""
FEWEST_OPEN_LOGS: Final = 16
"""Each saver may keep this many logs open, however many savers there are."""
CACHED_BYTES: Final = 64 << 20
"""The most bytes of states and indexes that a saver keeps; the log in use may exceed it."""
_UNACCOUNTED: Final = 4 << 10
"""Changes by fewer bytes are not worth taking a lock at each put."""

_UNACCOUNTED_APPENDS: Final = 4 << 10
"""Appended bytes after which the caches of a log are measured again: about thirty usual puts, of
which each may have added an entry to the index."""

LogType = TypeVar("LogType", bound="Log[Any]")
LogKey = tuple[str, str, int]
"""Thread id, namespace, version; version 0 is the live log. A plain tuple: each put makes one."""


class OpenLogs(Generic[LogType]):
    """The open logs of one saver, least recently used first."""

    def __init__(self) -> None:
        self._logs: OrderedDict[LogKey, LogType] = OrderedDict()
        self._sizes: dict[LogType, int] = {}
        """The bytes that each log caches, if it caches any."""
        self._cached = 0
        """The sum of these."""
        self._last: tuple[LogKey, LogType] | None = None
        """The log that was used last, and its key: a run finds its log without the lock, which saves 0.5 us of a put
        of 15."""
        self._guard = Lock()
        _ALL_OPEN_LOGS[self] = None

    def find(self, key: LogKey) -> LogType | None:
        """Return the log with a key, None if there is none."""
        last = self._last
        if last is not None and last[0] == key:
            return last[1]  # It stands at the end already.
        with self._guard:
            open_log = self._logs.get(key)
            if open_log is not None:
                self._logs.move_to_end(key)
                self._last = key, open_log
            return open_log

    def add(self, key: LogKey, new: LogType) -> LogType:
        """Add a log, and close others if there are too many.

        Returns:
            The log with this key that another thread of execution has added meanwhile, or the new
            one.
        """
        with self._guard:
            open_log = self._logs.setdefault(key, new)
            self._last = None
            if len(self._logs) <= FEWEST_OPEN_LOGS:
                return open_log
            # A list of references is made at once, whatever other threads of execution add meanwhile.
            alive = [reference() for reference in _ALL_OPEN_LOGS.keyrefs()]
            others = [other.count() for other in alive if other is not None and other is not self]
            share = find_share(_max_open_logs(), others)
            excess = len(self._logs) - max(FEWEST_OPEN_LOGS, share)
            for old_key in list(islice(self._logs, max(0, excess))):
                # A log that is in use, or must be rewritten first, stays until the next call.
                self._close_if_idle(old_key, drops=True)
            return open_log

    def count(self) -> int:
        """Return how many logs are kept open."""
        return len(self._logs)

    def _close_if_idle(self, key: LogKey, *, drops: bool) -> bool:
        """Close a log that no caller uses, and perhaps drop it; return whether it was closed."""
        open_log = self._logs[key]
        if open_log.frames.bytes.durability.is_suspect:
            return False
        with hold_if_free(open_log.mutex) as is_held:
            if is_held:
                open_log.retire()
                if drops:
                    self._drop(key)
            return is_held

    def _drop(self, key: LogKey) -> LogType:
        open_log = self._logs.pop(key)
        self._last = None
        self._cached -= self._sizes.pop(open_log, 0)
        return open_log

    def close_idle(self) -> int:
        """Close the descriptors of logs that no caller uses; return how many there were."""
        if not self._guard.acquire(blocking=False):
            return 0
        try:
            with_descriptor = [key for key, open_log in self._logs.items() if open_log.is_open]
            return sum(self._close_if_idle(key, drops=False) for key in with_descriptor)
        finally:
            self._guard.release()

    def account_put(self, log: LogType) -> None:
        """Account for a put. As `account`, but not at each: a thirtieth of its cost."""
        if not 0 <= log.frames.end - log.accounted_end < _UNACCOUNTED_APPENDS:
            self.account(log)

    def account(self, log: LogType) -> None:
        """Record what a log caches after it was used; drop the caches of others if it is too much.

        The caller holds the mutex of the log.
        """
        log.accounted_end = log.frames.end
        size = log.cached_size
        if -_UNACCOUNTED < size - self._sizes.get(log, 0) < _UNACCOUNTED:
            return
        with self._guard:
            self._cached += size - self._sizes.get(log, 0)
            self._sizes[log] = size
            if self._cached <= CACHED_BYTES:
                return
            # The log in use keeps its cache; of the others, those used longest ago lose it first.
            for open_log in self._logs.values():
                if self._cached <= CACHED_BYTES:
                    break
                if open_log is log or not self._sizes.get(open_log):
                    continue
                with hold_if_free(open_log.mutex) as is_held:
                    if is_held:
                        open_log.drop_caches()
                        self._cached -= self._sizes.pop(open_log)

    def list_of_thread(self, thread_id: str) -> Sequence[LogType]:
        """Return the logs of a thread."""
        with self._guard:
            return [log for key, log in self._logs.items() if key[0] == thread_id]

    def close_thread(self, thread_id: str) -> None:
        """Close the logs of a thread."""
        with self._guard:
            dropped = [self._drop(key) for key in list(self._logs) if key[0] == thread_id]
        _close_all(dropped)

    def close(self) -> None:
        """Close all logs; the next use opens those that it needs."""
        with self._guard:
            dropped = list(self._logs.values())
            self._reset()
        _close_all(dropped)

    def _reset(self) -> None:
        self._logs.clear()
        self._last = None
        self._sizes.clear()
        self._cached = 0

    def close_after_fork(self) -> None:
        """Close, in the child, the descriptors that it has from the parent."""
        for open_log in self._logs.values():
            open_log.close_after_fork()
        self._reset()
        self._guard = Lock()


def _close_all(logs: Sequence[Log[Any]]) -> None:
    for open_log in logs:
        with open_log.mutex:
            open_log.retire()


_ALL_OPEN_LOGS: Final[weakref.WeakKeyDictionary[OpenLogs[Any], None]] = weakref.WeakKeyDictionary()
# Whatever their bytes lie in: another thread of the parent may hold the mutex of a log for ever.
call_after_fork(_ALL_OPEN_LOGS, OpenLogs.close_after_fork)


def find_share(limit: int, others: list[int]) -> int:
    """Return how many logs a saver may keep open.

    A saver that uses less than an equal share leaves the rest of it to those that use more.

    Args:
        limit: how many logs all savers may keep open together.
        others: how many each other saver keeps open.
    """
    left = limit
    for number, used in enumerate(sorted(others)):
        share = left // (len(others) + 1 - number)
        if used >= share:
            return share
        left -= used
    return left


def _max_open_logs() -> int:
    """Return how many logs the savers of this process may keep open together."""
    return min(OPEN_LOGS, _max_descriptors() // 4)


def _max_descriptors() -> int:
    with suppress(ImportError):  # Windows has no such limit.
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return soft
    return OPEN_LOGS * 4


class Head(NamedTuple):
    """A live history, not opened."""

    thread_id: str
    namespace: str
    newest_id: str | None
    """The id of its newest checkpoint; None if only its log tells."""


class LogCatalogue(Generic[Medium]):
    """The logs of one saver. A saver with deltas on another medium implements this class and `LogBytes`.

    Attributes:
        logs: those that are kept open.
    """

    codec: Codec
    key_ring: KeyRing | None = None
    """The keys that seal new records; None stores them in plain."""
    serializer: StateSerializer | None = None
    """Converts whole states to bytes; None: the codec does."""

    def __init__(self, codec: Codec | None = None, compression: Compression | None = None) -> None:
        """Begin without open logs.

        Args:
            codec: that of the saver; only `new_log` needs it.
            compression: how large values are compressed.
        """
        self.logs: OpenLogs[Log[Medium]] = OpenLogs()
        if codec is not None:
            self.codec = codec
        self.compression = compression

    def shared_log(self, thread_id: str, namespace: str, version: int = 0) -> Log[Medium]:
        """Return the log of a history, whether it exists or not. Other callers may use it too: hold its mutex.

        Args:
            thread_id: the thread.
            namespace: the namespace.
            version: 0 for the live history; otherwise a released version.
        """
        key = (thread_id, namespace, version)
        return self.logs.find(key) or self.logs.add(key, self.new_log(thread_id, namespace, version))

    def new_log(self, thread_id: str, namespace: str, version: int = 0) -> Log[Medium]:
        """Return the log of a history for one caller, who closes it; the arguments are those of `shared_log`.

        By default the log that `make_log` makes over what `new_medium` returns.
        """
        medium = self.new_medium(thread_id, namespace, version)
        return self.make_log(medium, thread_id, namespace, expects_release=version > 0)

    def make_log(self, medium: Medium, thread_id: str, namespace: str, *, expects_release: bool = False) -> Log[Medium]:
        """Return a log of a history over some bytes."""
        is_opaque = self.serializer is not None
        digest = digest_thread(thread_id)
        identity = ThreadIdentity(
            (thread_id, namespace), digest, self.key_ring, is_opaque=is_opaque, find_thread_key=self._find_thread_key
        )
        return Log(medium, identity, self.codec, self.serializer, self.compression, expects_release=expects_release)

    def _find_thread_key(self, thread_id: str) -> str:
        with closing(self.new_log(thread_id, "")) as log:
            return log.frames.read_own_key()

    def new_medium(self, thread_id: str, namespace: str, version: int = 0) -> Medium:
        """Return the bytes of the log of a history, not opened; the arguments are those of `shared_log`.

        A catalogue implements this or `new_log`.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither new_log nor new_medium")

    def list_heads(self, metadata: Mapping[str, Any], *, with_newest: bool = False) -> Iterable[Head]:  # noqa: ARG002 - for media with an index
        """Return the live histories that may have a checkpoint whose metadata have these keys with these values.

        Args:
            metadata: the keys and values.
            with_newest: whether the ids of their newest checkpoints are wanted, as far as these cost little.
        """
        for thread_id in self.list_threads(released=False):
            for namespace in self.list_namespaces(thread_id):
                yield Head(thread_id, namespace, None)

    # A catalogue implements the first of these, or the four that stand on it.

    def list_logs(self, thread_id: str | None) -> Iterable[LogKey]:
        """Yield the thread, the namespace and the version (0: live) of each log of a thread, or of all (None)."""
        raise NotImplementedError(f"{type(self).__name__} does not list its logs")

    def list_threads(self, *, released: bool) -> Sequence[str]:
        """Return the threads with checkpoints, sorted; with `released`, those that hold anything."""
        found: set[str] = set()
        for thread_id, namespace, version in self.list_logs(None):
            if thread_id not in found and self._is_listed(thread_id, namespace, version, released=released):
                found.add(thread_id)
        return sorted(found)

    def _is_listed(self, thread_id: str, namespace: str, version: int, *, released: bool) -> bool:
        if version:
            return released
        log = self.shared_log(thread_id, namespace)
        with log.mutex:
            try:
                is_live = log.refresh()
                if released:
                    return log.is_open  # also if it has ended: no version may be there yet, if its release has died
                return is_live and log.history.find_latest() is not None
            except CheckpointCorruptionError:
                return True  # it hides no other history; a read of it says what is damaged

    def list_namespaces(self, thread_id: str) -> Sequence[str]:
        """Return the namespaces of a thread, the root first. Some may have no checkpoints."""
        found = self.list_logs(thread_id)
        return sorted(name for _, name, version in found if self._is_listed(thread_id, name, version, released=False))

    def list_versions(self, thread_id: str) -> Sequence[int]:
        """Return the released versions of a thread, in order."""
        return sorted({version for _, _, version in self.list_logs(thread_id) if version})

    def list_version_namespaces(self, thread_id: str, version: int) -> Sequence[str]:
        """Return the namespaces of a released version, sorted. Some may have no checkpoints."""
        return sorted(namespace for _, namespace, each in self.list_logs(thread_id) if each == version)
