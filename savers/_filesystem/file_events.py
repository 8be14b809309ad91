"""File events of a store: which threads' files have changed. Knows nothing of what is in them."""

from __future__ import annotations

import os
from contextlib import suppress
from logging import LogRecord, getLogger
from typing import TYPE_CHECKING, Any, Final, final
from warnings import filterwarnings

from savers._filesystem import layout

if TYPE_CHECKING:
    from threading import Condition

_REMOTE: Final = frozenset({"9p", "afs", "ceph", "cifs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"})
"""File systems that other machines change, of which no event tells here; so do most of FUSE's."""


@final
class Events:
    """The threads whose files have changed, as watchdog tells it; `changed` is notified."""

    process = 0
    """The one that has used watchdog."""

    def __init__(self, changed: Condition, root: str, only: str | None) -> None:
        """Start to listen.

        Args:
            changed: guards what is collected here.
            root: the directory of the store.
            only: the name of the one thread's directory that matters; None: all do.

        Raises:
            OSError: the system refuses, having no such events or no room for more.
        """
        from watchdog import events
        from watchdog.observers import Observer

        if Events.process not in {0, os.getpid()}:
            raise OSError("watchdog's thread stayed with the process that this one was forked from")
        Events.process = os.getpid()
        getLogger("watchdog.observers.inotify").addFilter(_is_news)
        # What it says, at length, of a directory that is made while it walks through the others; it does no harm.
        filterwarnings("ignore", "Callback with id", RuntimeWarning)
        self.names: set[str] = set()
        self.closed: set[str] = set()
        """Threads whose run lock somebody has closed."""
        self._changed, self._root, self._only = changed, root, only
        kinds = ("Modified", "Created", "Moved", "Deleted")
        self._wanted = [events.FileClosedEvent, *(getattr(events, f"File{kind}Event") for kind in kinds)]
        self._wanted += [getattr(events, f"Dir{kind}Event") for kind in kinds[1:]]
        self._observer: Any = Observer()
        self._inner: Any = None
        self._inode = 0
        self._listen(root, recursive=only is None)
        self._observer.start()

    def _listen(self, path: str, *, recursive: bool) -> Any:
        # The same events everywhere: what is listened to twice, watchdog asks the system for once.
        return self._observer.schedule(self, path, recursive=recursive, event_filter=self._wanted)

    def cover(self, directory: str) -> None:
        """Listen to what happens in the one thread's directory, which may have been made anew; before it is read."""
        found = os.lstat(directory).st_ino if os.path.isdir(directory) and not os.path.islink(directory) else 0
        if self._only is None or found == self._inode:
            return
        if self._inner is not None:
            with suppress(KeyError):
                self._observer.unschedule(self._inner)
        self._inode, self._inner = found, None
        if found:
            with suppress(FileNotFoundError):
                self._inner = self._listen(directory, recursive=True)

    def dispatch(self, event: Any) -> None:
        """Take an event; watchdog calls it."""
        for path in (event.src_path, event.dest_path):
            name, _, rest = path[len(self._root) + 1 :].partition(os.sep)
            if layout.is_thread(name) and self._only in {None, name}:
                self._note(name, rest, closed=event.event_type == "closed")

    def _note(self, name: str, rest: str, *, closed: bool) -> None:
        is_lock = rest == layout.RUN_LOCK
        if closed == is_lock:  # who holds the lock writes to it, and readers close logs: neither says anything
            with self._changed:
                (self.closed if closed else self.names).add(name)
                self._changed.notify_all()

    @property
    def is_alive(self) -> bool:
        """Whether it still listens."""
        return bool(self._observer.is_alive())

    def stop(self) -> None:
        """Listen no more."""
        self._observer.stop()
        self._observer.join()


def _is_news(record: LogRecord) -> bool:
    """Whether what watchdog logs is not just that an event came while a watch was being closed."""
    return "when the thread is inactive" not in record.getMessage()


def is_locked(inode: int) -> bool:
    """Whether somebody holds a lock on a file. Trying to take it would disturb those who want it."""
    try:
        with open("/proc/locks", encoding="ascii") as file:
            return any(" FLOCK " in line and f":{inode} " in line for line in file)
    except OSError:
        return False


def remote_kind(path: str) -> str | None:
    """The kind of the network file system that a directory is on; None if it is on a local one."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            mount, _, source = line.partition(" - ")
            kind = source.split(" ", 1)[0]
            if mount.split()[2] == wanted and (kind in _REMOTE or kind == "fuse" or kind.startswith("fuse.")):
                return kind
    return None
