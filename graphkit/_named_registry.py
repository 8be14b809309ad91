"""Named: things that a configuration names by a string."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar, final

from graphkit.errors import CheckpointerConfigurationError

T = TypeVar("T")


@final
class NamedRegistry(Generic[T]):
    """Things by name; may be used from any thread. Registering a name again replaces what it meant."""

    def __init__(self, kind: str, more: Callable[[], Mapping[str, T]] = dict) -> None:
        """Start an empty registry.

        Args:
            kind: what the things are, for messages.
            more: where names that were not registered may be found, asked when one is missing or all are listed.
        """
        self._kind = kind
        self._more = more
        self._things: dict[str, T] = {}

    def register(self, name: str, thing: T) -> None:
        """Let a name mean a thing.

        Raises:
            CheckpointerConfigurationError: the name is no text, or empty. Nothing was changed.
        """
        given: object = name
        if not isinstance(given, str) or not given:
            raise CheckpointerConfigurationError(f"the name of a {self._kind} is a non-empty str, not {name!r}")
        self._things[name] = thing

    def get(self, name: str) -> T:
        """What a name means.

        Raises:
            CheckpointerConfigurationError: it means nothing; the message lists the names that do.
        """
        things = self._things if name in self._things else self.known()
        try:
            return things[name]
        except KeyError:
            known = ", ".join(map(repr, sorted(things)))
            raise CheckpointerConfigurationError(f"unknown {self._kind} {name!r}; there are {known}") from None

    def known(self) -> Mapping[str, T]:
        """All that is known now, by name."""
        return {**self._more(), **self._things}
