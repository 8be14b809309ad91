"""Damage, and what verify and repair make of it."""

import dataclasses
import itertools
import logging
import random
import struct
import tracemalloc
from zlib import crc32

import pytest

from graphkit import CheckpointCorruptionError, CheckpointFormatError
from savers import Compression
from tests.support.checkpoints import list_ids, list_numbers, make_checkpoint
from tests.support.contents import expect_alike
from tests.support.disks import CountingIO
from tests.support.logs import (
    CHECKPOINT,
    RELEASE,
    RELEASE_PAYLOAD,
    SYNC,
    append_record,
    flip_in_file,
    locate_log,
    locate_thread,
    pack_next,
    read_records,
    replace_bytes,
    with_format,
)


def put_steps(opener, config, count, **state):
    """Put checkpoints, and close the saver; return the path of the log."""
    with opener() as saver:
        for n in range(count):
            saver.put(config, make_checkpoint(n, **state))
    return locate_log(saver.base_directory, config.thread)


@pytest.fixture(params=[None, 50], ids=["plain", "compressed"])
def damaged(request, opener, config):
    """A small thread of every kind of record, and the tools to damage it."""
    compression = request.param and Compression(threshold=request.param)
    return Damaged(opener, config, compression)


class Damaged:
    def __init__(self, opener, config, compression=None):
        self.opener = opener
        self.config = config
        saver = opener(compression=compression)
        self.states = {}
        items = []
        for n in range(4):
            items = [*items, f"x{n}" * n]
            checkpoint = make_checkpoint(n, items=items, text=f"lorem {n // 2} " * 8)
            saver.put(config, checkpoint)
            self.states[checkpoint.id] = checkpoint.state
            if n == 1:
                saver.put_writes(config, {"k": "v"})
                saver.add_tags(config, "good")
        saver.put(config.replace(thread_id="other"), make_checkpoint(0))
        saver.close()
        self.path = locate_log(saver.base_directory)
        self.whole = self.path.read_bytes()
        self.frames = read_records(self.path)
        self.order = list(self.states)

    def write(self, data):
        for file in self.path.parent.glob("*.bin"):
            file.unlink()
        self.path.write_bytes(data)

    def read(self, saver):
        """The ids of the history, oldest first; every state is what was stored under that id."""
        history = list(reversed(saver.list(self.config)))
        for checkpoint in history:
            assert checkpoint.state == self.states[checkpoint.id]
        rest = iter(self.order)
        assert all(checkpoint.id in rest for checkpoint in history), "in the order of writing"
        return [checkpoint.id for checkpoint in history]

    def repaired(self):
        """Repair; what is left can be read, by an old saver as by a new one, and a second run changes nothing.

        A dry run says before, and without a change, what the repair does.
        """
        saver = self.opener()
        before = self.files()
        plan = saver.repair("t", dry_run=True)
        assert self.files() == before
        report = saver.repair("t")
        assert plan == dataclasses.replace(report, dry_run=True)
        again = saver.repair("t")
        assert not again.changed
        assert not again.files
        assert saver.verify().ok
        kept = self.read(saver)
        saver.put(self.config, make_checkpoint(9))
        fresh = self.opener()
        assert fresh.get(self.config).state["n"] == 9
        assert len(fresh.list(self.config)) == len(kept) + 1
        saver.close()
        fresh.close()
        return report, kept

    def files(self):
        return {path: path.read_bytes() for path in self.path.parent.iterdir() if path.name != "run.lock"}

    def aside(self):
        return b"".join(file.read_bytes() for file in sorted(self.path.parent.glob("*.bin")))


@pytest.mark.requirement("promise 2", "L8", "P53")
def test_cut_at_every_offset_all_complete_checkpoints_are_kept_and_the_rest_is_set_aside(damaged, sweep, caplog):
    """Readers see what is complete, and change nothing. The next writer sets the rest aside, or a repair."""
    caplog.set_level(logging.WARNING, "graphkit")
    boundaries = {frame.end for frame in damaged.frames}
    offsets = range(len(damaged.whole))
    cuts = boundaries.intersection(offsets)
    cuts.update(sweep.some(offsets, 50))
    for number, cut in enumerate(sorted(cuts)):
        damaged.write(damaged.whole[:cut])
        # A log cut exactly between two records is a shorter log; nothing in it can tell.
        is_torn = cut not in boundaries
        complete_ends = [end for end in boundaries if end <= cut]
        whole_records = max(complete_ends, default=0)
        with damaged.opener() as saver:
            complete = expect_beginning(saver, damaged, cut, is_torn=is_torn)
            if number % 2:
                _, kept = damaged.repaired()
                assert kept == complete, cut
            else:
                caplog.clear()
                saver.put(damaged.config, make_checkpoint(9))
                _, *before = list_ids(damaged.opener(), damaged.config)
                assert before[::-1] == complete
                is_set_aside = is_torn and whole_records > 0
                assert ("set aside" in caplog.text) is is_set_aside
            if whole_records or number % 2:
                assert damaged.aside() == damaged.whole[whole_records:cut], cut


