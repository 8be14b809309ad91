"""Imports the graphs that --app names."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._wording import simplify_text, suggest
from graphkit.cli.resolve import join_some
from graphkit.cli.stores import open_store
from graphkit.cli.values import UsageError, escape
from graphkit.errors import GraphKitError

if TYPE_CHECKING:
    from graphkit._compiled import CompiledGraph


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
    from graphkit import CompiledGraph

    graph = _compile(name, _import_object(name))
    if not store:
        return graph
    saver = open_store(store, create=create)
    return CompiledGraph(graph.topology, graph.compile_config.replace(checkpoint_saver=saver))


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
    except ModuleNotFoundError as error:
        if _is_missing_itself(name, error):
            reason = f"there is no module {escape(name)} in {directory} or installed"
        else:
            reason = f"{name} needs the module {error.name}, which is not installed"
        raise UsageError(f"--app: {reason}") from error
    except GraphKitError:
        raise
    except Exception as error:
        cause = _describe_cause(error)
        raise UsageError(f"--app: importing {escape(name)} failed: {cause}") from error


def search_modules_here() -> str:
    """Search the current directory for modules, as `python -m` does and a console script does not; return it."""
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    return directory


def _is_missing_itself(name: str, error: ModuleNotFoundError) -> bool:
    """Return whether a module or its package is missing, and not another module that it imports."""
    if not error.name:
        return True
    return f"{name}.".startswith(f"{error.name}.")


def _suggest_graph(wanted: str, owner: Any) -> str:
    """Return the end of a message about an unknown object: the graphs that there are."""
    graphs = list(_graphs_in(owner))
    if not graphs:
        return "; it has no graph"
    return suggest(wanted, graphs, show=escape) or f"; its graphs: {join_some(graphs)}"


def _graphs_in(owner: Any) -> Iterator[str]:
    """Yield the names of graphs, and of functions annotated to return one; sorted."""
    from graphkit import CompiledGraph, StateGraph

    if not hasattr(owner, "__dict__"):
        return
    graph_types = (CompiledGraph, StateGraph)
    type_names = {graph_type.__name__ for graph_type in graph_types}
    for name, value in sorted(vars(owner).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, graph_types):
            yield name
        elif callable(value):
            returned = getattr(value, "__annotations__", {}).get("return")
            # The annotation may be a string, of any spelling of the path.
            if returned in graph_types or str(returned).rpartition(".")[2] in type_names:
                yield name


def _describe_cause(error: Exception) -> str:
    """Describe an error of the user's code, with the last line that is not in a library."""
    text = f"{type(error).__name__}: {simplify_text(str(error))}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    if own and not isinstance(error, SyntaxError):  # whose message has the line
        text += f" ({own[-1].filename}, line {own[-1].lineno})"
    return f"{text}; --debug shows the traceback"


def _compile(name: str, found: Any) -> CompiledGraph:
    from graphkit import CompiledGraph, StateGraph

    if callable(found) and not isinstance(found, (CompiledGraph, StateGraph)):
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
    return found
