"""Recovery after failures and damage, what hive requires of stores, and its CheckpointManager for loops that are no graph."""

import asyncio
import logging
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from graphkit import END, START, Checkpoint, GraphResume, RetryPolicy, RunnableConfig, StateGraph, errors, interrupt
from graphkit.compat.hive import CheckpointManager, CheckpointPolicy, compare
from graphkit.recovery import arecover, last_good, recover
from graphkit.testing import ManualClock
from savers import FileSystemSaver, MemorySaver, SaverWrapper
from tests.support.graphs import connect, invoke, make_chain, make_graph, make_map
from tests.support.logs import flip_in_file, locate_log, read_records

AT = RunnableConfig("t")
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def file_saver(root):
    return FileSystemSaver(root, fsync="never", lock_timeout=0)


def damage(path, *numbers):
    """Flip all bits of a byte in the middle of these records: a single bit is corrected."""
    records = read_records(path)
    for number in numbers:
        record = records[number]
        flip_in_file(path, record.offset + record.size // 2, 0xFF)


def line(saver, calls, *, nodes="abcd", fails=None):
    """A graph of nodes in a line; each counts its calls, one may fail."""

    def action(state, name):
        calls.append(name)
        if name == fails:
            raise ValueError("no")
        return {name: True, "path": [*state.get("path", []), name]}

    actions = {name: partial(action, name=name) for name in nodes}
    return make_chain({}, **actions).compile(checkpoint_saver=saver)


def failed_at(saver, name):
    with pytest.raises(errors.NodeExecutionError):
        line(saver, [], fails=name).invoke({}, AT)


# recover


@pytest.mark.requirement("H12", "H13")
def test_after_a_failure_what_had_finished_is_not_run_again(saver):
    failed_at(saver, "c")
    calls = []
    state = recover(line(saver, calls), "t")
    assert calls == ["c", "d"]
    assert state["path"] == list("abcd")


@pytest.mark.requirement("H12")
def test_recovery_with_an_empty_state(saver):
    saver.put(AT, Checkpoint(node_id="b", next_node_id="c", state={}))
    assert recover(line(saver, []), AT)["path"] == ["c", "d"]


@pytest.mark.requirement("H42", "H45")
def test_a_graph_goes_on_where_damage_lets_it(file_saver, root):
    failed_at(file_saver, "d")
    damage(locate_log(root), -1, -2)
    calls = []
    fresh = FileSystemSaver(root, fsync="never")
    state = asyncio.run(arecover(line(fresh, calls), "t", modifications={"x": 1}))

    assert (state["path"], state["x"]) == (list("abcd"), 1)
    assert calls == ["c", "d"], "c had finished, but its checkpoint is lost"
    assert fresh.verify("t").ok


def test_nothing_to_recover(saver):
    with pytest.raises(errors.CheckpointNotFoundError):
        recover(line(saver, []), "unknown")
    with pytest.raises(errors.CheckpointNotFoundError):
        last_good(saver, "unknown")
    with pytest.raises(errors.CheckpointerConfigurationError, match="checkpoint_saver"):
        recover(line(None, []), "t")


def checkpoints(root, count):
    saver = FileSystemSaver(root, fsync="never")
    ids = []
    for n in range(count):
        step = Checkpoint(node_id=f"n{n}", next_node_id=f"n{n + 1}", state={"n": n, "text": f"{n}" * 50})
        ids.append(saver.put(AT, step).checkpoint_id)
    saver.close()
    return ids


@pytest.mark.requirement("H11", "H45")
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_after_damaged_checkpoints_recovery_uses_the_one_before_and_logs_it(k, root, caplog):
    ids = checkpoints(root, 6)
    damage(locate_log(root), *range(-k, 0))
    saver = FileSystemSaver(root, fsync="never")
    with pytest.raises(errors.CheckpointCorruptionError):
        saver.get(AT)
    with caplog.at_level(logging.WARNING, "graphkit.recovery"):
        good = last_good(saver, "t")

    assert good.id == ids[-k - 1]
    assert good.state["n"] == 5 - k
    assert {record.name for record in caplog.records} == {"graphkit.recovery"}
    assert "is damaged at byte" in caplog.text
    assert "lost: byte " in caplog.text, "what it cannot name"
    assert f"the newest checkpoint that can be read is {good.id}, after node 'n{5 - k}'" in caplog.text
    assert len(list(root.rglob("damaged-*"))) == 1, "the damaged bytes are kept"

    caplog.clear()
    assert last_good(FileSystemSaver(root, fsync="never"), "t").id == good.id
    assert not caplog.records


@pytest.mark.requirement("H45")
def test_nothing_that_reads_is_the_error(root):
    checkpoints(root, 3)
    path = locate_log(root)
    damage(path, *range(2, len(read_records(path))))
    with pytest.raises(errors.CheckpointCorruptionError):
        last_good(FileSystemSaver(root, fsync="never"), "t")


@pytest.mark.requirement("H45")
def test_damage_is_not_repaired_under_a_run(root):
    ids = checkpoints(root, 3)
    damage(locate_log(root), -1)
    holder, other = (FileSystemSaver(root, fsync="never", lock_timeout=0) for _ in range(2))
    with ThreadPoolExecutor(1) as elsewhere, holder.run_lock(AT), pytest.raises(errors.ThreadBusyError):
        elsewhere.submit(last_good, other, "t").result()
    assert last_good(other, "t").id == ids[-2]


@pytest.mark.requirement("H45")
def test_damage_in_a_namespace_is_found_too(root):
    saver = FileSystemSaver(root, fsync="never")
    inner = AT.replace(checkpoint_ns="child")

    for n in range(3):
        for at in (AT, inner):
            saver.put(at, Checkpoint(node_id=f"n{n}", next_node_id=None, state={"n": n}))
    saver.close()
    damage(next(path for path in root.rglob("log") if "child" in str(path)), -1)
    fresh = SaverWrapper(SaverWrapper(FileSystemSaver(root, fsync="never")))

    assert last_good(fresh, "t").state == {"n": 2}
    assert fresh.get(inner).state == {"n": 1}


class Spoilt(SaverWrapper):
    """A saver that cannot repair, some of whose checkpoints do not read."""

    def __init__(self, delegate):
        super().__init__(delegate)
        self.bad = set()

    def get(self, config=None):
        found = super().get(config)
        if found is not None and found.id in self.bad:
            raise errors.CheckpointCorruptionError("row", 0, f"{found.id} does not read")
        return found


@pytest.mark.requirement("H11", "H45")
@pytest.mark.parametrize("k", [1, 2, 3])
def test_without_a_repair_the_history_is_walked_back_and_gone_on_from(k, list_saver, caplog):
    saver = Spoilt(list_saver)
    failed_at(saver, "d")
    ids = [info.id for info in saver.history(AT)]
    saver.bad = {*ids[:k]}
    calls = []

    assert last_good(saver, AT).id == ids[k]
    for bad in saver.bad:
        assert f"checkpoint {bad} cannot be read" in caplog.text
    final = recover(line(saver, calls), "t")
    assert final["path"] == ["a", "b", "c", "d"]
    assert calls == ["a", "b", "c", "d"][3 - k :]
    kept = {info.id for info in saver.history(AT)}
    assert kept > {*ids}, "nothing is taken away"


@pytest.mark.requirement("H45")
def test_pending_writes_of_the_good_one_go_along_and_its_time_does_not(list_saver):
    saver = Spoilt(list_saver)
    first = saver.put(AT, Checkpoint(node_id="a", next_node_id="b", state={"path": ["a"]}, created_at=NEW_YEAR))
    saver.put_writes(first, {"update:0": {"x": 1}})
    saver.bad = {saver.put(AT, Checkpoint(node_id="b", next_node_id="c", state={})).checkpoint_id}
    assert recover(line(saver, []), "t")["x"] == 1
    (copy,) = [info for info in saver.history(AT) if info.parent_id == first.checkpoint_id]
    assert copy.created_at > NEW_YEAR


@pytest.mark.requirement("H45")
def test_what_is_gone_in_the_meantime_is_passed_over(list_saver):
    class Gone(Spoilt):
        def get(self, config=None):
            return None if RunnableConfig.of(config).checkpoint_id == history[1].id else super().get(config)

    saver = Gone(list_saver)
    failed_at(list_saver, "c")
    history = list_saver.history(AT)
    saver.bad = {history[0].id}
    assert last_good(saver, "t").id == history[2].id


@pytest.mark.requirement("H45")
def test_all_spoilt_is_the_first_error(list_saver):
    saver = Spoilt(list_saver)
    failed_at(saver, "b")
    saver.bad = {info.id for info in saver.history(AT)}
    with pytest.raises(errors.CheckpointCorruptionError, match=saver.history(AT)[0].id):
        last_good(saver, "t")


# Stores and runs as a whole


def counting(steps):
    graph = StateGraph({}).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
    return graph.add_conditional_edges("count", lambda state: END if state["n"] >= steps else "count", ["count", END])


@pytest.mark.requirement("H22", "H23")
def test_the_latest_of_1500_is_the_last_one_written_and_the_first_has_the_input(root):
    """In hive, file names sorted as text put step 1000 before step 999."""
    app = counting(1500).compile(checkpoint_saver=FileSystemSaver(root, fsync="never"), max_iterations=2000)
    app.invoke({"n": 0}, AT.replace(metadata={"goal": "g-1"}))
    again = FileSystemSaver(root)

    assert again.get(AT).state == {"n": 1500}

    history = again.history(AT)

    assert [info.metadata["step"] for info in history] == [*range(1500, -1, -1)]
    assert again.get(AT.with_check_point_id(history[-1].id)).state == {"n": 0}
    assert history[-1].metadata["goal"] == "g-1"


def test_a_thread_of_another_engine_is_left_alone(tmp_path):
    saver = FileSystemSaver(tmp_path)
    theirs = Checkpoint(node_id="x", next_node_id="a", state={}, metadata={"graphkit:made_by": "langgraph"})
    saver.put(AT, theirs)
    app = make_chain({}, a=lambda state: None).compile(checkpoint_saver=saver)

    for call in (lambda: app.invoke({}, AT), lambda: app.resume("t"), lambda: app.update_state(AT, {"x": 1})):
        with pytest.raises(errors.GraphRunnerError, match="belongs to langgraph"):
            call()

    (kept,) = saver.list(AT)

    assert kept.id == theirs.id


# CheckpointManager


def managing(saver, clock=None, **policy):
    return CheckpointManager(saver, CheckpointPolicy(**policy), clock=clock or ManualClock(NEW_YEAR))


@pytest.fixture
def manager(saver):
    """A manager that keeps all checkpoints."""
    return managing(saver, retention_strategy="all")


def saved(manager, count, run="run", **options):
    return [manager.save_checkpoint(run, f"n{n}", {"n": n}, next_node_id=f"n{n + 1}", **options) for n in range(count)]


@pytest.mark.requirement("H2")
def test_the_policy_of_hive():
    policy = CheckpointManager(MemorySaver()).policy
    assert policy == CheckpointPolicy()
    assert (policy.enabled, policy.save_frequency, policy.n_nodes) == (True, "every_node", 1)
    assert (policy.retention_strategy, policy.max_checkpoints_per_run, policy.on_error) == ("latest_only", 100, "raise")
    for wrong in (
        {"save_frequency": "often"}, {"retention_strategy": "some"}, {"on_error": "ignore"}, {"n_nodes": 0},
        {"max_checkpoints_per_run": 0}, {"max_age": timedelta(-1)}, {"max_age": 7},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CheckpointPolicy(**wrong)
    with pytest.raises(AttributeError):
        policy.enabled = False


@pytest.mark.requirement("H1", "H3")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"enabled": False}, []),
        ({"save_frequency": "every_n_nodes", "n_nodes": 3}, [3, 6]),
        ({"save_frequency": "every_node", "n_nodes": 3}, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_should_checkpoint(policy, expected):
    manager = managing(MemorySaver(), **policy)
    assert [step for step in range(1, 8) if manager.should_checkpoint(step)] == expected


@pytest.mark.requirement("H38", "H2")
@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ({}, 1),
        ({"retention_strategy": "all"}, 10),
        ({"retention_strategy": "prune_old"}, 10),
        ({"retention_strategy": "prune_old", "max_checkpoints_per_run": 4}, 4),
    ],
)
def test_what_is_kept(policy, left, saver):
    manager = managing(saver, **policy)
    ids = saved(manager, 10)
    assert [info.id for info in manager.list_checkpoints("run")] == ids[-left:]
    assert manager.restore_from_checkpoint("run") == ({"n": 9}, "n10")


