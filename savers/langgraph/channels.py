"""A LangGraph checkpoint as a graphkit state, and back.

A state holds, of each channel, its version and its value as the bytes that LangGraph's serializer made of it; nothing
looks into them. What makes growth cheap is how they are cut: the header of a msgpack value (how many elements) is kept
apart from what follows it, and what follows is a list of pieces. A value whose bytes begin with the old ones is the old
pieces and one more, so that the file takes what was added and no more.

| key | value |
|---|---|
| `channel:<name>` | `[version]`, or `[version, type, bytes]`: a short value, or the header of a long one |
| `value:<name>` | what follows the header, in pieces |
| `seen:<node>` | versions_seen of a node |
| `checkpoint` | `[type, bytes]`: everything else that the checkpoint has |
| `writes` | what `put_writes` brought before the checkpoint itself |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from graphkit import Checkpoint
from graphkit.errors import CheckpointSerializationError
from graphkit.values import PLAIN, REMOVED, SET, Changes, FrozenDict, FrozenList, freeze
from savers import _delta as delta

if TYPE_CHECKING:
    from langgraph.checkpoint.base import ChannelVersions
    from langgraph.checkpoint.serde.base import SerializerProtocol

CHANNEL: Final = "channel:"
VALUE: Final = "value:"
SEEN: Final = "seen:"
REST: Final = "checkpoint"
WRITES: Final = "writes"

_APART: Final = frozenset({"channel_values", "channel_versions", "versions_seen"})
_SHORT: Final = 64
"""Values of up to so many bytes are not cut."""
_EMPTY: Final = FrozenDict()


class Encoder:
    """Makes states of checkpoints, one after the other or in any order.

    Args:
        serde: LangGraph's serializer.
    """

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde

    def state(
        self,
        checkpoint: Mapping[str, Any],
        new_versions: ChannelVersions,
        base: FrozenDict,
        earlier: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> dict[str, Any]:
        """The state of a checkpoint.

        Args:
            checkpoint: LangGraph's.
            new_versions: the channels that its parent does not have in these versions.
            base: the state that was stored last; pieces that are the same are its own.
            earlier: the states of the parent and of those before it, where unchanged channels are found.
        """
        state: dict[str, Any] = {}
        values = checkpoint["channel_values"]
        for name, version in checkpoint["channel_versions"].items():
            held = None if name in new_versions else _holder(name, version, values, earlier)
            if held is not None:
                keys = (CHANNEL + name, VALUE + name)
                state.update((key, held[key]) for key in keys if key in held)
            elif name in values:
                self._channel(state, name, version, values[name], base)
            else:
                state[CHANNEL + name] = [version]
        state.update((SEEN + node, seen) for node, seen in checkpoint["versions_seen"].items())
        rest = {key: value for key, value in checkpoint.items() if key not in _APART}
        state[REST] = list(self.typed(rest, REST))
        return state

    def _channel(self, state: dict[str, Any], name: str, version: Any, value: Any, base: FrozenDict) -> None:
        kind, data = self.typed(value, name)
        head = len(data) if len(data) <= _SHORT else delta.parse_header(data, 0)[2]
        state[CHANNEL + name] = [version, kind, data[:head]]
        if head < len(data):
            state[VALUE + name] = _pieces(base.get(VALUE + name, ()), data[head:])

    def typed(self, value: Any, path: str) -> tuple[str, bytes]:
        """What the serializer makes of a value.

        Raises:
            CheckpointSerializationError: it cannot be stored; `path` is in it.
        """
        try:
            kind, data = self._serde.dumps_typed(value)
        except (TypeError, ValueError) as error:
            raise CheckpointSerializationError(path, type(value).__name__, str(error)) from error
        return kind, bytes(data)


def _holder(
    name: str, version: Any, values: Mapping[str, Any], earlier: Callable[[], Iterable[Mapping[str, Any]]]
) -> Mapping[str, Any] | None:
    """The state of an earlier checkpoint that has a channel in this version; None to take the value that was given."""
    for number, state in enumerate(earlier()):
        if number and name in values:
            return None
        if state.get(CHANNEL + name, (None,))[0] == version:
            return state
    return None


def _pieces(old: Sequence[bytes], data: bytes) -> list[bytes]:
    """Bytes as the pieces that they begin with, and the rest."""
    # All of them at once is the usual case, and 10 times as fast as one after the other.
    pieces = [*old] if data.startswith(b"".join(old)) else [*_begun(old, data)]
    length = sum(map(len, pieces))
    return [*pieces, data[length:]] if length < len(data) else pieces


def _begun(old: Sequence[bytes], data: bytes) -> Iterator[bytes]:
    at = 0
    for piece in old:
        if not data.startswith(piece, at):
            return
        yield piece
        at += len(piece)


def relative(base: FrozenDict, new: Mapping[str, Any]) -> tuple[FrozenDict, Changes]:
    """A state that shares with the one stored last what is the same, keys in its order, and what changed."""
    state, ops = FrozenDict(base), {key: REMOVED for key in base if key not in new}
    for key in ops:
        dict.__delitem__(state, key)
    for key, value in new.items():
        old = base.get(key)
        if old != value:
            ops[key] = len(old) if old and key.startswith(VALUE) and value[: len(old)] == old else SET
            dict.__setitem__(state, key, _frozen_pieces(value) if key.startswith(VALUE) else freeze(value))
    state.kind = PLAIN  # bytes and versions: the same
    return state, Changes(base, ops)


def _frozen_pieces(pieces: Sequence[bytes]) -> FrozenList:
    frozen = FrozenList(pieces)
    frozen.kind = PLAIN  # found out by looking it would cost O(pieces), at every put
    return frozen


def base_of(checkpoint: Checkpoint | None) -> FrozenDict:
    """The state of a stored checkpoint, if there is one."""
    return _EMPTY if checkpoint is None else checkpoint.state


def decoded(serde: SerializerProtocol, state: Mapping[str, Any]) -> dict[str, Any]:
    """LangGraph's checkpoint of a state."""
    names = versions_of(state)
    values = {name: value for name in names if (value := value_of(serde, state, name)) is not ABSENT}
    seen = {key.removeprefix(SEEN): dict(node) for key, node in state.items() if key.startswith(SEEN)}
    rest = serde.loads_typed(tuple(state[REST]))
    return {**rest, "channel_values": values, "channel_versions": names, "versions_seen": seen}


def versions_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The versions of the channels of a state."""
    return {key.removeprefix(CHANNEL): entry[0] for key, entry in state.items() if key.startswith(CHANNEL)}


ABSENT: Final = object()
"""Instead of the value of a channel that has none."""


def value_of(serde: SerializerProtocol, state: Mapping[str, Any], name: str) -> Any:
    """The value of one channel, or ABSENT; the others are not decoded."""
    _, *typed = state.get(CHANNEL + name, (None,))
    if not typed:
        return ABSENT
    kind, head = typed
    return serde.loads_typed((kind, b"".join((head, *state.get(VALUE + name, ())))))
