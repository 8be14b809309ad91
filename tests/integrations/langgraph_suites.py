"""Fetches LangGraph's own test suites by version, and runs them in a process with graphkit's savers in place."""

import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

EXTRA = ["pycryptodome", "pytest-asyncio", "pytest-mock", "pytest-retry", "redis", "syrupy"]
"""What the suites need and graphkit's tests do not. redis is imported only; no server is asked."""

PLUGINS = ["pytest_mock", "pytest_retry.retry_plugin", "syrupy", "xdist", "langgraph_suite_plugin"]
ARGUMENTS = {
    "langgraph": ["-panyio.pytest_plugin"],
    "langgraph-checkpoint": ["-ppytest_asyncio.plugin"],
    "langgraph-checkpoint-sqlite": ["-ppytest_asyncio.plugin"],
    "langgraph-prebuilt": ["-panyio.pytest_plugin"],
}
"""What runs the asynchronous tests of a distribution. More processes would each import and collect everything first."""

CONFTEST = """

import langgraph_suite_plugin

globals().update(langgraph_suite_plugin.make_fixtures())
langgraph_suite_plugin.replace_savers()
"""
"""The end of each suite's conftest.py: its own fixtures are defined, and its own savers made, before ours replace them."""

FOREIGN = ("COV_CORE", "COVERAGE_", "LANGCHAIN_", "LANGGRAPH_", "LANGSMITH_", "PYTEST_")
"""Prefixes of variables that would change what a suite does: those of the run around it, and of a user's LangGraph."""

TIMEOUT = 900
"""Seconds after which a suite hangs. The longest takes 70 on an idle core."""

UNREACHABLE = "No matching distribution found"
"""What pip says of a registry that does not answer, and of a version that has no source distribution."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a suite's tests.

    Attributes:
        passed: how many savers, stores and caches of ours each test made that passed, by its name.
        failed: the message of each test that failed, by its name.
    """

    passed: dict
    failed: dict


class Suites:
    """LangGraph's suites, unpacked in one directory.

    Skips the calling test if a package that the suites need cannot be had.
    """

    def __init__(self, directory):
        self._directory = directory
        self._extra = directory / "extra"
        self._unpacked = {}
        _pip("install", "--no-deps", f"--target={self._extra}", *EXTRA)

    def run(self, distribution, files, *arguments, environment=None):
        """Run the tests of these files of a distribution's folder `tests`, and return the Outcome.

        Skips the calling test if the registry has no such source distribution, or cannot be reached.
        """
        suite = self._unpack(distribution)
        report = suite / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", "--quiet", "--tb=short"]
        command += [f"-p{plugin}" for plugin in PLUGINS]
        command += ["--disable-warnings", *ARGUMENTS[distribution], *arguments, *(f"tests/{file}" for file in files)]
        with tempfile.TemporaryDirectory(dir=suite, ignore_cleanup_errors=True) as temporary:
            done = subprocess.run(
                command,
                cwd=suite,
                env=self._environment() | {"TMPDIR": temporary} | (environment or {}),
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT,
            )
        assert done.returncode in {0, 1}, done.stdout + done.stderr
        return _read(report)

    def files_with(self, distribution, word):
        """The test files of a distribution that contain a word."""
        files = sorted((self._unpack(distribution) / "tests").glob("test_*.py"))
        return [file.name for file in files if word in file.read_text(encoding="utf-8")]

    def _environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        return kept | {
            "NO_DOCKER": "true",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join(map(str, [ROOT, HERE, self._extra])),
        }

    def _unpack(self, distribution):
        if distribution not in self._unpacked:
            self._unpacked[distribution] = self._fetch(distribution, version(distribution))
        return self._unpacked[distribution]

    def _fetch(self, distribution, number):
        """Unpack the tests of a distribution, and nothing else of it: they must run on what is installed."""
        suite = self._directory / distribution
        _pip("download", "--no-deps", f"--no-binary={distribution}", f"--dest={suite}", f"{distribution}=={number}")
        (archive,) = suite.glob("*.tar.gz")
        _extract_tests(archive, suite)
        with (suite / "tests" / "conftest.py").open("a", encoding="utf-8") as file:
            file.write(CONFTEST)
        (suite / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
        return suite


def _extract_tests(archive, suite):
    folder = archive.name.removesuffix(".tar.gz") + "/"
    with tarfile.open(archive) as file:
        for member in file.getmembers():
            if member.name.startswith(folder + "tests/"):
                inside = member.replace(name=member.name.removeprefix(folder))
                file.extract(inside, suite, filter="data")


def _pip(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--quiet", "--retries=1", "--timeout=30"],
        capture_output=True,
        text=True,
        check=False,
    )
    if UNREACHABLE in done.stderr:
        reason = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"the registry does not answer, or does not have it: pip {' '.join(arguments)}: {reason}")
    assert done.returncode == 0, done.stderr


def _read(report):
    outcome = Outcome(passed={}, failed={})

    for case in ET.parse(report).iter("testcase"):
        module = case.get("classname").removeprefix("tests.")
        name = f"{module}::{case.get('name')}"
        problems = [*case.iter("failure"), *case.iter("error")]
        if problems:
            outcome.failed[name] = "\n".join(problem.text for problem in problems)
        elif case.find("skipped") is None:
            counts = [int(each.get("value")) for each in case.iter("property")]
            outcome.passed[name] = sum(counts)

    return outcome
