"""The keys that seal stored data, and how the key of one log is derived.

A user's key never seals anything itself. From it and a random salt, HKDF-SHA256 derives a key for
one history of one thread, and a *check*: a few bytes that show whether a reader has the same key.

A history may have a key of its own (`SubjectKeys`). Then the id of the key is stored behind
`OWN_KEY`, in each record, so that every saver keeps to it, also one that does not know why. An
earlier graphkit finds no key with such an id, and so seals nothing of that history with another one.
"""

from __future__ import annotations

import os
import stat
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, final

from graphkit.errors import (
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointKeyError,
    CheckpointStorageError,
    MissingDependencyError,
)
from graphkit.saver_kit import check_function

DESTROYED: Final = b"destroyed"
"""What stands in the place of a key that was destroyed: in a mapping, as the result of a function, and
as a word in a key file. What the key sealed is erased, and `verify` does not call it damaged."""

_FIELDS: Final = 2
"""A line has a key id and a key."""


class _Content(NamedTuple):
    """What a key file had when it was read."""

    identity: tuple[int, int, int] | None
    """What shows that the file has changed: inode, size and time; None before it was read."""
    keys: Mapping[str, bytes]


@final
class KeyFile:
    """A `cipher` whose keys stand in a file, one per line: its id, and the key in base64.

    The first key is the current one: it seals what has no key of its own. So the first `add` to a new
    file must be of a key that all share, and not that of a subject. Empty lines, and lines that
    begin with `#`, are skipped. In the place of a key that was destroyed stands the word `destroyed`.
    The file is looked at each time a key is needed: that is when a log is opened. A pickle holds only
    its path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Path(path).absolute())
        self._content = _Content(None, {})
        """What was read last. With a key for each of 10,000 subjects, reading takes 10 ms.

        One attribute: threads that read at the same time must not mix the keys of one with the
        identity of another, or a key that was destroyed would go on working.
        """

    def __call__(self, key_id: str | None) -> bytes | tuple[str, bytes]:
        """Return a key by its id, DESTROYED if it was destroyed; for None the id of the current key, and the key.

        Raises:
            LookupError: the file has no such key.
            CheckpointerConfigurationError: the file cannot be read, or is malformed.
        """
        return _find_key(self.read(), key_id)

    def read(self) -> Mapping[str, bytes]:
        """Return all keys, the current one first; DESTROYED in the place of those that were destroyed.

        Raises:
            CheckpointerConfigurationError: the file cannot be read, or is malformed. The message
                shows no key.
        """
        try:
            status = Path(self.path).stat()
            identity = status.st_ino, status.st_size, status.st_mtime_ns
            content = self._content
            if content.identity == identity:
                return content.keys
            lines = self._read_lines()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointerConfigurationError(f"the key file {self.path} cannot be read: {error}") from error
        keys = self._parse(lines)
        if not keys:
            raise CheckpointerConfigurationError(f"the key file {self.path} has no key")
        self._content = _Content(identity, keys)
        return keys

    def add(self, key_id: str) -> str:
        """Add a new random key behind the others, unless the file has one with this id; return the id.

        A key that was destroyed stays destroyed. A missing file is created. Processes that add keys at
        the same time exclude each other.

        Raises:
            CheckpointerConfigurationError: the id is not one word, or the file is malformed.
            CheckpointStorageError: the file cannot be written, or its owner cannot be kept. It is unchanged.
        """
        if key_id in self._content.keys and key_id in self.read():
            return key_id  # The usual case, for each history of a known subject, also where the file is read-only.
        if key_id.split() != [key_id] or key_id.startswith("#") or not key_id.isprintable():
            raise CheckpointerConfigurationError(f"the id of a key in a key file must be one word, not {key_id!r}")
        _check_id(key_id)
        with self._locked() as lines:
            if key_id not in self._parse(lines):
                key = b64encode(os.urandom(KEY_SIZE)).decode()
                self._write([*lines, f"{key_id} {key}"])
        return key_id

    def destroy(self, key_id: str) -> None:
        """Put the word `destroyed` in the place of a key, so that what it sealed is erased.

        The key is gone from the file. Backups of the file, and the blocks of the disk where it was, may
        still have it. A saver that has a history open knows its key until it is closed.

        Raises:
            LookupError: the file has no such key.
            CheckpointerConfigurationError: the file cannot be read, or is malformed; or the key is the
                current one, with which new records are sealed. Put another key before it first.
            CheckpointStorageError: the file cannot be written, or its owner cannot be kept. It is unchanged.
        """
        with self._locked() as lines:
            keys = self._parse(lines)
            if key_id not in keys:
                raise LookupError(f"the key file {self.path} has no key {key_id!r}")
            if key_id == next(iter(keys)):
                raise CheckpointerConfigurationError(
                    f"the key {key_id!r} of {self.path} is the current key: put another key before it first"
                )
            destroyed = f"{key_id} {DESTROYED.decode()}"
            self._write([destroyed if line.split(maxsplit=1)[:1] == [key_id] else line for line in lines])

    @contextmanager
    def _locked(self) -> Iterator[list[str]]:
        """Exclude other processes that change the file; yield its lines."""
        from filelock import FileLock

        # The lock of the file itself: links to one file have one lock.
        path = Path(self.path).resolve()
        lock = path.with_name(f"{path.name}.lock")
        try:
            with FileLock(lock):
                lines = []
                if path.exists():
                    status = path.stat()
                    if os.name == "posix" and os.geteuid() == 0 and status.st_uid != 0:
                        # The owner of the keys could not open a lock file that is root's.
                        os.chown(lock, status.st_uid, status.st_gid, follow_symlinks=False)
                    lines = self._read_lines()
                yield lines
        except UnicodeDecodeError as error:
            raise CheckpointerConfigurationError(f"the key file {self.path} cannot be read: {error}") from error
        except OSError as error:
            raise CheckpointStorageError(self.path, "write to", error) from error

    def _write(self, lines: list[str]) -> None:
        """Replace the file. After a crash, it is the old or the new one."""
        # Not in place, although that would overwrite a destroyed key: a write that is cut short could take other keys
        # along, and what they sealed would be lost.
        path = Path(self.path).resolve()
        temporary = path.with_name(f"{path.name}.new")
        # O_EXCL and the descriptor: root must not follow a link that the owner of the directory has put there.
        temporary.unlink(missing_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="utf-8", newline="\n") as file:
                if os.name == "posix" and path.exists():
                    _copy_access(path.stat(), fd)
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                os.fsync(fd)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if os.name == "posix":
            directory = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def _read_lines(self) -> list[str]:
        # Editors of Windows write a byte order mark, which would become a part of the id of the first key.
        return Path(self.path).read_text(encoding="utf-8-sig").splitlines()

    def _parse(self, lines: list[str]) -> dict[str, bytes]:
        keys: dict[str, bytes] = {}
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if not fields or fields[0].startswith("#"):
                continue
            key = _decode_key(fields[1]) if len(fields) == _FIELDS else None
            if key is None:
                raise self._error(number, "must be a key id and 32 bytes in base64, or `destroyed`")
            if fields[0] in keys:
                raise self._error(number, f"repeats the key id {fields[0]!r}")
            keys[fields[0]] = key
        return keys

    def _error(self, number: int, reason: str) -> CheckpointerConfigurationError:
        return CheckpointerConfigurationError(f"line {number} of the key file {self.path} {reason}")

    def __repr__(self) -> str:
        return f"KeyFile({self.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the keys."""
        return KeyFile, (self.path,)


