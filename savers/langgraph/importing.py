"""From LangGraph's SqliteSaver and PostgresSaver to files: threads, checkpoints, writes, metadata and ids, all kept."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from graphkit import RunnableConfig
from savers.langgraph.saver import FileSystemCheckpointSaver
from savers.langgraph.sources import Found, Place, Source, as_it_is, postgres_source, sqlite_source

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

Progress = Callable[[int, int, str], object]
"""Is told how many checkpoints are done, how many there are, and the thread."""

_EVERY = 1.0
"""Seconds after which what was imported is brought to the disk: if the machine fails, an import is done again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What an import did and found."""

    threads: int
    """How many threads the database has."""
    checkpoints: int
    """How many checkpoints were imported."""
    skipped: int
    """How many were there already."""
    problems: tuple[str, ...] = ()
    """Where what was read back differs from the database, or a file is damaged."""

    @property
    def ok(self) -> bool:
        """Whether all of it was read back as it is in the database."""
        return not self.problems


def import_langgraph_sqlite(
    file: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    serde: SerializerProtocol | None = None,
) -> ImportReport:
    """Copy the threads of a SqliteSaver's file to a directory; the file is only read.

    Interrupted, it goes on where it was when it is called again: what is there already is skipped. Then each checkpoint
    is read back and compared with the database, and each byte of the store is verified.

    Args:
        file: the SQLite database.
        directory: where the store is; it is made if it is missing.
        progress: called after each checkpoint.
        serde: the serializer that it was written with, if it encrypts.

    Raises:
        CheckpointStorageError: the database cannot be read, or the file system refused. What was imported stays.
        CheckpointConflictError: a thread of that id holds a run of graphkit's own.
    """
    serde = serde or as_it_is()
    return _import(sqlite_source(os.fspath(file), serde), directory, serde, progress)


def import_langgraph_postgres(
    dsn: str,
    directory: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    serde: SerializerProtocol | None = None,
) -> ImportReport:
    """Copy the threads of a PostgresSaver's database to a directory, as they are when it begins. Else as for SQLite.

    Args:
        dsn: the connection string.
        directory: where the store is; it is made if it is missing.
        progress: called after each checkpoint.
        serde: the serializer that it was written with, if it encrypts.

    Raises:
        MissingDependencyError: psycopg is not installed.
        CheckpointStorageError: the database cannot be read, or the file system refused. What was imported stays.
        CheckpointConflictError: a thread of that id holds a run of graphkit's own.
    """
    serde = serde or as_it_is()
    return _import(postgres_source(dsn, serde), directory, serde, progress)


def _import(
    opening: AbstractContextManager[Source],
    directory: str | os.PathLike[str],
    serde: SerializerProtocol,
    progress: Progress | None,
) -> ImportReport:
    saver = FileSystemCheckpointSaver(directory, serde=serde, fsync=_EVERY)
    with saver.store, opening as source:
        places = source.places()
        total, done, skipped = sum(count for _, count in places), 0, 0
        problems: list[str] = []
        for place, _ in places:
            there = {info.id for info in saver.store.history(_at(place))}
            for id in source.ids(place):  # noqa: A001 - the contract's word
                found = source.read(place, id)
                if id in there:
                    skipped += 1
                else:
                    _restore(saver, place, found)
                problems += _differences(saver, place, id, found)
                done += 1
                if progress is not None:
                    progress(done, total, place.thread_id)
        problems += _damage(saver)
    return ImportReport(
        threads=len({place.thread_id for place, _ in places}),
        checkpoints=done - skipped,
        skipped=skipped,
        problems=tuple(problems),
    )


def _at(place: Place) -> RunnableConfig:
    return RunnableConfig(place.thread_id, checkpoint_ns=place.namespace)


def _names(place: Place, id: str | None) -> Any:
    return {"configurable": {"thread_id": place.thread_id, "checkpoint_ns": place.namespace, "checkpoint_id": id}}


def _restore(saver: FileSystemCheckpointSaver, place: Place, found: Found) -> None:
    writes = {write.key: list(write) for write in found.writes}
    versions = found.checkpoint["channel_versions"]
    saver.restore(_names(place, found.parent_id), found.checkpoint, found.metadata, versions, writes)


def _differences(saver: FileSystemCheckpointSaver, place: Place, id: str, found: Found) -> Iterator[str]:
    """What is not the same when it is read back."""
    stored = saver.get_tuple(_names(place, id))
    parent = stored and stored.parent_config and stored.parent_config["configurable"]["checkpoint_id"]
    pairs: dict[str, tuple[Any, Any]] = {
        "checkpoint": (stored and _typed(saver, stored.checkpoint), _typed(saver, found.checkpoint)),
        "metadata": (stored and stored.metadata, found.metadata),
        "parent": (parent, found.parent_id),
        "writes": (saver.writes_of(_names(place, id)), sorted(found.writes)),
    }
    for what, (here, there) in pairs.items():
        if here != there:
            yield f"thread {place.thread_id!r}, namespace {place.namespace!r}, checkpoint {id}: its {what} differs"


def _typed(saver: FileSystemCheckpointSaver, checkpoint: Any) -> dict[str, Any]:
    """A checkpoint as bytes that can be compared, channels without a version left out as LangGraph's savers do."""
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    kept = {name: saver.serde.dumps_typed(value) for name, value in values.items() if name in versions}
    return {**checkpoint, "channel_values": kept}


def _damage(saver: FileSystemCheckpointSaver) -> list[str]:
    return [f"{file.path} is {file.state}" for file in saver.store.verify().problems]
