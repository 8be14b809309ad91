"""Prompt templates: `{city}` stands for a key of the state, `{input}` for the newest message of the user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any, Final

from graphkit.agents.default_state import MESSAGES
from graphkit.agents.messages import newest_user_text

INPUT: Final = "input"
"""The newest message of the user, where the state has no key of this name."""
_CONVERSIONS: Final = (None, "a", "r", "s")


def fill_template(template: str, state: Mapping[str, Any], step: str) -> str:
    """Return a template with the values of a state.

    Args:
        template: the template.
        state: the state.
        step: the name of the step, for the error.

    Raises:
        ValueError: the state lacks a key.
    """
    text = newest_user_text(state.get(MESSAGES) or ())
    values = {} if text is None else {INPUT: text}
    try:
        return template.format_map({**values, **state})
    except KeyError as error:
        key = error.args[0]
        raise ValueError(
            f"the prompt template of step {step!r} needs {key!r}, which the state does not have"
        ) from error


def check_template(template: str) -> str:
    """Return a template if it can be filled with a state that has its keys.

    Raises:
        ValueError: it is malformed, or has a field that is not a key.
    """
    try:
        fields = list(_fields_of(template))
    except ValueError as error:
        raise ValueError(f"is malformed: {error}; write {{{{ and }}}} for braces") from error
    for name, conversion in fields:
        if not name or name[0].isdigit():
            raise ValueError(f"has {{{name}}}: name a key of the state, or write {{{{ and }}}} for braces")
        if conversion not in _CONVERSIONS:
            raise ValueError(f"has {{{name}!{conversion}}}: only !r, !s and !a are conversions")
    return template


def keys_of_template(template: str) -> list[str]:
    """Return the keys of the state that a template needs, each once."""
    keys = [re.split(r"[.\[]", name)[0] for name, _ in _fields_of(template)]
    return list(dict.fromkeys(keys))


def _fields_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the conversion of each field of a template, also of those in format specifications."""
    for _, name, specification, conversion in Formatter().parse(template):
        if name is not None:  # None: text after the last field
            yield name, conversion
            yield from _fields_of(specification or "")
