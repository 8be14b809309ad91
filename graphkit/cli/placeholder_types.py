"""Placeholder types: display stored values whose types only the application knows.

Stored data has the name of a type and its fields; graphkit imports nothing of that name. If a
reader fails because a type is not registered, its error has the decoded data. From these this
module makes a class with the same name and fields, registers it, and runs the command again.
"""

from __future__ import annotations

import enum
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, final

from graphkit.cli.stores import PLACEHOLDER_TYPES
from graphkit.errors import CheckpointSerializationError

P = ParamSpec("P")
T = TypeVar("T")

_PYDANTIC_PARTS: Final = 5
"""How many parts a stored pydantic model has; the other kinds have two."""


def with_placeholder_types(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap a command that only reads: it displays values of unregistered types by their fields."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        placeholders = _Placeholders()
        while True:
            token = PLACEHOLDER_TYPES.set(placeholders.types())
            try:
                return command(*args, **kwargs)
            except CheckpointSerializationError as error:
                if not placeholders.learn(error):
                    raise
            finally:
                PLACEHOLDER_TYPES.reset(token)

    return wrapper


@final
class _Placeholders:
    """The types found so far: for each its kind, and the names of its fields or members."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._names: dict[str, dict[str, None]] = {}

    def learn(self, error: CheckpointSerializationError) -> bool:
        """Add the type that a reader did not know; return False if that cannot help."""
        # The decoded data of a value begin with the name of its type and its content: the fields of a record by
        # name, or the value of an enum. Anything else is an error of another kind.
        raw = error.raw
        type_name = error.type_name
        if not isinstance(raw, tuple) or raw[:1] != (type_name,):
            return False
        content = raw[1]
        fields = [str(content)]
        if isinstance(content, Mapping):
            fields = list(content)

        # One value shows only its own fields: another value of the type may have more of them, or be another member
        # of the enum. Then the reader fails again, and the placeholder grows. If it has all the fields and does not
        # fit nevertheless, its kind is wrong: a NamedTuple is stored like a dataclass. Each round adds a field or
        # changes the kind, so that the rounds end.
        kind = self._kinds.get(type_name)
        names = self._names.setdefault(type_name, {})
        if kind is None:
            self._kinds[type_name] = _kind_of(raw)
        elif names.keys() >= set(fields):
            if kind != "dataclass":
                return False
            self._kinds[type_name] = "namedtuple"
        names.update(dict.fromkeys(fields))
        try:
            self._make(type_name)
        except Exception:  # noqa: BLE001 - stored names may be any text, and each kind of class refuses other names
            return False
        return True

    def types(self) -> tuple[type, ...]:
        """Return the placeholder types."""
        return tuple(self._make(type_name) for type_name in self._kinds)

    def _make(self, type_name: str) -> type:
        factory = _FACTORIES[self._kinds[type_name]]
        placeholder: type = factory(list(self._names[type_name]))
        module, _, placeholder.__qualname__ = type_name.rpartition(".")
        placeholder.__module__ = module or "builtins"
        return placeholder


def _kind_of(raw: tuple[Any, ...]) -> str:
    content = raw[1]
    if isinstance(content, Mapping):
        return "pydantic" if len(raw) == _PYDANTIC_PARTS else "dataclass"
    return "flag" if isinstance(content, int) else "enum"


def _make_model(names: list[str]) -> type:
    import warnings

    from pydantic import create_model

    with warnings.catch_warnings(action="ignore"):  # about names that pydantic reserves
        fields: dict[str, Any] = dict.fromkeys(names, (Any, None))
        return create_model("Placeholder", **fields)  # type: ignore[no-any-return]


_FACTORIES: Final[Mapping[str, Callable[[list[str]], Any]]] = {
    "dataclass": lambda names: make_dataclass("Placeholder", [(name, Any, field(default=None)) for name in names]),
    "namedtuple": lambda names: namedtuple("Placeholder", names, defaults=[None] * len(names)),  # noqa: PYI024 - data
    "enum": lambda names: enum.Enum("Placeholder", {name: name for name in names}),
    "flag": lambda _: enum.Flag("Placeholder", {"NONE": 0}, boundary=enum.KEEP),
    "pydantic": _make_model,
}
