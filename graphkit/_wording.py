"""Puts the messages of pydantic into words that say what is wrong and no more."""

from __future__ import annotations

import re
from typing import Final

_HEAD: Final = re.compile(r"\d+ validation errors? for ([^\n]+)\n")
_LINK: Final = re.compile(r"\n\s+For further information visit \S+")
_DETAILS: Final = re.compile(r" \[type=\w+, input_value=.*?, input_type=[^\]\n]*\]", re.DOTALL)
_SENTENCES: Final = (
    ("Value error, ", ""),
    ("Assertion failed, ", ""),
    ("Input should be ", "must be "),
    ("Field required", "is missing"),
    ("Extra inputs are not permitted", "is unknown"),
)
"""How pydantic begins a sentence, and what a user reads in its place."""


def simplify_message(message: str) -> str:
    """One message of a ValidationError without the library's own terms."""
    for start, replacement in _SENTENCES:
        if message.startswith(start):
            return replacement + message[len(start) :]
    return message


def simplify_text(text: str) -> str:
    """A text that may quote a ValidationError, with that part in one plain line; other text stays as it is.

    The text may come from a store and may have been cut anywhere.
    """
    head = _HEAD.search(text)
    if head is None:
        return text
    body = _DETAILS.sub("", _LINK.sub("", text[head.end() :]))
    problems: list[str] = []
    place = ""
    for line in body.splitlines():
        if line.startswith("  "):
            sentence = simplify_message(line.strip())
            problems.append(f"{place}: {sentence}" if place else sentence)
        else:
            place = line.strip()
    return f"{text[: head.start()]}{head[1]}: {'; '.join(problems)}" if problems else text
