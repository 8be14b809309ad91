"""ObjectStoreSaver: histories in object storage, where an object can be created only if it is absent.

Any file system of fsspec that can do so will do.

Theory of operation. A history is a directory. It has logs, numbered from 1; the last one counts. A log
has segments, an object for each commit: `<number of the log>.<offset of the first byte>`. To append is
to create the object whose name is the end of the log. If another writer was faster, it is there, and
the storage refuses: this is a compare-and-swap, and needs no lock.

An empty segment seals a log: nothing can follow it. A rewrite seals the log and creates the first
segment of the next one, which holds all its bytes; if that is empty, the history is deleted. Only then
are the segments of the old log removed, except that the name of its first one stays taken, by an empty
object. A writer that still knows the old log could create an object there, so each one looks for the
next log after it has created a segment. If it is there, the segment counts for nothing.

A log that is sealed and is still the last one belongs to a rewrite whose process has died, or is about
to go on. The next writer creates the next log, with the same bytes and its own behind them, and the
rewrite begins again if it is alive.

A released version is one object, `v<version>.<offset 0>`, with all bytes of a log.
"""

from __future__ import annotations

import os
import re
import threading
from base64 import b32encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, final
from urllib.parse import quote, unquote
from uuid import uuid4

from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointStorageError,
    MissingDependencyError,
)
from graphkit.saver_kit import Codec, ThreadLike, resolve_thread_id
from savers._compression import Compression, parse_compression
from savers._log.catalogue import LogCatalogue, LogKey
from savers._log.frame_log import read_owner
from savers._log.log_bytes import BufferedLogBytes, Change, StaleLogError
from savers._log.log_saver import LogSaver

if TYPE_CHECKING:
    from datetime import datetime

    from fsspec import AbstractFileSystem

_IN_MEMORY: Final = threading.RLock()
"""Held by each call for objects in memory: that file system of fsspec is not made for several threads of execution."""

_SEGMENT: Final = re.compile(r"(v?\d{8,})\.(\d{20})")
_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{32}")

Logs = dict[str, list[tuple[int, int]]]
"""The logs of a history by name, each with the offsets and lengths of its segments, in order."""


