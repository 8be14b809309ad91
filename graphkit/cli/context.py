"""CliContext: streams, terminal, environment, clock and signals of a command."""

from __future__ import annotations

import codecs
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Any, Final, Self, TextIO, final

from graphkit._saver.capabilities import Progress
from graphkit.cli.stores import hide_passwords
from graphkit.cli.values import UsageError, escape, escape_lines, parse_age, parse_json, to_json, wrap_words

_STDERR: Final = 2
"""The descriptor of standard error."""
_MIN_WIDTH: Final = 40
_DEFAULT_WIDTH: Final = 80
"""The width of a terminal whose size is unknown."""


def _escape_as_json(error: UnicodeError) -> tuple[str, int]:
    """Escape characters that an encoding lacks, as JSON does; a codec error handler."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    # JSON escapes a letter beyond U+FFFF as two surrogates, which are the units of UTF-16.
    utf16_units = text.encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
    return "".join(f"\\u{unit}" for unit in utf16_units), error.end


codecs.register_error("graphkit.escaped", _escape_as_json)


@final
@dataclass(frozen=True, kw_only=True)
class CliContext:
    """The surroundings of a command.

    No other code of the CLI accesses them; tests build their own.
    """

    out: TextIO
    err: TextIO
    input: TextIO
    is_terminal: bool = False
    """Whether `out` is a terminal."""
    width: int = _DEFAULT_WIDTH
    """Columns of the terminal."""
    height: int | None = None
    """Lines of the terminal; None: output is never shown in a pager."""
    colour: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    zone: tzinfo | None = None
    """The time zone in which times are shown; None: that of the machine."""
    as_json: bool = False
    """Whether the command has the option --json."""
    debug: bool = False
    directory: str = ""
    """The store that the user typed, or the environment has, if the command takes one."""
    passwords: frozenset[str] = frozenset()
    """Passwords in what the user typed; hidden in all messages."""
    writers_above: list[Callable[[str], object]] = field(default_factory=list)
    """While the last lines of the terminal are redrawn: functions that write a line above them. The
    last one is in use. Copies of the context share the list."""

    @classmethod
    def of_process(cls) -> Self:
        """Return the context of this process."""
        is_terminal = sys.stdout.isatty()
        # The encoding stays that of the locale, since what reads a pipe expects it. A letter that it lacks must not end
        # a listing in the middle, and in JSON it must stay JSON.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="graphkit.escaped")

        environment = dict(os.environ)
        is_plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
        width, height = shutil.get_terminal_size((_DEFAULT_WIDTH, 24))
        return cls(
            out=sys.stdout,
            err=sys.stderr,
            input=sys.stdin,
            is_terminal=is_terminal,
            width=max(width, _MIN_WIDTH),
            height=height if sys.stdin.isatty() else None,
            colour=is_terminal and not is_plain,
            environment=environment,
        )

    @property
    def is_pretty(self) -> bool:
        """Whether output is laid out for a person at a terminal."""
        return self.is_terminal and not self.as_json

    @property
    def line_width(self) -> int | None:
        """The number of columns that a line may have; None where output is never cut or wrapped."""
        return self.width if self.is_pretty else None

    def to_local_time(self, when: datetime) -> datetime:
        """Convert a time to the zone in which times are shown."""
        try:
            return when.astimezone(self.zone)
        except OverflowError:  # the last day of the calendar, by which applications mean "never", or the first
            return when

    def describe_time(self, when: datetime) -> str:
        """Return a time as part of a sentence: at a terminal in its zone, elsewhere in UTC."""
        if self.is_pretty:
            return f"{self.to_local_time(when):%Y-%m-%d %H:%M:%S %Z}"
        return when.isoformat(timespec="seconds")

    def parse_time(self, text: str) -> datetime:
        """Parse the value of --at: a time such as 2026-12-01T08:00, or with a zone 2026-12-01T08:00+01:00.

        Raises:
            UsageError: it is not one.
        """
        try:
            parsed = datetime.fromisoformat(text)
            return parsed.replace(tzinfo=parsed.tzinfo or self.zone).astimezone(UTC)
        except (ValueError, OverflowError):
            raise UsageError(f"--at: {escape(text)} is not a time; write it as 2026-12-01T08:00") from None

    def time_ago(self, age: str | None) -> datetime | None:
        """Return the time as long ago as the user typed, such as 12h or 30d; None if nothing was typed."""
        return None if age is None else self.now() - parse_age(age)

    def write_line(self, text: str) -> None:
        """Write a line of output, and flush it."""
        self.out.write(text + "\n")
        self.out.flush()

    def write_lines(self, lines: Sequence[str]) -> None:
        """Write lines of output; in a pager if the terminal has no room for them and for the next prompt."""
        if self.is_pretty and self.height is not None and len(lines) >= self.height:
            from click import echo_via_pager

            echo_via_pager([f"{line}\n" for line in lines], color=self.colour)
            return
        for line in lines:
            self.write_line(line)

    def ask(self, question: str) -> str:
        """Return the line that the user types after a question; "" if the input has ended.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        self.err.write(question)
        self.err.flush()
        return self.input.readline()

    @property
    def can_ask(self) -> bool:
        """Whether a person can answer a question."""
        return self.is_terminal and self.input.isatty()

    def read_json(self, typed: str, name: str) -> Any:
        """Return the value of an option that is JSON; `-` stands for all of standard input.

        Args:
            typed: what the user typed.
            name: the option, for the error.

        Raises:
            UsageError: it is not JSON, or standard input is not text.
        """
        text = typed
        if typed == "-":
            try:
                text = self.input.read()
            except UnicodeDecodeError as error:
                raise UsageError(f"standard input is not {error.encoding} text") from error
        return parse_json(text, name)

    def read_run_input(self, typed: str) -> dict[str, Any]:
        """Return the value of --input, the input of a run, as `read_json` does.

        Raises:
            UsageError: it is not a JSON object.
        """
        value = self.read_json(typed, "--input")
        if not isinstance(value, dict):
            raise UsageError(f'--input must be a JSON object such as {{"key": 1}}, not {to_json(value)}')
        return value

    def warn(self, text: str) -> None:
        """Write a line to standard error; above the lines that are being redrawn, if any.

        At a terminal a long line is broken between words.
        """
        # An error may quote a store, a server or a file that somebody else wrote.
        text = escape_lines(hide_passwords(text, self.passwords))
        if self.err.isatty() and "\n" not in text:
            text = "\n".join(wrap_words(text, self.width, 2))
        if self.writers_above:
            self.writers_above[-1](text)
            return
        # A warning that nobody can read must not end a run: its node would fail, or its worker stop.
        with suppress(OSError):
            self.err.write(text + "\n")
            self.err.flush()

    def use_utf8(self) -> None:
        r"""Use UTF-8 and "\n" regardless of the locale: the streams carry a file."""
        for stream in (self.input, self.out):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="strict", newline="\n")

    @contextmanager
    def progress(self, title: str, *, is_wanted: bool = True) -> Iterator[Progress]:
        """Show a progress bar on standard error, at a terminal; elsewhere nothing.

        Args:
            title: the label of the bar.
            is_wanted: False if the command writes output meanwhile, which the bar would mix with.
        """
        if not is_wanted or not self.is_pretty or not self.err.isatty():
            yield lambda *_: None
            return
        from rich.console import Console
        from rich.progress import Progress as ProgressBar

        console = Console(file=self.err, color_system="auto" if self.colour else None)
        write_above = partial(console.print, markup=False, highlight=False, emoji=False, soft_wrap=True)
        with ProgressBar(console=console, transient=True) as bar, self.redraw(write_above):
            task = bar.add_task(title, total=None)
            yield lambda done, total, _what: bar.update(task, completed=done, total=total)

    @contextmanager
    def redraw(self, write_above: Callable[[str], object]) -> Iterator[None]:
        """Write warnings and logs above the lines that rich redraws inside the block.

        Args:
            write_above: writes a line there.
        """
        if not self.err.isatty():
            yield
            return
        # rich replaces sys.stderr, but log handlers that the application of --app has made still have the old one.
        redirected: list[logging.StreamHandler[Any]] = []
        for logger in (logging.root, *logging.root.manager.loggerDict.values()):
            if isinstance(logger, logging.Logger):  # and not a placeholder of the logging module
                streams = [handler for handler in logger.handlers if isinstance(handler, logging.StreamHandler)]
                redirected += [handler for handler in streams if handler.stream is self.err]
        self.writers_above.append(write_above)
        for handler in redirected:
            handler.setStream(sys.stderr)
        try:
            yield
        finally:
            for handler in redirected:
                handler.setStream(self.err)
            self.writers_above.pop()

    @contextmanager
    def stop_on_signal(self, stop: Callable[[], object]) -> Iterator[Callable[[], None]]:
        """Call `stop` at the first SIGINT or SIGTERM inside the block. The second one ends the process as usual.

        Yields a function that calls `stop` again if a signal has come: perhaps there was nothing to stop yet.
        """
        previous: dict[int, Any] = {}

        def restore() -> None:
            while previous:
                signal.signal(*previous.popitem())

        def handle_first(_number: int, _frame: object) -> None:
            # Before the message: a second signal, which may come while this handler runs, must end the process.
            restore()
            # Not `warn`: a node may be printing to the same stream at this moment, whose lock is not reentrant.
            with suppress(OSError):  # without a standard error the run stops, too
                os.write(_STDERR, b"stopping after the current node; press Ctrl-C again to stop now\n")
            stop()

        def stop_again() -> None:
            if not previous:
                stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, handle_first)
        try:
            yield stop_again
        finally:
            restore()
