"""Threads and namespaces: kept apart by any name, until they are released or deleted; and the versions of releases."""

from __future__ import annotations

from itertools import product
from typing import Any

from graphkit._records.checkpoint import Checkpoint, Tag
from graphkit._records.config import RunnableConfig, ThreadLike
from graphkit._saver.capabilities import HasVersions
from graphkit._saver.incomplete import IncomingThread, StoredCheckpoint
from graphkit.errors import CheckpointConflictError, CheckpointerConfigurationError, CheckpointNotFoundError
from graphkit.testing import _check as check
from graphkit.testing._contract.base import ContractTests
from graphkit.testing._values import (
    CONFIG,
    HOSTILE_IDS,
    NESTED,
    OTHER,
    config_of,
    grow_list,
    made,
    put_checkpoint,
    put_state,
)


class ThreadTests(ContractTests):
    """Releasing, listing, deleting and measuring threads."""

    # Release

    def test_release_returns_the_history_and_empties_the_thread(self) -> None:
        """`release` returns the history of the thread and leaves nothing of it, pending writes included."""
        saver = self.open()
        other_config = RunnableConfig("other")
        checkpoints = grow_list(saver, CONFIG, 4)
        latest = checkpoints[-1]
        saver.put_writes(CONFIG, {"w": 1})
        put_checkpoint(saver, other_config)

        tag = saver.release(CONFIG)

        check.assert_instance(tag, Tag)
        check.assert_equal(tag.thread_id, "t")
        check.assert_checkpoints(tag.checkpoints, checkpoints)
        self.assert_history(saver, CONFIG, [])
        check.assert_length(saver.list(other_config), 1, "the checkpoints of list")

        # The thread begins again, also if an id occurs again, and the tag does not change.
        fresh = put_checkpoint(saver, id=latest.id)
        self.assert_history(saver, CONFIG, [fresh])
        for reader in self.readers_of(saver):
            check.assert_no_writes(reader, config_of(latest))
        check.assert_same_checkpoint(tag.checkpoints[0], latest)

    def test_release_of_an_empty_thread_returns_an_empty_tag(self) -> None:
        """`release` of a thread that does not exist is no error."""
        saver = self.open()

        for _ in range(2):
            tag = saver.release(CONFIG)
            check.assert_equal(tag.thread_id, "t")
            check.assert_length(tag.checkpoints, 0, "the checkpoints of the tag")
            check.assert_equal(tag.version, None, "the version of the tag")

        check.assert_missing(saver)

    def test_release_covers_every_namespace_and_returns_the_root(self) -> None:
        """`release` empties all namespaces of a thread, whichever the config names."""
        saver = self.open()
        inner_config = RunnableConfig("t", checkpoint_ns="n/m")
        root = put_checkpoint(saver)
        put_checkpoint(saver, inner_config)

        tag = saver.release(inner_config)

        check.assert_checkpoints(tag.checkpoints, [root])
        self.assert_history(saver, CONFIG, [])
        self.assert_history(saver, inner_config, [])
        check.assert_length(saver.namespaces("t"), 0, "namespaces")

    # Threads and namespaces

    def test_threads_and_namespaces_are_isolated(self) -> None:
        """Threads and namespaces share no checkpoints, pending writes or tags, also with equal ids."""
        saver = self.open()
        places = product(("t", "u"), ("", "n", "n/m", "N"))
        configs = [RunnableConfig(thread, checkpoint_ns=namespace) for thread, namespace in places]
        histories: list[list[Checkpoint]] = [[] for _ in configs]

        # The histories grow in turns, and their checkpoints have the same ids.
        for shared_id in ("a", "b", "c"):
            for history, config in zip(histories, configs, strict=True):
                checkpoint = put_checkpoint(saver, config, id=shared_id)
                history.append(checkpoint)

        for config in configs:
            place = f"{config.thread}/{config.checkpoint_ns}"
            saver.put_writes(config, {"w": place})
            saver.add_tags(config, place)

        replaced_config = configs[1].replace(checkpoint_id="a")
        histories[1][0] = put_checkpoint(saver, replaced_config, id="a")

        for history, config in zip(histories, configs, strict=True):
            place = f"{config.thread}/{config.checkpoint_ns}"
            self.assert_history(saver, config, history)
            check.assert_writes(saver, config, {"w": place})
            check.assert_tags(saver, config, place)

    def test_namespaces_lists_those_with_checkpoints(self) -> None:
        """With `lists_namespaces`, `namespaces` finds every namespace of a thread."""
        saver = self.open("lists_namespaces")
        for namespace in ("n/m", "", "n"):
            config = RunnableConfig("t", checkpoint_ns=namespace)
            put_checkpoint(saver, config)

        for reader in self.readers_of(saver):
            # The namespace of a config does not restrict the list.
            for thread in ("t", NESTED):
                found = reader.namespaces(thread)
                check.assert_any_order(found, ["", "n", "n/m"], "namespaces")

            check.assert_length(reader.namespaces("u"), 0, "namespaces")

    def test_any_string_is_a_thread_id(self) -> None:
        """Every string is a thread id of its own: empty, very long, a path, a lone surrogate."""
        saver = self.open()
        for thread in HOSTILE_IDS:
            put_state(saver, {"id": thread}, RunnableConfig(thread))

        for reader in self.readers_of(saver):
            for thread in HOSTILE_IDS:
                config = RunnableConfig(thread)
                (loaded,) = reader.list(config)
                check.same(loaded.state, {"id": thread}, "state")

                (info,) = reader.history(config)
                check.assert_equal(info.thread_id, thread)

        # Releasing every second thread leaves the others, whose ids are similar.
        for thread in HOSTILE_IDS[::2]:
            tag = saver.release(RunnableConfig(thread))
            check.assert_length(tag.checkpoints, 1, "the checkpoints of the tag")

        for number, thread in enumerate(HOSTILE_IDS):
            listed = saver.list(RunnableConfig(thread))
            check.assert_length(listed, number % 2, "the checkpoints of list")

    def test_any_string_is_a_namespace(self) -> None:
        """Every string is a namespace of its own: empty, very long, a path, a lone surrogate."""
        saver = self.open()
        for namespace in HOSTILE_IDS:
            config = RunnableConfig("t", checkpoint_ns=namespace)
            put_state(saver, {"id": namespace}, config)

        for reader in self.readers_of(saver):
            for namespace in HOSTILE_IDS:
                config = RunnableConfig("t", checkpoint_ns=namespace)
                (loaded,) = reader.list(config)
                check.same(loaded.state, {"id": namespace}, "state")

    def test_threads_lists_those_with_checkpoints(self) -> None:
        """With `lists_threads`, `threads` finds every thread that has checkpoints, in any namespace."""
        saver = self.open("lists_threads")
        check.assert_threads(saver)

        inner_config = RunnableConfig("only inside", checkpoint_ns="n")
        put_checkpoint(saver, inner_config)
        for thread in HOSTILE_IDS:
            put_checkpoint(saver, RunnableConfig(thread))
        saver.release(RunnableConfig("a"))
        saver.delete("A")

        remaining = {*HOSTILE_IDS, "only inside"}
        remaining -= {"a", "A"}
        for reader in self.readers_of(saver):
            check.assert_threads(reader, *remaining)

    def test_delete_removes_every_namespace(self) -> None:
        """`delete` removes all of a thread, and returns whether there was anything."""
        saver = self.open("lists_namespaces", "lists_threads")
        inner_config = RunnableConfig("only inside", checkpoint_ns="n")

        for thread_id in ("t", "u", "$default"):
            config = RunnableConfig(thread_id)
            grow_list(saver, config, 3)
            saver.put_writes(config, {"w": 1})

        put_checkpoint(saver, NESTED)
        put_checkpoint(saver, inner_config)

        # Also a thread with several namespaces is listed once.
        check.assert_threads(saver, "t", "u", "$default", "only inside")

        # A thread is named by its id or by a config; None is the default thread.
        deleted: list[ThreadLike] = ["t", inner_config, None]
        for thread in deleted:
            check.same(saver.delete(thread), True, "delete")
            check.same(saver.delete(thread), False, "delete")

        reader = self.open_again(saver)
        check.assert_threads(reader, "u")
        check.assert_length(saver.list(OTHER), 3, "the checkpoints of list")
        self.assert_history(saver, CONFIG, [])
        self.assert_history(saver, NESTED, [])

        fresh = put_checkpoint(saver)
        self.assert_history(saver, CONFIG, [fresh])
        check.assert_no_writes(saver, CONFIG)

    # Capabilities

    def test_undeclared_threads_and_size_raise(self) -> None:
        """Without `lists_threads` or `measures_size`, `threads` or `size` raises."""
        saver = self.open()
        put_checkpoint(saver)
        if not saver.lists_threads:
            with self.raises(CheckpointerConfigurationError):
                saver.threads()

        if not saver.measures_size:
            with self.raises(CheckpointerConfigurationError):
                saver.size()

    # Incomplete threads

    def test_an_unfinished_copy_is_incomplete_and_can_be_replaced(self) -> None:
        """A thread that a copy has begun and not ended has the status "incomplete"."""
        saver = self.open()
        checkpoints = grow_list(saver, OTHER, 4)
        incoming = IncomingThread(saver, "t", "u")
        incoming.begin([""], checkpoints[0].state)
        for reader in self.readers_of(saver):
            check.assert_statuses(reader, CONFIG, "incomplete")

        # Every way to read the status agrees while the copy is under way.
        for checkpoint in checkpoints[:3]:
            incoming.put("", StoredCheckpoint(checkpoint))

        for reader in self.readers_of(saver):
            (latest,) = reader.recent(CONFIG, limit=1)
            summary = check.not_none(reader.summary(CONFIG), "summary")

            check.assert_equal(reader.history(CONFIG)[0].status, "incomplete")
            check.assert_equal(latest.status, "incomplete")
            check.assert_equal(summary.latest.status, "incomplete", "the status of the latest checkpoint")

        with self.raises(CheckpointConflictError):
            saver.copy("t", "new")

        # The copy never finishes; another one replaces it.
        saver.copy("u", "t")
        self.assert_history(saver, CONFIG, checkpoints)

    # Size

    def test_size(self) -> None:
        """With `measures_size`, `size` covers all namespaces of a thread, or all threads."""
        saver = self.open("measures_size")
        check.assert_equal(saver.size("t"), 0, "size")

        # The size is at least that of the text; what is stored around it may add to it.
        put_state(saver, {"text": "x" * 5_000})
        check.assert_at_least(saver.size("t"), 5_000)

        put_state(saver, {"text": "y" * 5_000})
        root_size = saver.size("t")
        check.assert_at_least(root_size, 10_000)

        # The size of a thread includes its namespaces, and the size of the store its threads.
        put_state(saver, {"text": "z" * 5_000}, NESTED)
        thread_size = saver.size(CONFIG)
        check.assert_at_least(thread_size, root_size + 5_000)

        put_state(saver, {"text": "u" * 5_000}, OTHER)
        other_size = saver.size("u")
        check.assert_at_least(saver.size(), thread_size + other_size)

        saver.delete("t")
        check.assert_equal(saver.size("t"), 0, "size")


