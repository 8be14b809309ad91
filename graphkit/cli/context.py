"""World: the process that a command runs in: its streams, terminal, environment, clock and signals."""

from __future__ import annotations

import codecs
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import partial
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


@contextmanager
def _handlers_on(old: TextIO, new: TextIO) -> Iterator[None]:
    """Let log handlers that write to one stream write to another."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = [handler for one in loggers if isinstance(one, logging.Logger) for handler in one.handlers]
    moved = [one for one in handlers if isinstance(one, logging.StreamHandler) and one.stream is old]
    for handler in moved:
        handler.setStream(new)
    try:
        yield
    finally:
        for handler in moved:
            handler.setStream(old)


@final
@dataclass(frozen=True, kw_only=True)
class CliContext:
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
    above: list[Callable[[str], object]] = field(default_factory=list, repr=False, compare=False)
    """Who redraws the last lines of the terminal at the moment: each writes a line above. Copies share the list."""

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
        """Write a line beside the output; above what is being redrawn, if anything is."""
        if self.above:
            self.above[-1](text)
            return
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
    def progress(self, title: str, *, is_wanted: bool = True) -> Iterator[Progress]:
        """A progress bar beside the output, at a terminal; elsewhere nothing.

        Args:
            title: what goes on.
            is_wanted: false if the output itself is written meanwhile, so that a bar would run into it.
        """
        if not is_wanted or not self.is_pretty or not self.err.isatty():
            yield lambda *_: None
            return
        from rich.console import Console
        from rich.progress import Progress as Bar

        console = Console(file=self.err, color_system="auto" if self.colour else None)
        above = partial(console.print, markup=False, highlight=False, emoji=False, soft_wrap=True)
        with Bar(console=console, transient=True) as bar, self.drawing(above):
            task = bar.add_task(title, total=None)
            yield lambda done, total, _what: bar.update(task, completed=done, total=total)

    @contextmanager
    def drawing(self, above: Callable[[str], object]) -> Iterator[None]:
        """Within it rich redraws the last lines of the terminal, and warnings and logs are written above them.

        Args:
            above: writes a line there.
        """
        if not self.err.isatty():
            yield
            return
        self.above.append(above)
        try:
            # rich replaces sys.stderr. An application's log handlers were made before, and still have the old one.
            with _handlers_on(self.err, sys.stderr):
                yield
        finally:
            self.above.pop()

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
