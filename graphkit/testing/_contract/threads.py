"""Threads and namespaces: separate from each other, under any name, until they are released or deleted."""

from __future__ import annotations

from graphkit._records.checkpoint import Tag
from graphkit._saver.thread_id import ThreadLike
from graphkit.errors import CheckpointerConfigurationError
from graphkit.testing._contract.base import SaverTests
from graphkit.testing._values import HOSTILE_IDS, at, grow_list, made, same, same_checkpoint


class ThreadTests(SaverTests):
    """Release, list, delete and measure threads."""

    # Release

    def test_release_returns_the_history_and_empties_the_thread(self) -> None:
        saver = self.open()
        checkpoints = grow_list(saver, at(), 4)
        saver.put(at("other"), made({"n": 1}))
        tag = saver.release(at())
        assert isinstance(tag, Tag)
        assert tag.thread_id == "t"
        assert len(tag.checkpoints) == len(checkpoints)
        for found, expected in zip(tag.checkpoints, reversed(checkpoints), strict=True):
            same_checkpoint(found, expected)
        self.assert_history(saver, at(), [])
        assert len(saver.list(at("other"))) == 1
        anew = made({"n": "anew"})
        saver.put(at(), anew)
        self.assert_history(saver, at(), [anew])
        same_checkpoint(tag.checkpoints[0], checkpoints[-1])

    def test_releasing_an_empty_thread_gives_an_empty_tag(self) -> None:
        saver = self.open()
        for _ in range(2):
            tag = saver.release(at())
            assert (tag.thread_id, [*tag.checkpoints], tag.version) == ("t", [], None)
        assert saver.get(at()) is None

    def test_release_covers_every_namespace_and_returns_the_root(self) -> None:
        saver = self.open()
        root, inner = made({"n": "root"}), made({"n": "inner"})
        saver.put(at("t"), root)
        saver.put(at("t", None, "n/m"), inner)
        tag = saver.release(at("t", None, "n/m"))
        assert [one.id for one in tag.checkpoints] == [root.id]
        self.assert_history(saver, at("t"), [])
        self.assert_history(saver, at("t", None, "n/m"), [])
        assert [*saver.namespaces("t")] == []

    # Threads and namespaces

    def test_threads_and_namespaces_are_worlds_apart(self) -> None:
        saver = self.open()
        places = [at(thread, None, namespace) for thread in ("t", "u") for namespace in ("", "n", "n/m", "N")]
        histories = [[made({"where": [number, n]}, id=f"id {n}") for n in range(3)] for number in range(len(places))]
        for n in range(3):
            for place, history in zip(places, histories, strict=True):
                saver.put(place, history[n])
                saver.put_writes(place, {"w": n})
        for place, history in zip(places, histories, strict=True):
            self.assert_history(saver, place, history)
        histories[1][0] = made({"where": "replaced"}, id="id 0")
        saver.put(places[1].replace(checkpoint_id="id 0"), histories[1][0])
        for place, history in zip(places, histories, strict=True):
            self.assert_history(saver, place, history)

    def test_namespaces_are_those_that_hold_checkpoints(self) -> None:
        saver = self.open("lists_namespaces")
        for namespace in ("n/m", "", "n"):
            saver.put(at("t", None, namespace), made({"n": namespace}))
        for reader in (saver, self.open_again(saver)):
            assert sorted(reader.namespaces("t")) == ["", "n", "n/m"]
            assert sorted(reader.namespaces(at("t", None, "n"))) == ["", "n", "n/m"]
            assert [*reader.namespaces("u")] == []

    def test_any_string_is_a_thread_id(self) -> None:
        saver = self.open()
        for thread in HOSTILE_IDS:
            saver.put(at(thread), made({"id": thread}))
        for reader in (saver, self.open_again(saver)):
            for thread in HOSTILE_IDS:
                (found,) = reader.list(at(thread))
                same(found.state, {"id": thread})
                assert reader.history(at(thread))[0].thread_id == thread
        for thread in HOSTILE_IDS[::2]:
            assert len(saver.release(at(thread)).checkpoints) == 1
        for number, thread in enumerate(HOSTILE_IDS):
            assert len(saver.list(at(thread))) == number % 2

    def test_any_string_is_a_namespace(self) -> None:
        saver = self.open()
        for namespace in HOSTILE_IDS:
            saver.put(at("t", None, namespace), made({"id": namespace}))
        for reader in (saver, self.open_again(saver)):
            for namespace in HOSTILE_IDS:
                (found,) = reader.list(at("t", None, namespace))
                same(found.state, {"id": namespace})

    def test_threads_lists_those_that_hold_checkpoints(self) -> None:
        saver = self.open("lists_threads")
        assert [*saver.threads()] == []
        for thread in HOSTILE_IDS:
            saver.put(at(thread), made({"n": 1}))
        saver.put(at("only inside", None, "n"), made({"n": 1}))
        saver.release(at("a"))
        saver.delete("A")
        for reader in (saver, self.open_again(saver)):
            assert sorted(reader.threads()) == sorted({*HOSTILE_IDS, "only inside"} - {"a", "A"})

    def test_delete_removes_every_namespace(self) -> None:
        saver = self.open("lists_namespaces", "lists_threads")
        for one in ("t", "u", "$default"):
            grow_list(saver, at(one), 3)
            saver.put_writes(at(one), {"w": 1})
        saver.put(at("t", None, "n"), made({"n": 1}))
        saver.put(at("only inside", None, "n"), made({"n": 1}))
        named: list[ThreadLike] = ["t", at("only inside"), None]
        for thread in named:
            assert saver.delete(thread) is True
            assert saver.delete(thread) is False
        assert [*self.open_again(saver).threads()] == ["u"]
        assert len(saver.list(at("u"))) == 3  # noqa: PLR2004
        for namespace in ("", "n"):
            self.assert_history(saver, at("t", None, namespace), [])
        anew = made({"n": "anew"})
        saver.put(at("t"), anew)
        self.assert_history(saver, at("t"), [anew])
        assert dict(saver.get_writes(at("t"))) == {}

    # Capabilities

    def test_what_a_saver_cannot_list_or_measure_is_an_error(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        if not saver.lists_threads:
            with self.raises(CheckpointerConfigurationError):
                saver.threads()
        if not saver.measures_size:
            with self.raises(CheckpointerConfigurationError):
                saver.size()

    # Size

    def test_size(self) -> None:
        saver = self.open("measures_size")
        assert saver.size("t") == 0
        saver.put(at("t"), made({"text": "x" * 5_000}))
        one = saver.size("t")
        assert one >= 5_000  # noqa: PLR2004
        saver.put(at("t"), made({"text": "y" * 5_000}))
        two = saver.size("t")
        assert two >= 10_000  # noqa: PLR2004
        saver.put(at("t", None, "n"), made({"text": "z" * 5_000}))
        assert saver.size(at("t")) >= two + 5_000
        saver.put(at("u"), made({"text": "u" * 5_000}))
        assert saver.size() >= saver.size("t") + saver.size("u")
        saver.delete("t")
        assert saver.size("t") == 0
