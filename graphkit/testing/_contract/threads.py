"""Threads and namespaces: kept apart by any name, until they are released or deleted."""

from __future__ import annotations

from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import RunnableConfig
from graphkit._saver.arguments import ThreadLike
from graphkit._saver.incomplete import IncomingThread, StoredCheckpoint
from graphkit.errors import CheckpointerConfigurationError
from graphkit.testing._contract.base import ContractTests, get_ids
from graphkit.testing._values import (
    CONFIG,
    HOSTILE_IDS,
    assert_at_least,
    assert_equal,
    assert_isinstance,
    assert_not_none,
    assert_same,
    assert_same_checkpoint,
    grow_list,
    made,
    make_config,
)


class ThreadTests(ContractTests):
    """Releasing, listing, deleting and measuring threads."""

    # Release

    def test_release_returns_the_history_and_empties_the_thread(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, CONFIG, 4)
        saver.put(make_config("other"), made({"n": 1}))
        tag = saver.release(CONFIG)
        assert_isinstance(tag, Tag)
        assert_equal(tag.thread_id, "t")
        assert_equal(len(tag.checkpoints), len(checkpoints))
        for loaded, expected in zip(tag.checkpoints, reversed(checkpoints), strict=True):
            assert_same_checkpoint(loaded, expected)
        self.assert_history(saver, CONFIG, [])
        assert_equal(len(saver.list(make_config("other"))), 1)
        fresh = made({"n": "fresh"})
        saver.put(CONFIG, fresh)
        self.assert_history(saver, CONFIG, [fresh])
        assert_same_checkpoint(tag.checkpoints[0], checkpoints[-1])

    def test_release_of_an_empty_thread_returns_an_empty_tag(self) -> None:
        saver = self.open()
        for _ in range(2):
            tag = saver.release(CONFIG)
            assert_equal((tag.thread_id, [*tag.checkpoints], tag.version), ("t", [], None))
        assert_same(saver.get(CONFIG), None)

    def test_release_covers_every_namespace_and_returns_the_root(self) -> None:
        saver = self.open()
        root = made({"n": "root"})
        inner = made({"n": "inner"})
        saver.put(CONFIG, root)
        saver.put(make_config("t", namespace="n/m"), inner)
        tag = saver.release(make_config("t", namespace="n/m"))
        assert_equal(get_ids(tag.checkpoints), [root.id])
        self.assert_history(saver, CONFIG, [])
        self.assert_history(saver, make_config("t", namespace="n/m"), [])
        assert_equal([*saver.namespaces("t")], [])

    # Threads and namespaces

    def test_threads_and_namespaces_are_isolated(self) -> None:
        saver = self.open()
        namespaces = ("", "n", "n/m", "N")
        histories: list[tuple[RunnableConfig, list[Checkpoint]]] = []
        for thread in ("t", "u"):
            histories += [(make_config(thread, namespace=namespace), []) for namespace in namespaces]

        # The histories grow in turns, and their checkpoints have the same ids.
        for n in range(3):
            for number, (config, history) in enumerate(histories):
                checkpoint = made({"where": [number, n]}, id=f"id {n}")
                saver.put(config, checkpoint)
                saver.put_writes(config, {"w": n})
                history.append(checkpoint)
        for config, history in histories:
            self.assert_history(saver, config, history)

        config, history = histories[1]
        history[0] = made({"where": "replaced"}, id="id 0")
        saver.put(config.replace(checkpoint_id="id 0"), history[0])
        for config, history in histories:
            self.assert_history(saver, config, history)

    def test_namespaces_lists_those_with_checkpoints(self) -> None:
        saver = self.open("lists_namespaces")
        for namespace in ("n/m", "", "n"):
            saver.put(make_config("t", namespace=namespace), made({"n": namespace}))
        for reader in (saver, self.open_again(saver)):
            assert_equal(sorted(reader.namespaces("t")), ["", "n", "n/m"])
            assert_equal(sorted(reader.namespaces(make_config("t", namespace="n"))), ["", "n", "n/m"])
            assert_equal([*reader.namespaces("u")], [])

    def test_any_string_is_a_thread_id(self) -> None:
        saver = self.open()
        for thread in HOSTILE_IDS:
            saver.put(make_config(thread), made({"id": thread}))
        for reader in (saver, self.open_again(saver)):
            for thread in HOSTILE_IDS:
                (loaded,) = reader.list(make_config(thread))
                assert_same(loaded.state, {"id": thread})
                assert_equal(reader.history(make_config(thread))[0].thread_id, thread)
        for thread in HOSTILE_IDS[::2]:
            assert_equal(len(saver.release(make_config(thread)).checkpoints), 1)
        for number, thread in enumerate(HOSTILE_IDS):
            assert_equal(len(saver.list(make_config(thread))), number % 2)

    def test_any_string_is_a_namespace(self) -> None:
        saver = self.open()
        for namespace in HOSTILE_IDS:
            saver.put(make_config("t", namespace=namespace), made({"id": namespace}))
        for reader in (saver, self.open_again(saver)):
            for namespace in HOSTILE_IDS:
                (loaded,) = reader.list(make_config("t", namespace=namespace))
                assert_same(loaded.state, {"id": namespace})

    def test_threads_lists_those_with_checkpoints(self) -> None:
        saver = self.open("lists_threads")
        assert_equal([*saver.threads()], [])
        for thread in HOSTILE_IDS:
            saver.put(make_config(thread), made({"n": 1}))
        saver.put(make_config("only inside", namespace="n"), made({"n": 1}))
        saver.release(make_config("a"))
        saver.delete("A")
        for reader in (saver, self.open_again(saver)):
            assert_equal(sorted(reader.threads()), sorted({*HOSTILE_IDS, "only inside"} - {"a", "A"}))

    def test_delete_removes_every_namespace(self) -> None:
        saver = self.open("lists_namespaces", "lists_threads")
        for thread_id in ("t", "u", "$default"):
            grow_list(saver, make_config(thread_id), 3)
            saver.put_writes(make_config(thread_id), {"w": 1})
        saver.put(make_config("t", namespace="n"), made({"n": 1}))
        saver.put(make_config("only inside", namespace="n"), made({"n": 1}))
        named: list[ThreadLike] = ["t", make_config("only inside"), None]
        for thread in named:
            assert_same(saver.delete(thread), True)
            assert_same(saver.delete(thread), False)
        assert_equal([*self.open_again(saver).threads()], ["u"])
        assert_equal(len(saver.list(make_config("u"))), 3)
        for namespace in ("", "n"):
            self.assert_history(saver, make_config("t", namespace=namespace), [])
        fresh = made({"n": "fresh"})
        saver.put(CONFIG, fresh)
        self.assert_history(saver, CONFIG, [fresh])
        assert_equal(dict(saver.get_writes(CONFIG)), {})

    # Capabilities

    def test_undeclared_threads_and_size_raise(self) -> None:
        saver = self.open()
        saver.put(CONFIG, made({"n": 1}))
        if not saver.lists_threads:
            with self.raises(CheckpointerConfigurationError):
                saver.threads()
        if not saver.measures_size:
            with self.raises(CheckpointerConfigurationError):
                saver.size()

    # Incomplete threads

    def test_an_unfinished_copy_is_incomplete_and_can_be_replaced(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, make_config("u"), 4)
        state = checkpoints[0].state
        incoming = IncomingThread(saver, "t", "u")
        incoming.begin([""], state)
        for reader in (saver, self.open_again(saver)):
            assert_equal([info.status for info in reader.history(CONFIG)], ["incomplete"])
        for checkpoint in checkpoints[:3]:
            incoming.put("", StoredCheckpoint(checkpoint))
        for reader in (saver, self.open_again(saver)):
            assert_equal(reader.history(CONFIG)[0].status, "incomplete")
            assert_equal(reader.recent(CONFIG, limit=1)[0].status, "incomplete")
            assert_equal(assert_not_none(reader.summary(CONFIG)).latest.status, "incomplete")
        saver.copy("u", "t")
        self.assert_history(saver, CONFIG, checkpoints)

    def test_a_finished_copy_equals_its_source(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, make_config("u"), 4)
        incoming = IncomingThread(saver, "t", "u")
        incoming.begin([""], checkpoints[0].state)
        for checkpoint in checkpoints:
            incoming.put("", StoredCheckpoint(checkpoint, {"w": checkpoint.id}, ("tag",)))
        incoming.finish()
        self.assert_history(saver, CONFIG, checkpoints)
        for reader in (saver, self.open_again(saver)):
            infos = reader.history(CONFIG)
            assert_equal([info.status for info in infos], ["stalled", "", "", ""])
            for info in infos:
                address = make_config("t", info.id)
                assert_equal(reader.tags_of(address), ("tag",))
                assert_same(reader.get_writes(address), {"w": info.id})

    # Size

    def test_size(self) -> None:
        saver = self.open("measures_size")
        assert_equal(saver.size("t"), 0)
        saver.put(CONFIG, made({"text": "x" * 5_000}))
        assert_at_least(saver.size("t"), 5_000)
        saver.put(CONFIG, made({"text": "y" * 5_000}))
        size = saver.size("t")
        assert_at_least(size, 10_000)
        saver.put(make_config("t", namespace="n"), made({"text": "z" * 5_000}))
        assert_at_least(saver.size(CONFIG), size + 5_000)
        saver.put(make_config("u"), made({"text": "u" * 5_000}))
        assert_at_least(saver.size(), saver.size("t") + saver.size("u"))
        saver.delete("t")
        assert_equal(saver.size("t"), 0)
