"""The concrete methods of BaseCheckpointSaver on a saver that has only the four."""

import threading

import pytest

from graphkit import BaseCheckpointSaver, RunnableConfig, Tag
from graphkit.errors import CheckpointerConfigurationError, CheckpointNotFoundError
from graphkit.testing._values import made, stop
from graphkit.testing.contract import SaverContract


class FourMethods(BaseCheckpointSaver):
    """As short as a saver can be; docs/writing-a-saver.md explains one like it."""

    def __init__(self):
        self.histories = {}
        self.lock = threading.Lock()

    def key(self, config):
        config = RunnableConfig.of(config)
        return config.thread, config.checkpoint_ns

    def list(self, config=None):
        with self.lock:
            return self.histories.get(self.key(config), [])[::-1]

    def get(self, config=None):
        wanted = RunnableConfig.of(config).checkpoint_id
        return next((one for one in self.list(config) if wanted in (None, one.id)), None)

    def put(self, config, checkpoint):
        config = RunnableConfig.of(config)
        with self.lock:
            history = self.histories.get(self.key(config), [])
            if config.checkpoint_id is None:
                self.histories[self.key(config)] = [*history, checkpoint]
                return config.replace(checkpoint_id=checkpoint.id)
            if all(one.id != config.checkpoint_id for one in history):
                raise CheckpointNotFoundError(config.thread, f"checkpoint {config.checkpoint_id}")
            new = [checkpoint if one.id == config.checkpoint_id else one for one in history]
            self.histories[self.key(config)] = new
            return config

    def release(self, config=None):
        thread, _ = self.key(config)
        with self.lock:
            root = self.histories.get((thread, ""), [])[::-1]
            self.histories = {key: history for key, history in self.histories.items() if key[0] != thread}
        return Tag(thread, root)


class TestFourMethods(SaverContract):
    def make_saver(self):
        return FourMethods()

    # The four know no other namespaces than the one that a config names.
    test_namespaces_are_those_that_hold_checkpoints = None
    test_delete_removes_every_namespace = None
    test_copy_copies_all_of_the_active_history = None
    test_search_compares_metadata = None
    test_prune_covers_every_namespace_each_for_itself = None
    test_what_waits_is_found_until_it_is_answered = None

    # Nor a list of the threads, nor sizes.
    test_a_refused_checkpoint_makes_no_thread = None
    test_async_twins_of_what_needs_a_list_of_threads = None
    test_prune_covers_every_thread = None
    test_search_in_all_threads = None
    test_size = None
    test_threads_lists_those_that_hold_checkpoints = None
    test_what_waits_is_found_in_all_threads = None
    test_whoever_holds_the_run_lock_may_release_copy_and_delete = None

    # Refusing values and copying application objects are the four's own work, and this saver is not much of one.
    test_a_change_that_cannot_be_stored_is_refused_by_its_path = None
    test_a_replacement_that_cannot_be_stored_is_refused = None
    test_a_value_that_cannot_be_stored_is_refused_by_its_path = None
    test_metadata_and_writes_that_cannot_be_stored_are_refused = None
    test_changing_what_was_put_changes_nothing = None
    test_changing_what_was_read_changes_nothing = None

    # "Not against two writers at once."
    test_no_write_is_lost_when_many_record_beside_one_checkpoint = None

    # Its release takes no run lock.
    test_release_delete_and_copy_wait_for_a_run = None


def test_what_the_four_cannot_tell_is_an_error_that_says_so():
    saver = FourMethods()
    saver.put(None, made({"n": 1}))
    for ask in (saver.threads, saver.size, saver.interrupts, lambda: saver.prune(keep_last=1)):
        with pytest.raises(CheckpointerConfigurationError, match="FourMethods cannot"):
            ask()


def test_four_methods_copy_search_and_find_what_waits_in_the_root():
    saver = FourMethods()
    saver.put(None, made({"n": 1}, metadata={"k": 1}))
    saver.put_writes(None, {"interrupt:i": stop("x"), "w": 1})
    saver.add_tags(None, "tag")
    saver.copy(None, "u")
    assert [info.metadata for info in saver.search({"k": 1}, thread_id="u")] == [{"k": 1}]
    assert [waiting.node_id for waiting in saver.interrupts("u")] == ["x"]
    assert saver.tags_of(RunnableConfig("u")) == ("tag",)
    assert saver.delete("u") is True
    assert saver.delete("u") is False
