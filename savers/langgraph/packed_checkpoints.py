"""Decodes LangGraph's checkpoints from the packed states of a log, for listings.

`channels.py` specifies the keys of a state, and decodes any state. A listing decodes thousands,
whose values are nearly all of a few plain shapes. This module decodes those from their packed
bytes, without the frozen state between them and the checkpoint, in a third of the time.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from msgpack import unpackb

from savers import _delta as delta
from savers._log.packed_states import ChangedValue
from savers.langgraph.channels import CHANNEL, REST, SEEN, VALUE

if TYPE_CHECKING:
    from savers._log.packed_states import PackedState
    from savers._log.scanned_log import ScannedLog
    from savers._log.stored_checkpoint import StoredCheckpoint
    from savers.langgraph.serializer import Deserializer, TypedValue

_VERSIONS: Final = frozenset({str, int, float})
_LOOK_HOLDS: Final = 100_000
"""For how many nanoseconds a log is taken for unchanged after a look at its file. Looking for every
checkpoint took a tenth of the time of a listing."""
_LONGEST_NAME: Final = 200
_MAX_NAMES: Final = 10_000
"""How many keys are remembered."""
_UNSUITABLE: Final = (ValueError, TypeError, LookupError, AttributeError)
"""What values of other shapes raise. Msgpack's own errors are among them."""


class PackedDecoder:
    """Decodes the packed states of one listing.

    Args:
        deserializer: restores the values.
    """

    def __init__(self, deserializer: Deserializer) -> None:
        self._deserializer = deserializer
        self._names: dict[str, tuple[str, str, str]] = {}
        """By key of a state: its prefix, the name after it, and the key of the channel's value."""
        self._looked_at: ScannedLog | None = None
        """The log that was looked at last, if it was as when it was scanned."""
        self._look_again = 0
        """When the next look is due."""

    def read(self, view: ScannedLog, stored: StoredCheckpoint) -> dict[str, Any] | None:
        """Return a checkpoint of a log; None if it must be read in the general way.

        Raises:
            CheckpointSerializationError: as for `CheckpointSaver.get_tuple`.
        """
        if stored.writes:
            return None
        packed = None
        if view is self._looked_at and perf_counter_ns() < self._look_again:
            packed = view.states.get(stored.offset)
        if packed is None:
            packed = view.read_packed(stored)
            # After a change, every checkpoint needs a look of its own.
            self._looked_at = None if packed is None else view
            self._look_again = perf_counter_ns() + _LOOK_HOLDS
        return None if packed is None else self.decode(packed)

    def decode(self, state: PackedState) -> dict[str, Any] | None:
        """Return LangGraph's checkpoint of a packed state.

        None if a value has another shape: the state must be decoded in the general way, which also
        finds out what is wrong with it.

        Raises:
            CheckpointSerializationError: as for `FileSystemCheckpointSaver.get_tuple`.
        """
        try:
            typed, versions, seen = self._take_apart(state)
        except _UNSUITABLE:
            return None
        restored = self._deserializer.deserialize_all(typed)
        decoded = restored.pop()
        values = {path: value for (_, _, path), value in zip(typed, restored, strict=False)}
        return {**decoded, "channel_values": values, "channel_versions": versions, "versions_seen": seen}

    def _take_apart(self, state: PackedState) -> tuple[list[TypedValue], dict[str, Any], dict[str, Any]]:
        """Return the values of the channels and then the rest, the versions, and `versions_seen`."""
        rest: Any = None
        typed: list[TypedValue] = []
        versions: dict[str, Any] = {}
        seen: dict[str, Any] = {}
        names = self._names
        # 2 us for a checkpoint of one channel. A call for each value would add half of that.
        for key, packed in state.items():
            known = names.get(key)
            prefix, name, value_key = self._split(key) if known is None else known
            if prefix == VALUE:
                continue
            entry = unpackb(packed.pack() if isinstance(packed, ChangedValue) else packed, ext_hook=_refuse)
            if prefix == CHANNEL:
                version = entry[0]
                if version.__class__ not in _VERSIONS:
                    raise ValueError(version)
                versions[name] = version
                if len(entry) > 1:
                    _, type_name, data = entry
                    tail = state.get(value_key)
                    typed.append((type_name, data if tail is None else data + _check_bin(tail), name))
            elif prefix == SEEN:
                if not _VERSIONS.issuperset(map(type, entry.values())):
                    raise ValueError(entry)
                seen[name] = entry
            elif prefix == REST:
                rest = entry
            else:
                raise ValueError(key)
        type_name, data = rest
        typed.append((type_name, data, REST))
        return typed, versions, seen

    def _split(self, key: str) -> tuple[str, str, str]:
        for prefix in (CHANNEL, VALUE, SEEN, REST):
            if key.startswith(prefix):
                break
        else:
            prefix = ""
        name = key.removeprefix(prefix)
        parts = (key if prefix == REST else prefix, name, VALUE + name)
        if len(key) <= _LONGEST_NAME:
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()
            self._names[key] = parts
        return parts


def _check_bin(value: bytes | ChangedValue) -> bytes:
    """Return a value of bytes; raise a ValueError for others."""
    if isinstance(value, ChangedValue):
        kind, count, body, _ = value
    else:
        kind, count, skip = delta.parse_header(value, 0)
        body = value[skip:]
    if kind != delta.BIN or count != len(body):
        raise ValueError(kind)
    return body


def _refuse(code: int, data: bytes) -> Any:
    """Refuse what is not of msgpack's own types."""
    raise ValueError(f"not plain: {code}, {len(data)} bytes")
