"""Records whose checksums are right and whose content is not, as a bug of some writer would leave them."""

import random
import shutil
from enum import Enum
from functools import partial

import msgpack
import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointerError, CheckpointSerializationError
from graphkit.recovery import last_good
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
            saver.put(
                CONFIG,
                Checkpoint(id=f"c{n}", node_id=f"n{n}", next_node_id=f"n{n + 1}", state=state, metadata={"step": n}),
            )
            if n % 5 == 1:
                saver.put_writes(CONFIG, {"k": n, "interrupt:1": make_interrupt(payload=n)})
                saver.add_tags(CONFIG, "good")
            if n == 9:
                saver.put(
                    CONFIG.with_check_point_id("c3"),
                    Checkpoint(id="c3b", node_id="a", next_node_id="b", state={"n": 3}),
                )
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
        if not any(file.refused for file in repair.files):
            assert saver.verify().ok, saver.verify().problems
            for read in READINGS.values():
                assert not is_damage(refused(partial(read, saver, CONFIG)))
            checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"n": 99})
            put = partial(saver.put, CONFIG, checkpoint)
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


def write_log(root, type_, parts, flags=0):
    """Write a log of a good record and a malformed one."""
    with FileSystemSaver(root, fsync="never", compression=None) as saver:
        saver.put(CONFIG, Checkpoint(id="good", node_id="a", next_node_id="b", state={"k": "v"}))
    path = locate_log(root)
    append_record(path, type_, msgpack.packb(parts), flags)
    return path


class Kind(Enum):
    X = "x"


def test_metadata_of_a_type_that_is_not_registered_are_no_damage(tmp_path):
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={}, metadata={"kind": Kind.X})
    with FileSystemSaver(tmp_path, fsync="never", types=[Kind]) as saver:
        saver.put(CONFIG, checkpoint)
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        reads = (saver.list, saver.history, saver.get, partial(last_good, saver))
        for read in reads:
            with pytest.raises(CheckpointSerializationError, match="its type is not registered"):
                read(CONFIG)
        report = saver.verify("t")
        assert report.ok
        saver.register_types(Kind)
        latest = saver.get(CONFIG)
        assert latest.metadata["kind"] is Kind.X


def expect_repair(saver):
    (problem,) = saver.verify("t").problems
    assert problem.state == "damaged"
    assert saver.repair("t").ok
    assert list_ids(saver, CONFIG) == ["good"]
    assert saver.verify("t").ok


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_with_a_wrong_part_is_damage_and_repaired(tmp_path, name):
    path = write_log(tmp_path, *RECORDS[name])
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        for read in (saver.list, saver.history, saver.get):
            with pytest.raises(CheckpointCorruptionError, match=f"{path}"):
                read(CONFIG)
        expect_repair(saver)


@pytest.mark.parametrize("name", TABLES)
def test_a_keyframe_with_a_wrong_table_hides_only_its_own_state(tmp_path, name):
    path = write_log(tmp_path, CHECKPOINT, TABLES[name], KEY)
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        newest, older = saver.history(CONFIG)
        assert newest.id == "bad"
        assert older.id == "good"
        good = saver.get(CONFIG.replace(checkpoint_id="good"))
        assert dict(good.state) == {"k": "v"}
        with pytest.raises(CheckpointCorruptionError, match=f"{path}"):
            saver.get(CONFIG)
        with pytest.raises(CheckpointCorruptionError, match=f"{path}"):
            list_states(saver, CONFIG)
        expect_repair(saver)


@pytest.mark.parametrize("name", ENDINGS)
def test_an_end_of_a_history_that_names_no_version_is_damage_and_repaired(tmp_path, name):
    path = write_log(tmp_path, RELEASE, ENDINGS[name])
    before = path.read_bytes()
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        with pytest.raises(CheckpointCorruptionError, match="it names no version"):
            saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={}))
        assert path.read_bytes() == before
        expect_repair(saver)
