"""The group of all commands: finds a command, installs completion, explains an invalid command line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from graphkit import __version__
from graphkit.cli.command import INTERRUPTED
from graphkit.cli.commands import COMMANDS, format_help
from graphkit.cli.context import CliContext
from graphkit.cli.values import UsageError, escape

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