def expect_beginning(saver, damaged, cut, *, is_torn):
    """Check that readers see the checkpoints that a cut has left whole, and change nothing; return their ids."""
    report = saver.verify("t")
    assert report.ok is not is_torn, cut
    if cut:
        assert [file.state for file in report.problems] == ["torn"] * is_torn
    count = sum(frame.type == CHECKPOINT and frame.end <= cut for frame in damaged.frames)
    complete = damaged.order[:count]
    assert damaged.read(saver) == complete == expect_alike(saver, damaged.config)[::-1], cut
    assert damaged.path.read_bytes() == damaged.whole[:cut], "readers never repair"
    return complete


@pytest.mark.requirement("H53")
@pytest.mark.parametrize("put_first", [False, True], ids=["read", "write"])
def test_bytes_of_many_kinds_of_damage_are_never_read_as_data(damaged, put_first, sweep):
    """Checksums, not signatures: chance is noticed, a forger is not (docs/operations.md)."""
    log = (damaged.whole, damaged.frames)
    cases = [*with_more_behind(*log), *with_damaged_records(*log), *with_wrong_lengths(*log)]
    for number, bad in enumerate(cases):
        damaged.write(bad)
        saver = damaged.opener()
        assert not saver.verify("t").ok, number
        try:
            if put_first:
                checkpoint = make_checkpoint(9)
                damaged.states[checkpoint.id] = checkpoint.state
                damaged.order.append(checkpoint.id)
                saver.put(damaged.config, checkpoint)
            found = damaged.read(saver)
        except (CheckpointCorruptionError, CheckpointFormatError):
            pass
        else:
            # What is read without an error has lost at most a last record that could be one that was never finished.
            assert found[:3] == damaged.order[:3], number
            if put_first:
                assert list(damaged.path.parent.glob("torn-*")), number
        saver.close()
        damaged.order = damaged.order[:4]
    for number, bad in sweep.some(enumerate(cases), 30):
        damaged.write(bad)
        damaged.repaired()
        aside = damaged.aside()
        last = damaged.frames[-1].offset
        assert bad in aside or bad.startswith(damaged.whole) or aside == bad[last:], number


def bytes_of(whole, record):
    return whole[record.offset : record.end]


def with_more_behind(whole, frames):
    """Yield the bytes of a log with garbage, or a copy of a record, behind it."""
    dice = random.Random(2)
    for garbage in (b"x", b"\xff" * 40, SYNC, SYNC * 30, dice.randbytes(3000)):
        yield whole + garbage
    for frame in frames:
        yield whole + bytes_of(whole, frame)


def with_damaged_records(whole, frames):
    """Yield the bytes of a log in which a record is exchanged with the next one, lost, repeated or zeroed."""
    for first, second in itertools.pairwise(frames[1:]):
        before = whole[: first.offset]
        span = bytes_of(whole, first)
        following = bytes_of(whole, second)
        rest = whole[second.end :]
        exchanged = following + span
        repeated = span + span + following
        zeros = bytes(first.size)
        zeroed = zeros + following
        for middle in (exchanged, following, repeated, zeroed):
            yield before + middle + rest


def with_wrong_lengths(whole, frames):
    """Yield the bytes of a log in which one record has another length."""
    for length in (0, 1, 2**30, 2**30 + 1, 2**32 - 1):
        for frame in frames:
            start = frame.offset
            bad = bytearray(whole)
            struct.pack_into("<I", bad, start + 4, length)
            yield bytes(bad)
            # The same with a header that vouches for it.
            place = struct.pack("<BQ", frame.type, start)
            check = crc32(place, crc32(bad[start : start + 35]))
            struct.pack_into("<I", bad, start + 35, check)
            yield bytes(bad)


def test_the_log_of_another_thread_is_refused_and_left_alone(damaged):
    saver = damaged.opener()
    foreign = locate_log(saver.base_directory, "other").read_bytes()
    damaged.write(foreign)
    saver = damaged.opener()
    assert [problem.state for problem in saver.verify("t").problems] == ["foreign"]
    report = saver.repair("t")
    assert not report.ok
    assert not report.changed
    (file,) = report.files
    assert "another thread" in file.refused
    with pytest.raises(CheckpointFormatError, match="another thread"):
        saver.get(damaged.config)
    assert damaged.path.read_bytes() == foreign


