"""The group of all commands: finds a command, completes its name, explains an invalid command line."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from keyword import iskeyword
from typing import TYPE_CHECKING

import click

from graphkit import __version__
from graphkit.cli.command import INTERRUPTED, Command
from graphkit.cli.commands import COMMANDS, format_help
from graphkit.cli.context import CliContext
from graphkit.cli.values import UsageError, escape

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


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
        return Command(name, getattr(module, f"{function}_" if iskeyword(function) else function))

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
