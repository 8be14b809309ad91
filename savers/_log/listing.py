"""Checkpoints as a saver returns them: their infos, and lists that load states on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Self, final, overload

from graphkit import Checkpoint, CheckpointInfo
from graphkit.abc import BaseCheckpointSaver
from graphkit.saver_kit import PLAIN, Changes, derive_stop, has_status_mark, private_copy, with_status
from savers._log.stored_checkpoint import outline_writes

if TYPE_CHECKING:
    from savers._log.log import AnyLog
    from savers._log.stored_checkpoint import StoredCheckpoint

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_from_timestamp: Final = datetime.fromtimestamp
_EXACT_TIME: Final = (1 << 32) * 1_000_000
"""Microseconds. A number of seconds below 2 to the 32 as a float is exact to a quarter of one."""
Additions = tuple[Mapping[str, int], frozenset[str], tuple[str, ...]]
"""What later records add to a checkpoint: its `writes`, `cleared` and `tags`."""
_get_additions: Final[Callable[[StoredCheckpoint], Additions]] = attrgetter("writes", "cleared", "tags")
_new_info: Final[Callable[..., CheckpointInfo]] = tuple.__new__


def make_info(log: AnyLog, stored: StoredCheckpoint) -> CheckpointInfo:
    """Return what is known of a stored checkpoint without decoding its state; it has no status."""
    return _make_info((log.thread_id, log.namespace), stored, _get_additions(stored))


def _make_info(owner: tuple[str, str], stored: StoredCheckpoint, additions: Additions) -> CheckpointInfo:
    # A history has one of these per checkpoint. By position, without the calls that most need not
    # make, and without the constructor: 0.7 us instead of 2 us.
    thread_id, namespace = owner
    writes, cleared, tags = additions
    metadata = stored.metadata
    created = stored.created
    if 0 <= created < _EXACT_TIME:
        # The float differs by less than half a microsecond, and `fromtimestamp` rounds. It takes 0.22
        # us; making a timedelta and adding it takes 0.35.
        created_at = _from_timestamp(created / 1_000_000, UTC)
    else:
        created_at = _EPOCH + timedelta(0, 0, created)
    stopped = ""
    if writes or has_status_mark(metadata):
        stopped = derive_stop(stored.next, outline_writes(writes, cleared), metadata)
    return _new_info(
        CheckpointInfo,
        (
            thread_id,
            namespace,
            stored.id,
            stored.parent,
            stored.node,
            stored.next,
            created_at,
            stored.size,
            "",
            tags,
            metadata if metadata.kind == PLAIN else private_copy(metadata),
            stopped,
        ),
    )


@final
class ListedInfos(Sequence[CheckpointInfo]):
    """The infos of a history as it is now, newest first; each is made when it is asked for.

    Most callers want a few of them. Iterating makes all, and keeps them. The first is made at once,
    because the status of its thread is that of now.

    Later records change the pending writes and the tags of a checkpoint, by other objects in their
    place. Therefore those of now are noted.
    """

    def __init__(self, log: AnyLog, checkpoints: Sequence[StoredCheckpoint]) -> None:
        """Note the checkpoints of a log, which are in the order of the history, oldest first."""
        self._owner = (log.thread_id, log.namespace)
        self._checkpoints = checkpoints[::-1]
        self._additions = [*map(_get_additions, self._checkpoints)]
        self._infos: list[CheckpointInfo] | None = None
        self._latest: CheckpointInfo | None = None

    def add_status(self, saver: BaseCheckpointSaver) -> Self:
        """Give the first info the status of its thread; the caller holds no log."""
        if self._checkpoints:
            self._latest = with_status(saver, self._make(0))
        return self

    def _make_all(self) -> list[CheckpointInfo]:
        infos = self._infos
        if infos is None:
            noted = zip(self._checkpoints, self._additions, strict=True)
            infos = [_make_info(self._owner, stored, additions) for stored, additions in noted]
            if self._latest is not None:
                infos[0] = self._latest
            self._infos = infos
        return infos

    def __len__(self) -> int:
        return len(self._checkpoints)

    def __iter__(self) -> Iterator[CheckpointInfo]:
        return iter(self._make_all())

    def __reversed__(self) -> Iterator[CheckpointInfo]:
        infos: Iterator[CheckpointInfo] = reversed(self._make_all())
        return infos

    @overload
    def __getitem__(self, index: int) -> CheckpointInfo: ...

    @overload
    def __getitem__(self, index: slice) -> list[CheckpointInfo]: ...

    def __getitem__(self, index: int | slice) -> CheckpointInfo | list[CheckpointInfo]:
        if self._infos is not None:
            return self._infos[index]
        if isinstance(index, slice):
            return [self._make(number) for number in range(*index.indices(len(self)))]
        return self._make(index)

    def _make(self, number: int) -> CheckpointInfo:
        if self._latest is not None and number in {0, -len(self)}:
            return self._latest
        return _make_info(self._owner, self._checkpoints[number], self._additions[number])

    def __eq__(self, other: object) -> bool:
        """Compare with another history or a list, as lists do."""
        if isinstance(other, (ListedInfos, list)):
            return len(self) == len(other) and self._make_all() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment] # as a list

    def __repr__(self) -> str:
        return repr(self._make_all())

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a list."""
        return list, (self._make_all(),)


def read_forward(log: AnyLog) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a log, oldest first, with what changed; see `SupportsReplay`.

    A state is decoded as far as it changed, so a history of growing states takes linear time.

    Args:
        log: the log, open, and used by no other caller.

    Raises:
        CheckpointCorruptionError: the log is damaged.
        CheckpointSerializationError: a state holds a type that is not registered.
    """
    decoder = log.decoder.make_empty()
    for stored in log.history.load_index().checkpoints:
        before = decoder.last
        ops = decoder.decode_next(log.packed.read(stored), stored.offset)
        changes = None if before is None or ops is None else Changes(before, ops)
        yield stored.make_checkpoint(decoder.last, changes)
