"""Records whose checksums are right and whose content is not, as a bug of some writer would leave them."""

import random
import shutil
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgpack
import pytest

from graphkit import RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from graphkit.testing import made
from savers import Compression, FileSystemSaver
from tests.support.checkpoints import list_ids, list_states, make_interrupt
from tests.support.logs import (
    CHECKPOINT,
    COMPRESSED,
    HEADER_SIZE,
    KEY,
    MARK,
    META,
    RELEASE,
    REPLACE,
    TOMBSTONE,
    TRAILER_SIZE,
    WRITE,
    append_record,
    locate_log,
    pack_frame,
    read_records,
)
from tests.support.odd import odd
from tests.support.readings import READINGS, list_changes

CONFIG = RunnableConfig("t")


@pytest.fixture(scope="module", params=["plain", "compressed"])
def written(request, tmp_path_factory):
    """A log of records of every kind, with more than one keyframe."""
    root = tmp_path_factory.mktemp("written")
    compression = Compression(threshold=50) if request.param == "compressed" else None
    items = []
    with FileSystemSaver(root, fsync="never", compression=compression) as saver:
        for n in range(24):
            items = [*items, {"x": "lorem " * n}]
            state = {"items": items, "text": f"ipsum {n // 3} " * 300, "n": n, **({"odd": n} if n % 2 else {})}
            saver.put(CONFIG, made(state, id=f"c{n}", metadata={"step": n}))
            if n % 5 == 1:
                saver.put_writes(CONFIG, {"k": n, "interrupt:1": make_interrupt(payload=n)})
                saver.add_tags(CONFIG, "good")
            if n == 9:
                saver.put(CONFIG.with_check_point_id("c3"), made({"n": 3}, id="c3b"))
    return root


def forged(dice, frames):
    """The bytes behind the header, with one record that says something else."""
    which = dice.randrange(len(frames))
    moved = {}
    parts = []
    at = HEADER_SIZE
    for number, frame in enumerate(frames):
        payload = frame.payload
        flags = frame.flags
        type_ = frame.type
        back = at - moved[frame.offset - frame.back] if frame.back else 0
        key = at - moved[frame.offset - frame.key] if frame.key else 0
        if number == which:
            kind = dice.random()
            if kind < 0.8:
                value = msgpack.unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False)
                payload = msgpack.packb(odd(dice, value), unicode_errors="surrogatepass")
            elif kind < 0.85:
                length = dice.randrange(40)
                payload = dice.randbytes(length)
            elif kind < 0.9:
                flags ^= dice.choice([KEY, REPLACE, COMPRESSED])
            elif kind < 0.95:
                distances = [(0, back), (key, 0), (back, key), (key + 1, back), (1 << 31, back)]
                key, back = dice.choice(distances)
            else:
                type_ = dice.choice([META, CHECKPOINT, WRITE, MARK, RELEASE, TOMBSTONE])
        moved[frame.offset] = at
        record = pack_frame(at, frame.fid, frame.seq, type_, payload, flags, back, key)
        parts.append(record)
        at += len(record)
    return b"".join(parts)


def refused(reading):
    try:
        reading()
    except CheckpointerError as error:
        return error
    return None


def is_damage(error):
    """Values are not looked into by those who check: their bytes may mean nothing and still be those that were stored."""
    of_values = ("not a packed value", "the state", "decompressing")
    return isinstance(error, CheckpointCorruptionError) and not any(words in str(error) for words in of_values)


@pytest.mark.requirement("P52")
@pytest.mark.sweep(30, of="seed")
@pytest.mark.parametrize("seed", [*range(100), 6327])
def test_a_record_that_makes_no_sense_is_damage_and_nothing_worse(written, tmp_path, seed):
    dice = random.Random(seed)
    store = shutil.copytree(written, tmp_path / "store")
    path = locate_log(store)
    header = path.read_bytes()[:HEADER_SIZE]
    records = forged(dice, read_records(path))
    path.write_bytes(header + records)
    found = []
    for read in READINGS.values():
        with FileSystemSaver(store, fsync="never") as saver:
            found.append(refused(partial(read, saver, CONFIG)))
    with FileSystemSaver(store, fsync="never") as saver:
        report = saver.verify()
        assert not report.ok or not any(map(is_damage, found)), found
        list_changes(saver, None)  # a watch of all threads passes over damage
        repair = saver.repair("t")
        is_refused = any(file.refused for file in repair.files)
        if not is_refused:
            assert saver.verify().ok, saver.verify().problems
            for read in READINGS.values():
                assert not is_damage(refused(partial(read, saver, CONFIG)))
            put = partial(saver.put, CONFIG, made({"n": 99}))
            if refused(put) is None:  # as it is where the description says that states are somebody else's bytes
                latest = saver.get(CONFIG)
                assert latest.state["n"] == 99


# One part is wrong: each check of a part has a record that only this check refuses


LATE = 1 << 62
TABLE = []

