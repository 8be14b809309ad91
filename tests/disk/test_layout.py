"""Names, modes and places: any thread id has a directory of its own inside the root."""

import random
import shutil
import stat
from pathlib import Path
from zlib import crc32

import pytest

from graphkit import Checkpoint, CheckpointerConfigurationError, CheckpointFormatError, RunnableConfig
from savers import FileSystemSaver
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.logs import locate_log, locate_thread, namespace_name, read_records

HOSTILE = [
    "", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "a\0b", "a[", "*", "~", "con", "NUL.txt", "User", "user", "é", "e\u0301",
    "\ud800", "x" * 10_000, "-" * 300, " ", "trailing.", "$default", "t-x", "log", "日本語", "v000001.log", "\n",
]  # fmt: skip


def files_below(root):
    return [path for path in root.rglob("*") if not path.is_dir()]


@pytest.fixture
def hostile(opener):
    """Another saver on a store with a thread of each hostile name, and a namespace and nodes of that name."""
    saver = opener()
    for number, name in enumerate(HOSTILE):
        one = Checkpoint(node_id=name, next_node_id=name, state={"n": number})
        for namespace in ("", name):
            saver.put(RunnableConfig(name, checkpoint_ns=namespace), one)
    return opener()


@pytest.mark.requirement("promise 5", "behaviour 19", "L8", "H8")
def test_any_string_is_a_thread_with_a_directory_of_its_own_below_the_root_and_a_node(hostile, opener, tmp_path):
    """The contract has that each comes back as a thread and a namespace."""
    for name in HOSTILE:
        found = hostile.get(RunnableConfig(name, checkpoint_ns=name))
        assert (found.node_id, found.next_node_id) == (name, name)
    assert hostile.verify().ok
    assert [path.name for path in tmp_path.iterdir()] == ["store"], "nothing leaves the root"
    names = [path.name for path in Path(hostile.base_directory).glob("t-*")]
    assert len(names) == len({name.lower() for name in names}) == len(HOSTILE)
    assert max(map(len, names)) <= 67
    assert all(name.isascii() and name.islower() for name in names)
    for name in HOSTILE:
        assert hostile.release(RunnableConfig(name)).checkpoints[0].node_id == name
    assert sorted(opener().threads(released=True)) == sorted(HOSTILE)
    for name in HOSTILE:
        assert opener().version_namespaces(name, 1) == sorted({"", name})
        assert hostile.delete(name)
    assert [*hostile.threads(released=True)] == []


