"""Names and paths of a checkpoint directory. Knows nothing of what is in the files."""

from __future__ import annotations

import os
import re
from base64 import b32encode
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

MARKER: Final = "graphkit.store"
LOCKS: Final = "locks"
LOG: Final = "log"
RUN_LOCK: Final = "run.lock"
TEMPORARY: Final = "tmp-"
RELEASING: Final = "r-"
TORN: Final = "torn-"
DAMAGED: Final = "damaged-"
SALVAGED_PREFIXES: Final = (TORN, DAMAGED)
"""What begins so was set aside, and is never removed but with its thread."""

STRIPES: Final = 64

_MARKER_LEFTOVER: Final = re.compile(rf"{TEMPORARY}[0-9a-f-]{{36}}\Z")
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9]+")
_VERSION: Final = re.compile(r"v(\d{6,})\.log\Z")
_NAME: Final = re.compile(r"[tn]-([a-z0-9-]{0,40})-[a-z2-7]{24}\Z")
_SLUG_LENGTH: Final = 40
_SHORT: Final = 40
_HASH: Final = -25
_DIGITS: Final = str.maketrans("abcdefghijklmnopqrstuvwxyz234567", "0123456789abcdefghijklmnopqrstuv")
"""From base32 to what int() takes for it."""


class ThreadDirectory(NamedTuple):
    """Where a thread lives."""

    name: str
    """The name of its directory."""
    digest: bytes
    """16 bytes that stand in the header of each of its files."""
    stripe: int
    """The number of its short lock."""


@lru_cache(maxsize=4096)
def locate_thread(thread_id: str) -> ThreadDirectory:
    """Where a thread lives; 5 us for one not seen lately."""
    digest = blake2b(thread_id.encode("utf-8", "surrogatepass")).digest()
    return ThreadDirectory(_name("t-", thread_id), digest[:16], digest[0] & (STRIPES - 1))


@lru_cache(maxsize=4096)
def namespace_name(namespace: str) -> str:
    """The name of a namespace's directory inside its thread's, "" at the root."""
    return _name("n-", namespace) if namespace else ""


def _name(prefix: str, text: str) -> str:
    slug = _NOT_PLAIN.sub("-", text.lower())[:_SLUG_LENGTH]
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return f"{prefix}{slug}-{b32encode(digest).decode('ascii').lower()}"


def random_thread_name(name: str) -> str:
    """A name like that of a thread's directory, which no thread has."""
    return f"{name[:_HASH]}-{b32encode(os.urandom(15)).decode('ascii').lower()}"


def is_thread(name: str) -> bool:
    """Whether this is the name of a thread's directory."""
    return name.startswith("t-") and _NAME.match(name) is not None


def releasing_name(name: str) -> str:
    """The name in the root that tells that a release of the thread with this directory was begun."""
    return RELEASING + name.removeprefix("t-")


def parse_releasing_name(name: str) -> str | None:
    """The directory of the thread whose release this name in the root tells of, None for any other name."""
    thread = "t-" + name.removeprefix(RELEASING)
    return thread if name.startswith(RELEASING) and is_thread(thread) else None


def temporary_marker_name(id: str) -> str:
    """The name under which a marker is written before it takes its place; the id is another one for each writer."""
    return f"{TEMPORARY}{id}"


def is_marker_leftover(name: str) -> bool:
    """Whether a marker that never took its place has this name."""
    return _MARKER_LEFTOVER.match(name) is not None


def is_leftover(name: str) -> bool:
    """Whether this is the name of a thread's directory that was being removed."""
    return name.startswith(TEMPORARY) and is_thread(name.removeprefix(TEMPORARY))


def is_namespace(name: str) -> bool:
    """Whether this is the name of a namespace's directory."""
    return name.startswith("n-") and _NAME.match(name) is not None


def plain_id(name: str) -> str | None:
    """The id behind a directory's name if the slug is that id, else None: then the log's META record tells it.

    A store may have to look at 10,000 names, so this does not make a name of the slug, which would take 6 us.
    """
    slug, digest = name[2:_HASH], name[_HASH + 1 :]
    if not 0 < len(slug) < _SHORT or "--" in slug or _NAME.match(name) is None:
        return None
    found = int.from_bytes(blake2b(slug.encode(), digest_size=15).digest(), "big")
    return slug if int(digest.translate(_DIGITS), 32) == found else None


def version_name(version: int) -> str:
    """The name of a released log."""
    return f"v{version:06d}.log"


def parse_version(name: str) -> int | None:
    """The version of a released log's name, None for any other name."""
    match = _VERSION.match(name)
    return int(match[1]) if match else None


def join(*parts: str) -> str:
    """A path; empty parts vanish."""
    return os.sep.join(filter(None, parts))
