"""Opens the stores that the user typed, and displays stored values whose types only the application knows.

A store is a directory, `kind:argument`, or a PostgreSQL URL. Stored data has the name of a type and
its fields; graphkit imports nothing of that name. A placeholder type, a class with the same name and
fields, stands for a type that is not registered.
"""

from __future__ import annotations

import enum
import importlib
import re
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory, SupportsExists
from graphkit._wording import suggest
from graphkit.cli.values import UsageError, escape
from graphkit.errors import CheckpointerConfigurationError, CheckpointFormatError

FILE: Final = "file"
POSTGRES: Final = "postgres"
SQLITE: Final = "sqlite"
_URL_SCHEMES: Final = ("postgres://", "postgresql://")
_HIDDEN: Final = "***"
_URL_PASSWORD: Final = re.compile(r"(://[^\s:/?#@]*:)(\S+)@")
"""To the last @, since a password may contain one that should have been escaped. The scheme may be misspelt, or that
of another library, such as postgresql+psycopg."""
_USER_AND_PASSWORD: Final = re.compile(r"://[^\s:/?#@]*:([^\s/?#]*)@")
"""To the last @ before the path, where the client takes the password to end."""
_PASSWORD_OPTION: Final = re.compile(r"(\b(?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|'?[^\s&'\"]+)", re.IGNORECASE)
"""In a connection string of keywords, and among the options of a URL."""
_SCHEMA: Final = re.compile("(?:^|&)schema=([^&]*)")
"""Among the options of a URL."""
_KEYWORD: Final = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<value>'(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)(?:\s+|$)|[\s\S]+")
"""One of a connection string of keywords; or the rest of the string, without a name, if it is not understood."""
_MIN_PASSWORD: Final = 4
"""Shorter passwords are hidden only where they stand in a connection string: they occur in words."""


class StoreName(NamedTuple):
    """What the name of a store stands for."""

    kind: str
    """The name of the saver."""
    argument: str
    """Its first argument: a path or a connection string."""
    schema: str | None = None
    """The schema that a connection string names; None: the default."""


def parse_store_name(name: str) -> StoreName:
    """Return which saver a name stands for; a name without a kind is that of a directory."""
    if name.startswith(_URL_SCHEMES):
        return StoreName(POSTGRES, *_split_schema(name))
    kind, colon, argument = name.partition(":")
    if not colon or kind not in _list_kinds() or _exists(name):
        return StoreName(FILE, name)
    if kind in _FILE_KINDS:
        return StoreName(FILE, argument)
    if kind == POSTGRES:
        return StoreName(POSTGRES, *_split_schema(argument))
    return StoreName(kind, argument)


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # it is too long for a path, as a connection string may be
        return False


def strip_kind(name: str, kind: str) -> str:
    """Return the name of a database that is no store of graphkit, without the kind before it.

    Commands that expect such a name accept `sqlite:FILE` for FILE, too.

    Args:
        name: what the user typed.
        kind: the only kind that may stand there.
    """
    if name.startswith(_URL_SCHEMES) or _exists(name):
        return name
    return name.removeprefix(f"{kind}:")


def _split_schema(connection_string: str) -> tuple[str, str | None]:
    """Return a connection string without `schema`, which PostgreSQL's client refuses, and the schema.

    A string that is not understood is returned as it is: the client explains what is wrong with it.
    """
    if connection_string.startswith(_URL_SCHEMES):
        from urllib.parse import unquote

        address, _, options = connection_string.partition("?")
        schemas = _SCHEMA.findall(options)
        if not schemas:
            return connection_string, None
        others = _SCHEMA.sub("", options).removeprefix("&")
        return f"{address}?{others}" if others else address, unquote(schemas[-1])

    keywords = list(_KEYWORD.finditer(connection_string))
    is_understood = all(keyword["name"] for keyword in keywords)
    schemas = [_unquote_value(keyword["value"]) for keyword in keywords if keyword["name"] == "schema"]
    if not is_understood or not schemas:
        return connection_string, None
    rest = [keyword[0].strip() for keyword in keywords if keyword["name"] != "schema"]
    return " ".join(rest), schemas[-1]