@pytest.mark.requirement("H4", "H9", "H14")
def test_save_restore_and_delete(manager):
    first = manager.save_checkpoint("run", "a/b", {"at": "a/b"}, context={"tokens": 0, "seconds": 1.5})
    second = manager.save_checkpoint("run", "c", {"at": "c"}, context={"tokens": 1, "seconds": 1.5})

    assert first != second
    assert manager.restore_from_checkpoint("run") == ({"at": "c"}, "c"), "no next node was named"
    assert manager.restore_from_checkpoint("run", first) == ({"at": "a/b"}, "a/b")

    checkpoint = manager.get_checkpoint("run", second)

    assert (checkpoint.id, checkpoint.parent_id, checkpoint.node_id) == (second, first, "c")
    assert (checkpoint.created_at, checkpoint.metadata["tokens"]) == (NEW_YEAR, 1)
    assert manager.get_checkpoint("run").id == second
    assert manager.get_checkpoint("run", "nowhere") is None
    assert manager.get_checkpoint("unknown") is None
    assert manager.restore_from_checkpoint("unknown") == (None, None)
    with pytest.raises(errors.CheckpointNotFoundError, match="nowhere"):
        manager.restore_from_checkpoint("run", "nowhere")

    saved(manager, 1, run="other")
    assert [manager.delete_checkpoints("run") for _ in range(2)] == [2, 0]
    assert manager.list_checkpoints("run") == []
    assert len(manager.list_checkpoints("other")) == 1


