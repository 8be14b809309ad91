"""States longer than a record: values go to DATA records, and nothing that no reader accepts is written (finding A2).

The real limit is 1 GiB; here it is 64 KiB.
"""

import errno
import itertools
import os
import random
import shutil

import pytest

from graphkit import Checkpoint, CheckpointSerializationError, RunnableConfig
from savers import Compression, FileSystemSaver
from tests.support.checkpoints import list_ids
from tests.support.disks import HookedIO, failing
from tests.support.logs import CHECKPOINT, DATA, MAX_PAYLOAD as LIMIT, flip, locate_log, read_records, replace_bytes

CONFIG = RunnableConfig("t")
pytestmark = pytest.mark.usefixtures("short_records")


def noise(seed, length):
    return random.Random(seed).randbytes(length)


def made(number, state, **fields):
    fields = {"id": f"c{number}", "metadata": {"step": number}, **fields}
    return Checkpoint(node_id="a", next_node_id="b", state=state, **fields)


def open_saver(root, **options):
    return FileSystemSaver(root, **{"fsync": "never", "compression": None, **options})


def grown(count):
    """States that outgrow a record: by a value that is longer, by many, by a list, by a change in the middle."""
    items = []
    text = noise("text", 90_000).hex()
    for number in range(count):
        items = [*items, noise(number, 9000)]
        text = text[: number * 7000] + f"<{number}>" + text[number * 7000 :]
        blob = {f"blob{n}": noise(n, 40_000) for n in range(number % 4)}
        yield {"items": items, "text": text, "long": noise(f"long {number // 3}", 150_000), "n": number, **blob}


def written(root, **options):
    states = list(grown(8))
    with open_saver(root, **options) as saver:
        for number, state in enumerate(states):
            saver.put(CONFIG, made(number, state))
        saver.put_writes(CONFIG, {"branch": noise("write", 30_000)})
        saver.add_tags(CONFIG, "good")
    return states


def expect(root, states, config=CONFIG, **options):
    """A fresh saver reads these states, by id and as a list, and verify is content."""
    with open_saver(root, **options) as saver:
        report = saver.verify()
        assert report.ok, report.problems
        listed = saver.list(config)[::-1]
        assert [checkpoint.id for checkpoint in listed] == list(states)
        assert states_of(listed) == list(states.values())
        for name, state in states.items():
            at = config.with_check_point_id(name)
            found = saver.get(at)
            assert dict(found.state) == state
        latest = saver.get(config)
        assert latest.id == listed[-1].id
    path = locate_log(root, config.thread)
    records = read_records(path)
    for record in records:
        assert len(record.payload) <= LIMIT


def states_of(checkpoints):
    return [dict(checkpoint.state) for checkpoint in checkpoints]


def by_id(states):
    return {f"c{number}": state for number, state in enumerate(states)}


def counted(root, type=DATA):
    return sum(record.type == type for record in read_records(locate_log(root)))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_state_longer_than_a_record_may_bring_a_new_compressed_value(tmp_path, is_first):
    states = {} if is_first else {"c0": {"a": 1}}
    states["c1"] = {"zeros": bytes(2000), "long": noise(1, 150_000)}
    compression = Compression(threshold=1000)
    with open_saver(tmp_path, compression=compression) as saver:
        for number, (name, state) in enumerate(states.items()):
            saver.put(CONFIG, made(number, state, id=name))
    expect(tmp_path, states, compression=compression)


@pytest.mark.parametrize("compression", [None, Compression(threshold=1000)], ids=["plain", "compressed"])
def test_states_longer_than_a_record_are_read_back(tmp_path, compression):
    states = written(tmp_path, compression=compression)
    assert counted(tmp_path) > 10
    expect(tmp_path, by_id(states), compression=compression)


