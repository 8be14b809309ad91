"""The read-only values of states, metadata and pending writes: lists and dicts that cannot change.

`graphkit.saver_kit` has them, too, with what else a writer of savers uses.
"""

from graphkit.saver_kit import FrozenDict, FrozenList, freeze

__all__ = ["FrozenDict", "FrozenList", "freeze"]
