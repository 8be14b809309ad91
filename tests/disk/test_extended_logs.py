"""Logs that their writer extends ahead with zeros: whoever else uses them finds every record, and nothing else."""

import itertools
import random
import shutil

import pytest

from graphkit import Checkpoint, CheckpointCorruptionError, RunnableConfig
from savers import FileSystemSaver
from tests.disk.crashes import WHEN
from tests.support.checkpoints import list_numbers
from tests.support.contents import expect_alike
from tests.support.disks import FileIO
from tests.support.logs import SECTOR, extend_short_logs, flip, locate_log, lose_sectors, read_records

CONFIG = RunnableConfig("t")
BLOCK = 4096


def made(number, **state):
    return Checkpoint(id=f"c{number}", node_id="a", next_node_id="b", state={"n": number, **state}, created_at=WHEN)


def numbers(saver, config=CONFIG):
    return list_numbers(saver, config)[::-1]


def zeros_of(path):
    data = path.read_bytes()
    return len(data) - len(data.rstrip(b"\0"))


def end_of(path):
    """Where the last record of a log ends."""
    return read_records(path)[-1].end


def fill(saver):
    for number in range(3):
        saver.put(CONFIG, made(number, text="x" * number * 400))
    saver.put_writes(CONFIG, {"k": 1})


# When logs are extended, and when they are cut


@pytest.mark.parametrize("fsync", ["always", 3600.0])
def test_a_saver_that_syncs_extends_a_log_to_a_block_and_cuts_it_when_it_is_closed(tmp_path, fsync):
    saver = FileSystemSaver(tmp_path, fsync=fsync)
    saver.put(CONFIG, made(0))
    path = locate_log(tmp_path)
    assert path.stat().st_size == BLOCK, "a small log takes no more blocks than without"
    end = end_of(path)
    for number in range(1, 5):
        saver.put(CONFIG, made(number))
    assert path.stat().st_size == BLOCK, "the size stays while the records fit"
    assert end_of(path) > end
    for number in range(5, 300):
        saver.put(CONFIG, made(number, text="x" * 100))
    end = end_of(path)
    assert end <= path.stat().st_size < end + BLOCK
    saver.close()
    assert path.stat().st_size == end
    assert numbers(saver) == [*range(300)]
    saver.close()


def test_a_saver_that_never_syncs_does_not_extend_but_writes_over_the_zeros_of_others(tmp_path):
    lazy = FileSystemSaver(tmp_path, fsync="never")
    lazy.put(CONFIG, made(0))
    path = locate_log(tmp_path)
    assert zeros_of(path) == 0
    careful = FileSystemSaver(tmp_path)
    careful.put(CONFIG, made(1))
    assert path.stat().st_size == BLOCK
    lazy.put(CONFIG, made(2))
    assert path.stat().st_size == BLOCK
    careful.put(CONFIG, made(3))
    assert numbers(lazy) == numbers(careful) == [0, 1, 2, 3]
    lazy.close()
    assert path.stat().st_size == BLOCK, "what another saver has made stays"
    careful.close()
    assert zeros_of(path) == 0


def test_a_log_that_is_closed_to_make_room_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("savers._log.catalogue._max_open_logs", lambda: 16)
    saver = FileSystemSaver(tmp_path)
    for number in range(40):
        saver.put(RunnableConfig(f"thread-{number}"), made(number))
    extended = [number for number in range(40) if zeros_of(locate_log(tmp_path, f"thread-{number}"))]
    assert extended == [*range(24, 40)]
    saver.close()


def test_closing_does_not_wait_for_the_writer_that_is_at_work(tmp_path):
    first = FileSystemSaver(tmp_path)
    second = FileSystemSaver(tmp_path)
    first.put(CONFIG, made(0))
    with second._store.write_lock(second._store.locate("t")):
        first.close()
    assert locate_log(tmp_path).stat().st_size == BLOCK
    second.put(CONFIG, made(1))
    assert numbers(second) == [0, 1]
    second.close()


# Readers beside the writer


class Racing(FileIO):
    """A read that began before a write ended: of one range the bytes are still zero, the first time."""

    def __init__(self, start, end, times):
        super().__init__()
        self.start = start
        self.end = end
        self.times = times

    def read_at(self, fd, offset, length):
        data = super().read_at(fd, offset, length)
        first = max(self.start, offset)
        last = min(self.end, offset + len(data))
        if self.times and first < last and self._paths[fd].endswith("/log"):
            self.times -= 1
            data = data[: first - offset] + bytes(last - first) + data[last - offset :]
        return data


