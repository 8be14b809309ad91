"""CheckpointData: one checkpoint as plain data. Ports the class of Petal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final, Self, final

from graphkit._values.frozen import freeze
from graphkit._values.json_values import JsonValueCodec
from graphkit.errors import CheckpointFormatError

VERSION: Final = "1.0"
_NEWEST: Final = (1, 0)
_FORM: Final = re.compile(r"(\d{1,6})\.(\d{1,6})")
_WHERE: Final = "checkpoint data"


def _now() -> datetime:
    return datetime.now(UTC)


@final
@dataclass(frozen=True)
class CheckpointData:
    """A checkpoint as a record that can be written anywhere. Immutable.

    `json.dumps` accepts what `to_dict` returns, and `from_dict` restores every value exactly.
    """

    thread_id: str
    """The thread."""
    checkpoint_id: str
    """The checkpoint."""
    state: Mapping[str, Any]
    """The state."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What is stored about the checkpoint beside its state."""
    timestamp: datetime = field(default_factory=_now)
    """When the checkpoint was made."""
    version: str = VERSION
    """The version of the form of this record."""

    def __post_init__(self) -> None:
        for name, cls in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, cls):
                found = type(value).__name__
                raise CheckpointFormatError(_WHERE, f"{name} must be a {cls.__name__}, not {found}")
        _check_version(self.version)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values that JSON can hold.

        The timestamp is text in ISO format. Values that JSON cannot hold are mappings with the key
        `$packed`.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the message has its path.
        """
        values = JsonValueCodec(learns_types=True)
        return {
            "thread_id": self.thread_id,
            "checkpoint_id": self.checkpoint_id,
            "state": values.encode(freeze(dict(self.state)), "state"),
            "metadata": values.encode(freeze(dict(self.metadata)), "metadata"),
            "timestamp": self.timestamp.isoformat(),
            "version": self.version,
        }

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], *, types: Sequence[type] = ()) -> Self:
        """Read what `to_dict` returned.

        Args:
            mapping: the fields. Without `version` it is of version 1.0, and without `metadata` there
                is none.
            types: the types of the application that the state holds.

        Raises:
            CheckpointFormatError: a newer graphkit wrote it, or a field is missing, unknown or
                wrong. The message names it.
            CheckpointSerializationError: a type is not in `types`.
        """
        checked: object = mapping
        if not isinstance(checked, Mapping):
            raise CheckpointFormatError(_WHERE, f"must be a mapping, not {type(checked).__name__}")
        version = checked.get("version", VERSION)
        _check_version(version)
        _check_names(checked)
        values = JsonValueCodec(types)
        return cls(
            thread_id=checked["thread_id"],
            checkpoint_id=checked["checkpoint_id"],
            state=_decode(values, checked, "state"),
            metadata=_decode(values, checked, "metadata"),
            timestamp=_parse_time(checked["timestamp"]),
            version=version,
        )


_TYPES: Final[Mapping[str, type]] = {
    "thread_id": str,
    "checkpoint_id": str,
    "state": Mapping,
    "metadata": Mapping,
    "timestamp": datetime,
}


def _check_version(version: object) -> None:
    """Refuse a version that this code does not know."""
    parts = _FORM.fullmatch(version) if isinstance(version, str) else None
    if parts is None:
        raise CheckpointFormatError(_WHERE, f"version must be text such as {VERSION!r}, not {version!r}")
    major = int(parts[1])
    minor = int(parts[2])
    if (major, minor) > _NEWEST:
        raise CheckpointFormatError(_WHERE, f"version {version} is newer than {VERSION}; install a newer graphkit")


def _check_names(mapping: Mapping[Any, Any]) -> None:
    known = [one.name for one in fields(CheckpointData)]
    for name in mapping:
        if name not in known:
            raise CheckpointFormatError(_WHERE, f"{name!r} is unknown; the fields are {', '.join(known)}")
    for name in ("thread_id", "checkpoint_id", "state", "timestamp"):
        if name not in mapping:
            raise CheckpointFormatError(_WHERE, f"{name} is missing")


def _decode(values: JsonValueCodec, mapping: Mapping[str, Any], name: str) -> Any:
    try:
        return values.decode(mapping.get(name, {}))
    except ValueError as error:
        raise CheckpointFormatError(_WHERE, f"{name} is damaged: {error}") from error


def _parse_time(given: object) -> datetime:
    if isinstance(given, datetime):
        return given
    try:
        return datetime.fromisoformat(given)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise CheckpointFormatError(_WHERE, f"timestamp must be a time in ISO format, not {given!r}") from error
