"""Errors without certain texts, such as the values of variables: in the message, the notes and the causes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from traceback import format_exception_only
from typing import Any, Final, final

Hide = Callable[[str], str]
"""Returns a text without what must not be shown."""
_KEPT: Final = frozenset({"thread_id", "node_id", "file", "path"})
"""Attributes by which programs find what failed. The message that people see is changed."""
_PARTS_OF_OSERROR: Final = ("strerror", "filename", "filename2")
_DEEPEST: Final = 8
"""How deeply lists and dicts in an error are searched."""


class HiddenError(Exception):
    """Stands for an error whose text could not be changed. Its own text names the class of that error."""


def hide_in_error(error: Exception, hide: Hide) -> Exception:
    """Return an error that shows nothing which `hide` removes, neither itself nor in its causes.

    It is the same error, changed. Only an error whose text does not follow from its arguments and
    attributes is replaced by a HiddenError. A traceback shows no other text than these do.
    """
    hidden: Exception = _Hiding(hide).hide_in(error)
    return hidden


@final
class _Hiding:
    """Hides texts in an error and in the errors that belong to it."""

    def __init__(self, hide: Hide) -> None:
        self._hide = hide
        self._done: dict[int, Any] = {}
        """What stands for each error, by its id: causes may form a cycle."""

    def hide_in(self, error: Any) -> Any:
        """Return what stands for an error; None for None."""
        if error is None:
            return None
        key = id(error)
        if key in self._done:
            return self._done[key]
        self._done[key] = error
        self._change_parts(error)
        shown = self._replace_if_needed(error)
        self._done[key] = shown
        self._change_causes(error, shown)
        return shown

    def _change_parts(self, error: BaseException) -> None:
        """Change what the text of most errors is made of: arguments, attributes and notes."""
        error.args = self._hide_in_value(error.args)
        attributes = getattr(error, "__dict__", {})
        for name, value in attributes.items():
            if name not in _KEPT:
                attributes[name] = self._hide_in_value(value)
        if isinstance(error, OSError):
            self._change_parts_of_oserror(error)

    def _change_parts_of_oserror(self, error: OSError) -> None:
        for name in _PARTS_OF_OSERROR:
            value = getattr(error, name)
            hidden = self._hide_in_value(value)
            if hidden != value:
                setattr(error, name, hidden)

    def _hide_in_value(self, value: Any, depth: int = 0) -> Any:
        if type(value) is str:
            return self._hide(value)
        if depth == _DEEPEST:
            return value
        inside = depth + 1
        if type(value) is list:
            return [self._hide_in_value(item, inside) for item in value]
        if type(value) is tuple:
            return tuple(self._hide_in_value(item, inside) for item in value)
        if type(value) is dict:
            return {name: self._hide_in_value(item, inside) for name, item in value.items()}
        return value

    def _replace_if_needed(self, error: BaseException) -> BaseException:
        if isinstance(error, BaseExceptionGroup):
            return self._replace_group(error)
        text = "".join(format_exception_only(error)).strip()
        shown = self._hide(text)
        if shown == text:
            return error
        return HiddenError(shown).with_traceback(error.__traceback__)

    def _replace_group(self, group: BaseExceptionGroup[BaseException]) -> BaseException:
        """Return a group with the errors that stand for those of a group; both are immutable."""
        parts = [self.hide_in(part) for part in group.exceptions]
        message = self._hide(group.message)
        is_same_message = message == group.message
        are_same_parts = all(map(operator.is_, parts, group.exceptions))
        if is_same_message and are_same_parts:
            return group
        return BaseExceptionGroup(message, parts).with_traceback(group.__traceback__)

    def _change_causes(self, error: BaseException, shown: BaseException) -> None:
        is_suppressed = error.__suppress_context__
        shown.__cause__ = self.hide_in(error.__cause__)
        shown.__context__ = self.hide_in(error.__context__)
        shown.__suppress_context__ = is_suppressed  # which setting the cause has changed
