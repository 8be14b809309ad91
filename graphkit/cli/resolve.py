"""Resolves what the user typed: a store, a thread, a checkpoint, an application."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from graphkit._compiled import CompiledGraph
from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import SupportsClose, SupportsExists
from graphkit._saver.versions import HasVersions
from graphkit._wording import simplify_text
from graphkit.cli.store_names import POSTGRES, SQLITE, StoreName, hide_passwords, parse_store_name
from graphkit.cli.values import UsageError, escape
from graphkit.errors import (
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    GraphKitError,
)

# The layout of a checkpoint directory, as docs/format.md specifies it. graphkit does not import savers, and opening a
# FileSystemSaver on a directory that is no store must not make it one.
_MARKER: Final = "graphkit.store"
_LOCKS: Final = "locks"
ENTRY_DIRECTORIES: Final = frozenset({"langgraph-store", "langgraph-cache"})
"""The names of the directories of LangGraph's store and cache."""
_THREAD_DIRECTORY: Final = re.compile(r"t-[a-z0-9-]{0,40}-[a-z2-7]{24}\Z")

WORD_SIMILARITY: Final = 0.65
"""How similar two words must be if one may be a misspelling of the other; `thread` and `repair`
have 0.5."""
_MIN_ID_LENGTH: Final = 4
"""Characters that suffice to name a checkpoint id, if they are unique."""
_MAX_JOINED: Final = 5
_ELLIPSIS: Final = "…"
PLACEHOLDER_TYPES: Final[ContextVar[tuple[type, ...]]] = ContextVar("PLACEHOLDER_TYPES", default=())
"""Types to register with each store that is opened; see `graphkit.cli.placeholder_types`."""
KEY_FILE: Final[ContextVar[str | None]] = ContextVar("KEY_FILE", default=None)
"""The path of the file with the keys of sealed stores."""
_OPENED: Final[ContextVar[ExitStack | None]] = ContextVar("_OPENED", default=None)
"""Closes the stores that a command has opened."""
SECONDS_UNTIL_SYNC: Final = 5.0
"""For stores to which threads are copied: the copy brings each thread to the disk before it is complete."""
_FILE_KINDS: Final = frozenset({"file", "disk", "filesystem"})
"""The names of the saver in a directory."""
_SEALED_KINDS: Final = _FILE_KINDS | {SQLITE, POSTGRES}
"""The names of the savers that have keys."""


_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_ARGUMENTS: Final = {SQLITE: "a file", POSTGRES: "a connection string"}
"""What follows the name of a database."""


# Stores


def open_store(
    name: str, *, create: bool = False, is_sealed: bool = True, fsync: float | None = None
) -> BaseCheckpointSaver:
    """Open a store: a directory, `kind:argument` for an installed saver, or a PostgreSQL URL.

    Args:
        name: what the user typed.
        create: whether a directory or a database file may be missing or empty.
        is_sealed: whether to use the keys of the key file.
        fsync: how many seconds a put may wait for the disk, if the saver has the option; None is none.

    Raises:
        UsageError: the name is empty.
        CheckpointerConfigurationError: the directory or the database file does not exist, or is a
            file or a directory.
        CheckpointFormatError: the directory or the database is not a store, or is one of a newer
            version.
    """
    if not name:
        raise UsageError("no checkpoint directory: pass it as the first argument, or set GRAPHKIT_DIR")
    from graphkit import registry  # takes 20 ms, which --help should not

    kinds = sorted({*registry.saver_names(), SQLITE, POSTGRES})
    store = parse_store_name(name, kinds)
    key_file = KEY_FILE.get() if is_sealed else None
    sealed = {} if key_file is None else {"cipher": key_file}
    if store is None:
        if not create:
            _check_directory(Path(name), kinds)
        elif not Path(name).exists():
            _check_spelling(name, kinds)
        saver = registry.get_saver("file", **_add_fsync("file", {"path": name, **sealed}, fsync))
        _close_at_the_end(saver)
    else:
        if sealed and store.kind not in _SEALED_KINDS:
            raise CheckpointerConfigurationError(
                f"a store of {store.kind} cannot be sealed, and --key-file (or GRAPHKIT_KEYS) asks for it: leave it "
                f"out, or use a directory or a database; to copy from a sealed store without sealing, add --plaintext"
            )
        _check_store(store, create=create)
        options = {"path": store.argument, **sealed}
        if store.schema is not None:
            options["schema"] = store.schema
        saver = registry.get_saver(store.kind, **_add_fsync(store.kind, options, fsync))
        _close_at_the_end(saver)
        if not create and isinstance(saver, SupportsExists) and not saver.exists():
            raise CheckpointFormatError(escape(hide_passwords(name)), _explain_no_tables(store))
    saver.register_types(*PLACEHOLDER_TYPES.get())
    return saver


