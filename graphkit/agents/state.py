"""The state of an agent: DefaultState, and the prompt templates that are filled from a state.

StateSerializer and CheckpointData, port classes of Petal: a state as bytes or JSON, and a checkpoint as a record.
"""

from __future__ import annotations

import copy
import pickle
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from string import Formatter
from typing import Any, Final, Self, final

from graphkit._build.state_graph import parse_schema
from graphkit._options import parse_json
from graphkit._plan.schema import StateSchema
from graphkit._values.channels import MessagesChannel
from graphkit._values.codec import Codec, MalformedDataError, make_learning_codec, thaw
from graphkit._values.frozen import freeze
from graphkit._values.json_values import JsonValueCodec, format_line
from graphkit._values.state import MessagesState
from graphkit.agents.messages import newest_user_text
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointFormatError,
    CheckpointSerializationError,
    GraphStateError,
)

MESSAGES = "messages"
"""The key of the state that holds the conversation."""


class DefaultState(MessagesState):
    """A conversation: `messages`, a growing list, and whatever else the steps store.

    A message with an id replaces the earlier message with that id; a message without an id is
    appended.
    """


def parse_state_type(state_type: object, *, with_messages: bool) -> StateSchema:
    """Read the state type of an agent: every form that StateGraph takes.

    Args:
        state_type: a TypedDict, a pydantic model, an AgentState class, or a mapping of channels.
        with_messages: add the channel of the messages, if the type does not define one.

    Raises:
        GraphStateError: it is none of these; or it is a pydantic model without the field
            `messages`, which an agent cannot add.
    """
    schema = parse_schema(state_type)
    if not with_messages or MESSAGES in schema.channels:
        return schema
    if type(schema) is not StateSchema:
        raise GraphStateError(
            f"the state type of an agent with a chat step needs messages: add "
            f"`{MESSAGES}: Annotated[list, MessagesState.SCHEMA['{MESSAGES}']]` to {state_type!r}"
        )
    extended = copy.copy(schema)
    extended.channels = {**schema.channels, MESSAGES: MessagesChannel()}
    extended.keys = tuple(dict.fromkeys((*schema.keys, MESSAGES)))
    extended.known_keys |= {MESSAGES}
    return extended


_CONVERSIONS: Final = (None, "a", "r", "s")


def fill_template(template: str, state: Mapping[str, Any], step: str) -> str:
    """Return a template with the values of a state.

    Args:
        template: the template.
        state: the state.
        step: the name of the step, for the error.

    Raises:
        ValueError: the state lacks a key.
    """
    text = newest_user_text(state.get(MESSAGES) or ())
    values = {} if text is None else {"input": text}
    try:
        return template.format_map({**values, **state})
    except KeyError as error:
        key = error.args[0]
        raise ValueError(
            f"the prompt template of step {step!r} needs {key!r}, which the state does not have"
        ) from error


def check_template(template: str) -> str:
    """Return a template if it can be filled with a state that has its keys.

    Raises:
        ValueError: it is malformed, or has a field that is not a key.
    """
    try:
        fields = list(_fields_of(template))
    except ValueError as error:
        raise ValueError(f"is malformed: {error}; write {{{{ and }}}} for braces") from error
    for name, conversion in fields:
        is_quoted = '"' in name or "'" in name  # as in the JSON of an example
        if not name or name[0].isdigit() or is_quoted:
            raise ValueError(f"has {{{name}}}: name a key of the state, or write {{{{ and }}}} for braces")
        if conversion not in _CONVERSIONS:
            raise ValueError(f"has {{{name}!{conversion}}}: only !r, !s and !a are conversions")
    return template


