"""Forged records that expand without end, or claim more than any value can have: a typed error, and not much work (C11)."""

import zlib
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers import FileSystemSaver
from tests.support.checkpoints import list_states
from tests.support.logs import CHECKPOINT, COMPRESSED, KEY, TRAILER_SIZE, append_record, locate_log, read_records

CONFIG = RunnableConfig("t")
MORE = 1 << 20


GIB = 1 << 30
STR = 3
BIN = 4
KIND_WITH_BLOCK = 8
ZLIB = 1
ZSTD = 2


@pytest.fixture
def forge(tmp_path):
    """Appends keyframes of any content to a good log."""
    with FileSystemSaver(tmp_path, fsync="never", compression=None) as saver:
        saver.put(CONFIG, Checkpoint(id="good", node_id="a", next_node_id="b", state={"k": "v" * 3000}))
    path = locate_log(tmp_path)

    def append(ops, table, data, flags=KEY | COMPRESSED):
        payload = msgpack.packb(["bad", "a", "b", 1, ops, table, data])
        return append_record(path, CHECKPOINT, payload, flags)

    return append


def readings(saver):
    """Every way to read the state of the last checkpoint, and to move it."""
    yield lambda: dict(saver.get(CONFIG).state)
    yield lambda: list_states(saver, CONFIG)
    yield lambda: saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={"k": "w" * 5000}))
    yield lambda: saver.remove(CONFIG, ["good"])
    yield lambda: saver.copy("t", "u") or dict(saver.get(RunnableConfig("u")).state)


def resident(figure):
    """VmRSS or VmHWM of this process in bytes: the memory in use now, or at most since the mark was reset."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(figure))


@contextmanager
def little_memory():
    """Fails if the block fills much memory: whoever works with what a record expands to fills memory with it."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # reset the mark of the most memory in use
    before = resident("VmRSS")
    yield
    assert resident("VmHWM") - before < 100 * MORE


@little_memory()
def expect_refused(root, error=CheckpointCorruptionError):
    for number in range(5):
        with FileSystemSaver(root, fsync="never") as saver:
            before = locate_log(root).read_bytes()
            reading = [*readings(saver)][number]
            try:
                reading()
            except CheckpointerError as refused:
                assert isinstance(refused, error), refused  # noqa: PT017
                assert locate_log(root).read_bytes() == before
            else:
                # A put that needs nothing of the forged value may go on from it.
                assert number == 2
                locate_log(root).write_bytes(before)
    with FileSystemSaver(root, fsync="never") as saver:
        assert not saver.verify("t").ok
        report = saver.repair("t")
        assert report.ok
        assert report.files[0].kept == 1
        assert saver.get(CONFIG).id == "good"
        assert saver.verify("t").ok


def packed(size, block, *, kind=STR, count=None, crc=0, method=ZLIB):
    """The op that sets a compressed value."""
    return [4, 0, kind, size if count is None else count, size, crc, method, len(block)]


SMALL_BLOCK = zlib.compress(bytes(1000))


def repeat(times):
    """The entry of a value that names the same bytes again and again: a few hundred KB of table for as many GB."""
    length = 3000
    pieces = [length + TRAILER_SIZE, length] + [-length, length] * (times - 1)
    return [STR, times * length, times * length, 0, 0, *pieces]


