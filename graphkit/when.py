"""When to store a checkpoint: presets for `CompileConfig.checkpoint_when`.

    graph.compile(checkpoint_saver=saver, checkpoint_when=any_of(before("charge"), slower_than(30)))

A run calls the predicate after each step, as (node_id, state) or as (node_id, state, step), and
stores a checkpoint if it returns True. START, stops, failures and the end are always stored. A step
without a checkpoint runs again after a crash.
"""

from graphkit._plan.checkpoint_when import Predicate, Step, When, after, any_of, before, changed_more_than, slower_than
from graphkit._public_names import set_public_module

__all__ = [
    "Predicate",
    "Step",
    "When",
    "after",
    "any_of",
    "before",
    "changed_more_than",
    "slower_than",
]

set_public_module(globals(), __name__)