def ranges_in(frame):
    """Ranges of a record: between the borders of its sectors, its own, and some bytes inside it."""
    first = -(-frame.offset // SECTOR) * SECTOR
    borders = {*range(first, frame.end, SECTOR), frame.offset, frame.end}
    return itertools.combinations(sorted({*borders, frame.end - 3, frame.offset + 11}), 2)


def test_a_reader_that_reads_in_the_middle_of_a_write_finds_no_damage(tmp_path):
    saver = FileSystemSaver(tmp_path, compression=None)
    for number in range(4):
        saver.put(CONFIG, made(number, text=f"{number}" * 1300))
    path = locate_log(tmp_path)
    assert zeros_of(path)
    seen = set()
    for frame in read_records(path)[-2:]:
        for (start, end), times in itertools.product(ranges_in(frame), (1, 2, 3)):
            racing = Racing(start, end, times)
            reader = FileSystemSaver(tmp_path, io=racing)
            found = numbers(reader)
            count = len(found)
            assert found == [*range(count)], (start, end, times)
            assert count >= 2, (start, end, times)
            seen.add(count)
            assert numbers(reader) == [0, 1, 2, 3]
            fresh = FileSystemSaver(tmp_path, io=Racing(start, end, times))
            latest = fresh.get(CONFIG)
            assert latest.state["n"] in {1, 2, 3}
            reader.close()
    assert max(seen) == 4
    saver.close()


# Leftovers of a writer that died


def end_in_zeros(path, to=BLOCK):
    """Extend a log as a writer does that died before it was closed."""
    with path.open("ab") as file:
        file.truncate(-(-path.stat().st_size // to) * to)


USES = {
    "copy": lambda saver: saver.copy("t", "u"),
    "prune": lambda saver: saver.prune("t", keep_last=3),
    "compact": lambda saver: saver.compact("t"),
    "tags": lambda saver: saver.add_tags(CONFIG, "good"),
    "writes": lambda saver: saver.put_writes(CONFIG, {"k": 2}),
    "replace": lambda saver: saver.put(CONFIG.with_check_point_id("c1"), made(1)),
}


@pytest.mark.parametrize("name", USES)
def test_zeros_behind_a_log_are_no_damage_and_disturb_no_operation(tmp_path, name):
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        fill(saver)
    path = locate_log(tmp_path)
    for to in (SECTOR, BLOCK, 1 << 18):
        end_in_zeros(path, to)
        whole = path.read_bytes()
        with FileSystemSaver(tmp_path, fsync="never") as saver:
            assert saver.verify().ok
            assert not saver.repair("t").changed
            assert expect_alike(saver, CONFIG) == ["c2", "c1", "c0"]
            assert saver.get_writes(CONFIG) == {"k": 1}
        assert path.read_bytes() == whole, "readers change nothing"
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        USES[name](saver)
        assert saver.verify().ok
        for thread in saver.threads():
            assert numbers(saver, RunnableConfig(thread)) == [0, 1, 2]
    assert numbers(FileSystemSaver(tmp_path)) == [0, 1, 2]


@pytest.mark.parametrize("is_open", [True, False])
def test_the_rest_of_a_write_that_died_in_the_zeros_is_set_aside(tmp_path, is_open):
    dead = FileSystemSaver(tmp_path)
    dead.put(CONFIG, made(0))
    path = locate_log(tmp_path)
    before = path.read_bytes()
    end = len(before.rstrip(b"\0"))
    dead.put(CONFIG, made(1, text="x" * 600))
    whole = path.read_bytes()
    last = end_of(path)
    other = FileSystemSaver(tmp_path)
    cuts = [*range(end + 1, end + 50), *range(end + 50, last, 29), *range(last - 9, last)]
    for cut in cuts:
        path.write_bytes(before)
        if is_open:
            assert numbers(other) == [0]
        path.write_bytes(whole[:cut] + before[cut:])
        assert numbers(other) == [0], cut
        other.put(CONFIG, made(2))
        assert numbers(other) == [0, 2]
        assert numbers(FileSystemSaver(tmp_path)) == [0, 2]
        (torn,) = path.parent.glob("torn-*")
        aside = torn.read_bytes()
        rest = whole[end:cut]
        assert aside.rstrip(b"\0") == rest.rstrip(b"\0")
        torn.unlink()
        assert other.verify().ok
        other.close()


def test_a_short_log_is_not_extended(tmp_path, monkeypatch):
    extend_short_logs(monkeypatch, 2000)
    saver = FileSystemSaver(tmp_path)
    saver.put(CONFIG, made(0))
    assert locate_log(tmp_path).stat().st_size == read_records(locate_log(tmp_path))[-1].end
    for number in range(1, 30):
        saver.put(CONFIG, made(number, text="x" * 100))
    assert locate_log(tmp_path).stat().st_size == BLOCK


# Sectors that are lost, and zeros that are none


def open_plain(root):
    return FileSystemSaver(root, fsync="never", compression=None)


def written(root, alignment, zeros):
    """A log whose last record begins at an alignment and holds zeros; its path, and where that record begins."""
    path = locate_log(root)
    with open_plain(root) as saver:
        length = 300
        for _ in range(2):  # the second time with as many characters more as bring the next record to its alignment
            saver.delete("t")
            saver.put(CONFIG, made(0, text="x"))
            saver.put(CONFIG, made(1, text="x" * length))
            begin = path.stat().st_size
            length += (alignment - begin) % SECTOR
        assert begin % SECTOR == alignment
        saver.put(CONFIG, made(2, text="y" * 40, zeros=bytes(zeros), end="e" * 20))
    return path, begin


def ids(root):
    with open_plain(root) as saver:
        found = expect_alike(saver, CONFIG)[::-1]
        for checkpoint in saver.list(CONFIG):
            assert checkpoint.state["n"] == int(checkpoint.id[1:])
        return found


ALIGNMENTS = [*range(0, SECTOR, 37), *range(SECTOR - 48, SECTOR)]
LOST = {0: 80, 600: 95, 1023: 115, 1536: 126, 5000: 130}
"""The zeros in a record of which sectors are lost, and in how many ways at least."""


@pytest.mark.parametrize("zeros", LOST)
def test_a_write_of_which_sectors_are_lost_reads_as_the_history_without_it(tmp_path, zeros):
    dice = random.Random(zeros)
    ways = 0
    for alignment in dice.sample(ALIGNMENTS, 6):
        root = tmp_path / str(alignment)
        path, begin = written(root, alignment, zeros)
        whole = path.read_bytes()
        sectors = range(begin // SECTOR, -(-len(whole) // SECTOR))
        subsets = [*itertools.combinations(sectors, 1), *itertools.combinations(sectors, 2)]
        for _ in range(12):
            count = dice.randint(1, len(sectors))
            subsets.append(dice.sample(sectors, count))
        tried = min(24, len(subsets))
        for lost in dice.sample(subsets, tried):
            data = lose_sectors(whole, begin, lost)
            path.write_bytes(data)
            expected = ["c0", "c1"]
            if data == whole:
                expected.append("c2")
            assert ids(root) == expected, (begin % SECTOR, lost)
            ways += 1
            if dice.random() < 0.2:
                with open_plain(root) as saver:
                    saver.put(CONFIG, made(9))
                    assert saver.verify().ok
                assert ids(root) == [*expected, "c9"]
                for file in path.parent.glob("torn-*"):
                    file.unlink()
        shutil.rmtree(root)
    assert ways >= LOST[zeros]


def test_damage_of_a_record_that_holds_zeros_is_not_taken_for_a_lost_sector(tmp_path):
    path, begin = written(tmp_path, 100, 4 * SECTOR)
    whole = path.read_bytes()
    place = whole.index(b"y" * 40, begin)
    path.write_bytes(flip(whole, place, 3))
    with open_plain(tmp_path) as saver, pytest.raises(CheckpointCorruptionError):
        saver.get(CONFIG)


def test_a_byte_among_the_zeros_is_noticed_and_costs_nothing(tmp_path):
    with open_plain(tmp_path) as saver:
        fill(saver)
    path = locate_log(tmp_path)
    with path.open("ab") as file:
        file.truncate(BLOCK)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    dice = random.Random(1)
    near = range(end, end + 3 * SECTOR)
    places = [*dice.sample(near, 40), end, end + 39, end + 40, len(whole) - 1]
    for place in places:
        mask = 1 << dice.randrange(8)
        path.write_bytes(flip(whole, place, mask))
        with open_plain(tmp_path) as saver:
            assert not saver.verify().ok, place
            report = saver.repair("t")
            assert report.ok
            (file,) = report.files
            assert file.kept == 3
            assert saver.verify().ok
        assert ids(tmp_path) == ["c0", "c1", "c2"]
        for file in path.parent.glob("*.bin"):
            file.unlink()
