"""Savers among many clients, and SQL savers when the database changes under them."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event

import pytest
from psycopg_pool import ConnectionPool

from graphkit import Checkpoint, RunnableConfig
from graphkit.compat.go_agents import GraphConfig
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    ThreadBusyError,
)
from graphkit.registry import get_saver
from graphkit.testing import made
from savers import PostgresSaver, SqliteSaver
from tests.sql.savers import every_store, fill, put, run_sql
from tests.support.checkpoints import list_ids, list_states
from tests.support.client import start_client
from tests.support.databases import OutcomeUnknownError, limit_read
from tests.support.forked import run_in_child
from tests.support.graphs import asking, make_chain
from tests.support.logs import limit_cache

# Since 3.12 a fork beside other threads warns; that it may still happen is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
T = RunnableConfig("t")


def state_of(name, number):
    return {"name": name, "items": list(range(number))}


@pytest.mark.requirement("H47", "L9")
@pytest.mark.sweep(3)
@pytest.mark.parametrize("open_saver", ["synced_files", "sqlite", "files", "postgres"], indirect=True)
def test_eight_processes_on_one_thread_and_eight_on_their_own_beside_a_reader(open_saver, launcher):
    """Each reading shows the history as it was at a moment, and never goes back."""
    reader = open_saver()
    together = [f"client {number}" for number in range(8)]
    alone = [f"own {number}" for number in range(8)]
    clients = [start_client(launcher, open_saver.opener, name, 25, "shared") for name in together]
    clients += [start_client(launcher, open_saver.opener, name, 25, name) for name in alone]
    seen = []
    while any(client.poll() is None for client in clients):
        found = reader.list("shared")[::-1]
        assert found[: len(seen)] == seen, "what was there stays, in its order"
        seen = found
        for name in together:
            mine = [checkpoint.state for checkpoint in found if checkpoint.state["name"] == name]
            assert mine == [state_of(name, number) for number in range(len(mine))]
    for client, name in zip(clients, [*together, *alone], strict=True):
        ready, *acknowledged = client.communicate()[0].splitlines()
        assert (client.returncode, ready) == (0, "ready")
        assert acknowledged == [f"{name} {number}" for number in range(25)]
    assert sorted(reader.threads()) == [*alone, "shared"]
    assert sorted(list_ids(reader, "shared")) == sorted(f"{name} {number}" for name in together for number in range(25))
    for checkpoint in reader.list("shared"):
        name, _, digits = checkpoint.id.rpartition(" ")
        number = int(digits)
        assert checkpoint.parent_id == (f"{name} {number - 1}" if number else None)
    for name in alone:
        assert list_states(reader, name)[::-1] == [state_of(name, number) for number in range(25)]
    assert reader.verify().ok


def test_a_pool_of_one_connection_is_enough(postgres_opener):
    with ConnectionPool(postgres_opener.args[0], min_size=1, max_size=1) as pool:
        saver = PostgresSaver(pool=pool, schema=postgres_opener.keywords["schema"], lock_timeout=60.0)
        fill(saver, 6)
        assert saver.prune("t", keep_last=2) == 4

        latest = T.with_check_point_id(saver.get(T).id)
        saver.put(latest, made({}))
        would_free = saver.compact(dry_run=True)
        assert saver.compact() == would_free > 0
        saver.copy("t", "u")
        assert saver.release(T).version == 1
        assert saver.verify().ok
        saver.close()


def test_a_copy_to_a_thread_that_another_process_begins_is_a_conflict(saver, open_saver, monkeypatch):
    fill(saver, 3)
    transact = saver._database.transact

    def begin_and_transact(work):
        put(open_saver(), {"n": 1}, thread="u")
        return transact(work)

    monkeypatch.setattr(saver._database, "transact", begin_and_transact)
    with pytest.raises(CheckpointConflictError, match="another process has written to it; copy again"):
        saver.copy("t", "u")
    assert [checkpoint.state for checkpoint in saver.list(RunnableConfig("u"))] == [{"n": 1}]


def test_a_copy_waits_for_no_log_of_its_source_that_a_put_has(saver):
    """The put may be waiting for the end of the copy's transaction."""
    fill(saver, 3)
    saver._lock_token = lambda *_: setattr(saver._store, "shared_log", None)
    saver.copy("t", "u")


def test_a_replay_of_a_history_that_is_deleted_raises(open_saver, monkeypatch):
    limit_read(monkeypatch, 0)
    reader = open_saver()
    other = open_saver()
    for number in range(40):
        put(reader, {"whole": os.urandom(60_000), "number": number})
    replay = reader.replay(T)
    assert next(replay).state["number"] == 0
    other.delete("t")
    with pytest.raises(CheckpointNotFoundError, match="deleted or rewritten"):
        list(replay)


