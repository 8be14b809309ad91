"""A checkpoint directory: its place, its locks and its open logs. What every operation of the saver starts from."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from contextlib import suppress
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Final

from graphkit._checkpoint import new_id
from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError, CheckpointFormatError
from savers._filesystem import layout, log
from savers._filesystem.glance import Glance
from savers._filesystem.history import History
from savers._filesystem.live import LiveHistory, write_file
from savers._filesystem.lock import RunLock, ShortLock

if TYPE_CHECKING:
    from graphkit._abc import StateSerializer
    from graphkit._serde import Codec
    from savers._compression import Compression
    from savers._filesystem.io import FileIO

KNOWN_IDS: Final = 20_000
"""So many ids are remembered."""
OPEN_LOGS: Final = 256
"""So many logs are kept open; the one used longest ago is closed."""


class Version(History):
    """A released log. It ends as such, or something of it is missing."""

    released = True

    def _open(self) -> bool:
        found = super()._open()
        if found and self.closed_by is None:
            end = self.end
            self.close()
            raise CheckpointCorruptionError(self.path, end, "the end of a released history is missing")
        if not found and self.io.stat(self.path) is not None:
            raise CheckpointCorruptionError(self.path, 0, "a released history is missing")
        return found


class Store:
    """One directory of threads. May be used by several threads and processes at once."""

    def __init__(
        self,
        root: str,
        io: FileIO,
        codec: Codec,
        serializer: StateSerializer | None,
        lock_timeout: float,
    ) -> None:
        self.root, self.io = root, io
        self.compression: Compression | None = None
        """How large values are compressed by those who write."""
        self._codec, self._serializer, self._lock_timeout = codec, serializer, lock_timeout
        self._open: OrderedDict[tuple[str, str, int], History] = OrderedDict()
        self._guard = Lock()
        self._shorts = self._new_locks()
        self.swept = False
        """Whether this process has looked for what others left half removed."""
        self.ids: dict[str, str] = {}
        """The ids behind names of directories that do not tell them; they never change."""
        _STORES.add(self)

    def _new_locks(self) -> list[ShortLock]:
        directory = layout.join(self.root, layout.LOCKS)
        return [
            ShortLock(self.io, layout.join(directory, f"{stripe:02x}"), self._make_locks, self._lock_timeout)
            for stripe in range(layout.STRIPES)
        ]

    # The place

    def check(self) -> None:
        """Make the root directory if it is missing, and see that it can be used.

        Raises:
            CheckpointerConfigurationError: there is something else at that path.
            CheckpointFormatError: a newer graphkit made it.
        """
        if not self.io.is_dir(self.root):
            # Looked at twice: another process may be making it at this moment.
            if self.io.stat(self.root) is not None and not self.io.is_dir(self.root):
                raise CheckpointerConfigurationError(f"{self.root} is a file; name a directory for the checkpoints")
            self._make_root()
        self._read_marker()

    def _make_root(self) -> None:
        missing = []
        path = os.path.abspath(self.root)
        while not self.io.is_dir(path):
            missing.append(path)
            path = os.path.dirname(path)
        try:
            for directory in reversed(missing):
                self.io.mkdir(directory)
        except (FileExistsError, NotADirectoryError) as error:
            raise CheckpointerConfigurationError(
                f"{error.filename} is a file; name a directory for the checkpoints"
            ) from error
        for directory in missing:
            self.io.fsync_dir(os.path.dirname(directory))

    def _read_marker(self) -> bool:
        path = layout.join(self.root, layout.MARKER)
        if self.io.stat(path) is None:
            return False
        import json  # 3 ms, and a process may never need it

        fd = self.io.open(path)
        try:
            text = self.io.read_at(fd, 0, 1 << 16)
        finally:
            self.io.close(fd)
        try:
            major = int(json.loads(text)["format"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointFormatError(path, "this is not a graphkit store") from error
        if major > log.MAJOR:
            raise CheckpointFormatError(
                path, f"written in format {major}; this graphkit reads up to {log.MAJOR}: update it"
            )
        return True

    def _make_locks(self) -> None:
        """Make what a store has beside its threads."""
        if not self.io.is_dir(self.root):
            self._make_root()
        self.io.mkdir(layout.join(self.root, layout.LOCKS))
        if not self._read_marker():
            marker = f'{{"format": {log.MAJOR}, "store": "{new_id()}"}}\n'
            beside = layout.join(self.root, f"{layout.TEMPORARY}{new_id()}")
            write_file(self.io, beside, [marker.encode()])
            self.io.rename(beside, layout.join(self.root, layout.MARKER))
            self.io.fsync_dir(self.root)

    def directory(self, thread_id: str, namespace: str = "") -> str:
        """The directory of a thread, or of one of its namespaces."""
        return layout.join(self.root, layout.place_of(thread_id).name, layout.namespace_name(namespace))

    def _make_place(self, thread_id: str, namespace: str) -> None:
        self.short(thread_id).revive()
        directory = self.directory(thread_id)
        if not self.swept:
            self.sweep()
        leftover = layout.join(self.root, layout.TEMPORARY + layout.place_of(thread_id).name)
        if self.io.stat(leftover) is not None:
            self.remove_tree(leftover)
        self.io.mkdir(directory)
        if namespace:
            self.io.mkdir(self.directory(thread_id, namespace))
        self.remove_leftovers(self.directory(thread_id, namespace))

    def remember(self, name: str, id: str) -> None:
        """Note the id behind a directory's name: listing 10,000 threads would open as many files each time."""
        if len(self.ids) >= KNOWN_IDS:
            self.ids.clear()
        self.ids[name] = id

    def remove_leftovers(self, directory: str) -> None:
        """Remove logs that somebody began to write anew and did not live to finish; under the short lock."""
        for name in self.io.listdir(directory):
            if name.startswith(layout.TEMPORARY):
                self.io.unlink(layout.join(directory, name))

    def sweep(self) -> list[str]:
        """Remove the threads whose removal somebody began and did not live to finish; their names.

        Done once by every process that makes or deletes a thread, and by verify and repair; somebody who is removing
        one just now is not disturbed.
        """
        self.swept = True
        gone = [name for name in self.io.listdir(self.root) if layout.is_leftover(name)]
        for name in gone:
            self.remove_tree(layout.join(self.root, name))
        return gone

    def sync_place(self, thread_id: str, namespace: str) -> None:
        """Bring the names that lead to a log to the disk."""
        if namespace:
            self.io.fsync_dir(self.directory(thread_id, namespace))
        self.io.fsync_dir(self.directory(thread_id))
        self.io.fsync_dir(self.root)

    def remove_tree(self, directory: str) -> None:
        """Remove a directory with all that is in it; what somebody else removes meanwhile is removed too."""
        for name in self.io.listdir(directory):
            path = layout.join(directory, name)
            found = self.io.stat(path)
            with suppress(FileNotFoundError):
                if found is not None and layout.is_namespace(name) and not self.io.is_link(path):
                    self.remove_tree(path)
                elif found is not None:
                    self.io.unlink(path)
        with suppress(FileNotFoundError):
            self.io.rmdir(directory)

    # Locks

    def short(self, thread_id: str) -> ShortLock:
        """The short lock of a thread."""
        return self._shorts[layout.place_of(thread_id).stripe]

    def run_lock(self, thread_id: str, timeout: float | None) -> RunLock:
        """The run lock of a thread, not yet taken."""
        path = layout.join(self.directory(thread_id), layout.RUN_LOCK)

        def make() -> int:
            # Not beside a delete, which takes the directory away and brings the lock file of its own run back.
            with self.short(thread_id):
                self.io.mkdir(self.directory(thread_id))
                return self.io.open(path, write=True, create=True)

        return RunLock(self.io, path, thread_id, make, self._lock_timeout if timeout is None else timeout)

    # Open logs

    def live(self, thread_id: str, namespace: str) -> LiveHistory:
        """The live log of a namespace, whether it exists or not; shared, so hold its mutex."""
        key = (thread_id, namespace, 0)
        with self._guard:
            history = self._open.get(key)
            if history is not None:
                self._open.move_to_end(key)
                return history  # type: ignore[return-value]
            return self._keep(key, self.fresh(thread_id, namespace))  # type: ignore[return-value]

    def version(self, thread_id: str, namespace: str, version: int) -> History:
        """A released log; shared, so hold its mutex."""
        key = (thread_id, namespace, version)
        with self._guard:
            history = self._open.get(key)
            if history is not None:
                self._open.move_to_end(key)
                return history
            path = layout.join(self.directory(thread_id, namespace), layout.version_name(version))
            return self._keep(key, Version(*self._arguments(path, thread_id, namespace)))

    def glance(self, thread_id: str, namespace: str) -> Glance:
        """The live log of a namespace, to be looked at once and closed."""
        directory = self.directory(thread_id, namespace)
        self._refuse_link(directory)
        return Glance(*self._arguments(layout.join(directory, layout.LOG), thread_id, namespace))

    def fresh(self, thread_id: str, namespace: str, path: str | None = None) -> LiveHistory:
        """The live log of a namespace, opened for one caller alone, who closes it."""
        directory = self.directory(thread_id, namespace)
        self._refuse_link(directory)
        history = LiveHistory(*self._arguments(path or layout.join(directory, layout.LOG), thread_id, namespace))
        history.compression = self.compression
        history.make_place = lambda: self._make_place(thread_id, namespace)
        return history

    def _refuse_link(self, directory: str) -> None:
        if self.io.is_link(directory):
            raise CheckpointFormatError(directory, "it is a symbolic link, which a store does not follow")

    def _arguments(
        self, path: str, thread_id: str, namespace: str
    ) -> tuple[FileIO, str, tuple[str, str], bytes, Codec, StateSerializer | None]:
        digest = layout.place_of(thread_id).digest
        return self.io, path, (thread_id, namespace), digest, self._codec, self._serializer

    def _keep(self, key: tuple[str, str, int], history: History) -> History:
        self._open[key] = history
        if len(self._open) > OPEN_LOGS:
            for old in list(islice(self._open, len(self._open) - OPEN_LOGS)):
                # One that is in use, or has to be written anew first, stays until there is another chance.
                if not self._open[old].suspect and self._open[old].mutex.acquire(blocking=False):
                    gone = self._open.pop(old)
                    gone.close()
                    gone.mutex.release()
        return history

    def close_thread(self, thread_id: str) -> None:
        """Close the logs of a thread."""
        with self._guard:
            histories = [self._open.pop(key) for key in list(self._open) if key[0] == thread_id]
        for history in histories:
            with history.mutex:
                history.close()

    def close(self) -> None:
        """Close every descriptor; the next use opens what it needs."""
        with self._guard:
            histories = list(self._open.values())
            self._open.clear()
        for history in histories:
            with history.mutex:
                history.close()
        for short in self._shorts:
            short.close()

    def after_fork(self) -> None:
        """In the child: close what belongs to the parent, and make locks that nobody holds."""
        for history in self._open.values():
            history.pins = 0
            history.close()
        for short in self._shorts:
            short.forget()
        self._open.clear()
        self._guard = Lock()
        self._shorts = self._new_locks()


_STORES: Final[weakref.WeakSet[Store]] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_STORES):
        store.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
