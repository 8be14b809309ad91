"""Messages for an invalid command line, whichever version of the parser is installed."""

from __future__ import annotations

import re
from typing import Any, Final

from graphkit._wording import simplify_message
from graphkit.cli.resolve import suggest
from graphkit.cli.values import escape

_OPTION_SIMILARITY: Final = 0.75
"""As WORD_SIMILARITY, for words that all begin with two dashes."""
_EXTRA_ARGUMENT: Final = re.compile(r"Got unexpected extra argument\S* \((.*)\)")
_REPLACEMENTS: Final = (
    (re.compile(r"must be greater than or equal to (\S+)"), r"must be at least \1"),
    (re.compile(r"must be a valid integer\b.*"), "must be a whole number"),
    (re.compile(r"must be a valid number\b.*"), "must be a number"),
    (
        re.compile(r"'?(.*?)'? is not in the range x>=(\S+)"),
        r"must be at least \2, not \1",
    ),
    (
        re.compile(r"'(.*)' is not a valid integer.*"),
        r"must be a whole number, not '\1'",
    ),
    (re.compile(r"'(.*)' is not a valid float.*"), r"must be a number, not '\1'"),
    (re.compile(r"'(.*?)' is not one of (.*)"), r"must be one of \2, not '\1'"),
)
"""What versions of the parser say about an invalid value, and what the user reads instead."""


def is_usage_error(error: Exception) -> bool:
    """Return whether an error is the parser's.

    Its class moves between packages, its name does not.
    """
    return any(base.__name__ == "ClickException" for base in type(error).__mro__)


def describe_usage_error(error: Any) -> str:
    """Return what is wrong with the command line, and where to find help."""
    message = f"graphkit: {_describe_problem(error)}"
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    return f"{message}; see `{context.command_path} --help`"


def _describe_problem(error: Any) -> str:
    kind = type(error).__name__
    param = getattr(error, "param", None)
    if kind == "MissingParameter" and param is not None:
        return f"the {_parameter_name(param)} is missing"
    if kind == "BadParameter" and param is not None:
        return _describe_bad_value(param, error.message)
    if kind == "NoSuchOption":
        hint = _suggest_option(error)
        return f"there is no option {escape(error.option_name)}{hint}"
    if kind == "BadOptionUsage":
        is_flag = "not take" in error.message
        problem = "takes no value" if is_flag else "requires a value"
        return f"the option {error.option_name} {problem}"

    return _describe_other_problem(error.format_message())


def _describe_other_problem(message: str) -> str:
    extra = _EXTRA_ARGUMENT.match(message)
    if extra is not None:
        return f"unexpected argument: {escape(extra[1])}"
    sentence = message[:1].lower() + message[1:]
    return sentence.rstrip(".")


def _parameter_name(param: Any) -> str:
    if param.param_type_name == "option":
        return f"option {max(param.opts, key=len)}"
    return f"argument {(param.metavar or param.name).removesuffix('...')}"


def _suggest_option(error: Any) -> str:
    if error.ctx is None:
        return ""
    words = [word for param in error.ctx.command.params for word in param.opts]
    long_words = [word for word in words if word.startswith("--")]
    return suggest(error.option_name, long_words, cutoff=_OPTION_SIMILARITY)


def _describe_bad_value(param: Any, message: str) -> str:
    sentence = simplify_message(message).rstrip(".")
    for pattern, replacement in _REPLACEMENTS:
        sentence = pattern.sub(replacement, sentence)
    joint = " " if sentence.startswith("must ") else ": "
    return f"the {_parameter_name(param)}{joint}{escape(sentence)}"
