"""The histories in a database that a listing has read, for the next listing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from savers._sql.row_views import LiveHistory, ScannedRows

_MAX_BYTES: Final = 4 << 20
"""The most bytes of histories that are kept between two listings; their states take about twice as much."""


class KnownRows:
    """The histories that were read, as long as they stay as they are.

    Rows never change. A history grows by rows at higher positions, and a rewrite gives it another
    number. So a history is as it was if its number, the positions of its last row and its last
    keyframe, and its newest id are those that they were. Ids are random, so this also tells the
    history of a database that was restored from a copy.
    """

    def __init__(self) -> None:
        self._views: dict[int, tuple[LiveHistory, ScannedRows]] = {}
        """By the number of the history."""
        self._bytes = 0
        """How many bytes they have."""

    def find(self, live: LiveHistory, *, is_only: bool) -> ScannedRows | None:
        """Return the view of a history that was read; None if it must be read."""
        known, view = self._views.get(live.history, (None, None))
        if view is None or known != live or view.is_only != is_only:
            return None
        return view

    def keep(self, live: LiveHistory, view: ScannedRows) -> None:
        """Keep a history that was read, unless it is long or no id tells whether it was restored."""
        if live.newest_id is None or view.end > _MAX_BYTES:
            return
        before = self._views.pop(live.history, None)
        if before is not None:
            self._bytes -= before[1].end
        if self._bytes + view.end > _MAX_BYTES:
            self._views.clear()
            self._bytes = 0
        self._views[live.history] = live, view
        self._bytes += view.end

    def has(self, view: ScannedRows) -> bool:
        """Return whether a view is kept."""
        known = self._views.get(view.history)
        return known is not None and known[1] is view
