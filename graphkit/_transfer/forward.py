"""Reads histories forward, with what changed from checkpoint to checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any, Final

from graphkit._records.checkpoint import Checkpoint, replace_fields
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions, SupportsReplay
from graphkit._saver.incomplete import is_placeholder, remove_mark
from graphkit._saver.status import public_metadata
from graphkit._values.frozen import PRIVATE, FrozenDict, FrozenList, kind_of
from graphkit._values.state import REMOVED, SET, Changes

_ABSENT: Final = object()


def read_forward(
    saver: BaseCheckpointSaver, config: RunnableConfig, version: int | None = None
) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a history, oldest first, without the metadata of the default methods.

    Leaves out what marks a thread as incomplete. Holds one state at a time. The `changes` of a
    checkpoint, where they are known, apply to the state of the one before it.

    Args:
        saver: where the history is.
        config: names the thread and the namespace.
        version: a released history; None is the active one. The saver must be a HasVersions.
    """
    if isinstance(saver, SupportsReplay):
        checkpoints = saver.replay(config, version=version)
    else:
        checkpoints = _read_list(saver, config, version)
    for checkpoint in checkpoints:
        if is_placeholder(checkpoint.metadata):
            return
        yield checkpoint.with_metadata(remove_mark(public_metadata(checkpoint.metadata)))


def _read_list(saver: BaseCheckpointSaver, config: RunnableConfig, version: int | None) -> Iterator[Checkpoint]:
    newest_first: Sequence[Checkpoint]
    if version is None:
        newest_first = saver.list(config)
    else:
        assert isinstance(saver, HasVersions)
        newest_first = saver.tag(config, version).checkpoints
    waiting = [*newest_first]
    del newest_first
    before: FrozenDict | None = None
    while waiting:
        checkpoint = waiting.pop()  # a listed checkpoint keeps its state once it was read
        state = checkpoint.state
        changes = None
        # A saver that isolates values copies these objects, unless it is given the changes.
        if before is not None and PRIVATE not in (state.kind, checkpoint.metadata.kind):
            changes = find_changes(before, state)
        yield replace_fields(checkpoint, changes=changes)
        before = state


def find_changes(before: FrozenDict, state: FrozenDict) -> Changes:
    """Return what changed between two states, by the identity of their values.

    Savers that keep objects share those that did not change. An equal value that is another object
    counts as changed.
    """
    ops: dict[str, int] = {}
    for key, value in state.items():
        old = before.get(key, _ABSENT)
        if old is value and kind_of(value) != PRIVATE:
            continue
        ops[key] = SET
        if _begins_with(value, old):
            ops[key] = len(old)
    for key in before:
        if key not in state:
            ops[key] = REMOVED
    return Changes(before, ops)


def _begins_with(value: Any, old: Any) -> bool:
    """Return whether a list begins with all elements of an old one, which are the same objects."""
    if type(value) is not FrozenList or type(old) is not FrozenList or old.kind == PRIVATE:
        return False
    return len(old) <= len(value) and all(map(is_, old, value))
