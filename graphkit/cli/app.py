"""The Typer application: all commands, their common options, and the printing of errors."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from graphkit._wording import simplify_text
from graphkit.cli.context import CliContext
from graphkit.cli.render import show
from graphkit.cli.resolve import KEY_FILE, WORD_SIMILARITY, close_stores, suggest
from graphkit.cli.startup import SUMMARY, version_line
from graphkit.cli.store_names import find_passwords, hide_passwords
from graphkit.cli.usage_errors import describe_usage_error, is_usage_error
from graphkit.cli.values import UsageError, escape
from graphkit.cli.views import Message
from graphkit.errors import (
    CheckpointKeyError,
    CheckpointSerializationError,
    CheckpointStorageError,
    GraphKitError,
)

COMMAND_MODULES: Final = (
    "threads",
    "history",
    "stats",
    "inspect",
    "graph",
    "control",
    "run",
    "watch",
    "worker",
    "verify",
    "repair",
    "maintain",
    "copy",
    "transfer",
    "import_langgraph",
    "export_langgraph",
    "agents",
)
"""The modules of `graphkit.cli.commands`, in the order of the help. Each has its commands in a
tuple COMMANDS.

A command is a function that takes a CliContext named `context` and then its arguments and options.
It returns a view, an iterator of views, or None if it has written its output itself. Its docstring
is its help and ends with an example."""

_AS_JSON: Final = Annotated[
    bool,
    typer.Option("--json", help="Print JSON: all fields, whole ids, times in UTC."),
]
_DEBUG: Final = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
_KEY_FILE: Final = Annotated[
    str | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="The keys of a sealed store, a line `id base64` each. Default: the file that GRAPHKIT_KEYS names.",
        show_default=False,
    ),
]
_EXAMPLE: Final = "Example:"
_UNEXPECTED_ERROR: Final = 70
"""The exit code for a bug: EX_SOFTWARE of sysexits.h."""
_INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as in a shell."""


def application() -> typer.Typer:
    """Build the Typer application with all commands."""
    app = typer.Typer(
        name="graphkit",
        cls=_Group,
        help=SUMMARY,
        no_args_is_help=True,
        rich_markup_mode=None,  # importing rich takes 100 ms, and users ask for help often
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_global_options)
    for name in COMMAND_MODULES:
        module = importlib.import_module(f"graphkit.cli.commands.{name}")
        for function in module.COMMANDS:
            _add_command(app, function)

    return app


def _add_command(app: typer.Typer, function: Callable[..., Any]) -> None:
    docstring = inspect.getdoc(function) or ""
    text, _, example = docstring.partition(_EXAMPLE)
    name = function.__name__.rstrip("_").replace("_", "-")
    example = " ".join(example.split())
    command = app.command(
        name,
        cls=_Command,
        help=text.strip(),
        short_help=re.split("[.:,]", text)[0],
        epilog=f"{_EXAMPLE} {example}",
    )
    command(_to_typer_function(function))


