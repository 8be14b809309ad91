"""Types of the module that a program runs: `__main__` there, and the name of the file everywhere else."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from graphkit import CheckpointSerializationError, RunnableConfig
from graphkit.saver_kit import Codec
from savers import FileSystemSaver

APP = """
import sys
from dataclasses import dataclass
from enum import Enum
from typing import TypedDict

from graphkit import END, START, RunnableConfig, StateGraph
from savers import FileSystemSaver


class Outer:
    class Kind(Enum):
        NEW = 1


@dataclass
class Item:
    text: str
    kind: Outer.Kind = Outer.Kind.NEW


class State(TypedDict):
    item: Item


graph = StateGraph(State)
graph.add_node("work", lambda state: {"item": Item(state["item"].text + "!")})
graph.add_edge(START, "work")
graph.add_edge("work", END)
app = graph.compile(checkpoint_saver=FileSystemSaver("runs", fsync="never"))


def main(command, thread):
    config = RunnableConfig(thread)
    if command == "store":
        app.invoke({"item": Item("new")}, config)
    item = app.get_state(config).values["item"]
    assert type(item) is Item
    assert type(item.kind) is Outer.Kind
    print(item.text)


if __name__ == "__main__":
    main(*sys.argv[1:])
"""
ROOT = Path(__file__).parents[2]
SCRIPT = ["app.py"]
MODULE = ["-m", "app"]
IMPORTED = ["-c", "import sys, app; app.main(*sys.argv[1:])"]


@pytest.fixture
def run(tmp_path, launcher):
    tmp_path.joinpath("app.py").write_text(APP)
    tmp_path.joinpath("package").mkdir()
    tmp_path.joinpath("package", "app.py").write_text(APP)

    def run_python(*command):
        done = launcher.run(*command, cwd=tmp_path)
        return (done.stdout + done.stderr).strip().split("\n")[-1]

    return run_python


def find_stored_name(path):
    """The name of the first type that a reader without types finds."""
    with pytest.raises(CheckpointSerializationError) as caught:
        FileSystemSaver(path).get(RunnableConfig("t"))
    return caught.value.type_name


WRITERS = [(SCRIPT, "__main__."), (MODULE, "app."), (IMPORTED, "app.")]
PACKAGE_MODULE = ["-m", "package.app"]
PACKAGE_SCRIPT = ["package/app.py"]
PAIRS = [
    (PACKAGE_MODULE, "package.app.", PACKAGE_SCRIPT),
    *((writer, name, reader) for writer, name in WRITERS for reader in (SCRIPT, IMPORTED, MODULE)),
    (PACKAGE_SCRIPT, "__main__.", PACKAGE_MODULE),
]


@pytest.mark.sweep(8)  # the first and the last of them, and two readers for each writer
@pytest.mark.parametrize(("writer", "name", "reader"), PAIRS)
def test_each_entry_point_stores_the_name_that_it_knows_and_reads_what_another_one_stored(
    run, tmp_path, writer, name, reader
):
    assert run(*writer, "store", "t") == "new!"
    assert find_stored_name(tmp_path / "runs") in {f"{name}Item", f"{name}Outer.Kind"}
    assert run(*reader, "show", "t") == "new!"


def test_a_program_that_imports_itself_again_reads_and_stores_both_classes(run, tmp_path):
    assert run(*MODULE, "store", "t") == "new!"
    again = APP.replace("app.invoke({", "import app as twin\n        app.invoke({")
    tmp_path.joinpath("app.py").write_text(again)
    assert run(*MODULE, "store", "t") == "new!"
    assert run(*IMPORTED, "show", "t") == "new!"


def test_the_commands_show_which_types_an_app_has_registered(run, tmp_path):
    assert run(*SCRIPT, "store", "t") == "new!"
    fork = ["-m", "graphkit", "fork", "runs", "t", "u"]
    assert "its module is not known: import that file as a module, take its class" in run(*fork)
    assert "here --app MODULE:OBJECT registers the types in the annotations of that graph's state" in run(*fork)
    tmp_path.joinpath("other.py").write_text(APP.replace("item: Item", "item: object"))
    assert "here --app other:app has registered the types in the annotations" in run(*fork, "--app", "other:app")


SPAWN = """
    process = multiprocessing.get_context("spawn").Process(target=main, args=("store", "t"))
    process.start()
    process.join()
"""


def test_a_spawned_process_stores_the_same_names(run, tmp_path):
    program = APP.replace("    main(*sys.argv[1:])", SPAWN)
    tmp_path.joinpath("app.py").write_text(f"import multiprocessing\n{program}")
    # A new interpreter, because the spawned process looks at how this one was started.
    subprocess.run([sys.executable, *SCRIPT], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    assert find_stored_name(tmp_path / "runs").startswith("__main__.")


@dataclass
class Item:
    text: str


def make_class(module):
    return dataclass(type("Item", (), {"__annotations__": {"text": str}, "__module__": module, "__qualname__": "Item"}))


def pack_as(name):
    codec = Codec()
    codec.register_as(name, Item)
    return codec.pack([Item("x")])


def test_a_name_of_main_is_given_to_the_only_class_of_that_name():
    assert Codec([Item]).unpack(pack_as("__main__.Item")) == [Item("x")]
    assert Codec([Item]).unpack(pack_as("__mp_main__.Item")) == [Item("x")]


def test_a_name_of_main_is_not_given_to_one_of_several_classes():
    codec = Codec([Item])
    data = pack_as("__main__.Item")
    assert codec.unpack(data) == [Item("x")]
    codec.register(make_class("other"))
    with pytest.raises(CheckpointSerializationError, match=f"other.Item and {Item.__module__}.Item have this name"):
        codec.unpack(data)
    exact = make_class("third")
    codec.register_as("__main__.Item", exact)
    assert type(codec.unpack(data)[0]) is exact


def test_names_of_other_modules_are_not_given_to_another_class():
    with pytest.raises(CheckpointSerializationError, match="its type is not registered"):
        Codec([Item]).unpack(pack_as("other.Item"))
