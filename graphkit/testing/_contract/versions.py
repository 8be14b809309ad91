"""Released histories are kept as versions; skipped for savers without versions."""

from __future__ import annotations

from typing import Any

from graphkit._saver.versions import HasVersions
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing._contract.base import ContractTests
from graphkit.testing._values import (
    CONFIG,
    HOSTILE_IDS,
    assert_at_least,
    assert_equal,
    assert_isinstance,
    assert_same,
    assert_same_checkpoint,
    grow_list,
    made,
    make_config,
)


class VersionTests(ContractTests):
    """Tests the promises of `HasVersions`."""

    def test_release_creates_a_version(self) -> None:
        saver = self.open_versioned()
        first = grow_list(saver, CONFIG, 3)
        assert_equal(saver.release(CONFIG).version, 1)
        second = made({"n": "second"})
        saver.put(CONFIG, second)
        saver.put(make_config("t", namespace="n"), made({"n": "inner"}))
        assert_equal(saver.release(CONFIG).version, 2)
        readers: list[Any] = [saver, self.open_again(saver)]
        for reader in readers:
            assert_isinstance(reader, HasVersions)
            assert_equal([*reader.versions_by_thread_id("t")], [1, 2])
            assert_equal([*reader.versions_by_thread_id(CONFIG)], [1, 2])
            assert_equal(reader.last_version_by_thread_id("t"), 2)
            assert_equal(reader.get_version(CONFIG), "2")
            tag = reader.tag(CONFIG, 1)
            assert_equal((tag.thread_id, tag.version, len(tag.checkpoints)), ("t", 1, 3))
            for loaded, expected in zip(tag.checkpoints, reversed(first), strict=True):
                assert_same_checkpoint(loaded, expected)
            for version in (2, None):
                tag = reader.tag(CONFIG, version)
                assert_equal((tag.version, len(tag.checkpoints)), (2, 1))
                assert_same_checkpoint(tag.checkpoints[0], second)

    def test_an_empty_release_creates_no_version(self) -> None:
        saver = self.open_versioned()
        assert_same(saver.release(CONFIG).version, None)
        saver.put(CONFIG, made({"n": 1}))
        saver.release(CONFIG)
        assert_same(saver.release(CONFIG).version, None)
        assert_equal([*self.open_again(saver).versions_by_thread_id("t")], [1])  # type: ignore[attr-defined]

    def test_an_unknown_version_raises(self) -> None:
        saver = self.open_versioned()
        assert_equal([*saver.versions_by_thread_id("t")], [])
        assert_same(saver.last_version_by_thread_id("t"), None)
        assert_same(saver.get_version(CONFIG), None)
        with self.raises(CheckpointNotFoundError):
            saver.tag(CONFIG)
        saver.put(CONFIG, made({"n": 1}))
        saver.release(CONFIG)
        for version in (0, 2, -1, 99):
            with self.raises(CheckpointNotFoundError):
                saver.tag(CONFIG, version)
        with self.raises(CheckpointNotFoundError):
            saver.tag(make_config("t-v1"), 1)

    def test_versions_of_threads_are_isolated(self) -> None:
        saver = self.open_versioned()
        for thread in HOSTILE_IDS:
            saver.put(make_config(thread), made({"id": thread}))
            saver.release(make_config(thread))
        for thread in HOSTILE_IDS:
            assert_equal([*saver.versions_by_thread_id(thread)], [1])
            assert_same(saver.tag(make_config(thread), 1).checkpoints[0].state, {"id": thread})
            assert_same(saver.get(make_config(thread)), None)

    def test_released_threads_are_listed_until_deleted(self) -> None:
        saver = self.open_versioned("lists_threads", "measures_size")
        for thread in ("released", "both", "live"):
            saver.put(make_config(thread), made({"n": 1}))
        saver.release(make_config("released"))
        saver.release(make_config("both"))
        saver.put(make_config("both"), made({"n": 2}))
        assert_equal(sorted(saver.threads()), ["both", "live"])
        assert_equal(sorted(self.open_again(saver).threads(released=True)), ["both", "live", "released"])
        assert_at_least(saver.size("released"), 1)
        assert_same(saver.delete("released"), True)
        assert_same(saver.delete("released"), False)
        assert_equal([*saver.versions_by_thread_id("released")], [])
        assert_equal(sorted(saver.threads(released=True)), ["both", "live"])
        with self.raises(CheckpointNotFoundError):
            saver.tag(make_config("released"), 1)
        saver.put(make_config("released"), made({"n": 3}))
        assert_equal(saver.release(make_config("released")).version, 1)

    def test_copy_copies_no_versions(self) -> None:
        saver = self.open_versioned()
        for thread in ("t", "u"):
            saver.put(make_config(thread), made({"n": thread}))
            saver.release(make_config(thread))
        saver.put(CONFIG, made({"n": 2}))
        saver.release(CONFIG)
        saver.put(CONFIG, made({"n": 3}))
        saver.copy("t", "u")
        assert_equal([*saver.versions_by_thread_id("u")], [1])
        assert_same(saver.tag(make_config("u")).checkpoints[0].state, {"n": "u"})
        assert_equal(saver.release(make_config("u")).version, 2)

    def test_the_java_names_of_versions(self) -> None:
        saver = self.open_versioned()
        saver.put(CONFIG, made({"n": 1}))
        saver.release(CONFIG)
        assert_equal([*saver.versionsByThreadId("t")], [1])
        assert_equal(saver.lastVersionByThreadId("t"), 1)
        assert_equal(saver.getVersion(CONFIG), "1")
