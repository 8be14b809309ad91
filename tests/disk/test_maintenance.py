"""Keeping a store small and private: compression, pruning, compacting, deleting, sizes."""

import sys
from pathlib import Path

import pytest

from graphkit import Checkpoint, CheckpointerConfigurationError, MissingDependencyError
from savers import Compression, FileSystemSaver
from tests.support.checkpoints import list_states
from tests.support.disks import list_open_files
from tests.support.logs import COMPRESSED, locate_log, read_records

TEXT = "".join(f"line {n} of a text that says much the same again and again\n" for n in range(4000))


def content(root):
    return b"".join(path.read_bytes() for path in Path(root).rglob("*") if path.is_file())


def put_all(saver, config, states):
    return [saver.put(config, Checkpoint(node_id="n", next_node_id="n", state=state)).checkpoint_id for state in states]


# Compression


@pytest.mark.requirement("P50", "H50", "P87")
@pytest.mark.parametrize("method", ["zlib", "zstd"])
def test_large_values_are_compressed_and_come_back_without_being_asked(method, opener, config):
    if method == "zstd":
        pytest.importorskip("zstandard")
    saver = opener(compression=method)
    below = TEXT[:99_000]
    above = TEXT[:101_000]
    put_all(saver, config, [{"text": below}])
    small = saver.size("t")
    assert small > len(below)
    put_all(saver, config, [{"other": above}])
    assert saver.size("t") - small < len(above) / 3
    path = locate_log(saver.base_directory)
    flags = [record.flags & COMPRESSED for record in read_records(path)]
    assert flags == [0, 0, 0, COMPRESSED]
    reader = opener(compression=None)
    assert list_states(reader, config) == [{"other": above}, {"text": below}]
    assert reader.verify().ok


def test_options_are_checked_at_once(tmp_path, monkeypatch):
    for options in ({"level": 0}, {"level": 10}, {"threshold": 0}, {"method": "lz4"}):
        with pytest.raises(CheckpointerConfigurationError):
            Compression(**options)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependencyError, match=r"graphkit-durable\[zstd\]"):
        FileSystemSaver(tmp_path, compression="zstd")


# Space and privacy


SECRET = b"the content that must be forgotten"


@pytest.mark.requirement("P73")
@pytest.mark.parametrize("work", ["prune", "compact"])
def test_after_prune_and_compact_no_byte_of_what_they_remove_is_left(work, opener, config):
    saver = opener()
    secret = SECRET.decode()
    kept = {"note": "kept", "log": []}
    first, *_ = put_all(saver, config, [{"note": secret, "log": [secret]}, kept, kept])
    if work == "compact":
        gone = Checkpoint(node_id="n", next_node_id="n", state={"note": "gone"})
        saver.put(config.with_check_point_id(first), gone)
        saver.put_writes(config, {"w": secret})
        saver.put_writes(config, {"w": "kept"})
    assert SECRET in content(saver.base_directory)
    before = saver.size()
    if work == "prune":
        saver.prune("t", keep_last=2)
    else:
        would_free = saver.compact("t", dry_run=True)
        assert saver.size() == before
        freed = saver.compact("t")
        assert would_free == freed == before - saver.size()
        assert not saver.compact()
    assert SECRET not in content(saver.base_directory)
    assert saver.size() < before
    assert saver.get(config).state["note"] == "kept"
    assert opener().verify().ok


def test_delete_gives_its_descriptors_back(opener, config):
    saver = opener()
    put_all(saver, config, [{"n": 1}])
    saver.release(config)
    saver.tag(config)
    put_all(saver, config, [{"n": 1}])
    logs = [file for file in list_open_files(saver.base_directory) if file.endswith("/log")]
    assert logs
    saver.delete("t")
    left = list_open_files(saver.base_directory)
    assert not {*logs} & {*left}, "a file that somebody has open still takes its space"
    assert not [file for file in left if file.endswith(" (deleted)")]


def test_what_crashed_deletes_left_goes_with_the_first_thread_that_a_process_makes_or_deletes(opener, config):
    saver = opener()
    put_all(saver, config, [{"n": 1}])
    root = Path(saver.base_directory)
    for work in (lambda one: put_all(one, config.replace(thread_id="new"), [{}]), lambda one: one.delete("new")):
        dead = root / "tmp-t-dead-aaaaaaaaaaaaaaaaaaaaaaaa"
        dead.mkdir()
        (dead / "log").write_bytes(SECRET)
        work(opener())
        assert not dead.exists()
