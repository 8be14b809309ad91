"""The application types of a codec: which classes qualify, their names, and how their objects are made again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias, final

from msgpack import ExtType

from graphkit._values.frozen import is_pydantic_model
from graphkit._values.state import MapFailure
from graphkit.errors import CheckpointerConfigurationError

Flavour: TypeAlias = Literal["enum", "namedtuple", "dataclass", "pydantic"]


class FieldsError(ValueError):
    """An object has more than fields, or stored fields do not fit a class. The message says why."""


@final
class ApplicationType:
    """A class that is stored by its fields or members.

    Attributes:
        name: the name in stored data.
        cls: the class.
        flavour: what kind of class it is.
        fields: the names of its fields.
        optional: the fields of a dataclass with `init=False`, which an object may lack.
        slots: attributes of a dataclass in `__slots__` that are not fields.
    """

    __slots__ = ("cls", "fields", "flavour", "name", "optional", "slots")

    def __init__(self, name: str, cls: type, flavour: Flavour) -> None:
        self.name = name
        self.cls = cls
        self.flavour = flavour
        self.fields: tuple[str, ...] = ()
        self.optional: frozenset[str] = frozenset()
        self.slots: tuple[str, ...] = ()
        if flavour == "namedtuple":
            self.fields = cls._fields  # type: ignore[attr-defined]
        elif flavour == "pydantic":
            self.fields = tuple(cls.model_fields)  # type: ignore[attr-defined]
        elif flavour == "dataclass":
            import dataclasses

            fields = dataclasses.fields(cls)
            optional = [field.name for field in fields if not field.init]
            self.fields = tuple(field.name for field in fields)
            self.optional = frozenset(optional)
            self.slots = tuple(_find_extra_slots(cls, self.fields))

    @classmethod
    def of(cls, type_: type) -> ApplicationType | None:
        """Return what there is to know of a class, under its default name; None if it is no application type."""
        flavour = flavour_of(type_)
        if flavour is None:
            return None
        return cls(type_name(type_), type_, flavour)

    def get_fields(self, value: Any) -> dict[str, Any]:
        """Return the fields of an object that is no Enum.

        Raises:
            FieldsError: a field has no value, or the object has other attributes, which would be lost.
        """
        if self.flavour == "namedtuple":
            if getattr(value, "__dict__", None):
                raise FieldsError("it has attributes that are not fields, which would be lost")
            return dict(zip(self.fields, tuple.__iter__(value), strict=True))
        fields: dict[str, Any] = {}
        for name in self.fields:
            try:
                fields[name] = getattr(value, name)
            except AttributeError:
                if name not in self.optional:
                    raise FieldsError(f"its field {name!r} has no value") from None
        attributes = getattr(value, "__dict__", {})
        others = [name for name in attributes if name not in fields and not self._is_cached_property(name)]
        others += [name for name in self.slots if hasattr(value, name)]
        if others:
            raise FieldsError(f"its attribute {others[0]!r} is not a field, and would be lost; make it a field")
        return fields

    def _is_cached_property(self, name: str) -> bool:
        """Return whether an attribute is the result of a cached property, which a restored object computes again."""
        return any(isinstance(vars(base).get(name), cached_property) for base in self.cls.__mro__)

    def make(
        self,
        fields: dict[str, Any],
        fields_set: Iterable[str] = (),
        extra: dict[str, Any] | None = None,
        private: dict[str, Any] | None = None,
    ) -> Any:
        """Make an object that is no Enum, without its constructor and validators; add the defaults of missing fields.

        Args:
            fields: the values of its fields.
            fields_set: of a pydantic model, the names of the fields that were set.
            extra: of a pydantic model that allows them, the values that are not of a field.
            private: of a pydantic model, its private attributes.

        Raises:
            FieldsError: the class has no such field, or a field is missing that has no default.
        """
        self._fill_defaults(fields)
        if self.flavour == "namedtuple":
            return tuple.__new__(self.cls, [fields[field] for field in self.fields])
        new: Any = object.__new__(self.cls)
        attributes: dict[str, Any] = fields
        if self.flavour == "pydantic":
            attributes = {"__dict__": fields, "__pydantic_fields_set__": set(fields_set)}
            for name, value in {"__pydantic_extra__": extra, "__pydantic_private__": private}.items():
                if getattr(self.cls, name) is not value:  # a RootModel has None in its class, and no slot
                    attributes[name] = value
        for name, value in attributes.items():
            object.__setattr__(new, name, value)
        return new

    def _fill_defaults(self, fields: dict[str, Any]) -> None:
        """Add the defaults of the fields that the data lack; refuse fields that the class lacks."""
        unknown = [name for name in fields if name not in self.fields]
        if unknown:
            raise FieldsError(f"it has no field {unknown[0]!r} now")
        for name in self.fields:
            if name not in fields:
                try:
                    fields[name] = self._get_default(name)
                except LookupError as error:
                    if name in self.optional:
                        continue
                    raise FieldsError(f"the stored data lack its field {name!r}, which has no default") from error

    def _get_default(self, name: str) -> Any:
        """Return the default of a field.

        Raises:
            LookupError: it has none.
        """
        cls: Any = self.cls
        if self.flavour == "namedtuple":
            return cls._field_defaults[name]
        if self.flavour == "pydantic":
            field = cls.model_fields[name]
            if field.is_required():
                raise LookupError(name)
            return field.get_default(call_default_factory=True)
        from dataclasses import MISSING

        field = cls.__dataclass_fields__[name]
        if field.default_factory is not MISSING:
            return field.default_factory()
        if field.default is not MISSING:
            return field.default
        raise LookupError(name)


@final
class TypeRegistry:
    """The application types that a codec knows. Threads may share it; registering is atomic."""

    __slots__ = ("_by_name", "_lock", "_renamed", "by_type")

    def __init__(self) -> None:
        own = ApplicationType("graphkit.MapFailure", MapFailure, "dataclass")  # states have it without the user's doing
        self.by_type: dict[type, ApplicationType] = {MapFailure: own}
        """Each registered class, with the first name under which it was registered."""
        self._by_name: dict[str, ApplicationType] = {own.name: own}
        self._renamed: dict[str, Sequence[ApplicationType]] = {}
        """What names of no registered type may mean, as far as they were read: each record of such a name asks."""
        self._lock = threading.RLock()

    def list_types(self) -> dict[str, type]:
        """Return the types that users have registered, by the names in stored data."""
        entries = self._by_name.copy().items()
        return {name: entry.cls for name, entry in entries if entry.cls is not MapFailure}

    def register_as(self, name: str, cls: type) -> None:
        """Register a class under a name, and the classes in the annotations of its fields under theirs.

        Raises:
            TypeError: the type is not an Enum, dataclass, NamedTuple or pydantic model.
            CheckpointerConfigurationError: another class has the name, or the name of a type in the
                annotations of a field. Types that were registered before that remain registered.
        """
        flavour = flavour_of(cls)
        if flavour is None:
            raise TypeError(
                f"{describe_type(cls)} cannot be registered: only Enums, dataclasses, NamedTuples and pydantic models "
                f"can, and not those that extend a builtin such as dict"
            )
        with self._lock:
            known = self._by_name.get(name)
            if known is not None:
                if known.cls is not cls:
                    raise CheckpointerConfigurationError(
                        f"two classes are called {name!r}, {known.cls!r} and {cls!r}; give one of them another name"
                    )
                return
            entry = ApplicationType(name, cls, flavour)
            self._by_name[name] = entry
            self._renamed.clear()
            if cls in self.by_type:
                return
            self.by_type[cls] = entry
            for nested in find_application_types(_read_annotations(cls)):
                if nested not in self.by_type:
                    self.register_as(type_name(nested), nested)

    def learn(self, cls: type) -> ApplicationType | None:
        """Return the type of a class, which is registered first if it is an application type.

        Raises:
            UnstorableError: another class has its name.
        """
        if cls not in self.by_type and flavour_of(cls) is not None:
            try:
                self.register_as(type_name(cls), cls)
            except CheckpointerConfigurationError as error:
                raise UnstorableError(cls, str(error)) from error
        return self.by_type.get(cls)

    def find(self, name: str) -> Sequence[ApplicationType]:
        """Return the type that is registered under a stored name, or else those that it may mean.

        One type is the answer; several are ambiguous.
        """
        known = self._by_name.get(name)
        if known is not None:
            return [known]
        found = self._renamed.get(name)
        if found is None:
            with self._lock:
                # By name, placeholders are not registered.
                entries = [entry for entry in self.by_type.copy().values() if entry.name in self._by_name]
                found = self._renamed[name] = [entry for entry in entries if is_renamed(name, entry.cls)]
        return found


_BUILTINS: Final = (list, dict, set, frozenset, str, bytes, bytearray, int, float, complex, BaseException, type)
"""Classes whose subclasses cannot be restored field by field."""


def flavour_of(cls: object) -> Flavour | None:  # noqa: PLR0911 - a case per type
    """Return the kind of an application type; None if it cannot be restored field by field."""
    if not isinstance(cls, type):
        return None
    if issubclass(cls, Enum):
        return "enum"
    if issubclass(cls, tuple):
        if isinstance(getattr(cls, "_fields", None), tuple):
            return "namedtuple"
        return None
    if is_pydantic_model(cls):
        return "pydantic"
    if hasattr(cls, "__dataclass_fields__") and not issubclass(cls, _BUILTINS):
        return "dataclass"
    return None


def find_application_types(annotations: Iterable[Any]) -> list[type]:
    """Return the application types in annotations, also in type arguments at any depth."""
    import typing

    found: dict[type, None] = {}
    waiting = [*annotations]
    while waiting:
        annotation = waiting.pop()
        waiting += typing.get_args(annotation)
        for cls in (annotation, typing.get_origin(annotation)):
            if flavour_of(cls) is not None:
                found[cls] = None
    return [*found]


def _read_annotations(cls: type) -> list[Any]:
    import typing

    try:
        return [*typing.get_type_hints(cls).values()]
    except Exception:  # noqa: BLE001 - an annotation may be any expression; the user registers what this misses
        annotations = getattr(cls, "__annotations__", {})
        return [annotation for annotation in annotations.values() if not isinstance(annotation, str)]


def _find_extra_slots(cls: type, fields: tuple[str, ...]) -> Iterable[str]:
    """Yield the attributes in `__slots__` that are not fields, by the names that getattr takes."""
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        if isinstance(slots, str):
            slots = (slots,)
        for slot in slots:
            name = slot
            if slot.startswith("__") and not slot.endswith("__"):
                name = f"_{base.__name__.lstrip('_')}{slot}"  # a private name, as Python mangles it
            if name not in fields and name not in {"__dict__", "__weakref__"}:
                yield name


# --- names ------------------------------------------------------------------------------------------------------------
#
# The module that a program runs is called `__main__` there, whatever its file is. Every other process that imports the
# file knows the same class under the file's name. `python -m app` knows this name, and stores it. `python app.py` does
# not know it; what it stores as `__main__.Item` is given to the registered class Item, if there is only one.

_MAIN: Final = frozenset({"__main__", "__mp_main__"})
"""The names of the module that a program runs: there, and in a process that `multiprocessing` has spawned from it."""


def type_name(cls: type) -> str:
    """Return the default name of a type: `module.qualname`, without the module for builtins."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{get_module_name(cls)}.{cls.__qualname__}"


