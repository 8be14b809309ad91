"""Plain data: the values of a configuration as JSON and YAML can hold them, with names for objects."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import SecretStr

from graphkit._plan.retry import RetryPolicy
from graphkit.agents.references import describe_reference, find_loaded
from graphkit.agents.tools import Tool, tool
from graphkit.errors import AgentConfigurationError

_PLAIN: Final = (str, int, float, bool, type(None))
_ANY_ERROR: Final = RetryPolicy().retry_on

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
    _check_signature(given, loaded, path)
    plain: dict[str, Any] = {"function": reference, "name": given.name}
    if given.description != loaded.description:
        plain["description"] = given.description
    plain["requires_approval"] = given.requires_approval
    plain["on_error"] = given.on_error
    if given.timeout is not None:
        plain["timeout"] = given.timeout
    if given.retry is not None:
        plain["retry"] = _dump_retry(given.retry, (*path, "retry"))
    return plain


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
    module = sys.modules.get(module_name)
    for name, value in getattr(module, "__dict__", {}).items():
        if value is given:
            return f"{module_name}:{name}"
    name = getattr(given.function, "__qualname__", "")
    loaded = find_loaded(module_name, name)
    if not isinstance(loaded, Tool) or loaded.function is not given.function:
        return None
    return f"{module_name}:{name}"


def _check_signature(given: Tool, loaded: Tool, path: Path) -> None:
    """Check that what is loaded from a file has the parameters of a tool.

    Raises:
        AgentConfigurationError: it would have others, or check the arguments in another way.
    """
    is_same_check = (given.signature is None) == (loaded.signature is None)
    is_same_kind = given.is_async == loaded.is_async
    if given.parameters == loaded.parameters and is_same_check and is_same_kind:
        return
    raise _no_plain_form(
        (*path, "parameters"),
        "a file cannot hold parameters that differ from those of the function; make the Tool in its module, "
        "and name that",
    )


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
