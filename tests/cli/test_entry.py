"""The entry point as a process: help, start-up, pipes, terminals, completion, and what is typed wrongly."""

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from graphkit.errors import MissingDependencyError
from savers import FileSystemSaver
from tests.cli.terminal import SHOP, damage, graphkit

ROOT = Path(__file__).resolve().parents[2]
GRAPHKIT = [sys.executable, "-W", "error", "-m", "graphkit"]


def process(*args, stdin="", **environment):
    clean = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "GRAPHKIT_DIR"}}
    command = [*GRAPHKIT, *map(str, args)]
    return subprocess.run(
        command, input=stdin, env={**clean, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def at_a_terminal(*args, **environment):
    """What a process writes to a terminal of its own, of 80 columns."""
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    leader, follower = pty.openpty()
    command = [*GRAPHKIT, *map(str, args)]
    surroundings = {**clean, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=surroundings) as running:
        os.close(follower)
        said = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # Linux says so when the other side has closed
                break
            if not part:
                break
            said += part
        os.close(leader)
        return running.wait(), said.decode()


def test_help_names_every_command():
    done = process("--help")
    assert done.returncode == 0
    for command in ("threads", "history", "answer", "resume", "export", "import"):
        assert f"  {command} " in done.stdout


def test_the_script_is_the_module():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert scripts == {"graphkit": "graphkit.cli.main:main"}
    assert process("--version").stdout == "graphkit 0.1.0\n"


def test_a_process_reads_what_this_one_wrote(store):
    done = process("threads", store)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["THREAD", "import-a", "order-17", "order-18"]


def test_nothing_heavy_is_imported_for_help():
    code = "import sys, graphkit.cli.main as m; sys.argv = ['graphkit', '--help']\ntry: m.main()\nexcept SystemExit: pass\n"
    code += "print(*sorted(set(sys.modules) & {'rich', 'pydantic', 'asyncio', 'watchdog', 'savers', 'sqlite3'}), 'END')"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean, check=True)
    heavy = done.stdout.splitlines()[-1].split()
    assert heavy in (["END"], ["rich", "END"])  # main looks whether rich is there, which imports only its front


def test_without_the_extra():
    code = "import sys; sys.modules['typer'] = None\nfrom graphkit.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == MissingDependencyError.exit_code
    assert done.stderr == "graphkit: typer is not installed; run: pip install 'graphkit[cli]'\n"


def test_a_terminal_has_colours_and_no_color_has_none(store):
    code, coloured = at_a_terminal("threads", store)
    assert code == 0
    assert "\x1b[33minterrupted\x1b[0m" in coloured
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, plain = at_a_terminal("threads", store, **environment)
        assert (code, "\x1b" in plain) == (0, False)
        assert "interrupted" in plain
    assert max(len(line.rstrip("\r")) for line in plain.split("\n")) <= 80


def test_a_reader_that_has_seen_enough(store):
    saver = FileSystemSaver(store, fsync="never")
    for number in range(300):
        saver.copy("order-17", f"copy-{number:03d}-{'x' * 200}")
    with subprocess.Popen([*GRAPHKIT, "threads", store], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


def test_completion_knows_the_threads(store):
    words = f"graphkit show {store} order-"
    done = process(_GRAPHKIT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD="3", _TYPER_COMPLETE_ARGS=words)
    assert done.stdout.split() == ["order-17", "order-18"]
    words = f"graphkit show {store} order-17 --checkpoint "
    done = process(_GRAPHKIT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD="5", _TYPER_COMPLETE_ARGS=words)
    assert "00000000-0000-7000-8000-000000000002" in done.stdout
    for shell in ("bash", "zsh", "fish"):
        assert process(_GRAPHKIT_COMPLETE=f"source_{shell}").stdout


def test_completion_of_what_is_not_there(tmp_path):
    words = f"graphkit show {tmp_path / 'nothing'} o"
    done = process(_GRAPHKIT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD="3", _TYPER_COMPLETE_ARGS=words)
    assert (done.stdout.strip(), done.stderr) == ("", "")


# What is typed wrongly


COMMANDS_OF_A_DIRECTORY = ["threads", "stats", "interrupts", "verify", "repair", "compact", "export"]


@pytest.mark.parametrize("command", COMMANDS_OF_A_DIRECTORY)
def test_no_such_directory(tmp_path, command):
    (tmp_path / "runs").mkdir()
    done = graphkit(command, tmp_path / "rns")
    assert done.code == 18
    assert done.err == f"graphkit: there is no directory {tmp_path / 'rns'}; did you mean runs?\n"
    assert not (tmp_path / "rns").exists()


@pytest.mark.parametrize("command", ["resume", "update", "show", "fork"])
def test_no_directory_for_a_graph(tmp_path, shop, command):
    rest = {"update": ["--set", "a=1"], "fork": ["new"]}.get(command, [])
    done = graphkit(command, tmp_path / "runs", "t", *rest, "--app", shop)
    assert (done.code, "there is no directory" in done.err) == (18, True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", COMMANDS_OF_A_DIRECTORY)
def test_no_checkpoint_directory(tmp_path, command):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    done = graphkit(command, tmp_path / "photos")
    assert (done.code, "this is no checkpoint directory: it has no graphkit.store" in done.err) == (13, True)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.jpg"]


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").touch()
    done = graphkit("threads", tmp_path / "file")
    assert (done.code, "is a file; name the directory" in done.err) == (18, True)


def test_a_store_that_lost_its_marker_is_still_one(store):
    (store / "graphkit.store").unlink()
    assert len(graphkit("threads", store, "--json").json) == 3


def test_a_store_of_a_newer_version(store):
    (store / "graphkit.store").write_text('{"format": 99}')
    done = graphkit("threads", store)
    assert (done.code, "update it" in done.err) == (13, True)


@pytest.mark.parametrize(
    ("typed", "code", "message"),
    [
        ("order-18", 0, ""),
        ("order-1", 2, "2 threads begin with order-1: order-17, order-18; type more of it"),
        ("imp", 0, ""),
        ("imp…", 0, ""),
        ("oder-17", 11, "did you mean order-17"),
        ("zebra", 11, "see graphkit threads"),
    ],
)
def test_a_thread_is_named_whole_or_by_its_beginning(store, typed, code, message):
    done = graphkit("show", store, typed)
    assert (done.code, message in done.err) == (code, True)


def test_a_damaged_thread_is_no_unknown_one(store):
    damage(store, "order-17")
    for command in ("show", "history", "diff"):
        done = graphkit(command, store, "order-17")
        assert (done.code, "is damaged at byte" in done.err, done.err.count("\n")) == (12, True, 1)


def test_unknown_words_and_missing_ones(store):
    assert graphkit("thread", store).code == 2
    assert graphkit("threads", store, "--stats", "x").code == 2
    assert graphkit("threads").code == 2
    assert "Missing argument" in graphkit("show", store).err
    assert graphkit("threads", store, "--status", "happy").code == 2
    assert graphkit().err.startswith("Usage: graphkit")


def test_debug_shows_where_it_happened(store):
    done = graphkit("show", store, "zebra", "--debug")
    assert "Traceback (most recent call last)" in done.err
    assert done.err.splitlines()[-1].startswith("graphkit: thread 'zebra' has no checkpoint")


def test_other_kinds_of_store(tmp_path):
    assert graphkit("threads", f"disk:{tmp_path}", "--json").json == []
    assert graphkit("threads", "memory:").code == 18  # it takes no path
    assert graphkit("threads", "redis:x").code == 18


def test_a_directory_that_another_process_writes_to(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP.replace("def ship(state):", "def ship(state):\n    input()"))
    run = [*GRAPHKIT, "run", "runs", "--app", "shop:app", "-t", "t", "--input", '{"item": "lamp"}']
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)
    go_on = [*GRAPHKIT, "resume", "runs", "t", "--app", "shop:app", "--value", "1"]
    with subprocess.Popen(go_on, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline().split()[:2] == ["1", "approve"]
        # It is inside `ship` now, and holds the thread.
        assert graphkit("threads", tmp_path / "runs", "--json").json[0]["node"] == "approve"
        assert len(graphkit("history", tmp_path / "runs", "t", "--json").json) == 3
        assert graphkit("verify", tmp_path / "runs").code == 0
        running.communicate("\n")
    assert running.returncode == 0
