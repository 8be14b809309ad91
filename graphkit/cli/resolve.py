"""Finds what the user typed: threads and checkpoints, and the graphs that --app names."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import has_thread
from graphkit._wording import describe_error, explain_failed_import, simplify_text, suggest
from graphkit.cli.cells import describe_known_error, short_ids
from graphkit.cli.context import CliContext
from graphkit.cli.stores import open_store
from graphkit.cli.values import UsageError, escape
from graphkit.errors import CheckpointerError, CheckpointNotFoundError, GraphKitError

if TYPE_CHECKING:
    from graphkit._compiled import CompiledGraph

T = TypeVar("T")

_MIN_ID_LENGTH: Final = 4
"""Characters that suffice to name a checkpoint id, if they are unique."""
_MAX_JOINED: Final = 5
_ELLIPSIS: Final = "…"


def find_thread(saver: BaseCheckpointSaver, typed: str, *, released: bool = False) -> str:
    """Return the thread that the user typed: its id, as it is displayed, or a unique prefix.

    A complete id costs a look at one thread, anything else a listing of all threads.

    Args:
        saver: the store.
        typed: what the user typed.
        released: whether threads that only have released versions count.

    Raises:
        CheckpointNotFoundError: there is no such thread; the message suggests similar ones.
        UsageError: several threads have the prefix.
    """
    # An id wins over a prefix: "t" names the thread "t", although there is a "t2".
    if has_thread(saver, typed, released=released):
        return typed

    # A table shows ids escaped and, if they are long, cut with an ellipsis: both can be typed as they are shown.
    known = saver.threads(released=released)
    matches = [thread for thread in known if escape(thread) == typed]
    start = typed.removesuffix(_ELLIPSIS)
    if start and not matches:
        matches = [thread for thread in known if thread.startswith(start) or escape(thread).startswith(start)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = join_some(matches)
        raise UsageError(f"{len(matches)} threads begin with {escape(start)}: {names}; type more characters")

    hint = suggest(typed, known, show=escape).removeprefix("; ") or "see graphkit threads"
    raise CheckpointNotFoundError(typed, hint=hint)


def find_checkpoint(saver: BaseCheckpointSaver, config: RunnableConfig, typed: str | None) -> CheckpointInfo:
    """Return the checkpoint that the user typed: an id, or a unique beginning or end of it, or of its short form.

    Args:
        saver: the store.
        config: the thread and the namespace.
        typed: what the user typed; None: the latest checkpoint.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        UsageError: several checkpoints match.
    """
    history = saver.recent(config, limit=1) if typed is None else saver.history(config)
    if not history:
        raise CheckpointNotFoundError(config.thread, hint="see graphkit threads")
    if typed is None:
        return history[0]
    # A history may have several checkpoints of one id. The newest of them, which comes first, counts.
    infos: dict[str, CheckpointInfo] = {info.id: info for info in reversed(history)}
    part = typed if typed in infos else typed.strip(_ELLIPSIS)
    matches: list[str] = []
    if part in infos or len(part) >= _MIN_ID_LENGTH:
        matches = match_ids(infos, part)
    if len(matches) == 1:
        return infos[matches[0]]
    if not matches:
        hint = suggest(typed, list(infos), show=escape).removeprefix("; ") or "see graphkit history"
        if len(part) < _MIN_ID_LENGTH:
            hint = f"type at least {_MIN_ID_LENGTH} characters of an id"
        raise CheckpointNotFoundError(config.thread, f"checkpoint {escape(typed)}", hint)

    raise UsageError(f"{len(matches)} checkpoints match {typed}: {join_some(matches)}; type more characters")


def match_ids(ids: Collection[str], part: str) -> list[str]:
    """Return the ids that a text may stand for; only the one that is the text, if there is one.

    They begin or end with it, or begin with it as a terminal shows them, which is the end of most.
    """
    if part in ids:
        return [part]
    shown = short_ids(ids)
    return [full for full in ids if full.startswith(part) or full.endswith(part) or shown[full].startswith(part)]


def find_only(saver: BaseCheckpointSaver, typed: str | None, *, released: bool = False) -> str | None:
    """Return the thread that the user typed as the only one; None stands for all threads."""
    if typed is None:
        return None
    return find_thread(saver, typed, released=released)


def find_chosen(saver: BaseCheckpointSaver, typed: Sequence[str], *, released: bool = False) -> Sequence[str] | None:
    """Return the threads that the user typed; None stands for all threads."""
    return [find_thread(saver, name, released=released) for name in typed] or None


def find_threads(saver: BaseCheckpointSaver, typed: str | None) -> Sequence[str]:
    """Return the thread that the user typed as the only one, or all threads (None)."""
    if typed is None:
        return saver.threads()
    return [find_thread(saver, typed)]


def read_threads(
    context: CliContext, saver: BaseCheckpointSaver, typed: str | None, read: Callable[[str], Iterable[T]]
) -> list[T]:
    """Return what a function reads from the thread that the user typed, or from all threads (None).

    Of all threads, one that cannot be read is reported and passed over.
    """
    found: list[T] = []
    for thread_id in find_threads(saver, typed):
        try:
            found += read(thread_id)
        except CheckpointerError as error:
            if typed is not None:
                raise
            context.warn(f"graphkit: {describe_known_error(error)}")
    return found


def find_config(
    saver: BaseCheckpointSaver,
    thread: str,
    *,
    ns: str = "",
    checkpoint: str | None = None,
) -> RunnableConfig:
    """Return the config of the thread, the namespace and the checkpoint that the user typed.

    Without a checkpoint it names none, so that it stands for the latest.

    Raises:
        CheckpointNotFoundError: there is no such thread or checkpoint.
        UsageError: several match.
    """
    config = RunnableConfig(find_thread(saver, thread), checkpoint_ns=ns)
    if checkpoint is None:
        return config
    info = find_checkpoint(saver, config, checkpoint)
    return config.with_check_point_id(info.id)


def join_some(ids: Sequence[str]) -> str:
    """Return the first of several ids as part of a sentence."""
    texts = [escape(full) for full in ids[:_MAX_JOINED]]
    if len(ids) > _MAX_JOINED:
        texts.append("...")
    return ", ".join(texts)


def load_app(name: str, store: str = "", *, create: bool = False) -> CompiledGraph:
    """Import the graph that `module:object` names, and compile it if necessary.

    The name must come from the command line, never from stored data. The current directory is
    searched first.

    Args:
        name: the module and the object, which is a graph or a function that returns one.
        store: the store that the graph uses instead of its own saver, if any.
        create: whether the directory of the store may be missing or empty.

    Raises:
        UsageError: there is no such module or object, importing or calling it failed, or it is not
            a graph.
        CheckpointerConfigurationError: the directory does not exist, or is a file.
        CheckpointFormatError: the directory is not a store.
    """
    from graphkit import CompiledGraph, StateGraph

    found = _import_object(name)
    if callable(found):
        try:
            found = found()
        except GraphKitError:
            raise
        except Exception as error:
            message = f"--app: calling {escape(name)} without arguments failed: {_describe_cause(error)}"
            raise UsageError(message) from error

    if isinstance(found, StateGraph):
        found = found.compile()
    elif isinstance(getattr(found, "graph", None), CompiledGraph):  # an agent
        found = found.graph
    if not isinstance(found, CompiledGraph):
        kind = type(found).__name__
        raise UsageError(f"--app: {escape(name)} is of type {kind}; name a graph, or a function that returns one")
    if not store:
        return found
    saver = open_store(store, create=create)
    return CompiledGraph(found.topology, found.compile_config.replace(checkpoint_saver=saver))


def open_store_of(directory: str, app: str | None) -> BaseCheckpointSaver:
    """Open the store of a command that accepts --app.

    The graph registers types, and may have a saver of its own.
    """
    if app is None:
        return open_store(directory)
    return require_saver(load_app(app, directory))


def require_saver(graph: CompiledGraph) -> BaseCheckpointSaver:
    """Return the saver of a graph.

    Raises:
        UsageError: it has none.
    """
    saver = graph.compile_config.saver
    if saver is None:
        raise UsageError("the graph of --app has no saver: name a checkpoint directory")
    return saver


def _import_object(name: str) -> Any:
    module_name, _, path = name.partition(":")
    packages = module_name.split(".")
    if not path or not all(packages):
        raise UsageError(f"--app must be module:object, not {escape(name)}")
    found: Any = _import_module(module_name)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            hint = _suggest_graph(attribute, found)
            what = escape(path)
            raise UsageError(f"--app: {module_name} has no {what}{hint}")
        found = getattr(found, attribute)
    return found


def _import_module(name: str) -> ModuleType:
    directory = search_modules_here()
    try:
        return importlib.import_module(name)
    except GraphKitError:
        raise
    except Exception as error:
        reason = explain_failed_import(name, error, f" in {directory} or installed", _describe_cause)
        raise UsageError(f"--app: {reason}") from error


def search_modules_here() -> str:
    """Search the current directory for modules, as `python -m` does and a console script does not; return it."""
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    return directory


def _suggest_graph(wanted: str, owner: Any) -> str:
    """Return the end of a message about an unknown object: the graphs, and the functions annotated to return one."""
    from graphkit import CompiledGraph, StateGraph

    graphs: list[str] = []
    for name, value in sorted(getattr(owner, "__dict__", {}).items()):
        # An annotation is a class, or a string of any spelling of its path. What cannot be called may be a lazy object,
        # such as the request of a web framework, which fails when it is asked.
        annotation = ""
        if callable(value):
            annotation = str(getattr(value, "__annotations__", {}).get("return")).rstrip("'>")
        is_factory = annotation.rpartition(".")[2] in {"CompiledGraph", "StateGraph"}
        if not name.startswith("_") and (is_factory or isinstance(value, (CompiledGraph, StateGraph))):
            graphs.append(name)
    if not graphs:
        return "; it has no graph"
    return suggest(wanted, graphs, show=escape) or f"; its graphs: {join_some(graphs)}"


def _describe_cause(error: Exception) -> str:
    """Describe an error of the user's code, with the last line that is not in a library."""
    text = simplify_text(describe_error(error))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    if own and not isinstance(error, SyntaxError):  # whose message has the line
        text += f" ({own[-1].filename}, line {own[-1].lineno})"
    return f"{text}; --debug shows the traceback"
