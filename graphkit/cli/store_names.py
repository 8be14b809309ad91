"""What the user types to name a store: a directory, `kind:argument`, or a PostgreSQL URL."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

POSTGRES: Final = "postgres"
SQLITE: Final = "sqlite"
_URL_SCHEMES: Final = ("postgres://", "postgresql://")
_HIDDEN: Final = "***"
_URL_PASSWORD: Final = re.compile(r"(\bpostgres(?:ql)?://[^\s:/?#@]*:)\S+@")
"""To the last @, since a password may contain one that should have been escaped."""
_PASSWORD_OPTION: Final = re.compile(r"(\b(?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE)
"""In a connection string of keywords, and among the options of a URL."""
_SCHEMA: Final = "schema="
"""Begins an option of a URL."""
_KEYWORD: Final = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<value>'(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|$)")
"""One of a connection string of keywords."""
_MIN_PASSWORD: Final = 4
"""Shorter passwords are hidden only where they stand in a connection string: they occur in words."""


class StoreName(NamedTuple):
    """A store that is not a directory."""

    kind: str
    """The name of the saver."""
    argument: str
    """Its first argument: a path or a connection string."""
    schema: str | None = None
    """The schema that a connection string names; None: the default."""


def parse_store_name(name: str, kinds: Collection[str]) -> StoreName | None:
    """Return which saver a name stands for; None if it is a directory.

    Args:
        name: what the user typed.
        kinds: the names of the savers that are installed.
    """
    if name.startswith(_URL_SCHEMES):
        return StoreName(POSTGRES, *_split_schema(name))
    kind, colon, argument = name.partition(":")
    if not colon or kind not in kinds or Path(name).exists():
        return None
    if kind == POSTGRES:
        return StoreName(POSTGRES, *_split_schema(argument))
    return StoreName(kind, argument)


def strip_kind(name: str, kind: str) -> str:
    """Return the name of a database that is no store of graphkit, without the kind before it.

    Commands that expect such a name accept `sqlite:FILE` for FILE, too.

    Args:
        name: what the user typed.
        kind: the only kind that may stand there.
    """
    if name.startswith(_URL_SCHEMES):
        return name
    before, colon, argument = name.partition(":")
    return argument if colon and before == kind and not Path(name).exists() else name


def _split_schema(connection_string: str) -> tuple[str, str | None]:
    """Return a connection string without `schema`, which PostgreSQL's client refuses, and the schema.

    A string that is not understood is returned as it is: the client explains what is wrong with it.
    """
    if connection_string.startswith(_URL_SCHEMES):
        return _split_schema_of_url(connection_string)
    keywords = _split_keywords(connection_string)
    schemas = [_unquote_value(keyword["value"]) for keyword in keywords if keyword["name"] == "schema"]
    if not schemas:
        return connection_string, None
    rest = " ".join(keyword[0].strip() for keyword in keywords if keyword["name"] != "schema")
    return rest, schemas[-1]


def _split_schema_of_url(url: str) -> tuple[str, str | None]:
    address, _, query = url.partition("?")
    options = query.split("&")
    schemas = [unquote(option.removeprefix(_SCHEMA)) for option in options if option.startswith(_SCHEMA)]
    if not schemas:
        return url, None
    rest = "&".join(option for option in options if not option.startswith(_SCHEMA))
    return f"{address}?{rest}" if rest else address, schemas[-1]


def _split_keywords(connection_string: str) -> list[re.Match[str]]:
    """Return the keywords of a connection string, each with its value; none if it is something else."""
    keywords: list[re.Match[str]] = []
    end = 0
    while end < len(connection_string):
        keyword = _KEYWORD.match(connection_string, end)
        if keyword is None:
            return []
        keywords.append(keyword)
        end = keyword.end()
    return keywords


def _unquote_value(value: str) -> str:
    """Return what a value in a connection string of keywords stands for."""
    if value.startswith("'"):
        value = value[1:-1]
    return re.sub(r"\\(.)", r"\1", value)


def find_passwords(names: Iterable[str]) -> set[str]:
    """Return the passwords in names of stores, as they are typed and as they are meant."""
    found: set[str] = set()
    for name in names:
        for match in _PASSWORD_OPTION.finditer(name):
            value = match[2]
            found |= {value, unquote(value)}
            if value.startswith("'"):
                found.add(re.sub(r"\\(.)", r"\1", value[1:-1]))
        start = name.find("postgres")
        if start >= 0 and "://" in name:
            found |= _passwords_of_url(name[name.rfind("postgres", 0, name.find("://")) :])
    return {password for password in found if len(password) >= _MIN_PASSWORD}


def _passwords_of_url(url: str) -> set[str]:
    try:
        parts = urlsplit(url)
        typed = [parts.password or "", *parse_qs(parts.query).get("password", ())]
    except ValueError:  # not a URL; hide_passwords hides what looks like a password
        return set()
    return {password for each in typed for password in (each, unquote(each)) if password}


def hide_passwords(text: str, passwords: Collection[str] = ()) -> str:
    """Return a text without passwords of connection strings.

    Args:
        text: a name of a store, or a message.
        passwords: passwords that are hidden wherever they stand.
    """
    # The longest first: one may contain another.
    for password in sorted(passwords, key=len, reverse=True):
        text = text.replace(password, _HIDDEN)
    text = _URL_PASSWORD.sub(rf"\1{_HIDDEN}@", text)
    return _PASSWORD_OPTION.sub(rf"\1{_HIDDEN}", text)
