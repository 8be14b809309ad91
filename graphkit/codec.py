"""The codec of graphkit's own savers, for savers that store bytes.

`Codec` packs every value that a state may hold into msgpack and restores it exactly. It refuses
other values with a `CheckpointSerializationError` that names their path. `ApplicationType`, `find_class` and what
belongs to them take objects of an application apart and make them again, for a serializer with a
format of its own.

This module is provisional until 1.0: its names may change between minor versions.
"""

from graphkit._public_names import set_public_module
from graphkit._values.codec import (
    ApplicationType,
    Codec,
    FieldsError,
    MalformedDataError,
    find_class,
    get_module_name,
    is_renamed,
)

__all__ = [
    "ApplicationType",
    "Codec",
    "FieldsError",
    "MalformedDataError",
    "find_class",
    "get_module_name",
    "is_renamed",
]

set_public_module(globals(), __name__)