def get_module_name(cls: type) -> str:
    """Return the name of the module of a class in other processes; `__main__` if it is not known."""
    module = cls.__module__
    if module not in _MAIN:
        return module
    # Not always that of `__main__`: multiprocessing gives a spawned process its main module only when it has run.
    name = _find_main_name(module)
    # A class may claim to be of the main module although it is not: code that `exec` runs, such as doctests. And a
    # program may import its own file again: its classes exist twice then, and the second ones have the name.
    if name is None or name in sys.modules or find_class(module, cls.__qualname__) is not cls:
        return "__main__"
    return name


def _find_main_name(module: str = "__main__") -> str | None:
    """Return the name of the module that this program runs; None if it was started by the path of a file."""
    name = getattr(getattr(sys.modules.get(module), "__spec__", None), "name", None)
    if name in _MAIN:
        return None
    return name


def find_class(module_name: str, qualname: str) -> type | None:
    """Return the class that an imported module has at an attribute path; None if there is none.

    Imports nothing, and runs no code of the module or of a class: lazy modules, metaclasses and
    descriptors do not notice. The main module is also found under its name in other processes.
    """
    module = sys.modules.get(module_name)
    if module is None and _is_main(module_name):
        module = sys.modules.get("__main__")
    if not issubclass(type(module), ModuleType):
        return None
    namespace = object.__getattribute__(module, "__dict__")
    found: Any = None
    for name in qualname.split("."):
        found = namespace.get(name)
        if not issubclass(type(found), type):
            return None
        namespace = type.__getattribute__(found, "__dict__")
    return found  # type: ignore[no-any-return]


