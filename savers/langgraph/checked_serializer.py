"""CheckedSerializer: LangGraph's format, written and read so that a fresh process can read what was written.

LangGraph's own serializer imports and calls what the data name, or, in its strict mode, returns the plain data of what
it may not create. This one refuses a value when it is stored, not when it is read:

| class of a value | written | read |
|---|---|---|
| of LangGraph's list of safe types, or in `types` | as by LangGraph's serializer | by its constructor |
| other Enums, dataclasses, NamedTuples and pydantic models, without `types` | by their fields | from their fields |
| all others | refused | blocked |

A store may be hostile. What it names is never imported, only looked up among the classes of modules that the process
has imported, and no constructor or method of an application is called for a class that `types` does not name. The
exception is a pydantic model in the form that LangGraph's own serializer writes: it lacks the types of inner models,
which only pydantic's validation restores. `docs/adr/0036` explains this.

The bytes are those of LangGraph's serializer, which reads them, with three additions that it ignores: the name of an
Enum's member, which fields of a pydantic model were set, and its private attributes.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, EnumType, Flag
from functools import cache, lru_cache, partial
from logging import getLogger
from operator import attrgetter
from types import MemberDescriptorType
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS as KEYWORDS,
    EXT_CONSTRUCTOR_POS_ARGS as POSITIONS,
    EXT_CONSTRUCTOR_SINGLE_ARG as ARGUMENT,
    EXT_DELTA_SNAPSHOT as DELTA_SNAPSHOT,
    EXT_METHOD_SINGLE_ARG as METHOD,
    EXT_NUMPY_ARRAY as NUMPY_ARRAY,
    EXT_PYDANTIC_V1 as PYDANTIC_V1,
    EXT_PYDANTIC_V2 as PYDANTIC_V2,
    JsonPlusSerializer,
)
from langgraph.checkpoint.serde.types import SendProtocol, _DeltaSnapshot
from langgraph.store.base import Item
from ormsgpack import Ext, packb, unpackb

from graphkit.saver_kit import ApplicationType, FieldsError, find_class, get_module_name, is_renamed
from savers.langgraph.refusals import RefusedValueError, find_refused, list_content, name_class

_LOGGER: Final = getLogger("graphkit")
_WRITE_OPTIONS: Final = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)
_READ_OPTIONS: Final = ormsgpack.OPT_NON_STR_KEYS
_LOCAL: Final = "<locals>"
"""Part of the qualified name of a class that is defined in a function."""
_MSGPACK_TYPES: Final = frozenset({bool, bytes, bytearray, dict, float, int, list, memoryview, str, tuple, type(None)})
"""The types whose values the packer stores by itself."""
_MAX_CLASSES: Final = 1000
"""How many classes are remembered: an application may define classes again and again."""

K = TypeVar("K")
V = TypeVar("V")
Key = tuple[str, ...]
"""A module and a class, as the data name them."""
Parts = tuple[Any, ...]
"""Module, class and content of a value, and what belongs to its form."""
Form = Callable[[Any], tuple[int, Parts]]
"""Returns the ext code of a value and its parts."""


class Blocked(NamedTuple):
    """A value that was not made while a value was read."""

    module: str
    name: str
    reason: str
    """Why, and what to do."""


class _Reading(threading.local):
    """What was not made of the value that this thread reads."""

    blocked: list[Blocked] | None = None
    """None while this thread reads no value."""


# The unpacker, which is written in C, calls `_read_ext` for each ext in the data, and turns every exception of it into
# an error of its own that does not say what went wrong where. So what is not made is noted here, plain data take its
# place, and the reader looks here when the unpacker has returned. A type whose constructor reads another checkpoint
# nests readings; `Deserializer` keeps the notes of the outer one.
READING: Final = _Reading()


class CheckedSerializer(JsonPlusSerializer):
    """LangGraph's serializer, with the rules of this module.

    Args:
        types: the classes that it makes by their constructors: classes, or pairs of module and name.
            If there are any, it makes no others.
        is_plain: whether plain data take the place of values of other classes. Then it writes
            whatever LangGraph's own serializer writes.
    """

    def __init__(self, types: Iterable[type | Key] = (), *, is_plain: bool = False) -> None:
        super().__init__(allowed_msgpack_modules=None)
        self._is_plain = is_plain
        self._listed = _list_keys(types)
        self._listed_classes = {*filter(None, self._listed.values())}
        self._forms: dict[type, Form] = {}

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[Key | type]) -> CheckedSerializer:
        """Return a serializer that makes these classes, too. LangGraph calls it with the types of a graph's schema."""
        return CheckedSerializer([*self._listed_classes, *self._listed, *extra_allowlist], is_plain=self._is_plain)

    # Writing

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the type and the bytes of a value.

        Raises:
            RefusedValueError: a value in it could not be read.
        """
        if obj is None or isinstance(obj, (bytes, bytearray)):
            return super().dumps_typed(obj)
        try:
            return "msgpack", packb(obj, self._write, _WRITE_OPTIONS)
        except TypeError as error:
            pack = partial(packb, default=self._write, option=_WRITE_OPTIONS)
            raise find_refused(obj, str(error), pack, self._list_parts) from error

    def _write(self, value: Any) -> Ext | str:
        """Return what stands for a value that msgpack lacks."""
        cls = type(value)
        form = _STANDARD_FORMS.get(cls) or self._forms.get(cls)
        if form is None:
            if issubclass(cls, BaseException):
                return repr(value)
            form = self._choose_form(cls)
            _remember(self._forms, cls, form)
        # The parts are packed on their own, and come back as the bytes of the ext: the packer calls this method again
        # for what is in them. So a class costs a look-up here, not a walk over the value before it is packed.
        code, parts = form(value)
        return Ext(code, packb(parts, self._write, _WRITE_OPTIONS))

    def _choose_form(self, cls: type) -> Form:
        """Return how values of a class are written.

        Raises:
            RefusedValueError: they could not be read.
        """
        if (cls.__module__, cls.__name__) == ("numpy", "ndarray"):
            return _write_array
        # A class that its reader makes by its constructor has LangGraph's form, which names the arguments.
        key = (cls.__module__, cls.__name__)
        is_made_by_constructor = key in SAFE_MSGPACK_TYPES or key in self._listed or cls in self._listed_classes
        if is_made_by_constructor or self._is_plain:
            return _choose_langgraph_form(cls) or self._write_by_langgraph
        application_type = ApplicationType.of(cls)
        name = name_class(cls)
        if self._listed:
            raise RefusedValueError(name, f"its type is not in types=[...] of the saver; add {cls.__name__} there")
        if application_type is None:
            raise RefusedValueError(
                name,
                "only Enums, dataclasses, NamedTuples and pydantic models are stored, and what LangGraph's serializer "
                f"reads in its strict mode; convert it first, or pass types=[..., {cls.__name__}] if it can convert it",
            )
        _check_readable(application_type)
        return _choose_form_of_fields(application_type)

    def _write_by_langgraph(self, value: Any) -> tuple[int, Parts]:
        """Return the form of a class for which only LangGraph's own serializer has one, if it does."""
        # Its form is a function inside LangGraph, so the value is packed by it and taken apart again. What is in the
        # value stays packed: the inner hook returns each ext as it is.
        _, data = super().dumps_typed(value)
        ext = unpackb(data, ext_hook=lambda *ext: ext)
        if not isinstance(ext, tuple):
            raise RefusedValueError(name_class(type(value)), "LangGraph's serializer cannot store it")
        code, content = ext
        return code, unpackb(content, ext_hook=Ext, option=_READ_OPTIONS)

    def _list_parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        content = self._get_content(value)
        return list_content(content, are_fields=content is not value)

    def _get_content(self, value: Any) -> Any:
        """Return what is packed in place of a value; the value itself if msgpack has its type.

        Raises:
            RefusedValueError: it cannot be stored.
        """
        cls = type(value)
        if cls in _MSGPACK_TYPES:
            return value
        is_passed_through = isinstance(value, Enum) or hasattr(cls, "__dataclass_fields__")
        if issubclass(cls, (dict, list, str, int)) and not is_passed_through:
            return value
        form = _STANDARD_FORMS.get(cls) or self._forms.get(cls) or self._choose_form(cls)
        code, parts = form(value)
        if code == DELTA_SNAPSHOT:
            return parts
        if code == PYDANTIC_V2 and len(parts) == _PYDANTIC_PARTS:
            _, _, fields, _, _, private = parts
            return fields | (private or {})
        return parts[2]

    # Reading

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the value of a type and bytes; note what is not made, and return plain data in its place."""
        type_name, content = data
        if type_name == "msgpack":
            return unpackb(content, ext_hook=self._read_ext, option=_READ_OPTIONS)
        return super().loads_typed(data)

    def _read_ext(self, code: int, data: bytes) -> Any:
        """Return the value of an ext code; note it and return its plain data if it is not made."""
        try:
            parts = unpackb(data, ext_hook=self._read_ext, option=_READ_OPTIONS)
            if code == DELTA_SNAPSHOT:
                return _DeltaSnapshot(parts)
            if code == NUMPY_ARRAY:
                numpy = importlib.import_module("numpy")
                dtype, shape, order, buffer = parts
                return numpy.frombuffer(buffer, dtype=numpy.dtype(dtype)).reshape(shape, order=order)
            module, name, content, *more = parts
        except Exception as error:  # noqa: BLE001 - the unpacker would hide it
            reason = f"its stored data are malformed: {type(error).__name__}: {error}"
            return _block("ext", str(code), reason, None)
        try:
            return self._make(code, module, name, content, more)
        except _BlockedError as error:
            return _block(module, name, str(error), content)
        except Exception as error:  # noqa: BLE001 - a constructor may raise anything
            reason = f"it cannot be made of the stored data: {type(error).__name__}: {error}"
            return _block(module, name, reason, content)

    def _make(self, code: int, module: str, name: str, content: Any, more: list[Any]) -> Any:
        """Return the object of a class.

        Raises:
            _BlockedError: it may not be made.
        """
        # What the data name is compared with lists, and looked up among imported classes. Only LangGraph's own list of
        # safe types, and a class that the caller has named, are ever imported: an import runs code.
        key = (module, name)
        if code == METHOD:
            method = (module, name, *more)
            if method not in SAFE_MSGPACK_METHODS:
                raise _BlockedError(f"{method[-1]} may not be called; store the value in another form")
            return getattr(_import_class(module, name), method[2])(content)
        if key in SAFE_MSGPACK_TYPES:
            return _construct(_import_class(module, name), code, content)
        if self._listed or self._is_plain:
            return self._make_listed(code, key, content, more)
        if _LOCAL in name:
            return content
        return _make_of_fields(_find_application_type(module, name), code, content, more)

    def _make_listed(self, code: int, key: Key, content: Any, more: list[Any]) -> Any:
        listed = self._find_listed(key)
        if listed is None:
            return content  # LangGraph has listed a class that is defined in a function
        # The number of parts shows who wrote the value. One that this serializer wrote by its fields is made of them:
        # the parts that LangGraph's form lacks say what its constructor could not find out.
        application_type = ApplicationType.of(listed)
        if application_type is not None and len(more) >= _EXACT_PARTS.get(code, sys.maxsize):
            return _make_of_fields(application_type, code, content, more)
        try:
            return _construct(listed, code, content)
        except Exception:
            # Its constructor may take something else than its fields, as with `InitVar` and `init=False`.
            if application_type is None:
                raise
            return _make_of_fields(application_type, code, content, more)

    def _find_listed(self, key: Key) -> type | None:
        """Return the class that `types` lists under a name; None if the name leads to no class.

        Raises:
            _BlockedError: it lists none.
        """
        module, short = key
        if key in self._listed:
            cls = self._listed[key]
            if cls is None:
                # Only its name was given. If its module has no class of this name, nothing is made.
                try:
                    cls = getattr(importlib.import_module(module), short, None)
                except ImportError as error:
                    raise _BlockedError(f"types=[...] names it, and importing {module} failed: {error}") from error
            return cls if isinstance(cls, type) else None
        name = f"{module}.{short}"
        renamed = [cls for cls in self._listed_classes if is_renamed(name, cls)]
        if len(renamed) == 1:
            return renamed[0]
        if renamed:
            names = " and ".join(sorted(map(name_class, renamed)))
            raise _BlockedError(f"{names} in types=[...] have this name; pass only the one that is meant")
        raise _BlockedError(f"it is not in types=[...] of the saver; add {short.rpartition('.')[2]} there")


class _BlockedError(Exception):
    """A value is not made. The message says why, and what to do."""


_LOGGED: Final[dict[tuple[str, str], None]] = {}
"""The types whose plain data were read, each of which is logged once."""


def _block(module: str, name: str, reason: str, content: Any) -> Any:
    """Note a value that was not made, and return its plain data."""
    if READING.blocked is not None:
        READING.blocked.append(Blocked(module, name, reason))
    elif (module, name) not in _LOGGED:
        _remember(_LOGGED, (module, name), None)
        _LOGGER.warning("plain data were read in place of a %s.%s: %s", module, name, reason)
    return content


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Add something to what is known of classes; forget the rest if that is too much."""
    if len(known) >= _MAX_CLASSES:
        known.clear()
    known[key] = value


