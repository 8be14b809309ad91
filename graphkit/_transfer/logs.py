"""Exports the logs of threads to a file, unchanged, and imports them into another directory.

Nothing is decoded here: types need not be registered, sealed logs stay sealed and need no key, and
released histories, salvaged files and damage are exported, too. Both stores must be directories,
and a thread keeps its id.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasThreadDirectories
from graphkit._transfer.lines import LineReader
from graphkit._values.json_values import format_line
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointStorageError,
)

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
    """
    directory = find_directory(saver, thread_id)
    files = _list_files(directory) if os.path.lexists(directory) else ()
    if not files:
        raise CheckpointNotFoundError(thread_id, hint="see threads()")
    yield format_line({"thread": thread_id, "directory": directory.name})
    for name in files:
        path = directory / name
        _check_file(path)
        digest = blake2b(digest_size=16)
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
        yield format_line({"digest": digest.hexdigest()})
    yield format_line({"end": thread_id})


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
            _sync(root)
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
    with ExitStack() as stack:
        root_log: tuple[Path, Path] | None = None
        while "end" not in (data := source.read_required(of=thread_id)):
            name = data.get("file")
            if not isinstance(name, str) or not _FILE.match(name):
                raise source.error("expected a log")
            path = directory / name
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700)
            _check_directory(path.parent)
            temporary = path.with_name(f"tmp-{path.name}")
            _write_file(source, temporary, thread_id)
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


def _write_file(source: LineReader, path: Path, thread_id: str) -> None:
    """Write the next file of the source; leave no file if its bytes do not match their digest."""
    path.unlink(missing_ok=True)  # left by an import that died, or a link, which must not be written through
    digest = blake2b(digest_size=16)
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "wb") as file:
        while "data" in (data := source.read_required(of=thread_id)):
            try:
                chunk = base64.b64decode(data["data"], validate=True)
            except (TypeError, ValueError) as error:
                raise source.error(f"not base64: {error}") from error
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
