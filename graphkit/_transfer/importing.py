"""ThreadImporter: stores the lines of one thread."""

from __future__ import annotations

import json
from datetime import datetime
from hashlib import blake2b
from typing import Any, final

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions
from graphkit._saver.incomplete import (
    IncomingThread,
    StoredCheckpoint,
    is_placeholder,
    is_thread_incomplete,
)
from graphkit._transfer.lines import LineReader
from graphkit._transfer.thread_reader import ThreadReader
from graphkit._values.json_values import JsonValueCodec, apply_change
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointerConfigurationError,
    CheckpointerError,
)


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _require_text_or_none(value: Any) -> str | None:
    return None if value is None else _require_text(value)


@final
class ThreadImporter:
    """Stores the lines of one thread, whose run lock the caller holds. The thread is incomplete meanwhile."""

    def __init__(self, saver: BaseCheckpointSaver, source_id: str, thread_id: str, values: JsonValueCodec) -> None:
        """Prepare the import.

        Args:
            saver: where to store the thread.
            source_id: the id of the thread in the file.
            thread_id: its id in the store.
            values: decodes the values of the file.
        """
        self.thread_id = thread_id
        self.stored = 0
        self.skipped = 0
        self._saver = saver
        self._values = values
        self._digest = blake2b(digest_size=16)
        self._incoming = IncomingThread(saver, thread_id, source_id)
        self._was_incomplete = is_thread_incomplete(saver, thread_id)
        """Whether an earlier import was cut short, and this one has not continued it yet."""
        self._namespaces: dict[str, None] = {}
        """The namespaces of the file, in its order. Earlier versions did not sort them."""
        self._first_namespace: str | None = None
        """The namespace of the first line since the last release; the root, if the file has it."""
        self._is_begun = False
        """Whether the thread is marked as incomplete since the last release."""
        self._parts: list[tuple[RunnableConfig, StoredCheckpoint]] = []
        """Pending writes and tags that checkpoints lack which were stored before this import."""
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

    def import_lines(self, source: LineReader) -> None:
        """Store the next lines, up to the one that ends the thread.

        Raises:
            CheckpointFormatError: lines are missing, were changed or are malformed.
            CheckpointConflictError: the stored thread differs from the file.
        """
        while "end" not in (data := source.read_required(of=self.thread_id)):
            self._digest.update(f"{source.text.rstrip()}\n".encode())
            self._import_line(data, source)
        self._finish(data["end"], source)

    def _import_line(self, data: dict[str, Any], source: LineReader) -> None:
        """Store the content of a line, unless it is stored already."""
        try:
            if "release" in data:
                self._release(data["release"])
                return
            namespace, imported = self._parse(data)
        except CheckpointerError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise source.error(f"malformed: {error}") from error
        if "version" in data and not isinstance(self._saver, HasVersions):
            raise CheckpointerConfigurationError(
                f"{type(self._saver).__name__} keeps no versions; export without them, or import elsewhere"
            )
        self._namespaces[namespace] = None
        if data.get("version") in self._stored_versions:
            self.skipped += 1  # `_finish` compares it
            return
        self._store(namespace, imported)

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
                self.thread_id, "it already holds other checkpoints; import it under another id, or delete it first"
            )
        self.skipped += 1
        self._note_missing_parts(config.with_check_point_id(imported.checkpoint.id), imported)

    def _begin(self, checkpoint: Checkpoint) -> None:
        """Mark the thread as incomplete, unless it is; then store what earlier checkpoints lack."""
        if not self._is_begun:
            assert self._first_namespace is not None
            self._incoming.begin([self._first_namespace], checkpoint.state, checkpoint.metadata)
            self._is_begun = True
            self._was_incomplete = False
        self._put_parts()

    def _note_missing_parts(self, address: RunnableConfig, imported: StoredCheckpoint) -> None:
        writes: dict[str, Any] = {}
        tags: list[str] = []
        if imported.writes:
            stored = self._saver.get_writes(address)
            writes = {key: value for key, value in imported.writes.items() if key not in stored or stored[key] != value}
        if imported.tags:
            stored_tags = self._saver.tags_of(address)
            tags = [tag for tag in imported.tags if tag not in stored_tags]
        if writes or tags:
            missing = imported._replace(writes=writes, tags=tags)
            self._parts.append((address, missing))

    def _put_parts(self) -> None:
        for address, missing in self._parts:
            missing.put_parts(self._saver, address)
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
            next_node_id=_require_text_or_none(data["next"]),
            parent_id=_require_text_or_none(data["parent"]),
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
            self._put_parts()
            self._incoming.release(version)
        self._has_versions = True
        self._first_namespace = None
        self._is_begun = False
        self._states = {}
        self._unmatched = {}

    def _finish(self, digest: str, source: LineReader) -> None:
        """Check that the lines were complete, and that the stored thread equals them; then it is complete."""
        # The lines are stored as they come, before their digest is known, since a file may be larger than the memory.
        # The mark of an incomplete thread stays until the digest, and the stored thread, have proved right.
        if self._digest.hexdigest() != digest:
            raise source.error(f"the lines of thread {self.thread_id!r} were changed")
        self._put_parts()
        self._incoming.settle()
        reader = ThreadReader(self._saver, self.thread_id, self._values)
        order = [*self._namespaces]
        *_, last_line = reader.lines(versions=self._has_versions, order=order)
        end = json.loads(last_line)
        if end["end"] != digest:
            raise CheckpointConflictError(self.thread_id, "the stored thread differs from the file")
        self._incoming.finish()
