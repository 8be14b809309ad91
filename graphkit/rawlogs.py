"""Exports the logs of threads to a file, unchanged, and imports them into another directory.

`graphkit.transfer` has the readable form. Nothing is decoded here: types need not be registered,
sealed logs stay sealed and need no key, and released histories, salvaged files and damage are
exported, too. Both stores must be directories, and a thread keeps its id.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, final

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory, SupportsVerify
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)

__all__ = ["FORMAT", "export_logs", "import_logs"]

FORMAT: Final = 1
"""The version of the lines; a reader refuses a greater one."""

_CHUNK: Final = 48 << 10
"""How many bytes of a log one line holds."""
_DIRECTORY: Final = re.compile(r"t-[a-z0-9-]{0,40}-[a-z2-7]{24}\Z")
_NAMESPACE: Final = re.compile(r"n-[a-z0-9-]{0,40}-[a-z2-7]{24}\Z")
_ROOT_LOG: Final = "log"
_FILE: Final = re.compile(r"(n-[a-z0-9-]{0,40}-[a-z2-7]{24}/)?(log|v\d{6,}\.log|(torn|damaged)-[a-z0-9-]+\.bin)\Z")
"""The files of a thread that hold data. An import creates no other file: the names come from an
untrusted file."""

Progress = Callable[[int, int, str], object]
"""Called after each thread with how many are done, how many there are (0 if unknown), and its
id."""


def export_logs(
    saver: BaseCheckpointSaver, threads: Sequence[str] | None = None, *, progress: Progress = lambda *_: None
) -> Iterator[str]:
    """Yield the lines of a file with the logs of these threads, or of all threads (None).

    May run while another process writes: a log only grows, so the export has the thread as it was.

    Raises:
        CheckpointerConfigurationError: the saver keeps no files.
        CheckpointNotFoundError: there is no such thread.
        CheckpointFormatError: there is a link, or something else that is not a file or directory,
            in place of a log or a directory.
    """
    root = _root_of(saver)
    chosen = saver.threads(released=True) if threads is None else threads
    yield _format_line(graphkit="logs", format=FORMAT)
    for done, thread_id in enumerate(chosen, 1):
        name = _find_directory(saver, thread_id)
        directory = root / name
        yield _format_line(thread=thread_id, directory=name)
        for file in _list_files(directory):
            yield from _file_lines(directory / file, file)
        yield _format_line(end=thread_id)
        progress(done, len(chosen), thread_id)


def _root_of(saver: Any) -> Path:
    if not isinstance(saver, HasBaseDirectory) or not isinstance(saver, SupportsVerify):
        raise CheckpointerConfigurationError(f"{type(saver).__name__} has no logs; use the readable form")
    return Path(saver.base_directory)


def _find_directory(saver: Any, thread_id: str) -> str:
    for report in saver.verify(thread_id).threads:
        if report.files:
            return str(report.directory)
    raise CheckpointNotFoundError(thread_id, hint="see threads()")


def _directory_name(thread_id: str) -> str:
    """Return the name of a thread's directory, as docs/format.md specifies it."""
    slug = re.sub(r"[^a-z0-9]+", "-", thread_id.lower())[:40]
    digest = blake2b(thread_id.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return f"t-{slug}-{base64.b32encode(digest).decode('ascii').lower()}"


def _check_directory(path: Path) -> None:
    """Refuse a link or a file in place of a directory: no operation may leave the store."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise CheckpointFormatError(str(path), "it is a symbolic link or a file where a directory should be")


def _check_file(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise CheckpointFormatError(str(path), "it is a symbolic link or a special file where a log should be")


def _list_files(directory: Path) -> list[str]:
    """Return the files of a thread that hold data, relative to its directory, sorted."""
    _check_directory(directory)
    names = [path.name for path in directory.iterdir()]
    namespaces = [name for name in names if _NAMESPACE.match(name)]
    for namespace in namespaces:
        _check_directory(directory / namespace)
        names += [f"{namespace}/{path.name}" for path in (directory / namespace).iterdir()]
    return sorted(name for name in names if _FILE.match(name))


def _open(path: Path, flags: int) -> int:
    """Open a file. Follows no link and does not wait for the other end of a FIFO."""
    no_follow = getattr(os, "O_NOFOLLOW", 0)
    no_wait = getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags | no_follow | no_wait, 0o600)


def _file_lines(path: Path, name: str) -> Iterator[str]:
    _check_file(path)
    digest = blake2b(digest_size=16)
    remaining = path.stat().st_size  # a writer may append while the export reads
    yield _format_line(file=name)
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        while remaining:
            chunk = file.read(min(_CHUNK, remaining))
            if not chunk:
                break
            digest.update(chunk)
            remaining -= len(chunk)
            yield _format_line(data=base64.b64encode(chunk).decode())
    yield _format_line(digest=digest.hexdigest())


def _format_line(**data: Any) -> str:
    return json.dumps(data) + "\n"


def import_logs(
    saver: BaseCheckpointSaver, lines: Iterable[str], *, progress: Progress = lambda *_: None
) -> Sequence[str]:
    """Store the logs of a file and verify each thread; return the ids.

    If an import was cut short, the next import of the same file continues it: files that are stored
    already, with the same bytes, are skipped.

    Raises:
        CheckpointConflictError: a thread holds other data. The threads before it are stored.
        CheckpointFormatError: the file is not an export, is damaged or cut short, or has a newer
            format; or there is a link where a file or directory should be, which the import does
            not follow.
        CheckpointCorruptionError: a log was damaged when it was exported. It is stored; `repair`
            it.
        CheckpointerConfigurationError: the saver keeps no files.
        CheckpointStorageError: the file system refused. The next import of the file continues.
        ThreadBusyError: a run holds a thread.
    """
    root = _root_of(saver)
    source = _LineReader(lines)
    source.check_head()
    done: list[str] = []
    while (data := source.read()) is not None:
        thread_id = data.get("thread")
        name = data.get("directory")
        if not isinstance(thread_id, str) or not isinstance(name, str) or not _DIRECTORY.match(name):
            raise source.error("expected a thread")
        if name != _directory_name(thread_id):
            raise source.error(f"{name!r} is not the directory of thread {thread_id!r}")
        directory = root / name
        config = RunnableConfig(thread_id)
        with saver.run_lock(config):  # creates the directory
            try:
                _import_files(source, directory, thread_id)
                _sync(root)
            except OSError as error:
                path = os.fsdecode(error.filename or directory)
                raise CheckpointStorageError(path, "import into", error) from error
        _verify(saver, thread_id, root)
        done.append(thread_id)
        progress(len(done), 0, thread_id)
    return done


def _import_files(source: _LineReader, directory: Path, thread_id: str) -> None:
    _check_directory(directory)
    with ExitStack() as stack:
        root_log: tuple[Path, Path] | None = None
        while "end" not in (data := source.read_required()):
            name = data.get("file")
            if not isinstance(name, str) or not _FILE.match(name):
                raise source.error("expected a log")
            path = directory / name
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700)
            _check_directory(path.parent)
            temporary = path.with_name(f"tmp-{path.name}")
            _write_file(source, temporary)
            if name == _ROOT_LOG and not os.path.lexists(path):
                root_log = temporary, path
                stack.callback(temporary.unlink, missing_ok=True)
            else:
                _move_log(temporary, path, thread_id)
        # Last: without the histories of its nested graphs, a run would repeat what they have done.
        if root_log is not None:
            _move_log(*root_log, thread_id)
    # An import that died may have created the directory of a namespace without syncing its name.
    _sync(directory)


def _move_log(temporary: Path, path: Path, thread_id: str) -> None:
    """Move a log to its place, unless other data are there."""
    if os.path.lexists(path):
        _check_file(path)
        if path.read_bytes() != temporary.read_bytes():
            temporary.unlink()
            raise CheckpointConflictError(
                thread_id, "it already holds other data; delete it first, or import elsewhere"
            )
    temporary.replace(path)
    _sync(path.parent)


def _write_file(source: _LineReader, path: Path) -> None:
    """Write the next file of the source; leave no file if its bytes do not match their digest."""
    path.unlink(missing_ok=True)  # left by an import that died, or a link, which must not be written through
    digest = blake2b(digest_size=16)
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "wb") as file:
        while "data" in (data := source.read_required()):
            chunk = source.decode_bytes(data["data"])
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    if data.get("digest") != digest.hexdigest():
        path.unlink()
        raise source.error("the bytes before this line were changed")


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _verify(saver: Any, thread_id: str, root: Path) -> None:
    for problem in saver.verify(thread_id).problems:
        # Without the keys, the checksums of a sealed log were checked.
        if problem.state not in {"torn", "sealed"}:
            raise CheckpointCorruptionError(str(root / problem.path), problem.offset, problem.reason)


@final
class _LineReader:
    """Reads the lines of the file, and counts them for error messages."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._number = 0

    def read(self) -> dict[str, Any] | None:
        """Return the next line; None at the end of the file."""
        line = next(self._lines, None)
        if line is None:
            return None
        self._number += 1
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.error(f"not JSON: {error}") from error
        if not isinstance(data, dict):
            raise self.error("not an object")
        return data

    def read_required(self) -> dict[str, Any]:
        """Return the next line.

        Raises:
            CheckpointFormatError: the file ends here.
        """
        data = self.read()
        if data is None:
            raise self.error("the file is cut short")
        return data

    def check_head(self) -> None:
        """Check that the first line names an export of logs, in a format that this module reads."""
        head = self.read() or {}
        if head.get("graphkit") != "logs":
            raise self.error("this is not an export of logs")
        version = head.get("format")
        if type(version) is not int:
            raise self.error("it has no format number")
        if version > FORMAT:
            raise self.error(f"it has format {version}; this graphkit reads up to {FORMAT}")

    def decode_bytes(self, text: Any) -> bytes:
        """Return the bytes that a line holds in base64."""
        try:
            return base64.b64decode(text, validate=True)
        except (TypeError, ValueError) as error:
            raise self.error(f"not base64: {error}") from error

    def error(self, reason: str) -> CheckpointFormatError:
        """Return an error that names the line."""
        return CheckpointFormatError("the file", f"line {self._number}: {reason}")