KEYFRAMES = {
    "more parts than there are": ["bad", "a", "b", 1, [], TABLE, None, None, None, None, 5, b""],
    "operations that are no list": ["bad", "a", "b", 1, "ops", TABLE, b""],
    "data that are no bytes": ["bad", "a", "b", 1, [], TABLE, "data"],
    "a time that no clock shows": ["bad", "a", "b", LATE, [], TABLE, b""],
    "a node that is no text": ["bad", 7, "b", 1, [], TABLE, b""],
    "an id that is no text": [7, "a", "b", 1, [], TABLE, b""],
    "a table that is no list": ["bad", "a", "b", 1, [], 7, b""],
    "a table that is text": ["bad", "a", "b", 1, [], "table", b""],
    "a table that is a mapping": ["bad", "a", "b", 1, [], {"k": 1}, b""],
    "early writes without a place": ["bad", "a", "b", 1, [], TABLE, None, None, None, [-1, 0], b""],
}
# Only who reads the state sees these.
TABLES = {
    "a table of a name without an entry": ["bad", "a", "b", 1, [], ["k"], b""],
    "a table with a name that is no text": ["bad", "a", "b", 1, [], [1, 1], b"\1"],
    "a table with an entry that is none": ["bad", "a", "b", 1, [], ["k", "entry"], b""],
    "a table with a value that is not there": ["bad", "a", "b", 1, [], ["k", 9], b""],
}
OTHERS = {
    "writes that are no bytes": (WRITE, ["good", {"k": 1}]),
    "writes without a key": (WRITE, ["good", {1: b""}]),
    "writes of an id that is none": (WRITE, [7, {"k": b"\1"}]),
    "writes that are no list": (WRITE, "writes"),
    "writes with one part more": (WRITE, ["good", {}, 1]),
    "tags that are no text": (MARK, ["good", [1], []]),
    "tags that are no list": (MARK, ["good", {}, []]),
}
ENDINGS = {"no version": [], "a version below 0": [-1], "a version that is no number": ["1"], "no list": "version"}
RECORDS = {name: (CHECKPOINT, parts, KEY) for name, parts in KEYFRAMES.items()}
RECORDS |= {name: (type_, parts, 0) for name, (type_, parts) in OTHERS.items()}


def write_log(root, *malformed):
    """Write a log of a good record, and malformed ones: (type, parts, flags)."""
    with FileSystemSaver(root, fsync="never", compression=None) as saver:
        saver.put(CONFIG, made({"k": "v" * 3000}, id="good"))
    path = locate_log(root)
    for type_, parts, flags in malformed:
        append_record(path, type_, msgpack.packb(parts), flags)
    return path


def expect_repair(saver):
    (problem,) = saver.verify("t").problems
    assert problem.state == "damaged"
    assert saver.repair("t").ok
    assert list_ids(saver, CONFIG) == ["good"]
    assert saver.verify("t").ok


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_with_a_wrong_part_is_damage_and_repaired(tmp_path, name):
    path = write_log(tmp_path, RECORDS[name])
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        for read in (saver.list, saver.history, saver.get):
            with pytest.raises(CheckpointCorruptionError, match=f"{path}"):
                read(CONFIG)
        expect_repair(saver)


@pytest.mark.parametrize("name", TABLES)
def test_a_keyframe_with_a_wrong_table_hides_only_its_own_state(tmp_path, name):
    path = write_log(tmp_path, (CHECKPOINT, TABLES[name], KEY))
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        newest, older = saver.history(CONFIG)
        assert newest.id == "bad"
        assert older.id == "good"
        good = saver.get(CONFIG.replace(checkpoint_id="good"))
        assert dict(good.state) == {"k": "v" * 3000}
        with pytest.raises(CheckpointCorruptionError, match=f"{path}"):
            saver.get(CONFIG)
        with pytest.raises(CheckpointCorruptionError, match=f"{path}"):
            list_states(saver, CONFIG)
        expect_repair(saver)


@pytest.mark.parametrize("name", ENDINGS)
def test_an_end_of_a_history_that_names_no_version_is_damage_and_repaired(tmp_path, name):
    path = write_log(tmp_path, (RELEASE, ENDINGS[name], 0))
    before = path.read_bytes()
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        with pytest.raises(CheckpointCorruptionError, match="it names no version"):
            saver.put(CONFIG, made({}))
        assert path.read_bytes() == before
        expect_repair(saver)


# They expand without end, or claim more than any value can have: a typed error, and not much work (C11)


MORE = 1 << 20
GIB = 1 << 30
STR = 3
BIN = 4
KIND_WITH_BLOCK = 8
ZLIB = 1
ZSTD = 2


@pytest.fixture
def forge(tmp_path):
    """Appends keyframes of any content to a log with a good one."""
    path = write_log(tmp_path)

    def append(ops, table, data, flags=KEY | COMPRESSED):
        payload = msgpack.packb(["bad", "a", "b", 1, ops, table, data])
        return append_record(path, CHECKPOINT, payload, flags)

    return append


def readings(saver):
    """Every way to read the state of the last checkpoint, and to move it."""
    yield lambda: dict(saver.get(CONFIG).state)
    yield lambda: list_states(saver, CONFIG)
    yield lambda: saver.put(CONFIG, made({"k": "w" * 5000}))
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
