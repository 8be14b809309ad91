"""Savers and stores by name, and the check of their options without a store."""

import inspect
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.registry import (
    check_saver_options,
    get_checkpoint_store,
    get_saver,
    register_checkpoint_store,
    register_saver,
    saver_names,
)
from savers import FileSystemSaver, MemorySaver, PostgresSaver, SqliteSaver, VersionedMemorySaver


def test_the_installed_savers_are_found_by_name():
    assert set(saver_names()) >= {"memory", "versioned_memory", "file", "disk", "filesystem", "sqlite", "postgres"}
    assert saver_names() == sorted(saver_names())
    assert isinstance(get_saver("memory"), MemorySaver)
    assert isinstance(get_saver("versioned_memory"), VersionedMemorySaver)


@pytest.mark.requirement("G35")
@pytest.mark.parametrize("name", ["disk", "file", "filesystem"])
@pytest.mark.parametrize("key", ["base_directory", "path"])
def test_the_file_saver_has_three_names_and_works_from_a_configuration_alone(name, key, tmp_path):
    where = str(tmp_path / "new" / "store")
    for make in (get_saver, get_checkpoint_store):
        saver = make(name, **{key: where, "fsync": "never"})
        assert isinstance(saver, FileSystemSaver)
        saver.put(RunnableConfig("t"), Checkpoint(node_id="a", next_node_id="b", state={"n": 1}))
        assert saver.base_directory == where
    assert len(FileSystemSaver(where).list(RunnableConfig("t"))) == 2


@pytest.mark.requirement("G35", "P2")
def test_a_missing_directory_is_named():
    for make in (get_saver, get_checkpoint_store):
        with pytest.raises(CheckpointerConfigurationError, match=r"'base_directory'.*path="):
            make("disk")


def test_an_unknown_option_is_named(tmp_path):
    with pytest.raises(CheckpointerConfigurationError, match=r"^speed is not an option of the saver 'disk'.*fsync"):
        get_saver("disk", path=tmp_path, speed=3)
    with pytest.raises(CheckpointerConfigurationError, match="the saver 'memory' cannot be made"):
        get_saver("memory", path=tmp_path)


@pytest.mark.requirement("G9", "P9")
def test_an_unknown_name_lists_the_known_ones():
    for get, kind in ((get_saver, "saver"), (get_checkpoint_store, "checkpoint store")):
        with pytest.raises(CheckpointerConfigurationError, match=f"unknown {kind} 'nowhere'.*'disk'.*'memory'"):
            get("nowhere")
        for wrong in (None, 3, ""):
            with pytest.raises(CheckpointerConfigurationError):
                get(wrong)


@pytest.mark.requirement("G9")
def test_memory_is_one_store_for_the_process_and_a_new_saver_each_time():
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: get_checkpoint_store("memory"), range(64)))
    assert len(set(map(id, stores))) == 1
    assert isinstance(stores[0], MemorySaver)
    assert get_saver("memory") is not get_saver("memory")
    assert get_saver("memory") is not stores[0]


@pytest.mark.requirement("G9")
def test_what_is_registered_is_got_and_registering_again_replaces():
    for saver in (MemorySaver(), MemorySaver()):
        register_checkpoint_store("test-replaced", saver)
        assert get_checkpoint_store("test-replaced") is get_saver("test-replaced") is saver
    assert "test-replaced" in saver_names()
    register_checkpoint_store("test-replaced", VersionedMemorySaver)
    assert isinstance(get_saver("test-replaced"), VersionedMemorySaver)


@pytest.mark.requirement("G9")
def test_what_is_no_saver_is_refused():
    for wrong in (None, "memory", {}):
        with pytest.raises(CheckpointerConfigurationError, match="factory"):
            register_checkpoint_store("test-wrong", wrong)
    for wrong in (None, "memory", MemorySaver()):
        with pytest.raises(CheckpointerConfigurationError, match="factory"):
            register_saver("test-wrong", wrong)
    with pytest.raises(CheckpointerConfigurationError, match="unknown"):
        get_checkpoint_store("test-wrong")
    for register in (register_saver, register_checkpoint_store):
        with pytest.raises(CheckpointerConfigurationError, match="must be a text that is not empty"):
            register("", MemorySaver)
    register_saver("test-dict", dict)
    with pytest.raises(CheckpointerConfigurationError, match="not a dict"):
        get_saver("test-dict")


@pytest.mark.requirement("G9")
def test_registering_and_getting_at_once_from_many_threads():
    savers = [MemorySaver() for _ in range(8)]
    start = threading.Barrier(8)

    def work(n):
        start.wait(60)
        for m in range(200):
            register_checkpoint_store(f"test-{n}-{m}", savers[n])
            assert get_checkpoint_store(f"test-{n}-{m}") is savers[n]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


# Options


