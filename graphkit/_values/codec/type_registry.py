"""The application types that a codec may know: which classes qualify, and what reading and writing need of each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from typing import Literal, TypeAlias, final

Flavour: TypeAlias = Literal["enum", "namedtuple", "dataclass", "pydantic"]


@final
class TypeEntry:
    """A registered type, and what reading and writing need to know of it."""

    __slots__ = ("cls", "fields", "flavour", "name", "optional", "slots")

    def __init__(self, name: str, cls: type, flavour: Flavour) -> None:
        self.name, self.cls, self.flavour = name, cls, flavour
        self.fields: tuple[str, ...] = ()
        self.optional: frozenset[str] = frozenset()
        if flavour == "namedtuple":
            self.fields = cls._fields  # type: ignore[attr-defined]
        elif flavour == "dataclass":
            import dataclasses

            fields = dataclasses.fields(cls)
            self.fields = tuple(field.name for field in fields)
            self.optional = frozenset(field.name for field in fields if not field.init)
        elif flavour == "pydantic":
            self.fields = tuple(cls.model_fields)  # type: ignore[attr-defined]
        self.slots = tuple(_slots_beside(cls, self.fields)) if flavour == "dataclass" else ()


def flavour_of(cls: object) -> Flavour | None:
    """What kind of registrable type a class is; None if it cannot be restored field by field."""
    if not isinstance(cls, type):
        return None
    if issubclass(cls, Enum):
        return "enum"
    if issubclass(cls, tuple):
        return "namedtuple" if isinstance(getattr(cls, "_fields", None), tuple) else None
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(cls, pydantic.BaseModel):
        return "pydantic"
    builtin = (list, dict, set, frozenset, str, bytes, bytearray, int, float, complex, BaseException, type)
    return "dataclass" if hasattr(cls, "__dataclass_fields__") and not issubclass(cls, builtin) else None


def annotated_types(cls: type) -> set[type]:
    """The classes that a class's field annotations name, at any depth of their arguments."""
    import typing

    try:
        todo = list(typing.get_type_hints(cls).values())
    except Exception:  # noqa: BLE001 - an annotation may be any expression; those that fail are registered by hand
        todo = [hint for hint in getattr(cls, "__annotations__", {}).values() if not isinstance(hint, str)]
    found: set[type] = set()
    while todo:
        hint = todo.pop()
        if isinstance(hint, type):
            found.add(hint)
        todo.extend(typing.get_args(hint))
        origin = typing.get_origin(hint)
        if isinstance(origin, type):
            found.add(origin)
    return found


def _slots_beside(cls: type, fields: tuple[str, ...]) -> Iterable[str]:
    """The attributes in slots that are not fields; names as getattr wants them."""
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{base.__name__.lstrip('_')}{slot}" if private else slot
            if name not in fields and name not in {"__dict__", "__weakref__"}:
                yield name


def type_name(cls: type) -> str:
    """The name a type is registered under: `module.qualname`, without the module for builtins."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def shown(cls: object) -> str:
    """How to call in an error what should be a class."""
    return type_name(cls) if isinstance(cls, type) else repr(cls)
