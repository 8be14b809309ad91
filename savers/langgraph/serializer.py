"""LangGraph's serializer, and the types of the application that it may create."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graphkit.errors import CheckpointerConfigurationError, CheckpointSerializationError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.event_hooks import SerdeEvent

OnBlockedType = Literal["raise", "plain"]
"""What reading does with a type that the serializer may not create."""


TypedValue = tuple[str, bytes, str]
"""The type and the bytes of a value, and its path for errors."""


class _Blocked(threading.local):
    """The types that the serializer refused to create for the value that this thread reads."""

    names: list[tuple[str, str]] | None = None
    """Module and name of each; None while this thread reads no value."""


_blocked: Final = _Blocked()


def _record_blocked(event: SerdeEvent) -> None:
    if event["kind"] == "msgpack_blocked" and _blocked.names is not None:
        _blocked.names.append((event["module"], event["name"]))


# The serializer returns the plain data of a type that it may not create. This event is the only sign.
register_serde_event_listener(_record_blocked)


def make_serializer(serde: SerializerProtocol | None, types: Iterable[type]) -> SerializerProtocol:
    """Return LangGraph's serializer with these types allowed, in its strict mode if `serde` is None.

    Raises:
        CheckpointerConfigurationError: a type is not a class, or the serializer cannot allow types.
    """
    types = list(types)
    for type_ in types:
        if not isinstance(type_, type):
            raise CheckpointerConfigurationError(f"types must contain classes, not {type_!r}")
    if serde is None:
        serde = JsonPlusSerializer(allowed_msgpack_modules=None)
    return _allow(serde, types) if types else serde


def _allow(serde: SerializerProtocol, types: list[type]) -> SerializerProtocol:
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, _allow(serde.serde, types))
    if isinstance(serde, JsonPlusSerializer):
        return serde.with_msgpack_allowlist(types)
    raise CheckpointerConfigurationError(
        f"types cannot be added to a {type(serde).__name__}; configure them in the serializer itself"
    )


def check_on_blocked_type(value: object) -> None:
    """Raise a CheckpointerConfigurationError if this is no value of the option."""
    if value not in get_args(OnBlockedType):
        raise CheckpointerConfigurationError(f'on_blocked_type must be "raise" or "plain", not {value!r}')


class Deserializer:
    """Restores values from the bytes that LangGraph's serializer returned.

    Args:
        serde: LangGraph's serializer.
        on_blocked_type: whether a type that the serializer may not create is an error, or its plain
            data are returned.
    """

    def __init__(self, serde: SerializerProtocol, on_blocked_type: OnBlockedType) -> None:
        self._serde = serde
        self._on_blocked_type = on_blocked_type

    def deserialize(self, type_name: str, data: bytes, path: str) -> Any:
        """Return the value of a type and bytes.

        Raises:
            CheckpointSerializationError: the serializer may not create a type; the error names it
                and `path`, and has the plain data as `raw`.
        """
        if self._on_blocked_type == "plain":
            return self._serde.loads_typed((type_name, data))
        outer = _blocked.names  # not None if a type reads another checkpoint while it is created
        names: list[tuple[str, str]] = []
        _blocked.names = names
        try:
            value = self._serde.loads_typed((type_name, data))
        finally:
            _blocked.names = outer
        if names:
            raise _make_error(path, names, value)
        return value

    def deserialize_all(self, values: Sequence[TypedValue]) -> list[Any]:
        """Return the values of several types and bytes, each with its path, at less than half the cost.

        Raises:
            CheckpointSerializationError: as for `deserialize`, for the first such value.
        """
        load = self._serde.loads_typed
        if self._on_blocked_type == "plain":
            return [load((type_name, data)) for type_name, data, _ in values]
        outer = _blocked.names
        names: list[tuple[str, str]] = []
        _blocked.names = names
        try:
            restored = [load((type_name, data)) for type_name, data, _ in values]
        finally:
            _blocked.names = outer
        # One by one, for the error that names the value.
        return [self.deserialize(*value) for value in values] if names else restored


def _make_error(path: str, names: list[tuple[str, str]], value: object) -> CheckpointSerializationError:
    blocked = dict.fromkeys(names)
    return CheckpointSerializationError(
        path,
        ", ".join(f"{module}.{name}" for module, name in blocked),
        "LangGraph's serializer may not create this type; pass"
        f" types=[{', '.join(name for _, name in blocked)}] to the checkpointer, or read plain data with"
        ' on_blocked_type="plain"',
        raw=value,
    )
