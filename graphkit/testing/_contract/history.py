"""One history: a checkpoint that was put is read back whole and in order."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone

from graphkit._records.config import END, START, ConfigLike, RunnableConfig
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing import _check as check
from graphkit.testing._contract.base import ContractTests
from graphkit.testing._values import (
    CONFIG,
    NESTED,
    OTHER,
    UNKNOWN,
    config_of,
    derive,
    grow_list,
    made,
    put_all,
    put_checkpoint,
    put_extended,
    put_state,
    replace_state,
)


class HistoryTests(ContractTests):
    """Putting, reading and replacing checkpoints."""

    # Put, get, list

    def test_an_unknown_thread_is_empty(self) -> None:
        """Every method that reads answers for a thread that does not exist, and raises nothing."""
        saver = self.open()

        self.assert_history(saver, [])
        check.assert_missing(saver, UNKNOWN)
        check.assert_no_writes(saver)
        check.assert_tags(saver)
        check.assert_namespaces(saver)

    def test_put_returns_the_config_with_the_new_id(self) -> None:
        """`put` returns the config that it was given, with the id of the new checkpoint."""
        saver = self.open()
        config = NESTED.replace(max_iterations=7, metadata={"user": 7})
        checkpoint = made({"x": 1})

        stored = saver.put(config, checkpoint)

        # Every other option of the config is unchanged.
        expected = config.replace(checkpoint_id=checkpoint.id)
        check.assert_equal(stored, expected, "the config that put returned")
        check.assert_checkpoint(saver, checkpoint, stored)

    def test_list_is_ordered_by_put_not_by_clock_or_id(self) -> None:
        """`list` and `history` return the checkpoint first that was put last."""
        saver = self.open()
        now = datetime(2026, 1, 1, tzinfo=UTC)
        checkpoints = []

        # Ids and times descend while the checkpoints are put.
        for n in range(5):
            earlier = now - timedelta(hours=n)
            checkpoint = put_checkpoint(saver, id=f"id {9 - n}", created_at=earlier)
            checkpoints.append(checkpoint)

        self.assert_history(saver, checkpoints)

    def test_get_by_id(self) -> None:
        """`get` returns the checkpoint that the config names, in its own thread and namespace only."""
        saver = self.open()
        first = put_checkpoint(saver)
        second = put_checkpoint(saver)
        other = put_checkpoint(saver, OTHER)

        check.assert_checkpoint(saver, first, config_of(first))
        # An id is valid in its own thread and namespace only.
        check.assert_missing(saver, config_of(other))
        check.assert_missing(saver, RunnableConfig("t", first.id, "elsewhere"))
        # A list has the whole history all the same.
        check.assert_listed(saver, [first, second], config_of(first))
        # The empty string is an id, unlike None.
        check.assert_missing(saver, RunnableConfig("t", ""))

    def test_every_field_is_stored(self) -> None:
        """`put` keeps every field of a checkpoint, with its type."""
        saver = self.open()
        when = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=5)))
        first_id = "the id / of \0 mine"
        metadata = {"step": 3, "who": ("a", 1), "when": when, "none": None, "deep": {"list": [1.5, b"x"]}}
        checkpoints = [
            made({"x": 1}, node_id=START, next_node_id="first", id=first_id),
            made({}, node_id="first", next_node_id=None, parent_id=first_id, created_at=when),
            made({"x": None}, node_id="last", next_node_id=END, metadata=metadata),
        ]

        put_all(saver, checkpoints)

        self.assert_history(saver, checkpoints)

    def test_a_config_without_a_thread_id_uses_the_default_thread(self) -> None:
        """Without a thread id, `list`, `get` and `put` use the thread `THREAD_ID_DEFAULT`."""
        saver = self.open()
        default = RunnableConfig("$default")
        check.assert_equal(saver.THREAD_ID_DEFAULT, "$default")

        first = made({"x": 1})
        saver.put(None, first)

        spellings: list[ConfigLike] = [None, RunnableConfig(), {}, {"configurable": {}}, default]

        for config in spellings:
            check.assert_listed(saver, [first], config)
            check.assert_checkpoint(saver, first, config)

        second = made({"x": 2})
        saver.put({"configurable": {}}, second)

        self.assert_history(saver, [first, second], default)
        check.assert_missing(saver, RunnableConfig("default"))

    def test_a_langgraph_config_is_accepted(self) -> None:
        """`put` and `get` accept a mapping with the key "configurable", as LangGraph passes it."""
        saver = self.open()
        first = made({"n": 1})
        second = made({"n": 2})
        address = {"thread_id": "t", "checkpoint_ns": "n"}
        latest_config = {"configurable": address}
        first_config = {"configurable": {**address, "checkpoint_id": first.id}}

        stored = saver.put(latest_config, first)
        saver.put(latest_config, second)

        check.assert_equal(stored["configurable"]["checkpoint_id"], first.id, "the id in the config that put returned")
        check.assert_checkpoint(saver, first, first_config)
        check.assert_checkpoint(saver, second, latest_config)
        check.assert_checkpoint(saver, second, NESTED)

        replacement = made({"n": 3})
        saver.put(first_config, replacement)
        self.assert_history(saver, [replacement, second], NESTED)

    # Replacing

    def test_replace_keeps_the_position(self) -> None:
        """`put` with the id of a checkpoint replaces it where it stands, and no later state changes."""
        # A saver that stores changes must not lose the state on which later changes build.
        saver = self.open()
        checkpoints = grow_list(saver, 8)

        for position in (3, 0, 7):
            config = config_of(checkpoints[position])
            replacement = made({"list": ["r"]}, id=config.checkpoint_id, node_id="r")

            stored = saver.put(config, replacement)

            check.assert_equal(stored, config, "the config that put returned")
            checkpoints[position] = replacement
            self.assert_history(saver, checkpoints)

        derived = put_extended(saver, checkpoints[-1], "next")
        self.assert_history(saver, [*checkpoints, derived])

    def test_replace_may_change_the_id(self) -> None:
        """The checkpoint that `put` replaces may get another id; the old one is then unknown."""
        saver = self.open()
        first = put_checkpoint(saver)
        replaced = put_checkpoint(saver)
        last = put_checkpoint(saver)
        old_config = config_of(replaced)

        replacement = made({"n": "new"})
        stored = saver.put(old_config, replacement)

        # put returns the config that it was given, with the old id.
        check.assert_equal(stored, old_config, "the config that put returned")
        self.assert_history(saver, [first, replacement, last])
        check.assert_missing(saver, old_config)
        with self.raises(CheckpointNotFoundError):
            put_checkpoint(saver, old_config)

    def test_replace_of_an_unknown_checkpoint_raises(self) -> None:
        """`put` with an unknown id raises CheckpointNotFoundError and changes nothing."""
        saver = self.open_with_checkpoint()
        with self.raises_without_change(saver, CheckpointNotFoundError) as caught:
            put_checkpoint(saver, UNKNOWN)
        check.assert_equal(caught.exception.thread_id, "t")

        # The failed put does not create the thread.
        with self.raises(CheckpointNotFoundError):
            put_checkpoint(saver, RunnableConfig("u", "unknown"))
        check.assert_missing(saver, OTHER)
        if saver.lists_threads:
            check.assert_threads(saver, "t")

    def test_an_id_may_occur_again_and_the_newest_counts(self) -> None:
        """`put` accepts an id that the history has already; `get` returns the newest with it."""
        saver, other = self.open_two()
        first = put_checkpoint(saver)
        again = first.with_state(made({"n": 3}).state)

        # The puts of the other saver come between: the first saver does not know the end of the history.
        second = put_checkpoint(other)
        saver.put(CONFIG, again)
        third = put_checkpoint(other)
        saver.put(CONFIG, again)

        expected = [first, second, again, third, again]
        for reader in self.readers_of(saver):
            check.assert_listed(reader, expected)
            check.assert_checkpoint(reader, again)
            check.assert_checkpoint(reader, again, config_of(first))

        # A state may still derive from that of the oldest.
        derived = derive(first, {"m": 6})
        other.put(CONFIG, derived)

        expected.append(derived)
        for reader in self.readers_of(saver):
            check.assert_listed(reader, expected)

    def test_a_listing_has_no_state_of_a_replacement(self) -> None:
        """What `list` has returned never shows the state of another checkpoint."""
        # A saver that decodes states on first use may have lost one by then.
        saver = self.open()
        put_state(saver, {"n": "removed"})
        first = put_checkpoint(saver)
        again = put_checkpoint(saver, id=first.id)
        replaced = put_state(saver, {"n": "replaced"})
        listed = saver.list(CONFIG)

        replace_state(saver, replaced, {"n": "replacement"})
        saver.prune("t", keep_last=3)

        newest, *middle, oldest = listed
        check.assert_checkpoints(middle, [first, again])
        # The other two may be gone.
        with suppress(CheckpointNotFoundError):
            check.same(newest.state, {"n": "replaced"}, "the state of a replaced checkpoint")
        with suppress(CheckpointNotFoundError):
            check.same(oldest.state, {"n": "removed"}, "the state of a removed checkpoint")

    # History

    def test_history_has_every_field_but_the_state(self) -> None:
        """`history` agrees with `list`; only the latest checkpoint has a status."""
        saver = self.open()
        metadata = {"user": "u", "when": date(2026, 1, 1)}
        checkpoints = [
            made({"n": 1}, node_id=START, next_node_id="x", metadata=metadata),
            made({"n": 2}, node_id="x", next_node_id=None, parent_id="p"),
            made({"n": 3}, node_id="y", next_node_id=END),
        ]
        put_all(saver, checkpoints, NESTED)

        for reader in self.readers_of(saver):
            infos = reader.history(NESTED)

            for info, checkpoint in zip(infos, checkpoints[::-1], strict=True):
                check.assert_equal(info.thread_id, "t", "thread_id")
                check.assert_equal(info.checkpoint_ns, "n", "checkpoint_ns")
                check.assert_equal(info.tags, (), "tags")
                check.assert_instance(info.size, int)
                check.assert_at_least(info.size, 0)
                check.assert_same_fields(
                    info, checkpoint, "id", "parent_id", "node_id", "next_node_id", "created_at", "metadata"
                )

            check.assert_statuses(reader, "finished", "", "", config=NESTED)
