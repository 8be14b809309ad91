"""A store of version 1 in use: read as it is, upgraded by the first write, and nothing lost on the way."""

import importlib.util
import random
import shutil
from pathlib import Path

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import Compression, FileSystemSaver
from savers._log import log
from tests.disk import crashes
from tests.disk.conftest import frames_of, log_of
from tests.disk.simfs import Disk, Fault, SimFS

GOLDEN = Path(__file__).with_name("golden")
SPEC = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
make = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make)
PLAIN = RunnableConfig("plain")
CHECKPOINTS = 40
"""In the history of "plain"."""


def tree_of(path):
    """A directory as the simulated disk takes it."""
    return {one.name: tree_of(one) if one.is_dir() else one.read_bytes() for one in path.iterdir()}


def flat(tree, place=""):
    found = {}
    for name, below in tree.items():
        found |= flat(below, f"{place}/{name}") if isinstance(below, dict) else {f"{place}/{name}": below}
    return found


def told(one):
    fields = (one.id, one.node_id, one.next_node_id, one.parent_id, one.created_at)
    return repr((*fields, dict(one.metadata), list(one.state.items())))


def all_told(saver):
    """Everything in a store."""
    found = {}
    for thread in saver.threads(released=True):
        for namespace in saver.namespaces(thread) or [""]:
            config = RunnableConfig(thread, checkpoint_ns=namespace)
            listed = saver.list(config)
            beside = [
                (repr(saver.get_writes(at)), saver.tags_of(at))
                for at in (config.with_check_point_id(one.id) for one in listed)
            ]
            found[thread, namespace] = [told(one) for one in reversed(listed)], beside[::-1]
        for version in saver.versions_by_thread_id(thread):
            found[thread, version] = [
                told(one) for one in reversed(saver.tag(RunnableConfig(thread), version).checkpoints)
            ]
    return found


@pytest.fixture
def root(tmp_path):
    shutil.copytree(GOLDEN / "v1", tmp_path / "store")
    return tmp_path / "store"


def open_saver(root, **options):
    saver = FileSystemSaver(root, **{"fsync": "never", "compression": Compression(threshold=1000), **options})
    for name, cls in make.TYPES.items():
        saver._codec.register_as(name, cls)
    return saver


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    root = tmp_path_factory.mktemp("before") / "store"
    shutil.copytree(GOLDEN / "v1", root)
    with open_saver(root) as saver:
        return all_told(saver)


def versions_of(root):
    """The major version in the header of each log."""
    return {
        str(path.relative_to(root)): int.from_bytes(path.read_bytes()[8:10], "little")
        for path in [*root.rglob("log"), *root.rglob("v*.log")]
    }


def test_reading_and_verifying_changes_no_byte(root, before):
    whole = flat(tree_of(root))
    with open_saver(root) as saver:
        assert all_told(saver) == before
        assert saver.verify().ok
        assert not saver.repair(dry_run=True).changed
        saver.summary(PLAIN), saver.interrupts(), saver.recent(PLAIN, limit=3), list(saver.search({"step": 3}))
    # A dry run keeps writers away, and so makes the locks where there are none.
    assert {place: data for place, data in flat(tree_of(root)).items() if not place.startswith("/locks")} == whole
    assert set(versions_of(root).values()) == {1}


def added(number=900):
    return Checkpoint(id=f"new{number}", node_id="a", next_node_id="b", state={"n": number}, metadata={"step": number})


