"""What the database reports to the saver, beside the errors that users see.

The saver handles the first two. Whatever else leaves a saver is an error of `graphkit.errors`.
"""

from __future__ import annotations

from graphkit.errors import CheckpointCorruptionError, CheckpointFormatError, CheckpointStorageError


class PositionTakenError(Exception):
    """A unique key exists already: another writer has appended at this position. Nothing was changed."""


class HistoryGoneError(Exception):
    """The history that a row names was deleted meanwhile. Nothing was changed."""


class ConnectionLostError(CheckpointStorageError):
    """The connection was lost before the commit was sent: nothing was changed; try again."""


class OutcomeUnknownError(CheckpointStorageError):
    """The connection was lost during a commit: read whether it has happened."""


class DatabaseDamagedError(CheckpointCorruptionError):
    """The database says that it is damaged itself, whichever history was asked for.

    Attributes:
        advice: what to do about it.
    """

    def __init__(self, path: str, reason: str, advice: str) -> None:
        super().__init__(path, 0, reason, advice)
        self.advice = advice


class ForeignDatabaseError(CheckpointFormatError):
    """The file, its tables or their version are none that graphkit has made, or are damaged so that they seem so."""


def make_table_error(path: str, message: str) -> CheckpointFormatError:
    """Return the error for a table that is missing, or is there before graphkit has created it.

    Args:
        path: the database.
        message: what the database says, with the name of the table.
    """
    return ForeignDatabaseError(
        path,
        f"the tables are not those of graphkit or not complete ({message}); restore a backup, or use another place",
    )
