"""World: the process that a command runs in: its streams, terminal, environment, clock and signals."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, Self, TextIO, final

from graphkit.cli.values import UsageError

_NARROWEST: Final = 40
_UNKNOWN: Final = 80
"""The width of a terminal that does not tell."""

Progress = Callable[[int, int, str], object]
"""Is told how much is done, how much there is, and what was done last."""


def _now() -> datetime:
    return datetime.now(UTC)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What the encoding of an output lacks, as JSON would escape it."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex(" ", 2)
    return "".join(f"\\u{unit}" for unit in units.split()), error.end


codecs.register_error("graphkit.escaped", _escaped)


@final
@dataclass(frozen=True, kw_only=True)
class World:
    """What surrounds a command. Nothing else in the package looks at it; tests make their own."""

    out: TextIO
    err: TextIO
    input: TextIO
    is_terminal: bool = False
    """Whether a person looks at `out`."""
    width: int = _UNKNOWN
    """Columns of the terminal."""
    colour: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], datetime] = _now
    zone: tzinfo | None = None
    """What times are shown in; None: the machine's own."""
    as_json: bool = False
    """Whether the command was given --json."""
    debug: bool = False

    @classmethod
    def of_process(cls) -> Self:
        """What this process runs in."""
        is_terminal = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="graphkit.escaped")
        environment = dict(os.environ)
        plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
        width = shutil.get_terminal_size((_UNKNOWN, 24)).columns
        return cls(
            out=sys.stdout,
            err=sys.stderr,
            input=sys.stdin,
            is_terminal=is_terminal,
            width=max(width, _NARROWEST),
            colour=is_terminal and not plain,
            environment=environment,
        )

    @property
    def is_pretty(self) -> bool:
        """Whether output is laid out for a person at a terminal."""
        return self.is_terminal and not self.as_json

    def local(self, when: datetime) -> datetime:
        """A time as the clock on the wall shows it."""
        return when.astimezone(self.zone)

    def say(self, text: str) -> None:
        """Write a line of output, at once."""
        self.out.write(text + "\n")
        self.out.flush()

    def given(self, typed: str) -> str:
        """What was typed for a value; `-` stands for all of the input.

        Raises:
            UsageError: the input is no text.
        """
        try:
            return self.input.read() if typed == "-" else typed
        except UnicodeDecodeError as error:
            raise UsageError(f"the input is no {error.encoding} text") from error

    def warn(self, text: str) -> None:
        """Write a line beside the output."""
        self.err.write(text + "\n")
        self.err.flush()

    def pass_files(self) -> None:
        """Let input and output be UTF-8 with plain ends of lines, whatever the locale: a file goes through them."""
        for stream in (self.input, self.out):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="strict", newline="\n")

    def abandon(self) -> None:
        """Whoever read the output has gone: let the interpreter not try to flush to them."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.out.fileno())

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """A progress bar beside the output, at a terminal; elsewhere nothing."""
        if not self.is_pretty or not self.err.isatty():
            yield lambda *_: None
            return
        from rich.console import Console
        from rich.progress import Progress as Bar

        console = Console(file=self.err, color_system="auto" if self.colour else None)
        with Bar(console=console, transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total, _what: bar.update(task, completed=done, total=total)

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Within it the first SIGINT or SIGTERM calls `stop`; a second one ends the process as ever."""
        before: dict[int, Any] = {}

        def restore() -> None:
            while before:
                signal.signal(*before.popitem())

        def first(_number: int, _frame: object) -> None:
            restore()
            self.warn("stopping at the next node; once more to stop at once")
            stop()

        before.update({number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)})
        try:
            yield
        finally:
            restore()