LENGTHS = (LIMIT - 200, LIMIT - LIMIT // 16, LIMIT - 10, LIMIT, LIMIT + 1, 3 * LIMIT)
FIRST_STATES = {f"of {length}": {"blob": noise(length, length)} for length in LENGTHS}
FIRST_STATES["of many values that are short each"] = {f"key{n}": noise(n, 300) for n in range(700)}


@pytest.mark.parametrize("first", FIRST_STATES.values(), ids=FIRST_STATES)
def test_a_state_about_as_long_as_a_record_is_stored(tmp_path, first):
    states = [first, {**first, "blob": noise(0, len(first.get("blob", b"other"))), "n": 1}]
    with open_saver(tmp_path) as saver:
        for number, state in enumerate(states):
            saver.put(CONFIG, made(number, state))
    expect(tmp_path, by_id(states))


def test_a_state_that_outgrew_a_record_goes_on_at_the_cost_of_what_is_new(tmp_path):
    states = written(tmp_path)
    path = locate_log(tmp_path)
    size = path.stat().st_size
    with open_saver(tmp_path) as saver:
        for number in range(8, 12):
            state = {**states[-1], "n": number}
            states.append(state)
            saver.put(CONFIG, made(number, state))
    assert path.stat().st_size - size < 2000
    expect(tmp_path, by_id(states))


@pytest.mark.parametrize("compression", [None, Compression(threshold=1000)], ids=["plain", "compressed"])
@pytest.mark.parametrize("kept", [["c7"], ["c0", "c7"], ["c1", "c2", "c5"]], ids=",".join)
def test_removing_keeps_the_others_whole(tmp_path, kept, compression):
    states = by_id(written(tmp_path, compression=compression))
    with open_saver(tmp_path, compression=compression) as saver:
        saver.remove(CONFIG, set(states) - set(kept))
    expect(tmp_path, {name: states[name] for name in kept}, compression=compression)


def test_copy_and_release_keep_all(tmp_path):
    states = written(tmp_path)
    with open_saver(tmp_path) as saver:
        saver.copy("t", "u")
        released = saver.release(CONFIG)
        assert states_of(released.checkpoints) == states[::-1]
    expect(tmp_path, by_id(states), RunnableConfig("u"))
    with open_saver(tmp_path) as saver:
        released = saver.tag(CONFIG, 1)
        assert states_of(released.checkpoints) == states[::-1]


def test_repair_corrects_a_flipped_bit_in_each_record(tmp_path):
    template = tmp_path / "whole"
    states = by_id(written(template))
    dice = random.Random(1)
    path = locate_log(template)
    whole = path.read_bytes()
    flipped = 0
    for number, record in enumerate(read_records(path)):
        root = tmp_path / str(number)
        shutil.copytree(template, root)
        offset = dice.randrange(record.offset, record.end)
        mask = 1 << dice.randrange(8)
        locate_log(root).write_bytes(flip(whole, offset, mask))
        with open_saver(root) as saver:
            assert not saver.verify().ok
            report = saver.repair("t")
            assert report.files[0].kept == 8
            assert report.lost == ()
        expect(root, states)
        flipped += record.type == DATA
        shutil.rmtree(root)
    assert flipped > 10


def test_repair_without_a_record_of_data_loses_only_what_needs_it(tmp_path):
    states = by_id(written(tmp_path))
    path = locate_log(tmp_path)
    data = next(record for record in read_records(path) if record.type == DATA)
    noise = os.urandom(200)
    garbled = replace_bytes(path.read_bytes(), data.offset + 1000, noise)
    path.write_bytes(garbled)
    with open_saver(tmp_path) as saver:
        assert not saver.verify().ok
        (file,) = saver.repair("t").files
        left = saver.list(CONFIG)
        assert left
        assert file.kept == len(left)
        for checkpoint in left:
            assert dict(checkpoint.state) == states[checkpoint.id]
        assert saver.verify().ok


def cuts(path):
    """Where a death or a power loss may end the log: between DATA records, and in the middle of one."""
    frames = read_records(path)
    for before, one in itertools.pairwise(frames):
        if DATA in {before.type, one.type}:
            yield one.offset
            yield (one.offset + one.end) // 2


def test_a_crash_between_data_and_its_keyframe_leaves_a_history_that_goes_on(tmp_path):
    template = tmp_path / "whole"
    states = by_id(written(template))
    path = locate_log(template)
    whole = path.read_bytes()
    frames = read_records(path)
    ends = {frame.end for frame in frames}
    orphaned = 0
    for cut in cuts(path):
        root = tmp_path / str(cut)
        shutil.copytree(template, root)
        locate_log(root).write_bytes(whole[:cut])
        there = [frame for frame in frames if frame.end <= cut]
        count = sum(frame.type == CHECKPOINT for frame in there)
        kept = dict(itertools.islice(states.items(), count))
        with open_saver(root) as saver:
            assert list_ids(saver, CONFIG)[::-1] == list(kept)
            assert (saver.get(CONFIG) is None) is not kept
            assert saver.verify().ok is (cut in ends)
            state = {"after": noise("after", 100_000)}
            saver.put(CONFIG, made(99, state))
        expected = {**kept, "c99": state}
        expect(root, expected)
        orphans = counted(root)
        with open_saver(root) as saver:
            is_orphaned = there[-1].type == DATA
            assert (saver.compact("t") > 0) is is_orphaned, cut
            orphaned += is_orphaned
        assert (counted(root) < orphans) is is_orphaned
        expect(root, expected)
        shutil.rmtree(root)
    assert orphaned > 10


@pytest.mark.parametrize("part", [0.5, None])
@pytest.mark.parametrize("after", range(4))
def test_a_write_that_fails_between_data_and_its_keyframe_is_taken_back(tmp_path, after, part):
    states = by_id(written(tmp_path))
    before = locate_log(tmp_path).read_bytes()
    io = HookedIO()
    with open_saver(tmp_path, io=io) as saver:
        for config in (CONFIG, RunnableConfig("new")):
            full = failing(io, "write_at", errno.ENOSPC, after=after, part=part, where="/log")
            with full, pytest.raises(OSError, match="space"):
                saver.put(config, made(8, {"long": noise("new", 300_000)}))
        assert saver.threads() == ["t"]
    assert locate_log(tmp_path).read_bytes() == before
    assert not locate_log(tmp_path, "new").exists()

    expect(tmp_path, states)


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.put_writes(CONFIG, {"long": bytes(LIMIT)}),
        lambda saver: saver.put_writes(CONFIG, {f"k{n}": noise(n, 1000) for n in range(70)}),
        lambda saver: saver.add_tags(CONFIG, "x" * LIMIT),
        lambda saver: saver.put(CONFIG, made(9, {}, metadata={"long": "x" * LIMIT})),
        lambda saver: saver.put(CONFIG, made(9, {"x": noise(1, 3 * LIMIT)}, metadata={"long": "x" * LIMIT})),
        lambda saver: saver.put(CONFIG, made(9, {}, id="x" * LIMIT)),
        lambda saver: saver.put_writes(CONFIG.with_check_point_id("new"), {"long": bytes(LIMIT)}, early=True),
    ],
    ids=["write", "writes", "tag", "metadata", "metadata of a long state", "id", "write beside a new checkpoint"],
)
def test_what_fits_into_no_record_is_refused_and_changes_nothing(tmp_path, call):
    states = by_id(written(tmp_path))
    before = locate_log(tmp_path).read_bytes()
    with open_saver(tmp_path) as saver:
        with pytest.raises(CheckpointSerializationError, match="at most"):
            call(saver)
        assert locate_log(tmp_path).read_bytes() == before
        expect(tmp_path, states)
        states["c10"] = {"n": 10}
        saver.put(CONFIG, made(10, {"n": 10}))
    expect(tmp_path, states)
