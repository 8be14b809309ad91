"""Threads as a file: out of any saver and into any other, nothing lost on the way.

    with open("backup.jsonl", "w", encoding="utf-8") as file:
        file.writelines(export_threads(saver))
    with open("backup.jsonl", encoding="utf-8") as file:
        import_threads(FileSystemSaver("elsewhere"), file)

The file has a JSON object per line, which people can read: a head, then of each thread its checkpoints, oldest first,
with what changed in the state since the one before, what is recorded beside them, and their tags. JSON's own types are
written as they are; what it has no form for is packed as checkpoints are (`{"$packed": ...}`), so every type comes
back. docs/cli.md has the lines. `graphkit.rawlogs` moves the log files themselves.
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
from graphkit._values.json_values import JsonValueCodec, Packed, change_between, changed, line_of
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
"""Is called after each thread with how many are done, how many there are (0 if nobody knows), and its id."""


# Out


def export_threads(
    saver: BaseCheckpointSaver,
    threads: Sequence[str] | None = None,
    *,
    types: Sequence[type] = (),
    versions: bool = True,
    progress: Progress = lambda *_: None,
) -> Iterator[str]:
    """The lines of a file with these threads, or all of them (None). Holds one checkpoint at a time.

    May run beside a writer: each history is as it was when its turn came.

    Args:
        saver: where they are.
        threads: their ids.
        types: the application types that states hold.
        versions: whether to take released histories too, of savers that keep them. Of those without checkpoints of
            their own today, namespaces of embedded graphs are not found; `graphkit.rawlogs` takes everything.
        progress: called after each thread.

    Raises:
        CheckpointNotFoundError: there is no such thread.
        CheckpointSerializationError: a value is of a type that is not in `types`.
    """
    chosen = saver.threads(released=versions) if threads is None else threads
    yield line_of({"graphkit": "threads", "format": FORMAT})
    for done, thread_id in enumerate(chosen, 1):
        yield line_of({"thread": thread_id})
        yield from _thread_lines(saver, thread_id, JsonValueCodec(types), versions=versions)
        progress(done, len(chosen), thread_id)


def _thread_lines(
    saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec, *, versions: bool
) -> Iterator[str]:
    """The lines of one thread, without its id: the same wherever it is."""
    digest, count, spaces = blake2b(digest_size=16), 0, list(saver.namespaces(thread_id))
    kept = list(saver.versions_by_thread_id(thread_id)) if versions and isinstance(saver, HasVersions) else []
    if not spaces and not kept:
        raise CheckpointNotFoundError(thread_id, hint="see threads()")
    for line in map(line_of, _all_lines(saver, thread_id, values, spaces, kept)):
        digest.update(line.encode())
        count += 1
        yield line
    yield line_of({"end": digest.hexdigest(), "lines": count})


def _all_lines(
    saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec, spaces: Sequence[str], versions: Sequence[int]
) -> Iterator[dict[str, Any]]:
    for version in versions:
        assert isinstance(saver, HasVersions)
        for namespace in dict.fromkeys(("", *spaces)):
            tag = saver.tag(RunnableConfig(thread_id, checkpoint_ns=namespace), version)
            for line in _history_lines(values, namespace, tag.checkpoints, lambda _: ({}, ())):
                yield {"version": version, **line}
        yield {"release": version}
    for namespace in spaces:
        at = RunnableConfig(thread_id, checkpoint_ns=namespace)

        def beside(one: str, at: RunnableConfig = at) -> tuple[Mapping[str, Any], Sequence[str]]:
            here = at.with_check_point_id(one)
            return well_formed_writes(saver.get_writes(here), thread_id), saver.tags_of(here)

        yield from _history_lines(values, namespace, saver.list(at), beside)


def _history_lines(
    values: JsonValueCodec,
    namespace: str,
    newest_first: Sequence[Checkpoint],
    beside: Callable[[str], tuple[Mapping[str, Any], Sequence[str]]],
) -> Iterator[dict[str, Any]]:
    before: dict[str, Packed] = {}
    for checkpoint in reversed(newest_first):
        change, before = change_between(values, before, checkpoint.state)
        writes, tags = beside(checkpoint.id)
        line: dict[str, Any] = {
            "ns": namespace,
            "id": checkpoint.id,
            "node": checkpoint.node_id,
            "next": checkpoint.next_node_id,
            "parent": checkpoint.parent_id,
            "created": checkpoint.created_at.isoformat(),
            "metadata": values.out(dict(public_metadata(checkpoint.metadata)), "metadata"),
            "state": change,
        }
        if writes:
            line["writes"] = {key: values.out(value, key) for key, value in writes.items()}
        if tags:
            line["tags"] = list(tags)
        yield line


# In


class Imported(NamedTuple):
    """What an import did."""

    threads: Sequence[str]
    """The threads that are there now, each read back and found to be as the file has it."""
    checkpoints: int
    """Checkpoints that were stored."""
    skipped: int
    """Checkpoints that were there already: of an import that was cut short, or of an earlier one."""


def import_threads(
    saver: BaseCheckpointSaver,
    lines: Iterable[str],
    *,
    types: Sequence[type] = (),
    rename: Callable[[str], str] = str,
    progress: Progress = lambda *_: None,
) -> Imported:
    """Store the threads of a file, read each back, and see that it is the same.

    An import that was cut short goes on where it was when it is done again.

    Args:
        saver: where to.
        lines: of the file.
        types: the application types that states hold.
        rename: the id of a thread in the file -> its new one.
        progress: called after each thread.

    Raises:
        CheckpointConflictError: a thread holds something else already, or differs afterwards. Those before it are
            stored; of its own checkpoints, those up to the place that differs.
        CheckpointFormatError: this is no such file, it is damaged, cut short, or of a newer version.
        CheckpointSerializationError: a value is of a type that is not in `types`.
        CheckpointerConfigurationError: the file has versions, and the saver keeps none. Nothing of that thread is
            stored.
    """
    numbered = enumerate(lines, 1)
    _check_head(next(numbered, (1, ""))[1])
    saver.register_types(*types)
    found: list[str] = []
    stored = skipped = 0
    thread: _Incoming | None = None
    for number, line in numbered:
        data = _parsed(line, number)
        if thread is None:
            if not isinstance(data.get("thread"), str):
                raise CheckpointFormatError("the file", f"line {number}: a thread is expected here")
            thread = _Incoming(saver, rename(data["thread"]), JsonValueCodec(types))
        elif "end" in data:
            thread.finish(data["end"], number)
            found.append(thread.thread_id)
            stored, skipped = stored + thread.stored, skipped + thread.skipped
            progress(len(found), 0, thread.thread_id)
            thread = None
        else:
            thread.take(data, line, number)
    if thread is not None:
        raise CheckpointFormatError("the file", f"it is cut short within thread {thread.thread_id!r}")
    return Imported(found, stored, skipped)


def _check_head(line: str) -> None:
    head = _parsed(line, 1)
    if head.get("graphkit") != "threads":
        raise CheckpointFormatError("the file", "this is no export of graphkit's")
    version = head.get("format")
    if type(version) is not int:
        raise CheckpointFormatError("the file", "line 1 names no format")
    if version > FORMAT:
        raise CheckpointFormatError("the file", f"it is of format {version}, this graphkit reads up to {FORMAT}")


def _parsed(line: str, number: int) -> dict[str, Any]:
    try:
        data = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CheckpointFormatError("the file", f"line {number} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointFormatError("the file", f"line {number} is no object")
    return data


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is none of JSON's")


@final
class _Incoming:
    """One thread on its way in."""

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec) -> None:
        self.saver, self.thread_id, self._values = saver, thread_id, values
        self.stored = self.skipped = 0
        self._digest = blake2b(digest_size=16)
        self._states: dict[str, dict[str, Any]] = {}
        self._versions = list(saver.versions_by_thread_id(thread_id)) if isinstance(saver, HasVersions) else []
        self._released = 0
        """The last version that the lines had."""
        self._there: dict[str, list[str]] = {}
        """What the history held when its turn came, by namespace, oldest first."""

    def take(self, data: dict[str, Any], line: str, number: int) -> None:
        """Store what a line says, unless it is there."""
        self._digest.update(f"{line.rstrip()}\n".encode())
        try:
            if "release" in data:
                self._release(data["release"])
                return
            checkpoint, namespace = self._checkpoint(data)
            writes = {key: self._values.back(value) for key, value in data.get("writes", {}).items()}
            tags = [_text(tag) for tag in data.get("tags", ())]
        except CheckpointerError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointFormatError("the file", f"line {number} makes no sense: {error}") from error
        if "version" in data and not isinstance(self.saver, HasVersions):
            kind = type(self.saver).__name__
            raise CheckpointerConfigurationError(f"{kind} keeps no versions; export without them, or import elsewhere")
        if data.get("version") in self._versions:
            self.skipped += 1  # the reading back at the end compares it
            return
        self._put(checkpoint, RunnableConfig(self.thread_id, checkpoint_ns=namespace))
        here = RunnableConfig(self.thread_id, checkpoint.id, namespace)
        if writes:
            self.saver.put_writes(here, writes)
        if tags:
            self.saver.add_tags(here, *tags)

    def _checkpoint(self, data: dict[str, Any]) -> tuple[Checkpoint, str]:
        namespace = _text(data["ns"])
        state = self._states[namespace] = changed(self._values, self._states.get(namespace, {}), data["state"])
        checkpoint = Checkpoint(
            id=_text(data["id"]),
            node_id=_text(data["node"]),
            next_node_id=None if data["next"] is None else _text(data["next"]),
            parent_id=None if data["parent"] is None else _text(data["parent"]),
            created_at=datetime.fromisoformat(data["created"]),
            metadata=self._values.back(data["metadata"]),
            state=state,
        )
        return checkpoint, namespace

    def _put(self, checkpoint: Checkpoint, at: RunnableConfig) -> None:
        if at.checkpoint_ns not in self._there:
            self._there[at.checkpoint_ns] = [info.id for info in reversed(self.saver.history(at))]
        there = self._there[at.checkpoint_ns]
        if not there:
            self.saver.put(at, checkpoint)
            self.stored += 1
        elif there.pop(0) == checkpoint.id:
            self.skipped += 1
        else:
            raise CheckpointConflictError(
                self.thread_id, "it holds other checkpoints already; import it under another id"
            )

    def _release(self, version: Any) -> None:
        if type(version) is not int:
            raise TypeError(f"{version!r} is no version")
        if version not in self._versions:
            self.saver.release(RunnableConfig(self.thread_id))
        self._released = version
        self._states, self._there = {}, {}

    def finish(self, digest: str, number: int) -> None:
        """See that the lines were whole, and that what is stored now is what they said."""
        if self._digest.hexdigest() != digest:
            raise CheckpointFormatError(
                "the file", f"line {number}: the lines of thread {self.thread_id!r} were changed"
            )
        *_, end = _thread_lines(self.saver, self.thread_id, self._values, versions=bool(self._released))
        if json.loads(end)["end"] != digest:
            raise CheckpointConflictError(self.thread_id, "what is stored there now is not what the file says")
