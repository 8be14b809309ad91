"""Tests for savers (the contract and a state machine), and a fake saver for tests of graphs.

`graphkit.testing.stateful` needs Hypothesis and is imported by name only.
"""

from graphkit._public_names import set_public_module
from graphkit.testing._values import made as made, same as same
from graphkit.testing.contract import SaverContract as SaverContract
from graphkit.testing.fakes import Call as Call, ScriptedSaver as ScriptedSaver

__all__ = ["Call", "SaverContract", "ScriptedSaver", "made", "same"]

set_public_module(globals(), __name__)
