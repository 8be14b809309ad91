"""What a process imports: nothing that a put, a get or a listing of checkpoints does not need."""

import ast

from tests.fresh_process import fresh_process

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


def test_importing_the_packages_loads_the_contract_alone():
    modules = loaded(IMPORT)
    assert packages_of(modules) == ABSTRACT
    assert [name for name in modules if name.startswith("savers")] == ["savers"]


def test_a_store_in_files_loads_neither_engine_nor_other_savers(tmp_path):
    assert packages_of(loaded(IMPORT + USE.format(root=str(tmp_path)))) == STORING


def test_the_first_use_of_a_store_loads_nothing_more_than_its_opening(tmp_path):
    opened = loaded(f"{IMPORT}\nfrom savers import FileSystemSaver\nFileSystemSaver({str(tmp_path)!r})")
    assert {*loaded(IMPORT + USE.format(root=str(tmp_path)))} == {*opened}
