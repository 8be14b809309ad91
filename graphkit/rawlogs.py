"""Threads of a checkpoint directory as a file of their logs, byte by byte.

`graphkit.transfer` has the readable form. Nothing is decoded: types need not be known, released histories and what
recovery set aside come along, and so does damage. Only from a directory and into one, under the same ids.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
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

_PART: Final = 48 << 10
_DIRECTORY: Final = re.compile(r"t-[a-z0-9-]{0,40}-[a-z2-7]{24}\Z")
_NAMESPACE: Final = re.compile(r"n-[a-z0-9-]{0,40}-[a-z2-7]{24}\Z")
_FILE: Final = re.compile(r"(n-[a-z0-9-]{0,40}-[a-z2-7]{24}/)?(log|v\d{6,}\.log|(torn|damaged)-[a-z0-9-]+\.bin)\Z")
"""The files of a thread that hold something; nothing else is taken, nor let in: names come from a file of anybody's."""

Progress = Callable[[int, int, str], object]
"""Is called after each thread with how many are done, how many there are (0 if nobody knows), and its id."""


def export_logs(
    saver: BaseCheckpointSaver, threads: Sequence[str] | None = None, *, progress: Progress = lambda *_: None
) -> Iterator[str]:
    """The lines of a file with the logs of these threads, or of all (None).

    May run beside a writer: a log only grows, so what is taken is the thread as it was.

    Raises:
        CheckpointerConfigurationError: the saver keeps no files.
        CheckpointNotFoundError: there is no such thread.
        CheckpointFormatError: a link or something else stands in place of a log or of a directory.
    """
    root = _root_of(saver)
    chosen = saver.threads(released=True) if threads is None else threads
    yield _line(graphkit="logs", format=FORMAT)
    for done, thread_id in enumerate(chosen, 1):
        directory = _directory_of(saver, thread_id)
        yield _line(thread=thread_id, directory=directory)
        for name in _files_below(root / directory):
            yield from _file_lines(root / directory / name, name)
        yield _line(end=thread_id)
        progress(done, len(chosen), thread_id)


def _root_of(saver: Any) -> Path:
    if not isinstance(saver, HasBaseDirectory) or not isinstance(saver, SupportsVerify):
        raise CheckpointerConfigurationError(f"{type(saver).__name__} has no logs; use the readable form")
    return Path(saver.base_directory)


def _directory_of(saver: Any, thread_id: str) -> str:
    found = [one.directory for one in saver.verify(thread_id).threads if one.files]
    if not found:
        raise CheckpointNotFoundError(thread_id, hint="see threads()")
    return str(found[0])


def _directory_name(thread_id: str) -> str:
    """The name of a thread's directory, as docs/format.md specifies it."""
    slug = re.sub(r"[^a-z0-9]+", "-", thread_id.lower())[:40]
    digest = blake2b(thread_id.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return f"t-{slug}-{base64.b32encode(digest).decode('ascii').lower()}"


def _check_directory(path: Path) -> None:
    """Refuse a link, or anything else but a directory: no operation leaves the store through it."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        raise CheckpointFormatError(str(path), "it is a symbolic link or a file where a directory should be")


def _check_file(path: Path) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise CheckpointFormatError(str(path), "it is a symbolic link or no file at all where a log should be")


def _files_below(directory: Path) -> list[str]:
    _check_directory(directory)
    names = [path.name for path in directory.iterdir()]
    for inner in [name for name in names if _NAMESPACE.match(name)]:
        _check_directory(directory / inner)
        names += [f"{inner}/{path.name}" for path in (directory / inner).iterdir()]
    return sorted(name for name in names if _FILE.match(name))


def _open(path: Path, flags: int) -> int:
    """Open a file, neither through a link nor waiting for the other end of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)


def _file_lines(path: Path, name: str) -> Iterator[str]:
    _check_file(path)
    digest, left = blake2b(digest_size=16), path.stat().st_size
    yield _line(file=name)
    with open(_open(path, os.O_RDONLY), "rb") as file:
        while left and (part := file.read(min(_PART, left))):
            digest.update(part)
            left -= len(part)
            yield _line(data=base64.b64encode(part).decode())
    yield _line(digest=digest.hexdigest())


def _line(**data: Any) -> str:
    return json.dumps(data) + "\n"


