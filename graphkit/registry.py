"""Savers by name, so that a configuration can choose one.

    saver = get_saver("disk", base_directory="/var/checkpoints")

A package adds a saver with an entry point of the group `graphkit.savers`; a program adds one by calling
`register_saver` (a factory: each `get_saver` makes one) or `register_checkpoint_store` (a saver that all share), which
is the store registry of go-agents-orchestration, ported. Nothing is imported before its name is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from threading import Lock
from typing import Any, Final

from graphkit._named_registry import NamedRegistry
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointerConfigurationError

__all__ = ["get_checkpoint_store", "get_saver", "register_checkpoint_store", "register_saver", "saver_names"]

Factory = Callable[..., BaseCheckpointSaver]
"""Makes a saver: a class or a function."""


def register_saver(name: str, factory: Factory) -> None:
    """Let a name mean a kind of saver; registering it again replaces it, an entry point's too. From any thread.

    Args:
        name: what a configuration says.
        factory: makes a saver of the options that the configuration gives.

    Raises:
        CheckpointerConfigurationError: the name is empty, or the factory cannot be called. Nothing was changed.
    """
    given: object = factory
    if isinstance(given, BaseCheckpointSaver) or not callable(given):
        raise CheckpointerConfigurationError(
            f"a factory makes savers, which {factory!r} cannot; register_checkpoint_store takes a saver itself"
        )
    _SAVERS.register(name, factory)


def get_saver(name: str, **options: Any) -> BaseCheckpointSaver:
    """A new saver of the kind that a name means: "memory", "disk" (also "file", "filesystem"), and what is installed.

    Args:
        name: the kind.
        options: what its constructor takes. `path`, which every configuration file may say, is its first argument: the
            `base_directory` of "disk".

    Raises:
        CheckpointerConfigurationError: there is no such kind (the message lists those there are), or an option is
            unknown or missing.
        MissingDependencyError: the saver needs a package that is not installed.
    """
    return _made(name, _SAVERS.get(name), options)


def saver_names() -> list[str]:
    """The names that `get_saver` knows, sorted."""
    return sorted(_SAVERS.known())


def register_checkpoint_store(name: str, store: BaseCheckpointSaver | Factory | Any) -> None:
    """Let a name mean a store; registering it again replaces it. From any thread.

    Args:
        name: what a configuration says.
        store: a saver, which everybody who asks for the name shares; a `CheckpointStore`, whose saver it is; or a
            factory, called each time.

    Raises:
        CheckpointerConfigurationError: the name is empty, or this is none of the three. Nothing was changed.
    """
    saver = getattr(store, "saver", store)
    if not isinstance(saver, BaseCheckpointSaver) and not callable(saver):
        raise CheckpointerConfigurationError(f"a checkpoint store is a saver or a factory of savers, not {store!r}")
    _STORES.register(name, saver)


def get_checkpoint_store(name: str, **options: Any) -> BaseCheckpointSaver:
    """The store that a name means: what was registered, or else what `get_saver` makes.

    "memory" is one store for the whole process. For `save`, `load`, `delete` and `list` by run id, wrap it:
    `CheckpointStore(get_checkpoint_store("memory"))`.

    Args:
        name: the store.
        options: as in `get_saver`, where the store has yet to be made.

    Raises:
        CheckpointerConfigurationError: there is no such store (the message lists those there are), an option is
            unknown or missing, or a store that exists already is given options.
        MissingDependencyError: the saver needs a package that is not installed.
    """
    found = _STORES.get(name)
    if not isinstance(found, BaseCheckpointSaver):
        return _made(name, found, options)
    if options:
        raise CheckpointerConfigurationError(f"the store {name!r} exists already; it takes no {', '.join(options)}")
    return found


def _made(name: str, kind: Factory | EntryPoint, options: Mapping[str, Any]) -> BaseCheckpointSaver:
    first = [options["path"]] if "path" in options else []
    others = {key: value for key, value in options.items() if key != "path"}
    # Not by isinstance: where the backport importlib_metadata is installed, entry points are of its class.
    factory: Factory = kind if callable(kind) else kind.load()
    _check_options(name, factory, first, others)
    saver: object = factory(*first, **others)
    if not isinstance(saver, BaseCheckpointSaver):
        raise CheckpointerConfigurationError(f"the saver {name!r} is a {type(saver).__name__}, no BaseCheckpointSaver")
    return saver


def _check_options(name: str, factory: Factory, first: list[Any], others: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a builtin that tells nothing
        return
    try:
        signature.bind(*first, **others)
    except TypeError as error:
        known = ", ".join(signature.parameters) or "none"
        reason = f"the saver {name!r} cannot be made: {error}; its options are {known} (path= is the first of them)"
        raise CheckpointerConfigurationError(reason) from error


def _installed() -> Mapping[str, Factory | EntryPoint]:
    return {point.name: point for point in entry_points(group="graphkit.savers")}


_SAVERS: Final[NamedRegistry[Factory | EntryPoint]] = NamedRegistry("saver", _installed)
_STORES: Final[NamedRegistry[BaseCheckpointSaver | Factory | EntryPoint]] = NamedRegistry(
    "checkpoint store", _SAVERS.known
)
_GUARD: Final = Lock()


def _shared_memory() -> BaseCheckpointSaver:
    with _GUARD:
        return _only_memory()


@cache
def _only_memory() -> BaseCheckpointSaver:
    return get_saver("memory")


register_checkpoint_store("memory", _shared_memory)
