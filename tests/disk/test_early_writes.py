"""Writes that are recorded before their checkpoint: none is lost, in whatever order they and the checkpoints arrive."""

import random
from multiprocessing import get_context

import msgpack
import pytest

from graphkit import Checkpoint, CheckpointNotFoundError, CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
from tests.disk import crashes
from tests.disk.simfs import SimFS
from tests.support.checkpoints import make_interrupt
from tests.support.disks import quiet
from tests.support.logs import (
    EARLY,
    KEPT_SUCCESSORS,
    WRITE,
    keep_waiting_writes,
    locate_log,
    read_checkpoints,
    read_records,
    replace_bytes,
    replace_payload,
)

ROOT = RunnableConfig("t")


def at(id):
    return RunnableConfig("t", checkpoint_id=id)


def made(id, **state):
    return Checkpoint(id=id, node_id="n", next_node_id="m", state={"id": id, **state})


class Model:
    """What the pending writes of each checkpoint are to be: the first under a key stays, unless the key is special."""

    def __init__(self):
        self.writes = {}
        self.present = []
        self.states = {}

    def write(self, saver, id, number):
        records = {"ordinary": number, "special": number, f"own{number}": number}
        kept = self.writes.setdefault(id, {})
        saver.put_writes(at(id), records, keep=["ordinary"], early=True)
        self.writes[id] = {**records, **kept, "special": number}

    def put(self, saver, id):
        checkpoint = made(id, items=[id] * len(self.present))
        saver.put(ROOT, checkpoint, unique=True)
        self.states[id] = checkpoint.state
        if id not in self.present:
            self.present.append(id)

    def check(self, saver):
        """By id, by the end of the log alone, and by a listing."""
        latest = saver.get(ROOT)
        assert (None if latest is None else latest.id) == (self.present[-1] if self.present else None)
        history = saver.history(ROOT)
        assert [info.id for info in history] == self.present[::-1]
        assert saver.info(at("unknown")) is None

        for info in history:
            here = at(info.id)
            assert saver.info(here) == info
            assert saver.get_writes(here) == self.writes.get(info.id, {})
            assert saver.get(here).state == self.states[info.id]

        assert saver.summary(ROOT) is None or saver.summary(ROOT).checkpoints == len(self.present)


def act(dice, savers, model, ids):
    saver = dice.choice(savers)
    what = dice.random()
    name = dice.choice(ids)
    if what < 0.45:
        model.write(saver, name, dice.randrange(1000))
    elif what < 0.8:
        model.put(saver, name)
    elif what < 0.88:
        saver._store.logs.close_idle()
    elif what < 0.92:
        saver.compact("t")
    elif what < 0.96:
        gone = dice.choice(ids)
        if saver.remove(ROOT, [gone]):
            model.present.remove(gone)
            model.writes.pop(gone, None)
    else:
        saver.close()


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.sweep(10)
def test_no_write_is_lost_between_two_savers_that_write_close_prune_and_compact(seed, tmp_path, monkeypatch):
    keep_waiting_writes(monkeypatch, 1000)
    dice = random.Random(seed)
    savers = [FileSystemSaver(tmp_path, fsync="never") for _ in range(2)]
    model = Model()
    ids = [f"{n:08x}-0000-6000-8000-000000000000" for n in range(8)]
    for _ in range(60):
        act(dice, savers, model, ids)
        if dice.random() < 0.2:
            model.check(dice.choice([*savers, FileSystemSaver(tmp_path)]))
            assert savers[0].verify().ok
    for name in ids:
        model.put(savers[0], name)
    for saver in (*savers, FileSystemSaver(tmp_path)):
        model.check(saver)
    assert savers[0].verify().ok


def test_writes_of_a_checkpoint_that_never_comes_are_seen_by_no_reader(saver, opener):
    never = at("never")
    saver.put_writes(never, {"w": 1}, early=True)
    assert list(opener().namespaces("t")) == []
    assert opener().get(ROOT) is None
    assert opener().interrupts() == []
    assert opener().get_writes(never) == {}
    assert opener().verify().ok
    saver.put(ROOT, made("a"))
    (info,) = opener().history(ROOT)
    assert info.id == "a"
    assert opener().get_writes(never) == {}
    with pytest.raises(CheckpointNotFoundError):
        saver.put_writes(never, {"w": 1})
    assert saver.delete("t")
    saver.put(ROOT, made("never"))
    assert opener().get_writes(never) == {}


def test_compact_removes_what_waits_for_long_and_keeps_what_the_next_checkpoints_need(saver, opener):
    never = at("never")
    following = at("next")
    saver.put_writes(never, {"w": b"x" * 50_000}, early=True)
    for n in range(KEPT_SUCCESSORS - 1):
        saver.put(ROOT, made(f"c{n}"))
    saver.put_writes(following, {"w": 1}, early=True)
    assert saver.compact("t") == 0
    saver.put(ROOT, made("last"))
    assert saver.compact("t") > 50_000
    opener().put(ROOT, made("next"))
    opener().put(ROOT, made("never"))
    assert opener().get_writes(following) == {"w": 1}
    assert opener().get_writes(never) == {}
    assert opener().verify().ok


