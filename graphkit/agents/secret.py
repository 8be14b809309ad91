"""Secrets: which texts can be one, and texts of others without them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from pydantic import SecretStr

from graphkit.errors import AgentConfigurationError

HIDDEN: Final = "***"
_SHORTEST: Final = 4
"""In characters; a shorter secret is not searched for in messages, because it occurs in other words."""


def check_key(text: str, name: str) -> SecretStr:
    """Return a key as a secret.

    Args:
        text: the key.
        name: what it is, for the message.

    Raises:
        AgentConfigurationError: it is empty, or cannot be sent as a header: the client would quote it in its error.
    """
    if not text:
        raise AgentConfigurationError(f"{name} is empty")
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise AgentConfigurationError(
            f"{name} contains a line break, a space or a character that a key cannot have: "
            "check how it was copied or read"
        )
    return SecretStr(text)


def hide_secrets(text: str, secrets: Iterable[SecretStr]) -> str:
    """Return a message of a server with asterisks in place of the secrets that the server was given.

    A server may quote a secret as it is, or as `repr`, JSON and addresses escape it.
    """
    forms: set[str] = set()
    for secret in secrets:
        value = secret.get_secret_value()
        if len(value) >= _SHORTEST:
            forms |= {value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value, safe="")}
    for form in sorted(forms, key=len, reverse=True):  # one may contain another
        text = text.replace(form, HIDDEN)
    return text
