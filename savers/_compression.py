"""Compressing large values: which, with what, and back. Knows neither states nor files."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

ZLIB: Final = 1
ZSTD: Final = 2
"""The numbers that stored data have; never used for anything else."""

_SAMPLE: Final = 4096
_WORTH: Final = 0.9
_LEVELS: Final = {"zlib": 9, "zstd": 22}


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How a file saver compresses large values. Reading needs no option: what is stored says how it is compressed.

    Raises:
        CheckpointerConfigurationError: an option makes no sense.
        MissingDependencyError: `zstd` without its package; `pip install 'graphkit-durable[zstd]'`.
    """

    method: Literal["zlib", "zstd"] = "zlib"
    """zlib comes with Python; zstd is three to ten times as fast and needs an extra."""
    level: int | None = None
    """1 to 9 (zlib) or 1 to 22 (zstd); None: 1 and 3, for higher ones save little and take several times as long."""
    threshold: int = 100_000
    """Bytes, packed: shorter values are stored as they are. Compressing so many takes zlib about 1 ms."""

    def __post_init__(self) -> None:
        method, level, threshold = self._given()
        if method not in _LEVELS:
            raise CheckpointerConfigurationError(f'compression must be None, "zlib" or "zstd", not {method!r}')
        if level is not None and not (isinstance(level, int) and 1 <= level <= _LEVELS[method]):
            raise CheckpointerConfigurationError(f"level of {method} must be 1 to {_LEVELS[method]}, not {level!r}")
        if not isinstance(threshold, int) or threshold < 1:
            raise CheckpointerConfigurationError(f"threshold must be a number of bytes, not {threshold!r}")
        if method == "zstd":
            _zstandard()

    def _given(self) -> tuple[Any, Any, Any]:
        return self.method, self.level, self.threshold

    @property
    def number(self) -> int:
        """The method's number in stored data."""
        return ZLIB if self.method == "zlib" else ZSTD

    def shorter(self, data: bytes) -> bytes | None:
        """The data compressed, or None if that is not worth it: then it is stored as it is."""
        compress = self._compressor()
        if len(data) > _SAMPLE * 4:
            # Images and the like are compressed already: three samples tell, for a hundredth of the time.
            middle = len(data) // 2
            sample = data[:_SAMPLE] + data[middle : middle + _SAMPLE] + data[-_SAMPLE:]
            if len(compress(sample)) > _WORTH * len(sample):
                return None
        packed = compress(data)
        return packed if len(packed) < _WORTH * len(data) else None

    def _compressor(self) -> Callable[[bytes], bytes]:
        if self.method == "zlib":
            level = self.level or 1
            return lambda data: zlib.compress(data, level)
        compress: Callable[[bytes], bytes] = _zstandard().ZstdCompressor(level=self.level or 3).compress
        return compress


def checked(compression: Any) -> Compression | None:
    """An option as users give it: None, a method's name, or a Compression.

    Raises:
        CheckpointerConfigurationError: it is none of these.
        MissingDependencyError: the method's package is not installed.
    """
    if compression is None or isinstance(compression, Compression):
        return compression
    return Compression(method=compression)


def expand(method: int, data: bytes, length: int) -> bytes:
    """The `length` bytes that were compressed; never more memory than these, whatever the data say.

    Raises:
        ValueError: they are not what was compressed, or by an unknown method.
        MissingDependencyError: the method's package is not installed.
    """
    if method == ZLIB:
        inflater = zlib.decompressobj()
        try:
            expanded = inflater.decompress(data, length) if length else b""
        except zlib.error as error:
            raise ValueError(str(error)) from error
    elif method == ZSTD:
        expanded = _unzstd(data, length)
    else:
        raise ValueError(f"unknown compression {method!r}")
    if len(expanded) != length:
        raise ValueError("compressed data of another length")
    return expanded


def _unzstd(data: bytes, length: int) -> bytes:
    zstandard = _zstandard()
    try:
        if zstandard.frame_content_size(data) != length:
            raise ValueError("compressed data of another length")
        expanded: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=length)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return expanded


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingDependencyError("zstandard", "zstd") from error
    return zstandard
