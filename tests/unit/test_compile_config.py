"""CompileConfig: checked when it is made, and its builder."""

import pytest

from graphkit import CompileConfig
from savers import MemorySaver


def test_defaults():
    config = CompileConfig()
    assert (config.checkpoint_saver, config.interrupt_before, config.interrupt_after) == (None, (), ())
    assert (config.interrupt_before_edge, config.release_thread, config.checkpoint_interval) == (False, False, 1)
    assert (config.max_iterations, config.graph_id, config.saver) == (1000, None, None)


def test_stops_are_kept_once_and_in_order():
    config = CompileConfig(interrupt_before="abc", interrupt_after=["b", "a", "b"])
    assert (config.interrupt_before, config.interrupt_after) == (("abc",), ("b", "a"))


@pytest.mark.parametrize("wrong", [{"max_iterations": 0}, {"max_iterations": -1}, {"checkpoint_interval": -1}])
def test_numbers_that_are_refused(wrong):
    with pytest.raises(ValueError):
        CompileConfig(**wrong)


def test_no_saver_is_used_when_checkpoints_are_off():
    saver = MemorySaver()
    assert CompileConfig(checkpoint_saver=saver).saver is saver
    assert CompileConfig(checkpoint_saver=saver, checkpoint_interval=0).saver is None
