"""The codec of graphkit's own savers, for savers that store bytes.

`Codec` packs every value that a state may hold into msgpack and restores it exactly. It refuses
other values with a `CheckpointSerializationError` that names their path.

This module is provisional until 1.0: its names may change between minor versions.
"""

from graphkit._public_names import set_public_module
from graphkit._values.codec import Codec as Codec, MalformedDataError as MalformedDataError

__all__ = ["Codec", "MalformedDataError"]

set_public_module(globals(), __name__)
