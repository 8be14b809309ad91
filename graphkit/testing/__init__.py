"""For people who write savers and test graphs: the saver contract, its state machine, and fakes.

`graphkit.testing.stateful` needs Hypothesis, so it must be imported explicitly.
"""

from graphkit._public_names import set_public_module
from graphkit.testing._check import same as same
from graphkit.testing._contract import SaverContract as SaverContract
from graphkit.testing._values import made as made
from graphkit.testing.fakes import Call as Call, ManualClock as ManualClock, ScriptedSaver as ScriptedSaver

__all__ = ["Call", "ManualClock", "SaverContract", "ScriptedSaver", "made", "same"]

set_public_module(globals(), __name__)
