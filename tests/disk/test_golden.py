"""A directory of each version of the format, written when it was current, is read exactly by today's code."""

import shutil
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from tests.disk.golden import contents
from tests.support.contents import outline

GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir() if (path / "graphkit.store").exists()))
def saver(request, tmp_path):
    """A copy, which may be written to."""
    shutil.copytree(GOLDEN / request.param, tmp_path / "store")
    saver = contents.saver_on(tmp_path / "store")
    yield saver
    saver.close()


@pytest.fixture
def expected(request, saver):
    """What is in it."""
    return contents.expected(request.node.callspec.params["saver"])


@pytest.mark.requirement("L7", "P54")
def test_every_field_of_every_checkpoint_is_as_it_was(saver, expected):
    for (thread, namespace, version), history in expected.items():
        config = RunnableConfig(thread, checkpoint_ns=namespace)
        newest_first = saver.list(config) if version is None else saver.tag(config, version).checkpoints
        assert [*map(outline, reversed(newest_first))] == [*map(outline, history)], config


def test_what_is_recorded_with_a_checkpoint_is_as_it_was(saver, expected):
    at = RunnableConfig("replaced", checkpoint_id=contents.checkpoint(2, {}).id)
    assert saver.get_writes(at) == contents.WRITES
    assert saver.tags_of(at) == ("two",)
    assert [waiting.id for waiting in saver.interrupts()] == ["i1"]
    for n in range(2):
        at = RunnableConfig("scattered", checkpoint_id=contents.checkpoint(n, {}).id)
        assert saver.get_writes(at) == {"late": n}
        assert saver.tags_of(at) == (f"tag {n}",)
    for checkpoint in expected.get(("early", "", None), ()):
        early = RunnableConfig("early", checkpoint_id=checkpoint.id)
        assert saver.get_writes(early) == contents.early_writes(checkpoint.metadata["step"])


def test_it_is_listed_and_well(saver, expected):
    threads = {thread for thread, _, _ in expected}
    assert set(saver.threads(released=True)) == threads
    assert list(saver.namespaces("plain")) == ["", "sub/Graph"]
    assert list(saver.versions_by_thread_id("released")) == [1, 2]
    report = saver.verify()
    assert report.ok
    assert {thread.thread_id for thread in report.threads} == threads
    count = sum(file.checkpoints for thread in report.threads for file in thread.files)
    assert count == sum(map(len, expected.values()))


def test_it_can_be_written_to(saver):
    config = RunnableConfig("plain")
    latest = saver.get(config)
    more = [*latest.state["items"], "more"]
    checkpoint = contents.checkpoint(99, {"items": more})
    saver.put(config, checkpoint)
    saver.prune("plain", keep_last=20)
    newest, before, *_ = saver.list(config)
    assert outline(before) == outline(latest)
    assert newest.state["items"] == more
    assert saver.verify().ok