@pytest.mark.requirement("H12", "H32", "H6", "H14", "H15", "H16")
def test_the_session_state(manager):
    ids = saved(manager, 3, context={"goal": "x", "plan": ["p"]})
    assert manager.session_state("run") == {
        "paused_at": "n2",
        "resume_from": "n3",
        "memory": {"n": 2},
        "execution_path": ["n0", "n1", "n2"],
        "checkpoint_id": ids[2],
        "context": {"goal": "x", "plan": ["p"]},
    }
    assert manager.session_state("run", ids[1])["execution_path"] == ["n0", "n1"]
    assert manager.session_state("unknown") is None
    manager.session_state("run")["memory"]["n"] = 9
    assert manager.restore_from_checkpoint("run")[0] == {"n": 2}


@pytest.mark.requirement("H35", "H31")
def test_listing_is_filtered(manager):
    kinds = ["node_complete", "safe_point", "user_checkpoint", "pause", "loop_iteration", "edge_transition"]
    for kind in kinds:
        manager.save_checkpoint("run", f"at {kind}", {}, kind=kind, clean=kind != "safe_point")

    def find(**options):
        return [info.metadata["source"] for info in manager.list_checkpoints("run", **options)]

    assert find() == kinds
    assert [find(kind=kind) for kind in kinds] == [[kind] for kind in kinds]
    assert (len(find(clean=True)), find(clean=False)) == (5, ["safe_point"])
    assert (find(node_id="at pause"), find(node_id="at pause", kind="safe_point")) == (["pause"], [])


