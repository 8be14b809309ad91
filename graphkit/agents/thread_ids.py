"""ThreadIDGenerator and ThreadIDManager: new thread ids by strategy. Ports the classes of Petal."""

from __future__ import annotations

import os
import re
import threading
import time
import unicodedata
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, final
from urllib.parse import quote_from_bytes, unquote_to_bytes

MAX_LENGTH: Final = 4096
"""How many characters a thread id may have."""
_NANOSECONDS: Final = 1_000_000_000
_SUFFIX_BYTES: Final = 8
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, halves of surrogate pairs, and separators of lines and paragraphs."""
_USER_SPECIFIC: Final = re.compile(r"user-([\w.~%-]+)-\d{8}T\d{6}\.\d{9}Z-[0-9a-f]{16}", re.ASCII)


@final
class _InstantSource:
    """Returns a later instant at each call, whatever the clock does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        """Return nanoseconds since 1970, greater than all that this process returned before."""
        # The clock may stand still for 16 ms (Windows), or be set back. Then the last instant plus one stands in for
        # it, so that ids sort by the order in which they were made.
        with self._lock:
            self._last = max(time.time_ns(), self._last + 1)
            return self._last

    def reset_lock(self) -> None:
        """Replace the lock: another thread may have held it when this process was forked."""
        self._lock = threading.Lock()


_INSTANTS: Final = _InstantSource()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_INSTANTS.reset_lock)


@final
class ThreadIDGenerator:
    """Makes thread ids. Any thread of any process may call each method; no two calls return one id."""

    @staticmethod
    def uuid() -> str:
        """Return a random UUID (version 4)."""
        return str(uuid.uuid4())

    @staticmethod
    def timestamp() -> str:
        """Return an id such as `20261122T222229.123456789Z-5f0c1d2e3a4b5c6d`.

        It has the time in UTC and 64 random bits. The ids of one process sort by the order in which
        they were made, also if the clock stands still or goes back; those of several processes sort
        by their clocks.
        """
        instant = _INSTANTS.next()
        seconds, nanoseconds = divmod(instant, _NANOSECONDS)
        moment = datetime.fromtimestamp(seconds, UTC)
        suffix = os.urandom(_SUFFIX_BYTES).hex()
        return f"{moment:%Y%m%dT%H%M%S}.{nanoseconds:09}Z-{suffix}"

    @staticmethod
    def user_specific(user_id: str) -> str:
        """Return an id such as `user-bob-20261122T222229.123456789Z-5f0c1d2e3a4b5c6d`.

        All characters of the user id but letters and digits of ASCII, `_`, `.`, `~` and `-` are
        percent-encoded as UTF-8, so that no store and no shell sees them. `user_of` returns the
        user id.

        Args:
            user_id: any text. A thread id has at most 4,096 characters, so a user id may have 4,040 of
                ASCII letters, or 330 of any kind.

        Raises:
            ValueError: it is empty, too long or no str.
        """
        checked: object = user_id
        if not isinstance(checked, str) or not checked:
            raise ValueError(f"user_id must be a non-empty str, not {checked!r:.60}")
        user = checked.encode("utf-8", "surrogatepass")
        encoded = quote_from_bytes(user, safe="")
        thread_id = f"user-{encoded}-{ThreadIDGenerator.timestamp()}"
        if len(thread_id) > MAX_LENGTH:
            raise ValueError(f"user_id is too long: the thread id would have more than {MAX_LENGTH} characters")
        return thread_id

    @staticmethod
    def user_of(thread_id: str) -> str:
        """Return the user id from which `user_specific` made a thread id.

        Raises:
            ValueError: `user_specific` did not make it.
        """
        parts = _USER_SPECIFIC.fullmatch(thread_id)
        if parts is None:
            raise ValueError(f"{thread_id!r:.60} is no id of user_specific")
        user = unquote_to_bytes(parts[1])
        return user.decode("utf-8", "surrogatepass")

    @staticmethod
    def custom(function: Callable[[], str]) -> str:
        """Return the id that a function makes.

        Args:
            function: called without arguments. It must return another id at each call.

        Raises:
            ValueError: the function cannot be called, or what it returned is no valid id.
        """
        checked: object = function
        if not callable(checked):
            raise ValueError(f"generator_func must be a function, not {checked!r:.60}")  # noqa: TRY004 - as the others
        return check_thread_id(function())


@final
class ThreadIDManager:
    """Makes thread ids by the strategy that a configuration names.

        ThreadIDManager("user_specific", user_id="bob").generate()

    Attributes:
        strategy: `uuid`, `timestamp`, `user_specific` (with the option `user_id`), or `custom` (with
            the option `generator_func`).
        options: the options of the strategy.
    """

    def __init__(self, strategy: str = "uuid", **options: Any) -> None:
        """Choose a strategy.

        Raises:
            ValueError: there is no such strategy, or it has no such option.
        """
        checked: object = strategy
        if not isinstance(checked, str) or checked not in _OPTION_OF:
            known = ", ".join(_OPTION_OF)
            raise ValueError(f"unknown thread id strategy {checked!r:.60}; known are {known}")
        self.strategy = strategy
        self.options = self._check_options(options)

    def generate(self, **options: Any) -> str:
        """Return a new thread id.

        Args:
            options: replace the options of the manager for this call, such as `user_id`.

        Raises:
            ValueError: an option is missing, unknown or wrong.
        """
        given = {**self.options, **self._check_options(options)}
        make: Callable[..., str] = getattr(ThreadIDGenerator, self.strategy)
        name = _OPTION_OF[self.strategy]
        if name is None:
            return make()
        option = given.get(name)
        if option is None:
            raise ValueError(f"the thread id strategy {self.strategy!r} needs the option {name}")
        return make(option)

    def _check_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        allowed = _OPTION_OF[self.strategy]
        for name in options:
            if name != allowed:
                takes = f"only {allowed}" if allowed else "none"
                raise ValueError(f"the thread id strategy {self.strategy!r} has no option {name}; it takes {takes}")
        return dict(options)


_OPTION_OF: Final[Mapping[str, str | None]] = {
    "uuid": None,
    "timestamp": None,
    "user_specific": "user_id",
    "custom": "generator_func",
}
"""The strategies, and the option that each needs."""


def check_thread_id(thread_id: object) -> str:
    """Return a thread id for an agent if it is valid.

    A valid id has 1 to 4,096 characters, none of them a control character or half of a surrogate
    pair, and no white space at either end. Savers accept more; ids like these look alike
    in a log or a terminal.

    Raises:
        ValueError: it is not valid; the message says why.
    """
    if not isinstance(thread_id, str):
        raise ValueError(f"a thread id must be a str, not {thread_id!r:.60}")  # noqa: TRY004 - one kind for all
    if not thread_id:
        raise ValueError("a thread id must not be empty")
    if len(thread_id) > MAX_LENGTH:
        raise ValueError(f"a thread id has at most {MAX_LENGTH} characters, not {len(thread_id)}")
    if thread_id != thread_id.strip():
        raise ValueError(f"a thread id must not begin or end with white space: {thread_id!r:.60}")
    for index, character in enumerate(thread_id):
        if unicodedata.category(character) in _REFUSED_CATEGORIES:
            raise ValueError(f"a thread id must have no control character; character {index} is {character!r}")
    return thread_id
