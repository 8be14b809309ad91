"""Finds the threads and checkpoints that the user typed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from graphkit._records.config import RunnableConfig
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions
from graphkit._wording import suggest
from graphkit.cli.values import UsageError, escape
from graphkit.errors import CheckpointCorruptionError, CheckpointKeyError, CheckpointNotFoundError

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
    if _exists(saver, typed, released=released):
        return typed

    # A table shows ids escaped and, if they are long, cut with an ellipsis: both can be typed as they are shown.
    known = saver.threads(released=released)
    matches = _match_threads(known, typed)
    if len(matches) == 1:
        return matches[0]
    if matches:
        prefix = escape(typed.removesuffix(_ELLIPSIS))
        names = join_some(matches)
        raise UsageError(f"{len(matches)} threads begin with {prefix}: {names}; type more characters")

    hint = suggest(typed, known, show=escape) or "; see graphkit threads"
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
    except (CheckpointCorruptionError, CheckpointKeyError):
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
    history = saver.recent(config, limit=1) if typed is None else saver.history(config)
    if not history:
        raise CheckpointNotFoundError(config.thread, hint="see graphkit threads")
    if typed is None:
        return history[0]
    matches = _match_checkpoints(history, typed)
    if len(matches) == 1:
        return matches[0]
    known = [info.id for info in history]
    if not matches:
        hint = suggest(typed, known, show=escape) or "; see graphkit history"
        what = f"checkpoint {escape(typed)}"
        raise CheckpointNotFoundError(config.thread, what, hint.removeprefix("; "))

    ids = join_some([info.id for info in matches])
    raise UsageError(f"{len(matches)} checkpoints match {typed}: {ids}; type more characters")


def _match_checkpoints(history: Sequence[CheckpointInfo], typed: str) -> list[CheckpointInfo]:
    # A history may have several checkpoints of one id. The first of them, the newest, counts.
    infos: dict[str, CheckpointInfo] = {}
    for info in history:
        infos.setdefault(info.id, info)
    if typed in infos:
        return [infos[typed]]
    part = typed.strip(_ELLIPSIS)
    if len(part) < _MIN_ID_LENGTH:
        return []
    return [infos[full] for full in match_ids(infos, part)]


def match_ids(ids: Iterable[str], part: str) -> list[str]:
    """Return the ids that begin or end with a text."""
    return [full for full in ids if full.startswith(part) or full.endswith(part)]


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
