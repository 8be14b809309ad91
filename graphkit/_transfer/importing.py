"""ThreadFile: a thread in a file, which ThreadCopier stores. At the end: logs exported and imported as they are.

Nothing is stored of a thread before all its lines were read, and their digests have proved right.
"""

from __future__ import annotations

import base64
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import IO, Any, Final, Literal, NamedTuple, final

from graphkit._options import parse_json
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory
from graphkit._saver.incomplete import StoredCheckpoint, with_changes
from graphkit._transfer.copying import ReadCheckpoint, ThreadSource
from graphkit._values.frozen import FrozenDict
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
        self.number = number
        """How many lines were read."""
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
        self.number += 1
        self.text = line
        try:
            data = parse_json(line)
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
    def read_thread(self, thread_id: str, values: JsonValueCodec) -> Iterator[ThreadFile]:
        """Read the lines of a thread up to its end, and yield the thread.

        Args:
            thread_id: the thread.
            values: decodes the values.

        Raises:
            CheckpointFormatError: lines are missing or were changed.
            CheckpointStorageError: there is no room for a temporary file.
        """
        digest = blake2b(digest_size=16)
        with SpooledTemporaryFile(_MAX_IN_MEMORY) as copy:
            thread = ThreadFile(thread_id, values, copy)
            while "end" not in (data := self.read_required(of=thread_id)):
                line = f"{self.text.rstrip()}\n".encode()
                digest.update(line)
                try:
                    thread.add(data, line, self.number)
                except OSError as error:
                    raise CheckpointStorageError(gettempdir(), "write", error) from error
                except (TypeError, ValueError) as error:
                    raise self.error(f"malformed: {error}") from error
            # Exports of older versions do not name the thread again.
            if data["end"] != digest.hexdigest() or data.get("thread", thread_id) != thread_id:
                raise self.error(f"the lines of thread {thread_id!r} were changed")
            if not thread.is_whole:
                raise self.error(f"thread {thread_id!r} has no checkpoints, or a version that was not released")
            yield thread

    def error(self, reason: str) -> CheckpointFormatError:
        """Return an error that names the line."""
        return CheckpointFormatError("the file", f"line {max(self.number, 1)}: {reason}")


def check_threads(source: LineReader, form: Form) -> list[str]:
    """Return the ids of the threads in the rest of a file.

    Raises:
        CheckpointFormatError: the file is damaged or cut short.
    """
    found: list[str] = []
    while (data := source.read_first()) is not None:
        thread_id = data["thread"]
        if form == "logs":
            for _ in _read_logs(source, thread_id):
                pass
        else:
            with source.read_thread(thread_id, JsonValueCodec()):
                pass
        found.append(thread_id)
    return found


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


class _History(NamedTuple):
    """What a line of a thread belongs to. An export has its lines in the order of these."""

    version: float
    is_release: bool
    """Whether the line only says that the lines before it are the whole version."""
    namespace: str

    @classmethod
    def of_line(cls, data: Mapping[str, Any]) -> _History:
        """Return the history of a line.

        Raises:
            ValueError: it has none.
        """
        is_release = "release" in data
        version = data["release"] if is_release else data.get("version", _ACTIVE)
        namespace = "" if is_release else data.get("ns")
        if type(version) is not int and version is not _ACTIVE:
            raise ValueError(f"{version!r} is not a version")
        return cls(version, is_release, _require_text(namespace))

    def may_follow(self, other: _History) -> bool:
        """Return whether the lines of this history may come next. No line follows a version that was not released."""
        return self > other and (other.is_release or self.version == other.version)


_ACTIVE: Final = math.inf
"""Stands for the version of the active history, which follows all versions."""


_OTHER_FORM: Final = "an export would write it in another way"
"""What is wrong with a line that would be stored differently, so that it could not be told from the file afterwards."""


class _Place(NamedTuple):
    """Where a history begins."""

    offset: int
    """How many bytes the lines of the thread before it have."""
    number: int
    """How many lines the file has before it."""