# Commits of unknown outcome


class Unsure:
    """Replaces what changes a database: a commit succeeds or fails, and nobody knows."""

    def __init__(self, database, *, is_committed, times=1):
        self.path = database.path
        self.is_committed = is_committed
        self.times = times
        database.write = self.around(database.write)
        database.write_returning = self.around(database.write_returning)
        database.transact = partial(self.transact, database.transact)

    def fail(self):
        if self.times:
            self.times -= 1
            raise OutcomeUnknownError(self.path, "commit to", "the connection was lost meanwhile")

    def around(self, execute):
        def execute_unsurely(sql, parameters=()):
            if not self.is_committed:
                self.fail()
            result = execute(sql, parameters)
            self.fail()
            return result

        return execute_unsurely

    def transact(self, transact, work):
        def work_unsurely(transaction):
            result = work(transaction)
            if not self.is_committed:
                self.fail()
            return result

        result = transact(work_unsurely)
        self.fail()
        return result


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_commit_of_unknown_outcome_happens_once(open_saver, is_committed, is_new, is_whole):
    saver = open_saver()
    if not is_new:
        fill(saver, 3)
    unsure = Unsure(saver._database, is_committed=is_committed)
    state = {"whole": os.urandom(100_000)} if is_whole else {"items": [], "number": 1}
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state=state)
    saver.put(T, checkpoint)
    assert not unsure.times
    after = put(saver, {**state, "after": 1})
    saver.put_writes(T, {"key": 1})
    fresh = open_saver()
    expected = [after.id, checkpoint.id]
    assert list_ids(fresh, T)[: len(expected)] == expected
    assert len(fresh.list(T)) == len(expected) + (0 if is_new else 3)
    assert fresh.verify().ok


def test_a_commit_whose_outcome_stays_unknown_is_an_error_and_the_next_put_sees_what_is_there(open_saver):
    saver = open_saver()
    fill(saver, 3)
    Unsure(saver._database, is_committed=False, times=2)
    with pytest.raises(OutcomeUnknownError):
        put(saver, {"items": []})
    put(saver, {"items": [1]})
    latest, before, *_ = open_saver().list(T)
    assert (latest.state["items"], before.state["number"]) == ([1], 2)
    assert saver.verify().ok


# A server that has lost what it acknowledged


@pytest.mark.parametrize("use", ["put", "put_writes", "keyframe"])
def test_a_put_behind_rows_that_were_lost_leaves_no_gap(open_saver, use):
    saver = open_saver()
    fill(saver, 6)
    last = saver.get(T)
    # As a failover to a replica that lags does.
    run_sql(
        saver,
        "DELETE FROM {records} WHERE position >= (SELECT max(position) FROM {records} WHERE checkpoint IS NOT NULL "
        "AND history = (SELECT history FROM {histories} WHERE namespace = '')) "
        "AND history = (SELECT history FROM {histories} WHERE namespace = '')",
    )
    if use == "put_writes":
        with pytest.raises(CheckpointNotFoundError):
            saver.put_writes(T.with_check_point_id(last.id), {"key": 1})
    elif use == "keyframe":
        put(saver, {"whole": os.urandom(100_000)})
    else:
        put(saver, {**last.state, "number": 7})
    fresh = open_saver()
    assert last.id not in list_ids(fresh, T)
    assert len(fresh.list(T)) == (5 if use == "put_writes" else 6)
    put(fresh, {"number": 8})
    assert fresh.verify("t").problems == ()


def test_a_put_on_a_row_with_a_wrong_checkpoint_is_an_error_and_ends(open_saver):
    saver = open_saver()
    fill(saver, 6)
    run_sql(saver, "UPDATE {records} SET checkpoint = 'x' WHERE checkpoint IS NOT NULL")
    with pytest.raises(
        CheckpointCorruptionError, match=r"thread 't'.*restore a backup of the database, or delete the thread"
    ):
        put(saver, {"number": 7})
    assert saver.delete("t")
    put(saver, {"number": 7})


def test_a_file_that_was_replaced_is_read_again(sqlite_opener, tmp_path):
    saver = sqlite_opener()
    fill(saver, 6)
    other_path = tmp_path / "other.db"
    with type(saver)(other_path, fsync="never") as other:
        fill(other, 2)
        expected = list_ids(other, T)
    assert len(saver.list(T)) == 6
    for path in tmp_path.glob("store.db-[ws]*"):
        path.unlink()
    other_path.rename(saver.db_file)
    assert list_ids(saver, T) == expected
    assert [checkpoint.state["number"] for checkpoint in saver.list(T)] == [1, 0]
    put(saver, {"number": 2})
    assert len(saver.list(T)) == 3
    assert saver.verify().ok
    saver.close()


