"""Compares a store with what its audit log says it should hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, final

from graphkit import Checkpoint, RunnableConfig
from graphkit.abc import BaseCheckpointSaver, HasVersions
from graphkit.errors import (
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointSerializationError,
)
from savers._audit.chain import AuditProblem
from savers._audit.digests import ContentDigester, Digester, find_codec, get_fields
from savers._audit.entries import Entry
from savers._audit.expected import ExpectedStore, History, Slots, Thread

_ROUNDS: Final = 3
"""How often a store that seems wrong is compared again: runs may change it meanwhile."""


@final
class StoreChecker:
    """Compares a store with an audit log; runs may go on meanwhile."""

    def __init__(self, read: Callable[[], Iterator[Entry]], store: BaseCheckpointSaver, digester: Digester) -> None:
        """Prepare to compare.

        Args:
            read: reads the entries of the log.
            store: the saver. Wrappers around it are passed over: they may refuse what must be compared.
            digester: makes the digests.

        Raises:
            CheckpointerConfigurationError: the digests of the log have another key.
        """
        if not digester.has_made(next(read(), None)):
            raise CheckpointerConfigurationError(
                "the log has digests with another key, or with none: give its digest_key to compare a store with it"
            )
        self._read = read
        self._store: Any = unwrap(store)
        self._digester = digester
        self._content = ContentDigester(digester, find_codec(self._store))

    def find_problems(self) -> list[AuditProblem]:
        """Return how the store differs from what the log says.

        Raises:
            CheckpointSerializationError: a type of a stored value is not registered. It is no problem of the
                store, and readers that make placeholders for such types learn it from the error.
        """
        # An operation may change the store after the log was read. What is really wrong stays wrong.
        problems = self._compare()
        for _ in range(_ROUNDS - 1):
            if not problems:
                break
            again = set(self._compare())
            problems = [problem for problem in problems if problem in again]
        return problems

    def _compare(self) -> list[AuditProblem]:
        expected = ExpectedStore()
        expected.replay(self._read)
        found: list[AuditProblem] = []
        seen: set[str] = set()
        for thread_id in self._list_threads(expected):
            name = self._hide("thread_id", thread_id)
            seen.add(name)
            where = f"thread {thread_id!r}"
            try:
                # By `extend`, which keeps what comes before an error.
                reasons = self._compare_thread(thread_id, expected.threads.get(name, Thread()))
                found.extend(AuditProblem(where, reason) for reason in reasons)
            except CheckpointErasedError:
                continue  # its key was destroyed: there is nothing to compare
            except CheckpointSerializationError:
                raise
            except CheckpointerError as error:
                found.append(AuditProblem(where, f"it cannot be read: {error}"))
        for name, thread in expected.threads.items():
            if name not in seen:
                found += (AuditProblem(f"thread {name!r}", reason) for reason in _list_missing(thread))
        return found

    def _list_threads(self, expected: ExpectedStore) -> Iterable[str]:
        if self._store.lists_threads:
            return self._store.threads(released=True)  # type: ignore[no-any-return]
        if self._digester.is_keyed:
            raise CheckpointerConfigurationError(
                f"{type(self._store).__name__} cannot list its threads, and the log has only digests of their ids"
            )
        return list(expected.threads)

    def _hide(self, name: str, value: str) -> str:
        return str(self._digester.hide_name(name, value))

    def _compare_thread(self, thread_id: str, expected: Thread) -> Iterator[str]:
        namespaces = self._store.namespaces(thread_id) if self._store.lists_namespaces else [""]
        histories = dict(expected.histories)
        for namespace in namespaces:
            history = histories.pop(self._hide("checkpoint_ns", namespace), History())
            config = RunnableConfig(thread_id, checkpoint_ns=namespace)
            yield from self._compare_history(config, history, f" of the namespace {namespace!r}" if namespace else "")
        for history in histories.values():
            yield from _compare_slots("checkpoint", history.checkpoints, [])
        if isinstance(self._store, HasVersions):
            yield from self._compare_versions(thread_id, expected)

    def _compare_history(self, config: RunnableConfig, expected: History, suffix: str) -> Iterator[str]:
        listed: Sequence[Checkpoint] = self._store.list(config)
        found = [(each.id, self._digest(each)) for each in reversed(listed)]
        for reason in _compare_slots("checkpoint", expected.checkpoints, found):
            yield reason + suffix
        for reason in _compare_order(expected.checkpoints, [key for key, _ in found]):
            yield reason + suffix
        for checkpoint_id in dict.fromkeys(key for key, _ in found):
            named = config.with_check_point_id(checkpoint_id)
            beside = f" of checkpoint {checkpoint_id}{suffix}"
            expected_writes, expected_tags = expected.list_beside(checkpoint_id)
            writes = self._content.digest_writes(self._store.get_writes(named)).items()
            for reason in _compare_slots("pending write", expected_writes, writes):
                yield reason + beside
            tags = [(tag, tag) for tag in self._content.digest_tags(self._store.tags_of(named))]
            for reason in _compare_slots("tag", expected_tags, tags):
                yield reason + beside

    def _digest(self, checkpoint: Checkpoint) -> str | None:
        return self._content.digest_checkpoint(get_fields(checkpoint))

    def _compare_versions(self, thread_id: str, expected: Thread) -> Iterator[str]:
        versions = self._store.versions_by_thread_id(thread_id)
        for version in versions:
            possible = expected.released
            if version in expected.versions:
                possible = [expected.versions[version]]
            found = {
                self._hide("checkpoint_ns", namespace): [
                    (each.id, self._digest(each))
                    for each in reversed(
                        self._store.tag(RunnableConfig(thread_id, checkpoint_ns=namespace), version).checkpoints
                    )
                ]
                for namespace in self._store.version_namespaces(thread_id, version)
            }
            reasons = [list(_compare_version(each, found)) for each in possible]
            if not possible:
                yield f"version {version} has no record"
            elif all(reasons):
                yield from (f"{reason} of version {version}" for reason in reasons[-1])
        for version in expected.versions:
            if version not in versions:
                yield f"version {version} is missing"


def _compare_version(expected: dict[str, Slots], found: dict[str, list[tuple[str, str | None]]]) -> Iterator[str]:
    for namespace in {*expected, *found}:
        yield from _compare_slots("checkpoint", expected.get(namespace, Slots()), found.get(namespace, []))


def _compare_slots(what: str, expected: Slots, found: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Yield how what is there differs from what is expected, each as the beginning of a sentence."""
    present = set()
    for key, value in found:
        present.add(key)
        slot = expected.get(key)
        if slot is None:
            yield f"{what} {_shorten(key)} has no record"
        elif not slot.accepts(value):
            yield f"{what} {_shorten(key)} is not what was recorded"
    for key, slot in expected.items():
        if slot.must_exist and key not in present:
            yield f"{what} {_shorten(key)} is missing"


def _compare_order(expected: Slots, found: Sequence[str]) -> Iterator[str]:
    present = set(found)
    ordered = [key for key, slot in expected.items() if slot.is_ordered and key in present]
    ordered.sort(key=lambda key: expected[key].rank)
    wanted = set(ordered)
    if [key for key in found if key in wanted] != ordered:
        yield "the order of the checkpoints is not what was recorded"


def _list_missing(thread: Thread) -> Iterator[str]:
    for history in thread.histories.values():
        yield from _compare_slots("checkpoint", history.checkpoints, [])
    for version in thread.versions:
        yield f"version {version} is missing"


def _shorten(key: str) -> str:
    # The keys of pending writes and tags are digests.
    prefix, colon, digest = key.partition(":")
    return digest[:12] if colon and prefix.endswith("sha256") else key


def unwrap(saver: Any) -> Any:
    """Return the saver within all wrappers."""
    while isinstance(getattr(saver, "delegate", None), BaseCheckpointSaver):
        saver = saver.delegate
    return saver
