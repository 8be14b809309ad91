"""A copy, fork or import that has not ended: no run and no worker takes it, every listing says so, and the next one replaces or ends it.

The process dies at each call that stores something. In this process: from then on, every such call raises. The target is a
store in memory, one that has only what a saver must have, one in files, one in a database.
"""

import logging
from functools import partial
from typing import TypedDict
from unittest.mock import patch

import pytest

from graphkit import Checkpoint, GraphResume, RunnableConfig, interrupt, operations
from graphkit.errors import CheckpointConflictError, CheckpointStorageError
from graphkit.recovery import recover
from graphkit.testing import made
from graphkit.transfer import copy_threads, export_threads, import_threads
from graphkit.worker import Worker
from savers import FileSystemSaver, MemorySaver, SqliteSaver, ValidatingSaver, VersionedMemorySaver
from tests.support.checkpoints import list_ids, with_lazy_state
from tests.support.graphs import Killed, make_chain
from tests.support.savers import ListingSaver, open_kind
from tests.support.sweeps import in_turn
from tests.support.threads import assert_same

T = RunnableConfig("t")
NEW = RunnableConfig("new")
STORING = ("put", "put_writes", "add_tags", "remove_tags", "release", "delete", "compact")


class State(TypedDict):
    n: int
    answer: str


class Effects(list):
    """What nodes have done to the world."""

    def node(self, name):
        def act(state):
            self.append(name)
            return {"n": state.get("n", 0) + 1}

        return act


def ask(state):
    return {"answer": interrupt("go on?")}


def make_app(saver, effects):
    """first -> inner (one -> two) -> ask (waits) -> last."""
    inner = make_chain(State, one=effects.node("one"), two=effects.node("two"))
    graph = make_chain(State, first=effects.node("first"), inner=inner.compile(), ask=ask, last=effects.node("last"))
    return graph.compile(checkpoint_saver=saver)


def run_until(saver, thread, stop):
    """Run a thread until it has finished, waits, or is left as by a process that died after the first node."""
    app = make_app(saver, Effects())
    config = RunnableConfig(thread)
    if stop == "crashed":
        for output in app.stream({"n": 0}, config):
            if output.node == "first":
                return
    app.invoke({"n": 0}, config)
    saver.add_tags(config, "kept")
    if stop == "finished":
        app.invoke(GraphResume("yes"), config)


class Store:
    """A store that can be opened again, as after the death of a process."""

    def __init__(self, kind, path):
        self.kind = kind
        self.open = {
            "memory": VersionedMemorySaver,
            "wrapped": lambda: ValidatingSaver(VersionedMemorySaver()),  # refuses checkpoints without a state
            "lists": ListingSaver,
            "files": partial(FileSystemSaver, path, fsync="never"),
            "sqlite": partial(SqliteSaver, f"{path}.db", fsync="never"),
        }[kind]
        self.opened = self.open()
        self.has_versions = kind != "lists"

    def close(self):
        if self.kind in {"files", "sqlite"}:
            self.opened.close()

    def reopen(self):
        """Return a saver that knows nothing of what the one before was about to do."""
        if self.kind in {"files", "sqlite"}:
            self.close()
            self.opened = self.open()
        return self.opened


@pytest.fixture(params=in_turn(["memory", "wrapped", "lists", "files", "sqlite"], "store", most=2))
def store(request, tmp_path):
    made = Store(request.param, tmp_path / "store")
    yield made
    made.close()


class Calls:
    """Counts the calls that store something, and lets the process die before or after one of them, counted from 1."""

    def __init__(self, last=0, when="after"):
        self.last = last
        self.when = when
        self.count = 0

    def watch(self, method):
        def stores(*arguments, **options):
            self.count += 1
            if self.last and (self.count > self.last or (self.count == self.last and self.when == "before")):
                raise Killed
            result = method(*arguments, **options)
            if self.count == self.last:
                raise Killed
            return result

        return stores

    def during(self, action, saver):
        """Call an action; return whether it survived."""
        for name in STORING:
            if hasattr(saver, name):
                setattr(saver, name, self.watch(getattr(saver, name)))
        try:
            action(saver)
        except Killed:
            return False
        finally:
            for name in STORING:
                saver.__dict__.pop(name, None)
        return True