class Bucket:
    """The objects below one URL. Their names are relative to it, with slashes."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingDependencyError("fsspec", "objects") from error
        try:
            # A list that is kept would hide what other processes have created.
            fs, root = url_to_fs(url, use_listings_cache=False, **options)
        except (ImportError, TypeError, ValueError) as error:
            raise CheckpointerConfigurationError(f"{url!r} cannot be used: {error}") from error
        if set(root).intersection("*?["):
            raise CheckpointerConfigurationError(f"the path of {url!r} must not contain *, ? or [")
        self.url = url
        self._fs: AbstractFileSystem = fs
        self._root = root.rstrip("/")
        protocols = fs.protocol
        if isinstance(protocols, str):
            protocols = (protocols,)
        self._is_local = "file" in protocols
        self._guard = _IN_MEMORY if "memory" in protocols else nullcontext()

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _explain(self, name: str, operation: str) -> Iterator[None]:
        try:
            with self._guard:
                yield
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            raise CheckpointStorageError(f"{self.url}/{name}", operation, error) from error

    def scan(self, directory: str) -> list[tuple[str, int | None]]:
        """Return the names in a directory, sorted, each with the length of the object; None: it is a directory."""
        entries: list[dict[str, Any]] = []
        with suppress(FileNotFoundError), self._explain(directory, "list"):
            entries = self._fs.ls(self._path(directory), detail=True)
        found: list[tuple[str, int | None]] = []
        for entry in entries:
            _, _, name = entry["name"].rstrip("/").rpartition("/")
            length: int | None = None
            if entry["type"] != "directory":
                length = entry["size"] or 0
            found.append((name, length))
        # By the names alone: an object and a directory may have the same one.
        return sorted(found, key=itemgetter(0))

    def list_directories(self, directory: str = "") -> list[str]:
        """Return the names of the directories in a directory."""
        return [name for name, length in self.scan(directory) if length is None]

    def list_histories(self, threads: Iterable[str]) -> Iterator[str]:
        """Yield the directories of the histories of threads, which are named by their directories."""
        for thread in threads:
            yield from [f"{thread}/{namespace}" for namespace in self.list_directories(thread)]

    def list_logs(self, directory: str) -> Logs:
        """Return the logs of a history."""
        logs: Logs = {}
        for name, length in self.scan(directory):
            segment = _SEGMENT.fullmatch(name)
            # Others are not of a saver.
            if segment is not None and length is not None:
                logs.setdefault(segment[1], []).append((int(segment[2]), length))
        return logs

    def create(self, name: str, data: bytes) -> None:
        """Create an object, all of it at once.

        Raises:
            FileExistsError: it is there already. Nothing was changed.
            CheckpointStorageError: the storage refused.
        """
        with self._explain(name, "write"):
            if not self._is_local:
                self._fs.pipe_file(self._path(name), data, mode="create")
                return
            # fsspec writes to a local file little by little, and readers would see a part of it.
            written = self._path(f".{uuid4().hex}")
            self._fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(written, data)
            try:
                os.link(written, self._path(name))
            finally:
                self._fs.rm_file(written)

    def exists(self, name: str) -> bool:
        """Return whether there is an object with a name."""
        with self._explain(name, "look for"):
            return bool(self._fs.exists(self._path(name)))

    def identify(self, name: str) -> str | None:
        """Return what tells an object from a later one of the same name; None if there is none."""
        with suppress(FileNotFoundError), self._explain(name, "look for"):
            return str(self._fs.ukey(self._path(name)))
        return None

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Return the bytes of several objects.

        Raises:
            FileNotFoundError: one of them is gone.
        """
        paths = [self._path(name) for name in names]
        with self._explain(names[0], "read"):
            return list(self._fs.cat_ranges(paths, None, None, on_error="raise"))

    def empty(self, name: str) -> None:
        """Remove the bytes of an object, whose name stays taken."""
        with self._explain(name, "empty"):
            self._fs.pipe_file(self._path(name), b"")

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with suppress(FileNotFoundError), self._explain(name, "remove"):
            self._fs.rm_file(self._path(name))

    def remove_directory(self, directory: str) -> None:
        """Remove a directory without objects, where directories are more than a part of names."""
        if self._is_local:
            with suppress(OSError):
                Path(self._path(directory)).rmdir()

    def list_unfinished(self) -> list[str]:
        """Return the local files that `create` has not linked yet, or whose process has died before."""
        if not self._is_local:
            return []
        return [name for name, length in self.scan("") if length is not None and _UNFINISHED.fullmatch(name)]

    def measure(self, directory: str) -> int:
        """Return the bytes of all objects below a directory."""
        with self._explain(directory, "list"):
            return sum(entry["size"] for entry in self._fs.find(self._path(directory), detail=True).values())

    def find_last_write(self, directory: str) -> float:
        """Return when an object below a directory was last written, in seconds since 1970; 0 if there is none."""
        last_write = 0.0
        with self._explain(directory, "list"):
            for path in self._fs.find(self._path(directory)):
                with suppress(FileNotFoundError):  # a rewrite has removed it since
                    last_write = max(last_write, self._fs.modified(path).timestamp())
        return last_write


def find_last_log(logs: Logs) -> str:
    """Return the name of the log that counts; it may stand for a delete, and is not there if there was no log."""
    return max(filter(str.isdecimal, logs), default=f"{0:08d}")


def name_segment(directory: str, log: str, offset: int = 0) -> str:
    """Return the name of the object of a segment."""
    return f"{directory}/{log}.{offset:020d}"


def _name_next(log: str) -> str:
    return f"{int(log) + 1:08d}"


def remove_replaced(bucket: Bucket, directory: str) -> None:
    """Remove the segments of the logs of a history that do not count any more."""
    logs = bucket.list_logs(directory)
    logs.pop(find_last_log(logs), None)
    for log in filter(str.isdecimal, logs):
        # The first one last: as long as it has bytes, `ObjectCatalogue` finds that the others may be there.
        for start, length in reversed(logs[log]):
            if start:
                bucket.remove(name_segment(directory, log, start))
            elif length:
                bucket.empty(name_segment(directory, log))


