"""LangGraph's serializer, and the types of the application that it may create."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graphkit.errors import CheckpointerConfigurationError, CheckpointSerializationError
from savers.langgraph.checked_serializer import READING, Blocked, CheckedSerializer
from savers.langgraph.refusals import RefusedValueError

OnBlockedType = Literal["raise", "plain"]
"""What reading does with a type that the serializer may not create."""


class SerializationValueError(CheckpointSerializationError, ValueError):
    """The serializer refused a value with a ValueError. Code that catches that one still does."""


TypedValue = tuple[str, bytes, str]
"""The type and the bytes of a value, and its path for errors."""


def _note_blocked(event: SerdeEvent) -> None:
    if event["kind"] == "msgpack_blocked" and READING.blocked is not None:
        READING.blocked.append(
            Blocked(event["module"], event["name"], f"add {event['name']} to types=[...] of the saver")
        )


# LangGraph's own serializer returns the plain data of a type that it may not create. This event is the only sign.
register_serde_event_listener(_note_blocked)


def make_serializer(
    serde: SerializerProtocol | None, types: Iterable[type], *, is_plain: bool = False
) -> SerializerProtocol:
    """Return a serializer with these types allowed: a CheckedSerializer if `serde` is None.

    Args:
        serde: LangGraph's serializer, if the caller has one.
        types: the classes that it may create by their constructors.
        is_plain: whether plain data may take the place of other classes.

    Raises:
        CheckpointerConfigurationError: a type is not a class, or the serializer cannot allow types.
    """
    types = list(types)
    for type_ in types:
        if not isinstance(type_, type):
            raise CheckpointerConfigurationError(f"types must contain classes, not {type_!r}")
    if serde is None:
        return CheckedSerializer(types, is_plain=is_plain)
    return _allow(serde, types) if types else serde


def _allow(serde: SerializerProtocol, types: list[type]) -> SerializerProtocol:
    if isinstance(serde, EncryptedSerializer):
        return EncryptedSerializer(serde.cipher, _allow(serde.serde, types))
    if isinstance(serde, JsonPlusSerializer):
        return serde.with_msgpack_allowlist(types)
    raise CheckpointerConfigurationError(
        f"types cannot be added to a {type(serde).__name__}; configure them in the serializer itself"
    )


class Deserializer:
    """Restores values from the bytes that LangGraph's serializer returned.

    Args:
        serde: LangGraph's serializer.
        on_blocked_type: whether a type that the serializer may not create is an error, or its plain
            data are returned; None: an error, and the caller has no such option.
    """

    def __init__(self, serde: SerializerProtocol, on_blocked_type: OnBlockedType | None) -> None:
        self._serde = serde
        self._on_blocked_type = on_blocked_type
        self._hint = "" if on_blocked_type is None else ', or read plain data with on_blocked_type="plain"'

    def deserialize(self, type_name: str, data: bytes, path: str) -> Any:
        """Return the value of a type and bytes.

        Raises:
            CheckpointSerializationError: the serializer may not create a type; the error names it
                and `path`, and has the plain data as `raw`.
        """
        (value,) = self.deserialize_all([(type_name, data, path)])
        return value

    def deserialize_all(self, values: Sequence[TypedValue]) -> list[Any]:
        """Return the values of several types and bytes, each with its path, at less than half the cost.

        Raises:
            CheckpointSerializationError: as for `deserialize`, for the first such value.
        """
        load = self._serde.loads_typed
        outer = READING.blocked  # not None if a type reads another checkpoint while it is created
        blocked: list[Blocked] = []
        READING.blocked = blocked
        try:
            restored = [load((type_name, data)) for type_name, data, _ in values]
        finally:
            READING.blocked = outer
        if blocked and self._on_blocked_type != "plain":
            if len(values) > 1:
                # Once more, one by one, for the error that names the value.
                return [self.deserialize(*value) for value in values]
            raise _make_error(values[0][2], blocked, self._hint, restored[0])
        return restored


def read_interrupts(type_name: str, data: bytes) -> Mapping[str, Any] | None:
    """Return what a task of LangGraph asks, for listings: the payloads of its interrupts, by id.

    Args:
        type_name: how the value under LangGraph's channel for interrupts was encoded.
        data: its bytes.

    Returns:
        The payloads; None if the value was not encoded by LangGraph's own serializer, but encrypted, or is
        none of interrupts.
    """
    try:
        return {interrupt.id: interrupt.value for interrupt in _read_plain(type_name, data)}
    except (TypeError, AttributeError):
        return None


def read_error(type_name: str, data: bytes) -> str:
    """Return the error of a task of LangGraph as text, for listings."""
    return str(_read_plain(type_name, data) or f"not readable here: LangGraph's serializer wrote it as {type_name}")


def _read_plain(type_name: str, data: bytes) -> Any:
    """Return a value, with plain data for types of the application; None if it is encrypted or malformed."""
    try:
        return Deserializer(make_serializer(None, (), is_plain=True), "plain").deserialize(type_name, data, "")
    except Exception:  # noqa: BLE001 - one thread, whatever its serializer raises, must not hide all in a listing
        return None


def _make_error(path: str, blocked: list[Blocked], hint: str, value: object) -> CheckpointSerializationError:
    reasons: dict[str, str] = {}
    for module, name, reason in blocked:
        reasons.setdefault(f"{module}.{name}", reason)
    reason = "; ".join(reasons.values())
    if len(reasons) > 1:
        reason = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return CheckpointSerializationError(path, ", ".join(reasons), reason + hint, raw=value)


def make_refusal(path: str, value: object, error: Exception) -> CheckpointSerializationError:
    """Return the error of a value that the serializer refused with an error of its own."""
    kind = CheckpointSerializationError if isinstance(error, TypeError) else SerializationValueError
    if isinstance(error, RefusedValueError):
        return kind(path + error.path, error.type_name, error.reason)
    return kind(path, type(value).__name__, str(error))
