"""GraphConfig and CheckpointConfig: the options of a graph as JSON.

    options = GraphConfig.from_json(text).compile_options()
    app = graph.compile(**options)

A configuration names its store (see `graphkit.registry`) and its observer (see
`graphkit.observers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from graphkit._options import parse_json
from graphkit._plan.events import Observer, observers_of
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.agents.settings import Settings
from graphkit.errors import CheckpointerConfigurationError
from graphkit.registry import get_checkpoint_store


class _Config(Settings):
    """Base of both classes: reads and writes JSON, merges."""

    error_class = CheckpointerConfigurationError

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a configuration.

        A field that the text lacks has its default, and counts as not set in a `merge`.

        Raises:
            CheckpointerConfigurationError: the text is not a JSON object, or a field is unknown or
                wrong.
        """
        try:
            fields = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointerConfigurationError(f"not JSON: {error}") from error
        return cls.from_dict(fields)

    def to_json(self) -> str:
        """Return the fields that were set as JSON; `from_json` reads an equal configuration."""
        return self.model_dump_json(exclude_unset=True)

    def merge(self, other: Self) -> Self:
        """Merge another configuration into this one.

        Each field that the other one sets wins, also if its value is zero, False or None.
        """
        fields = dict(self.set_fields())
        for name, new in other.set_fields():
            # Nested configurations are merged as well: one that sets `checkpoint.interval` alone leaves
            # the store of the other as it is.
            fields[name] = getattr(self, name).merge(new) if isinstance(new, _Config) else new
        return type(self)(**fields)


class CheckpointConfig(_Config):
    """Where and how often a graph saves its state. Off unless it has an interval."""

    store: str | None = "memory"
    """The name of the store."""
    interval: int = Field(default=0, ge=0)
    """Save after every n-th node; 0: no checkpoints."""
    preserve: bool = False
    """Keep the checkpoints of a run that succeeded."""
    path: str | None = Field(default=None, repr=False)
    """The location of the store, if it has one: the directory of "disk". No `repr` shows it, or the options,
    because of the passwords in connection strings."""
    options: Mapping[str, Any] = Field(default_factory=dict, repr=False)
    """Further arguments of the constructor of the store."""

    def open(self) -> BaseCheckpointSaver | None:
        """Return the store; None if checkpoints are off.

        Raises:
            CheckpointerConfigurationError: there is no such store, the options do not fit it, or
                the configuration has an interval and no store.
        """
        if self.interval == 0:
            return None
        if not self.store:
            raise CheckpointerConfigurationError(f"interval={self.interval} needs a store; name one, such as 'memory'")
        options = {} if self.path is None else {"path": self.path}
        for name in {"name", *options} & self.options.keys():
            raise CheckpointerConfigurationError(f"{name!r} cannot be one of the options: set store and path instead")
        return get_checkpoint_store(self.store, **options, **self.options)


class GraphConfig(_Config):
    """The options of a graph."""

    name: str = ""
    """The name of the graph, for humans."""
    observer: str | None = "logging"
    """The name of the observer that receives the events of a run."""
    max_iterations: int = Field(default=1000, ge=1)
    """How many nodes one run may execute."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Where and how often the state is saved."""

    def __init__(self, name: str | None = None, **fields: Any) -> None:
        """Make a configuration. All fields but the name are keywords.

        Raises:
            CheckpointerConfigurationError: a field is unknown or wrong.
        """
        if name is not None:
            fields["name"] = name
        super().__init__(**fields)

    def compile_options(
        self, *, store: BaseCheckpointSaver | Any | None = None, observer: Observer | None = None
    ) -> dict[str, Any]:
        """Return the keywords of `StateGraph.compile` for this configuration.

        Looks up the names now, not when a graph runs.

        Args:
            store: a saver, or a CheckpointStore, in place of the store that the configuration names.
            observer: in place of the observer that the configuration names.

        Raises:
            CheckpointerConfigurationError: a name is unknown, or the configuration has an interval
                and no store.
        """
        # A CheckpointStore is a view of a saver; the graph needs the saver itself.
        saver = getattr(store, "saver", store)
        if saver is None or self.checkpoint.interval == 0:
            saver = self.checkpoint.open()
        return {
            "checkpoint_saver": saver,
            "checkpoint_interval": self.checkpoint.interval,
            "preserve": self.checkpoint.preserve,
            "observers": observers_of(observer or self.observer),
            "max_iterations": self.max_iterations,
            "graph_id": self.name or None,
        }
