"""The beginning of a log: its header, and the records that say whose log it is."""

from __future__ import annotations

import os
from time import time_ns
from typing import Final

from savers._log import log, payloads

META_RECORDS: Final = log.META_RECORDS[log.MAJOR]


def new_header(digest: bytes, generation: int) -> log.Header:
    """Return the header of a new log.

    Args:
        digest: the thread digest.
        generation: 1, or one more than that of the log that is rewritten.
    """
    fid = int.from_bytes(os.urandom(4), "little") or 1
    return log.Header(fid, generation, time_ns(), digest)


def pack_meta_frames(fid: int, meta: dict[str, object], boot: int) -> bytes:
    """Return the first records, which say whose log this is.

    There are two copies, so that one damaged copy costs nothing.

    Args:
        fid: the id of the log.
        meta: what the records hold.
        boot: the number of the boot; 0 if the bytes are not in a file.
    """
    payload = payloads.packb(meta)
    frames = b""
    for seq in range(META_RECORDS):
        offset = log.HEADER_SIZE + len(frames)
        frames += log.pack_frame(
            offset,
            fid,
            seq,
            log.META,
            payload,
            unsynced=offset,
            boot=boot,
        )
    return frames
