"""Compares a store with what its audit log says it should hold.

Operations may overlap, fail halfway, or have no outcome because their process died. Then there are
several states that the store may have: each key (a checkpoint, a pending write, a tag) has the values
that it may have, and whether it must be there. An operation that overlapped none of the same keys, and
succeeded, leaves exactly one, unless the history may have the id of its checkpoint twice: then what was
recorded under the id before is possible, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
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
from savers._audit.digests import ContentDigester, Digester, find_codec, unwrap
from savers._audit.entries import Entry

_DIGEST: Final = re.compile(r"\b(?:hmac-)?sha256:([0-9a-f]{12})[0-9a-f]+")
_ROUNDS: Final = 3
"""How often a store that seems wrong is compared again: runs may change it meanwhile."""

_ON_KEYS: Final = frozenset({"add_tags", "put", "put_writes", "remove_tags"})
"""The operations on single keys of one history; the others are on whole threads."""
_WITHOUT_EFFECT: Final = frozenset({"compact", "erase_deleted", "rotate"})
"""The operations that change no content."""
_DELETES: Final = frozenset({"delete", "erase"})
_REMOVES: Final = _DELETES | {"delete_idle", "prune", "remove"}
_REFUSALS: Final = {
    **dict.fromkeys(_ON_KEYS, frozenset({
        "CheckpointConflictError", "CheckpointFormatError", "CheckpointKeyError", "CheckpointNotFoundError",
        "CheckpointSerializationError", "CheckpointerConfigurationError", "ThreadBusyError",
    })),
    **dict.fromkeys(("copy", "delete", "release"), frozenset({
        "CheckpointConflictError", "CheckpointerConfigurationError", "ThreadBusyError",
    })),
    "delete_idle": frozenset({"TypeError", "ValueError"}),
}  # fmt: skip
"""By operation, the errors after which it has changed nothing."""


@final
@dataclass
class Slot:
    """What may be stored under a key."""

    values: set[str | None]
    """The digests that it may have; None stands for content that could not be digested."""
    must_exist: bool = True
    is_ordered: bool = True
    """Whether its place among the others is known."""
    rank: int = field(default_factory=count().__next__)
    """What was stored before it has a lower one."""

    def accepts(self, value: str | None) -> bool:
        """Return whether a digest is one of those that it may have."""
        return value in self.values or None in self.values


class Slots(dict[str, Slot]):
    """What may be stored under several keys."""

    def store(self, key: str, value: str | None, *, is_certain: bool, must_exist: bool = False) -> Slot:
        """Note that a value was stored, or may have been."""
        if is_certain:
            self[key] = Slot({value})
            return self[key]
        slot = self.setdefault(key, Slot(set(), must_exist=False, is_ordered=False))
        slot.values.add(value)
        slot.must_exist = slot.must_exist or must_exist
        return slot

    def remove(self, keys: Iterable[str], *, is_certain: bool) -> None:
        """Note that keys were removed, or may have been."""
        for key in keys:
            if is_certain:
                self.pop(key, None)
            elif key in self:
                self[key].must_exist = False

    def add_possible(self, others: Slots) -> None:
        """Note that what may be in other slots may be here, too."""
        for key, slot in others.items():
            for value in slot.values:
                self.store(key, value, is_certain=False)


_WRITE: Final = "pending write {}"
"""The key of the slot of a pending write, and its name in a message."""
_TAG: Final = "tag {}"
_ANY: Final = ""
"""In place of an id: what was recorded with the latest checkpoint of a history that had none a moment before."""


@final
@dataclass
class History:
    """What may be in one history."""

    checkpoints: Slots = field(default_factory=Slots)
    recorded: dict[str, Slots] = field(default_factory=dict)
    """The pending writes and the tags of each checkpoint. It may be put after its writes."""
    heirs: dict[str, set[str]] = field(default_factory=dict)
    """By checkpoint, those that may have taken its place, and its pending writes and tags with it."""
    repeated: set[str] = field(default_factory=set)
    """The ids that it may have twice. A saver finds the newer checkpoint; when it is replaced, the older one."""

    def list_recorded(self, checkpoint_id: str) -> Slots:
        """Return the pending writes and the tags that a checkpoint may have."""
        slots = self.recorded.get(checkpoint_id, Slots())
        if _ANY in self.recorded:
            slots = deepcopy(slots)
            slots.add_possible(self.recorded[_ANY])  # need not be there
        return slots

    def list_heirs(self, checkpoint_id: str) -> set[str]:
        """Return the checkpoints that may have taken the place of one, or of one that has."""
        found: set[str] = set()
        waiting = [checkpoint_id]
        while waiting:
            for heir in self.heirs.get(waiting.pop(), set()) - found:
                found.add(heir)
                waiting.append(heir)
        return found

    def loosen(self) -> None:
        """Note that all of it may be gone."""
        for slots in (self.checkpoints, *self.recorded.values()):
            slots.remove(list(slots), is_certain=False)

    def add_possible(self, other: History) -> None:
        """Note that what may be in another history may be here, too."""
        self.checkpoints.add_possible(other.checkpoints)
        for checkpoint_id, heirs in other.heirs.items():
            self.heirs.setdefault(checkpoint_id, set()).update(heirs)
        for checkpoint_id, slots in other.recorded.items():
            self.add_recorded(checkpoint_id, slots)
        self.repeated |= other.repeated

    def add_recorded(self, checkpoint_id: str, slots: Slots) -> None:
        """Note pending writes and tags that a checkpoint may have, and so may those that have taken its place."""
        for each in {checkpoint_id, *self.list_heirs(checkpoint_id)}:
            self.recorded.setdefault(each, Slots()).add_possible(slots)

    def forget(self, ids: Collection[str], *, is_certain: bool) -> None:
        """Note that checkpoints were removed, or may have been."""
        self.checkpoints.remove(ids, is_certain=is_certain)
        if is_certain:
            self.repeated.difference_update(ids)
            for checkpoint_id in ids:
                self.recorded.pop(checkpoint_id, None)


@final
@dataclass
class Thread:
    """What may be in one thread."""

    histories: dict[str, History] = field(default_factory=dict)
    versions: dict[int, dict[str, Slots]] = field(default_factory=dict)
    """The released histories, by version and namespace."""
    released: list[dict[str, Slots]] = field(default_factory=list)
    """What may be in a version whose number is not recorded."""

    def history(self, namespace: str) -> History:
        """Return a history, which may be empty."""
        return self.histories.setdefault(namespace, History())

    def loosen(self) -> None:
        """Note that all live histories may be gone."""
        for history in self.histories.values():
            history.loosen()


@final
class _Operation:
    """An operation that has begun."""

    def __init__(self, intent: Entry, *, is_ended: bool) -> None:
        self.fields = intent
        self.name: str = intent["operation"]
        self.thread_id: str | None = intent.get("thread_id")
        self.namespace: str = intent.get("checkpoint_ns") or ""
        self.target: str | None = intent.get("target")
        self.is_on_keys = self.name in _ON_KEYS
        self.keys = self._list_keys() if self.is_on_keys else set()
        self.is_raced = False
        """Whether another operation on the same keys overlapped it."""
        self.is_raced_by_removal = False
        self.is_unordered = False
        """Whether another put to the same history overlapped it."""
        self.is_ended = is_ended
        """Whether the log has its outcome."""
        self.is_settled = False
        """Whether it changes nothing any more, although it has no outcome."""
        self.settled: set[str | None] = set()
        """The threads that were deleted since this began, if it has no outcome."""
        self.copied_to: set[str] = set()
        """The threads to which an overlapping copy may have copied what it stores."""

    def _list_keys(self) -> set[tuple[str, ...]]:
        checkpoint_id = self.fields.get("checkpoint_id") or ""
        match self.name:
            case "put":
                replaced = self.fields.get("replaces")
                return {("put", checkpoint_id)} if replaced is None else {("put", checkpoint_id), ("put", replaced)}
            case "put_writes":
                return {("write", checkpoint_id, key) for key in self.fields.get("writes", ())}
            case _:
                return {("tag", checkpoint_id, tag) for tag in self.fields.get("tags", ())}

    def note_overlap(self, other: _Operation) -> None:
        """Note that another operation overlaps this one, in both of them."""
        # what overlaps                                  what may have happened
        # ---------------------------------------------  ------------------------------------------------------
        # operations on different threads                nothing
        # one without an outcome; another removes, or    nothing: what one removes, the other need not have
        #   is on a thread that was deleted since          removed
        # a copy; a put, writes or tags in its source    the copy has what was stored, or not
        # another one on whole threads; any other        what either stores was removed by the other
        # two of puts, writes and tags in one history    see `_note_overlap_in_history`
        if not self._shares_thread(other):
            return
        if not other.is_ended and (self.thread_id in other.settled or self.name in _REMOVES):
            return
        if self.is_on_keys and other.is_on_keys:
            if self.namespace == other.namespace:
                self._note_overlap_in_history(other)
            return
        on_keys, whole = (self, other) if self.is_on_keys else (other, self)
        if on_keys.is_on_keys and whole.target is not None and whole.target != on_keys.thread_id:
            whole.is_raced_by_removal = True
            on_keys.copied_to.add(whole.target)
        else:
            self.is_raced_by_removal = other.is_raced_by_removal = True

    def _shares_thread(self, other: _Operation) -> bool:
        """Return whether this and another operation are about the same thread, as source or as target."""
        if self.thread_id is None or other.thread_id is None:  # it is about all threads
            return True
        return not {self.thread_id, self.target}.isdisjoint({other.thread_id, other.target} - {None})

    def _note_overlap_in_history(self, other: _Operation) -> None:
        # what overlaps                                  what may have happened
        # ---------------------------------------------  ------------------------------------------------------
        # two on the same keys                           either was the last
        # two puts                                       either checkpoint is the newer one
        # a replacement; one on what it replaces         what the latter stores went to the new checkpoint, or not
        # one without an id; any other                   they are about the same checkpoint
        if self.keys & other.keys:
            self.is_raced = other.is_raced = True
        if self.name == other.name == "put":
            self.is_unordered = other.is_unordered = True
        for one, two in ((self, other), (other, self)):
            if not one.fields.get("checkpoint_id") or one.removes_from(two):
                one.is_raced = True
                two.is_raced_by_removal = True

    def note_success(self, later: _Operation) -> None:
        """Note that another operation has succeeded, in one that has no outcome.

        If it was repeated, it is assumed to change nothing any more; and if a thread was deleted, nothing there.
        """
        if later.fields["seq"] < self.fields["seq"]:
            return
        if later.name in _DELETES:
            self.settled.add(later.thread_id)
        subject = self.thread_id if self.target is None else self.target
        is_repeated = (later.name, later.thread_id, later.target) == (self.name, self.thread_id, self.target)
        self.is_settled = is_repeated or (subject is not None and subject in self.settled)

    def may_undo(self, other: _Operation) -> bool:
        """Return whether this, an operation on keys, may change what another one has changed before it."""
        if not other.is_on_keys:
            return other.name == "release"
        if self.namespace != other.namespace:
            return False
        return not self.keys.isdisjoint(other.keys) or self.removes_from(other)

    def removes_from(self, other: _Operation) -> bool:
        """Return whether this puts another checkpoint in the place of the one that the other operation is about."""
        replaced = self.fields.get("replaces")
        if replaced in {None, self.fields.get("checkpoint_id")}:
            return False
        return bool(replaced == other.fields.get("checkpoint_id"))


@final
class _Unended:
    """The operations that have begun and have no outcome."""

    def __init__(self) -> None:
        self.on_threads: list[_Operation] = []
        self._on_keys: dict[str | None, list[_Operation]] = {}
        """By thread."""

    def add(self, operation: _Operation) -> None:
        if operation.is_on_keys:
            self._on_keys.setdefault(operation.thread_id, []).append(operation)
        else:
            self.on_threads.append(operation)

    def note_success(self, operation: _Operation) -> list[_Operation]:
        """Note that another operation has succeeded; return those that may have changed the same after it."""
        for other in self.on_threads:
            other.note_success(operation)
        self.on_threads = [other for other in self.on_threads if not other.is_settled]
        if operation.name in _DELETES:
            self._on_keys.pop(operation.thread_id, None)
        return [other for other in self._on_keys.get(operation.thread_id, ()) if other.may_undo(operation)]


@final
class ExpectedStore:
    """What a store should hold.

    Attributes:
        threads: what is in each thread, by its id as it stands in the log.
    """

    def __init__(self) -> None:
        self.threads: dict[str, Thread] = {}

    def thread(self, thread_id: str) -> Thread:
        """Return a thread, which may be empty."""
        return self.threads.setdefault(thread_id, Thread())

    def replay(self, read: Callable[[], Iterator[Entry]]) -> None:
        """Take in all entries of a log, which are read twice."""
        # What has no outcome may have had its effect, or not: its process has died, or is still at work. An
        # operation on keys is not counted as overlapping all that follows: it is only done again, perhaps, after
        # what changes the same. One on whole threads is: other processes may have put much before it came to a
        # thread, or died.
        ended = {entry["of"] for entry in read() if entry["kind"] == "outcome"}
        running: dict[int, _Operation] = {}
        unended = _Unended()
        for entry in read():
            if entry["kind"] == "intent":
                is_ended = entry["seq"] in ended
                operation = _Operation(entry, is_ended=is_ended)
                if operation.name in _WITHOUT_EFFECT:
                    continue
                for other in (*running.values(), *unended.on_threads):
                    operation.note_overlap(other)
                if is_ended:
                    running[entry["seq"]] = operation
                    continue
                self._apply(operation, {"result": "unknown"})
                unended.add(operation)
            elif entry["kind"] == "outcome" and entry["of"] in running:
                operation = running.pop(entry["of"])
                self._apply(operation, entry)
                if entry["result"] == "ok":
                    for other in unended.note_success(operation):
                        self._apply(other, {"result": "unknown"})

    def _apply(self, operation: _Operation, outcome: Entry) -> None:
        result = outcome["result"]
        if result == "refused":
            return
        if result == "failed" and outcome.get("error") in _REFUSALS.get(operation.name, ()):
            return
        if not operation.is_on_keys:
            self._apply_to_threads(operation, outcome)
            return
        must_exist = result == "ok" and not operation.is_raced_by_removal
        is_certain = must_exist and not operation.is_raced
        thread = self.thread(operation.thread_id or "")
        for target in operation.copied_to:
            # The copy may have what was there before, and its outcome may be still to come.
            self.thread(target).history(operation.namespace).add_possible(thread.history(operation.namespace))
        self._apply_in(thread, operation, is_certain=is_certain, must_exist=must_exist)
        for target in operation.copied_to:
            self._apply_in(self.thread(target), operation, is_certain=False, must_exist=False)

    def _apply_to_threads(self, operation: _Operation, outcome: Entry) -> None:
        is_certain = outcome["result"] == "ok" and not operation.is_raced_by_removal
        match operation.name:
            case name if name in _DELETES:
                self._delete(self._select(operation), is_certain=is_certain)
            case "delete_idle":
                threads = self._select(operation) if outcome.get("threads") is None else outcome["threads"]
                self._delete(threads, is_certain=is_certain)
            case "release":
                self._release(operation, outcome.get("version"), is_certain=is_certain)
            case "copy":
                self._copy(operation, is_certain=is_certain)
            case "prune" | "repair" if outcome.get("removed") is not None:
                self._remove(outcome["removed"], is_certain=not operation.is_raced_by_removal)
            case "remove":
                removed = {operation.thread_id or "": {operation.namespace: operation.fields.get("ids", [])}}
                self._remove(removed, is_certain=is_certain)
            case _:
                # A repair that changed something, or an operation of a later version: all of it may be gone,
                # and nothing new is there.
                for thread_id in self._select(operation):
                    self.thread(thread_id).loosen()

    def _select(self, operation: _Operation) -> list[str]:
        return list(self.threads) if operation.thread_id is None else [operation.thread_id]

    # Operations on keys

    def _apply_in(self, thread: Thread, operation: _Operation, *, is_certain: bool, must_exist: bool) -> None:
        history = thread.history(operation.namespace)
        if operation.name == "put":
            self._put(history, operation, is_certain=is_certain, must_exist=must_exist)
            if operation.is_raced_by_removal:
                # It may be in what a release has taken at the same time.
                for histories in thread.released:
                    slots = histories.setdefault(operation.namespace, Slots())
                    slots.store(operation.fields["checkpoint_id"], operation.fields.get("digest"), is_certain=False)
            return
        checkpoint_id = operation.fields.get("checkpoint_id") or _ANY
        self._record(history, checkpoint_id, operation, is_certain=is_certain, must_exist=must_exist)
        if not is_certain:
            for heir in history.list_heirs(checkpoint_id):
                self._record(history, heir, operation, is_certain=False, must_exist=False)

    def _record(
        self, history: History, checkpoint_id: str, operation: _Operation, *, is_certain: bool, must_exist: bool
    ) -> None:
        slots = history.recorded.setdefault(checkpoint_id, Slots())
        # Several may have been recorded with `_ANY`, each of another checkpoint.
        is_certain = is_certain and checkpoint_id != _ANY and checkpoint_id not in history.repeated
        if operation.name == "put_writes":
            kept = operation.fields.get("keep", ())
            for key, value in operation.fields.get("writes", {}).items():
                name = _WRITE.format(key)
                is_new = key not in kept or name not in slots
                slots.store(name, value, is_certain=is_certain and is_new, must_exist=must_exist)
            return
        tags = {_TAG.format(tag): tag for tag in operation.fields.get("tags", ())}
        if operation.name == "remove_tags":
            slots.remove(tags, is_certain=is_certain)
            if checkpoint_id == _ANY:
                for each in history.recorded.values():
                    each.remove(tags, is_certain=False)
            return
        for name, tag in tags.items():
            slots.store(name, tag, is_certain=is_certain)  # what raced it may have removed it

    def _put(self, history: History, operation: _Operation, *, is_certain: bool, must_exist: bool) -> None:
        new = operation.fields["checkpoint_id"]
        digest = operation.fields.get("digest")
        replaced = operation.fields.get("replaces")
        checkpoints = history.checkpoints
        if new != replaced and new in checkpoints:
            # The history may have the id twice now. The new checkpoint has none of what was recorded with the old one.
            history.repeated.add(new)
            checkpoints[new].is_ordered = False
            recorded = history.recorded.get(new, Slots())
            recorded.remove(recorded, is_certain=False)
        is_removed = is_certain and replaced not in history.repeated
        is_certain = is_certain and history.repeated.isdisjoint({new, replaced})
        if replaced is None:
            slot = checkpoints.store(new, digest, is_certain=is_certain, must_exist=must_exist)
            slot.is_ordered = is_certain and not operation.is_unordered
            return
        if replaced != new:
            # Also of what was certain: an operation on an earlier one may be at work still.
            history.heirs.setdefault(replaced, set()).add(new)
        if not is_certain:
            checkpoints.store(new, digest, is_certain=False, must_exist=must_exist)
            if replaced != new:
                checkpoints.remove([replaced], is_certain=is_removed)
                # The new one may have taken over the pending writes and tags of the old one, and been replaced since.
                old = history.recorded.get(replaced, Slots())
                old.remove(old, is_certain=False)
                history.add_recorded(new, old)
            return
        last = checkpoints.pop(replaced, None)
        if replaced != new and replaced in history.recorded:
            history.recorded[new] = Slots({**history.recorded.pop(replaced), **history.recorded.get(new, {})})
        slot = checkpoints.store(new, digest, is_certain=True)
        slot.is_ordered = last is not None and last.is_ordered
        if last is not None:
            slot.rank = last.rank

    # Operations on threads

    def _delete(self, thread_ids: Iterable[str], *, is_certain: bool) -> None:
        for thread_id in thread_ids:
            if is_certain:
                self.threads.pop(thread_id, None)
                continue
            thread = self.thread(thread_id)
            thread.loosen()
            for histories in thread.versions.values():
                thread.released.append(histories)
            thread.versions = {}

    def _release(self, operation: _Operation, version: int | None, *, is_certain: bool) -> None:
        thread = self.thread(operation.thread_id or "")
        released = {namespace: deepcopy(history.checkpoints) for namespace, history in thread.histories.items()}
        if not is_certain:
            for slots in released.values():
                slots.remove(list(slots), is_certain=False)
            thread.released.append(released)
            thread.loosen()
            return
        thread.histories = {}
        if version is not None:
            thread.versions[version] = released

    def _copy(self, operation: _Operation, *, is_certain: bool) -> None:
        source = self.thread(operation.thread_id or "")
        target = self.thread(operation.target or "")
        if is_certain:
            overlapping = target.histories
            target.histories = deepcopy(source.histories)
            for namespace, history in overlapping.items():
                target.history(namespace).add_possible(history)
            return
        # Half of it may be there. A target that had content was not changed.
        for namespace, history in source.histories.items():
            target.history(namespace).add_possible(history)

    def _remove(self, removed: Mapping[str, Mapping[str, Any] | None], *, is_certain: bool) -> None:
        for thread_id, histories in removed.items():
            if histories is None:
                self.thread(thread_id).loosen()
                continue
            for namespace, ids in histories.items():
                self.thread(thread_id).history(namespace).forget(ids, is_certain=is_certain)


# Comparing

Digests = list[tuple[str, str | None]]
"""The ids of checkpoints, each with its digest, oldest first."""


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
            CheckpointSerializationError: a type of a stored value is not registered, which is no problem of the
                store.
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
            name = self._digester.hide_name("thread_id", thread_id)
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
                found += [AuditProblem(f"thread {name!r}", reason) for reason in _list_missing(thread)]
        return found

    def _list_threads(self, expected: ExpectedStore) -> Iterable[str]:
        if self._store.lists_threads:
            return self._store.threads(released=True)  # type: ignore[no-any-return]
        if self._digester.is_keyed:
            raise CheckpointerConfigurationError(
                f"{type(self._store).__name__} cannot list its threads, and the log has only digests of their ids"
            )
        return list(expected.threads)

    def _compare_thread(self, thread_id: str, expected: Thread) -> Iterator[str]:
        namespaces = self._store.namespaces(thread_id) if self._store.lists_namespaces else [""]
        histories = dict(expected.histories)
        for namespace in namespaces:
            history = histories.pop(self._digester.hide_name("checkpoint_ns", namespace), History())
            config = RunnableConfig(thread_id, checkpoint_ns=namespace)
            yield from self._compare_history(config, history, f" of the namespace {namespace!r}" if namespace else "")
        for history in histories.values():
            yield from _compare_checkpoints(history.checkpoints, [])
        if isinstance(self._store, HasVersions):
            yield from self._compare_versions(thread_id, expected)

    def _compare_history(self, config: RunnableConfig, expected: History, suffix: str) -> Iterator[str]:
        found = self._digest_all(self._store.list(config))
        ids = [checkpoint_id for checkpoint_id, _ in found]
        for reason in _compare_checkpoints(expected.checkpoints, found):
            yield reason + suffix
        if not _are_in_order(expected.checkpoints, ids):
            yield "the order of the checkpoints is not what was recorded" + suffix
        for checkpoint_id in dict.fromkeys(ids):
            recorded = self._digest_recorded(config.with_check_point_id(checkpoint_id))
            for reason in _compare_slots(expected.list_recorded(checkpoint_id), recorded.items()):
                yield f"{reason} of checkpoint {checkpoint_id}{suffix}"

    def _digest_recorded(self, config: RunnableConfig) -> dict[str, str | None]:
        """Return the digests of the pending writes and the tags of a checkpoint, by the keys of their slots."""
        writes = self._content.digest_writes(self._store.get_writes(config))
        recorded = {_WRITE.format(key): value for key, value in writes.items()}
        for tag in self._content.digest_tags(self._store.tags_of(config)):
            recorded[_TAG.format(tag)] = tag
        return recorded

    def _digest_all(self, newest_first: Sequence[Checkpoint]) -> Digests:
        """Return the id and the digest of each checkpoint, oldest first."""
        return [(each.id, self._content.digest_checkpoint(each)) for each in reversed(newest_first)]

    def _compare_versions(self, thread_id: str, expected: Thread) -> Iterator[str]:
        versions = self._store.versions_by_thread_id(thread_id)
        for version in versions:
            possible = expected.released
            if version in expected.versions:
                possible = [expected.versions[version]]
            # Of a version that cannot be read, or was erased, nothing else is said.
            found = self._digest_version(thread_id, version)
            if not possible:
                yield f"version {version} has no record"
                continue
            reasons: list[str] = []
            for histories in possible:
                reasons = [*_compare_version(histories, found)]
                if not reasons:
                    break
            for reason in reasons:
                yield f"{reason} of version {version}"
        for version in expected.versions:
            if version not in versions:
                yield f"version {version} is missing"

    def _digest_version(self, thread_id: str, version: int) -> dict[str, Digests]:
        """Return the ids and digests of the checkpoints of a version, by namespace."""
        found: dict[str, Digests] = {}
        for namespace in self._store.version_namespaces(thread_id, version):
            tag = self._store.tag(RunnableConfig(thread_id, checkpoint_ns=namespace), version)
            found[self._digester.hide_name("checkpoint_ns", namespace)] = self._digest_all(tag.checkpoints)
        return found


def _list_missing(expected: Thread) -> Iterator[str]:
    """Yield what is missing of a thread that the store does not have."""
    for history in expected.histories.values():
        yield from _compare_checkpoints(history.checkpoints, [])
    for version in expected.versions:
        yield f"version {version} is missing"


def _are_in_order(expected: Slots, ids: Sequence[str]) -> bool:
    """Return whether those checkpoints of a history whose place is known have it, given all ids, oldest first."""
    known = [key for key in ids if key in expected and expected[key].is_ordered]
    return known == sorted(set(known), key=lambda key: expected[key].rank)


def _compare_version(expected: Mapping[str, Slots], found: Mapping[str, Digests]) -> Iterator[str]:
    """Yield how the histories of a version differ from what is expected."""
    for namespace in {*expected, *found}:
        yield from _compare_checkpoints(expected.get(namespace, Slots()), found.get(namespace, []))


def _compare_checkpoints(expected: Slots, found: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """Yield how the checkpoints of a history differ from what is expected, each as the beginning of a sentence."""
    for reason in _compare_slots(expected, found):
        yield f"checkpoint {reason}"


def _compare_slots(expected: Slots, found: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    """As `_compare_checkpoints`, for what is recorded with a checkpoint."""
    present: set[str] = set()
    for key, value in found:
        present.add(key)
        slot = expected.get(key)
        if slot is None:
            yield f"{_shorten(key)} has no record"
        elif not slot.accepts(value):
            yield f"{_shorten(key)} is not what was recorded"
    for key, slot in expected.items():
        if slot.must_exist and key not in present:
            yield f"{_shorten(key)} is missing"


def _shorten(key: str) -> str:
    # The keys of pending writes and tags are digests.
    return _DIGEST.sub(r"\1", key)