class _Group(TyperGroup):
    """The group of all commands.

    It accepts `import langgraph-sqlite` for `import-langgraph-sqlite`, and `agents run` for
    `agents-run`. A first word that several commands begin with, such as `agents`, is a group of them.
    """

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line and exit; print what is wrong with an invalid one.

        With `standalone_mode=False` it returns, and lets every error through, as in Click.
        """
        extra["standalone_mode"] = False
        if not standalone_mode:
            return super().main(*args, **extra)
        context: CliContext = extra["obj"]
        try:
            code = super().main(*args, **extra)
        except KeyboardInterrupt:
            code = _INTERRUPTED
        except Exception as error:
            message = _describe_invalid_command_line(error)
            if message is None:
                raise
            context.warn(message)
            code = UsageError.exit_code

        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of the first word, or of the first two words joined by a hyphen.

        Raises:
            UsageError: there is no such command.
        """
        if len(args) > 1 and f"{args[0]}-{args[1]}" in self.commands:
            args = [f"{args[0]}-{args[1]}", *args[2:]]
            return super().resolve_command(ctx, args)
        if args and not ctx.resilient_parsing:  # which completion uses
            group = self._find_group(args[0])
            if group is not None:
                return group.name, group, args[1:]
            self._check_command(args[0])
        return super().resolve_command(ctx, args)

    def _find_group(self, word: str) -> _Group | None:
        """Return the commands that begin with a word which is no command itself, without that word."""
        found: dict[str, Any] = {}
        for name, command in self.commands.items():
            head, _, rest = name.partition("-")
            if head == word:
                found[rest] = command
        if word in self.commands or len(found) < 2:  # noqa: PLR2004 - a group
            return None
        return _Group(name=word, commands=found, no_args_is_help=True, rich_markup_mode=None)

    def _check_command(self, name: str) -> None:
        if name.startswith("-") or name in self.commands:
            return
        hint = suggest(name, list(self.commands), cutoff=WORD_SIMILARITY) or "; see `graphkit --help`"
        raise UsageError(f"there is no command {escape(name)}{hint}")


