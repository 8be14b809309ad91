"""Write docs/api.md, the reference of the public names, from their docstrings: python docs/make_api.py."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("api.md")
MODULES = {
    "graphkit": "Graphs, states, runs and errors",
    "graphkit.operations": "Stored threads, without their graph",
    "graphkit.worker": "Workers",
    "graphkit.schedules": "Schedules",
    "graphkit.retention": "Retention policies",
    "graphkit.recovery": "Going on after damage",
    "graphkit.transfer": "Copies, exports and imports",
    "graphkit.when": "When to store a checkpoint",
    "graphkit.observers": "Observers",
    "savers": "Savers",
    "savers.policies": "Policies of access",
    "savers.langgraph": "Savers for LangGraph",
    "graphkit.agents": "Agents",
    "graphkit.pydantic_ai": "Agents of pydantic-ai",
    "graphkit.abc": "Contracts",
    "graphkit.saver_kit": "For writers of savers (provisional)",
    "savers.log": "For writers of savers with deltas (provisional)",
    "graphkit.registry": "Names for savers and observers",
    "graphkit.values": "Values of states",
    "graphkit.codec": "Values as bytes",
    "graphkit.testing": "Tests for savers",
}
"""The public modules in the order of the page, with their headings."""
_MAX_SHOWN = 200
"""Characters of a constant that the page shows."""
_HEAD = """# API

Every public name, from its docstring. Methods have langgraph4j's spelling, too (`getState` is `get_state`).
An editor shows the whole docstring, with arguments and errors; so does `help(name)`.

This page is written by `python docs/make_api.py`; a test compares it with the code.
"""


def write_page() -> str:
    """Return the page."""
    lines = [_HEAD]
    lines += [f"- [`{module}`](#{_anchor(heading)}): {heading}" for module, heading in MODULES.items()]
    described: set[int] = set()
    for module, heading in MODULES.items():
        lines += ["", f"## {heading}", "", f"Module `{module}`."]
        lines += _describe_module(module, described)
    return "\n".join(lines) + "\n"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _describe_module(name: str, described: set[int]) -> Iterator[str]:
    module = importlib.import_module(name)
    elsewhere: list[str] = []
    for public in module.__all__:
        value = getattr(module, public)
        if id(value) in described:
            elsewhere.append(f"`{public}`")
            continue
        if isinstance(value, type) or callable(value):
            described.add(id(value))
        yield from _describe(public, value)
    if elsewhere:
        yield ""
        yield f"Also here: {', '.join(elsewhere)}."


def _describe(name: str, value: Any) -> Iterator[str]:
    yield ""
    if isinstance(value, type):
        yield f"### {name}"
        yield ""
        yield _first_paragraph(value)
        yield from _describe_constructor(value)
        yield from _describe_members(value)
    elif inspect.ismodule(value):
        yield f"### {name}"
        yield ""
        yield _first_paragraph(value)
    elif inspect.isroutine(value):
        yield f"### {name}{_signature(value)}"
        yield ""
        yield _first_paragraph(value)
    else:
        yield f"### {name}"
        yield ""
        shown = _plain(value)
        yield f"A constant or an alias: `{shown}`." if len(shown) <= _MAX_SHOWN else "A constant."


def _describe_constructor(cls: type) -> Iterator[str]:
    """Yield how to make an object of a class. A dataclass lists its fields; callers make no errors."""
    init = vars(cls).get("__init__")
    is_made_elsewhere = issubclass(cls, BaseException) or getattr(cls, "_is_protocol", False)
    if not inspect.isfunction(init) or dataclasses.is_dataclass(cls) or is_made_elsewhere:
        return
    forms = [f"`{cls.__name__}{_signature(each, is_method=True)}`" for each in typing.get_overloads(init) or [init]]
    yield ""
    yield f"{' or '.join(dict.fromkeys(forms))}."


def _describe_members(cls: type) -> Iterator[str]:
    """Yield a table of what a class itself adds to its bases outside graphkit."""
    rows = [f"| `{name}{signature}` | {text} |" for name, signature, text in _members(cls)]
    if rows:
        yield ""
        yield "| member | |"
        yield "|---|---|"
        yield from rows


def _members(cls: type) -> Iterator[tuple[str, str, str]]:
    if issubclass(cls, enum.Enum):
        for member in cls:
            yield member.name, "", f"`{member.value!r}`"
        return
    for name in getattr(cls, "_fields", ()):
        annotation = cls.__annotations__[name]
        yield name, "", f"field: `{_escape(_type_name(annotation))}`"
    if dataclasses.is_dataclass(cls):
        for field in filter(_is_public, dataclasses.fields(cls)):
            yield field.name, "", f"field: `{_escape(_type_name(field.type))}`"
    for name, member in vars(cls).items():
        is_java = name != name.lower()
        if name.startswith("_") or is_java:
            continue
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(member, property):
            function = member.fget
        text = _first_sentence(function) if inspect.isfunction(function) else ""
        if not text:  # an override, which its contract describes
            continue
        is_property = isinstance(member, property)
        yield name, "" if is_property else _escape(_signature(function, is_method=True)), text


def _is_public(field: dataclasses.Field[Any]) -> bool:
    return not field.name.startswith("_")


def _type_name(annotation: Any) -> str:
    return str(getattr(annotation, "__forward_arg__", annotation))


def _signature(function: Any, *, is_method: bool = False) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(signature.parameters.values())
    if is_method and parameters and parameters[0].name in {"self", "cls"}:
        parameters = parameters[1:]
    shown = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    text = str(signature.replace(parameters=shown, return_annotation=inspect.Signature.empty))
    return re.sub(r"<.*?(?: at 0x\w+)?>(?=[,)])", "...", text)


def _first_paragraph(thing: Any) -> str:
    # Not inspect.getdoc: for what has no docstring it takes that of a builtin, which Python may change.
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    return _escape_html(text.partition("\n\n")[0])


def _first_sentence(thing: Any) -> str:
    paragraph = " ".join(_first_paragraph(thing).split())
    return _escape(re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0])


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _escape_html(text: str) -> str:
    return re.sub(r"<(?=\w)", "&lt;", text) if "`" not in text else text


def _plain(value: Any) -> str:
    return " ".join(str(value).replace("typing.", "").split())


if __name__ == "__main__":
    sys.path.insert(0, str(PAGE.parents[1]))
    PAGE.write_text(write_page(), encoding="utf-8")