# --- classes by their names -------------------------------------------------------------------------------------------


def _list_keys(types: Iterable[type | Key]) -> dict[Key, type | None]:
    """Return the classes of `types` by each name that data may have for them; None for one that is not imported."""
    listed: dict[Key, type | None] = {}
    for allowed in types:
        if isinstance(allowed, type):
            cls: type | None = allowed
        else:
            module, name, *_ = allowed
            cls = find_class(module, name)
            listed.setdefault(allowed, cls)
        if cls is None:
            continue
        for module in (cls.__module__, get_module_name(cls)):
            listed[module, cls.__name__] = cls
            listed[module, cls.__qualname__] = cls
    return listed


@cache
def _import_class(module: str, name: str) -> Any:
    """Return a class of LangGraph's list of safe types."""
    return getattr(importlib.import_module(module), name)


def _find_application_type(module: str, name: str) -> ApplicationType:
    """Return the application type that an imported module has under a name.

    Raises:
        _BlockedError: it has none whose objects can be made of their fields.
    """
    cls = find_class(module, name)
    if cls is None:
        pass_it = f"pass types=[{name.rpartition('.')[2]}]"
        if module in {"__main__", "__mp_main__"}:
            reason = f"a script stored it (python FILE), so its module is not known: {pass_it} with its class"
        elif module not in sys.modules:
            reason = f"its module is not imported: import {module} before reading, or {pass_it}"
        else:
            reason = f"the module {module} has no class {name} now: give its class that name there, or {pass_it}"
        raise _BlockedError(reason)
    return _require_fields(cls)


