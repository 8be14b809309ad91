"""ThreadExporter: one thread as lines of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, final

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._transfer.thread_reader import ThreadReader
from graphkit._values.json_values import JsonValueCodec, format_line
from graphkit.errors import CheckpointNotFoundError


@final
class ThreadExporter:
    """Writes the lines of one thread, without its id, so that they are equal in every saver."""

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, values: JsonValueCodec) -> None:
        self._reader = ThreadReader(saver, thread_id, values)
        self._thread_id = thread_id

    def check_namespaces_known(self) -> None:
        """See ThreadReader."""
        self._reader.check_namespaces_known()

    def lines(self, *, versions: bool, order: Sequence[str] = ()) -> Iterator[str]:
        """Yield the lines, the last of them with a digest of the others.

        Args:
            versions: whether to export released histories.
            order: namespaces that come first, in this order; the others are sorted, so that the
                root comes first: an import marks the first history as incomplete.

        Raises:
            CheckpointNotFoundError: the thread has neither checkpoints nor, if wanted, versions.
        """
        namespaces = self._reader.list_namespaces()
        numbers: Sequence[int] = ()
        if versions:
            numbers = self._reader.list_versions()
        if not namespaces and not numbers:
            raise CheckpointNotFoundError(self._thread_id, hint="see threads()")
        digest = blake2b(digest_size=16)
        count = 0
        for data in self._records(namespaces, numbers, order):
            line = format_line(data)
            digest.update(line.encode())
            count += 1
            yield line
        yield format_line({"end": digest.hexdigest(), "lines": count})

    def _records(
        self, namespaces: Sequence[str], versions: Sequence[int], order: Sequence[str]
    ) -> Iterator[Mapping[str, Any]]:
        for version in versions:
            released = self._reader.list_namespaces_of(version)
            for namespace in _sort(released, order):
                for read in self._reader.read(namespace, version):
                    yield {"version": version, **read.record}
            yield {"release": version}
        for namespace in _sort(namespaces, order):
            for read in self._reader.read(namespace):
                yield read.record


def _sort(namespaces: Sequence[str], order: Sequence[str]) -> Sequence[str]:
    first = [name for name in order if name in namespaces]
    return [*first, *sorted(name for name in namespaces if name not in first)]
