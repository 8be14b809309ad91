"""Each promise broken once: the contract must notice, and say what it expected and what it found."""

import ast
import copy
import unittest
from contextlib import nullcontext
from pathlib import Path
from unittest import SkipTest

import pytest
from hypothesis import Phase, settings

from graphkit import Checkpoint, RunnableConfig, Tag, testing
from graphkit.errors import CheckpointNotFoundError
from graphkit.testing import SaverContract, made
from graphkit.testing.stateful import SaverMachine
from savers import MemorySaver, VersionedMemorySaver
from tests.support.savers import ListingSaver, ListSaver

BROKEN = {}


def breaks(*tests):
    """Marks a saver that the named tests of the contract, at least, must refuse."""

    def note(saver):
        BROKEN[saver] = tests
        return saver

    return note


@breaks("test_every_field_is_stored")
class SwapsNodes(MemorySaver):
    def put(self, config, checkpoint):
        fields = {name: getattr(checkpoint, name) for name in ("id", "parent_id", "created_at", "metadata", "state")}
        swapped = made(**fields, node_id=checkpoint.next_node_id or "", next_node_id=checkpoint.node_id)
        return super().put(config, swapped)


@breaks("test_list_is_ordered_by_put_not_by_clock_or_id")
class SortsByClock(MemorySaver):
    def list(self, config=None):
        return sorted(super().list(config), key=lambda one: one.created_at, reverse=True)


@breaks("test_replace_of_an_unknown_checkpoint_raises")
class ReplacesAnything(MemorySaver):
    def put(self, config, checkpoint):
        if self.get(config) is None:
            config = RunnableConfig.of(config).replace(checkpoint_id=None)
        return super().put(config, checkpoint)


@breaks("test_replace_keeps_the_position", "test_replace_may_change_the_id")
class ReplacesAtTheEnd(MemorySaver):
    def put(self, config, checkpoint):
        config = RunnableConfig.of(config)
        if config.checkpoint_id is not None:
            super().put(config, checkpoint)
            entries = self._get_history(config).checkpoints
            entries.append(entries.pop([record.checkpoint.id for record in entries].index(checkpoint.id)))
            return config
        return super().put(config, checkpoint)


@breaks("test_an_unfinished_copy_is_incomplete_and_can_be_replaced")
class RunsHalfCopies(MemorySaver):
    def history(self, config=None):
        return [info._replace(status=info.status.replace("incomplete", "running")) for info in super().history(config)]


@breaks("test_returned_checkpoints_are_snapshots")
class HandsOutALiveView(MemorySaver):
    def list(self, config=None):
        records = self._get_history(RunnableConfig.of(config)).checkpoints

        class View(list):
            def __iter__(self):
                return iter([record.checkpoint for record in reversed(records)])

            def __len__(self):
                return len(records)

        return View()


@breaks("test_every_type_is_stored_exactly")
class KeepsAsJsonWould(MemorySaver):
    def put(self, config, checkpoint):
        state = {key: [*value] if type(value) is tuple else value for key, value in checkpoint.state.items()}
        nested = [
            {"in": list(each["in"])} for each in state.get("nested", ()) if isinstance(each, dict) and "in" in each
        ]
        return super().put(config, Checkpoint.builder(checkpoint).state({**state, "nested": nested}).build())


@breaks("test_unrelated_states_are_stored_exactly")
class SortsKeys(MemorySaver):
    def put(self, config, checkpoint):
        state = dict(sorted(checkpoint.state.items()))
        return super().put(config, Checkpoint.builder(checkpoint).state(state).build())


@breaks("test_any_string_is_a_thread_id")
class FoldsCase(MemorySaver):
    def _get_history(self, config):
        return super()._get_history(config.replace(thread_id=config.thread.lower()))


@breaks("test_release_of_an_empty_thread_returns_an_empty_tag")
class ReleasesOnlyWhatExists(MemorySaver):
    def release(self, config=None):
        if self.get(config) is None:
            raise CheckpointNotFoundError(config)
        return super().release(config)


