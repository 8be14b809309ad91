"""A directory of each version of the format, written when it was current, is read exactly by today's code (L7)."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from graphkit import RunnableConfig

GOLDEN = Path(__file__).with_name("golden")
SPEC = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
make = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make)


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir() if (path / "graphkit.store").exists()))
def saver(request, tmp_path):
    """A copy, which may be written to."""
    shutil.copytree(GOLDEN / request.param, tmp_path / "store")
    saver = make.saver_on(tmp_path / "store")
    yield saver
    saver.close()


def fields(checkpoint):
    return [
        checkpoint.id, checkpoint.node_id, checkpoint.next_node_id, checkpoint.parent_id, checkpoint.created_at,
        repr(dict(checkpoint.metadata)), repr(list(checkpoint.state.items())),
    ]  # fmt: skip


def test_every_field_of_every_checkpoint_is_as_it_was(saver):
    for (thread, namespace, version), history in make.expected().items():
        config = RunnableConfig(thread, checkpoint_ns=namespace)
        found = saver.list(config) if version is None else saver.tag(config, version).checkpoints
        assert list(map(fields, reversed(found))) == list(map(fields, history)), (thread, namespace, version)
    assert set(saver.threads(released=True)) == {thread for thread, _, _ in make.expected()}
    assert list(saver.namespaces("plain")) == ["", "sub/Graph"]
    assert list(saver.versions_by_thread_id("released")) == [1, 2]
    at = RunnableConfig("replaced", checkpoint_id=make.checkpoint(2, {}).id)
    assert saver.get_writes(at) == make.WRITES
    assert saver.tags_of(at) == ("two",)
    assert [waiting.id for waiting in saver.interrupts()] == ["i1"]


def test_verify_finds_it_well(saver):
    report = saver.verify()
    assert report.ok
    assert {thread.thread_id for thread in report.threads} == {thread for thread, _, _ in make.expected()}
    assert sum(file.checkpoints for thread in report.threads for file in thread.files) == 49


def test_it_can_be_written_to(saver):
    config = RunnableConfig("plain")
    before = fields(saver.get(config))
    saver.put(config, make.checkpoint(99, {"items": [*saver.get(config).state["items"], "more"]}))
    saver.prune("plain", keep_last=20)
    history = saver.list(config)
    assert fields(history[1]) == before
    assert history[0].state["items"][-1] == "more"
    assert saver.verify().ok
