"""A release that dies or fails at any step: what it released is the version from its first record on."""

import errno
from itertools import count

import pytest

from graphkit import CheckpointStorageError, RunnableConfig
from savers import FileSystemSaver
from tests.support.checkpoints import make_checkpoint
from tests.support.disks import CHANGES, CountingIO, Died, HookedIO, die, failing

ROOT, INNER, OTHER = (RunnableConfig("t", checkpoint_ns=namespace) for namespace in ("", "inner", "other"))
HISTORIES = {"root": (ROOT,), "root and namespaces": (ROOT, INNER, OTHER), "namespaces": (INNER, OTHER)}
INSTANTS = {"root": 7, "root and namespaces": 15, "namespaces": 18}
UNFINISHED = {"root": 2, "root and namespaces": 18, "namespaces": 22}
"""At how many instants a release may end, and how often it is then unfinished, at least."""


def outline(checkpoints):
    return [(checkpoint.id, checkpoint.state["n"]) for checkpoint in checkpoints]


def released(saver, config):
    return outline(saver.tag(config, 1).checkpoints)


def expect_version(reader, configs, before):
    assert reader.threads() == []
    assert reader.threads(released=True) == ["t"]
    assert reader.namespaces("t") == []
    assert reader.get_version(ROOT) == "1"
    assert sorted(reader.version_namespaces("t", 1)) == [*before]
    for config in configs:
        assert reader.list(config) == []
        assert reader.get(config) is None
        assert reader.summary(config) is None
        assert released(reader, config) == before[config.checkpoint_ns]


def expect_history(reader, configs, before):
    assert reader.threads() == ["t"]
    assert [outline(reader.list(config)) for config in configs] == [*before.values()]


def end_at_every_instant(name, how, tmp_path):
    """Release as often as there are instants to end it at; how many there are, and after how many it is unfinished."""
    unfinished = 0
    for number in count():
        root = tmp_path / how / f"{number}"
        io = HookedIO()
        configs = HISTORIES[name]
        saver = FileSystemSaver(root / "store", io=io)
        for n in range(2):
            for config in configs:
                saver.put(config, make_checkpoint(n))
        before = {config.checkpoint_ns: outline(saver.list(config)) for config in configs}
        with failing(io, CHANGES, errno.EIO if how == "failed" else die, after=number, times=1) as fault:
            try:
                tag = saver.release(ROOT)
            except (CheckpointStorageError, Died):
                tag = None

        reader = FileSystemSaver(root / "store", fsync="never")
        versions = reader.versions_by_thread_id("t")
        (expect_version if versions else expect_history)(reader, configs, before)
        unfinished += bool(versions) and not reader.verify().ok

        # The states of what was listed before can still be read, while the release is unfinished and afterwards.
        listed = [reader.tag(config, 1).checkpoints for config in configs] if versions else []
        again = saver if how == "failed" else FileSystemSaver(root / "store", fsync="never")
        if tag is None:
            tag = again.release(ROOT)
        if how == "failed" or tag.version is not None:
            assert tag.version == 1, f"at {number}"
            assert outline(tag.checkpoints) == before.get("", [])
        assert [outline(checkpoint) for checkpoint in listed] == ([*before.values()] if versions else [])
        for config in configs:
            assert released(again, config) == before[config.checkpoint_ns]
            assert released(reader, config) == before[config.checkpoint_ns]
        assert again.versions_by_thread_id("t") == [1]
        assert again.release(ROOT).version is None, "an empty thread makes no version"
        assert again.verify().ok
        again.put(configs[0], make_checkpoint(7))
        assert reader.threads() == ["t"]
        assert again.release(ROOT).version == 2
        assert not [*(root / "store").glob("r-*")]
        for opened in (saver, reader, again):
            opened.close()
        if not fault.met:
            break
    assert number > 4
    return number, unfinished


@pytest.mark.parametrize("name", HISTORIES)
def test_at_every_instant_it_is_the_history_or_the_version(name, tmp_path):
    failed, after_failures = end_at_every_instant(name, "failed", tmp_path)
    died, after_deaths = end_at_every_instant(name, "died", tmp_path)
    assert failed == died >= INSTANTS[name]
    assert after_failures + after_deaths >= UNFINISHED[name]


def unfinished(tmp_path, configs):
    io = HookedIO()
    saver = FileSystemSaver(tmp_path / "store", fsync="never", io=io)
    for config in configs:
        saver.put(config, make_checkpoint(0))
    with failing(io, "rename"), pytest.raises(CheckpointStorageError):
        saver.release(ROOT)
    saver.close()
    return FileSystemSaver(tmp_path / "store", fsync="never")


def test_delete_and_repair_take_an_unfinished_release_along(tmp_path):
    saver = unfinished(tmp_path, (ROOT, INNER))
    assert saver.repair().finished == ("t",)
    assert saver.versions_by_thread_id("t") == [1]
    assert saver.delete("t")
    assert saver.threads(released=True) == []
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["graphkit.store", "locks"]
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