def _describe_invalid_command_line(error: Exception) -> str | None:
    """Return what to print about an error of the parser; None for other errors."""
    if isinstance(error, UsageError):
        return f"graphkit: {error}"
    if type(error).__name__ == "NoArgsIsHelpError":
        return str(error)  # the help itself
    if is_usage_error(error):
        return describe_usage_error(error)
    return None


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(version_line())
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Declare the options that stand before a command."""


class _Command(TyperCommand):
    """A command whose argument DIR may be omitted if the environment or --app names the store."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. If one is missing, parse them again after the default directory."""
        typed = list(args)
        directory = _default_directory(ctx.obj, args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            takes_directory = any(param.name == "directory" for param in self.params)
            if directory is None or not takes_directory or type(error).__name__ != "MissingParameter":
                raise
        ctx.params.clear()
        return super().parse_args(ctx, [directory, *typed])


def _default_directory(context: CliContext | None, args: list[str]) -> str | None:
    """Return what stands for an omitted DIR; None if it must not be omitted.

    That is the directory of GRAPHKIT_DIR, or "" if --app is given, whose graph may have a saver.
    """
    if context is not None and context.environment.get("GRAPHKIT_DIR"):
        return context.environment["GRAPHKIT_DIR"]
    has_app = any(word.split("=")[0] == "--app" for word in args)
    return "" if has_app else None


def _typer_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a command for Typer: its own, and the options of all commands."""
    hints = get_type_hints(function, include_extras=True)
    annotations: dict[str, Any] = {"ctx": typer.Context}
    defaults: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "context":
            annotations[name] = hints[name]
            defaults[name] = parameter.default

    for name, annotation in (("as_json", _AS_JSON), ("debug", _DEBUG)):
        annotations[name] = annotation
        defaults[name] = False
    annotations["key_file"] = _KEY_FILE
    defaults["key_file"] = None

    parameters = []
    for name, annotation in annotations.items():
        parameter = inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=annotation,
        )
        parameters.append(parameter)

    return parameters


def _to_typer_function(function: Callable[..., Any]) -> Callable[..., None]:
    """Wrap a command for Typer: add the options of all commands, show the result, print errors."""
    parameters = _typer_parameters(function)

    def command(ctx: typer.Context, **arguments: Any) -> None:
        as_json = arguments.pop("as_json")
        debug = arguments.pop("debug")
        key_file = arguments.pop("key_file") or ctx.obj.environment.get("GRAPHKIT_KEYS") or None
        typed = [value for value in arguments.values() if isinstance(value, str)]
        passwords = frozenset(find_passwords(typed))
        context = dataclasses.replace(ctx.obj, as_json=as_json, debug=debug, passwords=passwords)
        token = KEY_FILE.set(key_file)
        try:
            code = _run_command(context, lambda: function(context, **arguments), arguments)
        finally:
            KEY_FILE.reset(token)
        if code:
            raise typer.Exit(code)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


def _run_command(context: CliContext, call: Callable[[], Any], arguments: Mapping[str, Any]) -> int:
    """Call a command and show its views as they come; return the exit code.

    An error is printed as one sentence, with advice that depends on the command's arguments.
    """
    try:
        with _redirect_warnings(context), close_stores():
            return _show_result(context, call())
    except BrokenPipeError:  # `graphkit threads | head`
        context.discard_output()
        return 0
    except (GraphKitError, OSError) as error:
        if context.debug:
            context.warn(_format_trace(error))
        known = error if isinstance(error, GraphKitError) else _describe_os_error(error)
        context.warn(f"graphkit: {_describe_error(known, arguments)}")
        return known.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        trace = "".join(traceback.format_exception(error)).rstrip()
        if context.debug and hide_passwords(trace, context.passwords) != trace:
            context.warn(trace)
        elif context.debug:
            raise
        context.warn(
            f"graphkit: {type(error).__name__}: {simplify_text(str(error))}; "
            f"unexpected error: rerun with --debug and please report it"
        )
        return _UNEXPECTED_ERROR


@contextmanager
def _redirect_warnings(context: CliContext) -> Iterator[None]:
    """Print log records of graphkit from WARNING on, and Python's warnings, one line each.

    LangGraph warns of each type of the application that it reads as plain data, which is what the
    commands ask it to do.
    """
    handler = _LogHandler(context)
    logger = logging.getLogger("graphkit")
    logger.addHandler(handler)
    of_langgraph = logging.getLogger("langgraph")
    level = of_langgraph.level
    of_langgraph.setLevel(logging.ERROR)
    original = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: context.warn(f"graphkit: warning: {message}")
    try:
        yield
    finally:
        warnings.showwarning = original
        logger.removeHandler(handler)
        of_langgraph.setLevel(level)


def _format_trace(error: Exception) -> str:
    """Return the traceback of an error whose message follows as a sentence: the last line has only its type."""
    trace = traceback.TracebackException.from_exception(error)
    message, *notes = trace.format_exception_only()
    lines = [*trace.format()][: -1 - len(notes)]
    return "".join([*lines, message.partition(":")[0], "\n", *notes]).rstrip()


def _describe_os_error(error: OSError) -> GraphKitError:
    """Return what a saver would have raised for an error of the file system that came before it was opened."""
    return CheckpointStorageError(error.filename or "a file", "read", error)


def _describe_error(error: GraphKitError, arguments: Mapping[str, Any]) -> str:
    """Return an error as a sentence, with advice that applies to the command line only."""
    if isinstance(error, CheckpointKeyError) and not error.has_keys:
        return f"{error.path} is sealed with key {error.key_id!r}; here --key-file names the keys"
    return f"{simplify_text(str(error))}{_advice(error, arguments)}"


def _advice(error: GraphKitError, arguments: Mapping[str, Any]) -> str:
    """Return advice that applies to the command line only, as the end of a sentence."""
    if isinstance(error, CheckpointSerializationError) and error.raw is not None and "app" in arguments:
        # A type is not registered.
        if arguments["app"] is None:
            return "; here --app MODULE:OBJECT registers the types in the annotations of that graph's state"
        return f"; here --app {arguments['app']} has registered the types in the annotations of its state"
    if isinstance(error, CheckpointKeyError):
        return "; here --key-file names the keys"
    return ""


def _show_result(context: CliContext, result: Any) -> int:
    """Show what a command returned; return the exit code."""
    code = 0
    views = result if isinstance(result, Iterator) else [result]
    for view in views:
        if isinstance(view, Message):
            code = view.exit_code
        if view is not None:
            show(context, view)
    return code


class _LogHandler(logging.Handler):
    def __init__(self, context: CliContext) -> None:
        super().__init__(logging.WARNING)
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as one line."""
        self._context.warn(f"graphkit: {record.levelname.lower()}: {record.getMessage()}")
