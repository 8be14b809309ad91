"""Records whose checksums are right and one part of which is wrong: each is damage that is named, and repaired.

tests/disk/test_forged.py has them at random; here each check of a part has a record that only this check refuses.
"""

from enum import Enum
from functools import partial

import msgpack
import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointSerializationError
from graphkit.recovery import last_good
from savers import FileSystemSaver
from tests.support.checkpoints import list_ids, list_states
from tests.support.logs import (
    CHECKPOINT,
    KEY,
    MARK,
    RELEASE,
    WRITE,
    append_record,
    locate_log,
)

CONFIG = RunnableConfig("t")
LATE = 1 << 62
TABLE = []

KEYFRAMES = {
    "more parts than there are": ["bad", "a", "b", 1, [], TABLE, None, None, None, None, 5, b""],
    "operations that are no list": ["bad", "a", "b", 1, "ops", TABLE, b""],
    "data that are no bytes": ["bad", "a", "b", 1, [], TABLE, "data"],
    "a time that no clock shows": ["bad", "a", "b", LATE, [], TABLE, b""],
    "a node that is no text": ["bad", 7, "b", 1, [], TABLE, b""],
    "an id that is no text": [7, "a", "b", 1, [], TABLE, b""],
    "a table that is no list": ["bad", "a", "b", 1, [], 7, b""],
    "a table that is text": ["bad", "a", "b", 1, [], "table", b""],
    "a table that is a mapping": ["bad", "a", "b", 1, [], {"k": 1}, b""],
    "early writes without a place": ["bad", "a", "b", 1, [], TABLE, None, None, None, [-1, 0], b""],
}
# Only who reads the state sees these.
TABLES = {
    "a table of a name without an entry": ["bad", "a", "b", 1, [], ["k"], b""],
    "a table with a name that is no text": ["bad", "a", "b", 1, [], [1, 1], b"\1"],
    "a table with an entry that is none": ["bad", "a", "b", 1, [], ["k", "entry"], b""],
    "a table with a value that is not there": ["bad", "a", "b", 1, [], ["k", 9], b""],
}
OTHERS = {
    "writes that are no bytes": (WRITE, ["good", {"k": 1}]),
    "writes without a key": (WRITE, ["good", {1: b""}]),
    "writes of an id that is none": (WRITE, [7, {"k": b"\1"}]),
    "writes that are no list": (WRITE, "writes"),
    "writes with one part more": (WRITE, ["good", {}, 1]),
    "tags that are no text": (MARK, ["good", [1], []]),
    "tags that are no list": (MARK, ["good", {}, []]),
}
ENDINGS = {"no version": [], "a version below 0": [-1], "a version that is no number": ["1"], "no list": "version"}
RECORDS = {name: (CHECKPOINT, parts, KEY) for name, parts in KEYFRAMES.items()}
RECORDS |= {name: (type_, parts, 0) for name, (type_, parts) in OTHERS.items()}


def write_log(root, type_, parts, flags=0):
    """Write a log of a good record and a malformed one."""
    with FileSystemSaver(root, fsync="never", compression=None) as saver:
        saver.put(CONFIG, Checkpoint(id="good", node_id="a", next_node_id="b", state={"k": "v"}))
    path = locate_log(root)
    append_record(path, type_, msgpack.packb(parts), flags)
    return path


class Kind(Enum):
    X = "x"


def test_metadata_of_a_type_that_is_not_registered_are_no_damage(tmp_path):
    with FileSystemSaver(tmp_path, fsync="never", types=[Kind]) as saver:
        saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={}, metadata={"kind": Kind.X}))
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        for read in (saver.list, saver.history, saver.get, partial(last_good, saver)):
            with pytest.raises(CheckpointSerializationError, match="its type is not registered"):
                read(CONFIG)
        assert saver.verify("t").ok
        saver.register_types(Kind)
        assert saver.get(CONFIG).metadata["kind"] is Kind.X


def expect_repair(saver):
    (problem,) = saver.verify("t").problems
    assert problem.state == "damaged"
    assert saver.repair("t").ok
    assert list_ids(saver, CONFIG) == ["good"]
    assert saver.verify("t").ok


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_with_a_wrong_part_is_damage_and_repaired(tmp_path, name):
    path = write_log(tmp_path, *RECORDS[name])
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        for read in (saver.list, saver.history, saver.get):
            with pytest.raises(CheckpointCorruptionError, match=f"{path}"):
                read(CONFIG)
        expect_repair(saver)


@pytest.mark.parametrize("name", TABLES)
def test_a_keyframe_with_a_wrong_table_hides_only_its_own_state(tmp_path, name):
    path = write_log(tmp_path, CHECKPOINT, TABLES[name], KEY)
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        assert [info.id for info in saver.history(CONFIG)] == ["bad", "good"]
        assert dict(saver.get(CONFIG.replace(checkpoint_id="good")).state) == {"k": "v"}
        for read in (lambda: saver.get(CONFIG), lambda: list_states(saver, CONFIG)):
            with pytest.raises(CheckpointCorruptionError, match=f"{path}"):
                read()
        expect_repair(saver)


@pytest.mark.parametrize("name", ENDINGS)
def test_an_end_of_a_history_that_names_no_version_is_damage_and_repaired(tmp_path, name):
    path = write_log(tmp_path, RELEASE, ENDINGS[name])
    before = path.read_bytes()
    with FileSystemSaver(tmp_path, fsync="never") as saver:
        with pytest.raises(CheckpointCorruptionError, match="it names no version"):
            saver.put(CONFIG, Checkpoint(node_id="a", next_node_id="b", state={}))
        assert path.read_bytes() == before
        expect_repair(saver)
