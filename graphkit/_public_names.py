"""The names of public classes: their path, such as `graphkit.Checkpoint`, Java's spellings, and LangGraph's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, ForwardRef, Generic, NoReturn, Self, TypeVar

T = TypeVar("T")


def set_public_module(namespace: Mapping[str, Any], module_name: str) -> None:
    """Set `__module__` of the classes and functions that a module exports in `__all__`.

    Tracebacks, documentation and pickles then name `graphkit.Checkpoint` and not the private module
    that defines it. An object that `graphkit` exports keeps that path when another public module
    exports it too, because `graphkit` is always imported first. Objects of other packages and
    objects that are neither a class nor a function stay as they are.

    The price: `inspect.getsource` searches a class in the file of its `__module__`, so it finds the
    source of the methods of a public class but not of the class.

    Args:
        namespace: the globals of the module; names of `__all__` that it lacks are passed over.
        module_name: the public path of the module.
    """
    package = module_name.partition(".")[0]
    for name in namespace["__all__"]:
        exported = namespace.get(name)
        if not isinstance(exported, type | FunctionType):
            continue
        if exported.__module__.startswith(f"{package}."):
            if isinstance(exported, type):
                _bind_annotations(exported)
            exported.__module__ = module_name


def import_when_used(
    namespace: dict[str, Any], *groups: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a public module that imports some names when one of them is first used.

    Args:
        namespace: the globals of the module.
        groups: the private modules of these names. The names of a group are imported together, so that each
            class has its public path, whoever made an object of it.
    """

    def import_name(name: str) -> Any:
        from importlib import import_module

        for group in groups:
            if name in group:
                for each, module in group.items():
                    namespace[each] = getattr(import_module(module), each)
                set_public_module(namespace, namespace["__name__"])
                return namespace[name]
        raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")

    def list_names() -> list[str]:
        return sorted({*namespace, *namespace["__all__"]})

    return import_name, list_names


def _bind_annotations(cls: type) -> None:
    """Make the annotations of a class resolve where it is defined, whatever `__module__` says.

    `typing.get_type_hints` and pydantic look up the names in an annotation in the module that
    `__module__` names, unless the annotation is a ForwardRef that names another module.
    """
    annotations = vars(cls).get("__annotations__", {})
    fields = getattr(cls, "__dataclass_fields__", {})
    for name, hint in annotations.items():
        if isinstance(hint, ForwardRef):  # as in a NamedTuple
            if hint.__forward_module__ is not None:
                continue  # Another public module has exported the class before, and has bound it.
            text = hint.__forward_arg__
        elif isinstance(hint, str):
            text = hint
        else:
            continue
        annotations[name] = ForwardRef(text, is_argument=False, module=cls.__module__, is_class=True)
        if name in fields:
            fields[name].type = annotations[name]


def snake_to_camel(name: str) -> str:
    """Convert `add_conditional_edges` to `addConditionalEdges`."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class JavaNames:
    """Makes the two spellings of a method one method, even if a subclass overrides one of them.

    A class that mixes this in writes each alias as a plain line, such as
    `getStateHistory = get_state_history`, because editors and type checkers read them. When a
    subclass overrides one spelling, the other is bound to the same function.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[1:]:
            for name in list(vars(base)):
                is_public = not name.startswith("_") and "_" in name.strip("_")
                camel = snake_to_camel(name)
                if not is_public or camel not in vars(base):
                    continue
                own = vars(cls)
                if name in own and camel not in own:
                    setattr(cls, camel, own[name])
                elif camel in own and name not in own:
                    setattr(cls, name, own[camel])


class JavaBuilder(Generic[T]):
    """Java's builder of an object; Python callers pass keywords to its class instead.

    A subclass has a method for each keyword.
    """

    def __init__(self, cls: Callable[..., T], keywords: Mapping[str, Any]) -> None:
        self._cls = cls
        self._keywords = dict(keywords)

    def _with(self, **changes: Any) -> Self:
        self._keywords = {**self._keywords, **changes}  # a copy of the builder keeps its own
        return self

    def build(self) -> T:
        """Make the object; its class says what this raises."""
        return self._cls(**self._keywords)


class NameElsewhere:
    """An attribute that a class does not have: the error says how it is done here.

    For classes that are read all the time. A `__getattr__` would explain every name, but with one in its
    class the interpreter does not specialize the reads of any attribute: of a config, 1.5 % of a put.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        from graphkit._wording import explain_name  # an error may take its time

        raise AttributeError(f"a {owner.__name__} has no {self._name!r}{explain_name(self._name)}")
