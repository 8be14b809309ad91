"""The rules of the house that no other tool checks."""

import importlib
import inspect
import pickle
import re
import subprocess
import sys
import tomllib
import typing
from concurrent.futures import Executor
from pathlib import Path

import pytest

import graphkit
import savers
from tests.support.fresh_process import fresh_process

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [graphkit, savers]
MODULES = [
    *PACKAGES,
    *(
        importlib.import_module(f"graphkit.{path.stem}")
        for path in sorted((ROOT / "graphkit").iterdir())
        if not path.name.startswith("_")
        and path.stem not in {"cli", "compat"}
        and (path.suffix == ".py" or (path / "__init__.py").exists())
    ),
    *map(importlib.import_module, ["graphkit.compat.go_agents", "graphkit.compat.hive", "savers.langgraph"]),
]
"""The public modules; the CLI is a program."""


@pytest.mark.requirement("P17", "P87")
def test_types_are_published():
    for package in PACKAGES:
        """The packages are typed."""
        assert (Path(package.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("package", ["graphkit.agents", "savers", "savers.langgraph"])
def test_names_that_are_imported_late_are_listed(package):
    assert fresh_process(f"import {package} as package; print({{*package.__all__}} - {{*dir(package)}})") == "set()\n"


def test_layers_hold():
    # In a process of its own: it sets up logging for itself, which switches our loggers off.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def layers():
    """The layers of graphkit that import-linter checks, top to bottom."""
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    (found,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [[name.strip(" ()").removeprefix("graphkit.") for name in re.split("[|:]", layer)] for layer in found]


def test_the_architecture_shows_the_layers_that_are_checked():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.partition("## Who may import whom")[2]
    shown = [line.split() for line in section.split("```")[1].splitlines() if line]
    assert [sorted(line) for line in shown] == [sorted(layer) for layer in layers()]


def test_the_architecture_names_every_module_and_no_other():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b\w+\.py\b", page))
    modules = {path.name for package in ("graphkit", "savers") for path in (ROOT / package).rglob("*.py")}
    assert named - modules == set()
    assert modules - named == {"__main__.py"}


def test_every_module_of_graphkit_has_a_layer():
    entries = [
        path for path in (ROOT / "graphkit").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    modules = {path.stem for path in entries} - {"__init__", "__main__"}
    assert modules == {name for layer in layers() for name in layer}


def test_savers_may_import_no_private_module_of_graphkit():
    contracts = pyproject()["tool"]["importlinter"]["contracts"]
    (forbidden,) = (contract["forbidden_modules"] for contract in contracts if contract["id"] == "public-names")
    private = [name for layer in layers() for name in layer if name.startswith("_")]
    assert sorted(forbidden) == sorted(f"graphkit.{name}" for name in private)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_is_complete(module):
    assert len({*module.__all__}) == len(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name), name
    defined = {name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__}
    assert {name for name in defined if not name.startswith("_")} <= set(module.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_classes_and_functions_have_a_public_path(module):
    named = {module.__name__: module for module in MODULES}
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__name__ in named[thing.__module__].__all__, name
            assert pickle.loads(pickle.dumps(thing)) is thing


@pytest.mark.parametrize(
    "thing",
    [
        graphkit.AgentState({"items": [1]}),
        graphkit.Checkpoint(node_id="a", next_node_id="b", state={"items": [1]}, metadata={"step": 1}),
        graphkit.RunnableConfig("t", metadata={"key": 1}),
        graphkit.Tag("t", [], 1),
        importlib.import_module("graphkit.compat.go_agents").State({"items": [1]}),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_pickles_name_no_private_module(thing):
    data = pickle.dumps(thing)
    assert b"graphkit._" not in data
    assert pickle.loads(data).__class__ is thing.__class__


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_annotations_of_public_classes_resolve(module):
    for name in module.__all__:
        if inspect.isclass(thing := getattr(module, name)):
            # CompileConfig imports Executor for type checkers only.
            assert isinstance(typing.get_type_hints(thing, localns={"Executor": Executor}), dict)


def is_java_spelling(name):
    return name != name.lower()


def undocumented_methods(cls):
    for name, member in vars(cls).items():
        function = getattr(member, "__func__", member)
        is_public = not name.startswith("_") and not is_java_spelling(name)
        if is_public and inspect.isfunction(function) and not inspect.getdoc(getattr(cls, name)):
            yield f"{cls.__name__}.{name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_everything_public_is_documented(module):
    missing = []
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing):
            missing += undocumented_methods(thing)
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and not thing.__doc__:
            missing.append(name)
    assert missing == []


def test_every_ignored_rule_has_a_reason():
    lines = iter((ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines())
    rules = {rule for rules in ruff_ignores() for rule in rules}
    for line in lines:
        text = line.strip()
        if text.startswith('"') and text.split('"')[1] in rules:
            assert "# " in text, text


def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def ruff_ignores():
    lint = pyproject()["tool"]["ruff"]["lint"]
    return [lint["ignore"], *lint["per-file-ignores"].values()]
