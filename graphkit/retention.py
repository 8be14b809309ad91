"""Retention policies: which checkpoints of a store stay, and how large it may grow.

    policy = RetentionPolicy(keep_last=20, max_age="30d", keep_tags=["golden"])
    policy.apply(saver)

`graphkit prune --policy` and workers apply a policy from a file. docs/operations.md explains them.
"""

from graphkit._public_names import set_public_module
from graphkit._saver.reports import OverLimit, RetentionReport
from graphkit._saver.retention_policy import RetentionPolicy

__all__ = ["OverLimit", "RetentionPolicy", "RetentionReport"]

set_public_module(globals(), __name__)
