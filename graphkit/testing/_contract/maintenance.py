"""Maintenance of histories: copy, search and prune."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.output import CheckpointInfo
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.capabilities import SupportsDeleteIdle
from graphkit._saver.versions import HasVersions
from graphkit._saver.writes import ANSWER, INTERRUPT
from graphkit.errors import CheckpointConflictError, CheckpointNotFoundError
from graphkit.testing._contract.base import ContractTests, get_ids
from graphkit.testing._values import (
    CONFIG,
    GROWING,
    Note,
    assert_equal,
    assert_same,
    derive,
    grow_list,
    made,
    make_config,
    make_interrupt,
)


class MaintenanceTests(ContractTests):
    """Copying, searching and pruning histories."""

    # Copy

    def test_copy_copies_the_whole_history(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 5)
        inner = made({"n": "inner", "note": Note("n")}, metadata={"k": (1,)})
        if saver.lists_namespaces:
            saver.put(make_config("t", namespace="n"), inner)
        saver.put_writes(make_config("t", checkpoints[1].id), {"w": (1,)})
        saver.add_tags(make_config("t", checkpoints[2].id), "tag")
        with self.assert_unchanged(saver, CONFIG):
            saver.copy("t", make_config("u"))
        self.assert_history(saver, make_config("u"), checkpoints)
        if saver.lists_namespaces:
            self.assert_history(saver, make_config("u", namespace="n"), [inner])
        assert_same(saver.get_writes(make_config("u", checkpoints[1].id)), {"w": (1,)})
        assert_equal(saver.tags_of(make_config("u", checkpoints[2].id)), ("tag",))
        following = derive(checkpoints[-1], {"list": ["copy"]}, GROWING)
        saver.put(make_config("u"), following)
        saver.put_writes(make_config("u", checkpoints[1].id), {"w": 2})
        self.assert_history(saver, CONFIG, checkpoints)
        assert_same(saver.get_writes(make_config("t", checkpoints[1].id)), {"w": (1,)})
        saver.delete("t")
        self.assert_history(saver, make_config("u"), [*checkpoints, following])

    def test_copy_requires_a_source_and_an_empty_target(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        saver.put(make_config("u"), made({"n": 2}))
        with self.assert_unchanged(saver, CONFIG), self.assert_unchanged(saver, make_config("u")):
            with self.raises(CheckpointNotFoundError):
                saver.copy("unknown", "new")
            with self.raises(CheckpointConflictError):
                saver.copy("t", "u")
            with self.raises(CheckpointConflictError):
                saver.copy("t", "t")
        assert_same(saver.get(make_config("new")), None)

    # Search

    def test_search_compares_metadata(self) -> None:
        saver = self.open()
        for number in range(4):
            metadata = {"user": "u", "n": number, "none": None, "deep": {"a": [number % 2]}}
            saver.put(CONFIG, made({"n": number}, metadata=metadata))
        if saver.lists_namespaces:
            saver.put(make_config("t", namespace="n"), made({"n": 5}, metadata={"user": "u", "n": 5}))
        saver.put(make_config("u"), made({"n": 6}, metadata={"user": "v", "n": 6}))
        all_numbers = [0, 1, 2, 3]
        if saver.lists_namespaces:
            all_numbers.append(5)
        for reader in (saver, self.open_again(saver)):
            infos = reader.search({"user": "u"}, thread_id="t")
            assert_equal(sorted(_get_numbers(infos)), all_numbers)
            assert_equal(_get_numbers(info for info in infos if not info.checkpoint_ns), [3, 2, 1, 0])
            assert_equal(_get_numbers(reader.search({"deep": {"a": [1]}}, thread_id="t")), [3, 1])
            assert_equal(_get_numbers(reader.search({"n": 2, "user": "u"}, thread_id="t")), [2])
            assert_equal(len(reader.search({"none": None}, thread_id="t")), 4)
            assert_equal([*reader.search({"missing": None}, thread_id="t")], [])
            assert_equal([*reader.search({"n": 2, "user": "v"}, thread_id="t")], [])
            assert_equal([*reader.search({"user": "u"}, thread_id="u")], [])

    def test_search_stops_at_the_limit(self) -> None:
        saver = self.open()
        for number in range(4):
            saver.put(CONFIG, made({}, metadata={"user": "u", "n": number}))
        assert_equal(_get_numbers(saver.search({"user": "u"}, thread_id="t", limit=2)), [3, 2])
        assert_equal([*saver.search({"user": "u"}, thread_id="t", limit=0)], [])
        assert_equal(len(saver.search({}, thread_id=CONFIG, limit=9)), 4)

    def test_a_limit_may_exceed_the_history(self) -> None:
        saver = self.open()
        for number in range(2):
            saver.put(CONFIG, made({}, metadata={"user": "u", "n": number}))
        for limit in (sys.maxsize, sys.maxsize + 1, 1 << 80):
            for thread_id in self._list_searched(saver):
                assert_equal(_get_numbers(saver.search({"user": "u"}, thread_id=thread_id, limit=limit)), [1, 0])
            assert_equal(_get_numbers(saver.recent(CONFIG, limit=limit)), [1, 0])

    def test_an_invalid_limit_raises(self) -> None:
        saver = self.open()
        limits: tuple[Any, ...] = (-1, -sys.maxsize - 2, 1.5, float("inf"), "2")
        for limit in limits:
            for thread_id in self._list_searched(saver):
                with self.raises(ValueError):
                    saver.search({"user": "u"}, thread_id=thread_id, limit=limit)
            with self.raises(ValueError):
                saver.recent(CONFIG, limit=limit)

    def _list_searched(self, saver: BaseCheckpointSaver) -> Sequence[str | None]:
        """Return what a search of a saver may be given as its thread."""
        return [None, "t"] if saver.lists_threads else ["t"]

    def test_search_in_all_threads(self) -> None:
        saver = self.open("lists_threads")
        for thread in ("t", "u"):
            saver.put(make_config(thread), made({}, metadata={"user": "u"}))
        saver.put(make_config("v"), made({}))
        assert_equal(sorted(info.thread_id for info in saver.search({"user": "u"})), ["t", "u"])
        assert_equal(len(saver.search({"user": "u"}, limit=1)), 1)

    # Prune

    def test_prune_keeps_the_latest_checkpoints(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 6)
        assert_equal(saver.prune("t", keep_last=2), 4)
        self.assert_history(saver, CONFIG, checkpoints[4:])
        assert_equal(saver.prune("t", keep_last=2), 0)
        following = derive(checkpoints[-1], {"list": ["next"]}, GROWING)
        saver.put(CONFIG, following)
        self.assert_history(saver, CONFIG, [*checkpoints[4:], following])
        if isinstance(saver, HasVersions):
            assert_equal([*saver.versions_by_thread_id("t")], [])

    def test_prune_removes_old_checkpoints(self) -> None:
        now = datetime(2026, 1, 10, tzinfo=UTC)
        ages = [9, 1, 5, 7, 6]  # in days; the clock went back and forth
        saver = self.open()
        checkpoints = [made({"n": age}, created_at=now - timedelta(days=age)) for age in ages]
        for checkpoint in checkpoints:
            saver.put(CONFIG, checkpoint)
        before = now - timedelta(days=5)
        assert_equal(saver.prune("t", older_than=before, keep_last=3), 1)
        self.assert_history(saver, CONFIG, checkpoints[1:])
        assert_equal(saver.prune("t", older_than=before), 1)
        # The latest checkpoint always stays. One exactly at the limit is not older than it.
        self.assert_history(saver, CONFIG, [checkpoints[1], checkpoints[2], checkpoints[4]])

    def test_prune_keeps_tagged_and_interrupted_checkpoints(self) -> None:
        saver = self.open()
        tagged, other, interrupted, answered, untouched, latest = grow_list(saver, CONFIG, 6)
        interrupt = {INTERRUPT + "i": make_interrupt()}
        saver.add_tags(make_config("t", tagged.id), "keep")
        saver.add_tags(make_config("t", other.id), "other")
        saver.put_writes(make_config("t", interrupted.id), interrupt)
        saver.put_writes(make_config("t", answered.id), {**interrupt, ANSWER + "i": 1})

        removed = [other, answered, untouched]
        assert_equal(saver.prune("t", keep_last=1, keep_tags=["keep"]), len(removed))
        self.assert_history_ids(saver, [tagged, interrupted, latest])
        assert_equal(saver.tags_of(make_config("t", tagged.id)), ("keep",))
        assert_same(saver.get_writes(make_config("t", interrupted.id)), interrupt)

        removed = [tagged, interrupted]
        assert_equal(saver.prune("t", keep_last=1, keep_interrupted=False), len(removed))
        self.assert_history_ids(saver, [latest])

    def assert_history_ids(self, saver: BaseCheckpointSaver, oldest_first: Sequence[Checkpoint]) -> None:
        """Assert that a history has these ids and states, whatever its writes and tags."""
        newest_first = oldest_first[::-1]
        for reader in (saver, self.open_again(saver)):
            listed = reader.list(CONFIG)
            assert_equal(get_ids(listed), get_ids(newest_first))
            for checkpoint, expected in zip(listed, newest_first, strict=True):
                assert_same(checkpoint.state, expected.state)

    def test_prune_counts_each_namespace_separately(self) -> None:
        saver = self.open("lists_namespaces")
        root = grow_list(saver, CONFIG, 3)
        inner = grow_list(saver, make_config("t", namespace="n"), 4)
        assert_equal(saver.prune(CONFIG, keep_last=2), 3)
        self.assert_history(saver, CONFIG, root[1:])
        self.assert_history(saver, make_config("t", namespace="n"), inner[2:])

    def test_prune_covers_every_thread(self) -> None:
        saver = self.open("lists_threads")
        histories = {thread: grow_list(saver, make_config(thread), 3) for thread in ("t", "u")}
        assert_equal(saver.prune("unknown", keep_last=1), 0)
        assert_equal(saver.prune(keep_last=1), 4)
        for thread, history in histories.items():
            self.assert_history(saver, make_config(thread), history[2:])

    def test_prune_requires_a_criterion(self) -> None:
        for thread in ("t", "u"):
            saver = self.open()
            grow_list(saver, CONFIG, 2)
            with self.raises(ValueError):
                saver.prune(thread)
            with self.raises(ValueError):
                saver.prune(thread, keep_last=0)
            with self.raises(ValueError):
                saver.prune(thread, keep_tags=["tag"])
            assert_equal(len(saver.list(CONFIG)), 2)

    # Delete idle threads

    def test_delete_idle_deletes_only_idle_threads(self) -> None:
        saver = self.open("lists_threads")
        if not isinstance(saver, SupportsDeleteIdle):
            self.skip("the saver does not declare delete_idle")
        now = datetime.now(UTC)
        saver.put(CONFIG, made({"n": 1}, created_at=now - timedelta(days=9)))  # the write counts, not this time
        saver.put(make_config("u"), made({"n": 2}))
        assert_equal([*saver.delete_idle(idle_since=now - timedelta(days=1))], [])
        later = now + timedelta(days=1)
        assert_equal([*saver.delete_idle(idle_since=later, dry_run=True)], ["t", "u"])
        assert_equal(len(saver.threads()), 2)
        assert_equal([*saver.delete_idle("u", idle_since=later)], ["u"])
        with saver.run_lock(CONFIG):
            assert_equal([*saver.delete_idle(idle_since=later)], [])
        assert_equal(len(saver.list(CONFIG)), 1)
        assert_equal([*saver.delete_idle(idle_since=later)], ["t"])
        assert_equal([*saver.threads()], [])


def _get_numbers(infos: Iterable[CheckpointInfo]) -> list[int]:
    return [info.metadata["n"] for info in infos]
