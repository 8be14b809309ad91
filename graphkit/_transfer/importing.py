"""ThreadImporter: stores the lines of one thread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple, final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit._transfer.exporting import ThreadExporter
from graphkit._transfer.versions import release_as
from graphkit._values.json_values import JsonValueCodec, apply_change
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointFormatError,
)


def format_error(reason: str) -> CheckpointFormatError:
    """Return the error about a file that cannot be imported."""
    return CheckpointFormatError("the file", reason)


def parse_line(line: str, number: int) -> dict[str, Any]:
    """Return the object of a line.

    Raises:
        CheckpointFormatError: the line is not an object of JSON.
    """
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise format_error(f"line {number} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise format_error(f"line {number} is not an object")
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
class ThreadImporter:
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
            raise format_error(f"line {number} is malformed: {error}") from error
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
            release_as(self._saver, self.thread_id, version)
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
            raise format_error(f"line {number}: the lines of thread {self.thread_id!r} were changed")
        exporter = ThreadExporter(self._saver, self.thread_id, self._values)
        *_, end = exporter.lines(versions=self._has_versions)
        if json.loads(end)["end"] != digest:
            raise CheckpointConflictError(self.thread_id, "the stored thread differs from the file")
