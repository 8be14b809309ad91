"""The application types of a codec: which classes qualify, and what the codec knows of each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from typing import Final, Literal, TypeAlias, final

Flavour: TypeAlias = Literal["enum", "namedtuple", "dataclass", "pydantic"]


@final
class TypeEntry:
    """A registered type.

    Attributes:
        name: the name in stored data.
        cls: the class.
        flavour: what kind of class it is.
        fields: the names of its fields.
        optional: the fields of a dataclass with `init=False`, which an object may lack.
        slots: attributes of a dataclass in `__slots__` that are not fields.
    """

    __slots__ = ("cls", "fields", "flavour", "name", "optional", "slots")

    def __init__(self, name: str, cls: type, flavour: Flavour) -> None:
        self.name = name
        self.cls = cls
        self.flavour = flavour
        self.fields: tuple[str, ...] = ()
        self.optional: frozenset[str] = frozenset()
        self.slots: tuple[str, ...] = ()
        if flavour == "namedtuple":
            self.fields = cls._fields  # type: ignore[attr-defined]
        elif flavour == "pydantic":
            self.fields = tuple(cls.model_fields)  # type: ignore[attr-defined]
        elif flavour == "dataclass":
            import dataclasses

            fields = dataclasses.fields(cls)
            self.fields = tuple(field.name for field in fields)
            self.optional = frozenset(field.name for field in fields if not field.init)
            self.slots = tuple(_find_extra_slots(cls, self.fields))


_BUILTINS: Final = (list, dict, set, frozenset, str, bytes, bytearray, int, float, complex, BaseException, type)
"""Classes whose subclasses cannot be restored field by field."""


def flavour_of(cls: object) -> Flavour | None:
    """Return the kind of an application type; None if it cannot be restored field by field."""
    if not isinstance(cls, type):
        return None
    if issubclass(cls, Enum):
        return "enum"
    if issubclass(cls, tuple):
        return "namedtuple" if isinstance(getattr(cls, "_fields", None), tuple) else None
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(cls, pydantic.BaseModel):
        return "pydantic"
    if hasattr(cls, "__dataclass_fields__") and not issubclass(cls, _BUILTINS):
        return "dataclass"
    return None


def find_annotated_types(cls: type) -> set[type]:
    """Return the classes in the annotations of a class, also in type arguments at any depth."""
    import typing

    try:
        hints = list(typing.get_type_hints(cls).values())
    except Exception:  # noqa: BLE001 - an annotation may be any expression; the user registers what this misses
        annotations = getattr(cls, "__annotations__", {})
        hints = [hint for hint in annotations.values() if not isinstance(hint, str)]
    classes: set[type] = set()
    while hints:
        hint = hints.pop()
        if isinstance(hint, type):
            classes.add(hint)
        hints.extend(typing.get_args(hint))
        origin = typing.get_origin(hint)
        if isinstance(origin, type):
            classes.add(origin)
    return classes


def _find_extra_slots(cls: type, fields: tuple[str, ...]) -> Iterable[str]:
    """Yield the attributes in `__slots__` that are not fields, by the names that getattr takes."""
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        if isinstance(slots, str):
            slots = (slots,)
        for slot in slots:
            name = slot
            if slot.startswith("__") and not slot.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{slot}"  # a private name, as Python mangles it
            if name not in fields and name not in {"__dict__", "__weakref__"}:
                yield name


def type_name(cls: type) -> str:
    """Return the default name of a type: `module.qualname`, without the module for builtins."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def current_type_name(name: str) -> str:
    """Return the name that a stored type name has today.

    graphkit 0.1 stored its own classes under the private module that defined them, such as
    `graphkit._output.CheckpointInfo`. Their name is the public one now.
    """
    package, _, rest = name.partition("._")
    _, dot, qualname = rest.partition(".")
    return f"graphkit.{qualname}" if package == "graphkit" and dot else name


def describe_type(cls: object) -> str:
    """Return how an error names what should be a class."""
    return type_name(cls) if isinstance(cls, type) else repr(cls)