# Closing, forks, other processes, async


@every_store
def test_a_forked_child_holds_nothing_and_does_not_wait_for_the_threads_of_its_parent(saver):
    fill(saver, 3)
    is_in_use = Event()
    is_over = Event()

    def use(_log):
        is_in_use.set()
        is_over.wait()

    def put_beside_the_run():
        signal.alarm(20)  # where it hangs, it is ended
        put(saver, {"number": "child"})
        with pytest.raises(ThreadBusyError), saver.run_lock(T, 0):
            pass
        with saver.run_lock("other"):
            assert saver.is_run_locked(T)

    with ThreadPoolExecutor(1) as executor, saver.run_lock(T):
        executor.submit(saver.read_log, T, use, None)
        is_in_use.wait()
        is_well = run_in_child(put_beside_the_run)
        is_over.set()
        assert is_well
        assert saver.is_run_locked(T)
    assert not saver.is_run_locked(T)
    put(saver, {"number": "parent"})
    assert [checkpoint.state["number"] for checkpoint in saver.list(T)] == ["parent", "child", 2, 1, 0]
    assert saver.verify().ok


# Idle threads


def test_idle_threads_are_those_whose_rows_are_old(saver):
    for thread in ("old", "released", "new", "held"):
        fill(saver, 2, thread)
    saver.release("released")
    run_sql(saver, "UPDATE {records} SET written = 1000")
    run_sql(saver, "UPDATE {histories} SET created = 1000")
    moment = datetime.now(UTC) - timedelta(hours=1)
    saver.put_writes("new", {"key": 1})

    assert [*saver.delete_idle(idle_since=moment, dry_run=True)] == ["held", "old"]

    seen = []
    with saver.run_lock("held"):
        assert [*saver.delete_idle(idle_since=moment, dry_run=True)] == ["old"]
        deleted = saver.delete_idle(idle_since=moment, progress=lambda *done: seen.append(done))

    assert deleted == ["old"]
    assert seen == [(1, 2, "held"), (2, 2, "old")]
    assert sorted(saver.threads(released=True)) == ["held", "new", "released"]


def test_logs_used_longest_ago_drop_the_rows_that_they_keep(saver, monkeypatch):
    limit_cache(monkeypatch, 200_000)
    threads = [f"t{number}" for number in range(20)]
    for thread in threads:
        for number in range(12):
            saver.put(thread, made({"n": number}, metadata={"text": f"{number} " * 2_000}))
    sizes = [saver._store.shared_log(thread, "").frames.bytes.kept_size for thread in threads]

    assert sizes[0] == 0
    assert sizes[-1] > 20_000
    assert sum(sizes) <= 200_000
    for thread in threads:
        assert saver.get(thread).state["n"] == 11


def test_a_summary_holds_no_history_while_it_looks_into_nested_ones(tmp_path):
    """Else summaries of a history and of a nested one wait for each other for ever."""

    def find_interrupts(_):
        pool.submit(saver.get, T).result(5)
        return []

    with ThreadPoolExecutor(1) as pool, SqliteSaver(tmp_path / "runs.db") as saver:
        make_chain(inner=make_chain(ask=asking("?")).compile()).compile(checkpoint_saver=saver).invoke({}, T)
        saver.interrupts = find_interrupts
        assert saver.summary(T).checkpoints == 1


@pytest.mark.requirement("G35", "P3")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_graph_runs_and_continues_on_a_database_from_json_alone(kind, request, tmp_path):
    options = {"db_file": str(tmp_path / "missing" / "parent" / "runs.db")}
    if kind == "postgres":
        server = request.getfixturevalue("server")
        options = {"connection_string": server.connection_string, "schema": request.getfixturevalue("schema")}
    text = json.dumps({"checkpoint": {"store": kind, "interval": 1, "preserve": True, "options": options}})

    graph = make_chain({}, add=lambda state: {"n": state.get("n", 0) + 1})
    for expected in (1, 2):
        app = graph.compile(**GraphConfig.from_json(text).compile_options())
        with app.compile_config.saver:
            assert app.invoke({}, T)["n"] == expected

    with pytest.raises(CheckpointerConfigurationError, match=next(iter(options))):
        get_saver(kind)