REQUIRED = {
    "memory": {},
    "versioned_memory": {},
    "file": {"base_directory": "missing/runs"},
    "sqlite": {"db_file": "missing/runs.db"},
    "postgres": {"connection_string": "host=nowhere.invalid"},
}
NO_SECONDS = ["soon", "1", None, True, -1, float("nan"), []]
MISREAD = ["postgresql://ann:se/cret@h/d", "postgres://ann:se@cret@h/d", "postgresql://ann:1/cret@h"]
WRONG = {
    "lock_timeout": (REQUIRED, NO_SECONDS),
    "fsync": (["file", "sqlite"], [*NO_SECONDS, 0, 2_147_484, float("inf"), 10**400, {}]),
    "lease": (["postgres"], [*NO_SECONDS, 0, 2_147_484, float("inf")]),
    "compression": (["file", "sqlite", "postgres"], ["lz4", "", 3, {}, True]),
    "cipher": (["file", "sqlite", "postgres"], [3, {}]),
    "schema": (["postgres"], ["", 3, "x" * 64]),
    "base_directory": (["file"], ["", b"bytes", 3, None, "a\0b"]),
    "db_file": (["sqlite"], ["", 3, None, ":memory:", "file:x?mode=memory", "a\0b"]),
    "connection_string": (["postgres"], [3, "nonsense", *MISREAD]),
}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for registry in ("_SAVERS", "_STORES"):
        monkeypatch.setattr(f"graphkit.registry.{registry}.registered", {})
    return tmp_path


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_is_named_and_leaves_nothing(option, directory):
    names, values = WRONG[option]
    for make, name, value in itertools.product([get_saver, check_saver_options], names, values):
        with pytest.raises(CheckpointerConfigurationError, match=f"^{option} "):
            make(name, **REQUIRED[name] | {option: value})
    assert list(directory.iterdir()) == []


def test_an_unusual_connection_string_is_taken():
    for text in ("postgresql:///d?user=a@b", "postgresql://ann:s?c#r%40t:x@h:1,i:2/d?options=a@b", "password=a/b@c@d"):
        check_saver_options("postgres", connection_string=text)


@pytest.mark.parametrize("saver", [FileSystemSaver, MemorySaver, PostgresSaver, SqliteSaver, VersionedMemorySaver])
def test_the_check_takes_what_the_constructor_takes(saver):
    checked = inspect.signature(saver.check_options).parameters
    if checked.keys() != {"arguments", "options"}:  # the others pass everything to the constructor
        assert checked.keys() == inspect.signature(saver).parameters.keys()


def test_an_option_for_a_store_that_exists_is_named_first():
    register_checkpoint_store("mine", MemorySaver())
    for call in (check_saver_options, get_saver, get_checkpoint_store):
        with pytest.raises(CheckpointerConfigurationError, match=r"^urls: the store 'mine' exists already"):
            call("mine", urls="x")


def test_a_registered_factory_without_a_check_is_checked_by_name_only():
    register_saver("redis", lambda url: MemorySaver())
    check_saver_options("redis", url=object())
    with pytest.raises(CheckpointerConfigurationError, match=r"^urls is not an option of the saver 'redis'"):
        check_saver_options("redis", urls="x")
    with pytest.raises(CheckpointerConfigurationError, match="missing a required argument"):
        check_saver_options("redis")


def test_the_constructor_of_a_subclass_is_not_called(directory):
    class JournalSaver(MemorySaver):
        def __init__(self, journal):
            super().__init__()
            (directory / journal).touch()

    register_saver("journal", JournalSaver)
    check_saver_options("journal", journal="made.txt")
    assert list(directory.iterdir()) == []
    with pytest.raises(CheckpointerConfigurationError, match=r"^lock_timeout is not an option"):
        check_saver_options("journal", journal="made.txt", lock_timeout=1)


def test_a_factory_that_takes_any_keyword_is_not_asked_for_names():
    register_saver("any", lambda **options: MemorySaver())
    check_saver_options("any", urls="x", path_of="y")
    register_saver("first", lambda url, /: url)
    check_saver_options("first", path="x")
    with pytest.raises(CheckpointerConfigurationError, match=r"^url is not an option"):
        check_saver_options("first", url="x")


@pytest.mark.parametrize("wrong", ["1", True, float("nan"), []])
def test_a_timeout_that_is_no_number_is_refused(wrong):
    saver = MemorySaver()
    with saver.watch("t") as changes:
        for wait in (
            lambda: saver.run_lock("t", wrong),
            lambda: saver.wait_for_resume("t", wrong),
            lambda: changes.get(wrong),
        ):
            with pytest.raises(ValueError, match="timeout"):
                wait()


@pytest.mark.parametrize("timeout", [None, float("inf")])
@pytest.mark.parametrize("name", ["memory", "file", "sqlite"])
def test_an_infinite_timeout_waits_for_the_other_run(name, timeout):
    def wait():
        is_waiting.set()
        with saver.run_lock("t", timeout):
            return True

    is_waiting = threading.Event()
    with get_saver(name, **REQUIRED[name], lock_timeout=float("inf")) as saver, ThreadPoolExecutor(1) as pool:
        with saver.run_lock("t"):
            waiter = pool.submit(wait)
            assert is_waiting.wait(60)
        assert waiter.result(60)