@final
class ThreadFile(ThreadSource):
    """A thread of a file. Its lines are in a temporary file, and are read again for each use."""

    name = "the file"

    def __init__(self, thread_id: str, values: JsonValueCodec, lines: IO[bytes]) -> None:
        """Begin without lines.

        Args:
            thread_id: the thread.
            values: decodes the values of the file.
            lines: the temporary file, which is empty.
        """
        super().__init__(thread_id, values)
        self._lines = lines
        self._places: dict[_History, _Place] = {}

    def add(self, data: Mapping[str, Any], line: bytes, number: int) -> None:
        """Add the next line.

        Args:
            data: what the line says.
            line: its bytes.
            number: its number in the file.

        Raises:
            OSError: the temporary file cannot be written.
            TypeError, ValueError: it is not the next line of an export.
        """
        history = _History.of_line(data)
        if history.is_release and line != format_line({"release": history.version}).encode():
            raise ValueError(_OTHER_FORM)
        last = next(reversed(self._places), None)
        if history != last or history.is_release:
            if last is not None and not history.may_follow(last):
                raise ValueError("the histories of a thread are in another order")
            self._places[history] = _Place(self._lines.tell(), number - 1)
        self._lines.write(line)

    @property
    def is_whole(self) -> bool:
        """Whether it has a history, and each of its versions was released."""
        last = next(reversed(self._places), None)
        return last is not None and (last.is_release or last.version == _ACTIVE)

    def list_versions(self) -> Sequence[int]:
        return [int(history.version) for history in self._places if history.is_release]

    def list_namespaces(self, version: int | None = None) -> Sequence[str]:
        wanted = _ACTIVE if version is None else version
        return [history.namespace for history in self._places if history[:2] == (wanted, False)]

    def find_own_key(self, namespace: str, version: int | None) -> None:
        """Return None: a file is not sealed."""

    def read(self, namespace: str, version: int | None = None) -> Iterator[ReadCheckpoint]:
        history = _History(_ACTIVE if version is None else version, is_release=False, namespace=namespace)
        place = self._places[history]
        source = LineReader(self._iter_lines(place.offset), number=place.number)
        for read in self._make_records(namespace, version, self._parse_lines(source, history)):
            if format_line(read.record) != source.text:
                raise source.error(f"malformed: {_OTHER_FORM}")
            yield read

    def _iter_lines(self, offset: int) -> Iterator[str]:
        while True:
            self._lines.seek(offset)  # another history may have been read meanwhile
            line = self._lines.readline()
            if not line:
                return
            offset += len(line)
            yield line.decode()

    def _parse_lines(self, source: LineReader, history: _History) -> Iterator[StoredCheckpoint]:
        before: FrozenDict | None = None
        while (data := source.read()) is not None and _History.of_line(data) == history:
            try:
                stored = self._parse(data, before or {})
            except CheckpointerError:
                raise
            except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                raise source.error(f"malformed: {error}") from error
            yield stored._replace(checkpoint=with_changes(stored.checkpoint, before))
            before = stored.checkpoint.state

    def _parse(self, data: Mapping[str, Any], before: Mapping[str, Any]) -> StoredCheckpoint:
        decode = self.values.decode
        checkpoint = Checkpoint(
            id=_require_text(data["id"]),
            node_id=_require_text(data["node"]),
            next_node_id=None if data["next"] is None else _require_text(data["next"]),
            parent_id=None if data["parent"] is None else _require_text(data["parent"]),
            created_at=datetime.fromisoformat(data["created"]),
            metadata=decode(data["metadata"]),
            state=apply_change(self.values, before, data["state"]),
        )
        if "version" in data:
            return StoredCheckpoint(checkpoint)
        writes = {key: decode(value) for key, value in data.get("writes", {}).items()}
        return StoredCheckpoint(checkpoint, writes, [_require_text(tag) for tag in data.get("tags", ())])


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
    try:
        if os.path.lexists(directory):
            _check_directory(directory)
            names = [path.name for path in directory.iterdir()]
            for namespace in filter(_NAMESPACE.match, [*names]):
                _check_directory(directory / namespace)
                names += [f"{namespace}/{path.name}" for path in (directory / namespace).iterdir()]
    except OSError as error:
        raise CheckpointStorageError(str(directory), "export", error) from error
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
                while chunk := file.read(min(_CHUNK, remaining)):
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
    if not isinstance(saver, HasBaseDirectory):
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
        for name, chunks in groupby(_read_logs(source, thread_id), key=itemgetter(0)):
            logs[name] = path = directory / f"tmp-{name.replace('/', '-')}"
            stack.callback(path.unlink, missing_ok=True)
            path.unlink(missing_ok=True)  # left by an import that died, or a link, which must not be written through
            with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.writelines(chunk for _, chunk in chunks)
                file.flush()
                os.fsync(file.fileno())
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
            if name != _ROOT_LOG:
                sync_directory(path.parent)
    # That has the root's log, and the names of namespaces: an import that died may not have brought them to the disk.
    sync_directory(directory)


def _read_logs(source: LineReader, thread_id: str) -> Iterator[tuple[str, bytes]]:
    """Yield the bytes of all logs of a thread, part by part, each with the name of its log.

    Raises:
        CheckpointFormatError: lines or logs are missing, or were changed.
    """
    digests: dict[str, str] = {}
    while "end" not in (data := source.read_required(of=thread_id)):
        name = data.get("file")
        if not isinstance(name, str) or not _FILE.match(name) or name in digests:
            raise source.error("expected a log")
        digest = blake2b(digest_size=16)
        yield name, b""  # the log may be empty
        while "data" in (data := source.read_required(of=thread_id)):
            try:
                chunk = base64.b64decode(data["data"], validate=True)
            except (TypeError, ValueError) as error:
                raise source.error(f"not base64: {error}") from error
            digest.update(chunk)
            yield name, chunk
        digests[name] = digest.hexdigest()
        if data.get("digest") != digests[name]:
            raise source.error("the bytes before this line were changed")
    if data["end"] != thread_id or data.get("files", digests) != digests:
        raise source.error(f"logs of thread {thread_id!r} are missing, or were changed")


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory to the disk."""
    if os.name == "nt":  # Windows does so itself
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