def _find_key(keys: Mapping[str, bytes], key_id: str | None) -> bytes | tuple[str, bytes]:
    """Return a key by its id; for None the id of the current key, and the key. As a `cipher` that is a function."""
    if key_id is None:
        return next(iter(keys.items()))
    return keys[key_id]


def _copy_access(old: os.stat_result, fd: int) -> None:
    """Give a new file the user, the group and the mode of an old one.

    Raises:
        OSError: this process may not do so, and the difference matters.
    """
    new = os.fstat(fd)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.chown(fd, old.st_uid, old.st_gid)
        except PermissionError:
            # A user who is no member of the group cannot set it. That does no harm where the group has no rights.
            has_group_rights = bool(old.st_mode & stat.S_IRWXG)
            if new.st_uid != old.st_uid or has_group_rights:
                raise
    os.chmod(fd, stat.S_IMODE(old.st_mode))


def _decode_key(text: str) -> bytes | None:
    if text == DESTROYED.decode():
        return DESTROYED
    try:
        key = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        return None
    return key if len(key) == 32 else None  # noqa: PLR2004 - as the message says


Keys: TypeAlias = Mapping[str, bytes] | Callable[[str | None], Any] | str | os.PathLike[str]
"""Keys of 32 bytes by their ids, the current one first; or a function from an id to its key, which
returns the id and the key of the current one for None; or the path of a key file."""
KeyFor: TypeAlias = Callable[[str, Mapping[str, Any]], str | None]
"""Returns the id of the key that a history has of its own, for a thread id and the metadata of the first
checkpoint."""


