"""The end of a log says which checkpoint is its newest, or says nothing."""

import os
import random

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
from savers._filesystem.log_ends import read_log_end

THREAD = RunnableConfig("t")
KEYS = {"k1": bytes(32)}


def put(saver, number, *, id=None, target=THREAD, size=10):
    state = {"n": number, "text": random.Random(number).randbytes(size)}
    return saver.put(target, Checkpoint(id=id, node_id="a", next_node_id="b", state=state)).checkpoint_id


def read_end(saver, disk):
    return read_log_end(saver._store.io, str(disk.log_of(saver.base_directory)))


def newest_of(saver, disk):
    end = read_end(saver, disk)
    return None if end is None else end.newest_id


@pytest.fixture
def saver(tmp_path):
    with FileSystemSaver(tmp_path, fsync="never") as opened:
        yield opened


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [10, 900])
def test_the_newest_checkpoint_after_every_kind_of_record(saver, disk, seed, size):
    randomness = random.Random(seed)
    ids = []
    unknown = 0
    for number in range(60):
        kind = randomness.randrange(8)
        if ids and kind == 0:
            saver.put_writes(THREAD.replace(checkpoint_id=randomness.choice(ids)), {"k": number})
        elif ids and kind == 1:
            saver.add_tags(THREAD.replace(checkpoint_id=ids[-1]), f"tag {number}")
        elif ids and kind == 2:
            replaced = randomness.choice(ids)
            put(saver, number, id=replaced, target=THREAD.replace(checkpoint_id=replaced), size=size)
        else:
            ids.append(put(saver, number, id=randomness.choice([None, f"id {number}"]), size=size))
        found = newest_of(saver, disk)
        assert found in {None, saver.history(THREAD)[0].id}
        assert found in {None, ids[-1]}
        unknown += found is None
    assert 0 < unknown < 30


def test_no_flipped_bit_shows_another_checkpoint(saver, disk):
    for number in range(3):
        last = put(saver, number)
    path = disk.log_of(saver.base_directory)
    good = path.read_bytes()
    before = good.rfind(b"\xc1\xf5G2")
    for offset in (*range(before, len(good)), *range(10), *range(16, 20)):
        for bit in (0, 5, 7):
            bad = bytearray(good)
            bad[offset] ^= 1 << bit
            path.write_bytes(bad)
            assert newest_of(saver, disk) is None, (offset, bit)
    path.write_bytes(good)
    assert newest_of(saver, disk) == last


def test_a_torn_end_and_one_of_another_file(saver, disk):
    for number in range(3):
        put(saver, number)
    path = disk.log_of(saver.base_directory)
    good = path.read_bytes()
    last = good.rfind(b"\xc1\xf5G2")
    for length in (*range(100), *range(last + 1, len(good))):
        path.write_bytes(good[:length])
        assert newest_of(saver, disk) is None, length
    # A record proves its place and its file.
    path.write_bytes(good + good[last:])
    assert newest_of(saver, disk) is None
    path.write_bytes(good[:16] + b"\1\2\3\4" + good[20:])
    assert newest_of(saver, disk) is None


@pytest.mark.parametrize("count", [4, 40])
def test_zeros_after_the_last_record(tmp_path, disk, count):
    with FileSystemSaver(tmp_path, fsync="always") as saver:
        for number in range(count):
            last = put(saver, number, size=1000)
        end = read_end(saver, disk)
        assert end.newest_id == last
        assert end.is_followed_by_zeros
    assert end.status.st_size > disk.log_of(tmp_path).stat().st_size


def test_a_record_longer_than_what_is_read_of_the_end(saver, disk):
    put(saver, 0, size=30_000)
    assert newest_of(saver, disk) is None
    last = put(saver, 1, size=100)
    assert newest_of(saver, disk) == last


def test_ended_sealed_and_missing_logs(tmp_path, disk):
    pytest.importorskip("cryptography")
    with FileSystemSaver(tmp_path / "sealed", fsync="never", cipher=KEYS) as sealed:
        put(sealed, 1)
        assert newest_of(sealed, disk) is None
    with FileSystemSaver(tmp_path / "plain", fsync="never") as saver:
        put(saver, 1)
        assert newest_of(saver, disk) is not None
        path = disk.log_of(tmp_path / "plain")
        saver.release(THREAD)
        path.mkdir()
        assert read_log_end(saver._store.io, str(path)) is None
        path.rmdir()
        os.mkfifo(path)
        assert read_log_end(saver._store.io, str(path)) is None
        path.unlink()
        assert read_log_end(saver._store.io, str(path)) is None
