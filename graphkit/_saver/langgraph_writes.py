"""What LangGraph's checkpointer (`savers.langgraph`) records with a checkpoint, for listings.

A write of a LangGraph task is recorded as `write:<index>:<task id>` -> [task path, task id, index,
channel, type, bytes]. Negative indexes are those of control writes, which say what happened to the
task; the others are its output. As for LangGraph, a task has finished once it has an output, and
until then, the question that it asked last waits for its answer.

The values are what LangGraph's serializer made of them. Keys suffice for a status; only the payload
of an interrupt is decoded, by `savers.langgraph`, if the extra is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, Final

MADE_BY: Final = "graphkit:made_by"
"""The metadata key of threads that another engine writes: the name of that engine."""
LANGGRAPH: Final = "langgraph"
"""Its value in the threads of LangGraph's checkpointer."""
EARLY_WRITES: Final = "#early:"
"""Begins the namespaces in which a saver without a log keeps early writes: those that came before their checkpoint.
The rest of the name is the namespace of the checkpoints; a checkpoint with the same id holds the writes."""
WRITE: Final = "write:"
"""Prefix of all writes of LangGraph's tasks."""
CONTROL_WRITE: Final = f"{WRITE}-"
"""Prefix of the control writes among them."""
NOT_INSTALLED: Final = "pip install 'graphkit-durable[langgraph]' makes it readable here"
"""Stands for a value of LangGraph that cannot be decoded without the extra."""
_DELTA_CHANNELS: Final = "counters_since_delta_snapshot"
"""The metadata key under which LangGraph names the DeltaChannels whose values a checkpoint does not store."""
_REPR: Final = re.compile(r"(\w+)\(['\"]?(.*?)['\"]?\)", re.DOTALL)
_KEY: Final = re.compile(rf"{WRITE}(?P<index>-?\d+):(?P<task>.*)", re.DOTALL)
_ERROR: Final = -1
_INTERRUPT: Final = -3
_INPUT: Final = "00000000-0000-0000-0000-000000000000"
"""The id under which LangGraph records the input of a step, which is no task."""


def is_langgraph(metadata: Mapping[str, Any]) -> bool:
    """Return whether LangGraph made a checkpoint, by its metadata."""
    return metadata.get(MADE_BY) == LANGGRAPH


def list_unstored_channels(metadata: Mapping[str, Any]) -> set[str]:
    """Return the channels whose values a checkpoint leaves to the pending writes of its ancestors."""
    channels = metadata.get(_DELTA_CHANNELS)
    if isinstance(channels, Mapping):
        return set(channels)
    return set()


def derive_stop(writes: Mapping[str, Any]) -> str:
    """Return why a run of LangGraph stopped: "interrupted", "failed", or "" if the writes do not say.

    Args:
        writes: the pending writes. Only the keys matter.
    """
    if list_asking_tasks(writes):
        return "interrupted"
    if _list_open_tasks(writes, _ERROR):
        return "failed"
    return ""


def list_asking_tasks(writes: Mapping[str, Any]) -> Sequence[str]:
    """Return the ids of the tasks whose questions wait for an answer."""
    return _list_open_tasks(writes, _INTERRUPT)


def find_questions(writes: Mapping[str, Any], asked_at: datetime | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the questions of LangGraph's tasks that wait for an answer: an id, and the record of an interrupt.

    The id is that of LangGraph's Interrupt, or of the task if the payload cannot be read here; then the
    payload is a sentence.

    Args:
        writes: the pending writes of a checkpoint.
        asked_at: what stands for the time of the question, which LangGraph does not store.
    """
    for task_id, path, type_name, data in _read_writes(writes, _INTERRUPT):
        payloads: Mapping[str, Any] | None = {task_id: NOT_INSTALLED}
        serializer = load_serializer()
        if serializer is not None:
            payloads = serializer.read_interrupts(type_name, data)
        if payloads is None:
            payloads = {task_id: f"not readable here: LangGraph's serializer wrote it as {type_name}"}
        for interrupt_id, payload in payloads.items():
            node_id = _name_node(path)
            yield interrupt_id, {"node_id": node_id, "when": "inside", "payload": payload, "created_at": asked_at}


def _read_writes(writes: Mapping[str, Any], index: int) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield id, path, type and bytes of the control writes with this index, of tasks that have not finished."""
    for task_id in _list_open_tasks(writes, index):
        # A caller may use such a key, too, and record anything under it.
        match writes[f"{WRITE}{index}:{task_id}"]:
            case [str(path), _, _, _, str(type_name), bytes(data)]:
                yield task_id, path, type_name, data


def _list_open_tasks(writes: Mapping[str, Any], index: int) -> Sequence[str]:
    """Return the tasks that have a control write with this index, and have not finished."""
    by_task: dict[str, set[int]] = {}
    for key in writes:
        match = _KEY.fullmatch(key)
        if match is not None and match["task"] != _INPUT:
            by_task.setdefault(match["task"], set()).add(int(match["index"]))
    return [task for task, indexes in by_task.items() if index in indexes and max(indexes) < 0]


def _name_node(path: str) -> str:
    """Return the node of a task by its path, as far as the path has it.

    The path is `~__pregel_pull, ask` for a node that its triggers have started, and
    `~__pregel_push, 0000000001, ...` for the second of the Sends.
    """
    kind, name, *_ = (*path.split(", "), "")
    if kind == "~__pregel_pull":
        return name
    if name.isdigit():
        return f"Send {int(name)}"
    return "task"


def find_failure(writes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return why a task of LangGraph failed, in the form of a failure of graphkit; None if none did."""
    for _, path, type_name, data in _read_writes(writes, _ERROR):
        serializer = load_serializer()
        text = NOT_INSTALLED
        if serializer is not None:
            text = serializer.read_error(type_name, data)
        kind = "error"
        message = text
        # LangGraph stores the repr of the exception.
        match = _REPR.fullmatch(text)
        if match is not None:
            kind, message = match.groups()
        return {"node_id": _name_node(path), "type": kind, "message": message, "at": None}
    return None


def load_serializer() -> Any:
    """Return the module `savers.langgraph.serializer`; None if the extra `langgraph` is not installed."""
    try:
        # By name, since graphkit does not import savers.
        return import_module("savers.langgraph.serializer")
    except ImportError:
        return None
