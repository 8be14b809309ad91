"""Past states, one by one and by `replay`: the same in any order, and decoded only as far as they changed."""

import itertools
import random
import uuid
from itertools import pairwise

import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointerError, CheckpointNotFoundError
from graphkit.saver_kit import REMOVED, SET
from savers import Compression, FileSystemSaver
from savers._log import history, log_bytes
from savers._log.stored_checkpoint import Index
from tests.support.logs import flip, keep_no_records, locate_log
from tests.support.threads import TYPES, everything, exact

THREAD = RunnableConfig("t")
OPTIONS = {
    "plain": {},
    "sealed": {"cipher": {"k": b"k" * 32}},
    "compressed": {"compression": Compression(threshold=64)},
    "uncompressed": {"compression": None},
}


def open_saver(path, **options):
    return FileSystemSaver(path, fsync="never", types=TYPES, **options)


def name(checkpoint_id):
    return THREAD.replace(checkpoint_id=checkpoint_id)


def fill(saver, randomness, count, state, ids):
    """Put checkpoints whose values grow, shrink, slide, are replaced, go away and come back."""
    for _ in range(count):
        state = dict(state)
        length = randomness.randrange(200)
        entry = randomness.randbytes(length).hex()
        log = [*state.get("log", ()), entry]
        window = [*state.get("window", ()), randomness.random()]
        state["log"] = log
        state["window"] = window[-20:]
        if randomness.random() < 0.1:
            kept = randomness.randrange(len(log) + 1)
            state["log"] = log[:kept]
        if randomness.random() < 0.1:
            state["text"] = "t" * randomness.randrange(3000)
        if randomness.random() < 0.05:
            state.pop("window")
        if randomness.random() < 0.05:
            state["large"] = randomness.randbytes(60_000).hex() * 2
        new = Checkpoint(node_id="n", next_node_id="m", state=state)
        target = THREAD
        if ids and randomness.random() < 0.1:
            place = randomness.randrange(len(ids))
            target = name(ids.pop(place))
        saver.put(target, new)
        ids.append(new.id)
    return state


def put(saver, state):
    saver.put(THREAD, Checkpoint(node_id="a", next_node_id="b", state=state))


@pytest.fixture
def plain(monkeypatch):
    """A function that reads a state with a saver that keeps nothing."""

    def read(saver, checkpoint_id):
        with monkeypatch.context() as patch:
            keep_no_records(patch)
            return saver.get(name(checkpoint_id)).state

    return read


def assert_replay_is_list(saver, config=THREAD):
    listed = [exact(checkpoint) for checkpoint in reversed(saver.list(config))]
    replayed = [*saver.replay(config)]
    assert [exact(checkpoint) for checkpoint in replayed] == listed
    for before, one in pairwise(replayed):
        assert one.changes.base is before.state
        assert apply(before.state, one) == one.state
    return replayed


def apply(before, one):
    """The state that the changes lead to."""
    state = dict(before)
    for key, op in one.changes.ops.items():
        if op == REMOVED:
            del state[key]
        elif op == SET:
            state[key] = one.state[key]
        else:
            state[key] = [*before[key][:op], *one.state[key][op:]]
            assert len(before[key]) == op
    return state


@pytest.mark.sweep(1, of="seed", in_turn=True)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_in_any_order_and_while_the_log_grows(seed, options, tmp_path, plain):
    dice = random.Random(seed)
    ids = []
    writer = open_saver(tmp_path, **options)
    reader = open_saver(tmp_path, **options)
    state = fill(writer, dice, 120, {}, ids)
    for arrange in (reversed, list, lambda ids: dice.sample(ids, len(ids))):
        some = [*arrange(ids)][:30]
        for checkpoint_id in some:
            at = name(checkpoint_id)
            expected = plain(open_saver(tmp_path, **options), checkpoint_id)
            read = reader.get(at)
            assert read.state == expected
            found = writer.get(at).state
            assert list(found.items()) == list(expected.items())
        state = fill(writer, dice, 10, state, ids)
    assert_replay_is_list(reader)


def test_the_states_of_a_listing_share_the_items_of_a_growing_list(tmp_path):
    saver = open_saver(tmp_path)
    for number in range(1, 41):
        put(saver, {"items": [{"id": n, "text": "x" * 50} for n in range(number)], "number": number})
    listed = open_saver(tmp_path).list(THREAD)
    newest = listed[0].state["items"]
    for number, checkpoint in enumerate(listed[:30]):
        items = checkpoint.state["items"]
        assert items == newest[: 40 - number]
        assert items[3] is newest[3]
        assert items.kind == newest.kind


