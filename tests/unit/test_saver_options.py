"""The values of the options that savers share, and their check without a store."""

import inspect
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.registry import check_saver_options, get_saver, register_saver
from savers import FileSystemSaver, MemorySaver, PostgresSaver, SqliteSaver, VersionedMemorySaver

REQUIRED = {
    "memory": {},
    "versioned_memory": {},
    "file": {"base_directory": "missing/runs"},
    "sqlite": {"db_file": "missing/runs.db"},
    "postgres": {"connection_string": "host=nowhere.invalid"},
}
NO_SECONDS = ["soon", "1", None, True, -1, float("nan"), []]
WRONG = {
    "lock_timeout": (REQUIRED, NO_SECONDS),
    "fsync": (["file", "sqlite"], [*NO_SECONDS, 0, 2_147_484, float("inf"), 10**400, {}]),
    "lease": (["postgres"], [*NO_SECONDS, 0, 2_147_484, float("inf")]),
    "compression": (["file", "sqlite", "postgres"], ["lz4", "", 3, {}]),
    "cipher": (["file", "sqlite", "postgres"], [3, {}]),
    "schema": (["postgres"], ["", 3, "x" * 64]),
    "base_directory": (["file"], ["", 3, None, "a\0b"]),
    "db_file": (["sqlite"], ["", 3, None, ":memory:", "a\0b"]),
    "connection_string": (["postgres"], [3, "nonsense"]),
}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_is_named_and_leaves_nothing(option, directory):
    names, values = WRONG[option]
    for make, name, value in itertools.product([get_saver, check_saver_options], names, values):
        with pytest.raises(CheckpointerConfigurationError, match=f"^{option} "):
            make(name, **REQUIRED[name] | {option: value})
    assert list(directory.iterdir()) == []


def test_checking_takes_the_path_of_a_configuration_file(directory):
    check_saver_options("file", path="runs")
    with pytest.raises(CheckpointerConfigurationError, match=r"^base_directory "):
        check_saver_options("file", path="")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("saver", [FileSystemSaver, MemorySaver, PostgresSaver, SqliteSaver, VersionedMemorySaver])
def test_the_check_takes_what_the_constructor_takes(saver):
    checked = inspect.signature(saver.check_options).parameters
    if checked.keys() != {"arguments", "options"}:  # the others pass everything to the constructor
        assert checked.keys() == inspect.signature(saver).parameters.keys()


def test_a_keyring_in_the_options_is_checked():
    pytest.importorskip("cryptography")
    with pytest.raises(CheckpointerConfigurationError, match="32 random bytes"):
        check_saver_options("file", base_directory="runs", cipher={"one": "short"})


def test_a_registered_factory_without_a_check_is_checked_by_name_only(monkeypatch):
    monkeypatch.setattr("graphkit.registry._SAVERS._registered", {})
    register_saver("redis", lambda url: MemorySaver())
    check_saver_options("redis", url=object())
    with pytest.raises(CheckpointerConfigurationError, match=r"^urls is not an option of the saver 'redis'"):
        check_saver_options("redis", urls="x")
    with pytest.raises(CheckpointerConfigurationError, match="missing a required argument"):
        check_saver_options("redis")


def test_the_constructor_of_a_subclass_is_not_called(monkeypatch, directory):
    class JournalSaver(MemorySaver):
        def __init__(self, journal):
            super().__init__()
            (directory / journal).touch()

    monkeypatch.setattr("graphkit.registry._SAVERS._registered", {})
    register_saver("journal", JournalSaver)
    check_saver_options("journal", journal="made.txt")
    assert list(directory.iterdir()) == []
    with pytest.raises(CheckpointerConfigurationError, match=r"^lock_timeout is not an option"):
        check_saver_options("journal", journal="made.txt", lock_timeout=1)


def test_a_factory_that_takes_any_keyword_is_not_asked_for_names(monkeypatch):
    monkeypatch.setattr("graphkit.registry._SAVERS._registered", {})
    register_saver("any", lambda **options: MemorySaver())
    check_saver_options("any", urls="x", path_of="y")
    register_saver("first", lambda url, /: url)
    check_saver_options("first", path="x")
    with pytest.raises(CheckpointerConfigurationError, match=r"^url is not an option"):
        check_saver_options("first", url="x")


@pytest.mark.parametrize("name", ["file", "sqlite"])
def test_an_infinite_lock_timeout_waits_for_the_other_run(name):
    saver = get_saver(name, **REQUIRED[name], lock_timeout=float("inf"))
    thread = RunnableConfig("t")
    is_held, may_end = threading.Event(), threading.Event()

    def hold():
        with saver.run_lock(thread):
            is_held.set()
            may_end.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert is_held.wait(60)
        threading.Timer(0, may_end.set).start()
        with saver.run_lock(thread):
            saver.put(thread, Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))

    assert saver.get(thread).state["n"] == 1
    saver.close()