@final
class SubjectKeys:
    """A `cipher` with which histories have keys of their own, so that destroying a key erases all copies of them.

    `key_for` is asked when the first record of a history is stored. From then on the history keeps the
    key: copies and forks have it, rotation does not change it, and a later answer does not matter.
    """

    def __init__(self, keys: Keys, *, key_for: KeyFor) -> None:
        """Take the keys, and the function that chooses among them.

        Args:
            keys: the keys: a mapping, a function or the path of a key file, as for `cipher`.
            key_for: called with the thread id and the metadata of the first checkpoint. Returns the
                id of the key of the history. None: it has no key of its own, and is sealed with
                the current one. If it raises, nothing is stored.

        Raises:
            CheckpointerConfigurationError: `key_for` is not a function, or is asynchronous.
        """
        check_function("key_for", key_for, CheckpointerConfigurationError)
        self.keys = keys
        self.key_for = key_for

    def __repr__(self) -> str:
        return f"SubjectKeys(key_for={self.key_for!r})"


Cipher: TypeAlias = Keys | SubjectKeys
"""What seals a store."""

OWN_KEY: Final = "\0own\0"
"""What precedes the id of the key that a history has of its own, where the id is stored."""


def has_own_key(stored_id: str) -> bool:
    """Return whether a stored key id is that of a key that the history has of its own."""
    return stored_id.startswith(OWN_KEY)


def get_key_name(stored_id: str) -> str:
    """Return the user's id for a stored key id."""
    return stored_id.removeprefix(OWN_KEY)


KEY_SIZE: Final = 32
"""Bytes of a user's key."""
SALT_SIZE: Final = 16
CHECK_SIZE: Final = 4
MAX_KEY_ID: Final = 255
"""Bytes of the longest key id, in UTF-8."""
_LABEL: Final = b"graphkit sealed record\0"


class DerivedKey(NamedTuple):
    """What seals the records of one history."""

    aead: Any
    """AES-256-GCM with the derived key: `encrypt` and `decrypt`."""
    refusal: type[Exception]
    """What `decrypt` raises if the bytes are not what was encrypted."""
    check: bytes
    """Shows a reader whether it has derived the same key."""


@final
class KeyRing:
    """The keys of a saver. Its repr shows none of them."""

    def __init__(self, cipher: Cipher) -> None:
        """Check the keys, and that the package is installed.

        Raises:
            CheckpointerConfigurationError: the cipher is not a mapping of ids to keys, a function,
                the path of a key file or SubjectKeys.
            MissingDependencyError: the package `cryptography` is not installed.
        """
        keys: Any = cipher
        key_for = None
        if isinstance(cipher, SubjectKeys):
            keys = cipher.keys
            key_for = cipher.key_for
        if isinstance(keys, (str, os.PathLike)):
            keys = KeyFile(keys)
        if isinstance(keys, KeyFile):
            keys.read()  # raises at once what is wrong with it
        find_key: Callable[[str | None], Any] = keys
        if isinstance(keys, Mapping):
            if not keys:
                raise CheckpointerConfigurationError("cipher has no key; the first one seals new records")
            # A copy: the caller may change or clear the mapping.
            keys = dict(keys)
            for key_id, key in keys.items():
                _check_id(key_id)
                if key != DESTROYED:
                    _check_key(key_id, key)
            find_key = partial(_find_key, keys)
        elif not callable(keys):
            raise CheckpointerConfigurationError(
                f"cipher must be a mapping of key ids to keys, a function, the path of a key file or SubjectKeys, "
                f"not {type(keys).__name__}",
            )
        _import_aesgcm()
        self._find_key = find_key
        self._key_for = key_for
        self.cipher: Cipher = keys
        """What opens another saver with the same keys."""
        if key_for is not None:
            self.cipher = SubjectKeys(keys, key_for=key_for)

    @property
    def has_key_for(self) -> bool:
        """Whether a function chooses the keys of new histories."""
        return self._key_for is not None

    def get_current(self, path: str) -> tuple[str, bytes]:
        """Return the id of the current key, and the key.

        Args:
            path: the file to seal, for errors.

        Raises:
            CheckpointKeyError: the function that provides the keys failed; or the key was destroyed
                (CheckpointErasedError).
            CheckpointerConfigurationError: it returned something else than an id and a key.
        """
        try:
            current = self._find_key(None)
        except Exception as error:
            raise CheckpointKeyError(path, "(current)", _describe_failure(error)) from error
        if not isinstance(current, tuple) or len(current) != len(("id", "key")):
            raise CheckpointerConfigurationError(
                f"cipher(None) must return the id and the key of the current key, not {type(current).__name__}",
            )
        key_id, key = current
        _check_id(key_id)
        if key == DESTROYED:
            raise CheckpointerConfigurationError(f"the current key {key_id!r} was destroyed; put another key first")
        _check_key(key_id, key)
        return key_id, key

    def find(self, stored_id: str, path: str) -> bytes:
        """Return the key with a stored id.

        Raises:
            CheckpointErasedError: the key was destroyed.
            CheckpointKeyError: there is no such key.
            CheckpointerConfigurationError: the function that provides the keys returned no key.
        """
        key_id = get_key_name(stored_id)
        try:
            key = self._find_key(key_id)
        except LookupError as error:
            raise CheckpointKeyError(path, key_id, "no such key was given; add it") from error
        except Exception as error:
            raise CheckpointKeyError(path, key_id, _describe_failure(error)) from error
        if key == DESTROYED:
            raise CheckpointErasedError(path, key_id)
        _check_key(key_id, key)
        return bytes(key)

    def choose(self, thread_id: str, metadata: Mapping[str, Any], path: str) -> str:
        """Return the stored id of the key that a new history has of its own; "" if it has none.

        Raises:
            CheckpointKeyError: the function that chooses it failed.
            CheckpointerConfigurationError: it returned no id.
        """
        if self._key_for is None:
            return ""
        try:
            key_id = self._key_for(thread_id, metadata)
        except Exception as error:
            reason = f"key_for raised {type(error).__name__}: {error}"
            raise CheckpointKeyError(path, "(chosen by key_for)", reason) from error
        if key_id is None:
            return ""
        return own_key(key_id)


