"""LangGraph's serializer, and the types of the application that it may create."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from graphkit.errors import CheckpointerConfigurationError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol


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