@lru_cache(maxsize=_MAX_CLASSES)
def _require_fields(cls: type) -> ApplicationType:
    application_type = ApplicationType.of(cls)
    if application_type is None:
        raise _BlockedError(
            f"only Enums, dataclasses, NamedTuples and pydantic models are made without types=[{cls.__name__}]"
        )
    setter = _find_setter(application_type)
    if setter is not None:
        raise _BlockedError(f"{setter}, and is only set by types=[{cls.__name__}]")
    return application_type


def _check_readable(application_type: ApplicationType) -> None:
    """Check that a process that has imported the module of a class can make its objects from their fields.

    Raises:
        RefusedValueError: it cannot.
    """
    cls = application_type.cls
    by_constructor = f"or pass types=[{cls.__name__}], which makes it by its constructor"
    reason = _find_setter(application_type)
    if reason is not None:
        raise RefusedValueError(application_type.name, f"{reason}; make it a plain field, {by_constructor}")
    module = get_module_name(cls)
    if find_class(module, cls.__qualname__) is cls:
        return
    if _LOCAL not in cls.__qualname__:
        reason = (
            f"the module {module} has no such class under this name, so no reader finds it: assign the class to the "
            f"name {cls.__qualname__} there, or pass types=[{cls.__name__}]"
        )
        raise RefusedValueError(application_type.name, reason)
    _LOGGER.warning(
        "%s is defined in a function, where no reader finds it: plain data (a dict, or the value of an Enum) will be "
        "read in its place; define it in its module, or pass types=[%s]",
        application_type.name,
        cls.__name__,
    )


