"""LangGraph's own conformance suite, on each of our stores: every capability, every test."""

import asyncio

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability, DetectedCapabilities

from savers.langgraph import FileSystemCheckpointSaver
from tests.integrations.langgraph_stores import OTHERS, parametrize

TESTS = 81
"""Of langgraph-checkpoint-conformance 0.0.2; a newer one has more."""


def check(name, make_saver):
    """Run the whole suite."""

    @checkpointer_test(name=name)
    async def checkpointer():
        yield make_saver()

    report = asyncio.run(validate(checkpointer))

    assert report.passed_all_base()
    assert report.results.keys() == {capability.value for capability in Capability}
    passed = 0
    for capability, result in report.results.items():
        assert result.detected, capability
        assert not result.failures
        passed += result.tests_passed
    assert passed >= TESTS


@pytest.mark.parametrize(
    "options",
    [{"fsync": "always"}, {"fsync": "never"}, {"fsync": "never", "cipher": {"key": bytes(range(32))}}],
    ids=["always", "never", "sealed"],
)
def test_every_capability_is_detected_and_every_test_passes(tmp_path, options):
    fresh = iter(range(100))
    check("FileSystemCheckpointSaver", lambda: FileSystemCheckpointSaver(tmp_path / str(next(fresh)), **options))


@parametrize(*OTHERS)
def test_the_same_on_other_savers(opener):
    check(opener.kind, opener.new)


def test_the_newest_capability_is_there_too(tmp_path):
    saver = FileSystemCheckpointSaver(tmp_path)
    assert DetectedCapabilities.from_instance(saver).detected == set(Capability)
    assert type(saver).aget_delta_channel_history is not BaseCheckpointSaver.aget_delta_channel_history
