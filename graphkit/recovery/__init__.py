"""Going on after a failure, even where the end of a history is damaged; hive's recovery, ported.

    state = recover(app, "thread-1")

A graph's own checkpoints need nothing else: the next node is stored with each, so what had finished is not run again.
`CheckpointManager` is for loops that are no graph: it saves, restores, lists, compares and prunes on any saver.
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
