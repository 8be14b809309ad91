"""Why a value cannot be stored, and what to do about it."""

from __future__ import annotations

from typing import Final

from msgpack import ExtType

from graphkit._values.codec.type_registry import flavour_of, type_name

HOW_TO_REGISTER: Final = (
    "its type is not registered: give it to the saver, FileSystemSaver(types=[{name}]) or "
    "saver.register_types({name}), or name it in the state's schema"
)
_ADVICE: Final = {
    bytearray: "it is mutable; store bytes(x)",
    memoryview: "it is a view; store bytes(x)",
    ExtType: "it belongs to the storage format; leave it out of the state",
}


class Refused(Exception):  # noqa: N818 - never leaves this package
    """A value that cannot be stored; the steps that lead to it are gathered on the way out, innermost first."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(reason)
        self.type_name = type_name(type(value))
        self.reason = reason
        self.steps: list[str] = []


def advice(cls: type) -> str:
    """Why instances of a class that nobody can write are refused, and what to store instead."""
    if cls in _ADVICE:
        return _ADVICE[cls]
    if flavour_of(cls) is not None:
        return HOW_TO_REGISTER.format(name=cls.__name__)
    for base in (dict, list, set, frozenset, tuple, str, bytes, int, float):
        if issubclass(cls, base):
            return f"a subclass of {base.__name__} would lose its type; store {base.__name__}(x)"
    if cls.__name__ in {"generator", "deque", "range", "map", "filter", "zip", "dict_keys", "dict_values"}:
        return "it cannot be stored; store list(x)"
    return "it cannot be stored; leave it out of the state, or store what it takes to make it again"