def _add_fsync(kind: str, options: dict[str, Any], fsync: float | None) -> dict[str, Any]:
    """Return the options of a saver with `fsync`, if it has that option and the caller asks for it."""
    if fsync is None:
        return options
    from graphkit import registry

    with_fsync = {**options, "fsync": fsync}
    try:
        registry.check_saver_options(kind, **with_fsync)
    except CheckpointerConfigurationError:
        return options  # What else is wrong with the options is found when the saver is made.
    return with_fsync


def _explain_no_tables(store: StoreName) -> str:
    where = "this database; check its name"
    if store.kind == POSTGRES:
        schema = escape(store.schema or "graphkit")
        where = f"schema {schema} of this database; check both names (see `schema` in docs/cli.md)"
    return f"there are no tables of graphkit in {where}, or create them with graphkit run or copy --to"


@contextmanager
def close_stores() -> Iterator[None]:
    """Close the stores that are opened during the block, at its end."""
    with ExitStack() as opened:
        token = _OPENED.set(opened)
        try:
            yield
        finally:
            _OPENED.reset(token)


def _close_at_the_end(saver: BaseCheckpointSaver) -> None:
    opened = _OPENED.get()
    if opened is not None and isinstance(saver, SupportsClose):
        opened.callback(saver.close)


def open_target(name: str) -> tuple[str | BaseCheckpointSaver, dict[str, str]]:
    """Return where an import writes, and its options: the name of a directory with its keys, or a saver.

    Creates no directory.
    """
    from graphkit import registry

    store = parse_store_name(name, {*registry.saver_names(), SQLITE, POSTGRES})
    if store is not None and store.kind not in _FILE_KINDS:
        return open_store(name, create=True), {}
    key_file = KEY_FILE.get()
    options = {} if key_file is None else {"cipher": key_file}
    return (name if store is None else store.argument), options


def _check_store(store: StoreName, *, create: bool) -> None:
    """Check what the user typed after the kind of a store.

    Raises:
        UsageError: there is nothing after it.
        CheckpointerConfigurationError: a database file is missing and may not be created.
    """
    what = _ARGUMENTS.get(store.kind)
    if what is not None and not store.argument:
        raise UsageError(f"{store.kind}: needs {what} after it")
    if store.kind != SQLITE or create:
        return
    path = Path(store.argument)
    name = escape(store.argument)
    if not path.exists():
        hint = _suggest_entry(path, are_files=True)
        raise CheckpointerConfigurationError(f"there is no database file {name}{hint}")
    if path.is_dir():
        raise CheckpointerConfigurationError(f"{name} is a directory; name the database file, or leave out {SQLITE}:")


def _check_directory(path: Path, kinds: Sequence[str]) -> None:
    name = escape(hide_passwords(str(path)))
    if not path.exists():
        hint = _suggest_entry(path, are_files=False) or _suggest_kind(str(path), kinds)
        raise CheckpointerConfigurationError(f"there is no directory {name}{hint}")
    if not path.is_dir():
        hint = f"; for a database type {SQLITE}:{name}" if _is_sqlite(path) else ""
        raise CheckpointerConfigurationError(f"{name} is a file; name the directory of the checkpoints{hint}")
    for entry in path.iterdir():
        if entry.name in {_MARKER, _LOCKS} or entry.name in ENTRY_DIRECTORIES:
            return
        if _THREAD_DIRECTORY.match(entry.name):
            return
    raise CheckpointFormatError(name, f"not a checkpoint directory: it has no {_MARKER}")


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return False