def test_they_stay_in_a_copy_a_release_and_after_a_failed_sync(tmp_path):
    fs = SimFS()
    saver = FileSystemSaver("/store", io=fs)
    saver.put(ROOT, made("a"))
    saver.put_writes(at("b"), {"w": 1}, early=True)
    copy = RunnableConfig("u")
    saver.copy("t", "u")
    saver.put(copy, made("b"))
    assert saver.get_writes(copy) == {"w": 1}
    unacknowledged = at("c")
    with quiet(), crashes.fail_next_sync(fs), pytest.raises(CheckpointStorageError):
        saver.put_writes(unacknowledged, {"w": 2}, early=True)
    saver.put(ROOT, made("b"))
    saver.put(ROOT, made("c"))
    assert saver.get_writes(at("b")) == {"w": 1}
    assert saver.get_writes(unacknowledged) == {}
    saver.put_writes(at("d"), {"w": 3}, early=True)
    saver.release(ROOT)
    saver.put(ROOT, made("d"))
    assert saver.get_writes(at("d")) == {}, "the history for which it waited has ended"
    assert saver.verify().ok


def test_repair_keeps_them(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        for name in "abc":
            saver.put_writes(at(name), {"w": name}, early=True)
            saver.put(ROOT, made(name, text=name * 2000))
        saver.put_writes(at("d"), {"w": "d"}, early=True)
    path = locate_log(tmp_path)
    _, broken, _ = read_checkpoints(path)
    log = path.read_bytes()
    noise = bytes(range(250)) * 2
    garbled = replace_bytes(log, broken.offset + 100, noise)
    path.write_bytes(garbled)
    repaired = FileSystemSaver(tmp_path)
    with quiet():
        (repair,) = repaired.repair("t").files
    assert repair.kept == 1
    losses = [loss for loss in repair.lost if loss.checkpoint_id]
    assert {loss.checkpoint_id for loss in losses} == {"c"}
    reasons = [loss.reason for loss in losses]
    assert reasons == ["the record that it is relative to is lost", "its checkpoint is lost"]
    assert repaired.get_writes(at("a")) == {"w": "a"}
    repaired.put(ROOT, made("d"))
    assert repaired.get_writes(at("d")) == {"w": "d"}
    assert FileSystemSaver(tmp_path).verify().ok


def test_a_watch_reports_them_with_their_checkpoint(saver, opener):
    saver.put(ROOT, made("a"))
    with opener().watch("t") as watch:
        saver.put_writes(at("b"), {"interrupt:i": make_interrupt()}, early=True)
        saver.put(ROOT, made("b"))
        seen = [next(watch) for _ in range(2)]
    assert [(change.kind, change.checkpoint.id) for change in seen] == [("checkpoint", "b"), ("interrupt", "b")]


def test_a_checkpoint_that_replaces_another_has_the_writes_of_both(saver, opener):
    saver.put(ROOT, made("a"))
    saver.put_writes(at("a"), {"of a": 1})
    saver.put_writes(at("b"), {"of b": 2}, early=True)
    saver.put(at("a"), made("b"))
    for opened in (saver, opener()):
        assert opened.get_writes(at("b")) == {"of a": 1, "of b": 2}
    assert opener().verify().ok


@pytest.mark.parametrize("before", [0, 1], ids=["a keyframe", "a change"])
def test_the_record_of_a_checkpoint_with_early_writes_has_the_flag(tmp_path, before):
    """Also if it only names those of another checkpoint; docs/format.md promises it to other readers."""
    with FileSystemSaver(tmp_path) as saver:
        for n in range(before):
            saver.put(ROOT, made(f"before {n}"))
        saver.put_writes(at("own"), {"w": 1}, early=True)
        saver.put_writes(at("never"), {"w": 2}, early=True)
        saver.put(ROOT, made("own"))
        saver.put(ROOT, made("another"))
    flags = [bool(record.flags & EARLY) for record in read_checkpoints(locate_log(tmp_path))]
    assert flags == [False] * before + [True, True]


def test_verify_reports_a_checkpoint_that_does_not_name_the_writes_before_it(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        saver.put_writes(at("a"), {"w": 1}, early=True)
        saver.put(ROOT, made("a"))
    path = locate_log(tmp_path)
    (checkpoint,) = read_checkpoints(path)
    records = read_records(path)
    (write,) = [record for record in records if record.type == WRITE]
    distance = checkpoint.offset - write.offset
    right = msgpack.packb([distance, 0])
    wrong = msgpack.packb([distance - 1, 0])
    payload = checkpoint.payload.replace(right, wrong)
    replace_payload(path, checkpoint, payload)
    with quiet():
        (file,) = FileSystemSaver(tmp_path).verify().problems
    assert file.state == "damaged"


def _race(root, name):
    FileSystemSaver(root, fsync="never").put_writes(at("none"), {"who": name, name: True}, keep=["who"], early=True)


def test_of_two_processes_that_write_for_a_checkpoint_to_come_one_is_first(tmp_path):
    processes = [get_context("spawn").Process(target=_race, args=(tmp_path, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    saver = FileSystemSaver(tmp_path)
    assert saver.history(ROOT) == []
    saver.put(ROOT, made("none"))
    found = saver.get_writes(at("none"))
    assert found.keys() == {"a", "b", "who"}
    assert found["who"] in {"a", "b"}
