"""What the savers share that seal everything with their current key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphkit.errors import CheckpointerConfigurationError
from savers._log.frame import HEADER_SIZE, SEALED
from savers._log.records import Records
from savers._log.sealing import read_key_id

if TYPE_CHECKING:
    from savers._cipher import KeyRing
    from savers._log.log import AnyLog


def require_keys(key_ring: KeyRing | None) -> KeyRing:
    """Return the keys of a saver.

    Raises:
        CheckpointerConfigurationError: it has none.
    """
    if key_ring is None:
        raise CheckpointerConfigurationError("rotate needs the keys: open the store with `cipher`")
    return key_ring


def needs_rotation(log: AnyLog, key_ring: KeyRing) -> bool:
    """Return whether an open log is plain, or has a record that another key than the current one sealed."""
    frames = log.frames
    if frames.seal is None:
        return True
    current_id, _ = key_ring.get_current(log.path)
    return any(
        frame.flags & SEALED and read_key_id(frame.payload) != current_id
        for frame in Records(frames.bytes, frames.fid).scan(HEADER_SIZE, frames.end, 0)
    )
