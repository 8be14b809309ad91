"""Savers and stores by name."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from graphkit.registry import get_checkpoint_store, get_saver, register_checkpoint_store, register_saver, saver_names
from savers import FileSystemSaver, MemorySaver, VersionedMemorySaver


def test_the_installed_savers_are_found_by_name(tmp_path):
    names = {"memory", "versioned_memory", "file", "disk", "filesystem", "sqlite", "postgres"}
    assert names <= set(saver_names())
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
@pytest.mark.parametrize("name", ["disk", "file", "filesystem"])
def test_a_missing_directory_is_named(name):
    for make in (get_saver, get_checkpoint_store):
        with pytest.raises(
            CheckpointerConfigurationError, match=r"missing a required argument: 'base_directory'.*path="
        ):
            make(name)


def test_an_unknown_option_is_named(tmp_path):
    with pytest.raises(CheckpointerConfigurationError, match=r"^speed is not an option of the saver 'disk'.*fsync"):
        get_saver("disk", path=tmp_path, speed=3)
    with pytest.raises(CheckpointerConfigurationError, match="the saver 'memory' cannot be made"):
        get_saver("memory", path=tmp_path)


@pytest.mark.requirement("G9", "P9")
def test_an_unknown_name_lists_the_known_ones():
    for get, kind in ((get_saver, "saver"), (get_checkpoint_store, "checkpoint store")):
        with pytest.raises(
            CheckpointerConfigurationError, match=f"unknown {kind} 'nowhere'; known are .*'disk'.*'memory'"
        ):
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
    first, second = MemorySaver(), MemorySaver()
    register_checkpoint_store("test-replaced", first)
    assert get_checkpoint_store("test-replaced") is first
    register_checkpoint_store("test-replaced", second)
    assert get_checkpoint_store("test-replaced") is second
    with pytest.raises(CheckpointerConfigurationError, match="exists already; it takes no path"):
        get_checkpoint_store("test-replaced", path="x")


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
        with pytest.raises(CheckpointerConfigurationError, match="non-empty"):
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
            if m % 50 == 0:
                with pytest.raises(CheckpointerConfigurationError):
                    get_checkpoint_store("test-never")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