def import_logs(
    saver: BaseCheckpointSaver, lines: Iterable[str], *, progress: Progress = lambda *_: None
) -> Sequence[str]:
    """Store the logs of a file, and verify each thread; returns the ids.

    Done again after it was cut short, it goes on: files that are there already, with the same bytes, are passed over.

    Raises:
        CheckpointConflictError: a thread holds something else already. Those before it are stored.
        CheckpointFormatError: this is no such file, it is damaged, cut short, or of a newer version; or a link stands
            in the way, which is not followed.
        CheckpointCorruptionError: a log was damaged when it was exported. It is stored; `repair` mends it.
        CheckpointerConfigurationError: the saver keeps no files.
        CheckpointStorageError: the file system refused. Done again, the import goes on.
        ThreadBusyError: a run holds a thread.
    """
    root, source = _root_of(saver), _Lines(lines)
    source.check_head()
    done: list[str] = []
    while (data := source.next()) is not None:
        thread_id, directory = data.get("thread"), data.get("directory")
        if not isinstance(thread_id, str) or not isinstance(directory, str) or not _DIRECTORY.match(directory):
            raise source.wrong("a thread is expected here")
        if directory != _directory_name(thread_id):
            raise source.wrong(f"{directory!r} is not the directory of thread {thread_id!r}")
        with saver.run_lock(RunnableConfig(thread_id)):  # makes the directory
            try:
                _take_files(source, root / directory, thread_id)
                _sync(root)
            except OSError as error:
                path = os.fsdecode(error.filename or root / directory)
                raise CheckpointStorageError(path, "import into", error) from error
        _check(saver, thread_id, root)
        done.append(thread_id)
        progress(len(done), 0, thread_id)
    return done


def _take_files(source: _Lines, directory: Path, thread_id: str) -> None:
    _check_directory(directory)
    while "end" not in (data := source.needed()):
        name = data.get("file")
        if not isinstance(name, str) or not _FILE.match(name):
            raise source.wrong("a log is expected here")
        path = directory / name
        with suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        _check_directory(path.parent)
        beside = path.with_name(f"tmp-{path.name}")
        _write(source, beside)
        if os.path.lexists(path):
            _check_file(path)
            if path.read_bytes() != beside.read_bytes():
                beside.unlink()
                raise CheckpointConflictError(
                    thread_id, "it holds something else already; delete it before, or import elsewhere"
                )
        beside.replace(path)
        _sync(path.parent)
    # An import that died may have made a directory of a namespace, and not brought its name to the disk.
    _sync(directory)


def _write(source: _Lines, path: Path) -> None:
    path.unlink(missing_ok=True)  # what an import that died has left, or a link: never written through
    digest = blake2b(digest_size=16)
    with open(_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        while "data" in (data := source.needed()):
            part = source.bytes_of(data["data"])
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    if data.get("digest") != digest.hexdigest():
        path.unlink()
        raise source.wrong("the bytes before it were changed")


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(saver: Any, thread_id: str, root: Path) -> None:
    for problem in saver.verify(thread_id).problems:
        if problem.state != "torn":
            raise CheckpointCorruptionError(str(root / problem.path), problem.offset, problem.reason)


@final
class _Lines:
    """The lines of the file, with the number of the last one."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines, self._number = iter(lines), 0

    def next(self) -> dict[str, Any] | None:
        """The next one; None at the end."""
        line = next(self._lines, None)
        if line is None:
            return None
        self._number += 1
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"no JSON: {error}") from error
        if not isinstance(data, dict):
            raise self.wrong("no object")
        return data

    def needed(self) -> dict[str, Any]:
        """The next one, which must be there."""
        data = self.next()
        if data is None:
            raise self.wrong("the file is cut short")
        return data

    def check_head(self) -> None:
        """See that this is such a file."""
        head = self.next() or {}
        if head.get("graphkit") != "logs":
            raise self.wrong("this is no export of logs")
        version = head.get("format")
        if type(version) is not int:
            raise self.wrong("it names no format")
        if version > FORMAT:
            raise self.wrong(f"it is of format {version}, this graphkit reads up to {FORMAT}")

    def bytes_of(self, text: Any) -> bytes:
        """What stands in a line as text."""
        try:
            return base64.b64decode(text, validate=True)
        except (TypeError, ValueError) as error:
            raise self.wrong(f"no bytes: {error}") from error

    def wrong(self, reason: str) -> CheckpointFormatError:
        """An error that names the line."""
        return CheckpointFormatError("the file", f"line {self._number}: {reason}")
