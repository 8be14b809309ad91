"""Savers by name, for configurations.

    saver = get_saver("disk", base_directory="/var/checkpoints")

A package adds a saver with an entry point of the group `graphkit.savers`. A program adds one by
calling `register_saver` (a factory: each `get_saver` makes a new saver) or
`register_checkpoint_store` (one saver that all callers share), which ports the store registry of
go-agents-orchestration. The registry imports a saver's module when its name is first used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeAlias, cast

from graphkit._options import NamedRegistry
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError

__all__ = [
    "check_saver_options",
    "get_checkpoint_store",
    "get_saver",
    "register_checkpoint_store",
    "register_saver",
    "saver_names",
]

Factory = Callable[..., BaseCheckpointSaver]
"""A class or function that makes a saver."""

_Kind: TypeAlias = Factory | EntryPoint | BaseCheckpointSaver
"""What a name may stand for: what makes savers, an installed one of these, or a store that exists."""


def register_saver(name: str, factory: Factory) -> None:
    """Register a kind of saver under a name. Any thread may call this.

    Replaces a factory or an entry point of the same name.

    Args:
        name: the name that configurations use.
        factory: makes a saver from the options of a configuration.

    Raises:
        CheckpointerConfigurationError: the name is empty, or the factory cannot be called. Nothing
            was changed.
    """
    checked: object = factory
    if isinstance(checked, BaseCheckpointSaver) or not callable(checked):
        raise CheckpointerConfigurationError(
            f"a factory must be callable and make savers, not {factory!r}; register_checkpoint_store takes a saver"
        )
    _SAVERS.register(name, factory)


def get_saver(name: str, **options: Any) -> BaseCheckpointSaver:
    """Make a saver by the name of its kind.

    Args:
        name: "memory", "versioned_memory", "disk" (also "file", "filesystem"), "sqlite", "postgres",
            or the name of a registered or installed kind, or of a registered store.
        options: the arguments of its constructor. `path`, which every configuration file may
            contain, is the first argument: the `base_directory` of "disk", the `db_file` of
            "sqlite", the `connection_string` of "postgres".

    Raises:
        CheckpointerConfigurationError: the name is unknown (the message lists the known names), or
            an option is unknown or missing.
        MissingDependencyError: the saver needs a package that is not installed.
    """
    return _make_saver(name, _SAVERS.get(name), options)


def check_saver_options(name: str, **options: Any) -> None:
    """Check options as `get_saver` does, without making a saver.

    A factory that defines a method `check_options`, as the savers of this package do, checks the values
    with it: it is called with the arguments, raises what the factory raises, and opens nothing. A
    subclass defines its own. Of other factories, only the names of the options are checked.

    Raises:
        CheckpointerConfigurationError: the name is unknown, or an option is unknown, missing or wrong. A
            message about an option that is given begins with its name.
        TypeError, ValueError: as the factory.
        MissingDependencyError: the saver needs a package that is not installed.
    """
    make = _bind_options(name, _SAVERS.get(name), options)
    # An inherited method is for another constructor, and that of a subclass may open something.
    if "check_options" in getattr(make.func, "__dict__", {}):
        check_values: Callable[..., None] = make.func.check_options  # type: ignore[attr-defined]
        check_values(*make.args, **make.keywords)


def saver_names() -> list[str]:
    """Return the names that `get_saver` knows, sorted."""
    return sorted(_SAVERS.known())


def register_checkpoint_store(name: str, store: BaseCheckpointSaver | Factory | Any) -> None:
    """Register a store under a name, in place of an earlier one. Any thread may call this.

    Args:
        name: the name that configurations use.
        store: a saver, which all callers of `get_checkpoint_store` share; a `CheckpointStore`, for its
            saver; or a factory, which each call of `get_checkpoint_store` calls.

    Raises:
        CheckpointerConfigurationError: the name is empty, or the store is none of the three.
            Nothing was changed.
    """
    saver = getattr(store, "saver", store)
    if not isinstance(saver, BaseCheckpointSaver) and not callable(saver):
        raise CheckpointerConfigurationError(f"a checkpoint store must be a saver or a factory, not {store!r}")
    _STORES.register(name, saver)


def get_checkpoint_store(name: str, **options: Any) -> BaseCheckpointSaver:
    """Return the store registered as `name`, or create one with `get_saver`.

    "memory" is one store for the whole process. For `save`, `load`, `delete` and `list` by run id,
    wrap it: `CheckpointStore(get_checkpoint_store("memory"))`.

    Args:
        name: the store.
        options: as in `get_saver`, for a store that does not exist yet.

    Raises:
        CheckpointerConfigurationError: the name is unknown (the message lists the known names), an
            option is unknown or missing, or there are options for a store that exists.
        MissingDependencyError: the saver needs a package that is not installed.
    """
    return _make_saver(name, _STORES.get(name), options)


def _make_saver(name: str, kind: _Kind, options: Mapping[str, Any]) -> BaseCheckpointSaver:
    saver: object = _bind_options(name, kind, options)()
    if not isinstance(saver, BaseCheckpointSaver):
        raise CheckpointerConfigurationError(
            f"the saver {name!r} must be a BaseCheckpointSaver, not a {type(saver).__name__}"
        )
    return saver


def _bind_options(name: str, kind: _Kind, options: Mapping[str, Any]) -> partial[BaseCheckpointSaver]:
    """Return a factory with the arguments that options stand for.

    Raises:
        CheckpointerConfigurationError: the factory does not take them.
    """
    if isinstance(kind, BaseCheckpointSaver):
        if options:
            raise CheckpointerConfigurationError(
                f"{', '.join(options)}: the store {name!r} exists already, and takes no options"
            )
        return partial(lambda: kind)
    # Not by isinstance: where the backport importlib_metadata is installed, entry points are of its
    # class.
    factory: Factory = kind if callable(kind) else kind.load()
    keywords = dict(options)
    arguments = [keywords.pop("path")] if "path" in keywords else []
    make = partial(factory, *arguments, **keywords)
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a builtin without a signature
        return make
    known = ", ".join(signature.parameters) or "none"
    parameters = signature.parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    names = {parameter.name for parameter in parameters if parameter.kind in kinds}
    for option in keywords:
        if not takes_any and option not in names:
            raise CheckpointerConfigurationError(
                f"{option} is not an option of the saver {name!r}; its options are {known} (path= is the first of them)"
            )
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise CheckpointerConfigurationError(
            f"the saver {name!r} cannot be made: {error}; its options are {known} (path= is the first of them)"
        ) from error
    return make


# Each registry knows what the other one has. A saver that is installed comes before a store of the same name, and for
# `get_checkpoint_store` it is the other way round: the "memory" of a configuration is a saver of its own.
_SAVERS: Final[NamedRegistry[_Kind]] = NamedRegistry(
    "saver", lambda: {**_STORES.registered, **{point.name: point for point in entry_points(group="graphkit.savers")}}
)
_STORES: Final[NamedRegistry[_Kind]] = NamedRegistry(
    "checkpoint store", lambda: {**_SAVERS.known(), "memory": _get_shared_memory}
)


def _get_shared_memory() -> BaseCheckpointSaver:
    # Of several threads that come first, one registers its saver, and all of them get that one.
    return cast("BaseCheckpointSaver", _STORES.registered.setdefault("memory", get_saver("memory")))