WRITES = {
    "put": lambda saver: saver.put(PLAIN, added()),
    "replace": lambda saver: saver.put(PLAIN.with_check_point_id(make.checkpoint(3, {}).id), added()),
    "writes": lambda saver: saver.put_writes(PLAIN, {"key": 1}),
    "tags": lambda saver: saver.add_tags(PLAIN, "tag"),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("fsync", ["always", "never", 60.0])
@pytest.mark.parametrize("locks", [[], ["00"], [f"{number:02x}" for number in range(64)]], ids=len)
def test_the_first_write_upgrades_one_log_and_the_marker(root, before, name, fsync, locks):
    for lock in locks:
        (root / "locks").mkdir(exist_ok=True)
        (root / "locks" / lock).touch()
    released = {path: path.read_bytes() for path in root.rglob("v*.log")}
    with open_saver(root, fsync=fsync) as saver:
        WRITES[name](saver)
        found = all_told(saver)
    with open_saver(root) as fresh:
        assert all_told(fresh) == found
        assert fresh.verify().ok
    changed = {place for place in before if before[place] != found[place]}
    assert changed == {("plain", "")}
    histories, _ = found["plain", ""]
    old, _ = before["plain", ""]
    assert len(set(old) - set(histories)) == (name == "replace")
    plain = str(log_of(root, "plain").relative_to(root))
    assert {path for path, version in versions_of(root).items() if version == 2} == {plain}
    assert b'"format": 2' in (root / "graphkit.store").read_bytes()
    assert released
    assert all(path.read_bytes() == data for path, data in released.items())


def test_records_of_version_1_move_as_they_are(root):
    old = frames_of(log_of(root, "plain"))
    with open_saver(root) as saver:
        saver.put(PLAIN, added())
        saver.put(PLAIN, added(901))
    new = frames_of(log_of(root, "plain"))
    moved = new[2 : 2 + len(old) - 1]
    assert [one.type for one in new[:2]] == [log.META, log.META]
    assert all(one.unsynced is None for one in moved), "headers of version 1"
    assert [one.payload for one in moved] == [one.payload for one in old[1:]]
    assert [one.back for one in moved] == [one.back for one in old[1:]]
    assert [one.seq for one in new] == list(range(len(new)))
    assert [one.unsynced is not None for one in new[-2:]] == [True, True]


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.prune("plain", keep_last=30),
        lambda saver: saver.remove(PLAIN, [make.checkpoint(number, {}).id for number in range(10)]),
    ],
    ids=["prune", "remove"],
)
def test_pruning_writes_version_2_and_keeps_the_rest(root, before, call):
    with open_saver(root) as saver:
        assert call(saver) == CHECKPOINTS - 30
        found = all_told(saver)
        assert saver.verify().ok
    assert found["plain", ""][0] == before["plain", ""][0][-30:]
    assert versions_of(root)[str(log_of(root, "plain").relative_to(root))] == 2


def test_compacting_writes_version_2_and_keeps_all(root, before):
    with open_saver(root) as saver:
        saver.compact()
        assert all_told(saver) == before
        assert saver.verify().ok
    assert versions_of(root)[str(log_of(root, "replaced").relative_to(root))] == 2


def test_copying_writes_version_2_and_keeps_all(root, before):
    with open_saver(root) as saver:
        saver.copy("plain", "copy")
        assert log_of(root, "plain").read_bytes() == log_of(GOLDEN / "v1", "plain").read_bytes()
        saver.put(RunnableConfig("copy"), added())
        found = all_told(saver)
        assert saver.verify().ok
    assert found["copy", ""][0][:-1] == found["plain", ""][0] == before["plain", ""][0]
    assert found["copy", "sub/Graph"] == before["plain", "sub/Graph"]
    assert versions_of(root)[str(log_of(root, "copy").relative_to(root))] == 2


def test_a_copy_that_ends_in_a_record_of_version_1_is_opened_from_its_end(root):
    open_saver(root).copy("plain", "copied")
    assert frames_of(log_of(root, "copied"))[-1].boot is None, "its last record is of version 1"
    reader = open_saver(root)
    assert reader.info(RunnableConfig("copied")) is not None
    assert reader._store.shared_writer("copied", "").index is None, "the log was not read from its beginning"


def test_releasing_keeps_the_log_as_it_is(root, before):
    whole = log_of(root, "plain").read_bytes()
    with open_saver(root) as saver:
        saver.release(PLAIN)
        assert all_told(saver)["plain", 1] == before["plain", ""][0]
        assert saver.verify().ok
        released = next(root.glob("t-plain-*/v000001.log")).read_bytes()
        assert released.startswith(whole)
        assert released[8] == 1
        saver.put(PLAIN, added())
        assert saver.verify().ok
    assert log_of(root, "plain").read_bytes()[8] == 2