class FailingCall(Calls):
    """Lets one of these calls fail, as a full disk does; what is removed makes room."""

    def watch(self, method):
        def stores(*arguments, **options):
            if method.__name__ != "delete":
                self.count += 1
                if self.count == self.last:
                    raise CheckpointStorageError("store", "write to", "the disk is full")
            return method(*arguments, **options)

        return stores


def status_of(saver, thread):
    summary = saver.summary(RunnableConfig(thread))
    return None if summary is None else summary.latest.status


def is_same(source, target, thread, other):
    try:
        assert_same(source, target, thread, other)
    except AssertionError:
        return False
    return True


def assert_not_run(saver, thread, caplog):
    """No worker takes the thread, and none makes a noise about it; a resume is refused."""
    effects = Effects()
    app = make_app(saver, effects)
    with caplog.at_level(logging.INFO, "graphkit"):
        assert Worker(saver, app).run(once=True) == 0
    assert caplog.messages == []
    if saver.get(RunnableConfig(thread)) is not None:
        with pytest.raises(CheckpointConflictError, match="it is incomplete"):
            app.resume(thread)
    assert effects == []


def sweep_deaths(store, thread, action, is_whole, sweep, caplog, prepare=lambda saver: None):
    """Let the process die at each call of an action; return how many there are."""
    saver = store.reopen()
    prepare(saver)
    calls = Calls()
    assert calls.during(action, saver)
    assert is_whole(saver)
    for call in sweep.some(range(1, calls.count + 1), 5):
        for when in ("before", "after"):
            saver = store.reopen()
            saver.delete(thread)
            prepare(saver)
            assert not Calls(call, when).during(action, saver)
            saver = store.reopen()
            if not is_whole(saver):
                assert status_of(saver, thread) in {None, "incomplete"}, (call, when)
                if saver.namespaces(thread):
                    assert thread in saver.threads()
                assert_not_run(saver, thread, caplog)
                action(saver)
            assert is_whole(saver), (call, when)
    return calls.count


def lines_of(saver, thread="t"):
    return [*export_threads(saver, [thread])]


@pytest.mark.parametrize("stop", ["finished", "waiting", "in the middle"])
def test_no_moment_of_a_fork_leaves_a_thread_that_runs(store, stop, sweep, caplog):
    run_until(store.opened, "t", "waiting" if stop == "waiting" else "finished")
    history = store.opened.history(T)
    info = history[2 if stop == "in the middle" else 0]
    at = T.with_check_point_id(info.id)
    operations.fork(store.opened, at, "whole", created_at=info.created_at)
    expected = lines_of(store.opened, "whole")[2:-1]
    store.opened.delete("whole")

    def fork(saver):
        operations.fork(saver, at, "new", created_at=info.created_at)

    def is_whole(saver):
        return status_of(saver, "new") not in {None, "incomplete"} and lines_of(saver, "new")[2:-1] == expected

    assert sweep_deaths(store, "new", fork, is_whole, sweep, caplog) >= 8


@pytest.mark.parametrize("stop", ["finished", "waiting"])
def test_no_moment_of_a_savers_own_copy_leaves_a_thread_that_runs(store, stop, sweep, caplog):
    run_until(store.opened, "t", stop)

    def is_whole(saver):
        return status_of(saver, "new") != "incomplete" and is_same(saver, saver, "t", "new")

    calls = sweep_deaths(store, "new", lambda saver: saver.copy("t", "new"), is_whole, sweep, caplog)
    # A store that copies at once calls no method of its own; tests/disk lets the file saver die at each system call.
    assert calls >= {"lists": 14, "files": 1}.get(store.kind, 0)


def make_source(store, stop):
    """Thread t, with a version if the store has versions; its run has stopped in some way."""
    source = VersionedMemorySaver() if store.has_versions else ListingSaver()
    if store.has_versions:
        run_until(source, "t", "waiting")
        source.release(T)
    run_until(source, "t", stop)
    return source


def has_same_versions(source, target):
    if not isinstance(source, VersionedMemorySaver):
        return True
    return [*target.versions_by_thread_id("t")] == [1] and all(
        [*target.tag(at, 1).checkpoints] == [*source.tag(at, 1).checkpoints]
        for at in (T, T.replace(checkpoint_ns="inner"))
    )


