"""GraphConfig and CheckpointConfig: a graph's options as data, from JSON; go-agents-orchestration's, ported.

    options = GraphConfig.from_json(text).compile_options()
    app = graph.compile(**options)

Names stand for objects: of a store (`graphkit.registry`) and of an observer (`graphkit.observers`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graphkit._plan.events import Observer
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._wording import simplify_message
from graphkit.errors import CheckpointerConfigurationError
from graphkit.observers import observers_of
from graphkit.registry import get_checkpoint_store

__all__ = ["CheckpointConfig", "GraphConfig"]

_STRICT: Final = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Config(BaseModel):
    """What both have: errors that are graphkit's, JSON, and a merge that knows what was said."""

    model_config = _STRICT

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, one['loc']))}: {simplify_message(one['msg'])}" for one in error.errors()]
            raise CheckpointerConfigurationError("; ".join(problems)) from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read it; what the text does not say has its default, and counts as not said in a `merge`.

        Raises:
            CheckpointerConfigurationError: it is no JSON object, or a field is unknown or wrong.
        """
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointerConfigurationError(f"not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise CheckpointerConfigurationError(f"a configuration is a JSON object, not {type(fields).__name__}")
        return cls(**fields)

    def to_json(self) -> str:
        """What was said, as JSON; `from_json` gives an equal one that merges alike."""
        return self.model_dump_json(exclude_unset=True)

    def merge(self, other: Self) -> Self:
        """This one, with whatever the other one says over it: zero, False and None too, if it says them."""
        said = {name: _merged(getattr(self, name), getattr(other, name)) for name in other.model_fields_set}
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **said})


def _merged(mine: Any, other: Any) -> Any:
    return mine.merge(other) if isinstance(mine, _Config) and isinstance(other, _Config) else other


class CheckpointConfig(_Config):
    """Where and how often a graph saves its state. Off unless an interval is given."""

    store: str | None = "memory"
    """The name of the store."""
    interval: int = Field(default=0, ge=0)
    """Save after every n-th node; 0: no checkpoints."""
    preserve: bool = False
    """Keep the checkpoints of a run that has succeeded."""
    path: str | None = None
    """Where the store is, for stores that are somewhere: the directory of "disk"."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """What else the store's constructor takes."""

    def open(self) -> BaseCheckpointSaver | None:
        """The store that this names; None if checkpoints are off.

        Raises:
            CheckpointerConfigurationError: there is no such store, it cannot be made of these options, or an interval
                is given and no store.
        """
        if self.interval == 0:
            return None
        if not self.store:
            raise CheckpointerConfigurationError(f"interval={self.interval} needs a store; name one, such as 'memory'")
        where = {} if self.path is None else {"path": self.path}
        return get_checkpoint_store(self.store, **where, **self.options)


class GraphConfig(_Config):
    """The options of a graph."""

    name: str = ""
    """A name for the graph, for people."""
    observer: str | None = "logging"
    """The name of who is told what a run does."""
    max_iterations: int = Field(default=1000, ge=1)
    """How many nodes one run may execute."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Where and how often the state is saved."""

    def __init__(self, name: str | None = None, **fields: Any) -> None:
        """Say what differs from the defaults; all but the name by keyword.

        Raises:
            CheckpointerConfigurationError: a field is unknown or wrong.
        """
        super().__init__(**fields, **({} if name is None else {"name": name}))

    def compile_options(
        self, *, store: BaseCheckpointSaver | Any | None = None, observer: Observer | None = None
    ) -> dict[str, Any]:
        """The keywords of `StateGraph.compile` that this asks for. The names are looked up now, not when a graph runs.

        Args:
            store: a saver, or a CheckpointStore, in place of the one that the configuration names.
            observer: in place of the one that the configuration names.

        Raises:
            CheckpointerConfigurationError: a name is unknown, or an interval is given and no store.
        """
        given = getattr(store, "saver", store)
        saver = self.checkpoint.open() if given is None or self.checkpoint.interval == 0 else given
        return {
            "checkpoint_saver": saver,
            "checkpoint_interval": self.checkpoint.interval,
            "preserve": self.checkpoint.preserve,
            "observers": observers_of(observer or self.observer),
            "max_iterations": self.max_iterations,
            "graph_id": self.name,
        }
