"""Maintenance of old histories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from graphkit._records.checkpoint import Checkpoint
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.versions import HasVersions
from graphkit._saver.writes import ANSWER, INTERRUPT
from graphkit.errors import CheckpointConflictError, CheckpointNotFoundError
from graphkit.testing._contract.base import SaverTests
from graphkit.testing._values import GROWING, Note, at, derived, grow_list, made, same, stop


class MaintenanceTests(SaverTests):
    """Copy, search and prune histories."""

    # Copy

    def test_copy_copies_all_of_the_active_history(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at("t"), 5)
        inner = made({"n": "inner", "note": Note("n")}, metadata={"k": (1,)})
        if saver.lists_namespaces:
            saver.put(at("t", None, "n"), inner)
        saver.put_writes(at("t", checkpoints[1].id), {"w": (1,)})
        saver.add_tags(at("t", checkpoints[2].id), "tag")
        with self.assert_unchanged(saver, at("t")):
            saver.copy("t", at("u"))
        self.assert_history(saver, at("u"), checkpoints)
        if saver.lists_namespaces:
            self.assert_history(saver, at("u", None, "n"), [inner])
        same(saver.get_writes(at("u", checkpoints[1].id)), {"w": (1,)})
        assert saver.tags_of(at("u", checkpoints[2].id)) == ("tag",)
        following = derived(checkpoints[-1], {"list": ["copy"]}, GROWING)
        saver.put(at("u"), following)
        saver.put_writes(at("u", checkpoints[1].id), {"w": 2})
        self.assert_history(saver, at("t"), checkpoints)
        same(saver.get_writes(at("t", checkpoints[1].id)), {"w": (1,)})
        saver.delete("t")
        self.assert_history(saver, at("u"), [*checkpoints, following])

    def test_copy_of_nothing_or_onto_something_changes_nothing(self) -> None:
        saver = self.open()
        saver.put(at("t"), made({"n": 1}))
        saver.put(at("u"), made({"n": 2}))
        with self.assert_unchanged(saver, at("t")), self.assert_unchanged(saver, at("u")):
            with self.raises(CheckpointNotFoundError):
                saver.copy("unknown", "new")
            with self.raises(CheckpointConflictError):
                saver.copy("t", "u")
            with self.raises(CheckpointConflictError):
                saver.copy("t", "t")
        assert saver.get(at("new")) is None

    # Search

    def test_search_compares_metadata(self) -> None:
        saver = self.open()
        for number in range(4):
            metadata = {"user": "u", "n": number, "none": None, "deep": {"a": [number % 2]}}
            saver.put(at("t"), made({"n": number}, metadata=metadata))
        if saver.lists_namespaces:
            saver.put(at("t", None, "n"), made({"n": 5}, metadata={"user": "u", "n": 5}))
        saver.put(at("u"), made({"n": 6}, metadata={"user": "v", "n": 6}))
        for reader in (saver, self.open_again(saver)):
            found = reader.search({"user": "u"}, thread_id="t")
            expected = [0, 1, 2, 3, 5] if saver.lists_namespaces else [0, 1, 2, 3]
            assert sorted(info.metadata["n"] for info in found) == expected
            root = [info.metadata["n"] for info in found if not info.checkpoint_ns]
            assert root == [3, 2, 1, 0]
            assert [info.metadata["n"] for info in reader.search({"deep": {"a": [1]}}, thread_id="t")] == [3, 1]
            assert [info.metadata["n"] for info in reader.search({"n": 2, "user": "u"}, thread_id="t")] == [2]
            assert len(reader.search({"none": None}, thread_id="t")) == 4  # noqa: PLR2004
            assert [*reader.search({"missing": None}, thread_id="t")] == []
            assert [*reader.search({"n": 2, "user": "v"}, thread_id="t")] == []
            assert [*reader.search({"user": "u"}, thread_id="u")] == []

    def test_search_stops_at_the_limit(self) -> None:
        saver = self.open()
        for number in range(4):
            saver.put(at("t"), made({}, metadata={"user": "u", "n": number}))
        assert [info.metadata["n"] for info in saver.search({"user": "u"}, thread_id="t", limit=2)] == [3, 2]
        assert [*saver.search({"user": "u"}, thread_id="t", limit=0)] == []
        assert len(saver.search({}, thread_id=at("t"), limit=9)) == 4  # noqa: PLR2004

    def test_search_in_all_threads(self) -> None:
        saver = self.open("lists_threads")
        for thread in ("t", "u"):
            saver.put(at(thread), made({}, metadata={"user": "u"}))
        saver.put(at("v"), made({}))
        assert sorted(info.thread_id for info in saver.search({"user": "u"})) == ["t", "u"]
        assert len(saver.search({"user": "u"}, limit=1)) == 1

    # Prune

    def test_prune_keeps_the_last(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 6)
        assert saver.prune("t", keep_last=2) == 4  # noqa: PLR2004
        self.assert_history(saver, at(), checkpoints[4:])
        assert saver.prune("t", keep_last=2) == 0
        following = derived(checkpoints[-1], {"list": ["next"]}, GROWING)
        saver.put(at(), following)
        self.assert_history(saver, at(), [*checkpoints[4:], following])
        if isinstance(saver, HasVersions):
            assert [*saver.versions_by_thread_id("t")] == []

    def test_prune_goes_by_age(self) -> None:
        now = datetime(2026, 1, 10, tzinfo=UTC)
        ages = [9, 1, 5, 7, 6]  # days; the clock went back and forth
        saver = self.open()
        checkpoints = [made({"n": age}, created_at=now - timedelta(days=age)) for age in ages]
        for checkpoint in checkpoints:
            saver.put(at(), checkpoint)
        before = now - timedelta(days=5)
        assert saver.prune("t", older_than=before, keep_last=3) == 1
        self.assert_history(saver, at(), checkpoints[1:])
        assert saver.prune("t", older_than=before) == 1
        # The latest checkpoint stays, and so does one that is exactly as old as the limit.
        self.assert_history(saver, at(), [checkpoints[1], checkpoints[2], checkpoints[4]])

    def test_prune_keeps_what_is_tagged_or_waits(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 6)
        saver.add_tags(at("t", checkpoints[0].id), "keep")
        saver.add_tags(at("t", checkpoints[1].id), "other")
        saver.put_writes(at("t", checkpoints[2].id), {INTERRUPT + "i": stop()})
        saver.put_writes(at("t", checkpoints[3].id), {INTERRUPT + "i": stop(), ANSWER + "i": 1})
        assert saver.prune("t", keep_last=1, keep_tags=["keep"]) == 3 - 0
        self.assert_history_ids(saver, [checkpoints[0], checkpoints[2], checkpoints[5]])
        assert saver.tags_of(at("t", checkpoints[0].id)) == ("keep",)
        same(saver.get_writes(at("t", checkpoints[2].id)), {INTERRUPT + "i": stop()})
        assert saver.prune("t", keep_last=1, keep_interrupted=False) == 2  # noqa: PLR2004
        self.assert_history_ids(saver, [checkpoints[5]])

    def assert_history_ids(self, saver: BaseCheckpointSaver, oldest_first: Sequence[Checkpoint]) -> None:
        """As `assert_history`, for checkpoints with pending writes."""
        for reader in (saver, self.open_again(saver)):
            listed = reader.list(at())
            assert [one.id for one in listed] == [one.id for one in reversed(oldest_first)]
            for found, expected in zip(listed, reversed(oldest_first), strict=True):
                same(found.state, expected.state)

    def test_prune_covers_every_namespace_each_for_itself(self) -> None:
        saver = self.open("lists_namespaces")
        root = grow_list(saver, at("t"), 3)
        inner = grow_list(saver, at("t", None, "n"), 4)
        assert saver.prune(at("t"), keep_last=2) == 3  # noqa: PLR2004
        self.assert_history(saver, at("t"), root[1:])
        self.assert_history(saver, at("t", None, "n"), inner[2:])

    def test_prune_covers_every_thread(self) -> None:
        saver = self.open("lists_threads")
        histories = {thread: grow_list(saver, at(thread), 3) for thread in ("t", "u")}
        assert saver.prune("unknown", keep_last=1) == 0
        assert saver.prune(keep_last=1) == 4  # noqa: PLR2004
        for thread, history in histories.items():
            self.assert_history(saver, at(thread), history[2:])

    def test_prune_wants_to_be_told_what(self) -> None:
        for thread in ("t", "u"):
            saver = self.open()
            grow_list(saver, at("t"), 2)
            with self.raises(ValueError):
                saver.prune(thread)
            with self.raises(ValueError):
                saver.prune(thread, keep_last=0)
            with self.raises(ValueError):
                saver.prune(thread, keep_tags=["tag"])
            assert len(saver.list(at("t"))) == 2  # noqa: PLR2004
