"""A table that applies the ops of small records only when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from savers._delta.table import Table, Waiting
from savers._delta.values import Value

_MAX_RECORDS: Final = 64
"""How many records wait at most."""
_MAX_LENGTH: Final = 1 << 12
"""The data of records that wait, at most."""


class DeferredTable(Table):
    """The packed state of the last checkpoint of a log, for a writer that seldom reads it.

    Most records set the same few keys anew. Applying each of them takes 6 us; noting it takes 0.3, and
    of several values that were set one after the other, only the last is ever made.
    """

    __slots__ = ("_records", "_values")

    def __init__(self, table: Table) -> None:
        """Take over the content of a table, which is not used any more."""
        self._records: list[tuple[Sequence[Any], bytes, int]] = []
        super().__init__(opaque=table.opaque)
        self.values = table.values
        self.names = table.names

    @property
    def values(self) -> dict[str, Value]:
        """The values by key."""
        if self._records:
            self._apply_records()
        return self._values

    @values.setter
    def values(self, values: dict[str, Value]) -> None:
        self._values = values

    def defer(self, ops: Sequence[Any], data: bytes, start: int) -> None:
        """Apply the ops of a record, now or when the values are read.

        Args:
            ops: ops that neither add nor remove keys.
            data: the bytes that they add.
            start: the position of the data's first byte.
        """
        if len(data) > _MAX_LENGTH:
            self.apply(ops, data, start)
            return
        self._records.append((ops, data, start))
        if len(self._records) >= _MAX_RECORDS:
            self._apply_records()

    def _apply_records(self) -> None:
        records = self._records
        self._records = []
        waiting: dict[str, Waiting] = {}
        for ops, data, start in records:
            self.apply_later(ops, data, start, waiting)
        self.set_waiting(waiting)