def is_ended(bucket: Bucket, directory: str) -> bool:
    """Return whether a history has no bytes any more: only empty objects keep the names of its logs."""
    segments = [segment for log in bucket.list_logs(directory).values() for segment in log]
    return bool(segments) and not any(length for _, length in segments)


def remove_names(bucket: Bucket, directory: str) -> None:
    """Remove the empty objects of a history that has ended; no process may have it open."""
    # The last one last: until then, the history has ended.
    for log, segments in bucket.list_logs(directory).items():
        for start, _ in segments:
            bucket.remove(name_segment(directory, log, start))


@final
class SegmentBytes(BufferedLogBytes):
    """The bytes of the last log of a history, or of a released version."""

    def __init__(self, bucket: Bucket, directory: str, version: int = 0) -> None:
        """Prepare to open the last log of a history (version 0), or a released version."""
        super().__init__(f"{bucket.url}/{directory}")
        self._bucket = bucket
        self._directory = directory
        self._version = version
        self._log = ""
        """The name of the log that was open last, or would have been."""
        self._identity: str | None = None
        """Of a released version: that of its object. After a delete of the thread, another one gets its name."""
        self._starts: list[int] = []
        """Where the segments begin."""
        self._kept: dict[int, bytes] = {}
        """The segments that are in memory, by their offsets."""
        self._is_sealed = False
        """Whether nothing can be appended to the log: the next one takes its place."""

    def open(self) -> bool:
        if self._version:
            self._log = f"v{self._version:08d}"
            self._identity = self._identify_version()  # First: what is read then is not older.
        logs = self._bucket.list_logs(self._directory)
        if not self._version:
            self._log = find_last_log(logs)
        self.size = 0
        self._is_sealed = False
        self._starts = []
        for start, length in logs.get(self._log, ()):
            if start != self.size:
                if self._exists(self._log, self.size):
                    return self.open()  # It was created while the list was made, and a later one is in the list.
                raise CheckpointCorruptionError(self.path, self.size, "a segment is missing")
            self._is_sealed = not length
            self.size += length
            if length:
                self._starts.append(start)
        return self.size > 0

    def _name(self, log: str, offset: int = 0) -> str:
        return name_segment(self._directory, log, offset)

    def _identify_version(self) -> str | None:
        return self._bucket.identify(self._name(self._log))

    def refresh(self, end: int) -> Change:
        if self._version:
            return Change.NONE if self._identify_version() == self._identity else Change.REPLACED
        if not (self._exists(self._log, end) or self._exists(_name_next(self._log), 0)):
            return Change.NONE
        known = self._log
        self.open()
        if self._log != known:
            return Change.REPLACED
        return Change.GREW if self.size > end else Change.NONE

    def _exists(self, log: str, offset: int) -> bool:
        return self._bucket.exists(self._name(log, offset))

    def is_gone(self) -> bool:
        if self._version:
            return self._identify_version() != self._identity
        return find_last_log(self._bucket.list_logs(self._directory)) != self._log

    def close(self) -> None:
        super().close()
        self._starts = []
        self._kept = {}

    # Reading

    def read_stored(self, offset: int, length: int) -> bytes:
        end = offset + length
        low = bisect_right(self._starts, offset) - 1
        high = bisect_left(self._starts, end)
        starts = self._starts[low:high]
        missing = [start for start in starts if start not in self._kept]
        if missing:
            names = [self._name(self._log, start) for start in missing]
            try:
                self._kept.update(zip(missing, self._bucket.read(names), strict=True))
            except FileNotFoundError as error:
                raise CheckpointCorruptionError(self.path, offset, "a segment is missing") from error
        whole = b"".join([self._kept[start] for start in starts])
        first = starts[0]
        data = whole[offset - first : end - first]
        if len(data) < length:
            raise CheckpointCorruptionError(self.path, offset, "a segment is shorter than it was")
        return data

    @property
    def kept_size(self) -> int:
        return sum(map(len, self._kept.values()))

    def drop_caches(self) -> None:
        self._kept.clear()

    # Appending

    def store(self, offset: int, data: bytes) -> None:
        log = self._log
        if self._is_sealed:
            # What is pending is a part of all bytes: the next log begins with what the sealed one has.
            data = self._read_all()
            offset = 0
        if not offset:
            log = _name_next(log)
            self._starts = []
            self._kept = {}
        self._create(log, offset, data)
        # The names of a log that was replaced are free again, except the first. So that the object could be created
        # proves nothing, until it is seen that no next log was there at that time. If one came later, its writer has
        # found this object in the way, or a release has taken it along.
        if self._exists(_name_next(log), 0) and not self._is_released(offset, data):
            self._bucket.remove(self._name(log, offset))
            raise StaleLogError
        self._log = log
        self._is_sealed = False
        self._starts.append(offset)
        self._kept[offset] = data

    def _create(self, log: str, start: int, data: bytes) -> None:
        """Create a segment; raise StaleLogError if another writer was faster."""
        name = self._name(log, start)
        try:
            self._bucket.create(name, data)
        except FileExistsError:
            # A client that repeats a request of which it got no answer meets its own object.
            if self._find(name) != data:
                raise StaleLogError from None

    def _find(self, name: str) -> bytes | None:
        """Return the bytes of an object; None if another process has removed it meanwhile."""
        with suppress(FileNotFoundError):
            return self._bucket.read([name])[0]
        return None

    def _is_released(self, start: int, data: bytes) -> bool:
        """Return whether the log was released with a segment, right after it was created."""
        versions = [log for log in self._bucket.list_logs(self._directory) if not log.isdecimal()]
        # The newest one as a rule; another release may have followed.
        released = (self._find(self._name(log)) or b"" for log in reversed(versions))
        return any(data == each[start : start + len(data)] for each in released)

    # Replacing the log

    def replace(self, data: bytes, version: int = 0) -> None:
        if self._version:
            self._bucket.remove(self._name(self._log))
            return
        # Each step is refused to the slower of two writers, and the next one goes on where a dead one has stopped.
        if not self._is_sealed:
            self._create(self._log, self.size, b"")
        if version:
            self._create(f"v{version:08d}", 0, self._read_all())
        self._create(_name_next(self._log), 0, data)
        remove_replaced(self._bucket, self._directory)

    def _read_all(self) -> bytes:
        try:
            return self.read_at(0, self.size)
        except CheckpointCorruptionError:
            if self.is_gone():
                raise StaleLogError from None
            raise