def _is_main(module_name: str) -> bool:
    """Return whether other processes know the module that this program runs under this name."""
    name = _find_main_name()
    if name is not None:
        return name == module_name
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(file, str):
        return False
    wanted = tuple(module_name.split("."))
    parts = Path(file).with_suffix("").parts
    return parts[-len(wanted) :] == wanted


def is_renamed(name: str, cls: type) -> bool:
    """Return whether a stored name may mean a class that has another name in this process.

    It may if one of the two names is of the main module of a program, and the other one is not known
    to be of another module.
    """
    suffix = f".{cls.__qualname__}"
    if not name.endswith(suffix):
        return False
    module = name.removesuffix(suffix)
    return module in _MAIN or (cls.__module__ in _MAIN and _is_main(module))


def describe_type(cls: object) -> str:
    """Return how an error names what should be a class."""
    if isinstance(cls, type):
        return type_name(cls)
    return repr(cls)


_HOW_TO_GIVE: Final = (
    "give it to the saver, FileSystemSaver(types=[{name}]) or saver.register_types({name}), or name it in the state's "
    "schema"
)
_HOW_TO_REGISTER: Final = f"its type is not registered: {_HOW_TO_GIVE}"
_ADVICE: Final = {
    bytearray: "it is mutable; store bytes(x)",
    memoryview: "it is a view; store bytes(x)",
    ExtType: "it belongs to the storage format; leave it out of the state",
}


