"""The errors of values that cannot be stored: which value inside the given one is it, and why.

A packer says only that something in the value is wrong. So each part of the value is packed alone, and
the first one that cannot be is searched in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from graphkit.saver_kit import get_module_name

_MAX_DEPTH: Final = 100
"""How deep an error looks for the value that cannot be stored: a list may contain itself."""
ListParts = Callable[[Any], Iterable[tuple[str, Any]]]
"""Returns the parts of what is packed for a value, with the steps that lead to them. Raises a RefusedValueError
if nothing is: the value cannot be stored, whatever its parts are."""


class RefusedValueError(TypeError):
    """A value cannot be stored.

    Attributes:
        path: where in the value that was to be stored it is, such as `[3].when`.
        type_name: its type.
        reason: why, and what to do.
    """

    def __init__(self, type_name: str, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.path = path
        self.type_name = type_name
        self.reason = reason


def find_refused(
    value: Any, reason: str, pack: Callable[[Any], object], list_parts: ListParts, path: str = "", depth: int = 0
) -> RefusedValueError:
    """Return the error for the innermost value that cannot be packed.

    Args:
        value: cannot be packed.
        reason: what the packer said of it.
        pack: the packer; raises a TypeError for what it cannot pack.
        list_parts: returns the parts of a value.
        path: where it is in the value that was to be stored.
        depth: how many values it is in.
    """
    try:
        for step, part in list_parts(value):
            try:
                pack(part)
            except TypeError as error:
                if isinstance(part, _Key):
                    (key,) = part
                    return RefusedValueError(f"key of type {name_class(type(key))}", str(error), path + step)
                if depth == _MAX_DEPTH:
                    break
                return find_refused(part, str(error), pack, list_parts, path + step, depth + 1)
    except RefusedValueError as refused:
        return RefusedValueError(refused.type_name, refused.reason, path)
    except TypeError:
        # From a method of the application. Its text may have the value, so the packer's reason is given.
        pass
    return RefusedValueError(name_class(type(value)), reason, path)


class _Key(dict[Any, None]):
    """A dict with only a key of a dict, which is packed to find out whether the key can be."""


def list_content(content: Any, *, are_fields: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the parts of what is packed for a value, with the steps that lead to them.

    Args:
        content: what is packed.
        are_fields: whether it has the fields of an object, and is not the value itself.
    """
    if isinstance(content, dict) and are_fields:
        for name, part in content.items():
            yield f".{name}", part
    elif isinstance(content, dict):
        for key, value in content.items():
            step = f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r:.60}]"
            yield step, _Key({key: None})
            yield step, value
    elif isinstance(content, (list, tuple)):
        for number, part in enumerate(content):
            yield f"[{number}]", part
    elif are_fields:
        yield "", content


def name_class(cls: type) -> str:
    """Return the module and the qualified name of a class, as errors name it; without the module for builtins."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{get_module_name(cls)}.{cls.__qualname__}"
