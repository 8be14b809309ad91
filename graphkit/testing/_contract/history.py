"""One history: a checkpoint that was put is read back whole and in order."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

from graphkit._records.config import END, START, ConfigLike, RunnableConfig, StreamMode
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing._contract.base import ContractTests, get_ids
from graphkit.testing._values import (
    CONFIG,
    GROWING,
    assert_equal,
    assert_isinstance,
    assert_not_none,
    assert_same,
    assert_same_checkpoint,
    assert_true,
    derive,
    grow_list,
    made,
    make_config,
)


class HistoryTests(ContractTests):
    """Putting, reading and replacing checkpoints."""

    # Put, get, list

    def test_an_unknown_thread_is_empty(self) -> None:
        saver = self.open()
        assert_equal([*saver.list(CONFIG)], [])
        assert_same(saver.get(CONFIG), None)
        assert_same(saver.get(make_config("t", "some id")), None)
        assert_equal([*saver.history(CONFIG)], [])
        assert_equal(dict(saver.get_writes(CONFIG)), {})
        assert_equal(saver.tags_of(CONFIG), ())
        assert_equal([*saver.namespaces("t")], [])

    def test_put_returns_the_config_with_the_new_id(self) -> None:
        saver = self.open()
        config = RunnableConfig("t", checkpoint_ns="n", stream_mode=StreamMode.SNAPSHOTS, metadata={"user": 7})
        checkpoint = made({"x": 1})
        stored = saver.put(config, checkpoint)
        assert_equal(stored.checkpoint_id, checkpoint.id)
        assert_equal(stored.replace(checkpoint_id=None), config)
        assert_same_checkpoint(saver.get(stored), checkpoint)

    def test_list_is_ordered_by_put_not_by_clock_or_id(self) -> None:
        saver = self.open()
        now = datetime(2026, 1, 1, tzinfo=UTC)
        checkpoints = [made({"n": n}, id=f"id {9 - n}", created_at=now - timedelta(hours=n)) for n in range(5)]
        for checkpoint in checkpoints:
            saver.put(CONFIG, checkpoint)
        self.assert_history(saver, CONFIG, checkpoints)

    def test_equal_states_are_separate_checkpoints(self) -> None:
        saver = self.open()
        checkpoints = [made({"x": [1]}) for _ in range(4)]
        for checkpoint in checkpoints:
            saver.put(CONFIG, checkpoint)
        self.assert_history(saver, CONFIG, checkpoints)

    def test_get_by_id(self) -> None:
        saver = self.open()
        first = made({"n": 1})
        second = made({"n": 2})
        saver.put(CONFIG, first)
        saver.put(make_config("other"), second)
        assert_same_checkpoint(saver.get(make_config("t", first.id)), first)
        assert_same(saver.get(make_config("t", second.id)), None)
        assert_same(saver.get(make_config("t", first.id, "elsewhere")), None)
        assert_same(saver.get(make_config("t", "")), None)

    def test_every_field_is_stored(self) -> None:
        saver = self.open()
        when = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=5)))
        metadata = {"step": 3, "who": ("a", 1), "when": when, "none": None, "deep": {"list": [1.5, b"x"]}}
        checkpoints = [
            made({"x": 1}, node_id=START, next_node_id="first", id="the id / of \0 mine"),
            made({}, node_id="first", next_node_id=None, parent_id="the id / of \0 mine", created_at=when),
            made({"x": None}, node_id="last", next_node_id=END, metadata=metadata),
        ]
        for checkpoint in checkpoints:
            saver.put(CONFIG, checkpoint)
        self.assert_history(saver, CONFIG, checkpoints)
        loaded = assert_not_none(saver.get(CONFIG))
        assert_same(loaded.metadata, metadata)
        assert_equal((loaded.node_id, loaded.next_node_id), ("last", END))

    def test_a_config_without_a_thread_id_uses_the_default_thread(self) -> None:
        saver = self.open()
        checkpoint = made({"x": 1})
        saver.put(None, checkpoint)
        assert_equal(saver.THREAD_ID_DEFAULT, "$default")
        ways: list[ConfigLike] = [None, RunnableConfig(), {}, {"configurable": {}}, make_config("$default")]
        for config in ways:
            assert_equal(get_ids(saver.list(config)), [checkpoint.id], f"the ids of the history of {config!r}")
            assert_not_none(saver.get(config))
        second = made({"x": 2})
        saver.put({"configurable": {}}, second)
        self.assert_history(saver, make_config("$default"), [checkpoint, second])
        assert_same(saver.get(make_config("default")), None)

    def test_a_langgraph_config_is_accepted(self) -> None:
        saver = self.open()
        where = {"thread_id": "t", "checkpoint_ns": "n"}
        first = made({"n": 1})
        second = made({"n": 2})
        stored = saver.put({"configurable": where}, first)
        saver.put({"configurable": where}, second)
        assert_equal(stored["configurable"]["checkpoint_id"], first.id)
        assert_same_checkpoint(saver.get({"configurable": {**where, "checkpoint_id": first.id}}), first)
        assert_same_checkpoint(saver.get({"configurable": where}), second)
        assert_same_checkpoint(saver.get(make_config("t", namespace="n")), second)
        replacing = made({"n": 3})
        saver.put({"configurable": {**where, "checkpoint_id": first.id}}, replacing)
        self.assert_history(saver, make_config("t", namespace="n"), [replacing, second])

    # Replacing

    def test_replace_keeps_the_position(self) -> None:
        for position in range(3):
            saver = self.open()
            checkpoints = [made({"n": n, "list": [*range(n)]}) for n in range(3)]
            for checkpoint in checkpoints:
                saver.put(CONFIG, checkpoint)
            config = make_config("t", checkpoints[position].id)
            checkpoints[position] = made({"n": "replaced"}, id=checkpoints[position].id, node_id="r")
            assert_equal(saver.put(config, checkpoints[position]), config)
            self.assert_history(saver, CONFIG, checkpoints)

    def test_replace_may_change_the_id(self) -> None:
        saver = self.open()
        checkpoints = [made({"n": n}) for n in range(3)]
        for checkpoint in checkpoints:
            saver.put(CONFIG, checkpoint)
        old, checkpoints[1] = checkpoints[1], made({"n": "new"})
        config = make_config("t", old.id)
        assert_equal(saver.put(config, checkpoints[1]), config)
        self.assert_history(saver, CONFIG, checkpoints)
        assert_same(saver.get(config), None)
        with self.raises(CheckpointNotFoundError):
            saver.put(config, made({"n": "again"}))

    def test_replace_leaves_derived_checkpoints_unchanged(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 8)
        for position in (3, 0, 7):
            replacing = made({"list": ["r"]}, id=checkpoints[position].id)
            saver.put(make_config("t", checkpoints[position].id), replacing)
            checkpoints[position] = replacing
            self.assert_history(saver, CONFIG, checkpoints)
        following = derive(checkpoints[-1], {"list": ["next"]}, GROWING)
        saver.put(CONFIG, following)
        self.assert_history(saver, CONFIG, [*checkpoints, following])

    def test_replace_of_an_unknown_checkpoint_raises(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        with self.assert_unchanged(saver, CONFIG), self.raises(CheckpointNotFoundError) as caught:
            saver.put(make_config("t", "unknown"), made({"n": 2}))
        assert_isinstance(caught.error, LookupError)
        assert_equal(caught.error.thread_id, "t")
        with self.raises(CheckpointNotFoundError):
            saver.put(make_config("never used", "unknown"), made({"n": 2}))
        assert_same(saver.get(make_config("never used")), None)

    # History

    def test_history_has_every_field_but_the_state(self) -> None:
        saver = self.open()
        checkpoints = [
            made({"n": 1}, node_id=START, next_node_id="x", metadata={"user": "u", "when": date(2026, 1, 1)}),
            made({"n": 2}, node_id="x", next_node_id=None),
            made({"n": 3}, node_id="y", next_node_id=END),
        ]
        for checkpoint in checkpoints:
            saver.put(make_config("t", namespace="n"), checkpoint)
        for reader in (saver, self.open_again(saver)):
            infos = reader.history(make_config("t", namespace="n"))
            for info, checkpoint in zip(infos, reversed(checkpoints), strict=True):
                assert_equal((info.thread_id, info.checkpoint_ns, info.tags), ("t", "n", ()))
                assert_equal((info.id, info.parent_id), (checkpoint.id, checkpoint.parent_id))
                assert_equal((info.node_id, info.next_node_id), (checkpoint.node_id, checkpoint.next_node_id))
                assert_same(info.created_at, checkpoint.created_at)
                assert_same(info.metadata, checkpoint.metadata)
                assert_isinstance(info.size, int)
                assert_true(info.size >= 0, f"a checkpoint has the size {info.size}")
            assert_equal([info.status for info in infos], ["finished", "", ""])