class UnstorableError(Exception):
    """A value cannot be stored. Internal to this package.

    Attributes:
        type_name: the type of the value.
        reason: why, and what to do.
        steps: the path to the value, innermost step first; the writer adds a step per container.
    """

    def __init__(self, cls: type, reason: str) -> None:
        super().__init__(reason)
        self.type_name = type_name(cls)
        self.reason = reason
        self.steps: list[str] = []


def explain_refusal(cls: type) -> str:
    """Return why the writer refuses instances of a class, and what to store instead."""
    if cls in _ADVICE:
        return _ADVICE[cls]
    if flavour_of(cls) is not None:
        return _HOW_TO_REGISTER.format(name=cls.__name__)
    for base in (dict, list, set, frozenset, tuple, str, bytes, int, float):
        if issubclass(cls, base):
            return f"a subclass of {base.__name__} would lose its type; store {base.__name__}(x)"
    if cls.__name__ in {"generator", "deque", "range", "map", "filter", "zip", "dict_keys", "dict_values"}:
        return "it cannot be stored; store list(x)"
    return "it cannot be stored; leave it out of the state, or store the data from which to make it again"


def explain_unknown(name: str) -> str:
    """Return why a stored type cannot be read, and what to do: no class of that name is registered."""
    module, _, class_name = name.partition(".")
    if module not in _MAIN:
        return _HOW_TO_REGISTER.format(name="...")
    return (
        f"a script stored it (python FILE), so its module is not known: import that file as a module, take its class "
        f"{class_name}, and {_HOW_TO_GIVE.format(name=class_name)}"
    )


def explain_ambiguous(found: Iterable[ApplicationType]) -> str:
    """Return why a stored type cannot be read, and what to do: several registered classes may be meant."""
    names = " and ".join(sorted(entry.name for entry in found))
    return f"{names} have this name; give the saver only the one that is meant, or rename the other one"
