"""The names of files and directories in a store. Does not know the contents of the files."""

from __future__ import annotations

import os
import re
from base64 import b32encode
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from savers._log.frame import digest_thread

MARKER: Final = "graphkit.store"
LOCKS: Final = "locks"
LOG: Final = "log"
RUN_LOCK: Final = "run.lock"
TEMPORARY: Final = "tmp-"
THREAD: Final = "t-"
"""The prefix of the directories of threads."""
_NAMESPACE: Final = "n-"
"""The prefix of the directories of namespaces."""
RELEASING: Final = "r-"
TORN: Final = "torn-"
DAMAGED: Final = "damaged-"
SALVAGED_PREFIXES: Final = (TORN, DAMAGED)
"""Files with these prefixes hold salvaged bytes and are only removed with their thread."""

STRIPES: Final = 64
"""How many lock files there are for write locks."""

_MARKER_LEFTOVER: Final = re.compile(rf"{TEMPORARY}[0-9a-f-]{{36}}\Z")
_NOT_PLAIN: Final = re.compile(r"[^a-z0-9]+")
_VERSION: Final = re.compile(r"v(\d{6,})\.log\Z")
_NAME: Final = re.compile(r"[tn]-([a-z0-9-]{0,40})-[a-z2-7]{24}\Z")
_SLUG_LENGTH: Final = 40
_HASH: Final = -25
"""Where the hash at the end of a directory's name begins, with the hyphen before it."""
_DIGITS: Final = str.maketrans("abcdefghijklmnopqrstuvwxyz234567", "0123456789abcdefghijklmnopqrstuv")
"""From the digits of base32 to those that int() accepts."""


class ThreadDirectory(NamedTuple):
    """Where the history of one namespace of a thread lies. Frozen; `locate_thread` makes it."""

    thread_id: str
    namespace: str
    """"" for the root namespace, whose directory is that of the thread."""
    root: str
    """The directory of the store; if it is "", all paths are relative to it."""
    name: str
    """The name of the thread's directory below the root."""
    digest: bytes
    """16 bytes of the thread digest, which stand in the header of each log of the thread."""
    thread_path: str
    """The directory of the thread."""
    path: str
    """The directory of the namespace: it has the logs."""

    @property
    def stripe(self) -> int:
        """The number of the thread's write lock."""
        return self.digest[0] & (STRIPES - 1)

    @property
    def live_log(self) -> str:
        """The live log."""
        return join(self.path, LOG)

    def released_log(self, version: int) -> str:
        """Return the log of a released version."""
        return join(self.path, version_name(version))

    @property
    def run_lock(self) -> str:
        """The run lock of the thread."""
        return join(self.thread_path, RUN_LOCK)

    @property
    def ending_mark(self) -> str:
        """The name in the root that marks an unfinished release or delete of the thread."""
        return join(self.root, RELEASING + self.name.removeprefix(THREAD))

    @property
    def leftover(self) -> str:
        """Where the thread's directory goes before it is removed."""
        return join(self.root, TEMPORARY + self.name)

    @property
    def parents(self) -> list[str]:
        """The directories whose names lead to the logs, the innermost first."""
        if self.namespace:
            return [self.path, self.thread_path, self.root]
        return [self.path, self.root]

    def in_namespace(self, namespace: str) -> ThreadDirectory:
        """Return the directory of another namespace of the thread."""
        return locate_thread(self.thread_id, namespace, self.root)


@lru_cache(maxsize=4096)
def locate_thread(thread_id: str, namespace: str = "", root: str = "") -> ThreadDirectory:
    """Return where a history lies; takes 10 us if it is not in the cache."""
    name = _make_name(THREAD, thread_id)
    thread_path = join(root, name)
    return ThreadDirectory(
        thread_id=thread_id,
        namespace=namespace,
        root=root,
        name=name,
        digest=digest_thread(thread_id),
        thread_path=thread_path,
        path=join(thread_path, namespace_name(namespace)),
    )


def namespace_name(namespace: str) -> str:
    """Return the name of a namespace's directory; "" for the root namespace."""
    if not namespace:
        return ""
    return _make_name(_NAMESPACE, namespace)


def is_name_of(name: str, id: str) -> bool:
    """Return whether a directory with this name is that of a thread or a namespace with this id."""
    return name == _make_name(name[:2], id)


def _make_name(prefix: str, text: str) -> str:
    slug = _NOT_PLAIN.sub("-", text.lower())[:_SLUG_LENGTH]
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=15).digest()
    return f"{prefix}{slug}-{_encode(digest)}"


def _encode(digest: bytes) -> str:
    return b32encode(digest).decode("ascii").lower()


def random_thread_name(name: str) -> str:
    """Return a name with the slug of another one that no thread's directory has."""
    return f"{name[:_HASH]}-{_encode(os.urandom(15))}"


def is_thread(name: str) -> bool:
    """Return whether this is the name of a thread's directory."""
    return name.startswith(THREAD) and _NAME.match(name) is not None


def parse_releasing_name(name: str) -> str | None:
    """Return the directory of the thread whose unfinished release a name in the root marks.

    None for other names.
    """
    if not name.startswith(RELEASING):
        return None
    thread = THREAD + name.removeprefix(RELEASING)
    if not is_thread(thread):
        return None
    return thread


def is_marker_leftover(name: str) -> bool:
    """Return whether this is the name of a marker that was never renamed."""
    return _MARKER_LEFTOVER.match(name) is not None


def is_leftover(name: str) -> bool:
    """Return whether this is the name of a thread's directory that was being removed."""
    return name.startswith(TEMPORARY) and is_thread(name.removeprefix(TEMPORARY))


def is_log(name: str) -> bool:
    """Return whether this is the name of a live or a released log."""
    return name == LOG or parse_version(name) is not None


def is_namespace(name: str) -> bool:
    """Return whether this is the name of a namespace's directory."""
    return name.startswith(_NAMESPACE) and _NAME.match(name) is not None


def plain_id(name: str) -> str | None:
    """Return the id of a directory if its slug is that id, else None.

    The META records of the logs contain every id. A store may have to check 10,000 names, so this
    does not make a name of the slug, which would take 6 us.
    """
    slug = name[2:_HASH]
    # A slug of the full length may have been cut, and each run of other characters became one hyphen.
    if not 0 < len(slug) < _SLUG_LENGTH or "--" in slug or _NAME.match(name) is None:
        return None
    expected = blake2b(slug.encode(), digest_size=15).digest()
    digest = name[_HASH + 1 :].translate(_DIGITS)
    if int(digest, 32) != int.from_bytes(expected, "big"):
        return None
    return slug


def version_name(version: int) -> str:
    """Return the name of a released log."""
    return f"v{version:06d}.log"


def parse_version(name: str) -> int | None:
    """Return the version in the name of a released log; None for other names."""
    match = _VERSION.match(name)
    if match is None:
        return None
    return int(match[1])


def join(*parts: str) -> str:
    """Return a path of the parts that are not empty."""
    return os.sep.join(filter(None, parts))
