"""A scan that reads runs of plain records at once finds what one record after the other shows, and the same damage."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.codec import Codec
from graphkit.errors import CheckpointerError
from graphkit.values import kind_of
from savers import FileSystemSaver
from savers._filesystem import history_views
from savers._log import log, log_reader, scanned_log
from savers._log.plain_log import read_plain_log
from savers._log.plain_records import PlainRun
from savers._log.stored_checkpoint import StoredCheckpoint

THREAD = RunnableConfig("t")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NODES = ["a", "b", "c", None]
METADATA = [
    {}, {"step": 1}, {"step": 2, "who": "x"}, {"when": EPOCH}, {"list": [1, {"a": 2}]}, {"big": 1 << 70}, {"s": "\ud800"},
    {"step": 3, "b": b"\x01", "none": None, "float": 0.5, "true": True}, {"parents": {}}, {"parents": {"a": {}}, "s": 1},
]  # fmt: skip


def fill(directory, seed, count=60, *, replaces=True):
    """Put checkpoints of every shape; return their ids."""
    randomness = random.Random(seed)
    saver = FileSystemSaver(directory, fsync="never")
    ids = []
    now = EPOCH
    for number in range(count):
        now += timedelta(microseconds=randomness.randrange(-1000, 5000))
        new = Checkpoint(
            id=randomness.choice([None, None, None, None, f"id {seed} {number}"]),
            node_id=randomness.choice(NODES[:-1]),
            next_node_id=randomness.choice(NODES),
            parent_id=randomness.choice([None, "elsewhere", *ids[-1:] * 6]),
            created_at=now,
            metadata=randomness.choice([*METADATA, {"step": number}, {"step": number}]),
            state={"n": number, "items": list(range(number))},
        )
        target = THREAD
        if replaces and ids and randomness.random() < 0.1:
            target = THREAD.replace(checkpoint_id=ids.pop(randomness.randrange(len(ids))))
        saver.put(target, new)
        ids.append(new.id)
        if randomness.random() < 0.4:
            owner = THREAD.replace(checkpoint_id=randomness.choice([*ids, *ids[-1:] * 20]))
            saver.put_writes(owner, {"k": randomness.choice([None, number]), f"k{number}": "v"})
        if randomness.random() < 0.1:
            saver.add_tags(THREAD.replace(checkpoint_id=ids[-1]), f"tag {number}")
    saver.close()
    return ids


@pytest.fixture
def one_by_one(monkeypatch):
    """A function that reads a history one record after the other."""

    def read(directory):
        with monkeypatch.context() as patch:
            patch.setattr(
                log_reader, "read_plain_run", lambda _data, _base, offset, *rest: PlainRun([], offset, rest[2], False)
            )
            return outline(directory)

    return read


def outline(directory):
    """What a new saver finds by scanning a log, or the error that it raises."""
    saver = FileSystemSaver(directory)
    try:
        writer = saver._shared_writer(THREAD)
        writer.refresh()
        infos = saver.history(THREAD)
        found = {info.id: saver.get_writes(THREAD.replace(checkpoint_id=info.id)) for info in infos}
        return [*infos], found, writer.seq, writer.end, writer.depth
    except CheckpointerError as error:
        return type(error), str(error)
    finally:
        saver.close()


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.sweep(4, of="seed")
@pytest.mark.parametrize("seed", range(20))
def test_every_shape_of_record(seed, replaces, tmp_path, one_by_one):
    fill(tmp_path, seed, replaces=replaces)
    infos, _, _, _, _ = found = outline(tmp_path)
    assert len(infos) > 40
    assert found == one_by_one(tmp_path)


def test_most_records_are_read_in_runs(tmp_path, monkeypatch):
    saver = FileSystemSaver(tmp_path, fsync="never")
    for number in range(200):
        saver.put(THREAD, Checkpoint(node_id="n", next_node_id="n", state={"n": number}, metadata={"step": number}))
    single = []
    take = log_reader.LogReader._take_frame
    monkeypatch.setattr(log_reader.LogReader, "_take_frame", lambda *a, **k: (single.append(a), take(*a, **k)))
    reader = FileSystemSaver(tmp_path)
    assert len(reader.history(THREAD)) == 200
    assert len(single) < 30


def fill_long(directory):
    """Put so many checkpoints that opening the log does not read the first of them."""
    saver = FileSystemSaver(directory, fsync="never")
    parent = None
    for number in range(220):
        metadata = {"step": number, "when": EPOCH} if number % 7 == 0 else {"step": number}
        new = Checkpoint(node_id="n", next_node_id="m", state={"n": number}, metadata=metadata, parent_id=parent)
        saver.put(THREAD, new)
        parent = new.id
        if number % 3 == 0:
            saver.put_writes(THREAD.replace(checkpoint_id=parent), {"k": number})
    saver.close()


def test_every_flipped_byte_shows_as_it_does_one_by_one(tmp_path, disk, sweep, one_by_one):
    fill_long(tmp_path)
    path = disk.log_of(tmp_path)
    good = path.read_bytes()
    flips = sweep.some([(offset, bit) for offset in range(400, 4000) for bit in (0, 5)], 150)
    for offset, bit in flips:
        bad = bytearray(good)
        bad[offset] ^= 1 << bit
        path.write_bytes(bad)
        found = outline(tmp_path)
        assert len(found) == 2, (offset, bit, "it must be refused")
        assert found == one_by_one(tmp_path), (offset, bit)


FORGED = {
    "seq": {"seq": 1},
    "fid": {"fid": 1},
    "keyframe": {"key": 45},
    "payload": {"payload": b"\x96\xc4\x10"},
    "extra": {"payload": b"\xc0\xc0"},
    "parts": {"payload": b"\x91\xc0"},
    "flag": {"flags": 64},
    "type": {"type": 9},
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_record_shows_as_it_does_one_by_one(kind, tmp_path, disk, one_by_one):
    fill_long(tmp_path)
    path = disk.log_of(tmp_path)
    good = path.read_bytes()
    header = log.read_header(str(path), good)
    victim = [frame for frame in disk.frames_of(path) if frame.type == log.CHECKPOINT][30]
    changed = {name: value + getattr(victim, name) for name, value in FORGED[kind].items() if name in {"seq", "key"}}
    changed = {**FORGED[kind], **changed}
    if "payload" in changed:
        changed["payload"] = changed["payload"].ljust(len(victim.payload), b"\xc0")
    fields = {name: getattr(victim, name) for name in ("seq", "type", "payload", "flags", "back", "key", "boot")}
    record = log.pack_frame(**{"offset": victim.offset, "fid": header.fid, **fields, **changed})
    path.write_bytes(good[: victim.offset] + record + good[victim.end :])
    found = outline(tmp_path)
    assert len(found) == 2, "it must be refused"
    assert found == one_by_one(tmp_path)


def test_a_wrong_trailer_shows_as_it_does_one_by_one(tmp_path, disk, one_by_one):
    fill_long(tmp_path)
    path = disk.log_of(tmp_path)
    good = path.read_bytes()
    victim = disk.frames_of(path)[30]
    for offset in range(victim.end - log.TRAILER_SIZE, victim.end):
        path.write_bytes(good[:offset] + b"\xaa" + good[offset + 1 :])
        found = outline(tmp_path)
        assert len(found) == 2, "it must be refused"
        assert found == one_by_one(tmp_path)


# Whole logs


def view_of(directory, *, is_plain=True):
    """What a listing finds in a log: its checkpoints with states and writes; None if it leaves it to others."""
    saver = FileSystemSaver(directory)
    try:
        (live_log,) = history_views.list_logs(saver._store, "t", "#")
        with pytest.MonkeyPatch.context() as patch:
            if not is_plain:
                patch.setattr(scanned_log, "read_plain_log", lambda *_: None)
            view = history_views.scan_log(saver._store, live_log)
        if view is None:
            return None
        assert view._is_plain <= is_plain
        found = [
            (
                {name: getattr(stored, name) for name in StoredCheckpoint.__slots__},
                kind_of(stored.metadata),
                view.read(stored),
            )
            for stored in view.checkpoints
        ]
        view.forget()
        assert [view.read(stored) for stored in view.checkpoints] == [read for _, _, read in found]
        return view._is_plain, view.end, found
    finally:
        saver.close()


@pytest.mark.parametrize("count", [1, 5, 200])
@pytest.mark.parametrize("seed", range(6))
def test_a_whole_log_of_every_shape(seed, count, tmp_path):
    fill(tmp_path, seed, count, replaces=seed % 2 == 0)
    found = view_of(tmp_path)
    assert found[1:] == view_of(tmp_path, is_plain=False)[1:]


@pytest.mark.parametrize("change", ["another owner", "one record", "no record", "a checkpoint instead"])
def test_a_whole_log_whose_beginning_is_not_plain(change, tmp_path, disk):
    fill(tmp_path, 1, 3, replaces=False)
    data = disk.log_of(tmp_path).read_bytes().rstrip(b"\0")
    first, second, keyframe, *_ = disk.frames_of(disk.log_of(tmp_path))
    fid = log.read_header("", data).fid
    beginnings = {
        "another owner": data[: second.offset]
        + log.pack_frame(second.offset, fid, 1, log.META, second.payload.replace(b"opaque", b"opaquf")),
        "one record": data[: second.offset],
        "no record": data[: first.offset],
        "a checkpoint instead": data[: second.offset]
        + log.pack_frame(second.offset, fid, 1, log.CHECKPOINT, keyframe.payload, log.KEY),
    }
    assert read_plain_log("", data[: keyframe.offset], ("t", ""), Codec().unpack) == ([], fid, keyframe.offset)
    assert read_plain_log("", beginnings[change], ("t", ""), Codec().unpack) is None


def test_a_whole_plain_log_with_zeros_behind_it(tmp_path, disk):
    fill_long(tmp_path)
    path = disk.log_of(tmp_path)
    path.write_bytes(path.read_bytes().rstrip(b"\0") + bytes(100))
    is_plain, _, checkpoints = found = view_of(tmp_path)
    assert is_plain
    assert len(checkpoints) == 220
    assert found[1:] == view_of(tmp_path, is_plain=False)[1:]


def test_every_flipped_byte_and_cut_of_a_whole_log(tmp_path, disk, sweep):
    fill_long(tmp_path)
    path = disk.log_of(tmp_path)
    good = path.read_bytes().rstrip(b"\0")
    for offset in sweep.some(range(len(good)), 75):
        for bad in (good[:offset], good[:offset] + bytes([good[offset] ^ 4]) + good[offset + 1 :]):
            path.write_bytes(bad)
            found = view_of(tmp_path)
            general = view_of(tmp_path, is_plain=False)
            assert (found and found[1:]) == (general and general[1:]), offset
