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
    extend_list,
    grow_list,
    made,
    make_interrupt,
    put_all,
    put_checkpoint,
)


class MaintenanceTests(ContractTests):
    """Copying, searching and pruning histories."""

    # Copy

    def test_copy_copies_the_whole_history(self) -> None:
        """`copy` copies checkpoints, pending writes and tags; source and target share nothing afterwards."""
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 5)
        with_writes, tagged = checkpoints[1:3]
        copied_config = RunnableConfig("u", with_writes.id)
        nested_copy_config = RunnableConfig("u", checkpoint_ns="n")
        nested = made({"n": "inner", "note": Note("n")}, metadata={"k": (1,)})
        if saver.lists_namespaces:
            saver.put(NESTED, nested)
        saver.put_writes(config_of(with_writes), {"w": (1,)})
        saver.add_tags(config_of(tagged), "tag")

        with self.assert_unchanged(saver, CONFIG):
            saver.copy("t", OTHER)

        self.assert_history(saver, OTHER, checkpoints)

        if saver.lists_namespaces:
            self.assert_history(saver, nested_copy_config, [nested])
        check.assert_writes(saver, copied_config, {"w": (1,)})
        check.assert_tags(saver, RunnableConfig("u", tagged.id), "tag")

        # A change of the copy does not change the source.
        following = extend_list(checkpoints[-1], "copy")
        saver.put(OTHER, following)
        saver.put_writes(copied_config, {"w": 2})

        self.assert_history(saver, CONFIG, checkpoints)
        check.assert_writes(saver, config_of(with_writes), {"w": (1,)})

        # The copy does not need its source.
        saver.delete("t")
        self.assert_history(saver, OTHER, [*checkpoints, following])

    def test_copy_requires_a_source_and_an_empty_target(self) -> None:
        """`copy` raises for an empty source and for a target with checkpoints, and changes nothing."""
        saver = self.open()
        put_checkpoint(saver)
        put_checkpoint(saver, OTHER)

        with self.assert_unchanged(saver, CONFIG), self.assert_unchanged(saver, OTHER):
            with self.raises(CheckpointNotFoundError):
                saver.copy("unknown", "new")
            with self.raises(CheckpointConflictError):
                saver.copy("t", "u")
            with self.raises(CheckpointConflictError):
                saver.copy("t", "t")

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
            check.assert_any_order(_get_numbers(infos), all_numbers, "the checkpoints of the search")

            # The order within a history is newest first; that of the namespaces is undefined.
            root_infos = [info for info in infos if not info.checkpoint_ns]
            check.assert_sequence_equal(root_infos, reader.history(CONFIG))

            _assert_found(reader, {"deep": {"a": [1]}}, [3, 1])
            _assert_found(reader, {"n": 2, "user": "u"}, [2])
            _assert_found(reader, {"n": 2, "user": "v"}, [])
            # A None in the metadata is a value; a missing key does not match it.
            _assert_found(reader, {"none": None}, [3, 2, 1, 0])
            _assert_found(reader, {"missing": None}, [])
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
                check.assert_equal(_get_numbers(found), [3, 1][:limit], "search")

            if limit:
                recent = saver.recent(CONFIG, limit=limit)
                check.assert_equal(_get_numbers(recent), [3, 2, 1, 0][:limit], "recent")

    def test_search_and_recent_refuse_what_is_no_limit(self) -> None:
        """`search` and `recent` raise ValueError unless the limit is a whole number, not negative."""
        saver = self.open()
        put_checkpoint(saver)
        invalid_limits: tuple[Any, ...] = (-1, -sys.maxsize - 2, 1.5, float("inf"), "2")

        for limit in invalid_limits:
            for thread in _get_searchable(saver):
                with self.raises(ValueError):
                    saver.search({}, thread_id=thread, limit=limit)

            with self.raises(ValueError):
                saver.recent(CONFIG, limit=limit)

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
        checkpoints = grow_list(saver, CONFIG, 6)
        kept = checkpoints[4:]

        _assert_pruned(saver, 4, "t", keep_last=2)
        self.assert_history(saver, CONFIG, kept)

        # There is nothing left to remove.
        _assert_pruned(saver, 0, "t", keep_last=2)

        following = extend_list(checkpoints[-1], "next")
        saver.put(CONFIG, following)
        self.assert_history(saver, CONFIG, [*kept, following])

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
            created_at = now - timedelta(days=age)
            checkpoint = made({"n": age}, created_at=created_at)
            checkpoints.append(checkpoint)

        put_all(saver, CONFIG, checkpoints)

        _assert_pruned(saver, 1, "t", older_than=limit, keep_last=3)
        self.assert_history(saver, CONFIG, checkpoints[1:])

        _assert_pruned(saver, 1, "t", older_than=limit)

        # The latest checkpoint always stays. One exactly at the limit is not older than it.
        _, young, at_limit, _, latest = checkpoints
        self.assert_history(saver, CONFIG, [young, at_limit, latest])

    def test_prune_keeps_tagged_and_interrupted_checkpoints(self) -> None:
        """`prune` keeps checkpoints by `keep_tags` and `keep_interrupted`, with their writes and tags."""
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 6)
        tagged, other, interrupted, answered, _, latest = checkpoints

        saver.add_tags(config_of(tagged), "keep")
        saver.add_tags(config_of(other), "other")
        interrupt = {"interrupt:i": make_interrupt()}
        saver.put_writes(config_of(interrupted), interrupt)
        saver.put_writes(config_of(answered), {**interrupt, "answer:i": 1})

        # Three are removed: two without a reason to keep them, and one whose interrupt was answered.
        _assert_pruned(saver, 3, "t", keep_last=1, keep_tags=["keep"])
        self.assert_history(saver, CONFIG, [tagged, interrupted, latest])
        check.assert_tags(saver, config_of(tagged), "keep")
        check.assert_writes(saver, config_of(interrupted), interrupt)

        # Without the options, only the latest is kept.
        _assert_pruned(saver, 2, "t", keep_last=1, keep_interrupted=False)
        self.assert_history(saver, CONFIG, [latest])

    def test_prune_counts_each_namespace_separately(self) -> None:
        """With `lists_namespaces`, `prune` keeps `keep_last` checkpoints of each namespace."""
        saver = self.open("lists_namespaces")
        root = grow_list(saver, CONFIG, 3)
        nested = grow_list(saver, NESTED, 4)

        _assert_pruned(saver, 3, CONFIG, keep_last=2)
        self.assert_history(saver, CONFIG, root[1:])
        self.assert_history(saver, NESTED, nested[2:])

    def test_prune_covers_every_thread(self) -> None:
        """With `lists_threads`, `prune` without a thread prunes all threads."""
        saver = self.open("lists_threads")
        first = grow_list(saver, CONFIG, 3)
        second = grow_list(saver, OTHER, 3)

        _assert_pruned(saver, 0, "unknown", keep_last=1)
        _assert_pruned(saver, 4, None, keep_last=1)

        self.assert_history(saver, CONFIG, first[2:])
        self.assert_history(saver, OTHER, second[2:])

    def test_prune_requires_a_criterion(self) -> None:
        """`prune` raises ValueError without `keep_last` and `older_than`."""
        saver = self.open()
        grow_list(saver, CONFIG, 2)
        # Also for a thread without checkpoints.
        for thread in ("t", "u"):
            with self.raises(ValueError):
                saver.prune(thread)
            with self.raises(ValueError):
                saver.prune(thread, keep_last=0)
            with self.raises(ValueError):
                saver.prune(thread, keep_tags=["tag"])

        check.assert_length(saver.list(CONFIG), 2, "the checkpoints of list")

    # Remove

    def test_remove_removes_single_checkpoints(self) -> None:
        """With `SupportsRemove`, `remove` removes the named checkpoints of one history, and counts them."""
        saver = self.open_with(SupportsRemove)
        oldest, kept, middle, latest = grow_list(saver, CONFIG, 4)
        kept_config = config_of(kept)
        saver.add_tags(kept_config, "tag")
        saver.put_writes(kept_config, {"w": 1})
        nested = put_checkpoint(saver, NESTED, id=latest.id)

        ids = check.get_ids([oldest, middle, latest])
        removed = saver.remove(CONFIG, [*ids, "unknown"])

        check.assert_equal(removed, 3, "the count of remove")
        self.assert_history(saver, CONFIG, [kept])
        check.assert_tags(saver, kept_config, "tag")
        check.assert_writes(saver, kept_config, {"w": 1})
        # Each namespace is a history of its own.
        self.assert_history(saver, NESTED, [nested])

        removed = saver.remove(CONFIG, [oldest.id])
        check.assert_equal(removed, 0, "the count of remove")
        removed = saver.remove(OTHER, [kept.id])
        check.assert_equal(removed, 0, "the count of remove")

    def test_a_thread_without_checkpoints_does_not_exist(self) -> None:
        """With `SupportsRemove`, a thread is gone with its last checkpoint."""
        saver = self.open_with(SupportsRemove, "lists_threads")
        checkpoints = grow_list(saver, CONFIG, 2)

        removed = saver.remove(CONFIG, check.get_ids(checkpoints))

        check.assert_equal(removed, 2, "the count of remove")
        self.assert_history(saver, CONFIG, [])
        check.assert_threads(saver)
        check.assert_threads(saver, released=True)
        check.assert_length(saver.namespaces("t"), 0, "namespaces")
        check.same(saver.delete("t"), False, "delete")

        following = grow_list(saver, CONFIG, 1)
        self.assert_history(saver, CONFIG, following)
        check.assert_threads(saver, "t")

    # Delete idle threads

    def test_delete_idle_deletes_only_idle_threads(self) -> None:
        """With `SupportsDeleteIdle`, `delete_idle` deletes threads without a recent write or a run."""
        saver = self.open_with(SupportsDeleteIdle, "lists_threads")
        now = datetime.now(UTC)
        yesterday = now - timedelta(days=1)
        tomorrow = now + timedelta(days=1)
        # The time of the last write counts, not the `created_at` of a checkpoint.
        put_checkpoint(saver, created_at=now - timedelta(days=9))
        put_checkpoint(saver, OTHER)
        check.assert_sequence_equal(saver.delete_idle(idle_since=yesterday), [], "what delete_idle returned")

        # A dry run only reports.
        found = saver.delete_idle(idle_since=tomorrow, dry_run=True)
        check.assert_sequence_equal(found, ["t", "u"], "what delete_idle returned")
        check.assert_length(saver.threads(), 2, "threads")

        deleted = saver.delete_idle("u", idle_since=tomorrow)
        check.assert_sequence_equal(deleted, ["u"], "what delete_idle returned")

        # A thread with a run is not idle.
        with saver.run_lock(CONFIG):
            for dry_run in (True, False):
                deleted = saver.delete_idle(idle_since=tomorrow, dry_run=dry_run)
                check.assert_sequence_equal(deleted, [], "what delete_idle returned")

        check.assert_length(saver.list(CONFIG), 1, "the checkpoints of list")

        deleted = saver.delete_idle(idle_since=tomorrow)
        check.assert_sequence_equal(deleted, ["t"], "what delete_idle returned")
        check.assert_threads(saver)

    # Erase

    def test_erase_deleted_keeps_what_is_not_deleted(self) -> None:
        """With `SupportsErase`, `erase_deleted` changes nothing that can be read."""
        saver = self.open_with(SupportsErase)
        checkpoints = grow_list(saver, CONFIG, 2)
        saver.put_writes(CONFIG, {"w": 1})
        put_checkpoint(saver, OTHER)
        saver.delete("u")

        for full in (False, True):
            for reason in saver.erase_deleted(full=full):
                check.assert_instance(reason, str)

        self.assert_history(saver, CONFIG, checkpoints)
        check.assert_writes(saver, CONFIG, {"w": 1})
        self.assert_history(saver, OTHER, [])

        # The thread begins again.
        fresh = put_checkpoint(saver, OTHER)
        self.assert_history(saver, OTHER, [fresh])


def _assert_pruned(saver: BaseCheckpointSaver, expected: int, thread: ThreadLike, **options: Any) -> None:
    """Prune, and assert how many checkpoints were removed."""
    count = saver.prune(thread, **options)
    check.assert_equal(count, expected, "the count of prune")


def _assert_found(saver: BaseCheckpointSaver, metadata: dict[str, Any], expected: Iterable[int]) -> None:
    """Assert the numbers of the checkpoints of thread "t" that a search finds."""
    infos = saver.search(metadata, thread_id="t")
    check.assert_equal(_get_numbers(infos), expected, "search")


def _get_searchable(saver: BaseCheckpointSaver) -> list[ThreadLike]:
    """Return what `search` accepts as a thread: an id, a config, and None for all threads."""
    return ["t", CONFIG, None] if saver.lists_threads else ["t", CONFIG]


def _get_numbers(infos: Iterable[CheckpointInfo]) -> list[int]:
    return [info.metadata["n"] for info in infos]