class VersionTests(ContractTests):
    """Tests the promises of `HasVersions`."""

    def test_release_creates_a_version(self) -> None:
        """With `HasVersions`, each `release` of checkpoints makes the next version."""
        saver = self.open_with(HasVersions)
        # A nested graph has the name of its node as its namespace: savers that do not list namespaces find it, too.
        nested_config = RunnableConfig("t", checkpoint_ns="a")
        first = grow_list(saver, CONFIG, 3)
        nested = put_checkpoint(saver, nested_config)
        check.assert_equal(saver.release(CONFIG).version, 1, "the version of the tag")

        second = put_checkpoint(saver)
        check.assert_equal(saver.release(CONFIG).version, 2, "the version of the tag")
        # The thread is empty now, so that there is nothing to keep.
        check.same(saver.release(CONFIG).version, None, "the version of the tag")

        for reader in self.readers_of(saver):
            assert_versions(reader, "t", [1, 2])
            assert_versions(reader, CONFIG, [1, 2])
            check.assert_equal(reader.last_version_by_thread_id("t"), 2, "the last version")
            check.assert_equal(reader.get_version(CONFIG), "2", "the last version")

            tag = reader.tag(CONFIG, 1)
            check.assert_equal(tag.thread_id, "t")
            check.assert_equal(tag.version, 1, "the version of the tag")
            check.assert_checkpoints(tag.checkpoints, first)

            first_namespaces = reader.version_namespaces("t", 1)
            check.assert_any_order(first_namespaces, ["", "a"], "the namespaces of version 1")
            second_namespaces = reader.version_namespaces("t")
            check.assert_sequence_equal(second_namespaces, [""])
            check.assert_checkpoints(reader.tag(nested_config, 1).checkpoints, [nested])

            # Without a number, the tag is the one of the last version.
            for version in (2, None):
                tag = reader.tag(CONFIG, version)
                check.assert_equal(tag.version, 2, "the version of the tag")
                check.assert_checkpoints(tag.checkpoints, [second])

    def test_a_version_keeps_its_states(self) -> None:
        """With `HasVersions`, a version does not change when the thread goes on."""
        saver = self.open_with(HasVersions)
        first = put_checkpoint(saver)
        saver.copy("t", "backup")
        released = saver.release(CONFIG)

        # The history goes on from the backup, and is corrected in place.
        saver.copy("backup", "t")
        corrected = first.with_state(made().state)
        saver.put(config_of(first), corrected)
        saver.release(CONFIG)
        latest = put_checkpoint(saver, id=first.id)

        check.assert_checkpoints(released.checkpoints, [first])
        for reader in self.readers_of(saver):
            first_tag = reader.tag(CONFIG, 1)
            second_tag = reader.tag(CONFIG, 2)
            check.assert_checkpoints(first_tag.checkpoints, [first])
            check.assert_checkpoints(second_tag.checkpoints, [corrected])
            check.assert_checkpoints(reader.list(CONFIG), [latest])

        # The second copy kept the version of its target. A copy brings none along.
        saver.copy("t", "u")
        assert_versions(saver, "u", [])

    def test_an_unknown_version_raises(self) -> None:
        """With `HasVersions`, `tag` and `version_namespaces` raise for a version that does not exist."""
        saver = self.open_with(HasVersions)
        assert_versions(saver, "t", [])
        check.same(saver.last_version_by_thread_id("t"), None, "last_version_by_thread_id")
        check.same(saver.get_version(CONFIG), None, "get_version")

        with self.raises(CheckpointNotFoundError):
            saver.tag(CONFIG)

        put_checkpoint(saver)
        saver.release(CONFIG)
        for version in (0, 2, -1, 99):
            with self.raises(CheckpointNotFoundError):
                saver.tag(CONFIG, version)
            with self.raises(CheckpointNotFoundError):
                saver.version_namespaces("t", version)

        # A thread whose id looks like the name of a version is another thread.
        with self.raises(CheckpointNotFoundError):
            saver.tag(RunnableConfig("t-v1"), 1)

    def test_versions_of_threads_are_isolated(self) -> None:
        """With `HasVersions`, each thread has versions of its own, whatever its id."""
        saver = self.open_with(HasVersions)

        for thread in HOSTILE_IDS:
            config = RunnableConfig(thread)
            put_state(saver, {"id": thread}, config)
            saver.release(config)

        for thread in HOSTILE_IDS:
            config = RunnableConfig(thread)
            assert_versions(saver, thread, [1])

            tag = saver.tag(config, 1)
            check.same(tag.checkpoints[0].state, {"id": thread})
            check.assert_missing(saver, config)

    def test_released_threads_are_listed_until_deleted(self) -> None:
        """With `HasVersions`, `threads(released=True)` lists threads that have only versions."""
        saver = self.open_with(HasVersions, "lists_threads", "measures_size")
        released = RunnableConfig("released")
        both = RunnableConfig("both")
        for config in (released, both, RunnableConfig("live")):
            put_checkpoint(saver, config)
        saver.release(released)
        saver.release(both)
        put_checkpoint(saver, both)

        # `threads` lists a thread without checkpoints only on demand.
        reader = self.open_again(saver)

        check.assert_threads(saver, "both", "live")
        check.assert_threads(reader, "both", "live", "released", released=True)
        check.assert_at_least(saver.size("released"), 1)

        # Deleting a thread deletes its versions.
        check.same(saver.delete("released"), True, "delete")
        check.same(saver.delete("released"), False, "delete")
        assert_versions(saver, "released", [])
        check.assert_threads(saver, "both", "live", released=True)

        with self.raises(CheckpointNotFoundError):
            saver.tag(released, 1)

        # The versions of the new thread start at 1 again.
        put_checkpoint(saver, released)
        tag = saver.release(released)
        check.assert_equal(tag.version, 1, "the version of the tag")


def assert_versions(saver: Any, thread: Any, expected: list[int]) -> None:
    """Assert that a thread has exactly these versions."""
    versions = saver.versions_by_thread_id(thread)
    check.assert_sequence_equal(versions, expected, "versions")
