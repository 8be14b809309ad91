"""Secret: a text that no message, log or file shows."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn, Self
from urllib.parse import quote

from graphkit.errors import AgentConfigurationError

HIDDEN: Final = "***"
_SHORTEST: Final = 4
"""A shorter secret is not searched for in messages: each letter of them could be it."""


def forms_of(text: str) -> list[str]:
    """Return a text as messages may show it: as it is, and as `repr`, JSON and addresses escape it."""
    forms = [text, repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, safe="")]
    return list(dict.fromkeys(forms))


class Secret:
    """A text that is not shown: `repr` and `str` hide it, and it cannot be pickled or copied to a file.

    Only `reveal` returns the text.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def parse(cls, value: Any, name: str) -> Self:
        """Return a secret of a text, or of an object that hides one, as pydantic's SecretStr does.

        Args:
            value: the text or the object.
            name: what it is, for the message.

        Raises:
            AgentConfigurationError: it is neither, is empty, or cannot be sent as a header: the client
                would quote it in its error.
        """
        if isinstance(value, cls):
            return value
        get_secret = getattr(value, "get_secret_value", None)
        text = get_secret() if callable(get_secret) else value
        if not isinstance(text, str):
            raise AgentConfigurationError(f"{name} must be a text, not {type(value).__name__}")
        if not text:
            raise AgentConfigurationError(f"{name} is empty")
        if not (text.isascii() and text.isprintable() and " " not in text):
            raise AgentConfigurationError(
                f"{name} contains a line break, a space or a character that a key cannot have: "
                "check how it was copied or read"
            )
        return cls(text)

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def hide_in(self, text: str) -> str:
        """Return a text in which the secret is replaced by asterisks."""
        if len(self._text) < _SHORTEST:
            return text
        for form in forms_of(self._text):
            text = text.replace(form, HIDDEN)
        return text

    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})"

    def __str__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not stored: name its environment variable in api_key_env instead of api_key")
