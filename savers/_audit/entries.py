"""The entries of an audit log: their canonical form, their chain, and the records that list shows.

An entry is a JSON object. Its canonical form has sorted keys, no spaces, and only ASCII, so its bytes
are the same in every language. `prev` is the SHA-256 of the canonical form of the entry before it.
docs/security.md has the fields and the rules, so that a program without graphkit can check them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from types import NoneType
from typing import Any, Final, NamedTuple, final

from graphkit.errors import CheckpointerConfigurationError

Entry = dict[str, Any]
FORMAT: Final = 1
NO_ENTRY: Final = "0" * 64
"""`prev` of the first entry."""

to_json: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode
"""Returns the canonical form of an entry as text. Made once: `json.dumps` would make an encoder each time."""


def to_canonical(entry: Mapping[str, Any]) -> bytes:
    """Return the canonical form of an entry."""
    return to_json(entry).encode("ascii")


def digest_entry(canonical: bytes) -> str:
    """Return what stands in `prev` of the next entry."""
    return sha256(canonical).hexdigest()


_Check = Callable[[Any], bool]


def _is_a(*types: type) -> _Check:
    return lambda value: isinstance(value, types)


def _is_dict_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_any_of(*checks: _Check) -> _Check:
    return lambda value: any(check(value) for check in checks)


_is_absent: Final = _is_a(NoneType)
_is_single: Final = _is_a(NoneType, str, int, float)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_single, value))


_NEEDED: Final = {"kind", "prev", "seq", "time"}
_NEEDED_BY_KIND: Final = {
    "call": {"operation"},
    "gap": {"count"},
    "head": {"sign_every"},
    "intent": {"operation", "checkpoint_id"},
    "outcome": {"of", "result"},
}
_CHECKS: Final[Mapping[str, _Check]] = {
    **dict.fromkeys(("count", "of", "seq", "sign_every"), _is_a(int)),
    **dict.fromkeys(("kind", "operation", "prev", "result", "time"), _is_a(str)),
    **dict.fromkeys(("checkpoint_id", "checkpoint_ns", "digest", "error"), _is_single),
    **dict.fromkeys(("principal", "replaces", "target", "thread_id", "version"), _is_single),
    **dict.fromkeys(("keep", "tags"), _is_list),
    "ids": _is_any_of(_is_absent, _is_list, _is_dict_of(_is_list)),
    "removed": _is_any_of(_is_absent, _is_dict_of(_is_any_of(_is_absent, _is_dict_of(_is_list)))),
    "threads": _is_any_of(_is_absent, _is_list),
    "writes": _is_dict_of(_is_single),
}
"""What the fields hold on which the verification relies: a forger may write anything."""


def parse_entry(canonical: bytes) -> Entry | None:
    """Return an entry; None if these bytes are not the canonical form of one, or a field cannot be as it is."""
    try:
        entry = json.loads(canonical)
        if to_canonical(entry) != canonical or not entry.keys() >= _NEEDED:
            return None
        is_whole = entry.keys() >= _NEEDED_BY_KIND.get(entry["kind"], _NEEDED)
        is_sound = all(check(entry[name]) for name, check in _CHECKS.items() if name in entry)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return entry if is_whole and is_sound else None


def format_time(time: datetime) -> str:
    """Return a time as it stands in an entry: times in that form sort as text."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now() -> str:
    """Return the time of an entry."""
    # A third of the time of `format_time`.
    return f"{datetime.now(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


class AuditHead(NamedTuple):
    """Where a log ends: keep it elsewhere, and give it to `verify` as `expect_head`."""

    seq: int
    """The number of the last entry; 0 if there is none."""
    digest: str
    """The digest of its canonical form."""


BEGINNING: Final = AuditHead(0, NO_ENTRY)


def parse_head(head: AuditHead | str | None) -> AuditHead | None:
    """Return a head that may be given as text: the number of the entry, a colon, and the digest.

    Raises:
        CheckpointerConfigurationError: the text is something else.
    """
    if head is None or isinstance(head, AuditHead):
        return head
    seq, _, digest = head.partition(":")
    if not seq.isdecimal() or len(digest) != len(NO_ENTRY):
        raise CheckpointerConfigurationError(f"a head is NUMBER:DIGEST, as verify shows it, not {head!r}")
    return AuditHead(int(seq), digest)


# What list shows


@final
@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """One operation: what was intended and how it ended.

    Attributes:
        seq: the number of its first entry.
        time: when it began, in ISO 8601, UTC.
        operation: the method of the saver; `(gap)` if entries could not be written there, and `(torn)` if
            the last write before did not finish.
        principal: on whose behalf; None is nobody.
        thread_id: the thread; None is all threads.
        checkpoint_ns: the namespace.
        checkpoint_id: the checkpoint that was stored or named, if any.
        digest: the digest of the checkpoint that was to be stored, if there was one.
        result: `ok`, `refused`, `failed`, or `unknown`: a crash came before the outcome, or the
            operation still runs.
        error: the type of the error, if there was one.
        details: the other fields of its entries.
    """

    seq: int
    time: str
    operation: str
    principal: str | None
    thread_id: str | None
    checkpoint_ns: str
    checkpoint_id: str | None
    digest: str | None
    result: str
    error: str | None
    details: Mapping[str, Any]


_FIELDS: Final = frozenset(AuditRecord.__dataclass_fields__) - {"details"}
_ABSENT: Final[Mapping[str, Any]] = {**dict.fromkeys(_FIELDS), "checkpoint_ns": "", "result": "unknown"}
"""What the fields of a record hold if no entry has them."""
_OF_THE_CHAIN: Final = frozenset({"kind", "prev", "of"})
_OF_THE_LOG: Final = frozenset({"begin", "head", "end"})
"""The kinds of entries that are about no operation."""


def join_entries(entries: Iterable[Entry], is_wanted: Callable[[Entry], bool]) -> list[AuditRecord]:
    """Return one record for each operation, in the order in which they began; gaps are records, too.

    Args:
        entries: all entries of a log.
        is_wanted: whether an operation has a record, as its first entry says: only these are kept in memory.
    """
    found: dict[int, Entry] = {}
    for entry in entries:
        kind = entry["kind"]
        if kind == "outcome":
            intent = found.get(entry["of"])
            if intent is not None:
                intent.update({name: value for name, value in entry.items() if name not in {"seq", "time"}})
        elif kind not in _OF_THE_LOG:
            first = {**_ABSENT, "operation": f"({kind})", **entry}
            if is_wanted(first):
                found[entry["seq"]] = first
    records: list[AuditRecord] = []
    for joined in found.values():
        details = {name: joined[name] for name in joined.keys() - _FIELDS - _OF_THE_CHAIN}
        records.append(AuditRecord(details=details, **{name: joined[name] for name in _FIELDS}))
    return records
