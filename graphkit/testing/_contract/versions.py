"""Released histories are kept as versions. Skipped for savers without versions."""

from __future__ import annotations

from graphkit._saver.versions import HasVersions
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing._contract.base import SaverTests
from graphkit.testing._values import HOSTILE_IDS, at, grow_list, made, same, same_checkpoint


class VersionTests(SaverTests):
    """Keep, list and read versions."""

    def test_a_release_keeps_a_version(self) -> None:
        saver = self.open_versioned()
        first = grow_list(saver, at(), 3)
        assert saver.release(at()).version == 1
        second = made({"n": "second"})
        saver.put(at(), second)
        saver.put(at("t", None, "n"), made({"n": "inner"}))
        assert saver.release(at()).version == 2  # noqa: PLR2004
        for reader in (saver, self.open_again(saver)):
            assert isinstance(reader, HasVersions)
            assert [*reader.versions_by_thread_id("t")] == [1, 2]
            assert [*reader.versions_by_thread_id(at("t"))] == [1, 2]
            assert reader.last_version_by_thread_id("t") == 2  # noqa: PLR2004
            assert reader.get_version(at("t")) == "2"
            tag = reader.tag(at("t"), 1)
            assert (tag.thread_id, tag.version, len(tag.checkpoints)) == ("t", 1, 3)
            for found, expected in zip(tag.checkpoints, reversed(first), strict=True):
                same_checkpoint(found, expected)
            for version in (2, None):
                tag = reader.tag(at("t"), version)
                assert (tag.version, len(tag.checkpoints)) == (2, 1)
                same_checkpoint(tag.checkpoints[0], second)

    def test_an_empty_release_makes_no_version(self) -> None:
        saver = self.open_versioned()
        assert saver.release(at()).version is None
        saver.put(at(), made({"n": 1}))
        saver.release(at())
        assert saver.release(at()).version is None
        assert [*self.open_again(saver).versions_by_thread_id("t")] == [1]  # type: ignore[attr-defined]

    def test_an_unknown_version_is_an_error(self) -> None:
        saver = self.open_versioned()
        assert [*saver.versions_by_thread_id("t")] == []
        assert saver.last_version_by_thread_id("t") is None
        assert saver.get_version(at()) is None
        with self.raises(CheckpointNotFoundError):
            saver.tag(at())
        saver.put(at(), made({"n": 1}))
        saver.release(at())
        for version in (0, 2, -1, 99):
            with self.raises(CheckpointNotFoundError):
                saver.tag(at(), version)
        with self.raises(CheckpointNotFoundError):
            saver.tag(at("t-v1"), 1)

    def test_versions_of_threads_are_apart(self) -> None:
        saver = self.open_versioned()
        for thread in HOSTILE_IDS:
            saver.put(at(thread), made({"id": thread}))
            saver.release(at(thread))
        for thread in HOSTILE_IDS:
            assert [*saver.versions_by_thread_id(thread)] == [1]
            same(saver.tag(at(thread), 1).checkpoints[0].state, {"id": thread})
            assert saver.get(at(thread)) is None

    def test_released_threads_are_listed_on_demand_until_deleted(self) -> None:
        saver = self.open_versioned("lists_threads", "measures_size")
        for thread in ("released", "both", "live"):
            saver.put(at(thread), made({"n": 1}))
        saver.release(at("released"))
        saver.release(at("both"))
        saver.put(at("both"), made({"n": 2}))
        assert sorted(saver.threads()) == ["both", "live"]
        assert sorted(self.open_again(saver).threads(released=True)) == ["both", "live", "released"]
        assert saver.size("released") > 0
        assert saver.delete("released") is True
        assert saver.delete("released") is False
        assert [*saver.versions_by_thread_id("released")] == []
        assert sorted(saver.threads(released=True)) == ["both", "live"]
        with self.raises(CheckpointNotFoundError):
            saver.tag(at("released"), 1)
        saver.put(at("released"), made({"n": 3}))
        assert saver.release(at("released")).version == 1

    def test_copy_takes_no_versions_along_and_leaves_those_of_the_target(self) -> None:
        saver = self.open_versioned()
        for thread in ("t", "u"):
            saver.put(at(thread), made({"n": thread}))
            saver.release(at(thread))
        saver.put(at("t"), made({"n": 2}))
        saver.release(at("t"))
        saver.put(at("t"), made({"n": 3}))
        saver.copy("t", "u")
        assert [*saver.versions_by_thread_id("u")] == [1]
        same(saver.tag(at("u")).checkpoints[0].state, {"n": "u"})
        assert saver.release(at("u")).version == 2  # noqa: PLR2004

    def test_the_old_names_of_versions(self) -> None:
        saver = self.open_versioned()
        saver.put(at(), made({"n": 1}))
        saver.release(at())
        assert [*saver.versionsByThreadId("t")] == [1]
        assert saver.lastVersionByThreadId("t") == 1
        assert saver.getVersion(at()) == "1"