def _unquote_value(value: str) -> str:
    """Return what a value in a connection string of keywords stands for."""
    if value.startswith("'"):
        value = value[1:].removesuffix("'")
    return re.sub(r"\\(.)", r"\1", value)


def find_passwords(names: Iterable[str]) -> set[str]:
    """Return the passwords in names of stores, as they are typed and as they are meant."""
    # A saver or a client may repeat in a message what was typed, or what it made of that, without quotes and with the
    # escapes of a URL decoded. Both forms are hidden.
    typed: set[str] = set()
    for name in names:
        for match in _PASSWORD_OPTION.finditer(name):
            typed.add(match[2])
            typed.add(_unquote_value(match[2]))
        typed.update(_USER_AND_PASSWORD.findall(name))
        typed.update(match[2] for match in _URL_PASSWORD.finditer(name))
    if not typed:
        return typed
    from urllib.parse import unquote

    found = typed | {unquote(password) for password in typed}
    return {password for password in found if len(password) >= _MIN_PASSWORD}


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


# Stores

KEY_FILE: Final[ContextVar[str | None]] = ContextVar("KEY_FILE", default=None)
"""The path of the file with the keys of sealed stores."""
_OPENED: Final[ContextVar[ExitStack | None]] = ContextVar("_OPENED", default=None)
"""Closes the stores that a command has opened."""

_SECONDS_UNTIL_SYNC: Final = 5.0
"""For stores to which threads are copied: the copy brings each thread to the disk before it is complete."""
_FILE_KINDS: Final = frozenset({FILE, "disk", "filesystem"})
"""The names of the saver in a directory."""
_ARGUMENTS: Final = {FILE: "a directory", SQLITE: "a file", POSTGRES: "a connection string"}
"""The savers that have keys, and what follows their names."""

_ENTRY_DIRECTORIES: Final = frozenset({"langgraph-store", "langgraph-cache"})
"""The names of the directories of LangGraph's store and cache."""
_SQLITE_MAGIC: Final = b"SQLite format 3\0"


def open_store(
    name: str, *, create: bool = False, is_sealed: bool = True, for_copies: bool = False
) -> BaseCheckpointSaver:
    """Open a store: a directory, `kind:argument` for an installed saver, or a PostgreSQL URL.

    Args:
        name: what the user typed.
        create: whether a directory or a database file may be missing or empty.
        is_sealed: whether to use the keys of the key file.
        for_copies: whether puts may wait for the disk, if the saver has that option.

    Raises:
        UsageError: the name is empty.
        CheckpointerConfigurationError: the directory or the database file does not exist, or is a
            file or a directory.
        CheckpointFormatError: the directory or the database is not a store, or is one of a newer
            version.
    """
    from graphkit import registry

    store = parse_store_name(name)
    options: dict[str, Any] = {"path": store.argument}
    key_file = KEY_FILE.get()
    if is_sealed and key_file is not None:
        options["cipher"] = key_file
    _check_store(name, store, create=create, is_sealed="cipher" in options)
    if store.schema is not None:
        options["schema"] = store.schema
    if for_copies:
        # Not every saver has the option. What else is wrong with the options is found when it is made.
        with suppress(CheckpointerConfigurationError):
            registry.check_saver_options(store.kind, **options, fsync=_SECONDS_UNTIL_SYNC)
            options["fsync"] = _SECONDS_UNTIL_SYNC
    saver = registry.get_saver(store.kind, **options)
    close_in_the_end(saver.close)
    # The savers of databases create their tables at the first use. A command that only reads must not.
    if not create and isinstance(saver, SupportsExists) and not saver.exists():
        where = "this database; check its name"
        if store.kind == POSTGRES:
            schema = escape(store.schema or "graphkit")
            where = f"schema {schema} of this database; check both names (see `schema` in docs/cli.md)"
        raise CheckpointFormatError(
            escape(hide_passwords(name)),
            f"there are no tables of graphkit in {where}, or create them with graphkit run or copy --to",
        )
    return saver


