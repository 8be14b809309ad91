"""The marker of a store, damaged in every way: it closes nothing, and repair rewrites it (C2)."""

import random
from zlib import crc32

import pytest

from graphkit import Checkpoint, CheckpointFormatError, RunnableConfig
from savers import FileSystemSaver

THREADS = ["plain", "Not Plain!"]
OTHER_CONTENTS = [
    bytes(512), b"\xff" * 63, b"{}\n", b"[]\n", b"\n", b"null", b'{"format": true}\n', b'{"format": -2, "store": "x"}\n',
    b'{"format": 0, "store": "x"}\n', b'{"format": 1}\n', b'{"store": "x"}\n', b'{"format": ' + b"9" * 60 + b"}",
]  # fmt: skip


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "store"
    with FileSystemSaver(root, fsync="never") as saver:
        for thread in THREADS:
            saver.put(RunnableConfig(thread), Checkpoint(node_id="a", next_node_id="b", state={"of": thread}))
    return root / "graphkit.store"


def expect_open(root):
    with FileSystemSaver(root, fsync="never") as saver:
        assert saver.threads() == sorted(THREADS)
        for thread in THREADS:
            assert saver.get(RunnableConfig(thread)).state["of"] == thread
        return saver.verify()


def expect_noticed_and_repaired(root):
    report = expect_open(root)
    assert not report.ok
    assert report.marker is not None
    assert report.problems == (report.marker,)
    assert all(thread.ok for thread in report.threads)
    marker = root / "graphkit.store"
    before = marker.read_bytes()
    with FileSystemSaver(root, fsync="never") as saver:
        assert saver.repair(dry_run=True).marker is not None
        assert marker.read_bytes() == before
        repaired = saver.repair()
        assert repaired.changed
        assert repaired.marker is not None
        assert not saver.repair().changed
    assert expect_open(root).ok
    assert b'"format": 2' in marker.read_bytes()


def test_any_other_content_is_noticed_and_closes_nothing(store):
    """test_every_bit.py has each flipped bit."""
    sound = store.read_bytes()
    dice = random.Random(1)
    cut_short = [sound[:length] for length in range(len(sound))]
    changed = [
        bytes(len(sound)),
        sound + b"\n",
        sound * 2,
        b" " + sound,
        b"\xef\xbb\xbf" + sound,
        sound[:30] + bytes(33),
        sound.replace(b"format", b"FORMAT"),
    ]
    noise = [dice.randbytes(63), dice.randbytes(5000)]
    for data in cut_short + changed + noise + OTHER_CONTENTS:
        store.write_bytes(data)
        expect_noticed_and_repaired(store.parent)


def test_a_marker_that_is_missing_costs_nothing(store):
    store.unlink()
    assert expect_open(store.parent).ok


@pytest.mark.parametrize(
    "line",
    [
        b'{"format": 3, "store": "%s", "more": 1}\n',
        b'{"format": 12, "store": "%s"}\n',
        b'{"format": 3, "store": "%s"}\n',
    ],
    ids=["more fields", "two digits", "as version 2"],
)
def test_a_newer_store_is_refused_by_all_and_its_marker_stays(tmp_path, line):
    root = tmp_path / "store"
    old = FileSystemSaver(root, fsync="never")
    old.put(RunnableConfig("t"), Checkpoint(node_id="a", next_node_id="b", state={}))
    line %= b"0" * 36
    marker = root / "graphkit.store"
    newer = line.replace(b"}", b', "crc32": "%08x"}' % crc32(line))
    marker.write_bytes(newer)
    with pytest.raises(CheckpointFormatError, match="update it"):
        FileSystemSaver(root)
    # A saver that was open before another process updated the store must not take the newer marker for damage.
    report = old.verify()
    assert report.marker is not None
    assert report.marker.state == "newer"
    repaired = old.repair()
    assert marker.read_bytes() == newer
    assert repaired.marker is None
    old.close()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"format": 1, "store": "%s"}\n' % (b"0" * 36), "format 1, by a development version"),
        (b"something else", "not a graphkit store"),
    ],
    ids=["version 1", "no store"],
)
def test_what_no_release_has_made_is_refused_and_stays(tmp_path, line, reason):
    marker = tmp_path / "graphkit.store"
    marker.write_bytes(line)
    if reason.startswith("format 1"):
        (tmp_path / "t-plain-2solq33wb6ghfudzsb2zbbax").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointFormatError, match=reason):
        FileSystemSaver(tmp_path)
    assert marker.read_bytes() == line
    assert sorted(tmp_path.rglob("*")) == before


def test_the_first_write_makes_the_marker_one_of_version_2_and_keeps_the_id(store):
    before = store.read_bytes()
    expect_open(store.parent)
    assert store.read_bytes() == before
    with FileSystemSaver(store.parent, fsync="never") as saver:
        checkpoint = Checkpoint(node_id="a", next_node_id="b", state={})
        saver.put(RunnableConfig("new"), checkpoint)
    store_id = before.split(b'"store": "')[1][:36]
    line = b'{"format": 2, "store": "%s"}\n' % store_id
    checksum = b"%08x" % crc32(line)
    assert store.read_bytes() == line.replace(b"}", b', "crc32": "%s"}' % checksum)
