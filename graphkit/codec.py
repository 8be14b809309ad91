"""The codec of graphkit's own savers, for savers that store bytes."""

from graphkit._public_names import set_public_module
from graphkit._values.codec import Codec as Codec, MalformedDataError as MalformedDataError

__all__ = ["Codec", "MalformedDataError"]

set_public_module(globals(), __name__)
