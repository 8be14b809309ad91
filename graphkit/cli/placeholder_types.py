"""Stand-ins for types that only the application knows, so that what is stored can be looked at without it.

Stored data name a type and give its fields; nothing of that name is imported. What a reader then misses tells which
class would do: it is made up, and the command begins again. Only for commands that look.
"""

from __future__ import annotations

import enum
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, final

from graphkit.cli.resolve import STAND_INS
from graphkit.errors import CheckpointSerializationError

P = ParamSpec("P")
T = TypeVar("T")

_PYDANTIC: Final = 5
"""How many parts a stored pydantic model has; the others have two."""


def looks_without_types(command: Callable[P, T]) -> Callable[P, T]:
    """Let a command that only looks see values of types that are not registered, by their fields."""

    @wraps(command)
    def looking(*args: P.args, **kwargs: P.kwargs) -> T:
        known = _Known()
        while True:
            token = STAND_INS.set(known.types())
            try:
                return command(*args, **kwargs)
            except CheckpointSerializationError as error:
                if not known.learn(error):
                    raise
            finally:
                STAND_INS.reset(token)

    return looking


@final
class _Known:
    """What is known of types by now: of each its kind and the names of its fields or members."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._names: dict[str, dict[str, None]] = {}

    def learn(self, error: CheckpointSerializationError) -> bool:
        """Take in what a reader missed; False if it tells nothing new."""
        raw = error.raw
        if not isinstance(raw, tuple) or raw[:1] != (error.type_name,):
            return False
        name, found = error.type_name, raw[1]
        fields = list(found) if isinstance(found, Mapping) else [str(found)]
        kind, names = self._kinds.get(name), self._names.setdefault(name, {})
        if kind is None:
            self._kinds[name] = _kind_of(raw)
        elif names.keys() >= set(fields):
            if kind != "dataclass":
                return False
            self._kinds[name] = "namedtuple"  # which is stored alike
        names.update(dict.fromkeys(fields))
        return self._can_be_made(name)

    def _can_be_made(self, name: str) -> bool:
        try:
            _made(name, self._kinds[name], list(self._names[name]))
        except Exception:  # noqa: BLE001 - stored names may be any text, and each kind of class refuses others in its own way
            return False
        return True

    def types(self) -> tuple[type, ...]:
        """The stand-ins."""
        return tuple(_made(name, kind, list(self._names[name])) for name, kind in self._kinds.items())


def _kind_of(raw: tuple[Any, ...]) -> str:
    if isinstance(raw[1], Mapping):
        return "pydantic" if len(raw) == _PYDANTIC else "dataclass"
    return "flag" if isinstance(raw[1], int) else "enum"


def _made(name: str, kind: str, names: list[str]) -> type:
    made = _MAKERS[kind](names)
    module, _, made.__qualname__ = name.rpartition(".")
    made.__module__ = module or "builtins"
    return made


def _model(names: list[str]) -> type:
    import warnings

    from pydantic import create_model

    with warnings.catch_warnings(action="ignore"):  # of names that pydantic would rather have for itself
        fields: dict[str, Any] = dict.fromkeys(names, (Any, None))
        return create_model("StandIn", **fields)  # type: ignore[no-any-return]


_MAKERS: Final[Mapping[str, Callable[[list[str]], type]]] = {
    "dataclass": lambda names: make_dataclass("StandIn", [(one, Any, field(default=None)) for one in names]),
    "namedtuple": lambda names: namedtuple("StandIn", names, defaults=[None] * len(names)),  # noqa: PYI024 - found out
    "enum": lambda names: enum.Enum("StandIn", {one: one for one in names}),  # type: ignore[dict-item, return-value]
    "flag": lambda _: enum.Flag("StandIn", {"NONE": 0}, boundary=enum.KEEP),  # type: ignore[dict-item, return-value]
    "pydantic": _model,
}
