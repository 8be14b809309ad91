"""Maintenance of histories: copy, search and prune."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from graphkit._records.config import RunnableConfig, ThreadLike
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import HasVersions, SupportsDeleteIdle, SupportsErase, SupportsRemove
from graphkit.errors import CheckpointConflictError, CheckpointNotFoundError
from graphkit.testing import _check as check
from graphkit.testing._contract.base import ContractTests
from graphkit.testing._values import (
    CONFIG,
    NESTED,
    OTHER,
    Note,
    config_of,
    grow_list,
    make_interrupt,
    put_checkpoint,
    put_extended,
    put_interrupt,
    put_state,
)


class MaintenanceTests(ContractTests):
    """Copying, searching and pruning histories."""

    # Copy

    def test_copy_copies_the_whole_history(self) -> None:
        """`copy` copies checkpoints, pending writes and tags; source and target share nothing afterwards."""
        saver = self.open()
        checkpoints = grow_list(saver, 5)
        with_writes, tagged = checkpoints[1:3]
        copied_config = RunnableConfig("u", with_writes.id)
        saver.put_writes(config_of(with_writes), {"w": (1,)})
        saver.add_tags(config_of(tagged), "tag")

        with self.assert_unchanged(saver):
            saver.copy("t", OTHER)

        self.assert_history(saver, checkpoints, OTHER)
        check.assert_writes(saver, {"w": (1,)}, copied_config)
        check.assert_tags(saver, "tag", config=RunnableConfig("u", tagged.id))

        # A change of the copy does not change the source.
        following = put_extended(saver, checkpoints[-1], "copy", OTHER)
        saver.put_writes(copied_config, {"w": 2})

        self.assert_history(saver, checkpoints)
        check.assert_writes(saver, {"w": (1,)}, config_of(with_writes))

        # The copy does not need its source.
        saver.delete("t")
        self.assert_history(saver, [*checkpoints, following], OTHER)

    def test_copy_copies_every_namespace(self) -> None:
        """With `lists_namespaces`, `copy` copies the histories of nested graphs, too."""
        saver = self.open_with_checkpoint("lists_namespaces")
        nested = put_state(saver, {"note": Note("n")}, NESTED, metadata={"k": (1,)})
        nested_copy = RunnableConfig("u", checkpoint_ns="n")

        saver.copy("t", "u")

        self.assert_history(saver, [nested], nested_copy)

    def test_copy_requires_a_source_and_an_empty_target(self) -> None:
        """`copy` raises for an empty source and for a target with checkpoints, and changes nothing."""
        saver = self.open_with_checkpoint()
        put_checkpoint(saver, OTHER)

        with self.assert_unchanged(saver), self.assert_unchanged(saver, OTHER):
            with self.raises(CheckpointNotFoundError):
                saver.copy("unknown", "new")
            for target in ("u", "t"):
                with self.raises(CheckpointConflictError):
                    saver.copy("t", target)

        check.assert_missing(saver, RunnableConfig("new"))

    # Search

    def test_search_compares_metadata(self) -> None:
        """`search` finds the checkpoints that have all the keys with equal values."""
        saver = self.open()
        all_numbers = [0, 1, 2, 3]

        for number in all_numbers:
            is_odd = number % 2
            metadata = {"user": "u", "n": number, "none": None, "deep": {"a": [is_odd]}}
            put_checkpoint(saver, metadata=metadata)

        saver.add_tags(CONFIG, "tag")
        put_checkpoint(saver, OTHER, metadata={"user": "v", "n": 6})
        if saver.lists_namespaces:
            put_checkpoint(saver, NESTED, metadata={"user": "u", "n": 5})
            all_numbers.append(5)

        for reader in self.readers_of(saver):
            infos = reader.search({"user": "u"}, thread_id="t")
            check.assert_any_order(_get_numbers(infos), all_numbers)

            # The order within a history is newest first; that of the namespaces is undefined.
            root_infos = [info for info in infos if not info.checkpoint_ns]
            check.assert_sequence_equal(root_infos, reader.history(CONFIG))

            _assert_found(reader, {"deep": {"a": [1]}}, 3, 1)
            _assert_found(reader, {"n": 2, "user": "u"}, 2)
            _assert_found(reader, {"n": 2, "user": "v"})
            # A None in the metadata is a value; a missing key does not match it.
            _assert_found(reader, {"none": None}, 3, 2, 1, 0)
            _assert_found(reader, {"missing": None})
            check.assert_sequence_equal(reader.search({"user": "u"}, thread_id="u"), [])

    def test_search_and_recent_stop_at_the_limit(self) -> None:
        """`search` and `recent` return at most `limit` results."""
        saver = self.open()
        for number in range(4):
            put_checkpoint(saver, metadata={"n": number, "odd": number % 2})

        # Limits that do not fit into a C integer or a column of a database are valid too.
        for limit in (0, 1, 2, 4, sys.maxsize, sys.maxsize + 1, 1 << 80):
            for thread in _get_searchable(saver):
                found = saver.search({"odd": 1}, thread_id=thread, limit=limit)
                _assert_numbers(found, [3, 1][:limit])

            if limit:
                recent = saver.recent(CONFIG, limit=limit)
                _assert_numbers(recent, [3, 2, 1, 0][:limit])

    def test_search_and_recent_refuse_what_is_no_limit(self) -> None:
        """`search` and `recent` raise ValueError unless the limit is a whole number; `recent` needs at least 1."""
        saver = self.open_with_checkpoint()
        invalid_limits: tuple[Any, ...] = (-1, -sys.maxsize - 2, 1.5, float("inf"), "2")

        for limit in invalid_limits:
            for thread in _get_searchable(saver):
                with self.raises(ValueError):
                    saver.search({}, thread_id=thread, limit=limit)

            with self.raises(ValueError):
                saver.recent(CONFIG, limit=limit)

        with self.raises(ValueError):
            saver.recent(CONFIG, limit=0)

    def test_search_in_all_threads(self) -> None:
        """With `lists_threads`, `search` without a thread searches all threads."""
        saver = self.open("lists_threads")
        for config in (CONFIG, OTHER):
            put_checkpoint(saver, config, metadata={"user": "u"})
        put_checkpoint(saver, RunnableConfig("v"))

        infos = saver.search({"user": "u"})
        thread_ids = [info.thread_id for info in infos]
        check.assert_any_order(thread_ids, ["t", "u"], "the threads of the search")

        limited = saver.search({"user": "u"}, limit=1)
        check.assert_length(limited, 1, "the results of search")

    # Prune

    def test_prune_keeps_the_latest_checkpoints(self) -> None:
        """`prune` keeps the newest `keep_last` checkpoints, and returns how many it removed."""
        saver = self.open()
        checkpoints = grow_list(saver, 6)
        kept = checkpoints[4:]

        _assert_pruned(saver, 4, "t", keep_last=2)
        self.assert_history(saver, kept)

        # There is nothing left to remove.
        _assert_pruned(saver, 0, "t", keep_last=2)

        following = put_extended(saver, checkpoints[-1], "next")
        self.assert_history(saver, [*kept, following])

        # A prune makes no version.
        if isinstance(saver, HasVersions):
            check.assert_sequence_equal(saver.versions_by_thread_id("t"), [])

    def test_prune_removes_old_checkpoints(self) -> None:
        """`prune` removes what was created before `older_than`, but never the latest checkpoint."""
        saver = self.open()
        now = datetime(2026, 1, 10, tzinfo=UTC)
        limit = now - timedelta(days=5)
        checkpoints = []

        # Ages in days; the clock went back and forth.
        for age in (9, 1, 5, 7, 6):
            checkpoint = put_checkpoint(saver, created_at=now - timedelta(days=age))
            checkpoints.append(checkpoint)

        _assert_pruned(saver, 1, "t", older_than=limit, keep_last=3)
        self.assert_history(saver, checkpoints[1:])

        _assert_pruned(saver, 1, "t", older_than=limit)

        # The latest checkpoint always stays. One exactly at the limit is not older than it.
        _, young, at_limit, _, latest = checkpoints
        self.assert_history(saver, [young, at_limit, latest])

    def test_prune_keeps_tagged_and_interrupted_checkpoints(self) -> None:
        """`prune` keeps checkpoints by `keep_tags` and `keep_interrupted`, with their writes and tags."""
        saver = self.open()
        checkpoints = grow_list(saver, 6)
        tagged, other, interrupted, answered, _, latest = checkpoints

        saver.add_tags(config_of(tagged), "keep")
        saver.add_tags(config_of(other), "other")
        put_interrupt(saver, "i", config_of(interrupted))
        put_interrupt(saver, "i", config_of(answered))
        saver.put_writes(config_of(answered), {"answer:i": 1})

        # Three are removed: two without a reason to keep them, and one whose interrupt was answered.
        _assert_pruned(saver, 3, "t", keep_last=1, keep_tags=["keep"])
        self.assert_history(saver, [tagged, interrupted, latest])
        check.assert_tags(saver, "keep", config=config_of(tagged))
        check.assert_writes(saver, {"interrupt:i": make_interrupt()}, config_of(interrupted))

        # Without the options, only the latest is kept.
        _assert_pruned(saver, 2, "t", keep_last=1, keep_interrupted=False)
        self.assert_history(saver, [latest])

    def test_prune_counts_each_namespace_separately(self) -> None:
        """With `lists_namespaces`, `prune` keeps `keep_last` checkpoints of each namespace."""
        saver = self.open("lists_namespaces")
        root = grow_list(saver, 3)
        nested = grow_list(saver, 4, NESTED)

        _assert_pruned(saver, 3, CONFIG, keep_last=2)
        self.assert_history(saver, root[1:])
        self.assert_history(saver, nested[2:], NESTED)

    def test_prune_covers_every_thread(self) -> None:
        """With `lists_threads`, `prune` without a thread prunes all threads."""
        saver = self.open("lists_threads")
        first = grow_list(saver, 3)
        second = grow_list(saver, 3, OTHER)

        _assert_pruned(saver, 0, "unknown", keep_last=1)
        _assert_pruned(saver, 4, None, keep_last=1)

        self.assert_history(saver, first[2:])
        self.assert_history(saver, second[2:], OTHER)

    def test_prune_requires_a_criterion(self) -> None:
        """`prune` raises ValueError without `keep_last` and `older_than`."""
        saver = self.open()
        checkpoints = grow_list(saver, 2)
        insufficient: list[dict[str, Any]] = [{}, {"keep_last": 0}, {"keep_tags": ["tag"]}]
        for options in insufficient:
            # Also for a thread without checkpoints.
            for thread in ("t", "u"):
                with self.raises(ValueError):
                    saver.prune(thread, **options)

        check.assert_listed(saver, checkpoints)

    # Remove

    def test_remove_removes_single_checkpoints(self) -> None:
        """With `SupportsRemove`, `remove` removes the named checkpoints of one history, and counts them."""
        saver = self.open_with(SupportsRemove)
        oldest, kept, middle, latest = grow_list(saver, 4)
        kept_config = config_of(kept)
        saver.add_tags(kept_config, "tag")
        saver.put_writes(kept_config, {"w": 1})
        nested = put_checkpoint(saver, NESTED, id=latest.id)

        removed = check.get_ids([oldest, middle, latest])
        _assert_removed(saver, 3, [*removed, "unknown"])

        self.assert_history(saver, [kept])
        check.assert_tags(saver, "tag", config=kept_config)
        check.assert_writes(saver, {"w": 1}, kept_config)
        # Each namespace is a history of its own.
        self.assert_history(saver, [nested], NESTED)

        _assert_removed(saver, 0, [oldest.id])
        _assert_removed(saver, 0, [kept.id], OTHER)

    def test_a_thread_without_checkpoints_does_not_exist(self) -> None:
        """With `SupportsRemove`, a thread is gone with its last checkpoint."""
        saver = self.open_with(SupportsRemove, "lists_threads")
        checkpoints = grow_list(saver, 2)

        _assert_removed(saver, 2, check.get_ids(checkpoints))

        self.assert_history(saver, [])
        check.assert_threads(saver)
        check.assert_threads(saver, released=True)
        check.assert_namespaces(saver)
        check.same(saver.delete("t"), False, "delete")

        following = grow_list(saver, 1)
        self.assert_history(saver, following)
        check.assert_threads(saver, "t")

    # Delete idle threads

    def test_delete_idle_deletes_only_idle_threads(self) -> None:
        """With `SupportsDeleteIdle`, `delete_idle` deletes threads without a recent write or a run."""
        saver = self.open_with(SupportsDeleteIdle, "lists_threads")
        now = datetime.now(UTC)
        yesterday = now - timedelta(days=1)
        tomorrow = now + timedelta(days=1)
        # The time of the last write counts, not the `created_at` of a checkpoint.
        checkpoint = put_checkpoint(saver, created_at=now - timedelta(days=9))
        put_checkpoint(saver, OTHER)
        _assert_idle(saver, idle_since=yesterday)

        # A dry run only reports.
        _assert_idle(saver, "t", "u", idle_since=tomorrow, dry_run=True)
        check.assert_threads(saver, "t", "u")

        _assert_idle(saver, "u", thread="u", idle_since=tomorrow)

        # A thread with a run is not idle.
        with saver.run_lock(CONFIG):
            _assert_idle(saver, idle_since=tomorrow, dry_run=True)
            _assert_idle(saver, idle_since=tomorrow)

        check.assert_listed(saver, [checkpoint])

        _assert_idle(saver, "t", idle_since=tomorrow)
        check.assert_threads(saver)

    # Erase

    def test_erase_deleted_keeps_what_is_not_deleted(self) -> None:
        """With `SupportsErase`, `erase_deleted` changes nothing that can be read."""
        saver = self.open_with(SupportsErase)
        checkpoints = grow_list(saver, 2)
        saver.put_writes(CONFIG, {"w": 1})
        put_checkpoint(saver, OTHER)
        saver.delete("u")

        for full in (False, True):
            for reason in saver.erase_deleted(full=full):
                check.assert_instance(reason, str)

        self.assert_history(saver, checkpoints)
        check.assert_writes(saver, {"w": 1})
        self.assert_history(saver, [], OTHER)

        # The thread begins again.
        fresh = put_checkpoint(saver, OTHER)
        self.assert_history(saver, [fresh], OTHER)


def _assert_pruned(saver: BaseCheckpointSaver, expected: int, thread: ThreadLike, **options: Any) -> None:
    """Prune, and assert how many checkpoints were removed."""
    count = saver.prune(thread, **options)
    check.assert_equal(count, expected, "the count of prune")


def _assert_removed(saver: Any, expected: int, ids: list[str], config: RunnableConfig = CONFIG) -> None:
    """Remove checkpoints, and assert how many were there."""
    count = saver.remove(config, ids)
    check.assert_equal(count, expected, "the count of remove")


def _assert_idle(saver: Any, *expected: str, **options: Any) -> None:
    """Delete the idle threads, or only find them, and assert which they are."""
    deleted = saver.delete_idle(**options)
    check.assert_sequence_equal(deleted, expected, "what delete_idle returned")


def _assert_found(saver: BaseCheckpointSaver, metadata: dict[str, Any], *expected: int) -> None:
    """Assert the numbers of the checkpoints of thread "t" that a search finds."""
    infos = saver.search(metadata, thread_id="t")
    _assert_numbers(infos, expected)


def _get_searchable(saver: BaseCheckpointSaver) -> list[ThreadLike]:
    """Return what `search` accepts as a thread: an id, a config, and None for all threads."""
    return ["t", CONFIG, None] if saver.lists_threads else ["t", CONFIG]


def _assert_numbers(infos: Iterable[CheckpointInfo], expected: Iterable[int]) -> None:
    """Assert the numbers of the checkpoints that a search found, in their order."""
    check.assert_sequence_equal(_get_numbers(infos), expected, "the checkpoints found")


def _get_numbers(infos: Iterable[CheckpointInfo]) -> list[int]:
    return [info.metadata["n"] for info in infos]