def _find_setter(application_type: ApplicationType) -> str | None:
    """Return what would run code of the class when its objects are made from their fields; None if nothing would."""
    # An object is made without its constructor, by setting its attributes. Of a dataclass, an attribute of the class
    # with the name of a field may be a descriptor that runs code when it is set, as a property does; the members of
    # `__slots__` are descriptors, too, and harmless. The other kinds of types set no attribute of a class.
    cls: Any = application_type.cls
    if application_type.flavour == "dataclass":
        for name in application_type.fields:
            for base in cls.__mro__:
                attribute = type(base.__dict__.get(name))
                if hasattr(attribute, "__set__") and attribute is not MemberDescriptorType:
                    return f"its field {name!r} is a property"
    return None


# --- values as LangGraph writes them ----------------------------------------------------------------------------------


def _make_standard_form(code: int, key: Key, get_content: Callable[[Any], Any], *more: str) -> Form:
    module, name = key
    return lambda value: (code, (module, name, get_content(value), *more))


_CONTENTS: Final[dict[type, Callable[[Any], Any]]] = {
    UUID: lambda value: value.hex,
    Decimal: str,
    **dict.fromkeys((set, frozenset, deque), tuple),
}
"""What is stored of a value of a class of the standard library; none of the subclasses is meant."""
_ARGUMENTS_OF_TIME: Final = ("hour", "minute", "second", "microsecond", "tzinfo", "fold")
_STANDARD_FORMS: Final[dict[type, Form]] = {
    **{
        cls: _make_standard_form(ARGUMENT, (cls.__module__, cls.__name__), get_content)
        for cls, get_content in _CONTENTS.items()
    },
    re.Pattern: _make_standard_form(POSITIONS, ("re", "compile"), lambda value: (value.pattern, value.flags)),
    datetime: _make_standard_form(METHOD, ("datetime", "datetime"), datetime.isoformat, "fromisoformat"),
    date: _make_standard_form(POSITIONS, ("datetime", "date"), attrgetter("year", "month", "day")),
    timedelta: _make_standard_form(POSITIONS, ("datetime", "timedelta"), attrgetter("days", "seconds", "microseconds")),
    time: _make_standard_form(
        KEYWORDS, ("datetime", "time"), lambda value: {name: getattr(value, name) for name in _ARGUMENTS_OF_TIME}
    ),
    timezone: _make_standard_form(POSITIONS, ("datetime", "timezone"), lambda value: value.__getinitargs__()),
    _DeltaSnapshot: lambda value: (DELTA_SNAPSHOT, value.value),
}
"""The classes of the standard library that values have most often, those whose name is not on LangGraph's list, and
those of values with others inside, which LangGraph's own serializer would not check: the zone of a time, the offset of
a zone. That serializer writes the rest, which takes four times as long."""


