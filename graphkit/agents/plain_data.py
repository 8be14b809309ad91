"""Plain data: the values of a configuration as JSON and YAML can hold them, with `module:name` for objects."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import SecretStr

from graphkit._plan.retry import RetryPolicy
from graphkit._wording import describe_error
from graphkit.agents.tools import Tool, tool
from graphkit.errors import AgentConfigurationError

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


_PLAIN: Final = (str, int, float, bool, type(None))
_ANY_ERROR: Final = RetryPolicy().retry_on
_IN_FILES: Final = frozenset({"name", "description", "requires_approval", "on_error", "timeout", "retry"})
"""The fields of a tool that a file can set."""

Path = tuple[str | int, ...]
"""Where in a configuration something is: keys of mappings and indexes of lists."""


def format_path(path: Iterable[str | int]) -> str:
    """Return a path as text: `steps[0].function`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif text:
            text += f".{part}"
        else:
            text = part
    return text


def dump_value(value: Any, path: Path) -> Any:
    """Return a value of a configuration as plain data: names for objects, texts for secrets.

    Raises:
        AgentConfigurationError: it has no plain form. The message names its key.
    """
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, RetryPolicy):
        return _dump_retry(value, path)
    if isinstance(value, Tool):
        return _dump_tool(value, path)
    if isinstance(value, Mapping):
        return {name: dump_value(item, (*path, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [dump_value(item, (*path, index)) for index, item in enumerate(value)]
    dump = getattr(value, "dump", None)
    return name_object(value, path) if dump is None else dump(path)


def _dump_retry(retry: RetryPolicy, path: Path) -> dict[str, Any]:
    if retry.retry_on != _ANY_ERROR:
        raise _no_plain_form(
            (*path, "retry_on"),
            "a file cannot choose errors; leave retry_on out, or give the policy to the tool in its module, "
            "as in @tool(retry=...)",
        )
    options = {field.name: getattr(retry, field.name) for field in dataclasses.fields(retry)}
    del options["retry_on"]
    return options


def _dump_tool(given: Tool, path: Path) -> Any:
    reference, loaded = _find_loadable(given, path)
    if loaded is given:  # made by the decorator
        return reference
    changed = [field.name for field in dataclasses.fields(given) if _differs(given, loaded, field.name)]
    if not _IN_FILES.issuperset(changed):
        raise _no_plain_form(
            (*path, "parameters"),
            "a file cannot hold parameters that differ from those of the function; make the Tool in its module, "
            "and name that",
        )
    plain: dict[str, Any] = {"function": reference, "name": given.name}
    for name in changed:
        value = getattr(given, name)
        if value is not None:
            plain[name] = dump_value(value, (*path, name))
    return plain


def _differs(given: Tool, loaded: Tool, name: str) -> bool:
    """Return whether a field of a tool has another value than in the tool that loading makes."""
    if name == "function":
        return False
    if name == "signature":  # made from the function; without one, the arguments are not checked
        return (given.signature is None) != (loaded.signature is None)
    return bool(getattr(given, name) != getattr(loaded, name))


def _find_loadable(given: Tool, path: Path) -> tuple[str, Tool]:
    """Return the reference that a file has for a tool, and the tool that loading makes of it."""
    reference = _find_reference(given)
    if reference is not None:
        loaded = find_loaded(*reference.split(":"))
        if isinstance(loaded, Tool):
            return reference, loaded
    name = name_object(given.function, path)
    try:
        return name, tool(given.function, name=given.name)
    except TypeError as error:
        raise _no_plain_form((*path, "function"), str(error)) from error


def _find_reference(given: Tool) -> str | None:
    """Return the reference to this tool, or to one with the same function; None if there is neither."""
    module_name = getattr(given.function, "__module__", "")
    if module_name == "__main__":
        return None
    # A decorated function is a Tool in its module. Its qualified name leads to the Tool, not to the function; but a
    # tool made as `stop = tool(cancel)` has a name of its own, which only the module knows.
    module = sys.modules.get(module_name)
    for name, value in getattr(module, "__dict__", {}).items():
        if value is given:
            return f"{module_name}:{name}"
    name = getattr(given.function, "__qualname__", "")
    loaded = find_loaded(module_name, name)
    if not isinstance(loaded, Tool) or loaded.function is not given.function:
        return None
    return f"{module_name}:{name}"


def name_object(thing: Any, path: Path) -> str:
    """Return the reference to an object of a module; a text is one already.

    Raises:
        AgentConfigurationError: no reference leads to it. The message names its key.
    """
    if isinstance(thing, str):
        return thing
    try:
        return describe_reference(thing)
    except ValueError as error:
        raise _no_plain_form(path, str(error)) from error


def _no_plain_form(path: Path, reason: str) -> AgentConfigurationError:
    return AgentConfigurationError(f"has no plain form: {reason}", key=format_path(path))
