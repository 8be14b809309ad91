"""The rights that a run needs: asked for before its first node, of savers that decide about them."""

from __future__ import annotations

from typing import Final

from graphkit._engine.history import RunHistory
from graphkit._engine.program import Program, iter_savers, program_of
from graphkit._records.config import RunnableConfig
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import check_rights
from graphkit._saver.writes import subgraph_namespace

_HISTORY: Final = ("get", "get_writes", "put", "put_writes")
"""What a run or an update does with each history."""


def check_access(history: RunHistory, *, is_run: bool) -> None:
    """Check that a run or an update may do all that it may have to do, so that it does not fail halfway.

    Raises:
        AccessDeniedError: it may not.
    """
    saver = history.saver
    if saver is None:
        return
    check_rights(saver, history.config, "run_lock", *_HISTORY)
    if not is_run:
        return
    _check_nested(history.program, history.config, saver)
    options = history.program.options
    if options.release_thread:
        ending = "release"
    elif not options.preserve:
        ending = "delete"
    else:
        return
    for each in iter_savers(history.program.topology, saver):
        check_rights(each, history.config, ending)


def _check_nested(program: Program, config: RunnableConfig, saver: BaseCheckpointSaver | None) -> None:
    """Check the histories of nested graphs, at any depth."""
    for node in program.topology.nested:
        nested = program_of(node)
        nested_config = config.replace(checkpoint_ns=subgraph_namespace(config.checkpoint_ns, node.id))
        nested_saver = None
        if nested.options.checkpoint_interval:
            nested_saver = nested.options.checkpoint_saver or saver
        if nested_saver is not None:
            lock = () if nested_saver is saver else ("run_lock",)
            check_rights(nested_saver, nested_config, *lock, *_HISTORY)
        _check_nested(nested, nested_config, nested_saver)
