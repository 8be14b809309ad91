"""Values to msgpack and back, exactly or not at all. Never imports or calls a name from data."""

from graphkit._values.codec.codec import (
    Codec as Codec,
    MalformedDataError as MalformedDataError,
    array_header as array_header,
    find_value_types as find_value_types,
)
from graphkit._values.codec.type_registry import (
    ApplicationType as ApplicationType,
    FieldsError as FieldsError,
    find_class as find_class,
    get_module_name as get_module_name,
    is_renamed as is_renamed,
    type_name as type_name,
)
from graphkit._values.codec.writer import MAX_DEPTH as MAX_DEPTH

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
