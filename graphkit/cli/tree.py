"""Formats a value of any depth as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from graphkit.cli.values import escape, to_json, to_plain


def format_tree(value: Any, width: int | None) -> Iterator[str]:
    """Yield a value as lines, one per leaf; cut at the width, if there is one."""
    plain = to_plain(value)
    if _is_branch(plain):
        yield from _format_branch(plain, width, "")
    else:
        yield cut(_format_leaf(plain), width)


def cut(line: str, width: int | None) -> str:
    """Return a line of at most `width` characters; the last one is an ellipsis if it was longer."""
    if width is None or len(line) <= width:
        return line
    return line[: width - 1] + "…"


def _is_branch(value: Any) -> bool:
    return isinstance(value, (dict, list)) and bool(value)


def _format_branch(branch: Any, width: int | None, indent: str) -> Iterator[str]:
    for name, item in _children(branch):
        if _is_branch(item):
            yield cut(f"{indent}{escape(name)}:", width)
            yield from _format_branch(item, width, indent + "  ")
        else:
            yield from _format_leaf_lines(f"{indent}{escape(name)}: ", item, width)


def _children(branch: dict[str, Any] | list[Any]) -> Iterable[tuple[str, Any]]:
    if isinstance(branch, dict):
        return branch.items()
    return ((f"[{number}]", item) for number, item in enumerate(branch))


def _format_leaf_lines(start: str, item: Any, width: int | None) -> Iterator[str]:
    if not isinstance(item, str) or "\n" not in item:
        text = _format_leaf(item)
        yield cut(start + text, width)
        return
    yield start + "|"
    depth = len(start) - len(start.lstrip())
    indent = " " * (depth + 2)
    for line in item.splitlines():
        text = escape(line) if line else ""
        yield cut(indent + text, width)


def _format_leaf(item: Any) -> str:
    return escape(item) if isinstance(item, str) else to_json(item)
