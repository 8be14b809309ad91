"""LineReader: the lines of an exported file, as objects and with their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, Literal, final

from graphkit.errors import CheckpointFormatError

Form = Literal["lines", "logs"]
"""What a file holds: checkpoints as readable lines, or logs as they are."""

FORMAT: Final = 1
"""The version of the lines; a reader refuses a greater one."""
_FORMS: Final[dict[str, Form]] = {"threads": "lines", "logs": "logs"}
"""By what the first line says."""


@final
class LineReader:
    """Reads the lines of a file, and counts them for error messages."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self._number = 0
        self.text = ""
        """The last line that was read."""

    def read(self) -> dict[str, Any] | None:
        """Return the next line; None at the end of the file.

        Raises:
            CheckpointFormatError: the line is not an object of JSON.
        """
        line = next(self._lines, None)
        if line is None:
            return None
        self._number += 1
        self.text = line
        try:
            data = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise self.error(f"not JSON: {error}") from error
        if not isinstance(data, dict):
            raise self.error("not an object")
        return data

    def read_required(self, of: str) -> dict[str, Any]:
        """Return the next line.

        Args:
            of: the thread to which the line belongs.

        Raises:
            CheckpointFormatError: the file ends here.
        """
        data = self.read()
        if data is None:
            raise self.error(f"the file is cut short within thread {of!r}")
        return data

    def read_head(self, expected: Form | None) -> Form:
        """Return what the file holds, from its first line.

        Raises:
            CheckpointFormatError: it holds something else than was expected, is not an export, or has a
                newer format.
        """
        head = self.read() or {}
        form = _FORMS.get(str(head.get("graphkit")))
        if form is None:
            raise self.error("this is not an export of graphkit")
        if expected not in (None, form):
            raise self.error(f"this is an export in the format {form!r}, not {expected!r}")
        version = head.get("format")
        if type(version) is not int:
            raise self.error("it has no format number")
        if version > FORMAT:
            raise self.error(f"it has format {version}; this graphkit reads up to {FORMAT}")
        return form

    def error(self, reason: str) -> CheckpointFormatError:
        """Return an error that names the line."""
        return CheckpointFormatError("the file", f"line {max(self._number, 1)}: {reason}")


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
