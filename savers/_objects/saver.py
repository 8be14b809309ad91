"""ObjectStoreSaver: checkpoints in object storage."""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, Literal, final
from urllib.parse import quote, unquote

from graphkit import RunnableConfig, Tag
from graphkit.abc import ConfigLike, ThreadLike
from graphkit.codec import Codec
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    ThreadBusyError,
)
from graphkit.saver_kit import resolve_thread_id
from savers._compression import Compression, parse_compression
from savers._log import payloads
from savers._log.catalogue import LogCatalogue
from savers._log.frame import HEADER_SIZE, RELEASE
from savers._log.log import Log
from savers._log.log_bytes import MemoryLogBytes, StaleLogError
from savers._log.log_saver import LogSaver
from savers._log.records import Records
from savers._objects.bucket import Bucket
from savers._objects.segments import HistoryObjects, Logs, SegmentBytes, is_live, name_version

ObjectLog = Log[SegmentBytes]
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

    def list_threads(self, *, released: bool) -> Sequence[str]:
        names = [name for name, _ in self._bucket.list("")]
        threads = {
            self._decode(name, [f"{name}/{each}" for each, _ in self._bucket.list(name)], "thread") for name in names
        }
        return sorted(
            thread for thread in threads if self.list_namespaces(thread) or (released and self.list_versions(thread))
        )

    def list_namespaces(self, thread_id: str) -> Sequence[str]:
        return sorted(name for name in self.list_live(thread_id) if self._has_checkpoints(thread_id, name))

    def _has_checkpoints(self, thread_id: str, namespace: str) -> bool:
        log = self.shared_log(thread_id, namespace)
        with log.mutex:
            return log.refresh() and log.history.find_latest() is not None

    def list_all(self, thread_id: str) -> Sequence[str]:
        """Return the namespaces of a thread that have objects, the root last."""
        return sorted(self._list_histories(thread_id), reverse=True)

    def list_live(self, thread_id: str) -> Sequence[str]:
        """Return the namespaces of a thread that have a live log, the root last."""
        found = self._list_histories(thread_id).items()
        return sorted((name for name, logs in found if is_live(logs)), reverse=True)

    def list_versions(self, thread_id: str) -> Sequence[int]:
        histories = self._list_histories(thread_id).values()
        return sorted({int(name[1:]) for logs in histories for name in logs if not name.isdecimal()})

    def list_version_namespaces(self, thread_id: str, version: int) -> Sequence[str]:
        return sorted(name for name, logs in self._list_histories(thread_id).items() if name_version(version) in logs)

    def _list_histories(self, thread_id: str) -> dict[str, Logs]:
        """Return the logs of each namespace of a thread."""
        thread = encode(thread_id)
        directories = {name: f"{thread}/{name}" for name, _ in self._bucket.list(thread)}
        return {
            self._decode(name, [each], "ns"): HistoryObjects(self._bucket, each).list_logs()
            for name, each in directories.items()
        }

    def _decode(self, name: str, directories: Sequence[str], key: str) -> str:
        """Return the text that a name stands for: for a digest, the META record of a log says it."""
        if not name.startswith(_EMPTY) or name == _EMPTY:
            return unquote(name.removeprefix(_EMPTY), errors="surrogatepass")
        for directory in directories:
            for file, size in self._bucket.list(directory):
                # The first segment of a log; it is empty if it only takes the name of one that is gone.
                if not size or not file.endswith(f".{0:020d}"):
                    continue
                (data,) = self._bucket.read([f"{directory}/{file}"])
                medium = MemoryLogBytes(name, bytearray(data))
                meta = next(Records(medium, None).search(HEADER_SIZE, len(data)))
                return str(payloads.unpack_payload(name, meta)[key])
        return name  # It was deleted.


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
        self._catalogue = ObjectCatalogue(self._bucket, codec, parse_compression(compression))
        self._running: set[str] = set()
        """The threads of which a run lock is held through this object."""
        super().__init__(self._catalogue, codec)

    def describe(self) -> str:
        return self._bucket.url

    def run_lock_key(self, config: ConfigLike = None) -> object:
        return "objects", self._bucket.url, RunnableConfig.of(config).thread

    @contextmanager
    def _run_lock(self, config: RunnableConfig, timeout: float | None) -> Iterator[None]:
        with super()._run_lock(config, timeout):
            self._running.add(config.thread)
            try:
                yield
            finally:
                self._running.remove(config.thread)

    def _check_run_lock(self, thread_id: str) -> None:
        if thread_id in self._running:
            raise CheckpointConflictError(
                thread_id, "another process has written to it during this run; resume the run"
            )

    def _refresh_to_append(self, log: ObjectLog) -> None:
        super()._refresh_to_append(log)
        medium = log.frames.bytes
        while log.is_open and (medium.is_sealed or log.history.closed_by is not None):
            # A process that was about to replace the log has died, or is slower.
            if log.history.closed_by is not None:
                self._finish_release(log, log.history.scan.read_closing_version())
            else:
                with suppress(StaleLogError):
                    medium.replace(None)
            log.close()
            super()._refresh_to_append(log)

    # Replacing logs

    def release(self, config: ConfigLike = None) -> Tag:
        thread_id = RunnableConfig.of(config).thread
        root = self._catalogue.shared_log(thread_id, "")
        with self._exclude_runs(thread_id), root.mutex:
            while True:
                self._refresh_to_append(root)
                if not self.namespaces(thread_id):
                    return Tag(thread_id, [], None)
                checkpoints = self._list_checkpoints(root) if root.is_open else []
                version = max(self._catalogue.list_versions(thread_id), default=0) + 1
                try:
                    root.end(RELEASE, version)
                    root.commit()
                except StaleLogError:
                    continue
                # From here on it is a version: if this process dies, the next writer finishes it.
                self._finish_release(root, version)
                root.close()
                return Tag(thread_id, checkpoints, version)

    def _finish_release(self, root: ObjectLog, version: int) -> None:
        """Make all live logs of a thread a version, the root last, unless another process has just done that."""
        others = [name for name in self._catalogue.list_live(root.thread_id) if name]
        mediums = [self._catalogue.new_medium(root.thread_id, name) for name in others]
        opened = [medium for medium in mediums if medium.open()]
        for medium in [*opened, root.frames.bytes]:
            with suppress(StaleLogError):
                medium.replace(b"", version)

    def delete(self, thread: ThreadLike = None) -> bool:
        thread_id = resolve_thread_id(thread)
        with self._exclude_runs(thread_id):
            return self._delete(thread_id)

    def _delete(self, thread_id: str) -> bool:
        had_content = thread_id in self.threads(released=True)
        for namespace in self._catalogue.list_all(thread_id):
            medium = self._catalogue.new_medium(thread_id, namespace)
            while medium.open():
                with suppress(StaleLogError):
                    medium.replace(b"")
            medium.objects.remove_others(versions=True)
        self._catalogue.logs.close_thread(thread_id)
        return had_content

    def size(self, thread: ThreadLike = None) -> int:
        """Return the bytes of all objects of a thread, or of the whole store (None)."""
        directory = "" if thread is None else encode(resolve_thread_id(thread))
        size, _ = self._bucket.measure(directory)
        return size

    def _delete_if_idle(self, thread_id: str, idle_since: datetime, *, dry_run: bool) -> bool:
        _, last_write = self._bucket.measure(encode(thread_id))
        if not 0.0 < last_write < idle_since.timestamp():
            return False
        try:
            with self._run_lock(RunnableConfig(thread_id), 0.0):
                return dry_run or self._delete(thread_id)
        except ThreadBusyError:
            return False
