"""What a log does over its life: replace, release, versions, delete, prune, copy; in one log and from others' hands."""

import pytest

from graphkit import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    CheckpointStorageError,
    RunnableConfig,
    StateSerializer,
)
from graphkit.testing import made
from savers import FileSystemSaver
from savers.log import Log
from tests.support.checkpoints import list_states, make_checkpoint, make_interrupt
from tests.support.disks import CountingIO, HookedIO, failing
from tests.support.logs import locate_log, read_checkpoints


def test_the_state_of_a_checkpoint_that_was_deleted_meanwhile_cannot_be_read(opener, config):
    saver = opener()
    for n in range(2):
        saver.put(config, make_checkpoint(n))
    listed = saver.list(config)
    released = opener().release(config).checkpoints
    saver.put(config, make_checkpoint(2))
    opener().delete("t")
    for checkpoint in (listed[1], released[1]):
        with pytest.raises(CheckpointNotFoundError, match="deleted"):
            _ = checkpoint.state


class Lines(StateSerializer):
    def dumps(self, data):
        return "\n".join(f"{key}={value}" for key, value in data.items()).encode()

    def loads(self, data):
        return dict(line.split("=", 1) for line in data.decode().split("\n") if line)


@pytest.mark.requirement("behaviour 16")
def test_a_state_serializer_of_the_users_own(tmp_path, config):
    saver = FileSystemSaver(tmp_path, Lines(), fsync="never")
    states = [{"text": "word " * 50 * n, "n": str(n)} for n in range(60)]
    states += [{}, {"text": ""}]
    for state in states:
        saver.put(config, made(state))
    for reader in (saver, FileSystemSaver(tmp_path, Lines())):
        assert list_states(reader, config) == states[::-1]
        replayed = [*reader.replay(config)]
        assert [checkpoint.state for checkpoint in replayed] == states
        assert {checkpoint.changes for checkpoint in replayed} == {None}
    plain_size = sum(len(Lines().dumps(state)) for state in states)
    assert saver.size("t") < plain_size / 3
    saver.prune(config, keep_last=2)
    reader = FileSystemSaver(tmp_path, Lines())
    assert list_states(reader, config) == states[:-3:-1]
    with pytest.raises(CheckpointFormatError, match="state_serializer"):
        FileSystemSaver(tmp_path).get(config)

    class Wrong(Lines):
        def dumps(self, data):
            return "text"

    with pytest.raises(CheckpointSerializationError):
        FileSystemSaver(tmp_path, Wrong()).put(config, make_checkpoint(0))
    saver.close()


@pytest.mark.requirement("H5")
def test_interrupts_and_listings_decode_no_state(opener, config, monkeypatch):
    saver = opener()
    placed = saver.put(config, make_checkpoint(0))
    saver.put_writes(placed, {"interrupt:a": make_interrupt(payload={"ask": 1})})
    monkeypatch.setattr(Log, "load_state", None)
    reader = opener()
    (waiting,) = reader.interrupts()
    assert waiting.payload == {"ask": 1}
    (info,) = reader.history(config)
    assert (info.id, info.status) == (placed.checkpoint_id, "interrupted")
    (record,) = read_checkpoints(locate_log(saver.base_directory))
    assert info.size == record.size


def test_a_status_is_that_of_the_latest_checkpoint_and_not_of_an_older_one_with_its_id(opener):
    saver = opener()
    for n in (1, 2):
        saver.put("t", made({}, id="same", metadata={"n": n}))
    assert [saver.search({"n": n})[0].status for n in (1, 2)] == ["", "stalled"]


# A release that died before its version had its name


ROOT, INNER = (RunnableConfig("t", checkpoint_ns=namespace) for namespace in ("", "inner"))


def unfinished(tmp_path, configs):
    io = HookedIO()
    saver = FileSystemSaver(tmp_path / "store", fsync="never", io=io)
    for config in configs:
        saver.put(config, make_checkpoint(0))
    with failing(io, "rename"), pytest.raises(CheckpointStorageError):
        saver.release(ROOT)
    saver.close()
    return FileSystemSaver(tmp_path / "store", fsync="never")


def test_its_states_can_be_read_before_and_after_it_is_finished(tmp_path):
    saver = unfinished(tmp_path, (ROOT, INNER))
    assert (saver.threads(), saver.threads(released=True)) == ([], ["t"])
    before, after = saver.tag(ROOT, 1).checkpoints[0], saver.tag(INNER, 1).checkpoints[0]
    assert before.state["n"] == 0
    assert saver.release(ROOT).version == 1
    assert after.state["n"] == 0
    assert saver.release(ROOT).version is None, "an empty thread makes no version"
    assert not [*tmp_path.glob("store/r-*")]
    saver.close()


def test_listing_threads_opens_no_log_but_that_of_an_unfinished_release(opener, tmp_path):
    unfinished(tmp_path, (ROOT,)).close()
    saver = opener()
    for number in range(20):
        saver.put(RunnableConfig(f"u{number}"), make_checkpoint(0))
    io = CountingIO()
    reader = opener(io=io)
    io.reset()
    assert len(reader.threads()) == 20
    assert io.calls.count("open") <= 2
    (tmp_path / "store" / "r-nonsense").mkdir()
    assert len(reader.threads()) == 20
