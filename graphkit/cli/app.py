"""The typer application: every command, with the options that all have, and one place where errors become sentences."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from graphkit._wording import simplify_text
from graphkit.cli.context import CliContext
from graphkit.cli.render import Said, show
from graphkit.cli.resolve import LIKE_A_WORD, near
from graphkit.cli.startup import SUMMARY, version_line
from graphkit.cli.usage_errors import is_usage_error, sentence_of
from graphkit.cli.values import UsageError, shown
from graphkit.errors import CheckpointSerializationError, GraphKitError

SUBJECTS: Final = (
    "threads",
    "stats",
    "inspect",
    "control",
    "run",
    "watch",
    "verify",
    "maintain",
    "transfer",
    "import_langgraph",
)
"""The modules that have commands, as a tuple COMMANDS of functions, in the order of the help.

A command takes a World first, then what is typed; it gives a view, or an iterator of them. Its docstring is its help
and ends with an example.
"""

_AS_JSON: Final = Annotated[bool, typer.Option("--json", help="Print JSON: all fields, whole ids, times in UTC.")]
_DEBUG: Final = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_EXAMPLE: Final = "Example:"
_UNFORESEEN: Final = 70
"""The exit code for an error of graphkit's own: EX_SOFTWARE of sysexits.h."""


def application() -> typer.Typer:
    """The command line as typer has it."""
    app = typer.Typer(
        name="graphkit",
        cls=_Group,
        help=SUMMARY,
        no_args_is_help=True,
        rich_markup_mode=None,  # rich takes 100 ms to import, and help is asked for often
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_options)
    for subject in SUBJECTS:
        for function in importlib.import_module(f"graphkit.cli.commands.{subject}").COMMANDS:
            text, _, example = inspect.getdoc(function).partition(_EXAMPLE)  # type: ignore[union-attr]
            epilog = f"{_EXAMPLE} {' '.join(example.split())}"
            name = function.__name__.rstrip("_").replace("_", "-")
            short = re.split("[.:,]", text)[0]
            app.command(name, cls=_Command, help=text.strip(), short_help=short, epilog=epilog)(
                _as_typer_wants(function)
            )
    return app


class _Group(TyperGroup):
    """Takes `import langgraph-sqlite` for the command `import-langgraph-sqlite`: what is imported is said second."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line and exit; what was typed wrongly is said in graphkit's words.

        With `standalone_mode=False` it returns, and lets every error through, as in Click.
        """
        extra["standalone_mode"] = False
        if not standalone_mode:
            return super().main(*args, **extra)
        context: CliContext = extra["obj"]
        try:
            code = super().main(*args, **extra)
        except KeyboardInterrupt:
            code = 130
        except Exception as error:
            if isinstance(error, UsageError):
                context.warn(f"graphkit: {error}")
            elif type(error).__name__ == "NoArgsIsHelpError":
                context.warn(str(error))
            elif is_usage_error(error):
                context.warn(sentence_of(error))
            else:
                raise
            code = UsageError.exit_code
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if len(args) > 1 and f"{args[0]}-{args[1]}" in self.commands:
            args = [f"{args[0]}-{args[1]}", *args[2:]]
        elif args and not args[0].startswith("-") and args[0] not in self.commands and not ctx.resilient_parsing:
            hint = near(args[0], list(self.commands), likeness=LIKE_A_WORD) or "; see `graphkit --help`"
            raise UsageError(f"there is no command {shown(args[0])}{hint}")
        return super().resolve_command(ctx, args)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line())
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_tell_version)
    ] = False,
) -> None:
    """What stands before a command."""


class _Command(TyperCommand):
    """A command whose directory may be left out, where something else tells it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; if one is missing, the first is taken for left out."""
        given, place = list(args), _default_place(ctx.obj, args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if place is None or type(error).__name__ != "MissingParameter":
                raise
            ctx.params.clear()
            return super().parse_args(ctx, [place, *given])


def _default_place(context: CliContext | None, args: list[str]) -> str | None:
    named = None if context is None else context.environment.get("GRAPHKIT_DIR")
    if named:
        return named
    return "" if any(one.split("=")[0] == "--app" for one in args) else None


def _as_typer_wants(function: Callable[..., Any]) -> Callable[..., None]:
    """The command with the options that all have; its result is shown, its errors are told."""
    signature = inspect.signature(function)
    hints = get_type_hints(function, include_extras=True)
    own = [one.replace(annotation=hints[one.name]) for one in signature.parameters.values() if one.name != "context"]

    def command(ctx: typer.Context, **given: Any) -> None:
        context = dataclasses.replace(ctx.obj, as_json=given.pop("as_json"), debug=given.pop("debug"))
        code = _told(context, lambda: function(context, **given))
        if code:
            raise typer.Exit(code)

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own),
            inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_AS_JSON),
            inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_DEBUG),
        ]
    )
    command.__annotations__ = {}
    return command


def _told(context: CliContext, call: Callable[[], Any]) -> int:
    """Show what a command gives: a view, or several as they come. Returns the exit code."""
    try:
        with _warnings_to(context):
            return _shown(context, call())
    except BrokenPipeError:  # `graphkit threads | head`: whoever read has seen enough
        context.abandon()
        return 0
    except (GraphKitError, OSError) as error:
        if context.debug:
            context.warn("".join(traceback.format_exception(error)).rstrip())
        context.warn(f"graphkit: {simplify_text(str(error))}{_advice(error)}")
        return error.exit_code if isinstance(error, GraphKitError) else 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if context.debug:
            raise
        context.warn(
            f"graphkit: {type(error).__name__}: {simplify_text(str(error))}; "
            f"unexpected error: rerun with --debug and please report it"
        )
        return _UNFORESEEN


@contextmanager
def _warnings_to(context: CliContext) -> Iterator[None]:
    """Say what the library logs, and the warnings of Python, in a line each."""
    handler = _Warnings(context)
    logger = logging.getLogger("graphkit")
    logger.addHandler(handler)
    show_before = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: context.warn(f"graphkit: warning: {message}")
    try:
        yield
    finally:
        warnings.showwarning = show_before
        logger.removeHandler(handler)


def _advice(error: Exception) -> str:
    """What helps here and not elsewhere."""
    is_unknown = isinstance(error, CheckpointSerializationError) and error.raw is not None
    return "; here --app module:object registers the types of that graph" if is_unknown else ""


def _shown(context: CliContext, result: Any) -> int:
    code = 0
    for view in result if isinstance(result, Iterator) else [result]:
        if isinstance(view, Said):
            code = view.exit_code
        if view is not None:  # else it has written its output itself
            show(context, view)
    return code


class _Warnings(logging.Handler):
    """Says what the library logs."""

    def __init__(self, context: CliContext) -> None:
        super().__init__(logging.WARNING)
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        """One line of it."""
        self._context.warn(f"graphkit: {record.levelname.lower()}: {record.getMessage()}")