def _choose_langgraph_form(cls: Any) -> Form | None:
    """Return the form in which LangGraph writes values of a class; None if only its own serializer knows."""
    key = (get_module_name(cls), cls.__name__)
    form: Form | None = None
    match ApplicationType.of(cls):
        case None if cls is Item:
            form = _make_standard_form(PYDANTIC_V1, key, lambda item: item.dict())
        case None if key == ("langgraph.types", "Send"):
            form = _make_standard_form(POSITIONS, key, _list_arguments_of_send)
        case ApplicationType(flavour="pydantic"):
            form = _make_standard_form(PYDANTIC_V2, key, lambda value: value.model_dump(), "model_validate_json")
        case ApplicationType(flavour="namedtuple"):
            form = _make_standard_form(KEYWORDS, key, lambda value: value._asdict())
        case ApplicationType(flavour="enum"):
            form = _make_standard_form(ARGUMENT, key, lambda value: value.value)
        case ApplicationType(flavour="dataclass", fields=fields):
            form = _make_standard_form(KEYWORDS, key, lambda value: {name: getattr(value, name) for name in fields})
    return form


def _list_arguments_of_send(send: SendProtocol) -> tuple[Any, ...]:
    timeout = getattr(send, "timeout", None)
    return (send.node, send.arg) if timeout is None else (send.node, send.arg, timeout)


