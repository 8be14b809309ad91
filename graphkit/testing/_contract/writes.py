"""Pending writes, interrupts and tags of a checkpoint; and the summary of a history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from graphkit._records.config import END, RunnableConfig
from graphkit._records.output import HistorySummary, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.errors import CheckpointNotFoundError, CheckpointSerializationError
from graphkit.operations import cancel, submit
from graphkit.testing import _check as check
from graphkit.testing._contract.base import ContractTests
from graphkit.testing._values import (
    CONFIG,
    NESTED,
    OTHER,
    UNKNOWN,
    config_of,
    in_namespace,
    make_failure,
    make_interrupt,
    put_checkpoint,
    put_interrupt,
)

DUE: Final = datetime(2031, 4, 1, 12, tzinfo=UTC)
TIMER: Final = {**make_interrupt(), "due": DUE}


class WriteTests(ContractTests):
    """Pending writes, interrupts, tags and summaries."""

    # Writes

    def test_put_writes_merges_in_order_of_first_write(self) -> None:
        """`put_writes` merges over the earlier writes; a key keeps the position of its first write."""
        saver = self.open_with_checkpoint()
        saver.put_writes(CONFIG, {"b": 1, "a": [2]})
        saver.put_writes(CONFIG, {})
        # The second value of b takes the position of the first.
        saver.put_writes(CONFIG, {"c": (3,), "b": None})

        expected = {"b": None, "a": [2], "c": (3,)}
        for reader in self.readers_of(saver):
            check.assert_writes(reader, expected)

    def test_writes_belong_to_one_checkpoint(self) -> None:
        """`put_writes` and `get_writes` mean the named checkpoint, or the latest."""
        saver = self.open()
        first = put_checkpoint(saver)
        first_config = config_of(first)
        saver.put_writes(CONFIG, {"w": "of the first"})

        second = put_checkpoint(saver)
        check.assert_no_writes(saver)

        saver.put_writes(CONFIG, {"w": "of the second"})
        saver.put_writes(first_config, {"x": 1})

        for reader in self.readers_of(saver):
            check.assert_writes(reader, {"w": "of the first", "x": 1}, first_config)
            check.assert_writes(reader, {"w": "of the second"}, config_of(second))
            check.assert_writes(reader, {"w": "of the second"})
            check.assert_no_writes(reader, UNKNOWN)

        # Recording writes has not changed the history itself.
        self.assert_history(saver, [first, second])

    def test_replace_keeps_writes_and_tags(self) -> None:
        """A checkpoint that `put` replaces keeps its pending writes and tags."""
        saver = self.open_with_checkpoint()
        put_checkpoint(saver)
        saver.put_writes(CONFIG, {"w": 1})
        saver.add_tags(CONFIG, "kept")

        # The default methods store writes and tags in the metadata, so the replacement must be made
        # from the stored checkpoint.
        stored = check.get_checkpoint(saver)
        replacement = stored.update_state({"n": 3}, {})
        saver.put(config_of(stored), replacement)

        for reader in self.readers_of(saver):
            check.assert_writes(reader, {"w": 1})
            check.assert_tags(reader, "kept")
            check.assert_state(reader, replacement.state)

    def test_put_writes_without_a_checkpoint_raises(self) -> None:
        """`put_writes` raises CheckpointNotFoundError if there is no such checkpoint."""
        saver = self.open()
        for writes in ({"w": 1}, {}):
            with self.raises(CheckpointNotFoundError):
                saver.put_writes(CONFIG, writes)

        put_checkpoint(saver)
        with self.raises_without_change(saver, CheckpointNotFoundError):
            saver.put_writes(UNKNOWN, {"w": 1})

    def test_malformed_writes_raise(self) -> None:
        """`put_writes` refuses values that no reader of their key could use: it calls `check_writes`."""
        saver = self.open_with_checkpoint()
        put_interrupt(saver)

        for key, value in make_malformed_writes():
            writes = {"fine": 1, key: value}
            with self.raises_without_change(saver, CheckpointSerializationError) as caught:
                saver.put_writes(CONFIG, writes)
            check.assert_contains(caught.exception.path, str(key), "the path of the error")

        # The interrupt from before is still readable.
        self.assert_status(saver, "interrupted", interrupts=["i"])

    def test_other_writes_may_hold_any_value(self) -> None:
        """`put_writes` refuses no value of a key without a meaning to graphkit."""
        saver = self.open_with_checkpoint()
        # An answer without an interrupt, and keys that resemble those with a meaning.
        writes: dict[str, Any] = {"answer:i": "yes", "once:x": 1, "interrupt": 5, "failures:": [1], "task": None}
        writes |= {"write:": 1, "write:x:y": 2, "write:0:t": 3, "write:-1:t": {"no": "record"}, "": 0, ":": {}}
        saver.put_writes(CONFIG, writes)

        for reader in self.readers_of(saver):
            check.assert_writes(reader, writes)
        self.assert_status(saver, "stalled")

    # Interrupts

    def test_interrupts_lists_those_without_an_answer(self) -> None:
        """`interrupts` returns the pending interrupts with everything that was recorded."""
        saver = self.open()
        # Savers that list namespaces must find interrupts in all of them.
        namespace = "n" if saver.lists_namespaces else ""
        config = in_namespace(namespace)
        checkpoint = put_checkpoint(saver, config)
        if namespace:
            put_checkpoint(saver)
        interrupts = {
            "interrupt:i1": {**make_interrupt("x", {"q": (1,)}), "deadline": DUE, "default": [None]},
            "interrupt:i2": make_interrupt("y"),
        }
        saver.put_writes(config, interrupts)

        expected = WaitingInterrupt(
            thread_id="t",
            checkpoint_ns=namespace,
            checkpoint_id=checkpoint.id,
            node_id="x",
            when="inside",
            id="i1",
            payload={"q": (1,)},
            created_at=make_interrupt()["created_at"],
            deadline=DUE,
        )
        for reader in self.readers_of(saver):
            first, second = reader.interrupts("t")
            check.same(first, expected, "interrupt")
            check.assert_equal(second.id, "i2", "id")
            check.same(second.deadline, None, "deadline")
            check.assert_statuses(reader, "interrupted", config=config)
            check.assert_length(reader.interrupts(CONFIG), 2, "interrupts")

        # None is an answer too.
        checkpoint_config = RunnableConfig("t", checkpoint.id, namespace)
        saver.put_writes(checkpoint_config, {"answer:i1": None})
        reader = self.open_again(saver)
        check.assert_interrupts(reader, "i2")

        saver.put_writes(checkpoint_config, {"answer:i2": "yes"})
        reader = self.open_again(saver)

        check.assert_interrupts(reader)
        check.assert_statuses(saver, "answered", config=config)
        check.assert_stops(saver, "answered", config=config)

    def test_only_the_latest_checkpoint_is_interrupted(self) -> None:
        """An interrupt waits no longer once the run has moved on."""
        saver = self.open_with_checkpoint()
        put_interrupt(saver)
        check.assert_length(saver.interrupts("t"), 1, "interrupts")

        put_checkpoint(saver)
        check.assert_interrupts(saver)

        # `status` is about the run and only the latest has one; `stopped` is about the checkpoint.
        check.assert_statuses(saver, "stalled", "")
        check.assert_stops(saver, "", "interrupted")

    def test_a_submitted_run_is_queued_until_it_begins(self) -> None:
        """`history` has the status "queued" for a submitted run; see `derive_stop`."""
        saver = self.open()
        submit(saver, {"n": (1,)}, CONFIG)
        self.assert_status(saver, "queued", stopped=["queued"])

        # An update that comes in the meantime.
        saver.put_writes(CONFIG, {"update:0": {"n": 2}})
        self.assert_status(saver, "queued", stopped=["queued"])

        saver.put_writes(CONFIG, {"failure": make_failure()})
        check.assert_statuses(saver, "failed")
        saver.put_writes(CONFIG, {"failure": None})
        self.assert_status(saver, "queued", stopped=["queued"])

        # The run begins.
        put_checkpoint(saver)
        self.assert_status(saver, "stalled", "", stopped=["", "queued"])

    def test_a_run_that_waits_for_a_timer_sleeps(self) -> None:
        """`history` has the status "sleeping" for a run that waits for a timer; see `derive_stop`."""
        saver = self.open()
        first = put_checkpoint(saver)

        # Another branch is at work until the run sleeps.
        saver.put_writes(CONFIG, {"timer:t": TIMER})
        check.assert_statuses(saver, "stalled")
        saver.put_writes(CONFIG, {"asleep": True})
        self.assert_status(saver, "sleeping", stopped=["sleeping"])

        # An interrupt in another branch comes first.
        put_interrupt(saver)
        self.assert_status(saver, "interrupted", interrupts=["i"])
        saver.put_writes(CONFIG, {"answer:i": "yes"})
        check.assert_statuses(saver, "answered")
        saver.put_writes(CONFIG, {"resumed:i": True})
        self.assert_status(saver, "sleeping")

        # A failure comes first, too.
        saver.put_writes(CONFIG, {"failure": make_failure()})
        check.assert_statuses(saver, "failed")

        # The run goes on.
        saver.put_writes(CONFIG, {"failure": None, "answer:t": None, "resumed:t": True, "asleep": None})
        self.assert_status(saver, "stalled")
        self.assert_history(saver, [first])

    def test_a_timer_in_a_nested_graph(self) -> None:
        """A thread sleeps, too, if a nested graph waits for a timer."""
        saver = self.open_with_checkpoint()
        put_checkpoint(saver, NESTED, metadata={"within": "c/"})

        saver.put_writes(NESTED, {"timer:t": TIMER})
        saver.put_writes(CONFIG, {"inner-timer:t": "n", "asleep": True})
        self.assert_status(saver, "sleeping")

        # The timer is over, and the run goes on.
        saver.put_writes(CONFIG, {"inner-timer:t": None, "asleep": None})
        self.assert_status(saver, "stalled")

    def test_a_cancelled_thread_waits_for_nothing(self) -> None:
        """`interrupts` leaves out those of a cancelled thread, and `summary` has the cancellation."""
        saver = self.open_with_checkpoint()
        put_interrupt(saver)

        check.same(cancel(saver, CONFIG, reason="no more"), True, "cancel")
        check.same(cancel(saver, CONFIG, reason="again"), False, "cancel")

        self.assert_status(saver, "cancelled", stopped=["cancelled"])
        for reader in self.readers_of(saver):
            if reader.lists_threads:
                check.assert_length(reader.interrupts(), 0, "the interrupts of all threads")
            summary = check.get_summary(reader)
            cancellation = check.not_none(summary.cancellation, "cancellation")
            check.assert_equal(cancellation["reason"], "no more", "reason")

        # As a resume does.
        saver.put_writes(CONFIG, {"cancelled": None})
        self.assert_status(saver, "interrupted", interrupts=["i"])

    def assert_status(
        self, saver: BaseCheckpointSaver, *statuses: str, stopped: Sequence[str] = (), interrupts: Sequence[str] = ()
    ) -> None:
        """Assert where the thread "t" stands, through this object and another one.

        Args:
            saver: the saver.
            statuses: the status of each checkpoint, newest first.
            stopped: why each checkpoint stopped, if the test is about that.
            interrupts: the ids of the interrupts that wait.
        """
        for reader in self.readers_of(saver):
            check.assert_statuses(reader, *statuses)
            if stopped:
                check.assert_stops(reader, *stopped)
            check.assert_interrupts(reader, *interrupts)
            waiting = check.get_summary(reader).waiting
            check.assert_equal(check.get_ids(waiting), [*interrupts], "the interrupts of the summary")

    def test_interrupts_covers_all_threads(self) -> None:
        """With `lists_threads`, `interrupts` without a thread reads all threads."""
        saver = self.open("lists_threads")
        third = RunnableConfig("v")
        for config in (CONFIG, OTHER, third):
            put_checkpoint(saver, config)
        put_interrupt(saver, "i")
        put_interrupt(saver, "j", third)

        reader = self.open_again(saver)
        waiting = [(interrupt.thread_id, interrupt.id) for interrupt in reader.interrupts()]
        check.assert_any_order(waiting, [("t", "i"), ("v", "j")], "interrupts")

        saver.release(CONFIG)
        check.assert_equal(check.get_ids(saver.interrupts()), ["j"], "interrupts")

    # Tags

    def test_tags(self) -> None:
        """`add_tags` and `remove_tags` change one checkpoint; `tags_of` and `history` show its tags in order."""
        saver = self.open()
        first = put_checkpoint(saver, metadata={"k": 1})
        second = put_checkpoint(saver)
        first_config = config_of(first)
        saver.add_tags(first_config, "good", "best")
        saver.add_tags(first_config, "good", "last")
        saver.add_tags(CONFIG, "newest")

        for reader in self.readers_of(saver):
            check.assert_tags(reader, "good", "best", "last", config=first_config)
            check.assert_tags(reader, "newest")
            check.assert_tags(reader, config=UNKNOWN)

            newest, oldest = reader.history(CONFIG)
            check.assert_equal(newest.tags, ("newest",))
            check.assert_equal(oldest.tags, ("good", "best", "last"))
            # Tags are not part of the metadata, wherever a saver keeps them.
            check.same(oldest.metadata, {"k": 1})

        saver.remove_tags(first_config, "best", "never there")
        saver.remove_tags(CONFIG, "newest")

        for reader in self.readers_of(saver):
            check.assert_tags(reader, "good", "last", config=first_config)
            check.assert_tags(reader)

        # A new checkpoint does not inherit them.
        saver.add_tags(CONFIG, "kept")
        third = put_checkpoint(saver)
        check.assert_tags(saver)

        self.assert_history(saver, [first, second, third])

    def test_tagging_an_unknown_checkpoint_raises(self) -> None:
        """`add_tags` and `remove_tags` raise CheckpointNotFoundError if there is no such checkpoint."""
        saver = self.open()

        for config in (CONFIG, UNKNOWN):
            for change_tags in (saver.add_tags, saver.remove_tags):
                with self.raises(CheckpointNotFoundError):
                    change_tags(config, "tag")

        check.assert_missing(saver)

    def test_tags_must_be_strings(self) -> None:
        """`add_tags` and `remove_tags` refuse other tags, and change nothing: they call `check_tags`."""
        saver = self.open_with_checkpoint()
        saver.add_tags(CONFIG, "kept")
        invalid_tags: list[Any] = [5, None, b"tag", ("tag",)]

        for tag in invalid_tags:
            with self.raises_without_change(saver, CheckpointSerializationError) as caught:
                saver.add_tags(CONFIG, "fine", tag)

            check.assert_contains(caught.exception.path, "tags", "the path of the error")

            with self.raises_without_change(saver, CheckpointSerializationError):
                saver.remove_tags(CONFIG, "kept", tag)

        reader = self.open_again(saver)
        check.assert_tags(reader, "kept")

    # Summaries

    def test_summary_agrees_with_history_and_interrupts(self) -> None:
        """`summary` and `recent` agree with `history` and `interrupts`."""
        saver = self.open()
        check.same(saver.summary(CONFIG), None, "summary")

        checkpoint = put_checkpoint(saver, metadata={"user": "anna"})
        self.assert_summary(saver, CONFIG)

        put_checkpoint(saver, next_node_id=END)
        # The checkpoint id of a config does not restrict the summary.
        self.assert_summary(saver, config_of(checkpoint))

        put_checkpoint(saver, NESTED)
        writes = {
            "interrupt:q1": make_interrupt("a", "really?"),
            "interrupt:q2": make_interrupt("b"),
            "result": [1],
        }
        saver.put_writes(CONFIG, writes)
        saver.put_writes(CONFIG, {"answer:q2": "yes"})

        (waiting,) = self.assert_summary(saver, CONFIG).waiting
        check.assert_equal(waiting.payload, "really?", "payload")

        summary = self.assert_summary(saver, NESTED)
        check.assert_equal(summary.checkpoints, 1, "the checkpoints of the summary")

    def test_summary_includes_nested_interrupts_and_the_failure(self) -> None:
        """`summary` has the interrupts of nested graphs, and the recorded failure."""
        saver = self.open()
        subgraph = in_namespace("sub")
        put_checkpoint(saver, subgraph, metadata={"within": "1"})
        put_interrupt(saver, "q", subgraph)
        put_checkpoint(saver)
        saver.put_writes(CONFIG, {"inner:q": "sub"})

        # The write of the root names the namespace, so this holds also for a saver that does not
        # list namespaces.
        summary = self.assert_summary(saver, CONFIG)

        check.assert_equal(summary.waiting, tuple(saver.interrupts("t")))
        check.assert_equal(summary.latest.status, "interrupted", "the status of the latest checkpoint")

        failure = make_failure(at=DUE)
        saver.put_writes(CONFIG, {"inner:q": None, "failure": failure})
        summary = self.assert_summary(saver, CONFIG)

        check.assert_equal(summary.latest.status, "failed", "the status of the latest checkpoint")
        check.same(summary.failure, failure, "the failure of the summary")

        # None removes the failure.
        saver.put_writes(CONFIG, {"failure": None})
        summary = self.assert_summary(saver, CONFIG)
        check.same(summary.failure, None, "the failure of the summary")

    def test_summary_lists_each_tag_and_counts_each_checkpoint_once(self) -> None:
        """`summary` has the tags of all checkpoints, newest first, and how many checkpoints there are."""
        saver = self.open()
        first = put_checkpoint(saver)
        second = put_checkpoint(saver)
        put_checkpoint(saver, config_of(first))

        # A replacement is not a further checkpoint, and not the latest.
        summary = self.assert_summary(saver, CONFIG)
        check.assert_equal(summary.latest.id, second.id, "the id of the latest checkpoint")

        put_checkpoint(saver)
        self.assert_summary(saver, CONFIG)

        # Tags are listed from the newest checkpoint to the oldest.
        saver.add_tags(config_of(second), "good", "best")
        saver.add_tags(CONFIG, "new", "good")
        summary = self.assert_summary(saver, CONFIG)
        check.assert_equal(summary.tags, ("new", "good", "best"), "the tags of the summary")

        saver.remove_tags(CONFIG, "new", "good")
        summary = self.assert_summary(saver, CONFIG)
        check.assert_equal(summary.tags, ("good", "best"), "the tags of the summary")

    def assert_summary(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> HistorySummary:
        """Assert that the summary of a history agrees with the history; return it."""
        for reader in (self.open_again(saver), saver):
            summary = check.get_summary(reader, config)
            infos = reader.history(config)
            all_tags = [tag for info in infos for tag in info.tags]
            unique_tags = dict.fromkeys(all_tags)

            check.same(summary.latest, infos[0], "latest")
            check.assert_equal(summary.checkpoints, len(infos), "checkpoints")
            check.assert_equal(summary.tags, (*unique_tags,), "tags")

            recent = reader.recent(config, limit=2)
            check.assert_sequence_equal(recent, infos[:2], "recent")
        return summary


def make_malformed_writes() -> Iterator[tuple[Any, Any]]:
    """Yield keys and values that no reader could use."""
    good = make_interrupt("x", "why?")
    no_mappings = ["text", 5, [1], True]
    malformed: dict[Any, list[Any]] = {
        # Keys that are not strings.
        5: [1],
        None: [1],
        b"key": [1],
        "interrupt:bad": [
            *no_mappings,
            None,
            {**good, "node_id": None},
            {**good, "when": "never"},
            {**good, "when": ["inside"]},
            {**good, "metadata": []},
            {**good, "deadline": "soon"},
        ],
        "interrupt:": no_mappings,
        "timer:bad": [good],  # it has no time
        "update:0": [*no_mappings, None],
        "task:t": [*no_mappings, None, {"node": "a", "branches": "two"}],
        "items:m": ["text", 5, {"a": 1}, None],
        "inner:q": [5, ["sub"], {}],
    }
    for required in ("node_id", "when", "payload", "created_at"):
        malformed["interrupt:bad"].append({name: value for name, value in good.items() if name != required})

    for key, values in malformed.items():
        for value in values:
            yield key, value
