"""The logs of LangGraph's store and cache in a checkpoint directory, for verify and repair."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasBaseDirectory
from graphkit.cli.resolve import ENTRY_DIRECTORIES
from graphkit.cli.values import escape, pluralize

_JSON_KEYS: Final = {"item": "items", "cached value": "cached_values"}


def verify_entries(saver: BaseCheckpointSaver) -> Mapping[str, Any]:
    """Return the report of each of these logs in the directory of a saver, by what its entries are called."""
    directory = _find_directory(saver)
    if directory is None:
        return {}
    reports: Mapping[str, Any] = _load_entry_logs().verify_entries(directory)
    return reports


def repair_entries(saver: BaseCheckpointSaver, *, dry_run: bool) -> Mapping[str, Any]:
    """Repair these logs; return what was done to each that has a problem, or would be done."""
    directory = _find_directory(saver)
    if directory is None:
        return {}
    repairs: Mapping[str, Any] = _load_entry_logs().repair_entries(directory, dry_run=dry_run)
    return repairs


def _find_directory(saver: BaseCheckpointSaver) -> Path | None:
    """Return the directory of a saver if it has a store or a cache."""
    if not isinstance(saver, HasBaseDirectory):
        return None
    directory = Path(saver.base_directory)
    if any((directory / name).is_dir() for name in ENTRY_DIRECTORIES):
        return directory
    return None


def _load_entry_logs() -> Any:
    # By name, since graphkit does not import savers.
    return importlib.import_module("savers.langgraph._entries.log")


def count_entries(reports: Mapping[str, Any]) -> dict[str, int]:
    """Return how many entries can be read, as in the JSON of verify."""
    counts = dict.fromkeys(_JSON_KEYS.values(), 0)
    for noun, report in reports.items():
        counts[_JSON_KEYS[noun]] = report.entries
    return counts


def make_problem_rows(reports: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the problems of the logs as rows of verify."""
    for report in reports.values():
        if not report.ok:
            yield {
                "thread": None,
                "path": report.path,
                "state": report.state,
                "offset": report.offset,
                "reason": report.reason,
                "size": report.size,
                "entries": report.entries,
            }


def make_repair_lines(repairs: Mapping[str, Any], root: Path, *, dry_run: bool) -> Iterator[str]:
    """Yield lines that tell what a repair did, or would do."""
    for noun, repair in repairs.items():
        before = repair.before
        directory = Path(before.path).parts[0]
        if repair.refused:
            result = "would not be repaired" if dry_run else "not repaired"
        else:
            keep, lose = ("would keep", "would lose") if dry_run else ("kept", "lost")
            kept = pluralize(repair.kept, noun)
            lost = pluralize(before.lost, "byte") if before.lost else "nothing"
            result = f"{keep} {kept}, {lose} {lost}"
        yield f"{directory}: {result}"
        yield f"  {escape(before.path)}: {before.state} at byte {before.offset}: {before.reason}"
        if repair.set_aside:
            yield f"    the old bytes are in {escape(str(root / repair.set_aside))}"
        elif dry_run and not repair.refused:
            yield "    would copy the old bytes to a file beside it"


def make_repair_rows(repairs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a repair did as plain data."""
    return [
        {
            "path": repair.before.path,
            "state": repair.before.state,
            "offset": repair.before.offset,
            "reason": repair.before.reason,
            "kept": repair.kept,
            "lost_bytes": repair.before.lost,
            "set_aside": repair.set_aside,
            "refused": repair.refused,
        }
        for repair in repairs.values()
    ]


def has_total_loss(repairs: Mapping[str, Any]) -> bool:
    """Return whether a log could not be repaired, or nothing of a damaged one could be kept."""
    for repair in repairs.values():
        if repair.refused:
            return True
        if repair.before.state == "damaged" and not repair.kept:
            return True
    return False