def test_repair_after_a_flipped_bit_keeps_all(root, before, sweep):
    dice = random.Random(1)
    path = log_of(root, "plain")
    whole = path.read_bytes()
    for place in sweep.some([*dice.sample(range(len(whole)), 30), *range(64, 104, 3)], 15):
        data = bytearray(whole)
        data[place] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        with open_saver(root) as saver:
            assert not saver.verify("plain").ok, place
            report = saver.repair("plain")
            assert (report.ok, report.lost) == (True, ()), place
            assert report.files[0].kept == CHECKPOINTS
            assert all_told(saver)["plain", ""] == before["plain", ""]
            assert saver.verify().ok
        assert path.read_bytes()[8] == 2
        for file in path.parent.glob("*.bin"):
            file.unlink()


def test_repair_after_damage_of_an_upgraded_log_keeps_all(root, before, sweep):
    with open_saver(root) as saver:
        saver.put(PLAIN, added())
    path = log_of(root, "plain")
    whole, dice = path.read_bytes(), random.Random(2)
    for place in sweep.some(dice.sample(range(len(whole)), 30), 8):
        data = bytearray(whole)
        data[place] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        with open_saver(root) as saver:
            assert not saver.verify("plain").ok, place
            report = saver.repair("plain")
            assert (report.ok, report.lost, report.files[0].kept) == (True, (), CHECKPOINTS + 1), place
            assert all_told(saver)["plain", ""][0][:-1] == before["plain", ""][0]
            assert saver.verify().ok
        for file in path.parent.glob("*.bin"):
            file.unlink()


# Killed, and without power, at every operation of the upgrade


def expect_nothing_lost(tree, before, *, is_acknowledged):
    """Each history is as it was, or with the one change; then all can be written to."""
    fs = SimFS(tree, record=False)
    saver = open_saver("/", io=fs, lock_timeout=0, fsync="always")
    found = all_told(saver)
    assert {place for place in before if found[place] != before[place]} <= {("plain", "")}
    histories, beside = found["plain", ""]
    old, old_beside = before["plain", ""]
    is_there = len(histories) == len(old) + 1
    assert (histories[: len(old)], beside[: len(old)]) == (old, old_beside)
    assert is_there or (len(histories) == len(old) and not is_acknowledged)
    assert saver.verify().ok or not is_acknowledged
    saver.put(PLAIN, added(950))
    assert saver.list(PLAIN)[0].id == "new950"
    assert len(saver.list(PLAIN)) == len(histories) + 1
    assert saver.verify().ok
    places = flat(fs.tree())
    golden = flat(tree_of(GOLDEN / "v1"))
    assert all(places[place] == data for place, data in golden.items() if "/v0" in place)
    assert b'"format": 2' in places["/graphkit.store"]


def test_a_death_at_every_operation_of_the_upgrade_loses_nothing(before, sweep):
    tree = tree_of(GOLDEN / "v1")
    with crashes.quiet():
        fs = SimFS(tree)
        open_saver("/", io=fs, lock_timeout=0, fsync="always").put(PLAIN, added())
        for point in sweep.some(range(len(fs.calls)), 15):
            calls = [0]

            def die(*_, calls=calls, point=point):
                calls[0] += 1
                if calls[0] > point:
                    raise Fault

            dying = SimFS(tree, hook=die, record=False)
            with pytest.raises(Fault):
                open_saver("/", io=dying, lock_timeout=0, fsync="always").put(PLAIN, added())
            expect_nothing_lost(dying.tree(), before, is_acknowledged=False)
        assert len(fs.calls) > 30


def test_a_power_loss_at_every_operation_of_the_upgrade_loses_nothing(before, sweep):
    tree = tree_of(GOLDEN / "v1")
    rng = random.Random(1)
    states = 0
    with crashes.quiet(), crashes.fixed(1):
        fs = SimFS(tree)
        saver = open_saver("/", io=fs, lock_timeout=0, fsync="always")
        saver.put(PLAIN, added())
        fs.note("ack")
        disk, is_acknowledged = Disk(tree), False
        for op in fs.ops:
            if op[0] == "note":
                is_acknowledged = True
            else:
                disk.apply(op)
            for _, state in disk.states(rng, sweep.count(8, 2)):
                states += 1
                expect_nothing_lost(state, before, is_acknowledged=is_acknowledged)
    assert states > sweep.count(40, 20)
