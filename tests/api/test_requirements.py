"""docs/requirements.md: every row that holds has a marked test, and every mark has a row."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
FILES = [path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__).resolve()]

ID = r"\b(?:[PGHLW]\d{1,2}|(?:promise|behaviour) \d+)\b"
ROW = re.compile(rf"- ({ID})(?: \((\w+)\))?: (.+)")
ELSEWHERE = re.compile(r"\bDESIGN\b|[Rr]eference, section|[Bb]ehaviour, section")
"""Documents that the repository does not have."""


class Row(NamedTuple):
    """One requirement as the page has it."""

    id: str
    status: str | None
    holds: str

    @property
    def is_proved(self):
        """Whether a test must prove it: not while it is planned, and a time is measured by a benchmark."""
        return self.status in {None, "differs"}


def marks_of(source):
    """The functions and classes of a test file that have the mark, each with its numbers."""
    return [
        (node.name, [ast.literal_eval(argument) for argument in decorator.args])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement"
    ]


LINES = [line for line in PAGE.splitlines() if line.startswith("- ")]
ROWS = [Row(*ROW.fullmatch(line).groups()) for line in LINES]
KNOWN = {row.id for row in ROWS}


@pytest.fixture(scope="module")
def marks():
    """The marks of each test file."""
    return {path: marks_of(path.read_text(encoding="utf-8")) for path in FILES}


@pytest.fixture(scope="module")
def marked(marks):
    """The numbers of all marks."""
    return {number for of_file in marks.values() for _, numbers in of_file for number in numbers}


def test_every_row_is_one_short_line_and_no_number_stands_for_two():
    assert len(ROWS) > 150
    assert len(KNOWN) == len(ROWS)
    assert {row.status for row in ROWS} <= {None, "differs", "planned", "measured"}
    assert [line for line in LINES if len(line) > 100] == []


def test_every_row_that_holds_has_a_marked_test(marked):
    assert {row.id for row in ROWS if row.is_proved} <= marked


def test_every_mark_has_a_row(marked):
    assert marked <= KNOWN


def test_only_tests_are_marked(marks):
    for path, of_file in marks.items():
        assert [name for name, _ in of_file if not name.startswith(("test_", "Test"))] == [], path


def test_what_is_measured_names_its_benchmark():
    for row in ROWS:
        if row.status == "measured":
            assert (ROOT / re.search(r"`(benchmarks/\w+\.py)`", row.holds)[1]).is_file()


def test_the_links_of_the_page_lead_somewhere():
    for file, anchor in re.findall(r"\]\(([^)#]+)#?([^)]*)\)", PAGE):
        titles = re.findall(r"^#+ (.+)$", (ROOT / "docs" / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, (
            anchor
        )


def test_texts_of_tests_cite_only_what_the_repository_has():
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        assert set(re.findall(ID, source)) <= KNOWN, path
        assert ELSEWHERE.findall(source) == [], path
