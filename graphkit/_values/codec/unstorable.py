"""Explains why a value cannot be stored, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgpack import ExtType

from graphkit._values.codec.type_registry import ApplicationType, flavour_of, is_of_main, type_name

_HOW_TO_GIVE: Final = (
    "give it to the saver, FileSystemSaver(types=[{name}]) or saver.register_types({name}), or name it in the state's "
    "schema"
)
_HOW_TO_REGISTER: Final = f"its type is not registered: {_HOW_TO_GIVE}"
_ADVICE: Final = {
    bytearray: "it is mutable; store bytes(x)",
    memoryview: "it is a view; store bytes(x)",
    ExtType: "it belongs to the storage format; leave it out of the state",
}


class UnstorableError(Exception):
    """A value cannot be stored. Internal to this package.

    Attributes:
        type_name: the type of the value.
        reason: why, and what to do.
        steps: the path to the value, innermost step first; the writer adds a step per container.
    """

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.type_name = type_name(type(value))
        self.reason = reason
        self.steps: list[str] = []


def explain_refusal(cls: type) -> str:
    """Return why the writer refuses instances of a class, and what to store instead."""
    if cls in _ADVICE:
        return _ADVICE[cls]
    if flavour_of(cls) is not None:
        return _HOW_TO_REGISTER.format(name=cls.__name__)
    for base in (dict, list, set, frozenset, tuple, str, bytes, int, float):
        if issubclass(cls, base):
            return f"a subclass of {base.__name__} would lose its type; store {base.__name__}(x)"
    if cls.__name__ in {"generator", "deque", "range", "map", "filter", "zip", "dict_keys", "dict_values"}:
        return "it cannot be stored; store list(x)"
    return "it cannot be stored; leave it out of the state, or store the data from which to make it again"


def explain_unknown(name: str) -> str:
    """Return why a stored type cannot be read, and what to do: no class of that name is registered."""
    if not is_of_main(name):
        return _HOW_TO_REGISTER.format(name="...")
    class_name = name.partition(".")[2]
    return (
        f"a script stored it (python FILE), so its module is not known: import that file as a module, take its class "
        f"{class_name}, and {_HOW_TO_GIVE.format(name=class_name)}"
    )


def explain_ambiguous(found: Iterable[ApplicationType]) -> str:
    """Return why a stored type cannot be read, and what to do: several registered classes may be meant."""
    names = " and ".join(sorted(entry.name for entry in found))
    return f"{names} have this name; give the saver only the one that is meant, or rename the other one"
