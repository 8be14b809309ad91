"""Released histories are kept as versions; skipped for savers without versions."""

from __future__ import annotations

from typing import Any

from graphkit._saver.capabilities import HasVersions
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing import _check as check
from graphkit.testing._contract.base import ContractTests
from graphkit.testing._values import CONFIG, HOSTILE_IDS, NESTED, OTHER, grow_list, make_config, put_state


class VersionTests(ContractTests):
    """Tests the promises of `HasVersions`."""

    def test_release_creates_a_version(self) -> None:
        saver = self.open_versioned()
        first = grow_list(saver, CONFIG, 3)
        check.equal(saver.release(CONFIG).version, 1)

        second = put_state(saver, {"n": "second"})
        put_state(saver, {"n": "inner"}, NESTED)
        check.equal(saver.release(CONFIG).version, 2)

        readers: list[Any] = [saver, self.open_again(saver)]

        for reader in readers:
            check.instance(reader, HasVersions)
            assert_versions(reader, "t", [1, 2])
            assert_versions(reader, CONFIG, [1, 2])
            check.equal(reader.last_version_by_thread_id("t"), 2)
            check.equal(reader.get_version(CONFIG), "2")

            tag = reader.tag(CONFIG, 1)
            check.equal(tag.thread_id, "t")
            check.equal(tag.version, 1)
            check.checkpoints(tag.checkpoints, first)

            # Without a number, the tag is that of the last version.
            for version in (2, None):
                tag = reader.tag(CONFIG, version)
                check.equal(tag.version, 2)
                check.checkpoints(tag.checkpoints, [second])

    def test_an_empty_release_creates_no_version(self) -> None:
        saver = self.open_versioned()
        tag = saver.release(CONFIG)
        check.same(tag.version, None)

        put_state(saver, {"n": 1})
        saver.release(CONFIG)
        tag = saver.release(CONFIG)
        check.same(tag.version, None)

        reader = self.open_again(saver)
        assert_versions(reader, "t", [1])

    def test_an_unknown_version_raises(self) -> None:
        saver = self.open_versioned()
        assert_versions(saver, "t", [])
        check.same(saver.last_version_by_thread_id("t"), None)
        check.same(saver.get_version(CONFIG), None)

        with self.raises(CheckpointNotFoundError):
            saver.tag(CONFIG)

        put_state(saver, {"n": 1})
        saver.release(CONFIG)
        for version in (0, 2, -1, 99):
            with self.raises(CheckpointNotFoundError):
                saver.tag(CONFIG, version)

        # A thread whose id looks like the name of a version is another thread.
        with self.raises(CheckpointNotFoundError):
            saver.tag(make_config("t-v1"), 1)

    def test_versions_of_threads_are_isolated(self) -> None:
        saver = self.open_versioned()

        for thread in HOSTILE_IDS:
            config = make_config(thread)
            put_state(saver, {"id": thread}, config)
            saver.release(config)

        for thread in HOSTILE_IDS:
            config = make_config(thread)
            assert_versions(saver, thread, [1])

            tag = saver.tag(config, 1)
            check.same(tag.checkpoints[0].state, {"id": thread})
            check.missing(saver, config)

    def test_released_threads_are_listed_until_deleted(self) -> None:
        saver = self.open_versioned("lists_threads", "measures_size")
        released = make_config("released")
        both = make_config("both")
        for config in (released, both, make_config("live")):
            put_state(saver, {"n": 1}, config)
        saver.release(released)
        saver.release(both)
        put_state(saver, {"n": 2}, both)

        # `threads` lists a thread without checkpoints only on demand.
        reader = self.open_again(saver)

        check.threads(saver, "both", "live")
        check.threads(reader, "both", "live", "released", released=True)
        check.at_least(saver.size("released"), 1)

        # Deleting a thread deletes its versions.
        check.same(saver.delete("released"), True)
        check.same(saver.delete("released"), False)
        assert_versions(saver, "released", [])
        check.threads(saver, "both", "live", released=True)

        with self.raises(CheckpointNotFoundError):
            saver.tag(released, 1)

        # The versions of the new thread start at 1 again.
        put_state(saver, {"n": 3}, released)
        tag = saver.release(released)
        check.equal(tag.version, 1)

    def test_copy_copies_no_versions(self) -> None:
        saver = self.open_versioned()

        for thread in ("t", "u"):
            config = make_config(thread)
            put_state(saver, {"n": thread}, config)
            saver.release(config)

        put_state(saver, {"n": 2})
        saver.release(CONFIG)
        put_state(saver, {"n": 3})

        saver.copy("t", "u")

        # The target keeps the versions it had.
        assert_versions(saver, "u", [1])

        tag = saver.tag(OTHER)
        check.same(tag.checkpoints[0].state, {"n": "u"})

        tag = saver.release(OTHER)
        check.equal(tag.version, 2)


def assert_versions(saver: Any, thread: Any, expected: list[int]) -> None:
    """Assert that a thread has exactly these versions."""
    versions = saver.versions_by_thread_id(thread)
    check.items(versions, expected, "versions")
