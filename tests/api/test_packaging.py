"""The distribution: its name, its metadata, and what the documents and messages tell users to install."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
REPOSITORY = PROJECT.get("urls", {}).get("Repository", "")
TEXT = {".cfg", ".in", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ""}
FOLDERS = [".ci", ".github", "benchmarks", "docs", "examples", "graphkit", "savers", "tests"]

# The name `graphkit` on the index belongs to another project. What follows an install command up to the end of the
# line, and any `graphkit[extra]`, must therefore say the distribution's name.
INSTALL = re.compile(r"(?:pip3?|pipx|uv|poetry|pdm)[ ](?:install|add|inject|tool install)\b(?P<arguments>[^\n]*)")
WRONG = re.compile(r"(?<![\w/.-])graphkit(?![\w/.-])")
EXTRA = re.compile(r"(?<![\w/.-])graphkit\\*\[[a-z{]")


def texts():
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("*")
    for path in sorted(files):
        is_generated = "__pycache__" in path.parts or "golden" in path.parts
        if path.is_file() and path.suffix in TEXT and not is_generated and path != Path(__file__):
            yield path, path.read_text(encoding="utf-8", errors="replace")


def wrong_installs(text):
    found = [match[0] for match in EXTRA.finditer(text)]
    found += [match[0] for match in INSTALL.finditer(text) if WRONG.search(match["arguments"])]
    return found


def test_no_page_names_the_other_project_for_installation():
    wrong = {str(path.relative_to(ROOT)): found for path, text in texts() if (found := wrong_installs(text))}
    assert wrong == {}


def test_a_wrong_name_is_found_and_a_right_one_is_not():
    for text in ("uv add graphkit", "pip install -U 'graphkit[{extra}]'", r"graphkit\[zstd\]"):
        assert wrong_installs(text), text
    for text in ("pip install 'graphkit-durable[cli]'", "graphkit[0] = 1"):
        assert wrong_installs(text) == [], text


def test_the_distribution_has_one_name():
    assert PROJECT["name"] == "graphkit-durable"
    assert metadata("graphkit-durable")["Version"] == PROJECT["version"]


def test_the_code_names_no_extra_that_does_not_exist():
    named = set()
    for package in ("graphkit", "savers"):
        for path in (ROOT / package).rglob("*.py"):
            named.update(
                re.findall(r"MissingDependencyError\(.+?, ['\"](\w+)['\"]\)", path.read_text(encoding="utf-8"))
            )
    assert {"cli", "langgraph", "postgres", "zstd"} <= named <= set(PROJECT["optional-dependencies"])


BASE_INSTALL = """
import asyncio, importlib, pkgutil, sys

for package in (
    "click cryptography distributed fsspec langgraph mcp openai psycopg psycopg_pool pydantic_ai rich yaml zstandard"
).split():
    sys.modules[package] = None  # as if it were not installed

import graphkit
import savers

modules = ["graphkit", "savers", "savers.langgraph", "savers.log"]
modules += ["graphkit." + found.name for found in pkgutil.iter_modules(graphkit.__path__) if found.name[0] != "_"]
for name in modules:
    exec(f"from {name} import *", {})
    module = importlib.import_module(name)
    assert all(hasattr(module, exported) for exported in getattr(module, "__all__", ())), name
print(*sorted(modules))


class Own(savers.langgraph.FileSystemCheckpointSaver):
    def __init__(self):
        pass


for make in (
    lambda: savers.PostgresSaver("host=nowhere"),
    lambda: savers.PostgresSaver.check_options("host=nowhere"),
    lambda: savers.ObjectStoreSaver("memory://bucket"),
    lambda: savers.Compression(method="zstd"),
    lambda: savers.FileSystemSaver("store", cipher={"k": bytes(32)}),
    lambda: savers.langgraph.PostgresCheckpointSaver("host=nowhere"),
    lambda: savers.langgraph.import_langgraph_sqlite("a.db", "store"),
    lambda: asyncio.run(savers.langgraph.checkpointer().__aenter__()),
    Own,
    lambda: graphkit.agents.make_model("openai:gpt"),
    lambda: graphkit.agents.AgentBuilder().with_chat(str).with_mcp_servers({"files": {"command": "files"}}).build(),
    lambda: graphkit.agents.load_agent("agent.yaml"),
    lambda: graphkit.pydantic_ai.make_durable(None, None),
):
    try:
        make()
    except graphkit.MissingDependencyError as error:
        print(error.extra)

del sys.modules["langgraph"]  # it is installed while the process runs
print(savers.langgraph.FileSystemCheckpointSaver("store").store.threads())
"""


def test_names_need_no_extra_until_an_object_is_made_of_them(tmp_path):
    (tmp_path / "agent.yaml").write_text("name: helper\n")
    command = [sys.executable, "-c", BASE_INSTALL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    modules, *extras = done.stdout.splitlines()
    assert {"graphkit.abc", "graphkit.agents", "graphkit.cli", "graphkit.testing", "savers"} <= {*modules.split()}
    assert extras == [
        *["postgres", "postgres", "objects", "zstd", "encryption", *["langgraph"] * 4],
        *["agents", "agents", "agents", "pydantic-ai"],
        "[]",
    ], done.stderr


# Documents on an index page

LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


def readme_links():
    return [match["target"] for match in LINK.finditer((ROOT / "README.md").read_text(encoding="utf-8"))]


def test_the_links_of_the_readme_work_in_a_clone():
    paths = [link.partition("#")[0] for link in readme_links() if not link.startswith("https://")]
    assert {"docs/tutorial.md", "docs/cli.md", "CHANGELOG.md", "ARCHITECTURE.md"} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_metadata_has_the_addresses_of_the_project():
    links = PROJECT["urls"]
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= set(links)
    assert all(url.startswith(REPOSITORY) for url in links.values())
    prefixes = (f"{REPOSITORY}/blob/main/", f"{REPOSITORY}/tree/main/")
    paths = [link.removeprefix(prefix) for link in links.values() for prefix in prefixes if link.startswith(prefix)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_changelog_has_a_section_for_what_comes_and_for_this_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    released, _, date = headings[1].partition(" - ")
    assert released == PROJECT["version"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)


# What is claimed is tested


def workflow():
    return (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")


def test_ci_and_the_workflow_run_all_tests_on_every_python_that_is_claimed():
    claimed = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f">={claimed[0]}" == PROJECT["requires-python"]
    assert re.search(r"VERSIONS=\$\{VERSIONS:-(.*)\}", script)[1].split() == claimed
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow())[1]) == claimed
    assert "run: .ci/run" in workflow()
    assert "OPTIONS: --full" in workflow()
    command = "python -m pip install -e '.[dev]' && python -m pytest"
    assert command in script
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^full:\n\t.* -m pytest --full$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_source_distribution_has_what_its_tests_need():
    included = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {f"/{folder}" for folder in FOLDERS} | {"/*.md", "/LICENSE", "/Makefile"} <= set(included)