def names_store(name: str) -> bool:
    """Return whether a word names something that may be a store: something that exists, or a kind of store."""
    return parse_store_name(name) != StoreName(FILE, name) or _exists(name)


def is_new_directory(name: str) -> bool:
    """Return whether a store is a directory that is missing or empty, so that opening it would create the store."""
    store = parse_store_name(name)
    if store.kind != FILE:
        return False
    path = Path(store.argument)
    if path.is_dir():
        return not any(path.iterdir())
    return not path.exists()


def open_target(name: str) -> tuple[str | BaseCheckpointSaver, dict[str, str]]:
    """Return where an import writes, and its options: the name of a directory with its keys, or a saver.

    Creates no directory.
    """
    store = parse_store_name(name)
    if store.kind != FILE:
        return open_store(name, create=True), {}
    _check_store(name, store, create=True, is_sealed=False)
    key_file = KEY_FILE.get()
    return store.argument, {} if key_file is None else {"cipher": key_file}


@contextmanager
def provide_stores(key_file: str | None) -> Iterator[None]:
    """Open the stores of the block with the keys of a file, if there is one, and close them at its end."""
    # Context variables, not arguments: most commands open stores, many of them in functions that they share.
    with ExitStack() as opened:
        opened.callback(_OPENED.reset, _OPENED.set(opened))
        opened.callback(KEY_FILE.reset, KEY_FILE.set(key_file))
        yield


def _list_kinds() -> Sequence[str]:
    """Return the kinds of stores that a name may begin with."""
    from graphkit import registry

    return sorted({*registry.saver_names(), SQLITE, POSTGRES})


def _check_store(name: str, store: StoreName, *, create: bool, is_sealed: bool) -> None:
    """Check what the user typed as the name of a store, and what it stands for.

    Raises:
        UsageError: the name is empty, or there is nothing after the kind.
        CheckpointerConfigurationError: a directory or a database file is missing and may not be created, or the kind
            has no keys.
        CheckpointFormatError: a directory is not a store.
    """
    if not name:
        raise UsageError("no checkpoint directory: pass it as the first argument, or set GRAPHKIT_DIR")
    if is_sealed and store.kind not in _ARGUMENTS:
        raise CheckpointerConfigurationError(
            f"a store of {store.kind} cannot be sealed, and --key-file (or GRAPHKIT_KEYS) asks for it: leave it "
            f"out, or use a directory or a database; to copy from a sealed store without sealing, add --plaintext"
        )
    what = _ARGUMENTS.get(store.kind)
    if what is not None and not store.argument:
        raise UsageError(f"{store.kind}: needs {what} after it")
    if store.kind == FILE:
        _check_directory(Path(store.argument), create=create, has_kind=store.argument != name)
    if store.kind != SQLITE or create:
        return
    path = Path(store.argument)
    file = escape(store.argument)
    if not path.exists():
        hint = _suggest_entry(path, are_files=True)
        raise CheckpointerConfigurationError(f"there is no database file {file}{hint}")
    if path.is_dir():
        raise CheckpointerConfigurationError(f"{file} is a directory; name the database file, or leave out {SQLITE}:")


def _check_directory(path: Path, *, create: bool, has_kind: bool) -> None:
    """Check the name of a directory.

    Args:
        path: what the user typed, without the kind.
        create: whether the directory may be missing or empty.
        has_kind: whether a kind was before it; otherwise the beginning of a missing directory may be a misspelt kind.

    Raises:
        CheckpointerConfigurationError: the directory is missing and may not be created, or it is a file.
        CheckpointFormatError: it is not a store.
    """
    name = escape(hide_passwords(str(path)))
    if not path.exists():
        # The kind of `sqlit:runs.db` may be misspelt; it must not become a directory of this name.
        kind, colon, _ = str(path).partition(":")
        kinds = _list_kinds() if colon and not has_kind else ()
        kind_hint = suggest(f"{kind}:", [f"{known}:" for known in kinds], show=escape)
        if kind_hint:
            raise CheckpointerConfigurationError(f"there is no kind of store for {name}{kind_hint}")
        if create:
            return
        raise CheckpointerConfigurationError(f"there is no directory {name}{_suggest_entry(path, are_files=False)}")
    if create:
        return

    if not path.is_dir():
        hint = ""
        with suppress(OSError), path.open("rb") as file:
            if file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC:
                hint = f"; for a database type {SQLITE}:{name}"
        raise CheckpointerConfigurationError(f"{name} is a file; name the directory of the checkpoints{hint}")

    # By name, since graphkit does not import savers. Asked before the saver is made, which would make any directory a
    # store.
    saver_class = importlib.import_module("savers").FileSystemSaver
    if not saver_class.is_store(path) and not has_entries(path):
        raise CheckpointFormatError(name, "not a checkpoint directory: it has no graphkit.store")


