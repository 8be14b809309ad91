"""ObjectStoreSaver: checkpoints in object storage."""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, Literal, final
from urllib.parse import quote, unquote

from graphkit.errors import CheckpointerConfigurationError
from graphkit.saver_kit import Codec, ThreadLike, resolve_thread_id
from savers._compression import Compression, parse_compression
from savers._log.catalogue import LogCatalogue, LogKey
from savers._log.frame_log import read_owner
from savers._log.log_saver import LogSaver
from savers._objects.bucket import Bucket
from savers._objects.segments import (
    SegmentBytes,
    is_ended,
    list_logs,
    name_segment,
    remove_names,
    remove_replaced,
)

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
        threads = self._bucket.scan("") if thread_id is None else [(encode(thread_id), 0)]
        for thread, _ in threads:
            for namespace, _ in self._bucket.scan(thread):
                yield from self._list_logs_in(f"{thread}/{namespace}")

    def _list_logs_in(self, directory: str) -> Iterator[LogKey]:
        # An empty segment in the place of the first one only keeps the name of a log that is gone.
        logs = [log for log, segments in list_logs(self._bucket, directory).items() if segments[0][1]]
        if logs:
            thread_id, namespace = self._identify(directory, logs[0])
            for version in {0 if log.isdecimal() else int(log[1:]) for log in logs}:
                yield thread_id, namespace, version

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
        size, _ = self._bucket.measure(directory)
        return size

    def erase_deleted(self, *, full: bool = False) -> Sequence[str]:
        """Remove what deletes and rewrites have left; see `graphkit.abc.SupportsErase`.

        Empty objects keep the names of a deleted thread taken, and these show its id. They are removed
        only with `full`, and then no process may have a deleted thread open. The storage may keep
        earlier versions of objects, if it is configured to.
        """
        bucket = self._bucket
        ended = 0
        for thread, _ in bucket.scan(""):
            for namespace, _ in bucket.scan(thread):
                ended += _clean(bucket, f"{thread}/{namespace}", full=full)
            if full:
                bucket.remove_directory(thread)
        unfinished = bucket.list_unfinished()
        if full:
            for name in unfinished:
                bucket.remove(name)
            return ()
        advice = "erase with full=True (--full) while no process uses the store"
        reasons: list[str] = []
        if ended:
            reasons.append(f"the names of empty objects in {bucket.url} show the ids of deleted threads: {advice}")
        if unfinished:
            reasons.append(f"writes in {bucket.url} have not finished, or their processes have died: {advice}")
        return reasons

    def _is_idle(self, thread_id: str, idle_since: datetime) -> bool:
        _, last_write = self._bucket.measure(encode(thread_id))
        return 0.0 < last_write < idle_since.timestamp()

    eraseDeleted = erase_deleted


def _clean(bucket: Bucket, directory: str, *, full: bool) -> bool:
    """Remove what was replaced in a history, and with `full` the names of one that has ended; return whether it has."""
    remove_replaced(bucket, directory)
    has_ended = is_ended(bucket, directory)
    if full:
        if has_ended:
            remove_names(bucket, directory)
        bucket.remove_directory(directory)
    return has_ended