@pytest.mark.requirement("H45", "promise 3")
def test_after_damage_at_the_end_repair_lands_on_the_last_good_one_and_reports_it(damaged):
    """Nothing falls back by itself: a run that went on from an older state unasked would do work twice."""
    bad = bytearray(damaged.whole)
    for frame in damaged.frames[-2:]:
        bad[frame.offset + 40] ^= 3  # two bits: one alone is corrected
    damaged.write(bad)
    begin = damaged.frames[-2].offset
    saver = damaged.opener()
    with pytest.raises(CheckpointCorruptionError, match="checksum") as caught:
        saver.get(damaged.config)
    assert (caught.value.path, caught.value.offset) == (str(damaged.path), begin)
    assert damaged.path.read_bytes() == bad, "nothing is repaired by reading"

    report = saver.repair("t")
    assert saver.get(damaged.config).id == damaged.order[1]
    assert [loss.offset for loss in report.lost] == [begin]
    (file,) = report.files
    assert file.kept == 2
    assert file.before.offset <= begin
    root = damaged.path.parent.parent
    assert (root / file.set_aside).read_bytes() == bad


def test_repair_keeps_a_checkpoint_whose_replaced_one_is_lost(opener, config):
    path = put_steps(opener, config, 40)
    with opener() as saver:
        replaced = list_ids(saver, config)[-2]
        saver.put(config.with_check_point_id(replaced), make_checkpoint(77))
    record = [record for record in read_records(path) if record.type == CHECKPOINT][1]
    path.write_bytes(replace_bytes(path.read_bytes(), record.offset + 45, b"damaged"))
    with opener() as saver:
        assert saver.repair().ok
        assert list_numbers(saver, config)[:2] == [77, 39]
        assert saver.verify().ok


def test_repair_keeps_checkpoints_behind_a_keyframe_that_names_lost_bytes(opener, config):
    """Their states have another value in the place of the lost one, or none."""
    put_steps(opener, config, 20, text=random.Random(2).randbytes(9000).hex())
    path = put_steps(opener, config, 5)
    path.write_bytes(replace_bytes(path.read_bytes(), 600, b"damaged"))
    with opener() as saver:
        assert saver.repair().ok
        assert list_numbers(saver, config) == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("thread", ["t", "Not Plain! " * 8])
def test_a_log_without_header_and_description_is_repaired_when_its_thread_is_named(opener, config, thread):
    config = config.replace(thread_id=thread)
    path = put_steps(opener, config, 3)
    whole = path.read_bytes()
    beginning = read_records(path)[1].end
    path.write_bytes(b"?" * beginning + whole[beginning:])
    saver = opener()
    report = saver.repair()
    if thread == "t":
        assert report.ok
    else:
        assert not report.ok
        assert "name the thread" in report.files[0].refused
        assert saver.verify().threads[0].thread_id is None
        report = saver.repair(thread)
    assert report.files[0].kept == 3
    assert list_numbers(saver, config) == [2, 1, 0]
    assert saver.verify().ok


def test_a_released_history_is_never_shorter_in_silence(opener, config):
    path = put_steps(opener, config, 3).with_name("v000001.log")
    opener().release(config)
    whole = path.read_bytes()
    frames = read_records(path)
    boundaries = [frames[n].offset for n in (1, 2, -1)]
    for cut in (0, 10, 64, *boundaries, len(whole) - 1):
        for file in path.parent.glob("*.bin"):
            file.unlink()
        path.write_bytes(whole[:cut])
        saver = opener()
        with pytest.raises(CheckpointCorruptionError):
            saver.tag(config)
        (problem,) = saver.verify().problems
        assert problem.state == "damaged"
        (file,) = saver.repair().files
        complete = [frame for frame in frames if frame.end <= cut]
        count = sum(frame.type == CHECKPOINT for frame in complete)
        assert file.kept == count
        released = saver.tag(config)
        numbers = [checkpoint.state["n"] for checkpoint in released.checkpoints]
        assert numbers[::-1] == [*range(file.kept)]
        assert saver.verify().ok
        assert not saver.repair().changed
        saver.close()


@pytest.mark.parametrize("newer", ["format 1", "format 3", "type", "flag"])
def test_a_log_of_another_format_is_reported_and_left_alone(damaged, newer):
    if newer.startswith("format"):
        data = with_format(damaged.whole, int(newer[-1]))
    elif newer == "type":
        data = damaged.whole + pack_next(damaged.path, 9, b"\xc0")
    else:
        data = damaged.whole + pack_next(damaged.path, CHECKPOINT, b"\x90", flags=0x40)
    damaged.write(data)
    saver = damaged.opener()
    (file,) = saver.verify().problems

    assert (file.state == "newer") is (newer != "format 1")
    assert not saver.repair().changed
    for use, *arguments in ((saver.get,), (saver.list,), (saver.put, make_checkpoint(9))):
        with pytest.raises(CheckpointFormatError, match=r"format 1, by a development version|format 3|newer"):
            use(damaged.config, *arguments)

    assert damaged.path.read_bytes() == data


