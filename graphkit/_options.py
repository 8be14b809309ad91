"""What options may be: numbers within limits, ages, objects that a string names; JSON, and files of options."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeAlias, TypeVar, final

from graphkit._wording import suggest
from graphkit.errors import CheckpointerConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_AGE_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_AGE: Final = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(s|min|h|d|w)\s*")
_YEAR: Final = 365.25 * 86400
_MAX_AGE: Final = 1000 * _YEAR
"""Seconds; datetime has no earlier times."""


def parse_age(text: str) -> timedelta:
    """Parse an age: `90s`, `30min`, `12h`, `7d`, `2w`.

    Raises:
        ValueError: it is not an age, or not between 0 and a thousand years.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise ValueError(f"an age is a number and s, min, h, d or w, such as 30min, not {text!r}")
    number, unit = match.groups()
    seconds = float(number) * _AGE_UNITS[unit]
    if not 0 <= seconds <= _MAX_AGE:
        raise ValueError(f"an age is at least 0 and at most a thousand years, not {text!r}")
    return timedelta(seconds=seconds)


def check_age(name: str, value: object, error: type[Exception] = ValueError) -> timedelta:
    """Return an age that is given as a timedelta, or as text for `parse_age`.

    Raises:
        error: it is something else, or not between 0 and a thousand years.
    """
    if isinstance(value, str):
        try:
            return parse_age(value)
        except ValueError as reason:
            raise error(f"{name}: {reason}") from reason
    if not isinstance(value, timedelta) or not 0 <= value.total_seconds() <= _MAX_AGE:
        raise error(f"{name} must be an age such as '30d', or a timedelta up to a thousand years, not {value!r}")
    return value


def check_seconds(name: str, value: object, error: type[Exception] = ValueError) -> None:
    """Check a duration: a finite number of seconds above 0.

    Raises:
        error: it is something else.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise error(f"{name} must be a number of seconds above 0, not {value!r}")


def parse_timeout(value: object) -> float:
    """Return a maximum time to wait, in seconds; more than a year becomes a year, for a lock cannot wait infinitely.

    Raises:
        ValueError: it is not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(min(value, _YEAR)):
        raise ValueError(f"timeout must be a number of seconds, not {value!r}")
    return min(value, _YEAR)


def check_count(name: str, value: object, error: type[Exception] = ValueError, *, least: int = 1) -> None:
    """Check a limit: an int of at least 1, or another least.

    Raises:
        error: it is something else.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least:  # type: ignore[operator]
        raise error(f"{name} must be an int of at least {least}, not {value!r}")


def check_text(name: str, value: object, error: type[Exception] = ValueError) -> None:
    """Check a text that must not be empty.

    Raises:
        error: it is something else.
    """
    if not isinstance(value, str) or not value:
        raise error(f"{name} must be a text that is not empty, not {value!r}")


def check_texts(name: str, value: object, error: type[Exception] = ValueError) -> frozenset[str]:
    """Return the members of a collection of texts. A text alone is refused: it would count as its letters.

    Raises:
        error: it is something else.
    """
    is_collection = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
    if not is_collection or not all(isinstance(text, str) for text in value):  # type: ignore[attr-defined]
        raise error(f"{name} must be a list of texts, not {value!r}")
    return frozenset(value)  # type: ignore[call-overload, no-any-return]


def check_list(name: str, items: str, value: object, error: type[Exception] = TypeError) -> None:
    """Check an option that takes several values.

    Raises:
        error: it cannot be iterated.
    """
    if not isinstance(value, Iterable):
        raise error(f"{name} must be a list of {items}, not {value!r}")


def check_time(name: str, value: object) -> None:
    """Check a point in time: an aware datetime.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(f"{name} must be an aware datetime, such as datetime.now(UTC), not {value!r}")


def check_choice(name: str, value: object, *known: str, error: type[Exception] = ValueError) -> None:
    """Check an option that is one of a few words.

    Raises:
        error: it is none of them.
    """
    if value not in known:
        hint = suggest(str(value), known, most=1)
        raise error(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}{hint}")


