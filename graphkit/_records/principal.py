"""The principal: on whose behalf the calling code uses a saver; see `savers.AccessControlledSaver`.

It is named by a config, by `acting_as`, or by the run whose node is executing; in this order, except
that of the last two the inner one counts. It is never stored with a checkpoint, and graphkit does not
check who somebody is: the application does that before it names a principal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from graphkit._records.config import ConfigLike, RunnableConfig
from graphkit._records.context import ABSENT, CURRENT_NODE_CONTEXT

P = ParamSpec("P")
T = TypeVar("T")


class _Acting(NamedTuple):
    """What one `acting_as` says."""

    principal: Any
    run: RunnableConfig | None
    """The config of the run inside which it was entered: the very object, which each run has one of."""


_ACTING: Final[ContextVar[_Acting | None]] = ContextVar("graphkit_acting_as", default=None)


@contextmanager
def acting_as(principal: Any) -> Iterator[None]:
    """Use savers on behalf of a principal inside the `with` block.

    It holds for the calling thread or asyncio task, for the tasks and `asyncio.to_thread` calls that
    these start, and for all threads, executors and processes of runs that begin inside the block. The
    config of a call that names a principal wins; see `RunnableConfig.with_principal`. Do not `yield`
    inside the block: a generator shares the context of the code that iterates over it.

    Args:
        principal: what the policies of the application know: a name, or an object. None is nobody.
    """
    token = _ACTING.set(_Acting(principal, _find_run()))
    try:
        yield
    finally:
        _ACTING.reset(token)


def get_principal(config: RunnableConfig | None = None) -> Any:
    """Return the principal of a call with this config; None is nobody."""
    if config is not None and config.principal is not ABSENT:
        return config.principal
    acting = _ACTING.get()
    run = _find_run()
    # Code of a node acts as its run does, whoever reads the stream of that run meanwhile, unless the
    # node itself has said otherwise.
    if run is not None and (acting is None or acting.run is not run):
        return None if run.principal is ABSENT else run.principal
    return None if acting is None else acting.principal


def _find_run() -> RunnableConfig | None:
    """Return the config of the run whose node, edge or hook is executing."""
    context = CURRENT_NODE_CONTEXT.get()
    if context is None or context.journal is None:
        return None
    return context.journal.config


def with_current_principal(config: ConfigLike) -> RunnableConfig:
    """Return a copy of a config that names the principal of a call with it, for use outside the caller's context.

    If there is none, it names nobody: the code that reads a stream lends nothing to the run. Always a
    copy: `acting_as` tells runs apart by their configs.
    """
    config = RunnableConfig.of(config)
    return config.with_principal(get_principal(config))


def acts_for(parameter: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: a function acts as the principal that the config in one of its arguments names."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        place = list(signature(function).parameters).index(parameter)

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            config = arguments[place] if len(arguments) > place else options.get(parameter)
            if not isinstance(config, (RunnableConfig, Mapping)):
                return function(*arguments, **options)
            principal = RunnableConfig.of(config).principal
            if principal is ABSENT:
                return function(*arguments, **options)
            with acting_as(principal):
                return function(*arguments, **options)

        return call

    return decorate
