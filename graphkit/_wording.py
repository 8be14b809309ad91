"""Words errors for people: those of user code, those of pydantic without its terms, and misspelt names.

Also says how wide a text is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""Prefixes of pydantic's messages, and their replacements."""


_NAMES_ELSEWHERE: Final[Mapping[str, str]] = {
    "abatch": "run several threads at once with asyncio.gather(app.ainvoke(...), ...)",
    "astream_events": "use astream(..., stream_mode=['updates', 'custom']), or observers",
    "batch": "run several threads at once: map app.invoke on a ThreadPoolExecutor",
    "bulk_update_state": "call update_state for each update",
    "cache": "config.once() keeps a result within a thread",
    "context": "pass it in the config, RunnableConfig(metadata={...}); nodes read config.get_metadata(...)",
    "debug": "observers='logging' logs each step",
    "get_subgraphs": "get_state(RunnableConfig(thread, checkpoint_ns=node)) shows a nested graph",
    "durability": "it is an option of compile()",
    "name": "it is graph_id",
    "output_keys": "read these keys of the state that the run returns",
    "parent_config": "parent_id is the id of the parent",
    "recursion_limit": "it is max_iterations of compile() and of RunnableConfig",
    "run": "call invoke, stream or resume",
    "stream_mode": "stream and astream have it, and so has the config",
    "stream_writer": "config.dispatch(value) adds a value to the stream",
    "subgraphs": "every stream has the steps of nested graphs; their outputs are is_subgraph",
    "tasks": "next is the node that runs next, and interrupts has what waits for an answer",
    "store": "nodes use a store of their own; langgraph.FileSystemStore is one",
    "with_config": "pass a config to each call; functools.partial(app.invoke, config=config) keeps one",
}
"""What users of LangGraph look for, and how it is done here."""


def message_of(error: BaseException) -> str:
    """Return the text of an error, also of one whose `__str__` raises: it may be of user code."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - whatever it is, it must not replace the error
        return f"its __str__ raised {type(failure).__name__}"


def name_type(value: object) -> str:
    """Return the type of a value as errors name it.

    The module tells classes of other libraries from graphkit's of the same name, such as Command.
    """
    kind = type(value)
    if kind.__module__ in {"builtins", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def describe_error(error: BaseException) -> str:
    """Return the type and message of an error in one line."""
    name = type(error).__name__
    message = message_of(error)
    if message:
        return f"{name}: {message}"
    return name


def explain_failed_import(
    name: str, error: Exception, places: str, describe: Callable[[Exception], str] = describe_error
) -> str:
    """Return why a module could not be imported.

    Args:
        name: the module.
        error: what importing it raised.
        places: where modules are searched: the end of the message that there is none of this name.
        describe: returns an error of the code of the module as text.
    """
    # The code of a module may raise this error itself, without a name.
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None:
        return f"importing {name} failed: {describe(error)}"
    if f"{name}.".startswith(f"{missing}."):  # it or its package is missing, and not another module that it imports
        return f"there is no module {name}{places}"
    return f"{name} needs the module {missing}, which is not installed"


def suggest(wanted: str, known: Sequence[str], *, most: int = 3, show: Callable[[str], str] = repr) -> str:
    """Return the end of a message about an unknown name: the known names that resemble it, or "".

    Args:
        wanted: the unknown name.
        known: the names that exist.
        most: how many names to suggest.
        show: returns a name as the message shows it.
    """
    from difflib import get_close_matches  # an error may take its time

    matches = get_close_matches(wanted, known, n=most)
    if not matches:
        return ""
    return f"; did you mean {' or '.join(map(show, matches))}?"


def explain_name(name: str) -> str:
    """Return the end of a message about a name of LangGraph: how it is done here; "" for other names."""
    if name not in _NAMES_ELSEWHERE:
        return ""
    return f": {_NAMES_ELSEWHERE[name]}"


def check_options(owner: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of keywords.

    Raises:
        TypeError: there is no such option. The message names the nearest one, or what is used instead.
    """
    names = sorted(known)
    for option in options:
        if option in names:
            continue
        hint = explain_name(option) or suggest(option, names, most=1) or f"; it has {', '.join(names)}"
        raise TypeError(f"{owner} has no option {option!r}{hint}")


def simplify_message(message: str) -> str:
    """Rewrite one message of a ValidationError without the terms of pydantic."""
    for start, replacement in _SENTENCES:
        if message.startswith(start):
            return replacement + message[len(start) :]
    return message


def simplify_text(text: str) -> str:
    """Rewrite the ValidationError that a text may quote as one plain line; the rest remains.

    The text may come from a store, and may have been cut at any position.
    """
    head = _HEAD.search(text)
    if head is None:
        return text
    before = text[: head.start()]
    body = _LINK.sub("", text[head.end() :])
    # pydantic writes the field on one line, and the message, indented, on the next.
    problems: list[str] = []
    field = ""
    for line in _DETAILS.sub("", body).splitlines():
        if not line.startswith("  "):
            field = line.strip()
            continue
        message = simplify_message(line.strip())
        problems.append(f"{field}: {message}" if field else message)
    if not problems:
        return text
    sentence = "; ".join(problems)
    return f"{before}{head[1]}: {sentence}"


def count_cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: East Asian characters take two, accents none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    wide = sum(east_asian_width(letter) in {"F", "W"} for letter in text)
    accents = sum(combining(letter) != 0 for letter in text)
    return len(text) + wide - accents
