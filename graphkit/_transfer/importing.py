"""ThreadImporter: stores the lines of one thread. At the end: logs exported and imported as they are.

Nothing is stored of a thread before all its lines were read, and their digests have proved right.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, BinaryIO, Final, Literal, final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasThreadDirectories, HasVersions, list_versions
from graphkit._saver.incomplete import (
    CheckpointParts,
    IncomingThread,
    StoredCheckpoint,
    is_placeholder,
    is_thread_incomplete,
)
from graphkit._transfer.copying import ThreadReader
from graphkit._values.json_values import JsonValueCodec, apply_change, format_line
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)

Form = Literal["lines", "logs"]
"""What a file holds: checkpoints as readable lines, or logs as they are."""

FORMAT: Final = 1
"""The version of the lines; a reader refuses a greater one."""
_FORMS: Final[dict[str, Form]] = {"threads": "lines", "logs": "logs"}
"""By what the first line says."""
_MAX_IN_MEMORY: Final = 1 << 20
"""Bytes of a thread's lines above which they are kept in a temporary file."""


@final
class LineReader:
    """Reads the lines of a file, and counts them for error messages."""

    def __init__(self, lines: Iterable[str], *, number: int = 0) -> None:
        """Prepare to read lines that follow the one with this number."""
        self._lines = iter(lines)
        self._number = number
        self.text = ""
        """The last line that was read."""

    def read(self) -> dict[str, Any] | None:
        """Return the next line; None at the end of the file.

        Raises:
            CheckpointFormatError: the line is not an object of JSON.
        """
        line = next(self._lines, None)
        if line is None:
            return None
        self._number += 1
        self.text = line
        try:
            data = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise self.error(f"not JSON: {error}") from error
        if not isinstance(data, dict):
            raise self.error("not an object")
        return data

    def read_required(self, of: str) -> dict[str, Any]:
        """Return the next line.

        Args:
            of: the thread to which the line belongs.

        Raises:
            CheckpointFormatError: the file ends here.
        """
        data = self.read()
        if data is None:
            raise self.error(f"the file is cut short within thread {of!r}")
        return data

    def read_head(self, expected: Form | None) -> Form:
        """Return what the file holds, from its first line.

        Raises:
            CheckpointFormatError: it holds something else than was expected, is not an export, or has a
                newer format.
        """
        head: Mapping[str, Any] = {}
        with suppress(CheckpointFormatError):  # of a file that is something else altogether
            head = self.read() or head
        form = _FORMS.get(str(head.get("graphkit")))
        if form is None:
            raise self.error("this is not an export of graphkit")
        if expected not in (None, form):
            raise self.error(f"this is an export in the format {form!r}, not {expected!r}")
        version = head.get("format")
        if type(version) is not int:
            raise self.error("it has no format number")
        if version > FORMAT:
            raise self.error(f"it has format {version}; this graphkit reads up to {FORMAT}")
        return form

    def read_first(self) -> dict[str, Any] | None:
        """Return the line that begins the next thread, and names it; None at the end of the file.

        Raises:
            CheckpointFormatError: the line is another one.
        """
        data = self.read()
        if data is not None and not isinstance(data.get("thread"), str):
            raise self.error("expected a thread")
        return data

    @contextmanager
    def read_thread(self, thread_id: str) -> Iterator[tuple[LineReader, str]]:
        """Read the lines of a thread; then yield a reader that has them again, and their digest.

        Raises:
            CheckpointFormatError: lines are missing or were changed.
            CheckpointStorageError: there is no room for a temporary file.
        """
        number = self._number
        digest = blake2b(digest_size=16)
        with SpooledTemporaryFile(_MAX_IN_MEMORY) as copy:
            while "end" not in (data := self.read_required(of=thread_id)):
                line = f"{self.text.rstrip()}\n".encode()
                digest.update(line)
                try:
                    copy.write(line)
                except OSError as error:
                    raise CheckpointStorageError(gettempdir(), "write", error) from error
            # Exports of older versions do not name the thread again.
            if data["end"] != digest.hexdigest() or data.get("thread", thread_id) != thread_id:
                raise self.error(f"the lines of thread {thread_id!r} were changed")
            copy.seek(0)
            yield LineReader((line.decode() for line in copy), number=number), digest.hexdigest()

    def error(self, reason: str) -> CheckpointFormatError:
        """Return an error that names the line."""
        return CheckpointFormatError("the file", f"line {max(self._number, 1)}: {reason}")


