"""Every bit of every file of a store, flipped one at a time: noticed, of no cost to other threads, and corrected."""

import itertools
import random
import shutil
from functools import partial

import pytest

from graphkit import RunnableConfig
from savers import Compression, FileSystemSaver
from tests.disk.crashes import made
from tests.disk.simfs import SimFS
from tests.support import logs
from tests.support.contents import read_all
from tests.support.disks import quiet
from tests.support.logs import FRAME_SIZE, META, SCATTERED, TRAILER_SIZE, locate_log, read_records

ODD = "Not Plain!"
SHORT = [(ODD, ""), (ODD, "Sub graph!"), ("released", "")]
"""Each has one checkpoint: more would be stored as those of the other threads are."""
LATEST = {"plain": 2, ODD: 2, "released": 7, "sealed": 2}
"""The number of the latest checkpoint of each thread."""
KEYS = {"key": bytes(32)}


def open_saver(root, **options):
    return FileSystemSaver(root, fsync="never", compression=Compression(threshold=300), lock_timeout=0, **options)


def fill(saver, thread, namespace="", *, first=0):
    """Store the checkpoints up to number 2, with all kinds of records."""
    config = RunnableConfig(thread, checkpoint_ns=namespace)
    for number in range(first, 3):
        items = [f"item {n}" for n in range(number, number + 12)]
        saver.put(config, made(number, items=items, text="lorem ipsum " * 30, zeros=bytes(600)))
    saver.put_writes(config, {"branch": [1, "x"]})
    saver.add_tags(config, "good")
    replaced = made(max(first, 1), items=["instead"])
    saver.put(config.with_check_point_id(replaced.id), replaced)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("bits") / "store"
    released = RunnableConfig("released")
    with open_saver(root) as saver:
        fill(saver, "plain")
        for thread, namespace in SHORT:
            fill(saver, thread, namespace, first=2)
        saver.release(released)
        saver.put(released, made(7))
    with open_saver(root, cipher=KEYS) as saver:
        fill(saver, "sealed")
    shutil.rmtree(root / "locks")
    for lock in root.rglob("run.lock"):
        lock.unlink()
    return root


def files_of(root):
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


def bits_of(path):
    return [(place, bit) for place in range(path.stat().st_size) for bit in range(8)]


def flipped(tree, parts, place, bit):
    """A tree of bytes with one bit of one file flipped."""
    name, *below = parts
    if below:
        return {**tree, name: flipped(tree[name], below, place, bit)}
    return {**tree, name: logs.flip(tree[name], place, 1 << bit)}


def tree_of(path):
    """A directory as the simulated disk takes it."""
    return {entry.name: tree_of(entry) if entry.is_dir() else entry.read_bytes() for entry in path.iterdir()}


def expect_noticed_and_corrected(tree, file, place, bit, whole):
    """Flip a bit of a store, look at it, repair it, and compare everything."""
    damaged = flipped(tree, file.parts, place, bit)
    saver = open_saver("/", io=SimFS(damaged, record=False), cipher=KEYS)
    report = saver.verify()
    assert not report.ok
    (problem,) = report.problems
    assert problem.path == str(file)
    for thread in {thread for thread, _, _ in whole} - {owner_of(file)}:
        checkpoint = saver.get(RunnableConfig(thread))
        assert checkpoint.state["n"] == LATEST[thread]
    repaired = saver.repair()
    assert repaired.ok, repaired
    assert repaired.lost == ()
    assert read_all(saver) == whole
    if place % 8 == bit:
        assert saver.verify().ok
        assert not saver.repair().changed


DIRECTORIES = {locate_log("", thread).parts[0]: thread for thread in LATEST}


def owner_of(file):
    """The thread of a file; None of the marker."""
    return DIRECTORIES.get(file.parts[0])


