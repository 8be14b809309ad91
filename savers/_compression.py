"""Chooses, compresses and expands large values. Knows neither states nor files."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

ZLIB: Final = 1
ZSTD: Final = 2
"""The numbers of the methods in stored data; never used for anything else."""

_SAMPLE: Final = 4096
_SAMPLES: Final = 3
_WORTH: Final = 0.9
"""Compressed bytes are stored if they are shorter than this part of the value."""
_LEVELS: Final = {"zlib": 9, "zstd": 22}
"""The highest level of each method."""


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How a file saver compresses large values.

    Reading needs no option: stored values name their method.

    Raises:
        CheckpointerConfigurationError: an option is invalid.
        MissingDependencyError: `zstd` without its package; `pip install 'graphkit-durable[zstd]'`.
    """

    method: Literal["zlib", "zstd"] = "zlib"
    """zlib comes with Python; zstd is three to ten times as fast and needs an extra."""
    level: int | None = None
    """1 to 9 (zlib) or 1 to 22 (zstd). None: 1 and 3; higher levels save little and take several
    times as long."""
    threshold: int = 100_000
    """Shorter values, in packed bytes, are stored as they are. zlib takes about 1 ms for this many
    bytes."""

    def __post_init__(self) -> None:
        # Callers without a type checker may pass anything.
        method: Any = self.method
        level: Any = self.level
        threshold: Any = self.threshold
        if not isinstance(method, str) or method not in _LEVELS:
            reason = f'compression must be None, "zlib" or "zstd", not {method!r}'
            raise CheckpointerConfigurationError(reason)
        is_level = level is None or (isinstance(level, int) and 1 <= level <= _LEVELS[method])
        if not is_level:
            reason = f"level of {method} must be 1 to {_LEVELS[method]}, not {level!r}"
            raise CheckpointerConfigurationError(reason)
        if not isinstance(threshold, int) or threshold < 1:
            reason = f"threshold must be a number of bytes, not {threshold!r}"
            raise CheckpointerConfigurationError(reason)
        if method == "zstd":
            _import_zstandard()

    @property
    def number(self) -> int:
        """The number of the method in stored data."""
        return ZLIB if self.method == "zlib" else ZSTD

    def compress(self, data: bytes | memoryview) -> bytes | None:
        """Return the data compressed; None if that does not save enough to be stored."""
        compress: Callable[[bytes | memoryview], bytes]
        if self.method == "zlib":
            compress = partial(zlib.compress, level=self.level or 1)
        else:
            compress = _import_zstandard().ZstdCompressor(level=self.level or 3).compress
        if len(data) > _SAMPLE * (_SAMPLES + 1):
            # Images and other compressed files cannot be compressed again. Three samples show that
            # in a hundredth of the time.
            middle = len(data) // 2
            sample = b"".join((data[:_SAMPLE], data[middle : middle + _SAMPLE], data[-_SAMPLE:]))
            if len(compress(sample)) > _WORTH * len(sample):
                return None
        packed = compress(data)
        return packed if len(packed) < _WORTH * len(data) else None


def parse_compression(option: Any) -> Compression | None:
    """Return the Compression for an option: None, a method's name, or a Compression.

    Raises:
        CheckpointerConfigurationError: the option is none of these.
        MissingDependencyError: the method's package is not installed.
    """
    if option is None or isinstance(option, Compression):
        return option
    return Compression(method=option)


def expand(method: int, data: bytes, length: int) -> bytes:
    """Return the `length` bytes that were compressed; forged data take no more memory than these.

    Args:
        method: the number of the method.
        data: the compressed bytes.
        length: how many bytes they expand to.

    Raises:
        ValueError: the data do not expand to this length, or the method is unknown.
        MissingDependencyError: the method's package is not installed.
    """
    if method == ZLIB:
        inflater = zlib.decompressobj()
        try:
            expanded = inflater.decompress(data, length) if length else b""
        except zlib.error as error:
            raise ValueError(str(error)) from error
    elif method == ZSTD:
        expanded = _expand_zstd(data, length)
    else:
        raise ValueError(f"unknown compression {method!r}")
    if len(expanded) != length:
        raise ValueError("the compressed data have another length")
    return expanded


def _expand_zstd(data: bytes, length: int) -> bytes:
    zstandard = _import_zstandard()
    try:
        if zstandard.frame_content_size(data) != length:
            raise ValueError("the compressed data have another length")
        expanded: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=length)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return expanded


def _import_zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependencyError("zstandard", "zstd") from error
    return zstandard
