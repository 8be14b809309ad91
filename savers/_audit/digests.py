"""Digests of what is stored. They tell whether content is the same, and not what it is.

With a key, they are HMACs: only who has the key can confirm a guess. Thread ids, namespaces and
principals are then replaced by such digests, too.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, NamedTuple, final

from graphkit import Checkpoint
from graphkit.abc import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError, CheckpointSerializationError
from graphkit.saver_kit import PLAIN, Codec, FrozenDict, FrozenList
from savers._audit.entries import Entry
from savers._cipher import KeyFile

_LEAST_KEY: Final = 16
_NAMES: Final = ("checkpoint_ns", "principal", "target", "thread_id")
"""The fields that are replaced if there is a key."""
_PURPOSES: Final = {"target": "thread_id"}
"""Both threads of a copy are threads: one digest finds them."""
_SHORT: Final = 256
"""A value of at most this many packed bytes is digested as it is; a longer one by its own digest, which is kept."""
_LONG_MARK: Final = b"\xc1"
"""Begins the digest of a long value: no packed value begins with it."""
_RECORDED: Final = frozenset({"graphkit:tags", "graphkit:writes"})
"""The metadata in which a saver may keep what is recorded with a checkpoint; that is compared by itself."""
_NOTHING: Final[frozenset[str]] = frozenset()
_MOST_HISTORIES: Final = 64
"""Of how many histories the long values of the last state are remembered."""
_MOST_BYTES: Final = 32 << 20
"""How long these are together, packed: they stay in memory as long as they are remembered."""


class _LongValue(NamedTuple):
    value: object
    digested: bytes
    size: int
    """How many bytes it has, packed."""


class _LongValues(NamedTuple):
    by_name: dict[str, _LongValue]
    size: int


_get_head: Final = attrgetter("id", "node_id", "next_node_id", "parent_id", "created_us")
"""Returns what the digest of a checkpoint covers besides its metadata and its state."""


def unwrap(saver: Any) -> Any:
    """Return the saver within all wrappers."""
    while isinstance(getattr(saver, "delegate", None), BaseCheckpointSaver):
        saver = saver.delegate
    return saver


def find_codec(saver: Any) -> Codec:
    """Return the codec of a saver, which knows the types that were registered; a new one if it has none."""
    codec = getattr(saver, "_codec", None)
    return codec if isinstance(codec, Codec) else Codec()


@final
class Digester:
    """Makes digests.

    Attributes:
        is_keyed: whether there is a key.
        check: what the first entry of a log holds to recognize the key; None without a key.
    """

    def __init__(self, key: bytes | str | os.PathLike[str] | None) -> None:
        """Take a key: bytes as they are, or the current key of a key file, as `cipher` has it.

        Raises:
            CheckpointerConfigurationError: it is too short, or the file cannot be read.
        """
        if isinstance(key, (str, os.PathLike)):
            key = next(iter(KeyFile(key).read().values()))
        given: object = key
        if given is not None and (not isinstance(given, bytes) or len(given) < _LEAST_KEY):
            raise CheckpointerConfigurationError(f"a digest key has at least {_LEAST_KEY} bytes")
        self._key = key
        self._prefix = "sha256:" if key is None else "hmac-sha256:"
        self.is_keyed = key is not None
        self.check = self.digest("check", b"") if self.is_keyed else None

    def has_made(self, first: Entry | None) -> bool:
        """Return whether a log that begins with an entry may have digests with this key.

        True if it has no entry, or not its beginning: that is found by its chain.
        """
        return first is None or first["kind"] != "begin" or first.get("key_check") == self.check

    def digest(self, purpose: str, content: bytes) -> str:
        """Return the digest of some bytes; equal bytes have different digests for different purposes."""
        data = purpose.encode() + b"\0" + content
        if self._key is None:
            return self._prefix + sha256(data).hexdigest()
        return self._prefix + hmac.digest(self._key, data, "sha256").hex()

    def digest_text(self, purpose: str, text: str) -> str:
        """Return the digest of a text."""
        return self.digest(purpose, text.encode("utf-8", "surrogatepass"))

    def hide(self, entry: Entry) -> Entry:
        """Return an entry whose ids and principal are digests, if there is a key."""
        if self._key is None:
            return entry
        return {**entry, **{name: self.hide_name(name, entry[name]) for name in _NAMES if entry.get(name) is not None}}

    def hide_name(self, name: str, value: str) -> str:
        """Return a thread id, a namespace or a principal as it stands in the log."""
        return value if self._key is None else self.digest_text(_PURPOSES.get(name, name), value)


@final
class ContentDigester:
    """Makes the digests of what one saver stores.

    The value of a key is the same object in the next state unless the step has changed it. So the
    digest of a long value that cannot be changed in place is kept with the value, for the last state
    of each history: a step digests again only what it has changed.
    """

    def __init__(self, digester: Digester, codec: Codec) -> None:
        self._digester = digester
        self.codec = codec
        self._known: dict[object, _LongValues] = {}

    def digest_checkpoint(self, checkpoint: Checkpoint, history: object = None) -> str | None:
        """Return the digest of a checkpoint; None if a value cannot be packed, as some savers accept it.

        Args:
            checkpoint: the checkpoint.
            history: names its history, for a saver that puts one checkpoint after another.
        """
        # Here, since a state that cannot be read is an error.
        state = checkpoint.state
        known: dict[str, _LongValue] = {}
        remembered = self._known.get(history)
        before = {} if remembered is None else remembered.by_name
        pack = self.codec.pack
        try:
            parts = [self.codec.pack_flat(_get_head(checkpoint))]
            for mapping, left_out in ((checkpoint.metadata, _RECORDED), (state, _NOTHING)):
                # A saver need not keep the order of the keys.
                names = sorted(mapping.keys() - left_out)
                parts.append(pack(len(names)))
                for name in names:
                    parts.append(pack(name))
                    parts.append(self._pack_value(name, mapping[name], before, known))
        except CheckpointSerializationError:
            return None
        if history is not None:
            self._remember(history, known)
        return self._digester.digest("checkpoint", b"".join(parts))

    def _pack_value(
        self,
        name: str,
        value: object,
        before: Mapping[str, _LongValue],
        known: dict[str, _LongValue],
    ) -> bytes:
        last = before.get(name)
        if last is not None and last.value is value:
            known[name] = last
            return last.digested
        packed = self.codec.pack(value)
        if len(packed) <= _SHORT:
            return packed
        digested = _LONG_MARK + sha256(packed).digest()
        # A list or a dict is frozen, and so is what it holds if that is plain.
        is_frozen = isinstance(value, (FrozenDict, FrozenList)) and value.kind == PLAIN
        if is_frozen or isinstance(value, (str, bytes)):
            known[name] = _LongValue(value, digested, len(packed))
        return digested

    def _remember(self, history: object, known: dict[str, _LongValue]) -> None:
        # Threads of execution may do this at the same time: each of these calls is atomic, and what one of
        # them loses is digested again.
        self._known.pop(history, None)
        new = _LongValues(known, sum(value.size for value in known.values()))
        if not known or new.size > _MOST_BYTES:
            return
        kept = list(self._known.values())
        total = new.size + sum(values.size for values in kept)
        if len(kept) >= _MOST_HISTORIES or total > _MOST_BYTES:
            self._known.clear()
        self._known[history] = new

    def forget(self) -> None:
        """Forget the long values."""
        self._known.clear()

    def digest_writes(self, writes: Mapping[str, object]) -> dict[str, str | None]:
        """Return the digests of pending writes, by the digests of their keys: a key may name a customer."""
        digests: dict[str, str | None] = {}
        for key, value in writes.items():
            try:
                digest = self._digester.digest("value", self.codec.pack(value))
            except CheckpointSerializationError:
                digest = None
            digests[self._digest_key(key)] = digest
        return digests

    def digest_packed_writes(self, packed: Mapping[str, bytes]) -> dict[str, str | None]:
        """As `digest_writes`, for values that a codec has packed."""
        return {self._digest_key(key): self._digester.digest("value", value) for key, value in packed.items()}

    def digest_keys(self, keys: Iterable[str]) -> list[str]:
        """Return the digests of the keys of pending writes."""
        return [self._digest_key(key) for key in keys]

    def digest_tags(self, tags: Iterable[str]) -> list[str]:
        """Return the digests of tags."""
        return [self._digester.digest_text("tag", str(tag)) for tag in tags]

    def _digest_key(self, key: str) -> str:
        return self._digester.digest_text("key", str(key))
