"""InterruptableAction: an action that decides whether to stop the run. Ports the class of langgraph4j."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from graphkit._records.config import RunnableConfig
from graphkit._records.output import InterruptionMetadata


class InterruptableAction(abc.ABC):
    """An action that decides, each time before it runs, whether the run should stop for a human first."""

    @abc.abstractmethod
    def interrupt(
        self, node_id: str, state: Any, config: RunnableConfig
    ) -> InterruptionMetadata | Mapping[str, Any] | None:
        """Return metadata to stop the run here, or None to continue.

        A resume calls this again, so look for the answer in the state.
        """

    @abc.abstractmethod
    def __call__(self, state: Any, config: RunnableConfig) -> Any:
        """Run the action."""


InterruptibleAction = InterruptableAction
