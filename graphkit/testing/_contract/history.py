"""One history: a checkpoint that was put is read back whole and in order."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

from graphkit._records.config import END, START, ConfigLike, RunnableConfig, StreamMode
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing._contract.base import ContractTests, get_ids
from graphkit.testing._values import (
    CONFIG,
    GROWING,
    derive,
    equal,
    expect,
    grow_list,
    is_a,
    made,
    make_config,
    present,
    same,
    same_checkpoint,
)


class HistoryTests(ContractTests):
    """Putting, reading and replacing checkpoints."""

    # Put, get, list

    def test_an_unknown_thread_is_empty(self) -> None:
        saver = self.open()
        equal([*saver.list(CONFIG)], [])
        same(saver.get(CONFIG), None)
        same(saver.get(make_config("t", "some id")), None)
        equal([*saver.history(CONFIG)], [])
        equal(dict(saver.get_writes(CONFIG)), {})
        equal(saver.tags_of(CONFIG), ())
        equal([*saver.namespaces("t")], [])

    def test_put_returns_the_config_with_the_new_id_and_all_else_as_it_was(self) -> None:
        saver = self.open()
        config = RunnableConfig("t", checkpoint_ns="n", stream_mode=StreamMode.SNAPSHOTS, metadata={"user": 7})
        checkpoint = made({"x": 1})
        stored = saver.put(config, checkpoint)
        equal(stored.checkpoint_id, checkpoint.id)
        equal(stored.replace(checkpoint_id=None), config)
        same_checkpoint(saver.get(stored), checkpoint)

    def test_the_order_is_that_of_writing_not_of_clocks_or_ids(self) -> None:
        saver = self.open()
        now = datetime(2026, 1, 1, tzinfo=UTC)
        checkpoints = [made({"n": n}, id=f"id {9 - n}", created_at=now - timedelta(hours=n)) for n in range(5)]
        for checkpoint in checkpoints:
            saver.put(CONFIG, checkpoint)
        self.assert_history(saver, CONFIG, checkpoints)

    def test_equal_states_are_different_checkpoints(self) -> None:
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
        same_checkpoint(saver.get(make_config("t", first.id)), first)
        same(saver.get(make_config("t", second.id)), None)
        same(saver.get(make_config("t", first.id, "elsewhere")), None)
        same(saver.get(make_config("t", "")), None)

    def test_every_field_survives(self) -> None:
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
        loaded = present(saver.get(CONFIG))
        same(loaded.metadata, metadata)
        equal((loaded.node_id, loaded.next_node_id), ("last", END))

    def test_a_missing_thread_id_is_the_default_thread(self) -> None:
        saver = self.open()
        checkpoint = made({"x": 1})
        saver.put(None, checkpoint)
        equal(saver.THREAD_ID_DEFAULT, "$default")
        ways: list[ConfigLike] = [None, RunnableConfig(), {}, {"configurable": {}}, make_config("$default")]
        for config in ways:
            equal(get_ids(saver.list(config)), [checkpoint.id], f"the ids of the history of {config!r}")
            present(saver.get(config))
        second = made({"x": 2})
        saver.put({"configurable": {}}, second)
        self.assert_history(saver, make_config("$default"), [checkpoint, second])
        same(saver.get(make_config("default")), None)

    def test_a_config_may_be_langgraphs(self) -> None:
        saver = self.open()
        where = {"thread_id": "t", "checkpoint_ns": "n"}
        first = made({"n": 1})
        second = made({"n": 2})
        stored = saver.put({"configurable": where}, first)
        saver.put({"configurable": where}, second)
        equal(stored["configurable"]["checkpoint_id"], first.id)
        same_checkpoint(saver.get({"configurable": {**where, "checkpoint_id": first.id}}), first)
        same_checkpoint(saver.get({"configurable": where}), second)
        same_checkpoint(saver.get(make_config("t", namespace="n")), second)
        replacing = made({"n": 3})
        saver.put({"configurable": {**where, "checkpoint_id": first.id}}, replacing)
        self.assert_history(saver, make_config("t", namespace="n"), [replacing, second])

    # Replacing

    def test_replacing_keeps_the_position(self) -> None:
        for position in range(3):
            saver = self.open()
            checkpoints = [made({"n": n, "list": [*range(n)]}) for n in range(3)]
            for checkpoint in checkpoints:
                saver.put(CONFIG, checkpoint)
            config = make_config("t", checkpoints[position].id)
            checkpoints[position] = made({"n": "replaced"}, id=checkpoints[position].id, node_id="r")
            equal(saver.put(config, checkpoints[position]), config)
            self.assert_history(saver, CONFIG, checkpoints)

    def test_replacing_may_change_the_id(self) -> None:
        saver = self.open()
        checkpoints = [made({"n": n}) for n in range(3)]
        for checkpoint in checkpoints:
            saver.put(CONFIG, checkpoint)
        old, checkpoints[1] = checkpoints[1], made({"n": "new"})
        config = make_config("t", old.id)
        equal(saver.put(config, checkpoints[1]), config)
        self.assert_history(saver, CONFIG, checkpoints)
        same(saver.get(config), None)
        with self.raises(CheckpointNotFoundError):
            saver.put(config, made({"n": "again"}))

    def test_replacing_changes_no_checkpoint_that_grew_from_it(self) -> None:
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

    def test_replacing_what_is_not_there_changes_nothing(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        with self.assert_unchanged(saver, CONFIG), self.raises(CheckpointNotFoundError) as caught:
            saver.put(make_config("t", "unknown"), made({"n": 2}))
        is_a(caught.error, LookupError)
        equal(caught.error.thread_id, "t")
        with self.raises(CheckpointNotFoundError):
            saver.put(make_config("never used", "unknown"), made({"n": 2}))
        same(saver.get(make_config("never used")), None)

    # History

    def test_history_tells_all_but_the_state(self) -> None:
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
                equal((info.thread_id, info.checkpoint_ns, info.tags), ("t", "n", ()))
                equal((info.id, info.parent_id), (checkpoint.id, checkpoint.parent_id))
                equal((info.node_id, info.next_node_id), (checkpoint.node_id, checkpoint.next_node_id))
                same(info.created_at, checkpoint.created_at)
                same(info.metadata, checkpoint.metadata)
                is_a(info.size, int)
                expect(info.size >= 0, f"a checkpoint has the size {info.size}")
            equal([info.status for info in infos], ["finished", "", ""])
