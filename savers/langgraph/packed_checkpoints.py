"""Decodes LangGraph's checkpoints from the packed states of a log, for listings.

`channels.py` specifies the keys of a state, and decodes any state. A listing decodes thousands,
whose values are nearly all of a few plain shapes. This module decodes those from their packed
bytes, without the frozen state between them and the checkpoint, in a third of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgpack import unpackb

from savers import _delta as delta
from savers.langgraph.channels import CHANNEL, REST, SEEN, VALUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from savers._log.packed_states import PackedValue
    from savers.langgraph.serializer import Deserializer, TypedValue

_VERSIONS: Final = frozenset({str, int, float})
_SHORT: Final = 16
_LIST_HEADERS: Final = tuple(delta.pack_header(delta.LIST, count) for count in range(_SHORT))
"""The headers of short lists."""
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

    def decode(self, state: Mapping[str, PackedValue]) -> dict[str, Any] | None:
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

    def _take_apart(self, state: Mapping[str, PackedValue]) -> tuple[list[TypedValue], dict[str, Any], dict[str, Any]]:
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
            if packed.kind == delta.LIST and packed.count < _SHORT:
                header = _LIST_HEADERS[packed.count]
            else:
                header = delta.pack_header(packed.kind, packed.count)
            entry = unpackb(header + packed.body, ext_hook=_refuse)
            if prefix == CHANNEL:
                versions[name] = _check_version(entry[0])
                if len(entry) > 1:
                    _, type_name, data = entry
                    tail = state.get(value_key)
                    typed.append((type_name, data if tail is None else data + _check_bin(tail), name))
            elif prefix == SEEN:
                for version in entry.values():
                    _check_version(version)
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


def _check_version(version: Any) -> Any:
    """Return a version; raise a ValueError if it is not a number or a string."""
    if version.__class__ not in _VERSIONS:
        raise ValueError(type(version))
    return version


def _check_bin(packed: PackedValue) -> bytes:
    """Return a value of bytes; raise a ValueError for others."""
    if packed.kind != delta.BIN:
        raise ValueError(packed.kind)
    return packed.body


def _refuse(code: int, data: bytes) -> Any:
    """Refuse what is not of msgpack's own types."""
    raise ValueError(f"not plain: {code}, {len(data)} bytes")