@pytest.mark.requirement("H20", "H40", "H44")
def test_runs_are_listed_with_their_status(file_saver, root):
    manager = managing(file_saver, retention_strategy="all")

    assert manager.list_runs() == []

    for run, following in (("c", END), ("a", "next"), ("b", None)):
        saved(manager, 2, run=run)
        manager.save_checkpoint(run, "last", {}, next_node_id=following)
    failed_at(file_saver, "c")

    found = {
        status: [info.thread_id for info in manager.list_runs(status=status)]
        for status in (None, "finished", "stalled", "failed")
    }
    assert found == {None: ["a", "b", "c", "t"], "finished": ["c"], "stalled": ["a", "b"], "failed": ["t"]}
    assert [info.node_id for info in manager.list_runs(limit=2, offset=2)] == ["last", "b"]

    flip_in_file(locate_log(root, "b"), 30)
    later = managing(FileSystemSaver(root))
    assert [info.thread_id for info in later.list_runs()] == ["a", "c", "t"], "a damaged run hides no other"


@pytest.mark.requirement("H35")
def test_the_latest_clean_one(manager):
    assert manager.latest_clean("run") is None
    good = saved(manager, 3)[-1]
    saved(manager, 2, clean=False)
    assert manager.latest_clean("run").id == good
    assert manager.restore_from_checkpoint("run", manager.latest_clean("run").id) == ({"n": 2}, "n3")