def flip(store, choose, others=LATEST):
    """Flip the chosen bits of each file, in a store of its thread and some others; return how many there were."""
    count = 0
    with quiet():
        for file in files_of(store):
            left_out = LATEST.keys() - {owner_of(file), *others}
            tree = {name: below for name, below in tree_of(store).items() if DIRECTORIES.get(name) not in left_out}
            whole = read_all(open_saver("/", io=SimFS(tree, record=False), cipher=KEYS))
            for place, bit in choose(store / file):
                expect_noticed_and_corrected(tree, file, place, bit, whole)
                count += 1
    return count


def sampled(path, many=2):
    """Some bits of each part of each record, and of the file's header."""
    dice = random.Random(path.name)
    bits = bits_of(path)
    if path.name == "graphkit.store":
        return dice.sample(bits, 15 * many)
    header = bits[: 64 * 8]
    chosen = dice.sample(header, 6 * many)
    for frame in read_records(path):
        payload = frame.offset + FRAME_SIZE
        trailer = frame.end - TRAILER_SIZE
        boundaries = (frame.offset, payload, trailer, frame.end)
        for start, end in itertools.pairwise(boundaries):
            part = bits[start * 8 : end * 8]
            chosen += dice.sample(part, many)
    return chosen


@pytest.mark.requirement("P52", "promise 3")
def test_a_sample_of_all_bits_is_noticed_and_corrected(store, sweep):
    assert len(files_of(store)) == 7
    assert flip(store, partial(sampled, many=sweep.count(2, 1))) > sweep.count(260, 130)


PARTS = 40
"""Every bit takes minutes, which several processes can share."""


@pytest.mark.sweep(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_bit_is_noticed_and_corrected(store, part):
    """In a store with the short threads; the test above has them all."""
    bits = {store / file: bits_of(store / file)[part::PARTS] for file in files_of(store)}
    assert flip(store, bits.get, others=[ODD, "released"]) == sum(map(len, bits.values())) > 40_000 // PARTS


# The flag SCATTERED


def flags_of(root, thread="t"):
    return [
        (frame.type, bool(frame.flags & SCATTERED))
        for frame in read_records(locate_log(root, thread))
        if frame.type != META
    ]


CONFIG = RunnableConfig("t")
OLD = CONFIG.with_check_point_id(made(0).id)
NEW = CONFIG.with_check_point_id(made(1).id)
LATE = {
    "writes to an older one": lambda saver: saver.put_writes(OLD, {"k": 1}),
    "a tag of an older one": lambda saver: saver.add_tags(OLD, "tag"),
    "a tag taken off an older one": lambda saver: saver.remove_tags(OLD, "tag"),
    "replacing an older one": lambda saver: saver.put(OLD, made(0, text="instead")),
    "replacing the last one": lambda saver: saver.put(NEW, made(1, text="instead")),
}
NEAR = {
    "writes to the last one": lambda saver: saver.put_writes(NEW, {"k": 1}),
    "writes to the latest": lambda saver: saver.put_writes(CONFIG, {"k": 1}),
    "a tag of the last one": lambda saver: saver.add_tags(CONFIG, "tag"),
    "another checkpoint": lambda saver: saver.put(CONFIG, made(2)),
}


@pytest.mark.parametrize("fresh", [False, True], ids=["one saver", "fresh savers"])
@pytest.mark.parametrize("name", [*LATE, *NEAR])
def test_scattered_is_set_from_the_first_record_on_that_is_about_an_older_checkpoint(tmp_path, name, fresh):
    saver = open_saver(tmp_path)
    steps = [
        lambda saver: saver.put(CONFIG, made(0)),
        lambda saver: saver.put(CONFIG, made(1)),
        lambda saver: saver.put_writes(CONFIG, {"near": 1}),
        {**LATE, **NEAR}[name],
        lambda saver: saver.put(CONFIG, made(8)),
        lambda saver: saver.add_tags(CONFIG, "near"),
    ]
    for step in steps:
        step(saver)
        if fresh:
            saver.close()
            saver = open_saver(tmp_path)
    saver.close()
    assert [is_set for _, is_set in flags_of(tmp_path)] == [False] * 3 + [name in LATE] * 3
