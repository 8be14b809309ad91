"""The group of all commands; and Command, which parses a command line, runs it, and prints what it returns."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from graphkit import __version__
from graphkit._wording import simplify_text
from graphkit.cli.commands import COMMANDS, format_help
from graphkit.cli.context import CliContext
from graphkit.cli.render import Message, show
from graphkit.cli.stores import KEY_FILE, close_stores, find_passwords, hide_passwords
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


_PROGRAM: Final = "graphkit"


def run(args: list[str], context: CliContext) -> int:
    """Run a command line, or print what is wrong with an invalid one; return the exit code."""
    try:
        code: int = make_group().main(args, prog_name=_PROGRAM, obj=context, standalone_mode=False)
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
    """Return the group of all commands, with the options that stand before a command."""
    group = _Group(None, {name: name for name in COMMANDS})
    callbacks = {
        "--version": _print_version,
        "--install-completion": _install_completion,
        "--show-completion": _print_completion,
    }
    for name, callback in callbacks.items():
        option = click.Option([name], is_flag=True, is_eager=True, expose_value=False, callback=callback)
        group.params.append(option)
    return group


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
        module, _, command = COMMANDS[self._members[cmd_name]].path.partition(".")
        loaded = importlib.import_module(f"graphkit.cli.commands.{module}")
        found: click.Command = getattr(loaded, command)
        return found

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
        if is_known or is_option or ctx.resilient_parsing:  # which completion uses
            return super().resolve_command(ctx, args)

        # Not in __init__, since a command that exists needs no groups.
        prefix = f"{word}-"
        members = {}
        for name in self._members:
            if name.startswith(prefix):
                members[name.removeprefix(prefix)] = name
        if members:
            return word, _Group(word, members), args[1:]
        raise click.NoSuchCommand(word, possibilities=self._members, ctx=ctx)


# Options before a command


def _print_version(ctx: click.Context, _param: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        click.echo(f"graphkit {__version__}")
        ctx.exit()


def _print_completion(ctx: click.Context, _param: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        _, script = _make_completion_script(ctx)
        click.echo(script)
        ctx.exit()


_COMPLETION_FILES: Final = {
    "bash": (".bash_completions/graphkit.sh", ".bashrc"),
    "zsh": (".zfunc/_graphkit", ".zshrc"),
    "fish": (".config/fish/completions/graphkit.fish", None),
}
"""For each shell the file of the script, and the file that has to read it, below the home directory."""


def _install_completion(ctx: click.Context, _param: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or ctx.resilient_parsing:
        return
    shell, script = _make_completion_script(ctx)
    if shell not in _COMPLETION_FILES:
        raise click.UsageError(f"cannot install completion in {shell}; --show-completion prints the script", ctx)
    name, startup_name = _COMPLETION_FILES[shell]
    home = Path.home()
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    if startup_name is not None:
        startup = home / startup_name
        text = startup.read_text(encoding="utf-8") if startup.exists() else ""
        line = f"source '{path}'"
        if line not in text.splitlines():
            startup.write_text(f"{text.rstrip()}\n{line}\n", encoding="utf-8")
    click.echo(f"installed completion in {path}; it works in new shells")
    ctx.exit()


def _make_completion_script(ctx: click.Context) -> tuple[str, str]:
    """Return the name of the user's shell, and the script that completes commands there."""
    from click.shell_completion import get_completion_class

    environment = ctx.obj.environment
    shell = Path(environment.get("SHELL", "")).name
    if not shell and "PSModulePath" in environment:
        shell = "powershell"
    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise click.UsageError(f"there is no completion for the shell {escape(shell)}; see SHELL", ctx)
    variable = f"_{_PROGRAM.upper()}_COMPLETE"
    completion = shell_class(ctx.command, {}, _PROGRAM, variable)
    return shell, completion.source()


# A command


INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as in a shell."""
_UNEXPECTED_ERROR: Final = 70
"""The exit code for a bug: EX_SOFTWARE of sysexits.h."""
_EXAMPLE: Final = "Example:"


class Command(click.Command):
    """A command of graphkit.

    Its callback takes a CliContext, and then its arguments and options by name. It returns a view, an
    iterator of views, or None if it has written its output itself. Its docstring is the help of the
    command and ends with an example.
    """

    allow_extra_args = True  # `parse_args` refuses them, in graphkit's words

    def __init__(self, name: str | None, *, help: str, params: list[click.Parameter], **more: Any) -> None:
        text, _, example = inspect.cleandoc(help).partition(_EXAMPLE)
        words = example.split()
        super().__init__(
            name,
            help=text.strip(),
            params=[
                *params,
                click.Option(
                    ["--json", "as_json"], is_flag=True, help="Print JSON: all fields, whole ids, times in UTC."
                ),
                click.Option(["--no-pager"], is_flag=True, help="Never show long output in a pager."),
                click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
                click.Option(
                    ["--key-file"],
                    metavar="FILE",
                    help="The keys of a sealed store, a line `id base64` each. Default: the file that GRAPHKIT_KEYS "
                    "names.",
                ),
            ],
            epilog=" ".join([_EXAMPLE, *words]),
            **more,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments.

        The argument DIR may be omitted if the environment or --app names the store. The parser cannot
        know that: it takes the first word for DIR, and misses the last argument. Then the words are
        parsed again, after the directory that stands for the omitted one.
        """
        typed = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.MissingParameter:
            directory = "" if ctx.obj is None else ctx.obj.environment.get("GRAPHKIT_DIR", "")
            # In the words themselves: the parser has failed, and what it had understood until then is lost.
            has_app = any(word.split("=")[0] == "--app" for word in typed)
            takes_directory = any(param.name == "directory" for param in self.params)
            if not takes_directory or not (directory or has_app):
                raise
            ctx.params.clear()
            rest = super().parse_args(ctx, [directory, *typed])
        except click.UsageError as error:
            error.ctx = ctx  # which the parser leaves out of some
            raise
        if rest and not ctx.resilient_parsing:  # which completion uses
            raise click.UsageError(f"unexpected argument: {escape(' '.join(rest))}", ctx)
        return rest

    def invoke(self, ctx: click.Context) -> int:
        """Call the command, show what it returns, and print its errors; return the exit code."""
        arguments = dict(ctx.params)
        as_json = arguments.pop("as_json")
        debug = arguments.pop("debug")
        height = None if arguments.pop("no_pager") else ctx.obj.height
        key_file = arguments.pop("key_file")
        if not key_file:
            key_file = ctx.obj.environment.get("GRAPHKIT_KEYS") or None
        typed = [value for value in arguments.values() if isinstance(value, str)]
        passwords = frozenset(find_passwords(typed))
        context = dataclasses.replace(
            ctx.obj,
            as_json=as_json,
            debug=debug,
            height=height,
            passwords=passwords,
        )
        callback = self.callback
        assert callback is not None
        # A context variable, not an argument: most commands open stores, many of them in functions that they share.
        token = KEY_FILE.set(key_file)
        try:
            return _run(context, lambda: callback(context, **arguments), arguments)
        finally:
            KEY_FILE.reset(token)


def _run(context: CliContext, call: Callable[[], Any], arguments: Mapping[str, Any]) -> int:
    """Call a command and show its views as they come; return the exit code.

    An error is printed as one sentence, with advice that depends on the command's arguments.
    """
    try:
        # The views are shown inside the block: a command that returns an iterator reads its stores while it is shown.
        code = 0
        with _redirect_warnings(context), close_stores():
            result = call()
            for view in result if isinstance(result, Iterator) else [result]:
                if isinstance(view, Message):
                    code = view.exit_code
                if view is not None:
                    show(context, view)
        return code
    except BrokenPipeError:  # `graphkit threads | head`
        context.discard_output()
        return 0
    except (GraphKitError, OSError) as error:
        if context.debug:
            context.warn(_format_trace(error))
        if isinstance(error, GraphKitError):
            known = error
        else:  # as a saver would have raised it, had it been opened already
            known = CheckpointStorageError(error.filename or "a file", "read", error)
        context.warn(f"graphkit: {_describe_error(known, arguments)}")
        return known.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # With --debug a bug is raised as it is, so that a debugger stops where it happened; but not if the traceback
        # would show a password: then it is printed, with the password hidden.
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


class _LogHandler(logging.Handler):
    def __init__(self, context: CliContext) -> None:
        super().__init__(logging.WARNING)
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as one line."""
        self._context.warn(f"graphkit: {record.levelname.lower()}: {record.getMessage()}")


# Errors


def _format_trace(error: Exception) -> str:
    """Return the traceback of an error whose message follows as a sentence: the last line has only its type."""
    trace = traceback.TracebackException.from_exception(error)
    message, *notes = trace.format_exception_only()
    lines = [*trace.format()][: -1 - len(notes)]
    return "".join([*lines, message.partition(":")[0], "\n", *notes]).rstrip()


def _describe_error(error: GraphKitError, arguments: Mapping[str, Any]) -> str:
    """Return an error as a sentence, with advice that applies to the command line only."""
    sentence = simplify_text(str(error))
    if isinstance(error, CheckpointKeyError) and not isinstance(error, CheckpointErasedError):
        if not error.has_keys:
            sentence = f"{error.path} is sealed with key {error.key_id!r}"
        return f"{sentence}; here --key-file names the keys"
    if not isinstance(error, CheckpointSerializationError) or error.raw is None:
        return sentence

    # A type is not registered.
    if "app" not in arguments:
        return sentence
    app = arguments["app"]
    if app is None:
        return f"{sentence}; here --app MODULE:OBJECT registers the types in the annotations of that graph's state"
    return f"{sentence}; here --app {app} has registered the types in the annotations of its state"
