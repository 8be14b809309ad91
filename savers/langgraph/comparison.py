"""Compares a checkpoint of a store with the same checkpoint of a database, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from savers.langgraph.sources import SourceCheckpoint

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol


def list_differences(
    serde: SerializerProtocol, stored: SourceCheckpoint | None, original: SourceCheckpoint
) -> list[str]:
    """Return which parts of a checkpoint differ: its checkpoint, metadata, parent and writes.

    Args:
        serde: the serializer of the values.
        stored: the checkpoint as it was read back; None if it is missing.
        original: the checkpoint as it should be.
    """
    if stored is None:
        return ["checkpoint", "metadata", "parent", "writes"]
    return list(_iter_differences(serde, stored, original))


def _iter_differences(serde: SerializerProtocol, stored: SourceCheckpoint, original: SourceCheckpoint) -> Iterator[str]:
    if _serialize_values(serde, stored.checkpoint) != _serialize_values(serde, original.checkpoint):
        yield "checkpoint"
    if stored.metadata != original.metadata:
        yield "metadata"
    if stored.parent_id != original.parent_id:
        yield "parent"
    if sorted(stored.writes) != sorted(original.writes):
        yield "writes"


def _serialize_values(serde: SerializerProtocol, checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a checkpoint with its values as bytes, which can be compared.

    Channels without a version are left out, as LangGraph's savers do.
    """
    while isinstance(serde, EncryptedSerializer):
        # Each encryption of the same value gives another ciphertext.
        serde = serde.serde
    versions = checkpoint["channel_versions"]
    serialized = {}
    for name, value in checkpoint["channel_values"].items():
        if name in versions:
            # In a list: inside a checkpoint, LangGraph's serializer stores a bytearray as bytes.
            serialized[name] = serde.dumps_typed([value])
    return {**checkpoint, "channel_values": serialized}
