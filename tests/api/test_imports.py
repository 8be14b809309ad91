"""What a process imports: nothing that a put, a get, a listing of checkpoints or a command does not need."""

import ast

import pytest

from tests.support.fresh_process import fresh_process

IMPORT = "import sys, graphkit, savers"
USE = """
from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
saver = FileSystemSaver({root!r}, fsync="never")
saver.put(RunnableConfig("t"), Checkpoint(node_id="a", next_node_id="b", state={{"n": 1}}))
assert saver.get(RunnableConfig("t")).state["n"] == 1
assert len(saver.list(RunnableConfig("t"))) == len(saver.history(RunnableConfig("t"))) == 1
"""
SHOW = """
print([name for name in sys.modules if name.partition(".")[0] in {"graphkit", "savers"}])
"""
COMMAND = """
import contextlib, io, sys
from graphkit.cli.main import main
sys.argv = ["graphkit", *{arguments!r}]
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.suppress(SystemExit):
    main()
assert not {{*sys.modules}} & {unwanted!r}, sys.modules.keys() & {unwanted!r}
"""
HEAVY = {"asyncio", "filelock", "langgraph", "mcp", "openai", "psycopg", "pydantic", "rich", "sqlite3", "watchdog"}
ABSTRACT = {"graphkit", "graphkit._records", "graphkit._saver", "graphkit._values", "savers"}
"""The packages behind the names of `graphkit`'s contract, which `import graphkit, savers` loads."""
STORING = ABSTRACT | {"graphkit._values.codec", "savers._delta", "savers._filesystem", "savers._log"}
"""Those that a store in files needs, too."""


def loaded(code):
    """The modules of ours that a new process has after running some code."""
    return ast.literal_eval(fresh_process(f"{code}\n{SHOW}"))


def packages_of(modules):
    """The packages that these modules belong to."""
    return {name.rpartition(".")[0] or name for name in modules}


@pytest.mark.requirement("P9")
def test_importing_the_packages_loads_the_contract_alone_and_nothing_heavy():
    modules = loaded(f"{IMPORT}\nassert not {{*sys.modules}} & {HEAVY | {'click'}!r}")
    assert packages_of(modules) == ABSTRACT
    assert [name for name in modules if name.startswith("savers")] == ["savers"]


def test_a_store_in_files_loads_neither_engine_nor_other_savers(tmp_path):
    assert packages_of(loaded(IMPORT + USE.format(root=str(tmp_path)))) == STORING


def test_the_first_use_of_a_store_loads_nothing_more_than_its_opening(tmp_path):
    opened = loaded(f"{IMPORT}\nfrom savers import FileSystemSaver\nFileSystemSaver({str(tmp_path)!r})")
    assert {*loaded(IMPORT + USE.format(root=str(tmp_path)))} == {*opened}


def test_a_graph_of_channels_without_a_saver_loads_no_codec():
    loaded(
        "import sys; from graphkit import START, StateGraph\n"
        "StateGraph({}).add_node('a', dict).add_edge(START, 'a').set_finish_point('a').compile().invoke({})\n"
        "assert 'msgpack' not in sys.modules"
    )


# Commands


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_load_neither_commands_nor_the_parser(arguments):
    modules = loaded(COMMAND.format(arguments=arguments, unwanted={"click", "savers", *HEAVY}))
    assert {*modules} - {*loaded("import sys, graphkit")} == {
        *["graphkit.cli", "graphkit.cli.commands", "graphkit.cli.main"]
    }


def test_the_completion_of_a_command_loads_none():
    code = (
        "import os\nos.environ |= {'_GRAPHKIT_COMPLETE': 'bash_complete', 'COMP_WORDS': 'graphkit ', 'COMP_CWORD': '1'}"
    )
    modules = loaded(code + COMMAND.format(arguments=[], unwanted={"savers", *HEAVY}))
    assert "graphkit.cli.app" in modules
    assert [name for name in modules if name.startswith("graphkit.cli.commands.")] == []


def test_the_help_of_a_command_opens_no_store():
    modules = loaded(COMMAND.format(arguments=["interrupts", "--help"], unwanted={"savers", *HEAVY}))
    assert packages_of(modules) == ABSTRACT - {"savers"} | {"graphkit.cli", "graphkit.cli.commands"}


@pytest.mark.parametrize("arguments", [["threads"], ["interrupts"], ["search", "a=1"]])
def test_a_command_that_lists_loads_one_module_of_commands_and_no_engine(arguments, tmp_path):
    fresh_process(IMPORT + USE.format(root=str(tmp_path)))
    command, *rest = arguments
    modules = loaded(COMMAND.format(arguments=[command, str(tmp_path), *rest], unwanted=HEAVY))
    assert packages_of(modules) == STORING | {"graphkit.cli", "graphkit.cli.commands"}
    assert len([name for name in modules if name.startswith("graphkit.cli.commands.")]) == 1
