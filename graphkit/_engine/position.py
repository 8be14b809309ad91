"""Position: where a run stands between two steps."""

from __future__ import annotations

import dataclasses
from typing import final

from graphkit._records.config import START
from graphkit._values.frozen import FrozenDict, FrozenList
from graphkit._values.state import Changes


@final
@dataclasses.dataclass(slots=True)
class Position:
    """Where a run stands between two steps.

    The attributes of the run itself may be ahead of it, within a step. `mark_position` changes the
    position in place: a new NamedTuple at each step would cost 2,900 instructions (4 % of a step), a
    new dataclass 1,900.
    """

    node_id: str = START
    next_node_id: str | None = None
    data: FrozenDict = dataclasses.field(default_factory=FrozenDict)
    changes: Changes | None = None
    step: int = 0
    subgraph_entries: FrozenList | None = None
    """Of a nested graph: its updates for the outer graph."""
