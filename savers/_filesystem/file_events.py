"""File events of a store: which threads' files have changed.

Does not know the contents of the files.
"""

from __future__ import annotations

import os
from contextlib import suppress
from logging import LogRecord, getLogger
from typing import TYPE_CHECKING, Any, Final, final
from warnings import filterwarnings

from savers._filesystem import layout

if TYPE_CHECKING:
    from savers._log.log_watch import Signals

_NETWORK: Final = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"}
)
"""File systems that other machines may change without an event on this one; most kinds of FUSE
are."""


@final
class FileEvents:
    """Collects the threads whose files have changed, as watchdog reports them."""

    process = 0
    """The process that has started watchdog; 0: none."""

    def __init__(self, signals: Signals, root: str, only: str | None) -> None:
        """Start to listen.

        Args:
            signals: collects the directories of threads whose files have changed.
            root: the directory of the store.
            only: the name of the directory of the only thread to collect; None: all.

        Raises:
            OSError: the system has no such events, or no room for more.
        """
        network = find_network_file_system(root)
        if network is not None:
            raise OSError(f"{network} is a network file system")
        from watchdog import events
        from watchdog.observers import Observer

        if FileEvents.process not in {0, os.getpid()}:
            raise OSError("watchdog's thread stayed with the process that this one was forked from")
        FileEvents.process = os.getpid()
        getLogger("watchdog.observers.inotify").addFilter(_is_relevant)
        # watchdog warns of a directory that is created while it walks through the others. That is
        # harmless.
        filterwarnings("ignore", "Callback with id", RuntimeWarning)
        self.unlocked: set[str] = set()
        """The directories of threads whose run lock a process has closed, until the reader pops them."""
        self._signals = signals
        self._root = root
        self._only = only
        self._event_filter = [
            events.FileClosedEvent,
            events.FileModifiedEvent,
            events.FileCreatedEvent,
            events.FileMovedEvent,
            events.FileDeletedEvent,
            events.DirCreatedEvent,
            events.DirMovedEvent,
            events.DirDeletedEvent,
        ]
        self._observer: Any = Observer()
        self._thread_watch: Any = None
        """watchdog's watch of the only thread's directory."""
        self._inode = 0
        """The file number of that directory; 0 if it is not there."""
        self._listen(root, recursive=only is None)
        self._observer.start()

    def _listen(self, path: str, *, recursive: bool) -> Any:
        # All watches have the same filter: watchdog asks the system only once for a directory that
        # two of them cover.
        return self._observer.schedule(self, path, recursive=recursive, event_filter=self._event_filter)

    def cover(self, directory: str) -> None:
        """Listen to the directory of the only thread, which may have been created again.

        The caller reads the directory afterwards.
        """
        if self._only is None:
            return
        inode = 0
        if os.path.isdir(directory) and not os.path.islink(directory):
            inode = os.lstat(directory).st_ino
        if inode == self._inode:
            return
        if self._thread_watch is not None:
            with suppress(KeyError):
                self._observer.unschedule(self._thread_watch)
        self._inode = inode
        self._thread_watch = None
        if inode:
            with suppress(FileNotFoundError):
                self._thread_watch = self._listen(directory, recursive=True)

    def dispatch(self, event: Any) -> None:
        """Take an event from watchdog."""
        for path in (event.src_path, event.dest_path):
            thread, _, file = path[len(self._root) + 1 :].partition(os.sep)
            if layout.is_thread(thread) and self._only in {None, thread}:
                self._note(thread, file, is_close=event.event_type == "closed")

    def _note(self, thread: str, file: str, *, is_close: bool) -> None:
        is_lock = file == layout.RUN_LOCK
        if is_close != is_lock:
            # The holder of a run lock writes to it, and readers close logs: neither is a change.
            return
        if is_close:
            self.unlocked.add(thread)
        self._signals.notify(thread)

    def is_alive(self) -> bool:
        """Return whether watchdog still reports events."""
        return bool(self._observer.is_alive())

    def stop(self) -> None:
        """Stop to listen."""
        self._observer.stop()
        self._observer.join()


def _is_relevant(record: LogRecord) -> bool:
    """Return False for watchdog's message about an event during the closing of a watch."""
    return "when the thread is inactive" not in record.getMessage()


def find_network_file_system(path: str) -> str | None:
    """Return the kind of the network file system of a directory; None if it is local."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with (
        suppress(OSError),
        open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            mount, _, source = line.partition(" - ")
            kind = source.split(" ", 1)[0]
            is_network = kind in _NETWORK or kind.startswith("fuse.")
            if is_network and mount.split()[2] == number:
                return kind
    return None
