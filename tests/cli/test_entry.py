"""The entry point as a process: help, start-up, pipes, terminals, completion, and what is typed wrongly."""

import contextlib
import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

from graphkit import START, __version__
from graphkit.cli.commands import COMMANDS
from graphkit.cli.main import main
from graphkit.errors import MissingDependencyError
from savers import FileSystemSaver
from tests.support.disks import as_an_ordinary_user
from tests.support.terminal import assert_refused, checkpoint, graphkit

ROOT = Path(__file__).resolve().parents[2]
GRAPHKIT = [sys.executable, "-W", "error", "-m", "graphkit"]


@pytest.fixture
def fork(launcher, monkeypatch):
    """Runs a command line in a process of its own, without the variables that commands read."""
    for name in ("NO_COLOR", "COLUMNS", "GRAPHKIT_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(*args, stdin="", **environment):
        return launcher.run("-m", "graphkit", *args, environment=environment, given=stdin)

    return run


@pytest.fixture
def at_a_terminal(launcher, monkeypatch):
    """Returns what a process writes to a terminal of its own, of 80 columns."""
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(*args, **environment):
        leader, follower = pty.openpty()
        surroundings = {"TERM": "xterm-256color", "COLUMNS": "80", **environment}
        running = launcher.start_at(follower, "-m", "graphkit", *args, environment=surroundings)
        os.close(follower)
        said = b""
        with contextlib.suppress(OSError):  # Linux says so when the other side has closed
            while part := os.read(leader, 4096):
                said += part
        os.close(leader)
        assert running.wait() == 0
        return said.decode()

    return run


def test_the_script_is_the_module():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"graphkit": "graphkit.cli.main:main"}
    done = subprocess.run([*GRAPHKIT, "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"graphkit {project['version']}\n", "")


@pytest.mark.parametrize("args", [["--help"], ["threads", "--help"], ["agents", "schema"]])
def test_output_that_cannot_be_written_is_one_line_and_no_traceback(args, monkeypatch):
    command = [*GRAPHKIT, *args]
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (15, "graphkit: cannot write the output: No space left on device\n")
    closed = subprocess.run(["sh", "-c", '"$@" | true', "sh", *command], capture_output=True, text=True, check=False)
    assert closed.stderr == ""


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_the_extra_a_command_names_it_and_help_and_version_work(monkeypatch, capsys, package):
    def run(*args):
        monkeypatch.setattr("sys.argv", ["graphkit", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    monkeypatch.setattr("graphkit.cli.main.find_spec", lambda name: None if name == package else name)
    advice = str(MissingDependencyError(package, "cli"))
    for args in (["threads", "runs"], ["show", "--help"], ["--debug"]):
        assert run(*args) == (MissingDependencyError.exit_code, "", f"graphkit: {advice}\n")
    for args in (["--help"], ["-h"], []):
        code, out, err = run(*args)
        assert (code, err) == (0, "")
        assert advice in out
        for name in COMMANDS:
            assert f"\n  {name} " in out
    assert run("--version") == (0, f"graphkit {__version__}\n", "")


def test_a_terminal_has_colours_and_no_color_has_none(store, at_a_terminal):
    assert "\x1b[33minterrupted\x1b[0m" in at_a_terminal("threads", store)
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = at_a_terminal("threads", store, **environment)
        assert "interrupted" in plain
        assert "\x1b" not in plain
    assert max(len(line.rstrip("\r")) for line in plain.split("\n")) <= 80


def without_streams(redirection, *args):
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *GRAPHKIT, *map(str, args)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize("redirection", ["<&- >&- 2>&-", "2>/dev/full"])
def test_closed_and_full_streams(store, redirection):
    assert without_streams(redirection, "threads", store) == 0
    assert without_streams(redirection, "history", store, "nobody") == 11


def test_what_is_written_to_a_closed_standard_error_lands_in_no_file_of_the_store(runs, write_module):
    node = 'lambda state: os.write(2, b"noise") and {}'
    imports = "import os\nfrom tests.support.graphs import make_chain\n"
    write_module("noisy", f"{imports}app = make_chain({{}}, shout={node}).compile()\n")
    assert without_streams("2>&-", "run", runs, "-t", "t", "--app", "noisy:app") == 0
    files = [path for path in runs.rglob("*") if path.is_file()]
    assert all(b"noise" not in path.read_bytes() for path in files)


def test_a_reader_that_has_seen_enough(store, saver):
    saver.put("long", checkpoint(1, START, "a", {"lines": ["x" * 100] * 3_000}))
    command = [*GRAPHKIT, "show", store, "long"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


def test_completion_knows_threads_checkpoints_and_the_second_word_of_a_command(store, fork):
    def complete(line):
        position = str(len(line.split(" ")) - 1)
        return fork(_GRAPHKIT_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=position).stdout

    assert complete(f"graphkit show {store} order-").split() == ["plain,order-17", "plain,order-18"]
    assert "00000000-0000-7000-8000-000000000002" in complete(f"graphkit show {store} order-17 --checkpoint ")
    assert complete("graphkit schedule ").split() == ["plain,add", "plain,list", "plain,remove"]
    for shell in ("bash", "zsh", "fish"):
        assert "_GRAPHKIT_COMPLETE" in fork(_GRAPHKIT_COMPLETE=f"{shell}_source").stdout


# What cannot be shown as it is


def test_an_output_that_lacks_letters_has_them_escaped(tmp_path, runs, fork):
    text = "naïve \U0001f600 → …"
    FileSystemSaver(runs).put("t", checkpoint(1, START, "a", {"text": text}))
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    assert (
        fork("show", runs, "t", "--key", "text", **ascii_only).stdout == "na\\u00efve \\ud83d\\ude00 \\u2192 \\u2026\n"
    )
    # A file of threads is UTF-8 everywhere.
    lines = fork("export", runs, **ascii_only).stdout
    assert text in lines
    again = tmp_path / "again"
    assert fork("import", again, "-", stdin=lines, **ascii_only).returncode == 0
    assert FileSystemSaver(again).get("t").state == {"text": text}


def test_an_input_that_is_no_text(runs, shop):
    command = [*GRAPHKIT, "run", runs, "--app", shop, "--input", "-"]
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, input=b"\xff", env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, b"graphkit: standard input is not utf-8 text\n")


def test_values_so_deep_that_they_can_just_be_stored_can_be_shown(runs, fork):
    value = 1
    for _ in range(200):
        value = [{"k": value}]
    saver = FileSystemSaver(runs)
    saver.put("t", checkpoint(1, START, "a", {}))
    saver.put("t", checkpoint(2, "a", "b", {"x": value}, 1))

    assert json.loads(fork("show", runs, "t", "--json").stdout)["state"] == {"x": value}
    for command in ("show", "diff", "export"):
        assert fork(command, runs, "t").returncode == 0


def test_an_unexpected_error_is_a_sentence_too(store, monkeypatch):
    monkeypatch.setattr(FileSystemSaver, "threads", Mock(side_effect=ZeroDivisionError("an odd saver")))
    error = "ZeroDivisionError: an odd saver; unexpected error: rerun with --debug and please report it"
    assert_refused(graphkit("threads", store), 70, f"graphkit: {error}\n")
    assert_refused(graphkit("threads", store, "--debug"), 70, "Traceback", error)


# What is typed wrongly


@pytest.mark.parametrize("command", ["threads", "stats", "interrupts", "verify", "repair", "compact", "export"])
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("rns", 18, "graphkit: there is no directory {}; did you mean runs?\n"),
        ("photos", 13, "not a checkpoint directory: it has no graphkit.store"),
        ("photos/a.jpg", 18, "is a file; name the directory"),
    ],
)
def test_a_wrong_directory_is_refused_and_left_alone(runs, command, name, code, message):
    place = runs.parent / name
    for directory in (runs, runs.with_name("photos")):
        directory.mkdir()
        (directory / "a.jpg").touch()
    before = sorted(runs.parent.rglob("*"))
    assert_refused(graphkit(command, place), code, message.format(place))
    assert sorted(runs.parent.rglob("*")) == before


@pytest.mark.parametrize("words", [["resume"], ["show"], ["update", "--set", "a=1"], ["fork", "new"]], ids=" ".join)
def test_no_directory_for_a_graph(runs, shop, words):
    command, *rest = words
    done = graphkit(command, runs, "t", *rest, "--app", shop)
    assert_refused(done, 18, "there is no directory")
    assert not runs.exists()


def test_a_thread_is_named_whole_or_by_its_beginning(store):
    for typed, code, message in (
        ("order-18", 0, ""),
        ("order-1", 2, "2 threads begin with order-1: order-17, order-18; type more characters"),
        ("imp", 0, ""),
        ("imp…", 0, ""),
        ("oder-17", 11, "did you mean order-17"),
        ("zebra", 11, "see graphkit threads"),
    ):
        done = graphkit("show", store, typed)
        assert_refused(done, code, message)


def test_what_is_typed_wrongly_is_named_with_where_to_find_help():
    for typed, named, help_of in (
        ([], "", ""),
        (["show", "runs"], "'THREAD'", "show "),
        (["search", "runs"], "'KEY=VALUE...'", "search "),
        (["answer", "runs", "t"], "'--value'", "answer "),
        (["thread", "runs"], "'threads'", ""),
        (["threads", "runs", "--stats"], "'--status'", "threads "),
        (["--vers"], "'--version'", ""),
        (["threads", "runs", "x"], "x", "threads "),
        (["threads", "runs", "--all=3"], "'--all'", "threads "),
        (["threads", "runs", "--limit", "0"], "'--limit'", "threads "),
        (["history", "runs", "t", "--limit", str(1 << 80)], "'--limit'", "history "),
        (["watch", "runs", "--interval", "0"], "'--interval'", "watch "),
        (["threads", "runs", "--status", "\x1bappy"], "'sealed'", "threads "),
    ):
        done = graphkit(*typed)
        assert (done.code, done.out, named in done.err, "\x1b" in done.err) == (2, "", True, False)
        if typed:
            assert done.err.endswith(f"; see `graphkit {help_of}--help`\n")
        else:
            assert done.err.startswith("Usage: graphkit")


def test_debug_shows_where_it_happened(store):
    done = graphkit("show", store, "zebra", "--debug")
    assert "Traceback (most recent call last)" in done.err
    *_, cause, sentence = done.err.splitlines()
    assert cause.startswith("graphkit.CheckpointNotFoundError: thread 'zebra' has no checkpoint")
    assert sentence.startswith("graphkit: thread 'zebra' has no checkpoint")


@pytest.mark.parametrize("args", [["threads"], ["show", "t"], ["delete", "t", "--yes"]])
@pytest.mark.parametrize("name", ["{}", "{}/below", "sqlite:{}/runs.db"])
def test_a_directory_that_may_not_be_read(tmp_path, args, name):
    directory = tmp_path / "private"
    directory.mkdir(mode=0)
    command, *rest = args
    with as_an_ordinary_user():
        done = graphkit(command, name.format(directory), *rest)
    directory.chmod(0o700)
    assert done.code == 15
    assert done.err.startswith(f"graphkit: cannot read {directory}")
    assert done.err.endswith(": Permission denied\n")