def _fields_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the conversion of each field of a template, also of those in format specifications."""
    for _, name, specification, conversion in Formatter().parse(template):
        if name is not None:  # None: text after the last field
            yield name, conversion
            yield from _fields_of(specification or "")


# A state as bytes or JSON

_MAGIC: Final = b"GKST"
_HEADER: Final = struct.Struct(">4scI")
"""The magic bytes, the encoding, and the CRC-32 of the encoding and the body."""
_PACKED: Final = b"m"
_PICKLED: Final = b"p"
_BYTES: Final = "the bytes of the state"
_JSON: Final = "the JSON of the state"


@final
class StateSerializer:
    """Turns states into bytes or JSON and back. Every value comes back exactly, or is refused.

    The values are those that a saver stores: plain values, dates, sets, Enums, dataclasses,
    NamedTuples, pydantic models and so on. Reading a type of the application requires `types`, so
    data cannot choose what is imported. `graphkit.StateSerializer` is another class: the interface
    for a serializer of your own.
    """

    @staticmethod
    def serialize(state: Any, *, allow_pickle: bool = False) -> bytes:
        """Return a state as bytes, with a checksum.

        Args:
            state: a mapping, or any other value.
            allow_pickle: pickle a state that cannot be stored otherwise. Use it only if the bytes
                stay where no one else can write, because reading them can run any code.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the message has its path.
        """
        try:
            plain = _plain(state)
            body = make_learning_codec().pack(plain)
        except CheckpointSerializationError:
            if not allow_pickle:
                raise
        else:
            return _frame(_PACKED, body)
        try:
            return _frame(_PICKLED, pickle.dumps(state))
        except Exception as error:  # a class may raise anything here
            raise CheckpointSerializationError("", type(state).__name__, f"it cannot be pickled: {error}") from error

    @staticmethod
    def deserialize(data: bytes, *, types: Sequence[type] = (), allow_pickle: bool = False) -> Any:
        """Return the state that `serialize` turned into these bytes, as mutable values.

        Args:
            data: what `serialize` returned.
            types: the types of the application that the state holds.
            allow_pickle: read a pickled state. This can run any code that the bytes contain.

        Raises:
            CheckpointCorruptionError: the bytes are damaged or cut short.
            CheckpointFormatError: `serialize` did not write them, or a newer graphkit did.
            CheckpointSerializationError: a type is not in `types`, or the state was pickled and
                `allow_pickle` is False.
        """
        if not data.startswith(_MAGIC):
            raise CheckpointFormatError(_BYTES, "not written by StateSerializer.serialize")
        start = _HEADER.size
        if len(data) < start:
            raise CheckpointCorruptionError(_BYTES, len(data), "cut short", "use another copy")
        _, encoding, checksum = _HEADER.unpack_from(data)
        body = data[start:]
        if zlib.crc32(encoding + body) != checksum:
            raise CheckpointCorruptionError(_BYTES, start, "wrong checksum", "use another copy")
        if encoding not in {_PACKED, _PICKLED}:
            raise CheckpointFormatError(_BYTES, f"encoding {encoding!r} is of a newer graphkit")
        if encoding == _PICKLED:
            if not allow_pickle:
                raise CheckpointSerializationError(
                    "", "state", "it was pickled; pass allow_pickle=True if only you can write where it was stored"
                )
            return pickle.loads(body)  # noqa: S301 - the caller asked for it
        try:
            # The checksum was right, so what the codec cannot read was written by another program, or damaged before.
            state = Codec(types).unpack(body)
        except MalformedDataError as error:
            raise CheckpointCorruptionError(_BYTES, _HEADER.size, str(error), "use another copy") from error
        return thaw(state)

    @staticmethod
    def to_json(state: Any) -> str:
        """Return a state as one line of JSON.

        What JSON can hold is written as such. Other values are objects with the key `$packed`, so
        nothing changes its type.

        Raises:
            CheckpointSerializationError: a value cannot be stored; the message has its path.
        """
        plain = _plain(state)
        encoded = JsonValueCodec(learns_types=True).encode(plain, "")
        return format_line(encoded).removesuffix("\n")

    @staticmethod
    def from_json(text: str, *, types: Sequence[type] = ()) -> Any:
        """Return the state that `to_json` wrote, as mutable values.

        Args:
            text: what `to_json` returned, or any JSON.
            types: the types of the application that the state holds.

        Raises:
            CheckpointFormatError: it is not JSON, or a `$packed` value is damaged.
            CheckpointSerializationError: a type is not in `types`.
        """
        try:
            return thaw(JsonValueCodec(types).decode(parse_json(text)))
        except CheckpointSerializationError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointFormatError(_JSON, f"cannot be read: {error}") from error


def _plain(state: Any) -> Any:
    """Return a state with frozen values, an AgentState as a dict."""
    if isinstance(state, Mapping) and not isinstance(state, dict):
        state = dict(state)
    return freeze(state)


def _frame(encoding: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(encoding + body)
    header = _HEADER.pack(_MAGIC, encoding, checksum)
    return header + body


VERSION: Final = "1.0"
_NEWEST: Final = (1, 0)
_FORM: Final = re.compile(r"(\d{1,6})\.(\d{1,6})")
_WHERE: Final = "checkpoint data"


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
    timestamp: datetime = field(default_factory=partial(datetime.now, UTC))
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
        given = {"metadata": {}, "version": VERSION, **checked}
        # The version first: a newer record may have other fields.
        _check_version(given["version"])
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise CheckpointFormatError(_WHERE, f"{name!r} is unknown; the fields are {', '.join(known)}")
        for name in known:
            if name not in given:
                raise CheckpointFormatError(_WHERE, f"{name} is missing")
        values = JsonValueCodec(types)
        for name in ("state", "metadata"):
            try:
                given[name] = values.decode(given[name])
            except ValueError as error:
                raise CheckpointFormatError(_WHERE, f"{name} is damaged: {error}") from error
        given["timestamp"] = _parse_time(given["timestamp"])
        return cls(**given)


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


def _parse_time(given: Any) -> datetime:
    if isinstance(given, datetime):  # as YAML and drivers of databases read it
        return given
    try:
        return datetime.fromisoformat(given)
    except (TypeError, ValueError) as error:
        raise CheckpointFormatError(_WHERE, f"timestamp must be a time in ISO format, not {given!r}") from error