@pytest.mark.requirement("H44")
def test_compare(manager):
    first = manager.save_checkpoint("run", "a", {"same": 1, "gone": [1], "long": "x" * 2000, "n": 1})
    second = manager.save_checkpoint("run", "b", {"same": 1, "new": {"k": 2}, "long": "y" * 2000, "n": 2})
    added, removed, changed, new_nodes = manager.compare("run", first, second)

    assert new_nodes == ["b"]
    assert (added, removed) == ({"new": "{'k': 2}"}, {"gone": "[1]"})
    assert list(changed) == ["long", "n"]
    assert changed["n"] == ("1", "2")
    assert changed["long"] == ("'" + "x" * 499 + "... (2002 characters)", "'" + "y" * 499 + "... (2002 characters)")

    one = manager.get_checkpoint("run", first)

    assert compare(one, one) == ({}, {}, {}, ())

    with pytest.raises(errors.CheckpointNotFoundError):
        manager.compare("run", first, "nowhere")


@pytest.mark.requirement("H37")
def test_pruning_by_age(saver):
    clock = ManualClock(NEW_YEAR)
    manager = managing(saver, clock, retention_strategy="all", max_age=timedelta(days=7))
    for day in range(10):
        manager.save_checkpoint("run", f"day{day}", {})
        clock.advance(timedelta(days=1))

    assert [info.node_id for info in manager.list_checkpoints("run")] == [f"day{day}" for day in range(2, 10)]

    clock.advance(timedelta(days=365))
    assert manager.prune("run") == 7, "the latest never goes"
    assert manager.prune("run") == 0
    assert managing(saver, clock, retention_strategy="all").prune("run") == 0


class Broken(SaverWrapper):
    """A store whose disk is full and that cannot be read."""

    def _fail(self, *_args, **_options):
        raise errors.CheckpointStorageError("/store", "use", OSError(28, "No space left on device"))

    get = put = history = delete = prune = namespaces = _fail


@pytest.mark.requirement("H10")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("save_checkpoint", None),
        ("restore_from_checkpoint", (None, None)),
        ("get_checkpoint", None),
        ("list_checkpoints", []),
        ("delete_checkpoints", 0),
        ("session_state", None),
        ("latest_clean", None),
        ("prune", 0),
        ("compare", ({}, {}, {}, ())),
    ],
)
def test_failing_is_loud_or_quiet(caplog, name, expected):
    loud, quiet = (managing(Broken(MemorySaver()), max_age=timedelta(1), on_error=on) for on in ("raise", "warn"))
    arguments = {"save_checkpoint": ("a", {}), "compare": ("a", "b")}.get(name, ())
    with pytest.raises(errors.CheckpointStorageError):
        getattr(loud, name)("run", *arguments)
    assert getattr(quiet, name)("run", *arguments) == expected
    assert f"{name} failed" in caplog.text
    assert "No space left" in caplog.text


@pytest.mark.requirement("H8", "H47")
def test_a_value_that_cannot_be_stored_keeps_what_was_there(file_saver):
    manager = managing(file_saver)
    manager.save_checkpoint("run", "a", {"n": 1})
    with pytest.raises(errors.CheckpointSerializationError, match="handle"):
        manager.save_checkpoint("run", "b", {"handle": object()})
    assert manager.restore_from_checkpoint("run") == ({"n": 1}, "a")
    assert managing(file_saver, on_error="warn").save_checkpoint("run", "b", {"handle": object()}) is None


@pytest.mark.requirement("H9")
def test_a_run_of_a_graph_is_not_saved_into(file_saver):
    manager = managing(file_saver)
    with ThreadPoolExecutor(1) as elsewhere, file_saver.run_lock(AT), pytest.raises(errors.ThreadBusyError):
        elsewhere.submit(manager.save_checkpoint, "t", "a", {}).result()
    assert manager.save_checkpoint("t", "a", {}) is not None


def are_clean(saver):
    return [info.metadata.get("clean", True) for info in saver.history(AT)]


