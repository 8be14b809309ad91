"""References: `module:name` for an object of an application, and the object for a reference."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any, Final

from graphkit._wording import describe_error

_FORM: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
PATTERN: Final = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""The form of a reference, for JSON schemas."""


def check_reference(text: str) -> str:
    """Return a text if it has the form `module:name`.

    Raises:
        ValueError: it has another form.
    """
    if not _FORM.fullmatch(text):
        raise ValueError(f"must be module:name, such as shop.tools:find_order, not {text!r}")
    return text


def resolve_reference(text: str) -> Any:
    """Import a module and return one of its objects.

    The text must come from the user's own configuration file, never from stored data: importing a
    module runs its code.

    Raises:
        ValueError: the text has another form, there is no such module or name, or the module
            cannot be imported. The cause is chained.
    """
    module_name, _, path = check_reference(text).partition(":")
    found = _import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"the module {module_name!r} has no {path!r}")
        found = getattr(found, name)
    return found


def _import_module(module_name: str) -> Any:
    """Import a module.

    Raises:
        ValueError: there is none, or its code failed.
    """
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        is_the_module = missing and f"{module_name}.".startswith(f"{missing}.")
        if is_the_module:
            raise ValueError(
                f"there is no module {module_name!r}; modules are searched in PYTHONPATH, "
                "which the commands extend by the current directory"
            ) from error
        raise ValueError(f"{module_name} needs the module {error.name}, which is not installed") from error
    except Exception as error:  # the code of the application may raise anything
        raise ValueError(f"importing {module_name!r} failed: {describe_error(error)}") from error


def describe_reference(thing: Any) -> str:
    """Return the reference to a class or a function of an application.

    Raises:
        ValueError: no reference leads to it, because it is local, a lambda, or from `__main__`.
    """
    module_name = getattr(thing, "__module__", None)
    path = getattr(thing, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(path, str):
        raise ValueError(f"{thing!r} has no name that a file can hold: name a class or a function")  # noqa: TRY004 - one kind for all
    if module_name == "__main__":
        raise ValueError(f"{path} is defined in the main program: move it to a module, so that others can import it")
    if find_loaded(module_name, path) is not thing:
        raise ValueError(f"{path} is not a top-level name of {module_name}, so no file can name it")
    return f"{module_name}:{path}"


def find_loaded(module_name: str, path: str) -> Any:
    """Return an object of a module that is loaded; None if there is none."""
    found: Any = sys.modules.get(module_name)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