def check_threads(source: LineReader, form: Form) -> list[str]:
    """Return the ids of the threads in the rest of a file.

    Raises:
        CheckpointFormatError: the file is damaged or cut short.
    """
    found: list[str] = []
    with Path(os.devnull).open("wb") as nothing:
        while (data := source.read_first()) is not None:
            thread_id = data["thread"]
            if form == "logs":
                _read_logs(source, thread_id, lambda _: nullcontext(nothing))
            else:
                with source.read_thread(thread_id):
                    pass
            found.append(thread_id)
    return found


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


@final
class ThreadImporter:
    """Stores the lines of one thread, whose run lock the caller holds. The thread is incomplete meanwhile."""

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec) -> None:
        """Prepare the import.

        Args:
            saver: where to store the thread.
            thread_id: the thread.
            values: decodes the values of the file.
        """
        self.thread_id = thread_id
        self.stored = 0
        self.skipped = 0
        self._saver = saver
        self._values = values
        self._incoming = IncomingThread(saver, thread_id, thread_id)
        self._was_incomplete = is_thread_incomplete(saver, thread_id)
        """Whether an earlier import was cut short, and this one has not continued it yet."""
        self._first_namespace: str | None = None
        """The namespace of the first line since the last release; the root, if the file has it."""
        self._is_begun = False
        """Whether the thread is marked as incomplete since the last release."""
        self._parts: list[CheckpointParts] = []
        """Pending writes and tags that checkpoints lack which were stored before this import."""
        self._states: dict[str, dict[str, Any]] = {}
        """The state after the last line, by namespace."""
        self._unmatched: dict[str, list[str]] = {}
        """The checkpoints that were stored before this import and that no line has matched yet.

        By namespace; oldest first.
        """
        self._stored_versions = list_versions(saver, thread_id)
        """The versions that were stored before this import."""
        self._has_versions = False
        """Whether the file has a version of this thread."""

    def import_lines(self, source: LineReader, digest: str) -> None:
        """Store the lines of the thread, read it back, and compare it with their digest; then it is complete.

        Raises:
            CheckpointFormatError: lines are malformed.
            CheckpointConflictError: the stored thread differs from the file.
        """
        while (data := source.read()) is not None:
            try:
                if "release" in data:
                    self._release(data["release"])
                    continue
                namespace, imported = self._parse(data)
            except CheckpointerError:
                raise
            except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                raise source.error(f"malformed: {error}") from error
            if "version" in data and not isinstance(self._saver, HasVersions):
                raise CheckpointerConfigurationError(
                    f"{type(self._saver).__name__} keeps no versions; export without them, or import elsewhere"
                )
            if data.get("version") in self._stored_versions:
                self.skipped += 1  # compared below
            else:
                self._store(namespace, imported)
        self._end_history()
        self._incoming.settle()
        reader = ThreadReader(self._saver, self.thread_id, self._values)
        *_, last_line = reader.lines(versions=self._has_versions)
        end = json.loads(last_line)
        if end["end"] != digest:
            raise CheckpointConflictError(self.thread_id, "the stored thread differs from the file")
        self._incoming.finish()

    def _store(self, namespace: str, imported: StoredCheckpoint) -> None:
        """Store a checkpoint, or what it lacks if it is stored already.

        Nothing is changed before there is a checkpoint to append: a thread that differs from the
        file stays as it is.
        """
        if self._first_namespace is None:
            self._first_namespace = namespace
        if self._was_incomplete:
            self._begin(imported.checkpoint)
        config = RunnableConfig(self.thread_id, checkpoint_ns=namespace)
        if namespace not in self._unmatched:
            history = self._saver.history(config)
            ids = [info.id for info in history if not is_placeholder(info.metadata)]
            self._unmatched[namespace] = ids[::-1]
        unmatched = self._unmatched[namespace]
        if not unmatched:
            self._begin(imported.checkpoint)
            self._incoming.put(namespace, imported)
            self.stored += 1
            return
        # By id only: the states are compared in the end, by the digest of the whole thread.
        if unmatched.pop(0) != imported.checkpoint.id:
            raise CheckpointConflictError(
                self.thread_id, "it already holds other checkpoints; delete it first, or import elsewhere"
            )
        self.skipped += 1
        address = config.with_check_point_id(imported.checkpoint.id)
        writes: dict[str, Any] = {}
        tags: list[str] = []
        if imported.writes:
            stored = self._saver.get_writes(address)
            writes = {key: value for key, value in imported.writes.items() if key not in stored}
            for key in imported.writes.keys() - writes.keys():
                encoded, wanted = (self._values.encode(each[key], key) for each in (stored, imported.writes))
                if format_line({key: encoded}) != format_line({key: wanted}):
                    reason = f"the pending write {key!r} of checkpoint {imported.checkpoint.id} differs from the file"
                    raise CheckpointConflictError(self.thread_id, reason)
        if imported.tags:
            stored_tags = self._saver.tags_of(address)
            tags = [tag for tag in imported.tags if tag not in stored_tags]
        if writes or tags:
            self._parts.append(CheckpointParts(address, writes, tags))

    def _end_history(self) -> None:
        """Store what checkpoints lack; but first check that none is stored behind those of the file."""
        if any(self._unmatched.values()):
            raise CheckpointConflictError(
                self.thread_id, "it holds checkpoints that the file has not: it differs from the file"
            )
        self._put_parts()

    def _begin(self, checkpoint: Checkpoint) -> None:
        """Mark the thread as incomplete, unless it is; then store what earlier checkpoints lack."""
        if not self._is_begun:
            assert self._first_namespace is not None
            self._incoming.begin([self._first_namespace], checkpoint.state, checkpoint.metadata)
            self._is_begun = True
            self._was_incomplete = False
        self._put_parts()

    def _put_parts(self) -> None:
        for parts in self._parts:
            parts.put(self._saver)
        self._parts.clear()

    def _parse(self, data: dict[str, Any]) -> tuple[str, StoredCheckpoint]:
        """Return the namespace and the checkpoint of a line."""
        decode = self._values.decode
        namespace = _require_text(data["ns"])
        before = self._states.get(namespace, {})
        state = apply_change(self._values, before, data["state"])
        self._states[namespace] = state
        checkpoint = Checkpoint(
            id=_require_text(data["id"]),
            node_id=_require_text(data["node"]),
            next_node_id=None if data["next"] is None else _require_text(data["next"]),
            parent_id=None if data["parent"] is None else _require_text(data["parent"]),
            created_at=datetime.fromisoformat(data["created"]),
            metadata=decode(data["metadata"]),
            state=state,
        )
        writes = data.get("writes", {})
        tags = data.get("tags", ())
        stored = StoredCheckpoint(
            checkpoint,
            writes={key: decode(value) for key, value in writes.items()},
            tags=[_require_text(tag) for tag in tags],
        )
        return namespace, stored

    def _release(self, version: Any) -> None:
        if type(version) is not int:
            raise TypeError(f"{version!r} is not a version")
        if version not in self._stored_versions:
            self._end_history()
            self._incoming.release(version)
        self._has_versions = True
        self._first_namespace = None
        self._is_begun = False
        self._states = {}
        self._unmatched = {}


