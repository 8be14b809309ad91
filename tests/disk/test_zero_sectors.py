"""Runs of zeros in a state, and behind a log: a flipped bit is damage, a lost sector is not, zeros are nothing (A3)."""

import itertools
import random
import shutil

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver
from tests.support.checkpoints import list_ids
from tests.support.logs import (
    flip,
    locate_log,
    lose_sectors,
)

SECTOR = 512
BLOCK = 4096
CONFIG = RunnableConfig("t")


def made(number, **state):
    return Checkpoint(id=f"c{number}", node_id="a", next_node_id="b", state={"n": number, **state})


def open_saver(root, **options):
    return FileSystemSaver(root, **{"fsync": "never", "compression": None, **options})


def written(root, alignment, zeros):
    """A log whose last record begins at an alignment and holds zeros; its path, and where that record begins."""
    with open_saver(root) as saver:
        saver.put(CONFIG, made(0, text="x"))
        start = locate_log(root).stat().st_size
        # A record with 100 bytes of text shows how many others bring the next one to its alignment.
        saver.put(CONFIG, made(1, text="x" * 200))
        length = locate_log(root).stat().st_size - start
        saver.delete("t")
        saver.put(CONFIG, made(0, text="x"))
        assert locate_log(root).stat().st_size == start
        # From 200 to 711 characters the record grows by one byte for each, but for the header of the text at 256.
        for more in range(SECTOR + 4):
            if (start + length + more + (more > 55)) % SECTOR == alignment:
                saver.put(CONFIG, made(1, text="x" * (200 + more)))
                break
        begin = locate_log(root).stat().st_size
        saver.put(CONFIG, made(2, text="y" * 40, zeros=bytes(zeros), end="e" * 20))
    return locate_log(root), begin


def ids(root, **options):
    with open_saver(root, **options) as saver:
        found = list_ids(saver, CONFIG)[::-1]
        latest = saver.get(CONFIG)
        assert (latest and latest.id) == (found[-1] if found else None)
        for one in saver.list(CONFIG):
            assert one.state["n"] == int(one.id[1:])
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
        subsets = [lost for count in range(1, 3) for lost in itertools.combinations(sectors, count)]
        subsets += [dice.sample(sectors, dice.randint(1, len(sectors))) for _ in range(12)]
        for lost in dice.sample(subsets, min(24, len(subsets))):
            data = lose_sectors(whole, begin, lost)
            path.write_bytes(data)
            expected = ["c0", "c1"] + ["c2"] * (data == whole)
            assert ids(root) == expected, (begin % SECTOR, lost)
            ways += 1
            if dice.random() < 0.2:
                with open_saver(root) as saver:
                    saver.put(CONFIG, made(9))
                    assert saver.verify().ok
                assert ids(root) == ["c0", "c1", "c9"] if data != whole else [*expected, "c9"]
                for file in path.parent.glob("torn-*"):
                    file.unlink()
        shutil.rmtree(root)
    assert ways >= LOST[zeros]


# Zeros behind the last record


def extended(root, to=BLOCK, **options):
    """A log that a writer has extended with zeros, as docs/format.md allows."""
    with open_saver(root, **options) as saver:
        for number in range(3):
            saver.put(CONFIG, made(number, text="x" * number * 400))
        saver.put_writes(CONFIG, {"k": 1})
    path = locate_log(root)
    extend(path, to)
    return path


def extend(path, to=BLOCK):
    with path.open("ab") as file:
        file.truncate(-(-path.stat().st_size // to) * to)


@pytest.mark.parametrize("to", [512, BLOCK, 1 << 18])
def test_a_log_with_zeros_behind_it_is_well_and_whole(tmp_path, to):
    path = extended(tmp_path, to)
    size = path.stat().st_size
    with open_saver(tmp_path) as saver:
        report = saver.verify()
        assert report.ok, report.problems
        assert not saver.repair().changed
        assert saver.summary(CONFIG).checkpoints == 3
        assert len(saver.history(CONFIG)) == 3
        assert saver.info(CONFIG).id == "c2"
        assert dict(saver.get_writes(CONFIG)) == {"k": 1}
        assert saver.threads() == ["t"]
    assert ids(tmp_path) == ["c0", "c1", "c2"]
    assert path.stat().st_size == size, "readers change nothing"


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.copy("t", "u"),
        lambda saver: saver.prune("t", keep_last=3),
        lambda saver: saver.compact("t"),
        lambda saver: saver.add_tags(CONFIG, "good"),
        lambda saver: saver.put_writes(CONFIG, {"k": 2}),
        lambda saver: saver.put(CONFIG.with_check_point_id("c1"), made(1)),
        lambda saver: saver.repair("t"),
    ],
    ids=["copy", "prune", "compact", "tags", "writes", "replace", "repair"],
)
def test_a_log_with_zeros_behind_it_is_used_as_any_other(tmp_path, call):
    extended(tmp_path)
    with open_saver(tmp_path) as saver:
        call(saver)
        assert saver.verify().ok
        if "u" in saver.threads():
            assert list_ids(saver, RunnableConfig("u")) == ["c2", "c1", "c0"]
    assert ids(tmp_path) == ["c0", "c1", "c2"]


def test_a_byte_among_the_zeros_is_noticed_and_costs_nothing(tmp_path):
    path = extended(tmp_path)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    dice = random.Random(1)
    near = range(end, end + 3 * SECTOR)
    for place in [
        *dice.sample(near, 60),
        *dice.sample(range(end, len(whole)), 20),
        end,
        end + 39,
        end + 40,
        len(whole) - 1,
    ]:
        path.write_bytes(flip(whole, place, 1 << dice.randrange(8)))
        with open_saver(tmp_path) as saver:
            assert not saver.verify().ok, place
            report = saver.repair("t")
            assert (report.files[0].kept, report.ok) == (3, True)
            assert saver.verify().ok
        assert ids(tmp_path) == ["c0", "c1", "c2"]
        for file in path.parent.glob("*.bin"):
            file.unlink()