def test_memory_stays_bounded_however_much_is_damaged(opener, config):
    path = put_steps(opener, config, 1)
    small = 48 << 20
    with path.open("ab") as file:
        # The first sector of the last write never reached the disk, and most of the others did not either.
        file.write(bytes(-path.stat().st_size % 512) + b"?" * 512)
        file.truncate(small)
    io = CountingIO()
    saver = opener(io=io)
    tracemalloc.start()
    try:
        assert not saver.verify().ok
        list(saver.list(config))
        report = saver.repair()
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert report.files[0].kept == 1
    assert io.largest_read <= 4 << 20


def test_leftovers_and_unfinished_work_are_reported_and_repaired(opener, config):
    path = put_steps(opener, config, 1)
    saver = opener()
    root = path.parent.parent
    dead = root / f"tmp-{locate_thread('dead').name}"
    dead.mkdir()
    (dead / "log").write_text("private")
    (path.parent / "tmp-00000001").write_text("half")
    append_record(path, RELEASE, RELEASE_PAYLOAD)
    report = saver.verify()
    assert report.leftovers == (dead.name,)
    assert report.threads[0].leftovers == (f"{path.parent.name}/tmp-00000001",)
    assert report.threads[0].unfinished == "release"
    assert not report.ok
    plan = saver.repair(dry_run=True)
    assert dead.exists()
    assert saver.verify() == report

    foreign = path.parent / "tmp-0badcafe"
    foreign.mkdir()
    done = saver.repair()
    assert plan == dataclasses.replace(done, dry_run=True)
    assert done.finished == ("t",)
    assert set(done.removed) == {dead.name, f"{path.parent.name}/tmp-00000001"}
    assert saver.verify().ok
    assert not dead.exists()
    assert foreign.exists()
    assert saver.versions_by_thread_id(config) == [1]
    assert not saver.repair().changed


@pytest.mark.parametrize(("damage", "unfinished"), [("flipped", "release"), ("torn", "")])
def test_a_damaged_log_that_was_to_be_released_is_released_after_its_repair(opener, config, damage, unfinished):
    path = put_steps(opener, config, 3, text="x" * 500)
    append_record(path, RELEASE, RELEASE_PAYLOAD)
    if damage == "flipped":
        flip_in_file(path, read_records(path)[2].offset + 40)
    else:
        path.write_bytes(path.read_bytes() + b"torn")
    data = path.read_bytes()
    saver = opener()
    plan = saver.repair(dry_run=True)
    assert path.read_bytes() == data

    report = saver.repair()
    assert plan == dataclasses.replace(report, dry_run=True)
    assert (report.finished, report.files[0].unfinished) == (("t",), unfinished)
    assert data.endswith((path.parent.parent / report.files[0].set_aside).read_bytes())
    assert saver.versions_by_thread_id(config) == [1]
    assert not saver.repair().changed


def test_a_log_of_which_nothing_can_be_kept_is_a_total_loss(damaged):
    start = damaged.frames[0].end
    bad = damaged.whole[:start] + b"?" * (len(damaged.whole) - start)
    damaged.write(bad)
    report, kept = damaged.repaired()
    assert kept == []
    assert report.ok is True
    assert report.total_losses == report.files
    assert damaged.aside() == bad
    # A last write that never finished was not acknowledged: nothing is lost with it.
    damaged.write(damaged.whole[:10])
    report, kept = damaged.repaired()
    assert kept == []
    assert report.total_losses == ()


def test_a_dry_run_waits_for_no_run_and_takes_no_run_lock(damaged):
    damaged.write(damaged.whole[:-1] + b"?")
    saver = damaged.opener()
    lock = damaged.path.with_name("run.lock")
    lock.unlink(missing_ok=True)
    plan = saver.repair("t", dry_run=True)
    (file,) = plan.files
    assert file.thread_id == "t"
    assert not lock.exists()
    with saver.run_lock(damaged.config):
        assert damaged.opener().repair("t", dry_run=True) == plan


def test_a_log_within_a_message_is_not_mistaken_for_records(opener, config):
    saver = opener()
    saver.put(config, make_checkpoint(0))
    inner = locate_log(saver.base_directory).read_bytes()
    saver.put(config, make_checkpoint(1, attachment=inner * 3))
    path = locate_log(saver.base_directory)
    path.write_bytes(path.read_bytes()[:-7])
    assert list_numbers(opener(), config) == [0]
