"""KeyFile: the keys of a saver in a file, for the command line and for configurations."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from graphkit.errors import CheckpointerConfigurationError

if TYPE_CHECKING:
    import os

_FIELDS: Final = 2
"""A line has a key id and a key."""


@final
class KeyFile:
    """A `cipher` whose keys stand in a file, one per line: its id, and the key in base64.

    The first key is the current one. Empty lines, and lines that begin with `#`, are skipped. The
    file is read each time a key is needed: that is when a log is opened. A pickle holds only its
    path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Path(path).absolute())

    def __call__(self, key_id: str | None) -> bytes | tuple[str, bytes]:
        """Return a key by its id; for None the id of the current key, and the key.

        Raises:
            LookupError: the file has no such key.
            CheckpointerConfigurationError: the file cannot be read, or is malformed.
        """
        keys = self.read()
        if key_id is None:
            return next(iter(keys.items()))
        return keys[key_id]

    def read(self) -> dict[str, bytes]:
        """Return all keys, the current one first.

        Raises:
            CheckpointerConfigurationError: the file cannot be read, or is malformed. The message
                shows no key.
        """
        try:
            lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointerConfigurationError(f"the key file {self.path} cannot be read: {error}") from error
        keys: dict[str, bytes] = {}
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if not fields or fields[0].startswith("#"):
                continue
            key = _decode_key(fields[1]) if len(fields) == _FIELDS else None
            if key is None:
                raise self._error(number, "must be a key id and 32 bytes in base64")
            if fields[0] in keys:
                raise self._error(number, f"repeats the key id {fields[0]!r}")
            keys[fields[0]] = key
        if not keys:
            raise CheckpointerConfigurationError(f"the key file {self.path} has no key")
        return keys

    def _error(self, number: int, reason: str) -> CheckpointerConfigurationError:
        return CheckpointerConfigurationError(f"line {number} of the key file {self.path} {reason}")

    def __repr__(self) -> str:
        return f"KeyFile({self.path!r})"


def _decode_key(text: str) -> bytes | None:
    try:
        key = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return None
    return key if len(key) == 32 else None  # noqa: PLR2004 - as the message says
