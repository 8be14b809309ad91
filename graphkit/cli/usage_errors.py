"""What was typed wrongly, in graphkit's words: the parser's errors, whatever version of it is installed."""

from __future__ import annotations

import re
from typing import Any, Final

from graphkit._wording import simplify_message
from graphkit.cli.resolve import near
from graphkit.cli.values import shown

_LIKE_AN_OPTION: Final = 0.75
"""As LIKE_A_WORD, for words that all begin with two dashes."""
_EXTRA: Final = re.compile(r"Got unexpected extra argument\S* \((.*)\)")
_VALUES: Final = (
    (re.compile(r"must be greater than or equal to (\S+)"), r"must be at least \1"),
    (re.compile(r"must be a valid integer\b.*"), "must be a whole number"),
    (re.compile(r"must be a valid number\b.*"), "must be a number"),
    (re.compile(r"'?(.*?)'? is not in the range x>=(\S+)"), r"must be at least \2, not \1"),
    (re.compile(r"'(.*)' is not a valid integer.*"), r"must be a whole number, not '\1'"),
    (re.compile(r"'(.*)' is not a valid float.*"), r"must be a number, not '\1'"),
    (re.compile(r"'(.*?)' is not one of (.*)"), r"must be one of \2, not '\1'"),
)
"""What versions of the parser say of a wrong value, as patterns, and what a user reads in its place."""


def is_usage_error(error: Exception) -> bool:
    """Whether an error is the parser's; its class has moved between packages, its name has not."""
    return any(one.__name__ == "ClickException" for one in type(error).__mro__)


def sentence_of(error: Any) -> str:
    """What is wrong, and where to read more."""
    context = getattr(error, "ctx", None)
    where = "" if context is None else f"; see `{context.command_path} --help`"
    return f"graphkit: {_problem(error)}{where}"


def _problem(error: Any) -> str:
    kind = type(error).__name__
    if kind == "MissingParameter" and error.param is not None:
        return f"the {_name_of(error.param)} is missing"
    if kind == "NoSuchOption":
        return f"there is no option {shown(error.option_name)}{_did_you_mean(error)}"
    if kind == "BadOptionUsage":
        verb = "takes no value" if "not take" in error.message else "wants a value"
        return f"the option {error.option_name} {verb}"
    if kind == "BadParameter" and error.param is not None:
        return _wrong_value(error.param, error.message)
    extra = _EXTRA.match(error.format_message())
    if extra is not None:
        return f"unexpected: {shown(extra[1])}"
    return _lowered(error.format_message())


def _name_of(param: Any) -> str:
    if param.param_type_name == "option":
        return f"option {max(param.opts, key=len)}"
    return f"argument {(param.metavar or param.name).removesuffix('...')}"


def _did_you_mean(error: Any) -> str:
    known = [word for param in error.ctx.command.params for word in param.opts] if error.ctx is not None else []
    return near(error.option_name, [word for word in known if word.startswith("--")], likeness=_LIKE_AN_OPTION)


def _wrong_value(param: Any, message: str) -> str:
    sentence = simplify_message(message).rstrip(".")
    for pattern, words in _VALUES:
        sentence = pattern.sub(words, sentence)
    joint = " " if sentence.startswith("must ") else ": "
    return f"the {_name_of(param)}{joint}{shown(sentence)}"


def _lowered(message: str) -> str:
    """A sentence of the parser's as the end of one of ours."""
    return (message[:1].lower() + message[1:]).rstrip(".")
