"""A checkpoint is found by its id without an index, whatever the order of the ids, and damage never changes which one."""

import itertools
import random
import uuid

import pytest

from graphkit import Checkpoint, CheckpointCorruptionError, CheckpointerError, RunnableConfig
from savers import FileSystemSaver
from savers._log import history, log_bytes
from savers._log.stored_checkpoint import Index
from tests.support.logs import flip, locate_log

THREAD = RunnableConfig("t")


def name(checkpoint_id):
    return THREAD.replace(checkpoint_id=checkpoint_id)


def put(saver, number, checkpoint_id=None, target=THREAD, **state):
    new = Checkpoint(node_id="n", next_node_id="m", state={"n": number, **state}, id=checkpoint_id)
    saver.put(target, new)
    return new.id


def read_number(saver, checkpoint_id):
    return saver.get(name(checkpoint_id)).state["n"]


@pytest.fixture
def scans(monkeypatch):
    """The indexes of whole logs that were built."""
    built = []

    def build(*checkpoints):
        built.append(Index(*checkpoints))
        return built[-1]

    monkeypatch.setattr(history, "Index", build)
    return built


def make_id(kind, number, randomness):
    """An id that grows with the number, or falls, or has no order."""
    time = {"grows": number, "falls": 9_999 - number, "jumps": randomness.randrange(10_000)}.get(kind, 0)
    if kind == "version 4":
        return str(uuid.UUID(bytes=randomness.randbytes(16), version=4))
    if kind == "no version":
        return str(uuid.UUID(bytes=randomness.randbytes(16)))
    return str(uuid.UUID(f"1f0c{time:04d}-{number:04x}-6000-8000-{randomness.randrange(1 << 48):012x}"))


@pytest.mark.parametrize("kind", ["grows", "falls", "jumps", "version 4", "no version"])
def test_in_any_order_of_ids(kind, tmp_path, scans):
    dice = random.Random(kind)
    ids = []
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        for number in range(400):
            made = make_id(kind, number, dice)
            text = "t" * dice.randrange(2000)
            ids.append(put(saver, number, made, text=text))
    for number in (0, 1, 57, 398, 399):
        reader = FileSystemSaver(tmp_path)
        assert read_number(reader, ids[number]) == number
        assert read_number(reader, ids[-2]) == 398
    assert scans == []
    unknown = name(str(uuid.uuid4()))
    assert FileSystemSaver(tmp_path).get(unknown) is None
    assert len(scans) == 1, "that there is none is known only after a scan"


def test_an_id_at_every_position_of_the_windows_that_are_searched(tmp_path, monkeypatch, scans):
    monkeypatch.setattr(log_bytes, "_FIRST_SEARCH", 50)
    monkeypatch.setattr(log_bytes, "_LONGEST_SEARCH", 97)
    monkeypatch.setattr(history, "_SEARCHES", 1000)
    saver = FileSystemSaver(tmp_path, fsync="never")
    ids = [put(saver, number, text="t" * number) for number in range(120)]
    reader = FileSystemSaver(tmp_path)
    found = [read_number(reader, checkpoint_id) for checkpoint_id in ids]
    assert found == list(range(120))
    assert scans == []


def test_the_newest_of_two_with_one_id_is_found_and_none_that_was_replaced(tmp_path):
    twice, wanted, other = (str(uuid.UUID(int=number << 64, version=4)) for number in (1, 2, 3))
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        put(saver, 0, twice)
        put(saver, 1, wanted)
        for number in range(2, 40):
            put(saver, number, twice if number == 20 else None)
    found = {one: read_number(FileSystemSaver(tmp_path), one) for one in (twice, wanted)}
    assert found == {twice: 20, wanted: 1}
    put(FileSystemSaver(tmp_path, fsync="never"), 50, other, name(wanted))
    assert FileSystemSaver(tmp_path).get(name(wanted)) is None
    assert read_number(FileSystemSaver(tmp_path), other) == 50


def test_damage_never_changes_what_is_found(tmp_path, sweep):
    saver = FileSystemSaver(tmp_path, fsync="never")
    text = []
    ids = []
    for number in range(60):
        text.append(f"{number:050}")
        ids.append(put(saver, number, text=list(text)))
        saver.put_writes(name(ids[-1]), {"w": number})
    path = locate_log(tmp_path)
    good = path.read_bytes()
    refused = 0
    offsets = sweep.some(range(64, len(good)), 400)
    for offset in offsets:
        path.write_bytes(flip(good, offset, 16))
        with FileSystemSaver(tmp_path) as reader:
            expect_a_summary_of_the_history(reader)
        reader = FileSystemSaver(tmp_path)
        try:
            found = reader.get(name(ids[30]))
            writes = reader.get_writes(name(ids[30]))
        except CheckpointCorruptionError:
            refused += 1
            continue
        assert found.state == {"n": 30, "text": text[:31]}
        assert writes == {"w": 30}
    assert refused > len(offsets) // 4


def expect_a_summary_of_the_history(reader):
    try:
        infos = reader.history(THREAD)
    except CheckpointerError as error:
        with pytest.raises(type(error)):
            reader.summary(THREAD)
    else:
        summary = reader.summary(THREAD)
        assert (summary.latest, summary.checkpoints) == (infos[0], len(infos))


def test_with_the_writes_that_were_recorded_before_it(tmp_path, scans):
    saver = FileSystemSaver(tmp_path, fsync="never")
    ids = [str(uuid.uuid4()) for _ in range(200)]
    for number, (checkpoint_id, following) in enumerate(itertools.pairwise(ids)):
        own = name(checkpoint_id)
        saver.put_writes(own, {"own": number}, early=True)
        saver.put_writes(name(following), {"before its predecessor": number}, early=True)
        put(saver, number, checkpoint_id)
    scans.clear()
    reader = FileSystemSaver(tmp_path)
    some = name(ids[57])
    writes = reader.get_writes(some)
    assert writes == {"before its predecessor": 56, "own": 57}
    assert scans == []


def test_no_bytes_of_a_sealed_log_are_searched(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    cipher = {"key": bytes(32)}
    with FileSystemSaver(tmp_path, fsync="never", cipher=cipher) as saver:
        ids = [put(saver, number) for number in range(20)]
    monkeypatch.setattr(history, "search_back", lambda *_: pytest.fail("ciphertext was searched"))
    with FileSystemSaver(tmp_path, cipher=cipher) as reader:
        assert reader.get(name(ids[3])).state["n"] == 3