def _write_array(array: Any) -> tuple[int, Parts]:
    numpy = importlib.import_module("numpy")
    if array.dtype.hasobject or numpy.dtype(array.dtype.str) != array.dtype:
        raise RefusedValueError(f"numpy.ndarray of {array.dtype}", "only arrays of numbers, texts and times are stored")
    # Of an array of times numpy gives no buffer.
    if array.flags.c_contiguous and array.dtype.kind not in "mM":
        return NUMPY_ARRAY, (array.dtype.str, array.shape, "C", memoryview(array))
    order = "F" if array.flags.f_contiguous else "C"
    return NUMPY_ARRAY, (array.dtype.str, array.shape, order, array.tobytes(order="A"))


def _construct(cls: Any, code: int, content: Any) -> Any:
    """Call the constructor of a class that is safe or listed, as LangGraph does."""
    if code == ARGUMENT:
        return cls(content)
    if code == POSITIONS:
        if len(content) == _ARGUMENTS_OF_SEND and (cls.__module__, cls.__name__) == ("langgraph.types", "Send"):
            return cls(content[0], content[1], timeout=content[2])
        return cls(*content)
    if code == KEYWORDS:
        return cls(**content)
    if code in {PYDANTIC_V1, PYDANTIC_V2}:
        try:
            return cls(**content)
        except Exception:  # noqa: BLE001 - a validator may raise anything
            return cls.construct(**content) if code == PYDANTIC_V1 else cls.model_construct(**content)
    raise _BlockedError(f"a newer version of LangGraph wrote it (ext {code})")


_ARGUMENTS_OF_SEND: Final = 3
"""Of a Send with a timeout, which its constructor takes by keyword only."""


# --- values by their fields -------------------------------------------------------------------------------------------

_PYDANTIC_PARTS: Final = 6
_EXACT_PARTS: Final = {ARGUMENT: 1, PYDANTIC_V2: 3}
"""How many parts follow the content of a value that was written by its fields; LangGraph writes fewer."""


def _choose_form_of_fields(application_type: ApplicationType) -> Form:
    cls: Any = application_type.cls
    module, name = get_module_name(cls), cls.__qualname__

    def write_model(model: Any) -> tuple[int, Parts]:
        fields = _get_fields(application_type, model) | (model.__pydantic_extra__ or {})
        fields_set = sorted(model.__pydantic_fields_set__)
        return PYDANTIC_V2, (module, name, fields, "model_validate_json", fields_set, model.__pydantic_private__)

    if application_type.flavour == "pydantic":
        return write_model
    if application_type.flavour == "enum":
        return lambda member: (ARGUMENT, (module, name, member.value, _get_member_name(member)))
    return _make_standard_form(KEYWORDS, (module, name), lambda value: _get_fields(application_type, value))


