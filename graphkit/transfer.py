"""Exports threads from any saver to a file, and imports them into any other saver.

    with open("backup.jsonl", "w", encoding="utf-8") as file:
        file.writelines(export_threads(saver))
    with open("backup.jsonl", encoding="utf-8") as file:
        import_threads(FileSystemSaver("elsewhere"), file)

The file has one JSON object per line, which people can read: a head, then for each thread its
checkpoints, oldest first, with what changed in the state since the one before, with their pending
writes and with their tags. A value that JSON cannot hold exactly is packed as in a checkpoint
(`{"$packed": ...}`), so that every type is preserved. docs/cli.md describes the lines.
`graphkit.rawlogs` transfers the log files themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, NamedTuple, final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.checkpoint_info import public_metadata
from graphkit._saver.versions import HasVersions
from graphkit._saver.writes import well_formed_writes
from graphkit._values.json_values import JsonValueCodec, PackedValue, apply_change, diff_states, format_line
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointNotFoundError,
)

__all__ = ["FORMAT", "Imported", "export_threads", "import_threads"]

FORMAT: Final = 1
"""The version of the lines; a reader refuses a greater one."""

Progress = Callable[[int, int, str], object]
"""Called after each thread with how many are done, how many there are (0 if unknown), and its
id."""


# Export


def export_threads(
    saver: BaseCheckpointSaver,
    threads: Sequence[str] | None = None,
    *,
    types: Sequence[type] = (),
    versions: bool = True,
    plaintext: bool = False,
    progress: Progress = lambda *_: None,
) -> Iterator[str]:
    """Yield the lines of a file with these threads, or with all threads (None).

    Holds one checkpoint at a time. May run while another process writes: each history is exported
    as it is when the export reaches it.

    Args:
        saver: where the threads are.
        threads: their ids.
        types: the application types that states hold.
        versions: also export released histories, from a saver that keeps them. If a thread has no
            checkpoints now, the export does not find the namespaces of embedded graphs;
            `graphkit.rawlogs` exports everything.
        plaintext: export from a saver that seals its records, too. The lines are not encrypted;
            those of `graphkit.rawlogs` are sealed as the store is.
        progress: called after each thread.

    Raises:
        CheckpointerConfigurationError: the saver seals its records, and `plaintext` is False.
        CheckpointNotFoundError: there is no such thread.
        CheckpointSerializationError: a value has a type that is not in `types`.
    """
    if saver.seals_records and not plaintext:
        raise CheckpointerConfigurationError(
            "the store is sealed, and this form of export is not: export its logs (graphkit.rawlogs, "
            "`graphkit export --raw`), or ask for plaintext (plaintext=True, --plaintext)"
        )
    chosen = saver.threads(released=versions) if threads is None else threads
    yield format_line({"graphkit": "threads", "format": FORMAT})
    for done, thread_id in enumerate(chosen, 1):
        yield format_line({"thread": thread_id})
        yield from _ThreadExporter(saver, thread_id, JsonValueCodec(types)).lines(versions=versions)
        progress(done, len(chosen), thread_id)


@final
class _ThreadExporter:
    """Writes the lines of one thread, without its id, so that they are equal in every saver."""

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec) -> None:
        self._saver = saver
        self._thread_id = thread_id
        self._values = values

    def lines(self, *, versions: bool) -> Iterator[str]:
        """Yield the lines, the last of them with a digest of the others.

        Raises:
            CheckpointNotFoundError: the thread has neither checkpoints nor, if wanted, versions.
        """
        namespaces = list(self._saver.namespaces(self._thread_id))
        numbers = self._list_versions() if versions else []
        if not namespaces and not numbers:
            raise CheckpointNotFoundError(self._thread_id, hint="see threads()")
        digest = blake2b(digest_size=16)
        count = 0
        for data in self._records(namespaces, numbers):
            line = format_line(data)
            digest.update(line.encode())
            count += 1
            yield line
        yield format_line({"end": digest.hexdigest(), "lines": count})

    def _list_versions(self) -> list[int]:
        if not isinstance(self._saver, HasVersions):
            return []
        return list(self._saver.versions_by_thread_id(self._thread_id))

    def _records(self, namespaces: Sequence[str], versions: Sequence[int]) -> Iterator[dict[str, Any]]:
        for version in versions:
            yield from self._version_records(version, namespaces)
        for namespace in namespaces:
            yield from self._namespace_records(namespace)

    def _version_records(self, version: int, namespaces: Sequence[str]) -> Iterator[dict[str, Any]]:
        assert isinstance(self._saver, HasVersions)
        for namespace in dict.fromkeys(("", *namespaces)):
            config = RunnableConfig(self._thread_id, checkpoint_ns=namespace)
            tag = self._saver.tag(config, version)
            for record in self._checkpoint_records(namespace, tag.checkpoints):
                yield {"version": version, **record}
        yield {"release": version}

    def _namespace_records(self, namespace: str) -> Iterator[dict[str, Any]]:
        config = RunnableConfig(self._thread_id, checkpoint_ns=namespace)
        checkpoints = self._saver.list(config)
        for record in self._checkpoint_records(namespace, checkpoints):
            address = config.with_check_point_id(record["id"])
            writes = self._encode_writes(address)
            if writes:
                record["writes"] = writes
            tags = self._saver.tags_of(address)
            if tags:
                record["tags"] = list(tags)
            yield record

    def _encode_writes(self, config: RunnableConfig) -> dict[str, Any]:
        writes = well_formed_writes(self._saver.get_writes(config), self._thread_id)
        return {key: self._values.encode(value, key) for key, value in writes.items()}

    def _checkpoint_records(self, namespace: str, newest_first: Sequence[Checkpoint]) -> Iterator[dict[str, Any]]:
        before: dict[str, PackedValue] = {}
        for checkpoint in reversed(newest_first):
            change, before = diff_states(self._values, before, checkpoint.state)
            yield {
                "ns": namespace,
                "id": checkpoint.id,
                "node": checkpoint.node_id,
                "next": checkpoint.next_node_id,
                "parent": checkpoint.parent_id,
                "created": checkpoint.created_at.isoformat(),
                "metadata": self._values.encode(dict(public_metadata(checkpoint.metadata)), "metadata"),
                "state": change,
            }


# Import


class Imported(NamedTuple):
    """The result of an import."""

    threads: Sequence[str]
    """The imported threads; the import has read each of them back and compared it with the file."""
    checkpoints: int
    """How many checkpoints the import stored."""
    skipped: int
    """How many checkpoints were stored already, by an earlier import or one that was cut short."""


def import_threads(
    saver: BaseCheckpointSaver,
    lines: Iterable[str],
    *,
    types: Sequence[type] = (),
    rename: Callable[[str], str] = str,
    progress: Progress = lambda *_: None,
) -> Imported:
    """Store the threads of a file, read each one back, and compare it with the file.

    If an import was cut short, the next import of the same file continues it.

    Args:
        saver: where to store the threads.
        lines: the lines of the file.
        types: the application types that states hold.
        rename: returns the new id for the id of a thread in the file.
        progress: called after each thread.

    Raises:
        CheckpointConflictError: a thread holds other checkpoints, or differs after the import. The
            threads before it are stored, and its own checkpoints up to the difference.
        CheckpointFormatError: the file is not an export, is damaged or cut short, or has a newer
            format.
        CheckpointSerializationError: a value has a type that is not in `types`.
        CheckpointerConfigurationError: the file has versions, and the saver keeps none. Nothing of
            that thread is stored.
    """
    numbered = enumerate(lines, 1)
    _, head = next(numbered, (1, ""))
    _check_head(head)
    saver.register_types(*types)
    imported: list[str] = []
    stored = 0
    skipped = 0
    thread: _ThreadImporter | None = None
    for number, line in numbered:
        data = _parse_line(line, number)
        if thread is None:
            if not isinstance(data.get("thread"), str):
                raise _format_error(f"line {number}: expected a thread")
            thread = _ThreadImporter(saver, rename(data["thread"]), JsonValueCodec(types))
        elif "end" in data:
            thread.finish(data["end"], number)
            imported.append(thread.thread_id)
            stored += thread.stored
            skipped += thread.skipped
            progress(len(imported), 0, thread.thread_id)
            thread = None
        else:
            thread.import_line(data, line, number)
    if thread is not None:
        raise _format_error(f"it is cut short within thread {thread.thread_id!r}")
    return Imported(imported, stored, skipped)


def _format_error(reason: str) -> CheckpointFormatError:
    return CheckpointFormatError("the file", reason)


def _check_head(line: str) -> None:
    head = _parse_line(line, 1)
    if head.get("graphkit") != "threads":
        raise _format_error("it is not an export of graphkit")
    version = head.get("format")
    if type(version) is not int:
        raise _format_error("line 1 has no format number")
    if version > FORMAT:
        raise _format_error(f"it has format {version}; this graphkit reads up to {FORMAT}")


def _parse_line(line: str, number: int) -> dict[str, Any]:
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _format_error(f"line {number} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise _format_error(f"line {number} is not an object")
    return data


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _require_text_or_none(value: Any) -> str | None:
    return None if value is None else _require_text(value)


class _ImportedCheckpoint(NamedTuple):
    """A line of the file: a checkpoint with its pending writes and its tags."""

    namespace: str
    checkpoint: Checkpoint
    writes: Mapping[str, Any]
    tags: Sequence[str]


@final
class _ThreadImporter:
    """Stores the lines of one thread."""

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec) -> None:
        self.thread_id = thread_id
        self.stored = 0
        self.skipped = 0
        self._saver = saver
        self._values = values
        self._digest = blake2b(digest_size=16)
        self._states: dict[str, dict[str, Any]] = {}
        """The state after the last line, by namespace."""
        self._unmatched: dict[str, list[str]] = {}
        """The checkpoints that were stored before this import and that no line has matched yet.

        By namespace; oldest first.
        """
        self._stored_versions: list[int] = []
        """The versions that were stored before this import."""
        if isinstance(saver, HasVersions):
            self._stored_versions = list(saver.versions_by_thread_id(thread_id))
        self._has_versions = False
        """Whether the file has a version of this thread."""

    def import_line(self, data: dict[str, Any], line: str, number: int) -> None:
        """Store the content of a line, unless it is stored already."""
        self._digest.update(f"{line.rstrip()}\n".encode())
        try:
            if "release" in data:
                self._release(data["release"])
                return
            record = self._parse(data)
        except CheckpointerError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise _format_error(f"line {number} is malformed: {error}") from error
        if "version" in data and not isinstance(self._saver, HasVersions):
            raise CheckpointerConfigurationError(
                f"{type(self._saver).__name__} keeps no versions; export without them, or import elsewhere"
            )
        if data.get("version") in self._stored_versions:
            self.skipped += 1  # `finish` compares it
            return
        self._store(record)

    def _store(self, record: _ImportedCheckpoint) -> None:
        config = RunnableConfig(self.thread_id, checkpoint_ns=record.namespace)
        self._put(record.checkpoint, config)
        address = config.with_check_point_id(record.checkpoint.id)
        if record.writes:
            self._saver.put_writes(address, record.writes)
        if record.tags:
            self._saver.add_tags(address, *record.tags)

    def _parse(self, data: dict[str, Any]) -> _ImportedCheckpoint:
        decode = self._values.decode
        namespace = _require_text(data["ns"])
        before = self._states.get(namespace, {})
        state = apply_change(self._values, before, data["state"])
        self._states[namespace] = state
        checkpoint = Checkpoint(
            id=_require_text(data["id"]),
            node_id=_require_text(data["node"]),
            next_node_id=_require_text_or_none(data["next"]),
            parent_id=_require_text_or_none(data["parent"]),
            created_at=datetime.fromisoformat(data["created"]),
            metadata=decode(data["metadata"]),
            state=state,
        )
        writes = data.get("writes", {})
        tags = data.get("tags", ())
        return _ImportedCheckpoint(
            namespace=namespace,
            checkpoint=checkpoint,
            writes={key: decode(value) for key, value in writes.items()},
            tags=[_require_text(tag) for tag in tags],
        )

    def _put(self, checkpoint: Checkpoint, config: RunnableConfig) -> None:
        namespace = config.checkpoint_ns
        if namespace not in self._unmatched:
            self._unmatched[namespace] = [info.id for info in reversed(self._saver.history(config))]
        unmatched = self._unmatched[namespace]
        if not unmatched:
            self._saver.put(config, checkpoint)
            self.stored += 1
        elif unmatched.pop(0) == checkpoint.id:
            self.skipped += 1
        else:
            raise CheckpointConflictError(
                self.thread_id, "it already holds other checkpoints; import it under another id"
            )

    def _release(self, version: Any) -> None:
        if type(version) is not int:
            raise TypeError(f"{version!r} is not a version")
        if version not in self._stored_versions:
            self._saver.release(RunnableConfig(self.thread_id))
        self._has_versions = True
        self._states = {}
        self._unmatched = {}

    def finish(self, digest: str, number: int) -> None:
        """Check that the lines were complete, and that the stored thread equals them.

        Raises:
            CheckpointFormatError: lines are missing or were changed.
            CheckpointConflictError: the stored thread differs from the file.
        """
        if self._digest.hexdigest() != digest:
            raise _format_error(f"line {number}: the lines of thread {self.thread_id!r} were changed")
        exporter = _ThreadExporter(self._saver, self.thread_id, self._values)
        *_, end = exporter.lines(versions=self._has_versions)
        if json.loads(end)["end"] != digest:
            raise CheckpointConflictError(self.thread_id, "the stored thread differs from the file")