def make_transfer(way, source):
    """Return a function that copies the source, or imports what it exports, to a saver."""
    if way == "copy":
        return lambda saver: copy_threads(source, saver)
    lines = lines_of(source)
    return lambda saver: import_threads(saver, lines)


@pytest.mark.sweep(2, of=("way", "stop"), in_turn=True)
@pytest.mark.parametrize("stop", ["finished", "waiting", "crashed"])
@pytest.mark.parametrize("way", ["copy", "import"])
def test_no_moment_of_a_copy_to_another_store_leaves_a_thread_that_runs(store, way, stop, sweep, caplog):
    source = make_source(store, stop)
    bring = make_transfer(way, source)

    def is_whole(saver):
        is_complete = status_of(saver, "t") not in {None, "incomplete"}
        return is_complete and is_same(source, saver, "t", "t") and has_same_versions(source, saver)

    assert sweep_deaths(store, "t", bring, is_whole, sweep, caplog) >= 5


@pytest.mark.parametrize("way", ["copy", "import"])
def test_no_moment_of_bringing_what_is_new_leaves_a_thread_that_runs(store, way, sweep, caplog):
    """A thread was copied after its run had crashed. The run was resumed, and the thread is copied again."""
    source = ListingSaver()
    run_until(source, "t", "crashed")
    early = VersionedMemorySaver()
    copy_threads(source, early, ["t"])
    early_lines = lines_of(source)
    make_app(source, Effects()).invoke(None, T)
    source.add_tags(T.with_check_point_id(source.history(T)[-1].id), "late")
    bring = make_transfer(way, source)

    def is_whole(saver):
        is_complete = status_of(saver, "t") not in {None, "incomplete"}
        return is_complete and (is_same(source, saver, "t", "t") or is_same(early, saver, "t", "t"))

    prepare = partial(import_threads, lines=early_lines)
    assert sweep_deaths(store, "t", bring, is_whole, sweep, caplog, prepare) >= 10


def make_incomplete(store, call):
    """Let a copy of a waiting thread with a version die after a call; return the store that has the half."""
    source = make_source(store, "waiting")
    assert not Calls(call).during(lambda saver: copy_threads(source, saver), store.opened)
    saver = store.reopen()
    assert status_of(saver, "t") == "incomplete"
    return saver


def list_refused(saver, app):
    """What no incomplete thread accepts."""
    oldest = T.with_check_point_id(saver.history(T)[-1].id)
    return {
        "resume": lambda: app.invoke(None, T),
        "resume of a past checkpoint": lambda: app.resume(oldest),
        "input": lambda: app.invoke({"n": 7}, T),
        "input to a past checkpoint": lambda: app.invoke({"n": 7}, oldest),
        "update_state": lambda: app.update_state(T, {"n": 7}),
        "update_state of a past checkpoint": lambda: app.update_state(oldest, {"n": 7}),
        "recover": lambda: recover(app, "t"),
        "answer": lambda: operations.answer(saver, "t", "yes"),
        "update": lambda: operations.update(saver, "t", {"n": 7}),
        "rollback": lambda: operations.rollback(saver, oldest),
        "submit": lambda: operations.submit(saver, {}, "t"),
        "submit with a key": lambda: operations.submit(saver, {}, "t", key="k"),
        "fork": lambda: operations.fork(saver, "t", "new"),
        "copy": lambda: saver.copy("t", "new"),
        "copy to another store": lambda: copy_threads(saver, VersionedMemorySaver(), ["t"], versions=False),
        "export": lambda: lines_of(saver),
    }


@pytest.mark.parametrize("call", [1, 5])
def test_an_incomplete_thread_accepts_nothing(store, call):
    saver = make_incomplete(store, call)
    effects = Effects()
    before = [*saver.history(T)]
    for attempt in list_refused(saver, make_app(saver, effects)).values():
        with pytest.raises(CheckpointConflictError, match=r"'t': it is incomplete: .* of 't' .* delete the thread$"):
            attempt()
    assert effects == []
    assert [*saver.history(T)] == before
    assert [*saver.threads()] == ["t"]


