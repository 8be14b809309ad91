"""Every command and option is documented, has an example that can be typed, and takes what all commands take."""

import re
import shlex
from pathlib import Path

import click
import pytest

from graphkit import errors
from graphkit.cli import commands
from graphkit.cli.app import make_group

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text(encoding="utf-8")
GROUP = make_group()
COMMANDS = {name: GROUP.get_command(click.Context(GROUP), name) for name in commands.COMMANDS}


def section(name):
    return re.split(r"^#{2,3} ", PAGE.split(f"\n### {name}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def parse(line):
    """The name and the context of a command that a page shows; `import langgraph-sqlite` is one command in two words."""
    _, *words = shlex.split(line)
    if " ".join(words).startswith("import langgraph-") or words[0] in {"agents", "audit", "schedule"}:
        words = ["-".join(words[:2]), *words[2:]]
    name, *args = words
    return name, COMMANDS[name].make_context(name, args)


def commands_of(page):
    """The commands in the fenced blocks of a page."""
    fences = re.findall(r"^```([^\n`]*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fences if language in {"", "sh"}]
    return [line for block in blocks for line in block.splitlines() if line.startswith("graphkit ")]


SHOWN = [(page.name, line) for page in sorted(DOCS.glob("*.md")) for line in commands_of(page)]


def has_store_or_needs_none(name, context):
    """Whether a command has its directory or, if it is about agents, its file."""
    if name == "agents-schema":
        return True
    argument = {"agents": "file", "audit": "log"}.get(name.partition("-")[0], "directory")
    return bool(context.params[argument])


def own(command):
    return [param for param in command.params if param.name not in {"as_json", "debug", "no_pager", "key_file", "help"}]


def test_every_command_of_the_page_exists_and_the_other_way_round():
    assert set(re.findall(r"^### (\S+)$", PAGE, re.MULTILINE)) == set(COMMANDS)


def test_the_page_has_the_groups_of_the_help_in_their_order():
    _, *parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    sections = zip(parts[::2], parts[1::2], strict=True)
    found = {title: re.findall(r"^### (\S+)$", text, re.MULTILINE) for title, text in sections}
    for title, group in commands.GROUPS.items():
        assert found[title] == list(group)
    helped = re.findall(r"^(\S.*):$", commands.format_help(), re.MULTILINE)
    assert helped == ["Options", *commands.GROUPS]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_a_command_are_those_of_its_section(name):
    text = section(name)
    command = COMMANDS[name]
    for param in own(command):
        for word in words_of(param):
            whole_word = rf"(?<![\w-]){re.escape(word)}(?![\w-])"
            assert re.search(whole_word, text), word
        assert param.help, param.name
    known = set()
    for param in command.params:
        known.update(param.opts, param.secondary_opts)
    for line in text.splitlines():
        if line.startswith("- `-"):
            head, _, _ = line.partition(":")
            described = re.findall(r"`(--?[a-z-]+)`", head)
            assert set(described) <= known


def words_of(param):
    """How a parameter is typed."""
    if param.param_type_name == "argument":
        return [param.make_metavar(click.Context(GROUP))]
    return [*param.opts, *param.secondary_opts]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_what_all_take_and_has_an_example_and_a_help(name):
    command = COMMANDS[name]
    options = {word for param in command.params for word in param.opts}
    assert {"--json", "--debug", "--key-file"} <= options
    example = command.epilog.removeprefix("Example: ")
    assert example in section(name)
    called, context = parse(example)
    assert called == name
    assert has_store_or_needs_none(name, context)
    text = command.help.replace("\n", " ")
    assert text.startswith(commands.COMMANDS[name].summary)


def test_each_command_that_a_page_shows_parses():
    for page, line in SHOWN:
        name, context = parse(line)
        assert has_store_or_needs_none(name, context), (page, line)
    assert {page for page, _ in SHOWN} >= {"cli.md", "langgraph.md"}


def test_every_exit_code_of_an_error_is_in_the_table():
    table = re.search(r"\| exit code.*?\n\n", PAGE, re.DOTALL)[0]
    first_cells = [row.split("|")[1] for row in table.strip().splitlines()[2:]]
    documented = {int(number) for cell in first_cells for number in re.findall(r"\d+", cell)}
    classes = [thing for thing in vars(errors).values() if isinstance(thing, type)]
    codes = {error_class.exit_code for error_class in classes if issubclass(error_class, errors.GraphKitError)}
    assert codes | {0, 2, 5, 6, 70, 124, 130} == documented


def test_what_all_have_is_on_the_page():
    beginning = PAGE.split("### ")[0]
    for word in (
        *["--json", "--debug", "--no-pager", "--key-file", "--help", "-h", "--version"],
        *["_GRAPHKIT_COMPLETE", "GRAPHKIT_KEYS", "GRAPHKIT_DIR", "NO_COLOR"],
    ):
        assert f"`{word}" in beginning or f" {word}`" in beginning, word
