"""The codec of graphkit's own savers, for savers that store bytes."""

from graphkit._values.codec import Codec as Codec, MalformedDataError as MalformedDataError

__all__ = ["Codec", "MalformedDataError"]
