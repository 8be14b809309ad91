"""Every Python block in the documentation runs, in an empty directory and a process new to graphkit.

A block headed ```python continued goes on where the block before it on the page ended. The databases
that the pages name are on a server of the tests, and the models of OpenAI are a local server.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.agents import chat_server

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = ROOT / "docs" / "adr"
CONNECTION_STRING = "postgresql://localhost/graphs"
"""The database of all pages."""
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass
class Script:
    """The blocks of a page that belong together, each on the lines where the page has it."""

    page: Path
    blocks: list[tuple[int, str]] = field(default_factory=list)

    @property
    def name(self):
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.blocks[0][0]}"

    @property
    def source(self):
        lines = []
        for first_line, body in self.blocks:
            lines += [""] * (first_line - 1 - len(lines)) + body.splitlines()
        return "\n".join(lines) + "\n"


def scripts_of(page, text):
    scripts = []
    for match in FENCE.finditer(text):
        language, *rest = match["info"].split() or [""]
        if language != "python":
            continue
        assert rest in ([], ["continued"]), f"{page}: what does ```{match['info']} mean?"
        if not rest:
            scripts.append(Script(page))
        line = text.count("\n", 0, match.start("body")) + 1
        scripts[-1].blocks.append((line, match["body"]))
    return scripts


def pages():
    documents = [page for page in (ROOT / "docs").rglob("*.md") if DECISIONS not in page.parents]
    return [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(documents)]


SCRIPTS = [script for page in pages() for script in scripts_of(page, page.read_text(encoding="utf-8"))]


def test_the_reference_is_that_of_the_code():
    page = ROOT / "docs" / "api.md"
    done = subprocess.run(
        [sys.executable, "-c", "from docs.make_api import write_page; print(write_page(), end='')"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert page.read_text(encoding="utf-8") == done.stdout, "python docs/make_api.py writes the page"


@pytest.fixture
def database(server):
    """The connection string of a new database."""
    return server.create_database()


@pytest.fixture
def model_environment():
    """The environment of a block that asks a model: a local server answers it."""
    with chat_server.start(lambda request: chat_server.text("Hello!")) as server:
        yield {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-of-the-tests"}


def run(launcher, script, directory, database="", environment=None):
    path = directory / (script.page.stem + "_md.py")  # docs/langgraph.md is not to hide the package langgraph
    path.write_text(script.source.replace(CONNECTION_STRING, database), encoding="utf-8")
    if "environ" not in script.source:
        return launcher.run(path, cwd=directory, environment=environment)
    # Packages may read variables when they are imported.
    return subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=directory,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | (environment or {}),
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.mark.requirement("P60", "P45", "P88")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_block_runs(launcher, script, tmp_path, request):
    database = request.getfixturevalue("database") if CONNECTION_STRING in script.source else ""
    environment = request.getfixturevalue("model_environment") if "openai" in script.source else {}
    done = run(launcher, script, tmp_path, database, environment)
    assert done.returncode == 0, f"{script.name}\n{done.stdout}\n{done.stderr}"


def test_a_block_that_fails_is_seen(launcher, tmp_path):
    (script,) = scripts_of(
        ROOT / "README.md", "# Page\n\n```python\nx = 1\n```\n\n```python continued\nassert x == 2\n```\n"
    )
    done = run(launcher, script, tmp_path)
    assert done.returncode != 0
    assert 'README_md.py", line 8' in done.stderr


def read_glossary():
    """Yield the cells of each row of the glossary."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in {"term", "---"}:
            yield cells


def test_the_glossary_has_each_term_once():
    terms = [term for row in read_glossary() for term in row[0].split(", ")]
    assert len(terms) > 60
    assert sorted(terms) == sorted(set(terms))


def test_the_glossary_names_modules_that_exist():
    for terms, _, where, *_ in read_glossary():
        modules = re.findall(r"`([^`]+\.py)`", where)
        assert modules, terms
        for name in modules:
            assert (ROOT / name).is_file(), terms
