"""What is recorded with a checkpoint: pending writes, interrupts, tags."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from graphkit._records.config import END, RunnableConfig
from graphkit._records.output import HistorySummary, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import ANSWER, FAILURE, INTERRUPT, ITEMS, OUTER_EXECUTION, SUBGRAPH_INTERRUPT, TASK, UPDATE
from graphkit.errors import CheckpointNotFoundError, CheckpointSerializationError
from graphkit.testing._contract.base import SaverTests
from graphkit.testing._values import at, made, same, stop


class WriteTests(SaverTests):
    """Record and read pending writes, interrupts and tags."""

    # Writes

    def test_writes_are_merged_in_the_order_of_their_first_recording(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put_writes(at(), {"b": 1, "a": [2]})
        saver.put_writes(at(), {})
        saver.put_writes(at(), {"c": (3,), "b": None})
        for reader in (saver, self.open_again(saver)):
            same(reader.get_writes(at()), {"b": None, "a": [2], "c": (3,)})

    def test_writes_belong_to_one_checkpoint(self) -> None:
        saver = self.open()
        first, second = made({"n": 1}), made({"n": 2})
        saver.put(at(), first)
        saver.put_writes(at(), {"w": "of the first"})
        saver.put(at(), second)
        assert dict(saver.get_writes(at())) == {}
        saver.put_writes(at(), {"w": "of the second"})
        saver.put_writes(at("t", first.id), {"x": 1})
        for reader in (saver, self.open_again(saver)):
            same(reader.get_writes(at("t", first.id)), {"w": "of the first", "x": 1})
            same(reader.get_writes(at("t", second.id)), {"w": "of the second"})
            same(reader.get_writes(at()), {"w": "of the second"})
            assert dict(reader.get_writes(at("t", "unknown"))) == {}
            assert [info.id for info in reader.history(at())] == [second.id, first.id]
            same([one.state for one in reader.list(at())], [{"n": 2}, {"n": 1}])

    def test_writes_stay_when_their_checkpoint_is_updated_in_place(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put(at(), made({"n": 2}))
        stored = saver.get(at())
        assert stored is not None
        saver.put_writes(at(), {"w": 1})
        saver.add_tags(at(), "kept")
        stored = saver.get(at())
        assert stored is not None
        saver.put(at("t", stored.id), stored.update_state({"n": 3}, {}))
        for reader in (saver, self.open_again(saver)):
            same(reader.get_writes(at()), {"w": 1})
            assert reader.tags_of(at()) == ("kept",)
            newest = reader.get(at())
            assert newest is not None
            same(newest.state, {"n": 3})

    def test_writes_beside_no_checkpoint_are_refused(self) -> None:
        saver = self.open()
        with self.raises(CheckpointNotFoundError):
            saver.put_writes(at(), {"w": 1})
        saver.put(at(), made({"n": 1}))
        with self.assert_unchanged(saver, at()), self.raises(CheckpointNotFoundError):
            saver.put_writes(at("t", "unknown"), {"w": 1})

    def test_writes_are_gone_with_their_thread(self) -> None:
        saver = self.open()
        checkpoint = made({"n": 1})
        saver.put(at(), checkpoint)
        saver.put_writes(at(), {"w": 1})
        saver.release(at())
        saver.put(at(), made({"n": 1}, id=checkpoint.id))
        assert dict(saver.get_writes(at())) == {}
        assert dict(self.open_again(saver).get_writes(at("t", checkpoint.id))) == {}

    def test_malformed_writes_are_refused(self) -> None:
        saver = self.open()
        checkpoint = made({"n": 1})
        saver.put(at(), checkpoint)
        saver.put_writes(at(), {INTERRUPT + "i": stop("x", "why?"), "w": 1})
        for key, value in malformed_writes():
            with self.assert_unchanged(saver, at()), self.raises(CheckpointSerializationError) as caught:
                saver.put_writes(at(), {"fine": 1, key: value})
            assert str(key) in caught.error.path, f"the error does not name {key!r}"
        for reader in (saver, self.open_again(saver)):
            assert [one.id for one in reader.interrupts("t")] == ["i"]
            summary = reader.summary(at())
            assert summary is not None
            assert [one.payload for one in summary.waiting] == ["why?"]

    def test_other_writes_may_be_anything(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        plain = {ANSWER + "i": "yes", "once:x": 1, "interrupt": 5, "failures:": [1], "task": None, "": 0, ":": {}}
        saver.put_writes(at(), plain)
        for reader in (saver, self.open_again(saver)):
            same(reader.get_writes(at()), plain)
            assert [*reader.interrupts("t")] == []
            assert [info.status for info in reader.history(at())] == ["running"]

    # Interrupts

    def test_what_waits_is_found_until_it_is_answered(self) -> None:
        saver = self.open()
        namespace = "n" if saver.lists_namespaces else ""
        inner = at("t", None, namespace)
        checkpoint = made({"n": 1})
        saver.put(inner, checkpoint)
        if namespace:
            saver.put(at("t"), made({"n": 2}))
        saver.put_writes(inner, {INTERRUPT + "i1": stop("x", {"q": (1,)}), INTERRUPT + "i2": stop("y")})
        for reader in (saver, self.open_again(saver)):
            first, second = reader.interrupts("t")
            assert isinstance(first, WaitingInterrupt)
            assert (first.thread_id, first.checkpoint_ns, first.checkpoint_id) == ("t", namespace, checkpoint.id)
            assert (first.node_id, first.when, first.id) == ("x", "inside", "i1")
            same(first.payload, {"q": (1,)})
            same(first.created_at, stop()["created_at"])
            assert second.id == "i2"
            assert [info.status for info in reader.history(inner)] == ["interrupted"]
            assert len(reader.interrupts(at("t"))) == 2  # noqa: PLR2004
        saver.put_writes(at("t", checkpoint.id, namespace), {ANSWER + "i1": None})
        assert [one.id for one in self.open_again(saver).interrupts("t")] == ["i2"]
        saver.put_writes(at("t", checkpoint.id, namespace), {ANSWER + "i2": "yes"})
        assert [*self.open_again(saver).interrupts("t")] == []
        assert [info.status for info in saver.history(inner)] == ["running"]

    def test_only_the_latest_checkpoint_waits(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put_writes(at(), {INTERRUPT + "i": stop()})
        assert len(saver.interrupts("t")) == 1
        saver.put(at(), made({"n": 2}))
        assert [*saver.interrupts("t")] == []
        assert [info.status for info in saver.history(at())] == ["running", "interrupted"]

    def test_what_waits_is_found_in_all_threads(self) -> None:
        saver = self.open("lists_threads")
        for thread in ("t", "u", "v"):
            saver.put(at(thread), made({"n": 1}))
        for thread in ("t", "v"):
            saver.put_writes(at(thread), {INTERRUPT + thread: stop()})
        assert sorted(one.thread_id for one in self.open_again(saver).interrupts()) == ["t", "v"]
        saver.release(at("t"))
        assert [one.id for one in saver.interrupts()] == ["v"]

    # Tags

    def test_tags(self) -> None:
        saver = self.open()
        first, second = made({"n": 1}, metadata={"k": 1}), made({"n": 2})
        saver.put(at(), first)
        saver.put(at(), second)
        saver.add_tags(at("t", first.id), "good", "best")
        saver.add_tags(at("t", first.id), "good", "last")
        saver.add_tags(at(), "newest")
        for reader in (saver, self.open_again(saver)):
            assert reader.tags_of(at("t", first.id)) == ("good", "best", "last")
            assert reader.tags_of(at()) == ("newest",)
            newest, oldest = reader.history(at())
            assert (newest.tags, oldest.tags) == (("newest",), ("good", "best", "last"))
            same(oldest.metadata, {"k": 1})
        saver.remove_tags(at("t", first.id), "best", "never there")
        saver.remove_tags(at(), "newest")
        for reader in (saver, self.open_again(saver)):
            assert reader.tags_of(at("t", first.id)) == ("good", "last")
            assert reader.tags_of(at()) == ()
            assert reader.tags_of(at("t", "unknown")) == ()
        same([one.state for one in saver.list(at())], [{"n": 2}, {"n": 1}])

    def test_tags_of_no_checkpoint_are_refused(self) -> None:
        saver = self.open()
        for config in (at(), at("t", "unknown")):
            with self.raises(CheckpointNotFoundError):
                saver.add_tags(config, "tag")
            with self.raises(CheckpointNotFoundError):
                saver.remove_tags(config, "tag")
        assert saver.get(at()) is None

    def test_tags_that_are_no_strings_are_refused(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.add_tags(at(), "kept")
        tags: list[Any] = [5, None, b"tag", ("tag",)]
        for tag in tags:
            with self.assert_unchanged(saver, at()), self.raises(CheckpointSerializationError) as caught:
                saver.add_tags(at(), "fine", tag)
            assert "tags" in caught.error.path
            with self.assert_unchanged(saver, at()), self.raises(CheckpointSerializationError):
                saver.remove_tags(at(), "kept", tag)
        assert self.open_again(saver).tags_of(at()) == ("kept",)

    # Summaries

    def test_a_summary_says_what_history_and_interrupts_say(self) -> None:
        saver = self.open()
        assert saver.summary(at()) is None
        config = saver.put(at(), made({"n": 1}, metadata={"user": "anna"}))
        self.assert_summary(saver, at())
        saver.put(at(), made({"n": 2}, next_node_id=END))
        self.assert_summary(saver, config)
        saver.put(at("t", None, "n"), made({"n": 3}))
        saver.put_writes(at(), {INTERRUPT + "q1": stop("a", "really?"), INTERRUPT + "q2": stop("b"), "result": [1]})
        saver.put_writes(at(), {ANSWER + "q2": "yes"})
        found = self.assert_summary(saver, at())
        assert [one.payload for one in found.waiting] == ["really?"]
        assert self.assert_summary(saver, at("t", None, "n")).checkpoints == 1

    def test_a_summary_tells_what_waits_in_an_embedded_graph_and_why_a_run_failed(self) -> None:
        saver = self.open()
        saver.put(at("t", None, "sub"), made({"n": 1}, metadata={OUTER_EXECUTION: "1"}))
        saver.put_writes(at("t", None, "sub"), {INTERRUPT + "q": stop("inner", "go?")})
        saver.put(at(), made({"n": 0}))
        saver.put_writes(at(), {SUBGRAPH_INTERRUPT + "q": "sub"})
        found = self.assert_summary(saver, at())
        assert found.waiting == tuple(saver.interrupts("t"))  # which need not find the namespace
        assert found.latest.status == "interrupted"
        failure = {"node_id": "a", "type": "ValueError", "message": "no", "at": datetime(2026, 1, 1, tzinfo=UTC)}
        saver.put_writes(at(), {SUBGRAPH_INTERRUPT + "q": None, FAILURE: failure})
        found = self.assert_summary(saver, at())
        assert found.latest.status == "failed"
        same(found.failure, failure)
        saver.put_writes(at(), {FAILURE: None})
        assert self.assert_summary(saver, at()).failure is None

    def test_a_summary_has_every_tag_once_and_counts_what_took_the_place_of_another_once(self) -> None:
        saver = self.open()
        first, second = made({"n": 1}), made({"n": 2})
        saver.put(at(), first)
        saver.put(at(), second)
        saver.put(at("t", first.id), made({"n": 1.5}))
        assert self.assert_summary(saver, at()).latest.id == second.id
        saver.put(at(), made({"n": 3}))
        self.assert_summary(saver, at())
        saver.add_tags(at("t", second.id), "good", "best")
        saver.add_tags(at(), "new", "good")
        assert self.assert_summary(saver, at()).tags == ("new", "good", "best")
        saver.remove_tags(at(), "new", "good")
        assert self.assert_summary(saver, at()).tags == ("good", "best")

    def assert_summary(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> HistorySummary:
        """Return a summary, and assert that the history agrees with it."""
        for reader in (self.open_again(saver), saver):
            found, infos = reader.summary(config), reader.history(config)
            assert found is not None
            same(found.latest, infos[0])
            assert found.checkpoints == len(infos)
            assert found.tags == tuple(dict.fromkeys(tag for info in infos for tag in info.tags))
            same([*reader.recent(config, limit=2)], [*infos[:2]])
        with self.raises(ValueError):
            saver.recent(config, limit=0)
        assert found is not None
        return found


def malformed_writes() -> Iterator[tuple[Any, Any]]:
    """Yield keys and values that no reader could use."""
    yield from ((5, 1), (None, 1), (b"key", 1))
    good = stop("x", "why?")
    for field in ("node_id", "when", "payload", "created_at"):
        yield INTERRUPT + "bad", {name: value for name, value in good.items() if name != field}
    for field, value in (("node_id", None), ("when", "never"), ("metadata", [])):
        yield INTERRUPT + "bad", {**good, field: value}
    yield INTERRUPT + "bad", {**good, "when": ["inside"]}
    for key in (INTERRUPT + "bad", INTERRUPT, UPDATE + "0", TASK + "t"):
        yield from ((key, "text"), (key, 5), (key, [1]), (key, True))
    yield from ((INTERRUPT + "bad", None), (UPDATE + "0", None), (TASK + "t", None))
    yield TASK + "t", {"node": "a", "branches": "two"}
    yield from ((ITEMS + "m", "text"), (ITEMS + "m", 5), (ITEMS + "m", {"a": 1}), (ITEMS + "m", None))
    yield from ((SUBGRAPH_INTERRUPT + "q", 5), (SUBGRAPH_INTERRUPT + "q", ["sub"]), (SUBGRAPH_INTERRUPT + "q", {}))
