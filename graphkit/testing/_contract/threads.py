"""Threads and namespaces: kept apart by any name, until they are released or deleted; and the versions of releases."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig, ThreadLike
from graphkit._saver.base import BaseCheckpointSaver
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
    in_namespace,
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
        checkpoints = grow_list(saver, 4)
        latest = checkpoints[-1]
        saver.put_writes(CONFIG, {"w": 1})
        other = put_checkpoint(saver, OTHER)

        tag = saver.release(CONFIG)

        check.assert_released(tag, checkpoints)
        self.assert_history(saver, [])
        check.assert_listed(saver, [other], OTHER)

        # The thread begins again, also if an id occurs again, and the tag does not change.
        fresh = put_checkpoint(saver, id=latest.id)
        self.assert_history(saver, [fresh])
        for reader in self.readers_of(saver):
            check.assert_no_writes(reader, config_of(latest))
        check.assert_released(tag, checkpoints)

    def test_release_of_an_empty_thread_returns_an_empty_tag(self) -> None:
        """`release` of a thread that does not exist is no error."""
        saver = self.open()

        for _ in range(2):
            tag = saver.release(CONFIG)
            check.assert_released(tag, [])
            check.assert_version(tag, None)

        check.assert_missing(saver)

    def test_release_covers_every_namespace_and_returns_the_root(self) -> None:
        """`release` empties all namespaces of a thread, whichever the config names."""
        saver = self.open()
        inner_config = in_namespace("n/m")
        root = put_checkpoint(saver)
        put_checkpoint(saver, inner_config)

        tag = saver.release(inner_config)

        check.assert_released(tag, [root])
        self.assert_history(saver, [])
        self.assert_history(saver, [], inner_config)
        check.assert_namespaces(saver)

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
            saver.put_writes(config, {"w": repr(config)})
            saver.add_tags(config, repr(config))

        replaced_config = configs[1].replace(checkpoint_id="a")
        histories[1][0] = put_checkpoint(saver, replaced_config, id="a")

        for history, config in zip(histories, configs, strict=True):
            self.assert_history(saver, history, config)
            check.assert_writes(saver, {"w": repr(config)}, config)
            check.assert_tags(saver, repr(config), config=config)

    def test_namespaces_lists_those_with_checkpoints(self) -> None:
        """With `lists_namespaces`, `namespaces` finds every namespace of a thread."""
        saver = self.open("lists_namespaces")
        for namespace in ("n/m", "", "n"):
            put_checkpoint(saver, in_namespace(namespace))

        for reader in self.readers_of(saver):
            check.assert_namespaces(reader, "", "n", "n/m")
            # The namespace of a config does not restrict the list.
            check.assert_namespaces(reader, "", "n", "n/m", thread=NESTED)
            check.assert_namespaces(reader, thread="u")

    def test_any_string_is_a_thread_id(self) -> None:
        """Every string is a thread id of its own: empty, very long, a path, a lone surrogate."""
        saver = self.open()
        configs = map(RunnableConfig, HOSTILE_IDS)
        histories = self.put_apart(saver, configs)

        # Releasing every second thread leaves the others, whose ids are similar.
        for config, history in histories[::2]:
            tag = saver.release(config)
            check.assert_released(tag, history, config.thread)
            history.clear()

        for config, history in histories:
            check.assert_listed(saver, history, config)

    def test_any_string_is_a_namespace(self) -> None:
        """Every string is a namespace of its own: empty, very long, a path, a lone surrogate."""
        configs = map(in_namespace, HOSTILE_IDS)
        self.put_apart(self.open(), configs)

    def put_apart(
        self, saver: BaseCheckpointSaver, configs: Iterable[RunnableConfig]
    ) -> list[tuple[RunnableConfig, list[Checkpoint]]]:
        """Put a checkpoint in each history, and assert that each has its own only; return the histories."""
        histories = [(config, [put_checkpoint(saver, config)]) for config in configs]

        for reader in self.readers_of(saver):
            for config, history in histories:
                check.assert_listed(reader, history, config)

                (info,) = reader.history(config)
                check.assert_equal(info.thread_id, config.thread, "thread_id")
                check.assert_equal(info.checkpoint_ns, config.checkpoint_ns, "checkpoint_ns")

        return histories

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

        for config in (CONFIG, RunnableConfig("$default")):
            grow_list(saver, 3, config)
            saver.put_writes(config, {"w": 1})

        others = grow_list(saver, 3, OTHER)
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
        check.assert_listed(saver, others, OTHER)
        self.assert_history(saver, [])
        self.assert_history(saver, [], NESTED)

        fresh = put_checkpoint(saver)
        self.assert_history(saver, [fresh])
        check.assert_no_writes(saver)

    # Capabilities

    def test_undeclared_threads_and_size_raise(self) -> None:
        """Without `lists_threads` or `measures_size`, `threads` or `size` raises."""
        saver = self.open_with_checkpoint()
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
        checkpoints = grow_list(saver, 4, OTHER)
        incoming = IncomingThread(saver, "t", "u")
        incoming.begin([""], checkpoints[0].state)
        for reader in self.readers_of(saver):
            check.assert_statuses(reader, "incomplete")

        # Every way to read the status agrees while the copy is under way.
        for checkpoint in checkpoints[:3]:
            incoming.put("", StoredCheckpoint(checkpoint))

        for reader in self.readers_of(saver):
            (latest,) = reader.recent(CONFIG, limit=1)
            summary = check.get_summary(reader)

            check.assert_equal(reader.history(CONFIG)[0].status, "incomplete")
            check.assert_equal(latest.status, "incomplete")
            check.assert_equal(summary.latest.status, "incomplete", "the status of the latest checkpoint")

        with self.raises(CheckpointConflictError):
            saver.copy("t", "new")

        # The copy never finishes; another one replaces it.
        saver.copy("u", "t")
        self.assert_history(saver, checkpoints)

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
        nested_config = in_namespace("a")
        first = grow_list(saver, 3)
        nested = put_checkpoint(saver, nested_config)
        check.assert_version(saver.release(CONFIG), 1)

        second = put_checkpoint(saver)
        check.assert_version(saver.release(CONFIG), 2)
        # The thread is empty now, so that there is nothing to keep.
        check.assert_version(saver.release(CONFIG), None)

        for reader in self.readers_of(saver):
            assert_versions(reader, "t", 1, 2)
            assert_versions(reader, CONFIG, 1, 2)
            check.assert_equal(reader.last_version_by_thread_id("t"), 2, "the last version")
            check.assert_equal(reader.get_version(CONFIG), "2", "the last version")

            tag = reader.tag(CONFIG, 1)
            check.assert_version(tag, 1)
            check.assert_released(tag, first)

            first_namespaces = reader.version_namespaces("t", 1)
            check.assert_any_order(first_namespaces, ["", "a"], "the namespaces of version 1")
            second_namespaces = reader.version_namespaces("t")
            check.assert_sequence_equal(second_namespaces, [""], "the namespaces of version 2")
            nested_tag = reader.tag(nested_config, 1)
            check.assert_released(nested_tag, [nested])

            # Without a number, the tag is the one of the last version.
            for version in (2, None):
                tag = reader.tag(CONFIG, version)
                check.assert_version(tag, 2)
                check.assert_released(tag, [second])

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

        check.assert_released(released, [first])
        for reader in self.readers_of(saver):
            check.assert_released(reader.tag(CONFIG, 1), [first])
            check.assert_released(reader.tag(CONFIG, 2), [corrected])
            check.assert_listed(reader, [latest])

        # The second copy kept the version of its target. A copy brings none along.
        saver.copy("t", "u")
        assert_versions(saver, "u")

    def test_an_unknown_version_raises(self) -> None:
        """With `HasVersions`, `tag` and `version_namespaces` raise for a version that does not exist."""
        saver = self.open_with(HasVersions)
        assert_versions(saver, "t")
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

    def test_versions_of_threads_are_isolated(self) -> None:
        """With `HasVersions`, each thread has versions of its own, whatever its id."""
        saver = self.open_with(HasVersions)
        histories = []

        for thread in HOSTILE_IDS:
            config = RunnableConfig(thread)
            checkpoint = put_checkpoint(saver, config)
            saver.release(config)
            histories.append((config, [checkpoint]))

        for config, history in histories:
            assert_versions(saver, config.thread, 1)

            tag = saver.tag(config, 1)
            check.assert_released(tag, history, config.thread)
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
        assert_versions(saver, "released")
        check.assert_threads(saver, "both", "live", released=True)

        with self.raises(CheckpointNotFoundError):
            saver.tag(released, 1)

        # The versions of the new thread start at 1 again.
        put_checkpoint(saver, released)
        check.assert_version(saver.release(released), 1)


def assert_versions(saver: Any, thread: Any, *expected: int) -> None:
    """Assert that a thread has exactly these versions."""
    versions = saver.versions_by_thread_id(thread)
    check.assert_sequence_equal(versions, expected, "versions")
