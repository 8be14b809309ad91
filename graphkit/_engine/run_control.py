"""RunControl: what other threads may ask of a run."""

from __future__ import annotations

from typing import final


@final
class RunControl:
    """What other threads may ask of a run; shared with its nested runs."""

    __slots__ = ("pause_requested",)

    def __init__(self) -> None:
        self.pause_requested = False
        """Stop at the next node boundary. Only ever set to True, from any thread or signal
        handler."""
