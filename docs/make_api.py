"""Write docs/api.md, the reference of the public names, from their docstrings: python docs/make_api.py."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib
import inspect
import itertools
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
    "graphkit.codec": "The codec",
    "graphkit.values": "Read-only values",
    "savers.log": "For writers of savers with deltas (provisional)",
    "graphkit.registry": "Names for savers and observers",
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
    bases = [base.__name__ for base in cls.__mro__[1:] if base.__module__ in MODULES and [*_members(base)]]
    if bases and not issubclass(cls, BaseException):
        yield ""
        yield f"It has the members of `{'`, `'.join(bases)}`, too."
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
    yield from _attributes(cls)
    explained = _explained_fields(cls)
    for name, member in _own_members(cls).items():
        is_java = name != name.lower()
        if name.startswith("_") or is_java:
            continue
        function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        if isinstance(member, property):
            function = member.fget
        text = _first_sentence(function) if inspect.isfunction(function) else ""
        if isinstance(member, property):
            # Several qualities of a saver share one function: the text below a name is about that one.
            text = explained.get(name, text)
        if not text:  # an override, which its contract describes
            continue
        is_property = isinstance(member, property)
        yield name, "" if is_property else _escape(_signature(function, is_method=True)), text


def _own_members(cls: type) -> dict[str, Any]:
    """Return what a class defines, and what it has from bases that the page does not describe."""
    described = [base for base in cls.__mro__[1:] if base.__module__ in MODULES]
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        is_ours = base.__module__.startswith(("graphkit", "savers.langgraph."))
        is_hidden = is_ours and base.__module__ not in MODULES and not any(issubclass(each, base) for each in described)
        if is_hidden or base is cls:
            members |= vars(base)
    return members


def _attributes(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of a class, and the attributes that its docstring lists."""
    explained = _explained_fields(cls)
    fields = {name: cls.__annotations__[name] for name in getattr(cls, "_fields", ())}
    if dataclasses.is_dataclass(cls):
        fields.update({field.name: field.type for field in dataclasses.fields(cls) if not field.name.startswith("_")})
    for name, annotation in fields.items():
        described = f"field: `{_escape(_type_name(annotation))}`"
        if name in explained:
            described += f". {explained[name]}"
        yield name, "", described
    for name, text in _listed_attributes(cls):
        if name not in fields:
            yield name, "", text


def _explained_fields(cls: type) -> dict[str, str]:
    """Return the first sentences of the texts that stand below the fields of a class."""
    explained: dict[str, str] = {}
    definition = _class_definitions().get(cls.__name__)
    statements = [] if definition is None else definition.body
    for field, text in itertools.pairwise(statements):
        is_field = isinstance(field, (ast.AnnAssign, ast.Assign))
        if is_field and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
            explained[ast.unparse(target)] = _shorten(str(text.value.value))
    return explained


@functools.cache
def _class_definitions() -> dict[str, ast.ClassDef]:
    """Return the classes of the packages by name; a public class does not say in which module it is defined."""
    definitions: dict[str, ast.ClassDef] = {}
    for package in ("graphkit", "savers"):
        for path in sorted((PAGE.parents[1] / package).rglob("*.py")):
            for statement in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(statement, ast.ClassDef):
                    definitions[statement.name] = statement
    return definitions


def _listed_attributes(cls: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes that the docstring of a class lists, with the first sentence of each."""
    _, _, section = inspect.cleandoc(vars(cls).get("__doc__") or "").partition("\n\nAttributes:\n")
    listed = section.partition("\n\n")[0]
    for entry in re.split(r"^    (?=\w)", listed, flags=re.MULTILINE)[1:]:
        name, _, text = entry.partition(":")
        sentence = _shorten(text)
        yield name, sentence[:1].upper() + sentence[1:]


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
    return _shorten(_first_paragraph(thing))


def _shorten(text: str) -> str:
    """Return the first sentence of a text, for a cell of a table."""
    paragraph = " ".join(text.split())
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
