"""Savers for tests of the engine: memory, files, and an independent one of the contract's four methods."""

import pytest

from graphkit import BaseCheckpointSaver, RunnableConfig, Tag
from savers import FileSystemSaver, MemorySaver
from tests.unit.graphs import CONFIG, outputs


class ListSaver(BaseCheckpointSaver):
    """Four methods on plain lists, newest last; everything else is the contract's own."""

    def __init__(self):
        self.kept = {}

    def _of(self, config):
        config = RunnableConfig.of(config)
        return self.kept.setdefault((config.thread, config.checkpoint_ns), [])

    def list(self, config=None):
        return self._of(config)[::-1]

    def get(self, config=None):
        wanted = RunnableConfig.of(config).checkpoint_id
        return next((one for one in self.list(config) if wanted in {None, one.id}), None)

    def put(self, config, checkpoint):
        config = RunnableConfig.of(config)
        history = self._of(config)
        if config.checkpoint_id is None:
            history.append(checkpoint)
            return config.with_check_point_id(checkpoint.id)
        history[[one.id for one in history].index(config.checkpoint_id)] = checkpoint
        return config

    def release(self, config=None):
        config = RunnableConfig.of(config)
        return Tag(config.thread, tuple(self.kept.pop((config.thread, config.checkpoint_ns), [])[::-1]))


IN_TURN = pytest.mark.cell(1, of=("saver", "go"), in_turn=True)
"""The default run takes one of the six cells of a test that is neither about savers nor about sync and async."""


@pytest.fixture(params=[pytest.param(kind, marks=IN_TURN) for kind in ("memory", "four-methods", "file")])
def saver(request, tmp_path):
    if request.param == "file":
        return FileSystemSaver(tmp_path / "store", fsync="never", lock_timeout=0)
    return MemorySaver() if request.param == "memory" else ListSaver()


@pytest.fixture
def list_saver():
    return ListSaver()


@pytest.fixture(params=[pytest.param(kind, marks=IN_TURN) for kind in ("sync", "async")])
def go(request):
    """Runs a graph, in both ways; gives what it hands out."""

    def run(graph, given, config=CONFIG):
        return outputs(graph, given, config, how=run.kind)

    run.kind = request.param
    return run