def _suggest_entry(path: Path, *, are_files: bool) -> str:
    """Return the end of a message about a missing file or directory: those beside it that resemble it."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file() == are_files]
    except OSError:
        return ""
    return suggest(path.name, names)


def _check_spelling(name: str, kinds: Sequence[str]) -> None:
    """Refuse to make a directory whose name looks like a store of another kind, such as `sqlit:runs.db`.

    Raises:
        CheckpointerConfigurationError: it does.
    """
    hint = _suggest_kind(name, kinds)
    if hint:
        shown = escape(hide_passwords(name))
        raise CheckpointerConfigurationError(f"there is no kind of store for {shown}{hint}")


def _suggest_kind(name: str, kinds: Sequence[str]) -> str:
    """Return the end of a message about a name whose kind may be misspelt, such as `sqlit:runs.db`."""
    kind, colon, _ = name.partition(":")
    if not colon:
        return ""
    return suggest(f"{kind}:", [f"{known}:" for known in kinds], cutoff=WORD_SIMILARITY)


def suggest(wanted: str, known: Sequence[str], *, cutoff: float = 0.5) -> str:
    """Return the end of a message about an unknown name: the known names that resemble it, or "".

    Args:
        wanted: what the user typed.
        known: the names that exist.
        cutoff: how similar two names must be, from 0 to 1; short words from a small set need more.
    """
    from difflib import get_close_matches

    matches = get_close_matches(wanted, known, n=3, cutoff=cutoff)
    if not matches:
        return ""
    return f"; did you mean {' or '.join(map(escape, matches))}?"


# Threads and checkpoints


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
    if _exists(saver, typed, released=released):
        return typed
    known = saver.threads(released=released)
    matches = _match_threads(known, typed)
    if len(matches) == 1:
        return matches[0]
    if matches:
        prefix = escape(typed.removesuffix(_ELLIPSIS))
        names = join_some(matches)
        raise UsageError(f"{len(matches)} threads begin with {prefix}: {names}; type more characters")
    hint = suggest(typed, known) or "; see graphkit threads"
    raise CheckpointNotFoundError(typed, hint=hint.removeprefix("; "))


def _match_threads(known: Sequence[str], typed: str) -> list[str]:
    displayed = [thread for thread in known if escape(thread) == typed]
    prefix = typed.removesuffix(_ELLIPSIS)
    if displayed or not prefix:
        return displayed
    return [thread for thread in known if thread.startswith(prefix) or escape(thread).startswith(prefix)]


def _exists(saver: BaseCheckpointSaver, thread_id: str, *, released: bool) -> bool:
    try:
        if saver.namespaces(thread_id):
            return True
        return released and isinstance(saver, HasVersions) and bool(saver.versions_by_thread_id(thread_id))
    except CheckpointCorruptionError:
        return True


def find_checkpoint(saver: BaseCheckpointSaver, config: RunnableConfig, typed: str | None) -> CheckpointInfo:
    """Return the checkpoint that the user typed: an id, or a unique beginning or end of it.

    Args:
        saver: the store.
        config: the thread and the namespace.
        typed: what the user typed; None: the latest checkpoint.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
        UsageError: several checkpoints match.
    """
    if typed is None:
        return _find_latest(saver, config)
    history = saver.history(config)
    if not history:
        raise _no_checkpoints(config)
    matches = _match_checkpoints(history, typed)
    if len(matches) == 1:
        return matches[0]
    known = [info.id for info in history]
    if not matches:
        hint = suggest(typed, known) or "; see graphkit history"
        what = f"checkpoint {escape(typed)}"
        raise CheckpointNotFoundError(config.thread, what, hint.removeprefix("; "))

    ids = join_some([info.id for info in matches])
    raise UsageError(f"{len(matches)} checkpoints match {typed}: {ids}; type more characters")


def _find_latest(saver: BaseCheckpointSaver, config: RunnableConfig) -> CheckpointInfo:
    latest = saver.recent(config, limit=1)
    if not latest:
        raise _no_checkpoints(config)
    return latest[0]


def _no_checkpoints(config: RunnableConfig) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(config.thread, hint="see graphkit threads")


def _match_checkpoints(history: Sequence[CheckpointInfo], typed: str) -> list[CheckpointInfo]:
    for info in history:
        if info.id == typed:
            return [info]
    part = typed.strip(_ELLIPSIS)
    if len(part) < _MIN_ID_LENGTH:
        return []
    # A dict, because a history may have several checkpoints of one id.
    matches: dict[str, CheckpointInfo] = {}
    for info in history:
        if info.id.endswith(part) or info.id.startswith(part):
            matches[info.id] = info
    return list(matches.values())


def find_threads(saver: BaseCheckpointSaver, typed: str | None) -> Sequence[str]:
    """Return the thread that the user typed as the only one, or all threads (None)."""
    if typed is None:
        return saver.threads()
    return [find_thread(saver, typed)]


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
    text = ", ".join(map(escape, ids[:_MAX_JOINED]))
    return f"{text}, ..." if len(ids) > _MAX_JOINED else text


# Applications


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
    graph = _compile(name, _import_object(name))
    if not store:
        return graph
    saver = open_store(store, create=create)
    return CompiledGraph(graph.topology, graph.compile_config.replace(checkpoint_saver=saver))


def open_store_of(directory: str, app: str | None) -> BaseCheckpointSaver:
    """Open the store of a command that accepts --app.

    The graph registers types, and may have a saver of its own.

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
    is_complete = path and all(module_name.split("."))
    if not is_complete:
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
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
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
    return suggest(wanted, graphs, cutoff=WORD_SIMILARITY) or f"; its graphs: {join_some(graphs)}"


def _graphs_in(owner: Any) -> Iterator[str]:
    """Yield the names of graphs, and of functions annotated to return one; sorted."""
    from graphkit._build.state_graph import StateGraph

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
    from graphkit._build.state_graph import StateGraph

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