@pytest.mark.requirement("H35")
@pytest.mark.parametrize("failed", ["", "a", "b"], ids=["neither", "retried", "resumed"])
def test_a_retry_and_a_failure_are_still_known_after_a_stop_in_a_fork(tmp_path, failed):
    broken = {*failed}

    def flaky(state):
        if "a" in broken:
            broken.remove("a")
            raise ConnectionError("once")

    def ask(state):
        if "b" in broken:
            broken.remove("b")
            raise ValueError("broken")
        interrupt("go on?")

    graph = make_graph({}, "START>a,b a>join b>join join>END", a=flaky, b=ask, join=lambda state: None)
    retry = RetryPolicy(initial_delay=0.001) if failed == "a" else None
    saver = FileSystemSaver(tmp_path)
    app = graph.compile(checkpoint_saver=saver, retry=retry)
    with suppress(errors.NodeExecutionError):
        app.invoke({}, AT)
    if failed == "b":
        app.resume(AT)
    graph.compile(checkpoint_saver=FileSystemSaver(tmp_path)).invoke(GraphResume("yes"), AT)
    assert are_clean(saver) == [not failed, not failed, True]


# --- what a failed run reports ----------------------------------------------------------------------------------------


CONFIG = RunnableConfig("order-1")


def ask_warehouse():
    raise ConnectionError("the warehouse does not answer")


def check(state):
    return {"stock": ask_warehouse()}


def fail(app, config=CONFIG):
    with pytest.raises(errors.NodeExecutionError) as caught:
        app.invoke({}, config)
    return caught.value


async def acheck(state):
    ask_warehouse()


FAILING = {
    "a node": make_chain({}, check=check),
    "an asynchronous node": make_chain({}, check=acheck),
    "a branch": make_graph({}, "START>a,b a>END b>END", a=check, b=lambda state: {}),
    "a map": make_map(check, [1], {}),
}


@pytest.mark.parametrize("where", FAILING)
def test_the_traceback_ends_in_the_line_that_raised(where):
    with pytest.raises(errors.NodeExecutionError) as caught:
        invoke(FAILING[where].compile(), {}, how="async" if where == "an asynchronous node" else "sync")
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.line == 'raise ConnectionError("the warehouse does not answer")'
    assert isinstance(caught.value.__cause__, ConnectionError)


CHAIN = make_chain({}, first=lambda state: {}, check=check)
NESTED = make_chain({}, outer=make_chain({}, middle=make_chain({}, check=check).compile()).compile())


@pytest.mark.parametrize(
    ("graph", "options", "words"),
    [
        (CHAIN, {}, ["'order-1'", "'check'", "step 2", "resume('order-1')"]),
        (CHAIN, {"max_iterations": 1}, ["'check'", "resume('order-1')"]),
        (NESTED, {}, ["'outer/middle/check'", "resume('order-1')"]),
    ],
    ids=["a node", "the limit", "a node of a nested graph"],
)
def test_the_one_note_of_an_error_names_thread_node_step_and_the_way_on(graph, options, words):
    app = graph.compile(checkpointer=MemorySaver(), **options)
    with pytest.raises(errors.GraphRunnerError) as caught:
        app.invoke({}, CONFIG)
    (note,) = caught.value.__notes__
    for part in words:
        assert part in note


def test_the_traceback_of_another_process_is_kept(tmp_path):
    saver = FileSystemSaver(tmp_path)
    with ProcessPoolExecutor(1) as executor:
        graph = connect(StateGraph({}).add_node("check", check, executor=executor), "START>check check>END")
        fail(graph.compile(checkpointer=saver))

    assert "in ask_warehouse" in saver.summary(CONFIG).failure["traceback"]
    saver.close()


def test_the_store_keeps_the_cause_and_the_end_of_a_long_traceback():
    def descend(depth):
        if depth == 0:
            ask_warehouse()
        # Long lines, and different ones, so that Python prints each of them.
        return descend(depth - 1) if depth % 2 else descend(depth - 1) + len("x" * 100 + "y" * 100 + "z" * 100)

    saver = MemorySaver()
    fail(make_chain({}, check=lambda state: descend(100)).compile(checkpointer=saver))

    failure = saver.summary(CONFIG).failure
    assert failure["cause"] == {"type": "ConnectionError", "message": "the warehouse does not answer"}
    recorded = failure["traceback"]
    assert len(recorded) <= 8000
    assert "in ask_warehouse" in recorded