@breaks("test_release_covers_every_namespace_and_returns_the_root")
class ReleasesOneNamespace(MemorySaver):
    def release(self, config=None):
        config = RunnableConfig.of(config)
        listed = self.list(config)
        self._threads.get(config.thread, {}).pop(config.checkpoint_ns, None)
        return Tag(config.thread, listed)


@breaks("test_writes_belong_to_one_checkpoint")
class RecordsBesideTheLatest(MemorySaver):
    def put_writes(self, config, writes):
        super().put_writes(RunnableConfig.of(config).replace(checkpoint_id=None), writes)


@breaks("test_put_writes_merges_in_order_of_first_write")
class ForgetsEarlierWrites(MemorySaver):
    def put_writes(self, config, writes):
        self._require(RunnableConfig.of(config)).writes = {}
        super().put_writes(config, writes)


@breaks("test_prune_keeps_tagged_and_interrupted_checkpoints")
class PrunesTheTagged(MemorySaver):
    def prune(self, thread=None, **options):
        return super().prune(thread, **{**options, "keep_tags": ()})


@breaks("test_the_run_lock_excludes_other_runs", "test_a_node_may_reenter_the_lock_of_its_run")
class LocksNothing(MemorySaver):
    def run_lock(self, config=None, timeout=None):
        return nullcontext()


@breaks("test_async_methods_match_the_sync_methods")
class AnswersLateOnly(MemorySaver):
    async def aget(self, config=None):
        return super().get(RunnableConfig.of(config).replace(checkpoint_id=None))


@breaks("test_release_creates_a_version")
class CountsEmptyReleases(VersionedMemorySaver):
    def release(self, config=None):
        if self.get(config) is None:
            self.put(config, made({}))
        return super().release(config)


@breaks("test_concurrent_puts_to_one_thread_lose_nothing")
class LosesEveryFifth(MemorySaver):
    def put(self, config, checkpoint):
        stored = super().put(config, checkpoint)
        entries = self._get_history(RunnableConfig.of(config)).checkpoints
        if len(entries) % 5 == 0:
            entries.pop(0)
        return stored


class Declares(ListSaver):
    """Has the four methods only; each subclass declares a capability that it does not have."""

    def __init__(self, *, lock_timeout):
        super().__init__()


@breaks(
    "test_mutating_a_put_checkpoint_does_not_change_the_store",
    "test_mutating_a_loaded_checkpoint_does_not_change_the_store",
)
class DeclaresIsolation(Declares):
    isolates_values = True


class CopiesValues(DeclaresIsolation, ListingSaver):
    """Keeps what it declares; its default `put_writes` and `add_tags` keep theirs in the metadata."""

    def list(self, config=None):
        return copy.deepcopy(super().list(config))

    def put(self, config, checkpoint):
        return super().put(config, copy.deepcopy(checkpoint))


@breaks("test_search_and_recent_stop_at_the_limit")
class LimitsBeforeItCompares(MemorySaver):
    def search(self, metadata, *, thread_id=None, limit=None):
        infos = super().search({}, thread_id=thread_id, limit=limit)
        return [info for info in infos if metadata.items() <= info.metadata.items()]


DECLARED = {
    "lists_namespaces": (
        "test_copy_copies_every_namespace",
        "test_namespaces_lists_those_with_checkpoints",
        "test_prune_counts_each_namespace_separately",
        "test_search_compares_metadata",
        "test_interrupts_lists_those_without_an_answer",
    ),
    "lists_threads": (
        "test_prune_covers_every_thread",
        "test_search_in_all_threads",
        "test_threads_lists_those_with_checkpoints",
    ),
    "measures_size": ("test_size",),
    "refuses_unstorable_values": (
        "test_an_unstorable_change_raises_with_its_path",
        "test_a_refused_put_creates_no_thread",
        "test_an_unstorable_value_raises_with_its_path",
        "test_unstorable_metadata_and_writes_raise",
    ),
    "waits_for_runs": ("test_release_delete_and_copy_wait_for_a_run",),
}
for quality, tests in DECLARED.items():
    BROKEN[type(f"Declares_{quality}", (Declares,), {quality: True})] = tests


