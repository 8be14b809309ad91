"""From what was typed to what is meant: a store, a thread, a checkpoint, an application."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from graphkit._compiled import CompiledGraph
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit._wording import simplify_text
from graphkit.cli.values import UsageError, shown
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    GraphKitError,
)

_MARKER: Final = "graphkit.store"
_MARKS: Final = frozenset({_MARKER, "locks"})
_THREAD: Final = re.compile(r"t-[a-z0-9-]{0,40}-[a-z2-7]{24}\Z")
LIKE_A_WORD: Final = 0.65
"""How much alike two words must be, if one may be a typing error for the other; `thread` and `repair` have 0.5."""
_FEWEST: Final = 4
"""Characters of an id that are enough to mean it, if they are unique."""
_ELLIPSIS: Final = "…"
STAND_INS: Final[ContextVar[tuple[type, ...]]] = ContextVar("STAND_INS", default=())
"""Types that stand in for those that nobody here knows; see `graphkit.cli.placeholder_types`."""


# Stores


def open_store(place: str, *, create: bool = False) -> BaseCheckpointSaver:
    """The store at a place: a directory, or `kind:argument` of an installed kind of saver.

    Raises:
        UsageError: nothing was named.
        CheckpointerConfigurationError: there is no such directory, or it is a file.
        CheckpointFormatError: the directory is no store, or one of a newer version.
    """
    if not place:
        raise UsageError("name a checkpoint directory: as the first argument, or in GRAPHKIT_DIR")
    from graphkit import registry  # 20 ms, which help can do without

    kind, colon, argument = place.partition(":")
    if colon and kind in registry.saver_names() and not Path(place).exists():
        saver = registry.get_saver(kind, path=argument)
    else:
        if not create:
            _check_directory(Path(place))
        saver = registry.get_saver("file", path=place)
    saver.register_types(*STAND_INS.get())
    return saver


def _check_directory(path: Path) -> None:
    if not path.exists():
        raise CheckpointerConfigurationError(f"there is no directory {shown(str(path))}{_near_paths(path)}")
    if not path.is_dir():
        raise CheckpointerConfigurationError(f"{shown(str(path))} is a file; name the directory of the checkpoints")
    names = {one.name for one in path.iterdir()}
    if not names & _MARKS and not any(map(_THREAD.match, names)):
        raise CheckpointFormatError(shown(str(path)), f"this is no checkpoint directory: it has no {_MARKER}")


def _near_paths(path: Path) -> str:
    try:
        names = [one.name for one in path.parent.iterdir() if one.is_dir()]
    except OSError:
        return ""
    return near(path.name, names)


def near(wanted: str, known: Sequence[str], *, likeness: float = 0.5) -> str:
    """The end of a sentence about something unknown: what was perhaps meant.

    Args:
        wanted: what was typed.
        known: what there is.
        likeness: from 0 to 1, how much alike the two must be; short words from a small set want more.
    """
    from difflib import get_close_matches

    close = get_close_matches(wanted, known, n=3, cutoff=likeness)
    return f"; did you mean {' or '.join(map(shown, close))}?" if close else ""


# Threads and checkpoints


def thread_of(saver: BaseCheckpointSaver, typed: str, *, released: bool = False) -> str:
    """The thread that was typed: its id, as it is shown, or a beginning of it that no other has.

    Costs a look at one thread if the id is whole, else a listing of all.

    Raises:
        CheckpointNotFoundError: there is none; the message has near matches.
        UsageError: the beginning is that of several.
    """
    if _exists(saver, typed, released=released):
        return typed
    known = saver.threads(released=released)
    start = typed.removesuffix(_ELLIPSIS)
    found = [one for one in known if shown(one) == typed] or [
        one for one in known if start and (one.startswith(start) or shown(one).startswith(start))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} threads begin with {shown(start)}: {some(found)}; type more of it")
    raise CheckpointNotFoundError(typed, hint=(near(typed, known) or "; see graphkit threads").removeprefix("; "))


def _exists(saver: BaseCheckpointSaver, thread_id: str, *, released: bool) -> bool:
    try:
        if saver.namespaces(thread_id):
            return True
        return released and isinstance(saver, HasVersions) and bool(saver.versions_by_thread_id(thread_id))
    except CheckpointCorruptionError:
        return True


def checkpoint_of(saver: BaseCheckpointSaver, at: RunnableConfig, typed: str | None) -> CheckpointInfo:
    """The checkpoint that was typed: its id, or a beginning or an end of it that no other has; None: the latest.

    Raises:
        CheckpointNotFoundError: there is none.
        UsageError: several are meant.
    """
    history = saver.recent(at, limit=1) if typed is None else saver.history(at)
    if not history:
        raise CheckpointNotFoundError(at.thread, hint="see graphkit threads")
    if typed is None:
        return history[0]
    part = typed.strip(_ELLIPSIS)
    whole = [info for info in history if info.id == typed]
    found = whole[:1] or list(
        {
            info.id: info
            for info in history
            if len(part) >= _FEWEST and (info.id.endswith(part) or info.id.startswith(part))
        }.values()
    )
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} checkpoints match {typed}: {some([info.id for info in found])}; type more")
    hint = near(typed, [info.id for info in history]) or "; see graphkit history"
    raise CheckpointNotFoundError(at.thread, f"checkpoint {shown(typed)}", hint.removeprefix("; "))


def some(ids: Sequence[str]) -> str:
    """The first of several ids, for a sentence."""
    return ", ".join(map(shown, ids[:5])) + (", ..." if len(ids) > 5 else "")  # noqa: PLR2004 - a line of them


def line_of(history: Sequence[CheckpointInfo], checkpoint_id: str) -> list[CheckpointInfo]:
    """The checkpoints that led to one, itself last: from parent to child, as far as they are kept."""
    by_id = {info.id: info for info in reversed(history)}
    line: list[CheckpointInfo] = []
    at = by_id.get(checkpoint_id)
    while at is not None and len(line) <= len(by_id):
        line.append(at)
        at = by_id.get(at.parent_id) if at.parent_id is not None else None
    return line[::-1]


# Applications


def load_app(name: str, store: str = "", *, create: bool = False) -> CompiledGraph:
    """The compiled graph that `module:object` names, on the store at a place, or else on its own.

    The name is the user's, from the command line, and never from data. The current directory is looked at first.

    Raises:
        UsageError: there is no such module or object, or it is no graph.
        CheckpointerConfigurationError: there is no such directory, and it is not to be made.
        CheckpointFormatError: the directory is no store.
    """
    graph = _compiled(name, _object(name))
    if not store:
        return graph
    saver = open_store(store, create=create)
    return CompiledGraph(graph.topology, graph.compile_config.replace(checkpoint_saver=saver))


def _object(name: str) -> Any:
    module_name, colon, path = name.partition(":")
    if not colon or not path or not all(module_name.split(".")):
        raise UsageError(f"--app wants module:object, not {shown(name)}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"--app: {module_name} needs the module {error.name}, which is not installed") from error
        raise UsageError(f"--app: there is no module {shown(module_name)} here ({here}) or installed") from error
    except GraphKitError:
        raise
    except Exception as error:
        raise UsageError(f"--app: importing {shown(module_name)} failed: {_cause(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"--app: {module_name} has no {shown(path)}{_near_graphs(part, found)}")
        found = getattr(found, part)
    return found


def _near_graphs(wanted: str, owner: Any) -> str:
    """The end of a sentence about a graph that is not there: which ones are, first those with a similar name."""
    graphs = _graphs_in(owner)
    if not graphs:
        return "; it has no graph"
    return near(wanted, graphs, likeness=LIKE_A_WORD) or f"; its graphs: {some(graphs)}"


def _graphs_in(owner: Any) -> list[str]:
    """The public names of an object that are graphs, or functions that say they return one."""
    from graphkit._build.state_graph import StateGraph

    kinds = (CompiledGraph, StateGraph)
    names = {kind.__name__ for kind in kinds}
    found = []
    for name, value in sorted(vars(owner).items()) if hasattr(owner, "__dict__") else ():
        returned = getattr(value, "__annotations__", {}).get("return") if callable(value) else None
        makes_graph = returned in kinds or str(returned).rpartition(".")[2] in names
        if not name.startswith("_") and (isinstance(value, kinds) or makes_graph):
            found.append(name)
    return found


def _cause(error: Exception) -> str:
    """What went wrong in the user's own code, and where: the last line of its traceback that no library wrote."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    is_there = own and not isinstance(error, SyntaxError)  # that tells it itself
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if is_there else ""
    return f"{type(error).__name__}: {simplify_text(str(error))}{where}; --debug shows the traceback"


def _compiled(name: str, found: Any) -> CompiledGraph:
    from graphkit._build.state_graph import StateGraph

    if callable(found) and not isinstance(found, (CompiledGraph, StateGraph)):
        try:
            found = found()
        except GraphKitError:
            raise
        except Exception as error:
            raise UsageError(f"--app: calling {shown(name)} without arguments failed: {_cause(error)}") from error
    if isinstance(found, StateGraph):
        found = found.compile()
    if not isinstance(found, CompiledGraph):
        kind = type(found).__name__
        raise UsageError(f"--app: {shown(name)} is of type {kind}; name a graph, or a function that makes one")
    return found


def saver_of(graph: CompiledGraph) -> BaseCheckpointSaver:
    """The store that a graph keeps its checkpoints in.

    Raises:
        UsageError: it has none.
    """
    saver = graph.compile_config.saver
    if saver is None:
        raise UsageError("the graph of --app has no saver: name a checkpoint directory")
    return saver