def load_langgraph() -> Any:
    """Return savers.langgraph."""
    # By name, since graphkit does not import savers, and the extra may not be installed.
    return importlib.import_module("savers.langgraph")


def has_entries(directory: Path) -> bool:
    """Return whether a directory has a store or a cache of LangGraph."""
    return any((directory / name).is_dir() for name in _ENTRY_DIRECTORIES)


def call_for_entries(saver: object, function: str, **options: Any) -> Mapping[str, Any]:
    """Call a function of savers.langgraph.entry_log for LangGraph's store and cache in the directory of a saver.

    Returns:
        What it returns: a mapping by what the entries are called; an empty one if there is neither.
    """
    if not isinstance(saver, HasBaseDirectory) or not has_entries(Path(saver.base_directory)):
        return {}
    # By name, since graphkit does not import savers.
    entry_log = importlib.import_module("savers.langgraph.entry_log")
    return dict(getattr(entry_log, function)(saver.base_directory, **options))


def close_in_the_end(close: Callable[[], object]) -> None:
    """Call a function when the command ends."""
    opened = _OPENED.get()
    if opened is not None:  # the completion of a command line has no end
        opened.callback(close)


def _suggest_entry(path: Path, *, are_files: bool) -> str:
    """Return the end of a message about a missing file or directory: those beside it that resemble it."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file() == are_files]
    except OSError:
        return ""
    return suggest(path.name, names, show=escape)


# Placeholder types


@contextmanager
def with_placeholder_types() -> Iterator[None]:
    """Read values of unregistered types as objects of classes with the same names and fields.

    As a decorator, it is for a command that only reads.
    """
    from graphkit._values.codec import MAKE_PLACEHOLDER

    token = MAKE_PLACEHOLDER.set(_make_placeholder)
    try:
        yield
    finally:
        MAKE_PLACEHOLDER.reset(token)


@cache
def _make_placeholder(flavour: str, type_name: str, parts: tuple[Any, ...]) -> type | None:
    """Make the class of a value: of its fields, or of what its Enum stores; None if no class can have these."""
    try:
        placeholder: type = _make_class(flavour, parts)
    except Exception:  # noqa: BLE001 - stored names may be any text, and each kind of class refuses other names
        return None
    module, _, name = type_name.rpartition(".")
    placeholder.__name__ = placeholder.__qualname__ = name
    placeholder.__module__ = module or "builtins"
    # The value may be in a set, or be a key, although a field of it has no hash: its type may leave that field out.
    setattr(placeholder, "__hash__", lambda value: hash(repr(value)))  # noqa: B010 - mypy takes this one
    return placeholder


def _make_class(flavour: str, parts: tuple[Any, ...]) -> Any:
    if flavour == "dataclass":
        return make_dataclass("Placeholder", parts)
    if flavour == "namedtuple":
        return namedtuple("Placeholder", parts)  # noqa: PYI024 - data
    if flavour == "enum" and isinstance(parts[0], int):
        return enum.Flag("Placeholder", {"NONE": 0}, boundary=enum.KEEP)
    if flavour == "enum":
        return enum.Enum("Placeholder", {part: part for part in parts})
    import warnings

    from pydantic import create_model

    with warnings.catch_warnings(action="ignore"):  # about names that pydantic reserves
        fields: dict[str, Any] = dict.fromkeys(parts, (Any, None))
        return create_model("Placeholder", **fields)