@breaks("test_undeclared_threads_and_size_raise")
class DeniesThreads(MemorySaver):
    lists_threads = False


@breaks("test_delete_idle_deletes_only_idle_threads")
class DeletesByTheAgeOfCheckpoints(MemorySaver):
    def delete_idle(self, thread=None, *, idle_since, dry_run=False, progress=None):
        threads = self.threads() if thread is None else [thread]
        found = [each for each in sorted(threads) if self.get(RunnableConfig(each)).created_at < idle_since]
        for each in found:
            dry_run or self.delete(each)
        return found


def contract_of(saver):
    """Return the contract on savers of a class."""

    class Contract(SaverContract):
        def make_saver(self):
            return saver(lock_timeout=1)

    return Contract()


@pytest.mark.parametrize("saver", list(BROKEN))
def test_a_broken_promise_is_noticed(saver):
    outcomes = {name: outcome(getattr(contract_of(saver), name)) for name in BROKEN[saver]}
    assert outcomes == dict.fromkeys(BROKEN[saver], "failed")


def outcome(test):
    try:
        test()
    except SkipTest:
        return "skipped"
    except Exception:  # noqa: BLE001 - a broken saver may raise anything
        return "failed"
    return "passed"


def run_machine(saver, **options):
    """Run the state machine on savers of a class."""

    class Machine(SaverMachine):
        def make_saver(self):
            return saver(lock_timeout=1)

    Machine.TestCase.settings = settings(report_multiple_bugs=False, **options)
    result = unittest.TestResult()
    Machine.TestCase("runTest").run(result)
    return result


@pytest.mark.sweep(3)
@pytest.mark.parametrize("saver", [SwapsNodes, SortsByClock, ReplacesAtTheEnd, SortsKeys, LosesEveryFifth])
def test_the_state_machine_notices_too(saver):
    # Enough steps that one of the few threads grows to five checkpoints.
    assert not run_machine(saver, max_examples=100, phases=[Phase.generate], stateful_step_count=100).wasSuccessful()


@pytest.mark.parametrize("test", BROKEN[DeclaresIsolation])
def test_a_saver_with_the_default_put_writes_may_declare_isolation(test):
    getattr(contract_of(CopiesValues), test)()


def test_a_saver_with_the_default_methods_passes_the_state_machine():
    result = run_machine(CopiesValues, max_examples=5, stateful_step_count=30)
    assert result.wasSuccessful(), result.failures + result.errors


def test_a_failure_shows_the_expected_and_the_actual_value():
    with pytest.raises(AssertionError) as caught:
        contract_of(SortsByClock).test_list_is_ordered_by_put_not_by_clock_or_id()
    found = ["id 9", "id 8", "id 7", "id 6", "id 5"]
    assert str(caught.value) == f"the ids of list: {found} instead of {found[::-1]}"


def test_no_assertion_of_the_contract_is_bare():
    files = Path(testing.__file__).parent.rglob("*.py")
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    assert len(trees) > 10
    assert [file for file, tree in trees.items() if any(isinstance(node, ast.Assert) for node in ast.walk(tree))] == []


def test_the_contract_runs_under_unittest():
    class Contract(SaverContract, unittest.TestCase):
        def make_saver(self):
            return MemorySaver()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Contract).run(result)
    assert result.wasSuccessful(), result.failures + result.errors
    assert result.testsRun > 60
    reasons = ("HasVersions", "is not implemented", "SupportsDeleteIdle")
    assert all(any(part in reason for part in reasons) for _, reason in result.skipped)


def test_a_contract_without_a_saver_is_an_error():
    with pytest.raises(NotImplementedError):
        SaverContract().test_get_by_id()
    with pytest.raises(AssertionError, match="ValueError not raised"), SaverContract().raises(ValueError):
        pass
    with pytest.raises(NotImplementedError):
        SaverMachine().start()
