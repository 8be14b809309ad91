"""The mark of a sealed store: a row of the table `meta` whose name has the id of a key.

A saver with keys sets it before it begins a history. From then on, a saver without keys begins none: the
statement that inserts a history has that condition, so it costs no round trip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from graphkit.errors import CheckpointKeyError
from savers._sql.encoded_text import decode_text, encode_text, is_cut

if TYPE_CHECKING:
    from savers._cipher import KeyRing
    from savers._sql.database import Database, TableNames

_PREFIX: Final = "sealed:"
_BEHIND: Final = "sealed;"
"""The first text behind all that begin with the prefix."""
_IS_MARK: Final = f"name >= '{_PREFIX}' AND name < '{_BEHIND}'"


def is_unmarked(names: TableNames) -> str:
    """Return the condition of a statement that the store is not sealed."""
    return f"NOT EXISTS (SELECT 1 FROM {names.meta} WHERE {_IS_MARK})"


@final
class SealMark:
    """The mark of one store, and the keys of a saver on it."""

    def __init__(self, database: Database, key_ring: KeyRing | None) -> None:
        self._database = database
        self.key_ring = key_ring
        """What seals the records of the saver; None stores them in plain."""
        meta = database.names.meta
        self._select = f"SELECT name FROM {meta} WHERE {_IS_MARK} ORDER BY name LIMIT 1"
        self._insert = f"INSERT INTO {meta} (name, value) VALUES (?, 1) ON CONFLICT (name) DO NOTHING"
        self._marked: int | None = None
        """The generation of the database that is known to have the mark."""

    def set(self) -> None:
        """Mark the store if the saver has keys, before it begins a history. Not during a transaction.

        Raises:
            CheckpointKeyError: the function that provides the keys failed.
            CheckpointerError: the database refused.
        """
        database = self._database
        if self.key_ring is None or self._marked == database.generation:
            return
        if self._find() is None:
            key_id, _ = self.key_ring.get_current(database.path)
            database.write(self._insert, (f"{_PREFIX}{encode_text(key_id)}",))
        self._marked = database.generation

    def check_may_begin(self) -> None:
        """Explain why no history was inserted.

        Raises:
            CheckpointKeyError: the store is sealed, and the saver has no keys.
        """
        key_id = self._find() if self.key_ring is None else None
        if key_id is not None:
            raise CheckpointKeyError(self._database.path, key_id, "open the store with `cipher`", has_keys=False)

    def _find(self) -> str | None:
        """Return the id of the key in the mark; None if there is no mark."""
        rows = self._database.read(self._select)
        if not rows:
            return None
        encoded: str = rows[0][0].removeprefix(_PREFIX)
        return encoded if is_cut(encoded) else decode_text(encoded)
