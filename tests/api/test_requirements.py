"""docs/requirements.md: a test cites only numbers that the page has, and the page names only tests that exist."""

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from graphkit.testing import SaverContract

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
DOCS = ROOT / "docs"
PAGE = (DOCS / "requirements.md").read_text(encoding="utf-8")
HEADER = "| id | what holds | tests |"
MOST_WORDS = 25

NOT_TESTED = {"P84"}
"""Implemented, and measured by a benchmark: a time, which no test asserts."""

ID = r"[PGHL]\d+|promise \d+|behaviour \d+"
NUMBERED = re.compile(r"(?:\b|_)(promise|behaviour)s?[ _](\d+(?:(?:, | and | to )\d+)*)", re.IGNORECASE)
ELSEWHERE = re.compile(r"\bDESIGN\b|[Rr]eference, section|[Bb]ehaviour, section")
"""Documents that the repository does not have."""


@dataclass
class Row:
    """One requirement as the page has it."""

    id: str
    holds: str
    proof: str

    @property
    def tests(self):
        return re.findall(r"`([^`]+::[^`]+)`", self.proof)

    @property
    def is_planned(self):
        return self.proof.startswith("planned: ")


def rows_of(page):
    tables = page.split(HEADER + "\n|---|---|---|\n")[1:]
    lines = [line for table in tables for line in table.partition("\n\n")[0].splitlines()]
    return [Row(*line.strip("| ").split(" | ")) for line in lines]


def ids_cited_in(source):
    """The numbers in a test file: in comments, docstrings and texts, and in the names of tests."""
    found = set(re.findall(r"\b[PGHL]\d{1,2}\b", source))
    for letter, end in re.findall(r"\b([PGHL])\d{1,2}-(\d{1,2})\b", source):
        found.add(letter + end)
    for name in re.findall(r"\bdef (test_\w+)", source):
        found.update(part.upper() for part in name.split("_") if re.fullmatch(r"[pghl]\d{1,2}", part))
    for kind, numbers in NUMBERED.findall(source):
        found.update(f"{kind.lower()} {number}" for number in re.findall(r"\d+", numbers))
    return found


@functools.cache
def definitions_in(path):
    """The functions of a test file by their names; for a class, its name and the functions in it."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            found.update(f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef))
    return found


def exists(test):
    """Whether pytest would find a test under this name."""
    file, _, name = test.partition("::")
    path = TESTS / file
    if not path.is_file():
        return False
    owner, _, method = name.rpartition("::")
    if method.startswith("test_") and name in definitions_in(path):
        return True
    return (
        owner in definitions_in(path) and method.startswith("test_") and callable(getattr(SaverContract, method, None))
    )


ROWS = rows_of(PAGE)
KNOWN = {row.id for row in ROWS}
FILES = [path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__).resolve()]


def test_every_row_is_read_and_no_number_stands_for_two():
    assert len(ROWS) > 150
    assert len(KNOWN) == len(ROWS)
    assert [row.id for row in ROWS if not re.fullmatch(ID, row.id)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(TESTS).as_posix())
def test_what_a_test_file_cites_is_on_the_page(path):
    source = path.read_text(encoding="utf-8")
    assert sorted(ids_cited_in(source) - KNOWN) == []
    assert ELSEWHERE.findall(source) == []


def test_every_test_that_the_page_names_exists():
    missing = {row.id: [test for test in row.tests if not exists(test)] for row in ROWS}
    assert {number: tests for number, tests in missing.items() if tests} == {}


def test_every_row_that_is_not_planned_names_a_test():
    without = {row.id for row in ROWS if not row.is_planned and not row.tests}
    assert without == NOT_TESTED


def test_every_benchmark_that_the_page_names_exists():
    named = set(re.findall(r"benchmark `([^`]+)`", PAGE))
    assert named
    assert {name for name in named if not (ROOT / "benchmarks" / f"{name}.py").is_file()} == set()


def test_a_row_is_short_and_names_each_test_once():
    for row in ROWS:
        assert len(row.holds.split()) <= MOST_WORDS, row.id
        assert len(set(row.tests)) == len(row.tests), row.id
        assert re.fullmatch(r"(planned: [a-z ]+|no test: .+|`[^`]+`)(<br>`[^`]+`)*", row.proof), row.id


def test_what_differs_on_purpose_is_described_where_the_page_says():
    lines = PAGE.partition("## Different on purpose")[2].strip().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][1:]
    assert rows
    for ids, _, link in rows:
        assert set(ids.split(", ")) <= KNOWN
        target = re.fullmatch(r"\[[^]]+\]\(([^)]+)\)", link)[1]
        file, _, anchor = target.partition("#")
        titles = re.findall(r"^#+ (.+)$", (DOCS / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {title.lower().replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_x():  # G9, H12", {"G9", "H12"}),
        ("# rows H42-H46 and P1-3", {"H42", "H46", "P1", "P3"}),
        ("def test_p53_l8_cut(): ...", {"P53", "L8"}),
        ("def test_behaviour_12_merged(): ...", {"behaviour 12"}),
        ("(H47; promise 4)", {"H47", "promise 4"}),
        ("behaviours 5 to 11", {"behaviour 5", "behaviour 11"}),
        ("promises 1, 2 and 7, L9", {"promise 1", "promise 2", "promise 7", "L9"}),
        ("def test_3_damage(): HTTP2, p5, 'T3'", set()),
    ],
)
def test_citations_are_found(source, expected):
    assert ids_cited_in(source) == expected


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("api/test_requirements.py::test_citations_are_found", True),
        ("contract/test_memory.py::TestMemorySaver::test_tags", True),
        ("contract/test_memory.py::TestMemorySaver::test_nothing_like_it", False),
        ("contract/test_memory.py::TestNobody::test_tags", False),
        ("contract/test_memory.py::test_tags", False),
        ("contract/test_memory.py::TestMemorySaver::make_saver", False),
        ("api/test_requirements.py::exists", False),
        ("api/test_nowhere.py::test_tags", False),
    ],
)
def test_a_test_is_found_by_its_name(test, expected):
    assert exists(test) is expected