def test_the_directory_is_laid_out_as_specified(opener, tmp_path, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    saver.put(config.replace(checkpoint_ns="inner/Graph"), make_checkpoint(0))
    saver.release(config)
    saver.put(config, make_checkpoint(1))
    thread = locate_thread("t").name
    inner = namespace_name("inner/Graph")
    assert thread.startswith("t-t-")
    assert inner.startswith("n-inner-graph-")
    found = {str(path.relative_to(tmp_path / "store")) for path in files_below(tmp_path / "store")}
    assert found == {
        "graphkit.store",
        f"locks/{locate_thread('t').stripe:02x}",
        f"{thread}/run.lock",
        f"{thread}/log",
        f"{thread}/v000001.log",
        f"{thread}/{inner}/v000001.log",
    }


def test_the_header_is_as_specified(opener, config):
    import struct
    from hashlib import blake2b

    saver = opener()
    saver.put(config, make_checkpoint(0))
    data = locate_log(saver.base_directory).read_bytes()
    magic, major, minor, flags, fid, zero, generation, created, digest, zero2, check = struct.unpack_from(
        "<8sHHIIIQQ16sII", data
    )
    assert magic == b"\x89GKL\r\n\x1a\n"
    assert (major, minor, flags, zero, zero2, generation) == (2, 1, 0, 0, 0, 1)
    assert digest == blake2b(b"t").digest()[:16]
    assert check == crc32(data[:60])
    assert created > 0
    first, second, third = read_records(locate_log(saver.base_directory))
    assert [(frame.type, frame.seq, frame.fid) for frame in (first, second, third)] == [
        (1, 0, fid), (1, 1, fid), (2, 2, fid),
    ]  # fmt: skip
    assert first.payload == second.payload
    assert data[64:68] == b"\xc1\xf5\x47\x32"
    head = data[third.offset : third.offset + 35]
    place = struct.pack("<BQ", third.type, third.offset)
    assert struct.unpack_from("<IB", data, third.offset + 35) == (crc32(head + place), third.type)
    assert struct.unpack_from("<IB", data, third.end - 5) == (third.size, 0x4B)


def modes(paths):
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


@pytest.mark.requirement("promise 5", "P71")
def test_modes_do_not_depend_on_the_umask(odd_umask, opener, config, tmp_path):
    root = tmp_path / "deep" / "store"
    saver = opener(root)
    saver.put(config, make_checkpoint(0))
    inner = config.replace(checkpoint_ns="inner")
    saver.put(inner, make_checkpoint(0))
    saver.release(config)
    saver.put(config, make_checkpoint(0))
    path = locate_log(root)
    path.write_bytes(path.read_bytes() + b"torn")
    opener(root).put(config, make_checkpoint(1))
    saver.prune(config, keep_last=1)
    assert modes(files_below(tmp_path)) == {0o600}
    directories = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert modes(directories) == {0o700}


@pytest.mark.requirement("L6")
def test_missing_directories_are_made_and_reading_makes_nothing_else(config, tmp_path):
    new = tmp_path / "a" / "b"
    saver = FileSystemSaver(str(new))
    assert saver.get(config) is saver.summary(config) is None
    saver.list(config), saver.history(config), saver.tags_of(config), saver.get_writes(config)
    saver.threads(), saver.interrupts(), saver.size(), saver.versions_by_thread_id("t"), saver.namespaces("t")
    assert not saver.delete("t")
    assert [*tmp_path.rglob("*")] == [new.parent, new]
    assert saver.release(config).checkpoints == []


def test_a_directory_that_exists_keeps_its_mode(config, tmp_path):
    tmp_path.chmod(0o755)
    FileSystemSaver(tmp_path).put(config, make_checkpoint(0))
    assert modes([tmp_path]) == {0o755}


@pytest.mark.parametrize("below", [(), ("sub",), ("sub", "dir")])
def test_a_path_that_is_a_file_is_a_clear_error(below, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointerConfigurationError, match="is a file"):
        FileSystemSaver(tmp_path.joinpath("file", *below))
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_no_serializer_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(CheckpointerConfigurationError):
        FileSystemSaver(tmp_path / "store", state_serializer=dict)
    assert not (tmp_path / "store").exists()


@pytest.mark.requirement("H7", "H33")
def test_the_directory_of_a_thread_is_all_that_it_needs(opener, tmp_path):
    """There is no index to lose and no pointer to the latest checkpoint; all other files are made again."""
    root, moved = tmp_path / "store", tmp_path / "elsewhere"
    saver = opener()
    for thread in ("First", "second", "third"):
        for number in range(3):
            saver.put(RunnableConfig(thread), make_checkpoint(number))
    saver.close()
    shutil.rmtree(next(root.glob("t-second-*")))
    (root / "graphkit.store").unlink()
    shutil.rmtree(root / "locks")
    for lock in root.glob("t-*/run.lock"):
        lock.unlink()
    shutil.copytree(root, moved)
    for place in (root, moved):
        fresh = opener(place)
        assert fresh.verify().ok
        assert list(fresh.threads()) == ["First", "third"]
        assert fresh.get(RunnableConfig("second")) is None
        first = RunnableConfig("First")
        fresh.put(first, make_checkpoint(3))
        assert list_numbers(opener(place), first) == [3, 2, 1, 0]
        assert (place / "graphkit.store").exists()


@pytest.mark.parametrize("namespace", ["", "sub"])
def test_a_deletion_of_what_was_set_aside_is_one(namespace, opener, config, tmp_path):
    saver = opener()
    saver.put(config.replace(checkpoint_ns=namespace), make_checkpoint(0))
    saver.close()
    path = locate_log(tmp_path / "store", namespace=namespace)
    path.rename(path.with_name("damaged-00000000000000000000000000000001.bin"))
    again = opener()
    assert again.threads() == []
    assert again.delete("t") is True
    assert not path.parent.exists()
    assert again.delete("t") is False


# The marker of a store, damaged in every way: it closes nothing, and repair rewrites it (C2)


THREADS = ["plain", "Not Plain!"]
OTHER_CONTENTS = [
    bytes(512), b"\xff" * 63, b"{}\n", b"[]\n", b"\n", b"null", b'{"format": true}\n', b'{"format": -2, "store": "x"}\n',
    b'{"format": 0, "store": "x"}\n', b'{"format": 1}\n', b'{"store": "x"}\n', b'{"format": ' + b"9" * 60 + b"}",
]  # fmt: skip


@pytest.fixture
def marked(tmp_path):
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


def test_any_other_content_is_noticed_and_closes_nothing(marked):
    """test_every_bit.py has each flipped bit."""
    sound = marked.read_bytes()
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
        marked.write_bytes(data)
        expect_noticed_and_repaired(marked.parent)


@pytest.mark.parametrize(("major", "more"), [(3, b', "more": 1'), (12, b""), (3, b"")])
def test_a_newer_store_is_refused_by_all_and_its_marker_stays(tmp_path, major, more):
    root = tmp_path / "store"
    old = FileSystemSaver(root, fsync="never")
    old.put(RunnableConfig("t"), Checkpoint(node_id="a", next_node_id="b", state={}))
    line = b'{"format": %d, "store": "%s"%s}\n' % (major, b"0" * 36, more)
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


def test_the_first_write_makes_the_marker_one_of_version_2_and_keeps_the_id(marked):
    before = marked.read_bytes()
    expect_open(marked.parent)
    assert marked.read_bytes() == before
    with FileSystemSaver(marked.parent, fsync="never") as saver:
        saver.put(RunnableConfig("new"), make_checkpoint(0))
    store_id = before.split(b'"store": "')[1][:36]
    line = b'{"format": 2, "store": "%s"}\n' % store_id
    checksum = b"%08x" % crc32(line)
    assert marked.read_bytes() == line.replace(b"}", b', "crc32": "%s"}' % checksum)
