"""What is recorded beside a checkpoint: writes, interrupts, tags."""

from __future__ import annotations

from graphkit._abc import ANSWER, INTERRUPT
from graphkit._output import WaitingInterrupt
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing._contract.base import SaverTests
from graphkit.testing._values import at, made, same, stop


class BesideTests(SaverTests):
    """Writes, what waits, and tags."""

    # Writes

    def test_writes_are_merged_in_the_order_of_their_first_recording(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put_writes(at(), {"b": 1, "a": [2]})
        saver.put_writes(at(), {})
        saver.put_writes(at(), {"c": (3,), "b": None})
        for reader in (saver, self.again(saver)):
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
        for reader in (saver, self.again(saver)):
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
        for reader in (saver, self.again(saver)):
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
        with self.unchanged(saver, at()), self.raises(CheckpointNotFoundError):
            saver.put_writes(at("t", "unknown"), {"w": 1})

    def test_writes_are_gone_with_their_thread(self) -> None:
        saver = self.open()
        checkpoint = made({"n": 1})
        saver.put(at(), checkpoint)
        saver.put_writes(at(), {"w": 1})
        saver.release(at())
        saver.put(at(), made({"n": 1}, id=checkpoint.id))
        assert dict(saver.get_writes(at())) == {}
        assert dict(self.again(saver).get_writes(at("t", checkpoint.id))) == {}

    # Interrupts

    def test_what_waits_is_found_until_it_is_answered(self) -> None:
        saver = self.open()
        checkpoint = made({"n": 1})
        saver.put(at("t", None, "n"), checkpoint)
        saver.put(at("t"), made({"n": 2}))
        saver.put_writes(at("t", None, "n"), {INTERRUPT + "i1": stop("x", {"q": (1,)}), INTERRUPT + "i2": stop("y")})
        for reader in (saver, self.again(saver)):
            first, second = reader.interrupts("t")
            assert isinstance(first, WaitingInterrupt)
            assert (first.thread_id, first.checkpoint_ns, first.checkpoint_id) == ("t", "n", checkpoint.id)
            assert (first.node_id, first.when, first.id) == ("x", "inside", "i1")
            same(first.payload, {"q": (1,)})
            same(first.created_at, stop()["created_at"])
            assert second.id == "i2"
            assert [info.status for info in reader.history(at("t", None, "n"))] == ["interrupted"]
            assert len(reader.interrupts(at("t"))) == 2  # noqa: PLR2004
        saver.put_writes(at("t", checkpoint.id, "n"), {ANSWER + "i1": None})
        assert [one.id for one in self.again(saver).interrupts("t")] == ["i2"]
        saver.put_writes(at("t", checkpoint.id, "n"), {ANSWER + "i2": "yes"})
        assert [*self.again(saver).interrupts("t")] == []
        assert [info.status for info in saver.history(at("t", None, "n"))] == ["running"]

    def test_only_the_latest_checkpoint_waits(self) -> None:
        saver = self.open()
        saver.put(at(), made({"n": 1}))
        saver.put_writes(at(), {INTERRUPT + "i": stop()})
        assert len(saver.interrupts("t")) == 1
        saver.put(at(), made({"n": 2}))
        assert [*saver.interrupts("t")] == []
        assert [info.status for info in saver.history(at())] == ["running", "interrupted"]

    def test_what_waits_is_found_in_all_threads(self) -> None:
        saver = self.open()
        for thread in ("t", "u", "v"):
            saver.put(at(thread), made({"n": 1}))
        for thread in ("t", "v"):
            saver.put_writes(at(thread), {INTERRUPT + thread: stop()})
        assert sorted(one.thread_id for one in self.again(saver).interrupts()) == ["t", "v"]
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
        for reader in (saver, self.again(saver)):
            assert reader.tags_of(at("t", first.id)) == ("good", "best", "last")
            assert reader.tags_of(at()) == ("newest",)
            newest, oldest = reader.history(at())
            assert (newest.tags, oldest.tags) == (("newest",), ("good", "best", "last"))
            same(oldest.metadata, {"k": 1})
        saver.remove_tags(at("t", first.id), "best", "never there")
        saver.remove_tags(at(), "newest")
        for reader in (saver, self.again(saver)):
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