_MAX_NAME: Final = 200
"""Longer names of threads and namespaces are replaced by a digest: an object has a name of at most 1,024 bytes."""
_EMPTY: Final = "~"
"""The name of the empty text, so that of the root namespace; what a digest begins with, too."""


def encode(text: str) -> str:
    """Return the name that stands for a thread or a namespace."""
    name = quote(text, safe="", errors="surrogatepass").replace("~", "%7E").replace(".", "%2E")
    if len(name) <= _MAX_NAME:
        return name or _EMPTY
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return f"{_EMPTY}{b32encode(digest).decode().lower()}"


@final
class ObjectCatalogue(LogCatalogue[SegmentBytes]):
    """The logs in a bucket: `<thread>/<namespace>/`, and what SegmentBytes says."""

    def __init__(self, bucket: Bucket, codec: Codec, compression: Compression | None) -> None:
        super().__init__(codec, compression)
        self._bucket = bucket

    def new_medium(self, thread_id: str, namespace: str, version: int = 0) -> SegmentBytes:
        return SegmentBytes(self._bucket, f"{encode(thread_id)}/{encode(namespace)}", version)

    def list_logs(self, thread_id: str | None) -> Iterator[LogKey]:
        threads = self._bucket.list_directories() if thread_id is None else [encode(thread_id)]
        for directory in self._bucket.list_histories(threads):
            logs: list[str] = []
            for log, segments in self._bucket.list_logs(directory).items():
                _, first_length = segments[0]
                # An empty object in the place of the first segment only keeps the name of a log that is gone.
                if first_length:
                    logs.append(log)
            if logs:
                owner = self._identify(directory, logs[0])
                versions = {0 if log.isdecimal() else int(log.removeprefix("v")) for log in logs}
                yield from [(*owner, version) for version in versions]

    def _identify(self, directory: str, log: str) -> tuple[str, str]:
        """Return the thread and the namespace of a history: for a digest, a log says what it stands for."""
        names = directory.split("/")
        if any(name.startswith(_EMPTY) and name != _EMPTY for name in names):
            (data,) = self._bucket.read([name_segment(directory, log)])
            return read_owner(directory, data)
        thread_id, namespace = [unquote(name.removeprefix(_EMPTY), errors="surrogatepass") for name in names]
        return thread_id, namespace