# Logs, exported to a file unchanged and imported into another directory. Nothing is decoded here: types need not be
# registered, sealed logs stay sealed and need no key, and released histories, salvaged files and damage are exported,
# too. Both stores must be directories, and a thread keeps its id.

_CHUNK: Final = 48 << 10
"""How many bytes of a log one line holds."""
_NAMESPACE: Final = re.compile(r"n-[a-z0-9-]{0,40}-[a-z2-7]{24}\Z")
_ROOT_LOG: Final = "log"
_FILE: Final = re.compile(r"(n-[a-z0-9-]{0,40}-[a-z2-7]{24}/)?(log|v\d{6,}\.log|(torn|damaged)-[a-z0-9-]+\.bin)\Z")
"""The files of a thread that hold data. An import creates no other file: the names come from an
untrusted file."""


def export_log_lines(saver: BaseCheckpointSaver, thread_id: str) -> Iterator[str]:
    """Yield the lines with the logs of a thread.

    May run while another process writes: a log only grows, so the export has the thread as it was.

    Raises:
        CheckpointNotFoundError: there is no such thread.
        CheckpointFormatError: there is a link, or something else that is not a file or directory,
            in place of a log or a directory.
        CheckpointStorageError: a log cannot be read, or was removed meanwhile.
    """
    directory = find_directory(saver, thread_id)
    names: list[str] = []
    if os.path.lexists(directory):
        _check_directory(directory)
        names = [path.name for path in directory.iterdir()]
        for namespace in filter(_NAMESPACE.match, [*names]):
            _check_directory(directory / namespace)
            names += [f"{namespace}/{path.name}" for path in (directory / namespace).iterdir()]
    files = sorted(name for name in names if _FILE.match(name))
    if not files:
        raise CheckpointNotFoundError(thread_id, hint="see threads()")
    yield format_line({"thread": thread_id, "directory": directory.name})
    digests: dict[str, str] = {}
    for name in files:
        path = directory / name
        digest = blake2b(digest_size=16)
        try:
            _check_file(path)
            remaining = path.stat().st_size  # a writer may append while the export reads
            yield format_line({"file": name})
            with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
                while remaining:
                    chunk = file.read(min(_CHUNK, remaining))
                    if not chunk:
                        break
                    digest.update(chunk)
                    remaining -= len(chunk)
                    yield format_line({"data": base64.b64encode(chunk).decode()})
        except OSError as error:
            raise CheckpointStorageError(str(path), "export", error) from error
        digests[name] = digest.hexdigest()
        yield format_line({"digest": digests[name]})
    yield format_line({"end": thread_id, "files": digests})


