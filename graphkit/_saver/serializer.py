"""StateSerializer: turns states into bytes. Ports the class of langgraph4j."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any


class StateSerializer(abc.ABC):
    """Turns a state into bytes and back, in place of graphkit's own codec."""

    @abc.abstractmethod
    def dumps(self, data: Mapping[str, Any]) -> bytes:
        """Return the state as bytes.

        Equal states should give equal bytes. Otherwise every checkpoint takes the full size of its
        state.
        """

    @abc.abstractmethod
    def loads(self, data: bytes) -> Mapping[str, Any]:
        """Return the state that `dumps` turned into these bytes."""