ENTRIES = {
    **{
        f"a block of {size}": [STR | KIND_WITH_BLOCK, 5, size, 0, 0, 1000, 100, size, ZLIB, 1 << 60, size]
        for size in (1 << 32, 1 << 63, -1)
    },
    **{f"the same bytes {times} times": repeat(times) for times in (2, 60_000)},
    **{f"a base at {distance}": [STR, 3000, 3000, 0, distance] for distance in (-500, -1, 10, 1 << 40)},
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_table_that_claims_more_than_any_value_has_or_than_there_is(tmp_path, forge, entry):
    forge([], ["k", entry], b"")
    expect_refused(tmp_path)


@pytest.mark.parametrize("size", [1, 999, 1001, (1 << 32) - 1, 1 << 32, 1 << 63, (1 << 64) - 1, -1])
@pytest.mark.parametrize("method", [ZLIB, ZSTD], ids=["zlib", "zstd"])
def test_a_block_of_another_size_than_it_claims(tmp_path, forge, size, method):
    block = SMALL_BLOCK
    if method == ZSTD:
        block = pytest.importorskip("zstandard").ZstdCompressor().compress(bytes(1000))
    forge(packed(size, block, method=method), ["k", None], block)
    expect_refused(tmp_path)


@pytest.mark.parametrize(("method", "block"), [(ZLIB, b"junk"), (ZLIB, b""), (ZSTD, b"x"), (7, b"x"), (7, SMALL_BLOCK)])
def test_a_block_that_is_none_or_of_an_unknown_method(tmp_path, forge, method, block):
    forge(packed(1000, block, method=method), ["k", None], block)
    expect_refused(tmp_path)


@pytest.mark.parametrize("method", [ZLIB, ZSTD], ids=["zlib", "zstd"])
def test_a_block_that_expands_to_much_more_than_it_claims(tmp_path, forge, method):
    plain = bytes(200 * MORE)
    if method == ZSTD:
        block = pytest.importorskip("zstandard").ZstdCompressor().compress(plain)
    else:
        block = zlib.compress(plain, 1)
    del plain
    forge(packed(1000, block, method=method), ["k", None], block)
    expect_refused(tmp_path)


def test_a_zstd_frame_that_claims_more_than_it_has(tmp_path, forge):
    zstandard = pytest.importorskip("zstandard")
    block = bytearray(zstandard.ZstdCompressor().compress(bytes(1 << 20)))
    assert zstandard.frame_content_size(bytes(block)) == 1 << 20
    at = block.index((1 << 20).to_bytes(4, "little"))
    block[at : at + 4] = ((1 << 32) - 1).to_bytes(4, "little")
    forge(packed((1 << 32) - 1, block, method=ZSTD), ["k", None], bytes(block))
    expect_refused(tmp_path)


def test_many_keys_that_name_the_same_bytes(tmp_path, forge):
    value = b"v" * 3000
    entry = [STR, 3000, 3000, zlib.crc32(value), 0, 3000 + TRAILER_SIZE, 3000]
    table = []
    for number in range(20_000):
        table += [f"k{number}", entry]
    forge([], table, b"")
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        for reading in (lambda: saver.get(CONFIG), lambda: dict(saver.list(CONFIG)[0].state)):
            with pytest.raises(CheckpointCorruptionError):
                reading()
        assert not saver.verify().ok


def test_a_block_whose_bytes_a_value_names_again_and_again(tmp_path, forge):
    plain = bytes(1000)
    block = zlib.compress(plain)
    checksum = zlib.crc32(plain)
    ops = packed(1000, block, crc=checksum)
    first = forge(ops, ["k", None], block)
    *_, last = read_records(locate_log(tmp_path))
    start = last.end - TRAILER_SIZE - len(block)
    assert first < start
    back = last.end - start
    times = 50_000
    length = times * 1000
    again = [-1000, 1000] * (times - 1)
    entry = [
        STR | KIND_WITH_BLOCK, length, length, 0, 0, back, len(block), 1000, ZLIB, back + (1 << 60), 1000, *again,
    ]  # fmt: skip
    forge([], ["k", entry], b"")
    with FileSystemSaver(tmp_path, fsync="never") as saver, pytest.raises(CheckpointCorruptionError):
        saver.get(CONFIG)


@pytest.mark.parametrize("count", [1 << 32, 1 << 63, -1, 1.5, "n", None])
@pytest.mark.parametrize("kind", [1, 2, STR, BIN, 7])
def test_a_value_of_an_impossible_count_or_kind(tmp_path, forge, count, kind):
    forge(
        packed(1000, SMALL_BLOCK, kind=kind, count=count if count is not None else [], crc=zlib.crc32(bytes(1000))),
        ["k", None],
        SMALL_BLOCK,
    )
    with FileSystemSaver(tmp_path, fsync="never") as saver, pytest.raises(CheckpointCorruptionError):
        saver.get(CONFIG)


REAL = """
import resource, sys, time, zlib
resource.setrlimit(resource.RLIMIT_AS, (450 << 20, 450 << 20))
from graphkit import RunnableConfig
from graphkit.errors import CheckpointerError
from savers import FileSystemSaver
saver = FileSystemSaver(sys.argv[1], fsync="never")
for call in (lambda: saver.get(RunnableConfig("t")), lambda: [dict(one.state) for one in saver.list(RunnableConfig("t"))]):
    try:
        call()
    except CheckpointerError as error:
        print(type(error).__name__)
print(saver.verify().ok)
print(saver.get(RunnableConfig("t").with_check_point_id("good")).id)
"""


def test_a_block_that_expands_to_more_than_the_machine_has(tmp_path, forge, launcher):
    """It claims 3 GiB and begins with 350 MB, in 2 MB; the process may have less than half a GiB."""
    size = 3 * GIB
    bomb = zlib.compress(bytes(MORE) * 350, 1)
    assert len(bomb) < 8 * MORE

    ops = packed(size, bomb)
    forge(ops, ["k", None], bomb)
    done = launcher.run("-c", REAL, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["CheckpointStorageError", "CheckpointStorageError", "False", "good"]
