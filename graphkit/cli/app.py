"""The commands as click has them: the group of all, and a command, which shows its result and prints its errors."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from keyword import iskeyword
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, get_origin, get_type_hints

import click

from graphkit import __version__
from graphkit._wording import describe_error, simplify_text
from graphkit.cli.cells import describe_known_error
from graphkit.cli.commands import COMMANDS, format_help
from graphkit.cli.context import CliContext
from graphkit.cli.options import option
from graphkit.cli.render import Message, show
from graphkit.cli.stores import find_passwords, names_store, provide_stores
from graphkit.cli.values import UsageError, escape
from graphkit.errors import (
    CheckpointErasedError,
    CheckpointKeyError,
    CheckpointSerializationError,
    CheckpointStorageError,
    GraphKitError,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as in a shell."""
_UNEXPECTED_ERROR: Final = 70
"""The exit code for a bug: EX_SOFTWARE of sysexits.h."""
_EXAMPLE: Final = "Example:"


def run(args: list[str], context: CliContext) -> int:
    """Run a command line, or print what is wrong with an invalid one; return the exit code."""
    try:
        code: int = make_group().main(args, prog_name="graphkit", obj=context, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        context.warn(error.message)
        return UsageError.exit_code
    except click.UsageError as error:
        problem = escape(error.format_message().removesuffix("."))
        hint = "" if error.ctx is None else f"; see `{error.ctx.command_path} --help`"
        context.warn(f"graphkit: {problem}{hint}")
        return UsageError.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return code


def make_group() -> click.Group:
    """Return the group of all commands."""
    group = _Group(None, {name: name for name in COMMANDS})
    return click.version_option(__version__, message="%(prog)s %(version)s")(group)


class _Group(click.Group):
    """All commands, or those that begin with one word. It imports a command when the command is called.

    It accepts `import langgraph-sqlite` for `import-langgraph-sqlite`, and `agents run` for
    `agents-run`. A first word that several commands begin with, such as `agents`, is a group of them.
    """

    def __init__(self, name: str | None, members: Mapping[str, str]) -> None:
        """Make a group.

        Args:
            name: the word that its commands begin with; None: all commands.
            members: what is typed for each command, and the name of the command.
        """
        settings = {"help_option_names": ["--help", "-h"], "show_default": True}
        super().__init__(name, no_args_is_help=True, context_settings=settings)
        self._members = members

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._members)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the same
        if cmd_name not in self._members:
            return None
        name = self._members[cmd_name]
        module = importlib.import_module(f"graphkit.cli.commands.{COMMANDS[name].module}")
        function = name.replace("-", "_")
        return _Command(name, getattr(module, f"{function}_" if iskeyword(function) else function))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(typed, help=COMMANDS[name].summary)
            for typed, name in self._members.items()
            if typed.startswith(incomplete)
        ]
        # Not that of click.Group, which asks every command for its help.
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def get_help(self, ctx: click.Context) -> str:
        if self.name is None:
            return format_help()
        return super().get_help(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the first word, or of the first two words joined by a hyphen."""
        joined = "-".join(args[:2])
        if joined in self._members:
            return super().resolve_command(ctx, [joined, *args[2:]])
        word = args[0]
        is_known = word in self._members
        is_option = word.startswith("-")
        is_alone = len(args) == 1 or args[1].startswith("-")
        if self.name is not None and not is_known and is_alone and "list" in self._members:
            return super().resolve_command(ctx, ["list", *args])  # `audit DIR` is `audit list DIR`
        if is_known or is_option:
            return super().resolve_command(ctx, args)

        # Not in __init__, since a command that exists needs no groups.
        prefix = f"{word}-"
        members = {name.removeprefix(prefix): name for name in self._members if name.startswith(prefix)}
        if members:
            return word, _Group(word, members), args[1:]
        if ctx.resilient_parsing:  # which completion uses
            return super().resolve_command(ctx, args)
        raise click.NoSuchCommand(word, possibilities=self._members, ctx=ctx)


# A command


class _CommonOptions(TypedDict):
    """The options that all commands have."""

    as_json: Annotated[bool, option("Print JSON: all fields, whole ids, times in UTC.", "--json")]
    no_pager: Annotated[bool, option("Never show long output in a pager.")]
    debug: Annotated[bool, option("Show the traceback of an error.")]
    key_file: Annotated[str | None, option("The keys of a sealed store. Default: the file of GRAPHKIT_KEYS.", "FILE")]


class _Command(click.Command):
    """A command of graphkit.

    It is a function that takes a CliContext, and then its arguments and options: the annotation of a
    parameter says which it is, see `graphkit.cli.options`. The function returns a view, an iterator of
    views, or None if it has written its output itself. Its docstring is the help of the command and ends
    with an example.
    """

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        text, _, example = inspect.cleandoc(call.__doc__ or "").partition(_EXAMPLE)
        example = " ".join(example.split())
        super().__init__(name, help=text.strip(), params=_make_params(call), epilog=f"{_EXAMPLE} {example}")
        self._call = call

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        try:
            return super().parse_args(ctx, self._add_directory(ctx, args))
        except click.UsageError as error:
            error.ctx = ctx  # which the parser leaves out of some
            raise

    def _add_directory(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the words of a command line with its DIR, which may be omitted if the environment or --app names it.

        The parser cannot know that: it gives each argument the next word.
        """
        names = [param.name for param in self.params if isinstance(param, click.Argument)]
        if "directory" not in names:
            return args
        default = "" if ctx.obj is None else ctx.obj.environment.get("GRAPHKIT_DIR", "")
        if not self._omits_directory(ctx, args, default):
            return args
        return [default, *args] if names[0] == "directory" else [*args, default]

    def _omits_directory(self, ctx: click.Context, args: list[str], default: str) -> bool:
        words, _, _ = self.make_parser(ctx).parse_args(list(args))
        arguments = [param for param in self.params if isinstance(param, click.Argument)]
        required = [param for param in arguments if param.required]
        if not all(isinstance(words.get(param.name), (str, tuple)) for param in required):
            # The last argument has no word, because each has that of the one before. But while a line is completed,
            # the word is still to come.
            return not ctx.resilient_parsing and (default != "" or isinstance(words.get("app"), str))
        others = [param for param in arguments if param.name != "directory"]
        may_omit_others = any(param.nargs < 0 or not param.required for param in others)
        # No word is missing, but that of DIR may be one of an argument that may be omitted, too: it names no store.
        return default != "" and may_omit_others and not names_store(words["directory"])

    def invoke(self, ctx: click.Context) -> int:
        """Call the command and show its views as they come; return the exit code.

        An error is printed as one sentence, with advice that depends on the command's arguments.
        """
        arguments = dict(ctx.params)
        height = None if arguments.pop("no_pager") else ctx.obj.height
        key_file = arguments.pop("key_file") or ctx.obj.environment.get("GRAPHKIT_KEYS") or None
        names = [value for value in arguments.values() if isinstance(value, str)]
        names.append(ctx.obj.environment.get("GRAPHKIT_DIR", ""))
        context = dataclasses.replace(
            ctx.obj,
            as_json=arguments.pop("as_json"),
            debug=arguments.pop("debug"),
            height=height,
            directory=arguments.get("directory", ""),
            passwords=frozenset(find_passwords(names)),
        )
        try:
            # The views are shown inside the block: a command that returns an iterator reads its stores meanwhile.
            code = 0
            with _redirect_warnings(context), provide_stores(key_file):
                result = self._call(context, **arguments)
                for view in result if isinstance(result, Iterator) else [result]:
                    if isinstance(view, Message):
                        code = view.exit_code
                    if view is not None:
                        show(context, view)
            return code
        except BrokenPipeError:  # `graphkit threads | head`; `main` discards what is left
            return 0
        except KeyboardInterrupt:
            return INTERRUPTED
        except Exception as error:  # noqa: BLE001 - of savers and types of the application, too
            if context.debug:
                context.warn("".join(traceback.format_exception(error)).rstrip())
            known = error
            if isinstance(error, OSError) and not isinstance(error, GraphKitError):
                # What a saver would have raised, had it been opened already. Only what opens a file names it.
                operation = "write" if error.filename is None else "read"
                known = CheckpointStorageError(error.filename or "the output", operation, error)
            if isinstance(known, GraphKitError):
                context.warn(f"graphkit: {_add_advice(known, arguments)}")
                return known.exit_code
            text = simplify_text(describe_error(error))
            context.warn(f"graphkit: {text}; unexpected error: rerun with --debug and please report it")
            return _UNEXPECTED_ERROR


def _make_params(call: Callable[..., Any]) -> list[click.Parameter]:
    """Return the arguments and options of a command by its annotations, and after them those that all commands have."""
    annotations = get_type_hints(call, include_extras=True) | get_type_hints(_CommonOptions, include_extras=True)
    params: list[click.Parameter] = []
    for name, annotation in annotations.items():
        if get_origin(annotation) is Annotated:  # and not the context, nor what the command returns
            (make,) = annotation.__metadata__
            params.append(make(name, annotation.__origin__))
    return params


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


class _LogHandler(logging.Handler):
    def __init__(self, context: CliContext) -> None:
        super().__init__(logging.WARNING)
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as one line."""
        self._context.warn(f"graphkit: {record.levelname.lower()}: {record.getMessage()}")


# Errors


def _add_advice(error: GraphKitError, arguments: Mapping[str, Any]) -> str:
    """Return an error as a sentence, with advice that applies to the command line only."""
    sentence = describe_known_error(error)
    if isinstance(error, CheckpointKeyError) and not isinstance(error, CheckpointErasedError):
        if not error.has_keys:
            sentence = f"{error.path} is sealed with key {error.key_id!r}"
        return f"{sentence}; here --key-file names the keys"
    is_unregistered = isinstance(error, CheckpointSerializationError) and error.raw is not None
    if not is_unregistered or "app" not in arguments:
        return sentence
    app = arguments["app"]
    if app is None:
        return f"{sentence}; here --app MODULE:OBJECT registers the types in the annotations of that graph's state"
    return f"{sentence}; here --app {app} has registered the types in the annotations of its state"
