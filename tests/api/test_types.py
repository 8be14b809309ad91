"""What type checkers find: the types of the API, the mistakes of its users, and no error in examples and pages.

pyright's engine is that of basedpyright, which needs no download, at pyright's own settings.
"""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.api.test_docs import ROOT, SCRIPTS

TYPED = Path(__file__).with_name("typed")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
STRICT = [TYPED / "usage.py", ROOT / "examples" / "01_document_review.py", ROOT / "examples" / "06_data_pipeline.py"]
"""The files that are checked at strict settings."""
MISTAKES = TYPED / "mistakes.py"
"""The only file with errors: each line ends with the checkers that find one there."""
MYPY_SETTINGS = """
[mypy]
check_untyped_defs = True
ignore_missing_imports = True
follow_imports = skip
[mypy-graphkit.*,savers.*,langgraph.*,langchain_core.*,pydantic.*,pydantic_ai.*]
follow_imports = normal
"""
"""For the programs. Two thirds of mypy's time would go to packages that the API does not mention."""


@pytest.fixture
def mypy(request, tmp_path_factory):
    """A function that returns the errors of mypy as "file:line: message".

    What mypy knows of the packages stays in the cache of pytest for the next run, if there is one. Each set of options
    has a directory of its own, because mypy drops what other options have left.
    """
    has_cache = hasattr(request.config, "cache")
    cache = request.config.cache.mkdir("mypy") if has_cache else tmp_path_factory.mktemp("mypy")
    return partial(find_mypy_errors, cache)


def find_mypy_errors(cache, directory, *files, options):
    place = cache / "".join(options)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", f"--cache-dir={place}", *options, *files],
        cwd=directory,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def pyright(directory, *files):
    """Return the errors of pyright as "file:line: message"; the other files are at its standard settings."""
    strict, included = ([str(file) for file in each] for each in (STRICT, (*STRICT, *files)))
    settings = {"typeCheckingMode": "standard", "strict": strict, "include": included, "pythonVersion": "3.11"}
    configuration = directory / "pyrightconfig.json"
    configuration.write_text(json.dumps(settings), encoding="utf-8")
    python = sys.executable
    options = ["--outputjson", "--pythonpath", python, "-p", directory]
    command = [python, "-m", "basedpyright", *options]
    done = subprocess.run(command, cwd=directory, capture_output=True, encoding="utf-8", check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(included), done.stdout + done.stderr
    errors = [each for each in found["generalDiagnostics"] if each["severity"] == "error"]
    return [f"{each['file']}:{each['range']['start']['line'] + 1}: {each['message']}" for each in errors]


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """The examples, and the programs of README and docs, as files of one directory, with their settings for mypy."""
    directory = tmp_path_factory.mktemp("programs")
    (directory / "mypy.ini").write_text(MYPY_SETTINGS, encoding="utf-8")
    for example in EXAMPLES:
        (directory / example.name).write_text(example.read_text(encoding="utf-8"), encoding="utf-8")
    for script in SCRIPTS:
        name = re.sub(r"\W", "_", script.name)
        (directory / f"{name}.py").write_text(script.source, encoding="utf-8")
    return directory


def names_in(directory):
    return sorted(path.name for path in directory.glob("*.py"))


def mistakes_for(checker):
    """Return the lines at which a checker has to find a mistake, as "file:line"."""
    lines = enumerate(MISTAKES.read_text(encoding="utf-8").splitlines(), 1)
    return {f"{MISTAKES.name}:{number}" for number, line in lines if checker in line.rpartition("  # ")[2]}


def lines_of(errors):
    return {re.search(r"[^/]+\.py:\d+", error)[0] for error in errors}


def test_the_api_has_these_types_and_two_examples_are_strict_for_mypy(mypy, tmp_path):
    assert mypy(tmp_path, *STRICT, options=["--config-file=", "--strict"]) == []


def test_mypy_finds_the_mistakes_and_no_others_in_examples_and_pages(mypy, programs):
    errors = mypy(programs, *names_in(programs), MISTAKES, options=["--config-file=mypy.ini"])
    assert lines_of(errors) == mistakes_for("mypy"), errors


def test_pyright_finds_the_mistakes_and_no_others_in_examples_and_pages_some_of_them_strict(programs):
    errors = pyright(programs, *names_in(programs), MISTAKES)
    assert lines_of(errors) == mistakes_for("pyright"), errors