def test_the_history_of_a_nested_graph_is_incomplete_with_its_thread(store):
    saver = make_incomplete(store, 1)
    inner = T.replace(checkpoint_ns="inner")
    saver.put(inner, Checkpoint(node_id="one", next_node_id="two", state={"n": 1}))
    app = make_app(saver, Effects())
    for attempt in (lambda: app.update_state(inner, {"n": 7}), lambda: app.invoke({"n": 7}, inner)):
        with pytest.raises(CheckpointConflictError, match="it is incomplete"):
            attempt()


def test_a_version_that_only_has_to_be_released_does_not_run(store, caplog):
    """A version equals that of the source from then on, so its mark is a pending write."""
    if not store.has_versions:
        pytest.skip("keeps no versions")
    source = make_source(store, "finished")
    with patch.object(store.opened, "release", side_effect=Killed), pytest.raises(Killed):
        copy_threads(source, store.opened)
    saver = store.reopen()
    assert "graphkit:incomplete" not in saver.get(T).metadata
    assert status_of(saver, "t") == "incomplete"
    assert_not_run(saver, "t", caplog)
    for name, attempt in list_refused(saver, make_app(saver, Effects())).items():
        # A moment later there is no history, which accepts input, and knows no past checkpoint.
        if "input" not in name and "past" not in name:
            with pytest.raises(CheckpointConflictError, match="it is incomplete"):
                attempt()
    copy_threads(source, saver)
    assert_same(source, saver)
    assert has_same_versions(source, saver)


def test_no_moment_of_the_default_prune_leaves_a_thread_that_runs(sweep, caplog):
    source = ListingSaver()
    run_until(source, "t", "waiting")
    calls = Calls()
    assert calls.during(lambda saver: saver.prune("t", keep_last=1), source)

    for call in sweep.some(range(1, calls.count + 1), 5):
        run_until(saver := ListingSaver(), "t", "waiting")
        before = [*saver.history(T)]
        assert not Calls(call, "before").during(lambda saver: saver.prune("t", keep_last=1), saver)
        # Between the root and the nested history, the thread is complete: each history is pruned by itself.
        if [*saver.history(T)] not in (before, before[:1]):
            assert status_of(saver, "t") in {None, "incomplete"}
            assert_not_run(saver, "t", caplog)
        run_until(saver, "whole", "finished")
        if status_of(saver, "t") == "incomplete":
            assert saver.prune("t", keep_last=1, keep_interrupted=False) == 0
            with pytest.raises(CheckpointConflictError, match="it is incomplete"):
                operations.fork(saver, "whole", "t")


# What takes the place of an incomplete thread


def test_a_fork_and_copies_of_other_threads_take_the_place_of_an_incomplete_thread(store):
    saver = make_incomplete(store, 5)
    run_until(saver, "whole", "finished")
    for bring in (partial(operations.fork, saver), saver.copy):
        bring("whole", "t")
        assert status_of(saver, "t") == "finished"
        assert list_ids(saver, "t") == list_ids(saver, "whole")
        saver.delete("t")
        make_incomplete(store, 5)
    other = make_source(store, "finished")
    copy_threads(other, store.opened)
    assert_same(other, store.opened)
    assert has_same_versions(other, store.opened)


def test_a_thread_that_was_complete_is_never_removed(store):
    """Half of what is new was added to it: only the same source can add the rest."""
    saver = store.opened
    run_until(source := ListingSaver(), "t", "crashed")
    copy_threads(source, saver, ["t"])
    make_app(source, Effects()).invoke(None, T)

    for call in (4, 3):
        assert not Calls(call).during(lambda target: copy_threads(source, target, ["t"]), saver)

    before = [*saver.history(T)]
    run_until(saver, "whole", "finished")
    run_until(other := ListingSaver(), "t", "finished")
    fork = partial(operations.fork, saver, "whole", "t")
    for bring in (fork, partial(saver.copy, "whole", "t"), partial(copy_threads, other, saver, ["t"])):
        with pytest.raises(CheckpointConflictError, match="it is incomplete"):
            bring()
    assert [*saver.history(T)] == before
    copy_threads(source, saver, ["t"])
    assert_same(source, saver)


def test_if_the_source_is_lost_a_checkpoint_of_the_half_can_be_forked(store):
    saver = make_incomplete(store, 5)
    latest, *others = saver.history(T)

    with pytest.raises(CheckpointConflictError, match="it is incomplete"):
        operations.fork(saver, T.with_check_point_id(latest.id), "saved")

    forked = operations.fork(saver, T.with_check_point_id(others[0].id), "saved")

    assert forked.checkpoints == len(others)
    assert make_app(saver, effects := Effects()).resume("saved") is not None
    assert effects[:1] in (["first"], ["one"])


