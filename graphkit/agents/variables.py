"""Variables: the environment variables of an agent file, whose values nothing shows."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, ParamSpec, Self, TypeVar, cast, final

from graphkit.agents.error_hiding import hide_in_error
from graphkit.agents.secret import forms_of

P = ParamSpec("P")
R = TypeVar("R")
_SHORTEST: Final = 4
"""A shorter value is not hidden in messages: it occurs in other words."""


@final
class Variables:
    """What `${NAME}` stands for in an agent file and in the files that it names.

    Errors show the name instead of the value, and so does a copy of the file.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """What is hidden, and what is shown instead; the longest first, because one may contain another."""
        self._written: dict[str, str] = {}
        """Texts that differ from what the file has in their place, and that."""

    def __bool__(self) -> bool:
        """Return whether there is anything to hide."""
        return bool(self._names)

    def __repr__(self) -> str:
        names = sorted(set(self._names.values()))
        return f"Variables({', '.join(names)})"

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._names or self._written:
            raise TypeError("values of environment variables are not stored: load the agent file again instead")
        return type(self), ()

    def add_value(self, name: str, value: str) -> None:
        """Hide a value from now on."""
        if len(value) < _SHORTEST:
            return
        for form in forms_of(value):
            self._names[form] = f"${{{name}}}"
        by_length = sorted(self._names.items(), key=lambda item: len(item[0]), reverse=True)
        self._names = dict(by_length)

    def add_text(self, text: str, written: str) -> None:
        """Note how the file writes a text that has a variable or an escaped `${`."""
        self._written[text] = written

    def hide_in(self, text: str) -> str:
        """Return a text with the names of variables in place of their values."""
        for value, name in self._names.items():
            text = text.replace(value, name)
        return text

    def restore(self, plain: Any) -> Any:
        """Return plain data whose texts are as the file writes them: `${NAME}`, and `$${` for `${`."""
        if isinstance(plain, str):
            return self._written.get(plain, plain)
        if isinstance(plain, Mapping):
            return {name: self.restore(item) for name, item in plain.items()}
        if isinstance(plain, list):
            return [self.restore(item) for item in plain]
        return plain

    def guard(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function whose errors do not show the values; the same one if there are none.

        That holds also for errors which come later: in an awaitable or an iterator that it returns.
        """
        if not self:
            return function
        return cast("Callable[P, R]", _GuardedFunction(function, self))


@final
class _GuardedFunction:
    """A function whose errors do not show the values of variables."""

    __slots__ = ("_function", "_variables")

    def __init__(self, function: Callable[..., Any], variables: Variables) -> None:
        self._function = function
        self._variables = variables

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _GuardedFunction) and other._function == self._function

    def __hash__(self) -> int:
        return hash(self._function)

    # Each error is raised outside of the handler: inside, a replaced one would be its context.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            result = self._function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised below
            shown = self._hide_in(error)
        else:
            return self._guard_result(result)
        raise shown

    def _guard_result(self, result: Any) -> Any:
        if isinstance(result, AsyncIterable):
            return self._iterate_async(result)
        if inspect.isawaitable(result):
            return self._wait(result)
        if isinstance(result, Iterator):
            return self._iterate(result)
        return result

    async def _wait(self, result: Awaitable[Any]) -> Any:
        try:
            return await result
        except Exception as error:  # noqa: BLE001 - raised below
            shown = self._hide_in(error)
        raise shown

    def _iterate(self, chunks: Iterator[Any]) -> Generator[Any, Any, Any]:
        try:
            return (yield from chunks)
        except Exception as error:  # noqa: BLE001 - raised below
            shown = self._hide_in(error)
        raise shown

    async def _iterate_async(self, chunks: AsyncIterable[Any]) -> AsyncIterator[Any]:
        try:
            async with aclosing(aiter(chunks)) as open_chunks:  # type: ignore[type-var]
                async for chunk in open_chunks:
                    yield chunk
            return
        except Exception as error:  # noqa: BLE001 - raised below
            shown = self._hide_in(error)
        raise shown

    def _hide_in(self, error: Exception) -> Exception:
        return hide_in_error(error, self._variables.hide_in)