def find_directory(saver: BaseCheckpointSaver, thread_id: str = "") -> Path:
    """Return the directory of a thread's logs, whether it exists or not.

    Raises:
        CheckpointerConfigurationError: the saver keeps no files.
    """
    if not isinstance(saver, HasThreadDirectories):
        raise CheckpointerConfigurationError(f"{type(saver).__name__} has no logs; use the readable form")
    return Path(saver.thread_directory(thread_id))


def _check_directory(path: Path) -> None:
    """Refuse a link or a file in place of a directory: no operation may leave the store."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise CheckpointFormatError(str(path), "it is a symbolic link or a file where a directory should be")


def _check_file(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise CheckpointFormatError(str(path), "it is a symbolic link or a special file where a log should be")


def _open(path: Path, flags: int) -> int:
    """Open a file. Follows no link and does not wait for the other end of a FIFO."""
    no_follow = getattr(os, "O_NOFOLLOW", 0)
    no_wait = getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags | no_follow | no_wait, 0o600)


def import_logs(saver: BaseCheckpointSaver, source: LineReader, thread_id: str, directory_name: Any) -> int:
    """Store the next lines, the logs of a thread, and verify it; return how many checkpoints it has.

    If an import was cut short, the next import of the same file continues it: files that are stored
    already, with the same bytes, are skipped.

    Args:
        saver: keeps its threads in a directory.
        source: the lines that follow that of the thread.
        thread_id: the thread.
        directory_name: what the file says of its directory.

    Raises:
        CheckpointConflictError: the thread holds other data.
        CheckpointFormatError: the lines are damaged or cut short; or there is a link where a file or
            directory should be, which the import does not follow.
        CheckpointCorruptionError: a log was damaged when it was exported. It is stored; `repair`
            it.
        CheckpointStorageError: the file system refused. The next import of the file continues.
        ThreadBusyError: a run holds the thread.
    """
    directory = find_directory(saver, thread_id)
    root = directory.parent
    if directory_name != directory.name:
        raise source.error(f"{directory_name!r} is not the directory of thread {thread_id!r}")
    with saver.run_lock(RunnableConfig(thread_id)):  # creates the directory
        try:
            _import_files(source, directory, thread_id)
            sync_directory(root)
        except OSError as error:
            path = os.fsdecode(error.filename or directory)
            raise CheckpointStorageError(path, "import into", error) from error
    keeper: Any = saver
    report = keeper.verify(thread_id)
    for problem in report.problems:
        # Without the keys, the checksums of a sealed log were checked.
        if problem.state not in {"torn", "sealed"}:
            raise CheckpointCorruptionError(str(root / problem.path), problem.offset, problem.reason)
    return sum(file.checkpoints for thread in report.threads for file in thread.files)


def _import_files(source: LineReader, directory: Path, thread_id: str) -> None:
    _check_directory(directory)
    logs: dict[str, Path] = {}
    """For each name the file that holds its bytes until all of them were read."""
    with ExitStack() as stack:

        @contextmanager
        def create_file(name: str) -> Iterator[BinaryIO]:
            logs[name] = path = directory / f"tmp-{name.replace('/', '-')}"
            stack.callback(path.unlink, missing_ok=True)
            path.unlink(missing_ok=True)  # left by an import that died, or a link, which must not be written through
            with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())

        _read_logs(source, thread_id, create_file)
        missing: set[str] = set()
        for name, temporary in logs.items():
            path = directory / name
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700)
            _check_directory(path.parent)
            if not os.path.lexists(path):
                missing.add(name)
                continue
            _check_file(path)
            if path.read_bytes() != temporary.read_bytes():
                raise CheckpointConflictError(
                    thread_id, "it already holds other data; delete it first, or import elsewhere"
                )
        # The root last: without the histories of its nested graphs, a run would repeat what they have done. A log that
        # is stored already stays the same file: an answer needs no run lock, and may be appended at this moment.
        for name in sorted(logs, key=lambda name: name == _ROOT_LOG):
            path = directory / name
            if name in missing:
                logs[name].replace(path)
            sync_directory(path.parent)
    # An import that died may have created the directory of a namespace without syncing its name.
    sync_directory(directory)


def _read_logs(
    source: LineReader, thread_id: str, open_file: Callable[[str], AbstractContextManager[BinaryIO]]
) -> None:
    """Read the lines of all logs of a thread, and write the bytes of each to the file that `open_file` opens for it.

    Raises:
        CheckpointFormatError: lines or logs are missing, or were changed.
    """
    digests: dict[str, str] = {}
    while "end" not in (data := source.read_required(of=thread_id)):
        name = data.get("file")
        if not isinstance(name, str) or not _FILE.match(name):
            raise source.error("expected a log")
        with open_file(name) as file:
            digests[name] = _read_log(source, file, thread_id)
    if data["end"] != thread_id or data.get("files", digests) != digests:
        raise source.error(f"logs of thread {thread_id!r} are missing, or were changed")


def _read_log(source: LineReader, file: BinaryIO, thread_id: str) -> str:
    """Read the lines of a log, and write its bytes to a file; return their digest.

    Raises:
        CheckpointFormatError: the bytes do not match their digest, or lines are missing.
    """
    digest = blake2b(digest_size=16)
    while "data" in (data := source.read_required(of=thread_id)):
        try:
            chunk = base64.b64decode(data["data"], validate=True)
        except (TypeError, ValueError) as error:
            raise source.error(f"not base64: {error}") from error
        digest.update(chunk)
        file.write(chunk)
    if data.get("digest") != digest.hexdigest():
        raise source.error("the bytes before this line were changed")
    return digest.hexdigest()


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
