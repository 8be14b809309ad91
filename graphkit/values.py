"""Read-only values, and what a step changed, for people who write a saver.

States, metadata and pending writes consist of frozen values: lists and dicts that cannot change,
and that every later state and every checkpoint share. `graphkit._values.frozen` explains the kinds.

This module is provisional until 1.0: its names may change between minor versions.
"""

from graphkit._public_names import set_public_module
from graphkit._values.frozen import PLAIN, PRIVATE, VALUE, FrozenDict, FrozenList, freeze, kind_of, private_copy
from graphkit._values.state import REMOVED, SET, Changes

__all__ = [
    "PLAIN",
    "PRIVATE",
    "REMOVED",
    "SET",
    "VALUE",
    "Changes",
    "FrozenDict",
    "FrozenList",
    "freeze",
    "kind_of",
    "private_copy",
]

set_public_module(globals(), __name__)