def _get_fields(application_type: ApplicationType, value: Any) -> dict[str, Any]:
    try:
        return application_type.get_fields(value)
    except FieldsError as error:
        by_constructor = f"or pass types=[{type(value).__name__}], which makes it by its constructor"
        raise RefusedValueError(application_type.name, f"{error}, {by_constructor}") from None


def _get_member_name(member: Enum) -> str | None:
    """Return the name of a member of an Enum; None for a combination of flags, which is read by its value."""
    if type(member).__members__.get(member._name_ or "") is member:
        return member._name_
    if not _combines_flags(type(member)):
        raise RefusedValueError(
            name_class(type(member)),
            f"it combines flags, and its class changes how that is done; pass types=[{type(member).__name__}], which "
            "makes it by its constructor",
        )
    return None


def _combines_flags(cls: Any) -> bool:
    """Return whether a Flag combines its members without code of the application."""
    # Flag(value) calls `_missing_` for a combination, which calls `__new_member__`. EnumType itself may be replaced by
    # a metaclass of the application. If all three are those of the standard library, nothing else runs.
    return (
        type(cls) is EnumType
        and issubclass(cls, Flag)
        and cls._missing_.__func__ is Flag._missing_.__func__  # type: ignore[attr-defined]
        and not any("__new_member__" in base.__dict__ for base in cls.__mro__[: cls.__mro__.index(Flag)])
    )


def _make_of_fields(application_type: ApplicationType, code: int, content: Any, more: list[Any]) -> Any:
    """Make an object without a constructor.

    Raises:
        _BlockedError: the class is of another kind, or has changed.
    """
    cls: Any = application_type.cls
    if code != _CODES[application_type.flavour]:
        raise _BlockedError("it is another kind of type now")
    if application_type.flavour == "enum":
        return _find_member(cls, content, more)
    if not isinstance(content, dict):
        raise _BlockedError("its stored data are no fields")
    try:
        if application_type.flavour != "pydantic":
            return application_type.make(dict(content))
        if len(more) < _EXACT_PARTS[PYDANTIC_V2]:
            # LangGraph's own serializer wrote it: pydantic's validation restores the types of inner models.
            try:
                return cls.__pydantic_validator__.validate_python(content, self_instance=object.__new__(cls))
            except Exception:  # noqa: BLE001 - a validator may raise anything
                # As LangGraph does: the state was valid when it was stored.
                return cls.model_construct(**content)
        _, fields_set, private = more
        extra = None
        fields = dict(content)
        if cls.model_config.get("extra") == "allow":
            extra = {name: fields.pop(name) for name in content if name not in application_type.fields}
        return application_type.make(fields, fields_set, extra, private)
    except FieldsError as error:
        raise _BlockedError(f"{error}; pass types=[{cls.__name__}] to make it by its constructor") from None


_CODES: Final = {"enum": ARGUMENT, "namedtuple": KEYWORDS, "dataclass": KEYWORDS, "pydantic": PYDANTIC_V2}


def _find_member(cls: Any, value: Any, more: list[Any]) -> Any:
    """Return a member of an Enum by its name or its value."""
    if more and more[0] is not None:
        member = cls.__members__.get(more[0])
        if member is not None:
            return member
        raise _BlockedError(f"it has no member {more[0]!r} now")
    # Not `cls(value)`, which calls `_missing_` of the application. True equals 1, so the types must be the same, too.
    for member in cls.__members__.values():
        if type(member._value_) is type(value) and member._value_ == value:
            return member
    if isinstance(value, int) and _combines_flags(cls):
        return cls(value)
    raise _BlockedError(f"it has no member with the value {value!r} now")
