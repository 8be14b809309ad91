"""LogCatalogue: opens the logs of a saver, and lists what there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from savers._log.frame import digest_thread
from savers._log.frame_log import Medium, ThreadIdentity
from savers._log.log import Log
from savers._log.open_logs import LogKey, OpenLogs

if TYPE_CHECKING:
    from graphkit.codec import Codec
    from savers._compression import Compression


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

    _codec: Codec

    def __init__(self, codec: Codec | None = None, compression: Compression | None = None) -> None:
        """Begin without open logs.

        Args:
            codec: that of the saver; only `new_log` needs it.
            compression: how large values are compressed.
        """
        self.logs: OpenLogs[Log[Medium]] = OpenLogs()
        if codec is not None:
            self._codec = codec
        self._compression = compression

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

        By default a plain log over what `new_medium` returns.
        """
        identity = ThreadIdentity((thread_id, namespace), digest_thread(thread_id), None, is_opaque=False)
        medium = self.new_medium(thread_id, namespace, version)
        return Log(medium, identity, self._codec, None, self._compression, expects_release=version > 0)

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
        """Return the threads with checkpoints, sorted; with `released`, also those with only versions."""
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
            return log.refresh() and log.history.find_latest() is not None

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
