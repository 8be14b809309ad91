"""LangGraph's own conformance suite, on each of our stores: every capability, every test; and what it does not see."""

import asyncio
from unittest import mock

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from savers.langgraph import FileSystemCheckpointSaver
from tests.integrations.langgraph_stores import OTHERS, parametrize
from tests.support.langgraph_checkpoints import put, thread, values_of

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
    "options", [{"fsync": "always"}, {"cipher": {"key": bytes(range(32))}}], ids=["always", "sealed"]
)
def test_every_capability_is_detected_and_every_test_passes(tmp_path, options):
    fresh = iter(range(100))
    check("FileSystemCheckpointSaver", lambda: FileSystemCheckpointSaver(tmp_path / str(next(fresh)), **options))


@parametrize("file", *OTHERS)
def test_the_same_on_other_savers(opener):
    check(opener.kind, opener.new)


# The faults that the suite does not see in a checkpointer


def test_versions_of_two_branches_differ(saver):
    first = saver.get_next_version(None, None)
    one, other = saver.get_next_version(first, None), saver.get_next_version(first, None)
    assert first < one != other > first
    assert max(one, other) < saver.get_next_version(min(one, other), None)
    assert saver.get_next_version(41, None) > "00000000000000000000000000000041"


def test_what_a_checkpoint_has_beside_its_channels_stays(saver):
    given = empty_checkpoint() | {"updated_channels": ["a"], "versions_seen": {"n": {"a": "1"}}, "newer": "field"}
    config = saver.put(thread(), dict(given), {}, {})
    assert saver.get_tuple(config).checkpoint == given


def test_only_what_changed_is_serialized_and_stored(saver):
    big = ["x" * 1000] * 100
    config = put(saver, big=big, n=0)
    before = saver.store.size("t")

    with mock.patch.object(saver.serde, "dumps_typed", wraps=saver.serde.dumps_typed) as dumps:
        for n in range(1, 11):
            checkpoint = saver.get_tuple(config).checkpoint | {"id": empty_checkpoint()["id"]}
            new = {"n": saver.get_next_version(checkpoint["channel_versions"]["n"], None)}
            checkpoint["channel_versions"] |= new
            checkpoint["channel_values"]["n"] = n
            config = saver.put(config, checkpoint, {"source": "loop", "step": n}, new)

    dumps.assert_any_call(10)

    assert mock.call(big) not in dumps.mock_calls
    assert saver.store.size("t") - before < 10_000
    assert values_of(saver.get_tuple(config)) == {"big": big, "n": 10}
