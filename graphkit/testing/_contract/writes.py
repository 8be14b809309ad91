"""Pending writes, interrupts and tags of a checkpoint; and the summary of a history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from graphkit._records.config import END, RunnableConfig
from graphkit._records.output import HistorySummary, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import ANSWER, FAILURE, INTERRUPT, ITEMS, OUTER_EXECUTION, SUBGRAPH_INTERRUPT, TASK, UPDATE
from graphkit.errors import CheckpointNotFoundError, CheckpointSerializationError
from graphkit.testing._contract.base import ContractTests, get_ids
from graphkit.testing._values import (
    CONFIG,
    assert_equal,
    assert_isinstance,
    assert_not_none,
    assert_same,
    assert_true,
    made,
    make_config,
    make_interrupt,
)


class WriteTests(ContractTests):
    """Pending writes, interrupts, tags and summaries."""

    # Writes

    def test_put_writes_merges_in_order_of_first_write(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        saver.put_writes(CONFIG, {"b": 1, "a": [2]})
        saver.put_writes(CONFIG, {})
        saver.put_writes(CONFIG, {"c": (3,), "b": None})
        for reader in (saver, self.open_again(saver)):
            assert_same(reader.get_writes(CONFIG), {"b": None, "a": [2], "c": (3,)})

    def test_writes_belong_to_one_checkpoint(self) -> None:
        saver = self.open()
        first = made({"n": 1})
        first_config = make_config("t", first.id)
        second = made({"n": 2})
        saver.put(CONFIG, first)
        saver.put_writes(CONFIG, {"w": "of the first"})
        saver.put(CONFIG, second)
        assert_equal(dict(saver.get_writes(CONFIG)), {})
        saver.put_writes(CONFIG, {"w": "of the second"})
        saver.put_writes(first_config, {"x": 1})
        for reader in (saver, self.open_again(saver)):
            assert_same(reader.get_writes(first_config), {"w": "of the first", "x": 1})
            assert_same(reader.get_writes(make_config("t", second.id)), {"w": "of the second"})
            assert_same(reader.get_writes(CONFIG), {"w": "of the second"})
            assert_equal(dict(reader.get_writes(make_config("t", "unknown"))), {})
            assert_equal([info.id for info in reader.history(CONFIG)], [second.id, first.id])
            assert_same([checkpoint.state for checkpoint in reader.list(CONFIG)], [{"n": 2}, {"n": 1}])

    def test_replace_keeps_writes_and_tags(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        saver.put(CONFIG, made({"n": 2}))
        stored = assert_not_none(saver.get(CONFIG))
        saver.put_writes(CONFIG, {"w": 1})
        saver.add_tags(CONFIG, "kept")
        stored = assert_not_none(saver.get(CONFIG))
        saver.put(make_config("t", stored.id), stored.update_state({"n": 3}, {}))
        for reader in (saver, self.open_again(saver)):
            assert_same(reader.get_writes(CONFIG), {"w": 1})
            assert_equal(reader.tags_of(CONFIG), ("kept",))
            assert_same(assert_not_none(reader.get(CONFIG)).state, {"n": 3})

    def test_put_writes_without_a_checkpoint_raises(self) -> None:
        saver = self.open()
        with self.raises(CheckpointNotFoundError):
            saver.put_writes(CONFIG, {"w": 1})
        saver.put(CONFIG, made({"n": 1}))
        with self.assert_unchanged(saver, CONFIG), self.raises(CheckpointNotFoundError):
            saver.put_writes(make_config("t", "unknown"), {"w": 1})

    def test_release_removes_writes(self) -> None:
        saver = self.open()
        checkpoint = made({"n": 1})
        saver.put(CONFIG, checkpoint)
        saver.put_writes(CONFIG, {"w": 1})
        saver.release(CONFIG)
        saver.put(CONFIG, made({"n": 1}, id=checkpoint.id))
        assert_equal(dict(saver.get_writes(CONFIG)), {})
        assert_equal(dict(self.open_again(saver).get_writes(make_config("t", checkpoint.id))), {})

    def test_malformed_writes_raise(self) -> None:
        saver = self.open()
        checkpoint = made({"n": 1})
        saver.put(CONFIG, checkpoint)
        saver.put_writes(CONFIG, {INTERRUPT + "i": make_interrupt("x", "why?"), "w": 1})
        for key, value in make_malformed_writes():
            with self.assert_unchanged(saver, CONFIG), self.raises(CheckpointSerializationError) as caught:
                saver.put_writes(CONFIG, {"fine": 1, key: value})
            assert_true(str(key) in caught.error.path, f"the error does not name {key!r}: {caught.error}")
        for reader in (saver, self.open_again(saver)):
            assert_equal(get_ids(reader.interrupts("t")), ["i"])
            summary = assert_not_none(reader.summary(CONFIG))
            assert_equal([interrupt.payload for interrupt in summary.waiting], ["why?"])

    def test_other_writes_may_hold_any_value(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        plain = {ANSWER + "i": "yes", "once:x": 1, "interrupt": 5, "failures:": [1], "task": None, "": 0, ":": {}}
        plain |= {"write:": 1, "write:x:y": 2, "write:0:t": 3}
        saver.put_writes(CONFIG, plain)
        for reader in (saver, self.open_again(saver)):
            assert_same(reader.get_writes(CONFIG), plain)
            assert_equal([*reader.interrupts("t")], [])
            assert_equal([info.status for info in reader.history(CONFIG)], ["stalled"])

    # Interrupts

    def test_interrupts_lists_those_without_an_answer(self) -> None:
        saver = self.open()
        namespace = "n" if saver.lists_namespaces else ""
        inner = make_config("t", namespace=namespace)
        checkpoint = made({"n": 1})
        saver.put(inner, checkpoint)
        if namespace:
            saver.put(CONFIG, made({"n": 2}))
        saver.put_writes(
            inner, {INTERRUPT + "i1": make_interrupt("x", {"q": (1,)}), INTERRUPT + "i2": make_interrupt("y")}
        )
        for reader in (saver, self.open_again(saver)):
            first, second = reader.interrupts("t")
            assert_isinstance(first, WaitingInterrupt)
            assert_equal((first.thread_id, first.checkpoint_ns, first.checkpoint_id), ("t", namespace, checkpoint.id))
            assert_equal((first.node_id, first.when, first.id), ("x", "inside", "i1"))
            assert_same(first.payload, {"q": (1,)})
            assert_same(first.created_at, make_interrupt()["created_at"])
            assert_equal(second.id, "i2")
            assert_equal([info.status for info in reader.history(inner)], ["interrupted"])
            assert_equal(len(reader.interrupts(CONFIG)), 2)
        saver.put_writes(make_config("t", checkpoint.id, namespace), {ANSWER + "i1": None})
        assert_equal(get_ids(self.open_again(saver).interrupts("t")), ["i2"])
        saver.put_writes(make_config("t", checkpoint.id, namespace), {ANSWER + "i2": "yes"})
        assert_equal([*self.open_again(saver).interrupts("t")], [])
        assert_equal([info.status for info in saver.history(inner)], ["answered"])

    def test_only_the_latest_checkpoint_is_interrupted(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        saver.put_writes(CONFIG, {INTERRUPT + "i": make_interrupt()})
        assert_equal(len(saver.interrupts("t")), 1)
        saver.put(CONFIG, made({"n": 2}))
        assert_equal([*saver.interrupts("t")], [])
        infos = saver.history(CONFIG)
        assert_equal([info.status for info in infos], ["stalled", ""])
        assert_equal([info.stopped for info in infos], ["", "interrupted"])

    def test_interrupts_covers_all_threads(self) -> None:
        saver = self.open("lists_threads")
        for thread in ("t", "u", "v"):
            saver.put(make_config(thread), made({"n": 1}))
        for thread in ("t", "v"):
            saver.put_writes(make_config(thread), {INTERRUPT + thread: make_interrupt()})
        assert_equal(sorted(interrupt.thread_id for interrupt in self.open_again(saver).interrupts()), ["t", "v"])
        saver.release(CONFIG)
        assert_equal(get_ids(saver.interrupts()), ["v"])

    # Tags

    def test_tags(self) -> None:
        saver = self.open()
        first = made({"n": 1}, metadata={"k": 1})
        first_config = make_config("t", first.id)
        second = made({"n": 2})
        saver.put(CONFIG, first)
        saver.put(CONFIG, second)
        saver.add_tags(first_config, "good", "best")
        saver.add_tags(first_config, "good", "last")
        saver.add_tags(CONFIG, "newest")
        for reader in (saver, self.open_again(saver)):
            assert_equal(reader.tags_of(first_config), ("good", "best", "last"))
            assert_equal(reader.tags_of(CONFIG), ("newest",))
            newest, oldest = reader.history(CONFIG)
            assert_equal((newest.tags, oldest.tags), (("newest",), ("good", "best", "last")))
            assert_same(oldest.metadata, {"k": 1})
        saver.remove_tags(first_config, "best", "never there")
        saver.remove_tags(CONFIG, "newest")
        for reader in (saver, self.open_again(saver)):
            assert_equal(reader.tags_of(first_config), ("good", "last"))
            assert_equal(reader.tags_of(CONFIG), ())
            assert_equal(reader.tags_of(make_config("t", "unknown")), ())
        assert_same([checkpoint.state for checkpoint in saver.list(CONFIG)], [{"n": 2}, {"n": 1}])

    def test_tagging_an_unknown_checkpoint_raises(self) -> None:
        saver = self.open()
        for config in (CONFIG, make_config("t", "unknown")):
            with self.raises(CheckpointNotFoundError):
                saver.add_tags(config, "tag")
            with self.raises(CheckpointNotFoundError):
                saver.remove_tags(config, "tag")
        assert_same(saver.get(CONFIG), None)

    def test_tags_must_be_strings(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        saver.add_tags(CONFIG, "kept")
        tags: list[Any] = [5, None, b"tag", ("tag",)]
        for tag in tags:
            with self.assert_unchanged(saver, CONFIG), self.raises(CheckpointSerializationError) as caught:
                saver.add_tags(CONFIG, "fine", tag)
            assert_true("tags" in caught.error.path, f"the error names the path {caught.error.path!r} instead of tags")
            with self.assert_unchanged(saver, CONFIG), self.raises(CheckpointSerializationError):
                saver.remove_tags(CONFIG, "kept", tag)
        assert_equal(self.open_again(saver).tags_of(CONFIG), ("kept",))

    # Summaries

    def test_summary_agrees_with_history_and_interrupts(self) -> None:
        saver = self.open()
        assert_same(saver.summary(CONFIG), None)
        config = saver.put(CONFIG, made({"n": 1}, metadata={"user": "anna"}))
        self.assert_summary(saver, CONFIG)
        saver.put(CONFIG, made({"n": 2}, next_node_id=END))
        self.assert_summary(saver, config)
        saver.put(make_config("t", namespace="n"), made({"n": 3}))
        saver.put_writes(
            CONFIG,
            {INTERRUPT + "q1": make_interrupt("a", "really?"), INTERRUPT + "q2": make_interrupt("b"), "result": [1]},
        )
        saver.put_writes(CONFIG, {ANSWER + "q2": "yes"})
        summary = self.assert_summary(saver, CONFIG)
        assert_equal([interrupt.payload for interrupt in summary.waiting], ["really?"])
        assert_equal(self.assert_summary(saver, make_config("t", namespace="n")).checkpoints, 1)

    def test_summary_includes_nested_interrupts_and_the_failure(self) -> None:
        saver = self.open()
        saver.put(make_config("t", namespace="sub"), made({"n": 1}, metadata={OUTER_EXECUTION: "1"}))
        saver.put_writes(make_config("t", namespace="sub"), {INTERRUPT + "q": make_interrupt("inner", "go?")})
        saver.put(CONFIG, made({"n": 0}))
        saver.put_writes(CONFIG, {SUBGRAPH_INTERRUPT + "q": "sub"})
        summary = self.assert_summary(saver, CONFIG)
        # Also if the saver does not list namespaces.
        assert_equal(summary.waiting, tuple(saver.interrupts("t")))
        assert_equal(summary.latest.status, "interrupted")
        failure = {"node_id": "a", "type": "ValueError", "message": "no", "at": datetime(2026, 1, 1, tzinfo=UTC)}
        saver.put_writes(CONFIG, {SUBGRAPH_INTERRUPT + "q": None, FAILURE: failure})
        summary = self.assert_summary(saver, CONFIG)
        assert_equal(summary.latest.status, "failed")
        assert_same(summary.failure, failure)
        saver.put_writes(CONFIG, {FAILURE: None})
        assert_same(self.assert_summary(saver, CONFIG).failure, None)

    def test_summary_lists_each_tag_and_counts_each_checkpoint_once(self) -> None:
        saver = self.open()
        first = made({"n": 1})
        second = made({"n": 2})
        saver.put(CONFIG, first)
        saver.put(CONFIG, second)
        saver.put(make_config("t", first.id), made({"n": 1.5}))
        assert_equal(self.assert_summary(saver, CONFIG).latest.id, second.id)
        saver.put(CONFIG, made({"n": 3}))
        self.assert_summary(saver, CONFIG)
        saver.add_tags(make_config("t", second.id), "good", "best")
        saver.add_tags(CONFIG, "new", "good")
        assert_equal(self.assert_summary(saver, CONFIG).tags, ("new", "good", "best"))
        saver.remove_tags(CONFIG, "new", "good")
        assert_equal(self.assert_summary(saver, CONFIG).tags, ("good", "best"))

    def assert_summary(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> HistorySummary:
        """Assert that the summary of a history agrees with the history; return it."""
        for reader in (self.open_again(saver), saver):
            summary = assert_not_none(reader.summary(config))
            infos = reader.history(config)
            assert_same(summary.latest, infos[0])
            assert_equal(summary.checkpoints, len(infos))
            assert_equal(summary.tags, tuple(dict.fromkeys(tag for info in infos for tag in info.tags)))
            assert_same([*reader.recent(config, limit=2)], [*infos[:2]])
        with self.raises(ValueError):
            saver.recent(config, limit=0)
        return assert_not_none(summary)


def make_malformed_writes() -> Iterator[tuple[Any, Any]]:
    """Yield keys and values that no reader could use."""
    key: Any
    value: Any
    for key in (5, None, b"key"):
        yield key, 1
    yield from _make_malformed_interrupts()
    for key in (INTERRUPT + "bad", INTERRUPT, UPDATE + "0", TASK + "t"):
        for value in ("text", 5, [1], True):
            yield key, value
    for key in (INTERRUPT + "bad", UPDATE + "0", TASK + "t"):
        yield key, None
    yield TASK + "t", {"node": "a", "branches": "two"}
    for value in ("text", 5, {"a": 1}, None):
        yield ITEMS + "m", value
    for value in (5, ["sub"], {}):
        yield SUBGRAPH_INTERRUPT + "q", value


def _make_malformed_interrupts() -> Iterator[tuple[str, Any]]:
    good = make_interrupt("x", "why?")
    for field in ("node_id", "when", "payload", "created_at"):
        yield INTERRUPT + "bad", {name: value for name, value in good.items() if name != field}
    for field, value in (("node_id", None), ("when", "never"), ("when", ["inside"]), ("metadata", [])):
        yield INTERRUPT + "bad", {**good, field: value}