# Failures


def test_a_fork_that_fails_leaves_no_thread(store):
    saver = store.opened
    run_until(saver, "t", "finished")
    calls = Calls()
    assert calls.during(lambda target: operations.fork(target, "t", "counted"), saver)

    for call in range(1, calls.count):
        with pytest.raises(CheckpointStorageError, match="disk is full"):
            FailingCall(call).during(lambda target: operations.fork(target, "t", "new"), saver)
        assert [*saver.namespaces("new")] == []
    operations.fork(saver, "t", "new")


def test_all_of_a_copy_is_on_the_disk_before_it_is_complete_and_then_its_end_is():
    class Flushing(MemorySaver):
        statuses = ()

        def flush(self):
            self.statuses += (self.recent(T, limit=1)[0].status,)

    source, target = MemorySaver(), Flushing()
    source.put(T, made(next_node_id="__END__"))

    copy_threads(source, target)

    assert (target.statuses[0], target.statuses[-1]) == ("incomplete", "finished")


def test_a_fork_into_a_thread_with_versions_keeps_them_when_it_fails():
    saver = VersionedMemorySaver()
    run_until(saver, "t", "finished")
    run_until(saver, "new", "finished")
    saver.release(NEW)
    with pytest.raises(CheckpointStorageError) as caught:
        FailingCall(3).during(lambda target: operations.fork(target, "t", "new"), saver)
    assert "has released versions" in "".join(caught.value.__notes__)
    assert [*saver.versions_by_thread_id("new")] == [1]
    assert status_of(saver, "new") == "incomplete"
    with pytest.raises(CheckpointConflictError, match="has released versions, which must stay"):
        operations.fork(saver, "t", "new")


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_watch_reports_a_copy_when_it_has_ended(tmp_path, kind):
    source = ListingSaver()
    effects = Effects()
    app = make_chain(State, a=effects.node("a"), b=effects.node("b")).compile(checkpoint_saver=source)
    app.invoke({"n": 0}, T)
    get_writes = source.get_writes

    def look(config):
        while changes.get(0.1) is not None:
            assert kind == "file", "a watch that polls finds no half of a copy"
        return get_writes(config)

    source.get_writes = look
    seen = []
    with open_kind(kind, tmp_path) as saver, saver.watch(latest=True, interval=0.001) as changes:
        copy_threads(source, saver, ["t"])
        while seen[-1:] != ["finished"]:
            seen.append(changes.get(60).checkpoint.status)
    if kind == "memory":
        assert seen == ["running", "running", "finished"]


@pytest.mark.parametrize("latest", [False, True])
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_watch_that_begins_during_a_fork_reports_its_end_and_no_delete(tmp_path, kind, latest):
    watches = []

    def begin(saver):
        watches.append(saver.watch(NEW, latest=latest, interval=0.001))
        assert (watches[-1].get(0.1) is not None) is latest

    with open_kind(kind, tmp_path) as saver:
        run_until(saver, "t", "finished")
        with patch.object(type(saver), "flush", begin):
            operations.fork(saver, "t", "new")
        with watches[1], watches[0] as changes:
            while changes.get(60).checkpoint.status != "finished":
                pass


class DecodingOnFirstUse(ListingSaver):
    """A saver whose states are decoded when they are first read, from a store that a release empties."""

    def list(self, config=None):
        return [with_lazy_state(each, partial(self._load, each.id, config)) for each in super().list(config)]

    def put(self, config, checkpoint):
        return super().put(config, checkpoint.with_state(checkpoint.state))

    def _load(self, checkpoint_id, config):
        stored = {kept.id: kept for kept in super().list(config)}
        return stored[checkpoint_id].state


def test_the_default_prune_reads_all_states_before_it_releases_them():
    saver = DecodingOnFirstUse()
    for number in range(3):
        saver.put(RunnableConfig("t"), made({"n": number}))
    assert saver.prune("t", keep_last=2) == 1
    assert [checkpoint.state["n"] for checkpoint in saver.list(RunnableConfig("t"))] == [2, 1]