@final
class ObjectStoreSaver(LogSaver[SegmentBytes]):
    """Stores the history of each thread in object storage: S3, GCS, Azure, or any other file system of fsspec.

    When `put` returns, the checkpoint is an object; what it survives is as the storage says. A put
    creates one object, with what changed. The storage must be able to create an object only if it
    is absent, as S3, GCS and Azure are.

    Run locks hold within one process only. If another process writes to a thread during a run, the
    storage refuses the next put of the slower one of the two, which raises CheckpointConflictError
    and has changed nothing. Outside a run, a refused put reads what is new and puts again. Needs the
    extra `objects`, and the package of the storage, such as s3fs.
    """

    refuses_unstorable_values = True

    def __init__(
        self,
        url: str,
        *,
        types: Sequence[type] = (),
        compression: Literal["zlib", "zstd"] | Compression | None = "zlib",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Name a bucket, or a directory in one.

        Args:
            url: such as `s3://bucket/path`.
            types: application types that states may hold; see `register_types`.
            compression: as for FileSystemSaver.
            storage_options: options of the file system of fsspec.

        Raises:
            CheckpointerConfigurationError: an argument is wrong.
            MissingDependencyError: the extra `objects` is missing.
        """
        if not url:
            raise CheckpointerConfigurationError("url must be a URL, such as s3://bucket/path")
        codec = Codec(types)
        self._bucket = Bucket(url, storage_options or {})
        super().__init__(ObjectCatalogue(self._bucket, codec, parse_compression(compression)), codec)

    def describe(self) -> str:
        return self._bucket.url

    def size(self, thread: ThreadLike = None) -> int:
        """Return the bytes of all objects of a thread, or of the whole store (None)."""
        directory = "" if thread is None else encode(resolve_thread_id(thread))
        return self._bucket.measure(directory)

    def erase_deleted(self, *, full: bool = False) -> Sequence[str]:
        """Remove what deletes and rewrites have left; see `graphkit.abc.SupportsErase`.

        Empty objects keep the names of a deleted thread taken, and these show its id. They are removed
        only with `full`, and then no process may have a deleted thread open. The storage may keep
        earlier versions of objects, if it is configured to.
        """
        bucket = self._bucket
        has_ended = False
        threads = bucket.list_directories()
        for directory in bucket.list_histories(threads):
            remove_replaced(bucket, directory)
            if is_ended(bucket, directory):
                has_ended = True
                if full:
                    remove_names(bucket, directory)
            if full:
                bucket.remove_directory(directory)
        unfinished = bucket.list_unfinished()
        if full:
            for thread in threads:
                bucket.remove_directory(thread)
            for name in unfinished:
                bucket.remove(name)
            return ()
        advice = "erase with full=True (--full) while no process uses the store"
        reasons: list[str] = []
        if has_ended:
            reasons.append(f"the names of empty objects in {bucket.url} show the ids of deleted threads: {advice}")
        if unfinished:
            reasons.append(f"writes in {bucket.url} have not finished, or their processes have died: {advice}")
        return reasons

    def _is_idle(self, thread_id: str, idle_since: datetime) -> bool:
        last_write = self._bucket.find_last_write(encode(thread_id))
        return 0.0 < last_write < idle_since.timestamp()

    eraseDeleted = erase_deleted
