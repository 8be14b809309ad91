"""What the database reports to the saver, beside the errors that users see.

The saver handles the first two. Whatever else leaves a saver is an error of `graphkit.errors`.
"""

from __future__ import annotations

from graphkit.errors import CheckpointStorageError


class PositionTakenError(Exception):
    """A unique key exists already: another writer has appended at this position. Nothing was changed."""


class HistoryGoneError(Exception):
    """The history that a row names was deleted meanwhile. Nothing was changed."""


class ConnectionLostError(CheckpointStorageError):
    """The connection was lost before the commit was sent: nothing was changed; try again."""


class OutcomeUnknownError(CheckpointStorageError):
    """The connection was lost during a commit: read whether it has happened."""
