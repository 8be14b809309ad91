"""Values to msgpack and back, exactly or not at all. Never imports or calls a name from data."""

from graphkit._values.codec.codec import MAX_DEPTH, Codec, MalformedDataError, array_header, find_value_types
from graphkit._values.codec.type_registry import (
    ApplicationType,
    FieldsError,
    find_class,
    get_module_name,
    is_renamed,
    type_name,
)

__all__ = [
    "MAX_DEPTH",
    "ApplicationType",
    "Codec",
    "FieldsError",
    "MalformedDataError",
    "array_header",
    "find_class",
    "find_value_types",
    "get_module_name",
    "is_renamed",
    "type_name",
]
