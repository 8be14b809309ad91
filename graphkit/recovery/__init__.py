"""Recovery after a failure, even if the end of a history is damaged. Ports hive's recovery.

    state = recover(app, "thread-1")

A graph needs nothing else: each checkpoint names the next node, so finished nodes do not run again.
`CheckpointManager` is for loops that are not graphs: it saves, restores, lists, compares and prunes
checkpoints in any saver.
"""

from graphkit._public_names import set_public_module
from graphkit._saver.last_readable import last_good as last_good
from graphkit.recovery.manager import (
    CheckpointManager as CheckpointManager,
    CheckpointPolicy as CheckpointPolicy,
    Comparison as Comparison,
    compare as compare,
)
from graphkit.recovery.recover_run import arecover as arecover, recover as recover

__all__ = ["CheckpointManager", "CheckpointPolicy", "Comparison", "arecover", "compare", "last_good", "recover"]

set_public_module(globals(), __name__)