def check_executor(name: str, executor: object, error: type[Exception]) -> None:
    """Check that an option, if it is given, can run calls elsewhere, as a `concurrent.futures.Executor` does.

    Raises:
        Exception: it cannot: the error that the caller wants.
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise error(f"{name} must be a concurrent.futures.Executor, or like one; {executor!r} has no submit()")


def show_options(options: DataclassInstance, default: DataclassInstance) -> str:
    """Return options as code: those that differ from the default ones."""
    shown = [
        f"{field.name}={value!r}"
        for field in dataclasses.fields(options)
        if field.repr and (value := getattr(options, field.name)) != getattr(default, field.name)
    ]
    return f"{type(options).__name__}({', '.join(shown)})"


def check_function(name: str, value: object, error: type[Exception] = TypeError) -> None:
    """Check a function that is called without `await`: of an async one, only a coroutine would come back.

    Raises:
        error: it cannot be called, or is asynchronous.
    """
    if not callable(value):
        raise error(f"{name} must be callable, not a {type(value).__name__}")
    if is_of_kind(value, inspect.iscoroutinefunction, inspect.isasyncgenfunction):
        raise error(f"{name} must be a plain function; {value!r} is asynchronous")


def is_of_kind(function: Any, *kinds: Callable[[Any], bool]) -> bool:
    """Return whether a function, or the `__call__` of an object, is of one of these kinds."""
    method = getattr(function, "__call__", None)  # noqa: B004 - to see its kind
    return any(kind(function) or kind(method) for kind in kinds)


# JSON and files


def parse_json(text: str | bytes, object_pairs_hook: Callable[[Any], Any] | None = None) -> Any:
    """Return the value of a JSON text; `object_pairs_hook` is that of `json.loads`.

    Raises:
        RecursionError: it is nested too deeply.
        ValueError: it is not JSON. NaN and Infinity are not, although `json.loads` takes them.
    """
    import json

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"JSON has no {constant}")

    return json.loads(text, object_pairs_hook=object_pairs_hook, parse_constant=refuse)


_Pairs: TypeAlias = Sequence[tuple[Any, Any]]
"""The keys and values of a mapping, in order: a dict would hide that a key occurs twice."""


def read_options(path: str | os.PathLike[str], known: Sequence[str]) -> dict[str, Any]:
    """Return the options in a file that is a mapping: JSON if its name ends in `.json`, else YAML.

    Args:
        path: the file, in UTF-8.
        known: the keys that it may have.

    Raises:
        CheckpointerConfigurationError: the file cannot be read or parsed; it is no mapping; or a key is
            unknown or occurs twice. The message names the file.
        MissingDependencyError: the file is YAML, and PyYAML is not installed.
    """
    file = Path(os.fsdecode(path))
    language, parse = "YAML", _parse_yaml
    if file.suffix == ".json":
        language, parse = "JSON", _parse_json
    try:
        pairs = parse(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CheckpointerConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointerConfigurationError(f"{file} is not {language}: {error}") from error
    if pairs is None:
        raise CheckpointerConfigurationError(f"{file} must be a mapping; its keys are {', '.join(known)}")
    options: dict[str, Any] = {}
    for key, value in pairs:
        if key not in known:
            hint = suggest(str(key), known, most=1) or f"; the keys are {', '.join(known)}"
            raise CheckpointerConfigurationError(f"{file}: there is no key {key!r}{hint}")
        if key in options:
            raise CheckpointerConfigurationError(f"{file}: the key {key!r} occurs twice")
        options[key] = value
    return options


def _parse_json(text: str) -> _Pairs | None:
    """Return the root of a JSON document; None if it is no object.

    Raises:
        ValueError: it is not JSON.
    """
    root = parse_json(text, object_pairs_hook=tuple)
    return root if isinstance(root, tuple) else None


def import_yaml() -> Any:
    """Return the module yaml.

    Raises:
        MissingDependencyError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise MissingDependencyError("PyYAML", "agents") from error
    return yaml


def _parse_yaml(text: str) -> _Pairs | None:
    """Return the root of a YAML document; None if it is no mapping.

    Raises:
        ValueError: it is not YAML.
    """
    yaml = import_yaml()
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            return None
        return [tuple(loader.construct_object(node, deep=True) for node in pair) for pair in root.value]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    finally:
        loader.dispose()


# Names

T = TypeVar("T")


@final
class NamedRegistry(Generic[T]):
    """Objects by name. Any thread may use it. Registering a name again replaces its object."""

    def __init__(self, kind: str, defaults: Callable[[], Mapping[str, T]] = dict) -> None:
        """Start an empty registry.

        Args:
            kind: what the objects are, for messages.
            defaults: returns objects that need no registration, by name; called when a name is
                missing, and for a list of all names.
        """
        self._kind = kind
        self._defaults = defaults
        self.registered: dict[str, T] = {}
        """What was registered by hand, by name."""

    def register(self, name: str, value: T) -> None:
        """Register an object under a name.

        Raises:
            CheckpointerConfigurationError: the name is not a string, or empty. Nothing was changed.
        """
        check_text(f"the name of a {self._kind}", name, CheckpointerConfigurationError)
        self.registered[name] = value

    def get(self, name: str) -> T:
        """Return the object of a name.

        Raises:
            CheckpointerConfigurationError: the name is unknown; the message lists the known names.
        """
        if name in self.registered:
            return self.registered[name]
        known = self.known()
        if name not in known:
            names = ", ".join(map(repr, sorted(known)))
            raise CheckpointerConfigurationError(f"unknown {self._kind} {name!r}; known are {names}")
        return known[name]

    def known(self) -> Mapping[str, T]:
        """Return all objects that are known now, by name."""
        return {**self._defaults(), **self.registered}
