"""Audit logs as a person with write access to their directory may change them."""

import json
import shutil
from pathlib import Path

from savers._audit import log as _log
from savers._audit.entries import NO_ENTRY, digest_entry, to_canonical as to_canonical
from savers._filesystem.io import FileIO
from savers._filesystem.lock import WriteLock
from savers._filesystem.log_bytes import FileLogBytes
from savers._log.frame import META, WRITE
from savers._log.frame_log import FrameLog


def list_files(directory):
    return sorted(Path(directory).glob("audit-*.log"))


def read_entries(path):
    """The canonical forms in one file."""
    frames = _open(path)
    payloads = [
        frame.payload for frame in frames.records.scan(frames.end, frames.bytes.size, frames.seq) if frame.type != META
    ]
    frames.close()
    return payloads


def write_entries(path, payloads):
    """Make a file anew, with good checksums and other entries."""
    path.unlink()
    io = FileIO()
    lock = WriteLock(io, str(path.parent / "lock"), lambda: None, 1)
    frames = FrameLog(FileLogBytes(io, str(path), lock), _log.identify(_number_of(path)))
    for payload in payloads:
        frames.append(WRITE, payload)
    frames.close()


def chain_again(payloads, *, renumber=True):
    """The entries with digests that fit, and numbers, as a forger would make them."""
    before = NO_ENTRY
    made = []
    for number, payload in enumerate(payloads, 1):
        entry = {**json.loads(payload), "prev": before}
        if renumber:
            entry["seq"] = number
        made.append(to_canonical(entry))
        before = digest_entry(made[-1])
    return made


def copy_directory(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _open(path):
    medium = FileLogBytes(FileIO(), str(path))
    frames = FrameLog(medium, _log.identify(_number_of(path)))
    assert medium.open()
    frames.read_beginning(medium.size)
    return frames


def _number_of(path):
    return int(path.stem.removeprefix("audit-"))


def replace_pause(monkeypatch, pause):
    """Let readers do something else than wait, when a writer may be at work on the last entry."""
    monkeypatch.setattr(_log, "sleep", pause)