def test_a_list_that_grows_is_decoded_once(tmp_path):
    saver = open_saver(tmp_path)
    for n in range(200):
        put(saver, {"log": [f"message {i} " * 20 for i in range(n)], "n": n})
    replayed = assert_replay_is_list(saver)
    assert [checkpoint.changes.ops["log"] for checkpoint in replayed[1:]] == [*range(199)]
    assert replayed[5].state["log"][0] is replayed[-1].state["log"][0]


def test_versions(tmp_path):
    saver = everything(open_saver(tmp_path))
    saver.release(THREAD)
    put(saver, {"n": 1})
    for namespace in ("", "sub"):
        config = RunnableConfig("t", checkpoint_ns=namespace)
        released = saver.tag(config, 1).checkpoints
        replayed = [*saver.replay(config, version=1)]
        assert [*map(exact, replayed[::-1])] == [*map(exact, released)]
    with pytest.raises(CheckpointNotFoundError, match="version 2"):
        list(saver.replay(THREAD, version=2))


# A checkpoint is found by its id without an index, whatever the order of the ids, and damage never changes which one


def put_number(saver, number, checkpoint_id=None, target=THREAD, **state):
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
            ids.append(put_number(saver, number, made, text=text))
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
    ids = [put_number(saver, number, text="t" * number) for number in range(120)]
    reader = FileSystemSaver(tmp_path)
    found = [read_number(reader, checkpoint_id) for checkpoint_id in ids]
    assert found == list(range(120))
    assert scans == []


def test_the_newest_of_two_with_one_id_is_found_and_none_that_was_replaced(tmp_path):
    twice, wanted, other = (str(uuid.UUID(int=number << 64, version=4)) for number in (1, 2, 3))
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        put_number(saver, 0, twice)
        put_number(saver, 1, wanted)
        for number in range(2, 40):
            put_number(saver, number, twice if number == 20 else None)
    found = {one: read_number(FileSystemSaver(tmp_path), one) for one in (twice, wanted)}
    assert found == {twice: 20, wanted: 1}
    put_number(FileSystemSaver(tmp_path, fsync="never"), 50, other, name(wanted))
    assert FileSystemSaver(tmp_path).get(name(wanted)) is None
    assert read_number(FileSystemSaver(tmp_path), other) == 50


def test_damage_never_changes_what_is_found(tmp_path, sweep):
    saver = FileSystemSaver(tmp_path, fsync="never")
    text = []
    ids = []
    for number in range(60):
        text.append(f"{number:050}")
        ids.append(put_number(saver, number, text=list(text)))
        saver.put_writes(name(ids[-1]), {"w": number})
    path = locate_log(tmp_path)
    good = path.read_bytes()
    refused = 0
    offsets = sweep.some(range(64, len(good)), 200)
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
        put_number(saver, number, checkpoint_id)
    scans.clear()
    reader = FileSystemSaver(tmp_path)
    some = name(ids[57])
    writes = reader.get_writes(some)
    assert writes == {"before its predecessor": 56, "own": 57}
    assert scans == []


# Early writes at the end of the log, found as the past state before them is read


EARLY_ID = "01a20482-9c2f-7cff-8d43-936a1ab1d30f"


@pytest.mark.parametrize("rewrites", [False, True], ids=["put", "written again"])
def test_a_past_state_hides_no_early_writes(tmp_path, rewrites):
    with open_saver(tmp_path) as saver:
        ids = [put_number(saver, number, large="x" * (20_000 if number % 10 == 0 else 3)) for number in range(30)]
        saver.put_writes(name(EARLY_ID), {"early": 1}, early=True)
    reader = open_saver(tmp_path)
    assert read_number(reader, ids[7]) == 7
    if rewrites:
        reader.put_writes(name(EARLY_ID), {"early": 2, "later": 2}, early=True)
    put_number(reader, 30, EARLY_ID)
    for saver in (reader, open_saver(tmp_path)):
        assert saver.get_writes(name(EARLY_ID)) == ({"early": 2, "later": 2} if rewrites else {"early": 1})
        assert [saver.get(name(each)).state["n"] for each in (ids[7], ids[-1], EARLY_ID)] == [7, 29, 30]