def own_key(key_id: str) -> str:
    """Return what is stored for the id of a key that a history has of its own."""
    _check_id(key_id, OWN_KEY)
    return OWN_KEY + key_id


def _describe_failure(error: Exception) -> str:
    return f"the function that provides the keys raised {type(error).__name__}: {error}"


def _check_id(key_id: Any, prefix: str = "") -> None:
    longest = MAX_KEY_ID - len(prefix)
    if not isinstance(key_id, str) or not 1 <= len(encode_text(key_id)) <= longest:
        raise CheckpointerConfigurationError(f"a key id must be text of 1 to {longest} bytes, not {key_id!r}")
    if key_id.startswith(OWN_KEY):
        raise CheckpointerConfigurationError(f"a key id must not begin with {OWN_KEY!r}, as {key_id!r} does")


def _check_key(key_id: str, key: Any) -> None:
    """Refuse an invalid key. The message does not show it."""
    if not isinstance(key, bytes) or len(key) != KEY_SIZE:
        found = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise CheckpointerConfigurationError(
            f"the key {key_id!r} must be {KEY_SIZE} random bytes, not {found}; os.urandom({KEY_SIZE}) makes one",
        )


def parse_cipher(option: Any) -> KeyRing | None:
    """Return the KeyRing for an option, None without one; see KeyRing for the errors."""
    return None if option is None else KeyRing(option)


def check_cipher(option: Any) -> None:
    """Check an option of a saver that is not opened; a key file may be missing. See KeyRing for the errors."""
    if not isinstance(option, str | os.PathLike):
        parse_cipher(option)


def derive_key(key: bytes, salt: bytes, thread_id: str, namespace: str) -> DerivedKey:
    """Derive what seals the records of one history with one salt. Takes about 6 us."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    thread = encode_text(thread_id)
    owner = len(thread).to_bytes(4, "little") + thread + encode_text(namespace)
    derived = HKDF(SHA256(), KEY_SIZE + CHECK_SIZE, salt=salt, info=_LABEL + owner).derive(key)
    aead = _import_aesgcm()(derived[:KEY_SIZE])
    return DerivedKey(aead=aead, refusal=InvalidTag, check=derived[KEY_SIZE:])


def encode_text(text: str) -> bytes:
    """Return a text in UTF-8; lone surrogates are encoded like other code points."""
    return text.encode("utf-8", "surrogatepass")


def _import_aesgcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise MissingDependencyError("cryptography", "encryption") from error
    return AESGCM
