"""Retention policies: what stays, which threads they choose, alerts, files that are wrong, and workers that apply them."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from graphkit import CheckpointerConfigurationError, CheckpointStorageError, RunnableConfig
from graphkit._saver import retention_policy
from graphkit.retention import RetentionPolicy
from graphkit.testing import ScriptedSaver, made
from graphkit.worker import Worker
from savers import AccessControlledSaver, FileSystemSaver, MemorySaver, SaverWrapper, acting_as
from tests.support.checkpoints import make_interrupt
from tests.support.graphs import LOG, make_chain
from tests.support.retention import fill, ids
from tests.support.savers import SAVER_KINDS, ListingSaver, ListSaver, open_kind, saver_fixture
from tests.support.sweeps import ALL
from tests.support.terminal import assert_refused, damage, graphkit
from tests.support.workers import PATIENCE, serving

saver = saver_fixture([*SAVER_KINDS, "postgres"], most=ALL, four_methods=ListingSaver)


@pytest.mark.requirement("P59")
def test_a_checkpoint_stays_if_any_rule_keeps_it(saver):
    fill(saver, "t", days=3)
    saver.add_tags(RunnableConfig("t", "c0"), "golden")
    saver.put_writes(RunnableConfig("t", "c1"), {"interrupt:1": make_interrupt()})
    policy = RetentionPolicy(keep_last=2, max_age="1d", keep_tags=["golden"])
    assert policy.apply(saver, dry_run=True).removed == 1
    assert len(ids(saver, "t")) == 5

    report = policy.apply(saver)

    assert (report.removed, report.pruned, report.threads) == (1, ("t",), 1)
    assert ids(saver, "t") == ["c4", "c3", "c1", "c0"]
    assert policy.apply(saver).removed == 0


def test_early_writes_that_a_prune_left_when_it_was_cut_short_go_with_the_next_pass():
    saver = MemorySaver()
    fill(saver, "t")
    early = RunnableConfig("t", checkpoint_ns="#early:")
    for name in ("b0", "b1"):
        saver.put(early, made(id=name))
    policy = RetentionPolicy(keep_last=5)
    assert policy.apply(saver, dry_run=True).removed == 0

    assert policy.apply(saver).removed == 0

    assert [info.id for info in saver.history(early)] == ["b1"]  # the newest stays


def test_pattern_and_status_choose_threads_and_schedules_are_left_alone(saver):
    for thread in ("chat-1", "job-1", "graphkit:schedule:x"):
        fill(saver, thread, next_node="__END__")
    fill(saver, "chat-2")
    assert RetentionPolicy(keep_last=1, threads="chat-*", statuses=["finished"]).apply(saver).pruned == ("chat-1",)
    assert RetentionPolicy(keep_last=1).apply(saver).threads == 3
    assert len(ids(saver, "graphkit:schedule:x")) == 5


@pytest.mark.requirement("P60")
def test_limits_alert_once_per_crossing(saver):
    fill(saver, "t")
    if not saver.measures_size:
        with pytest.raises(CheckpointerConfigurationError, match="ListingSaver cannot measure sizes"):
            RetentionPolicy(keep_last=1, max_bytes=1).apply(saver)
        assert len(ids(saver, "t")) == 5
        return
    alerts = []
    limit = saver.size("t") - 1
    policy = RetentionPolicy(max_bytes_per_thread=limit, max_bytes=1, on_limit=lambda *found: alerts.append(found))
    assert len(policy.apply(saver, dry_run=True).over_limit) == 2
    assert alerts == []
    policy.apply(saver)
    policy.apply(saver)
    assert [(thread, limit) for thread, _, limit in alerts] == [("t", limit), (None, 1)]
    assert len(ids(saver, "t")) == 5
    saver.prune("t", keep_last=1)
    policy.apply(saver)
    saver.delete("t")
    fill(saver, "t", count=20)
    policy.apply(saver)
    assert [thread for thread, _, _ in alerts if thread] == ["t", "t"]


def test_a_thread_that_leaves_the_policy_for_a_while_has_not_been_below_its_limit():
    saver, alerts = MemorySaver(), []
    options = {"statuses": ["finished"], "on_limit": lambda *found: alerts.append(found)}
    policy = RetentionPolicy(max_bytes_per_thread=1, **options)
    for next_node in ("__END__", "b", "__END__"):
        fill(saver, "t", next_node=next_node)
        policy.apply(saver)
    assert len(alerts) == 1


@pytest.mark.parametrize("error", [RuntimeError("no connection"), SystemExit("too large")])
def test_an_alert_that_fails_ends_no_pass_and_without_on_limit_there_is_a_warning(caplog, error):
    saver = MemorySaver()
    for thread in ("one", "two"):
        fill(saver, thread)
    alerts = []

    def fail(*found):
        alerts.append(found)
        raise error

    report = RetentionPolicy(keep_last=1, max_bytes_per_thread=1, on_limit=fail).apply(saver)
    assert report.removed == 8
    assert [found[0] for found in alerts] == ["one", "two"]
    assert "on_limit failed" in caplog.text
    RetentionPolicy(max_bytes=1).apply(saver)
    assert "the store takes" in caplog.text


def test_a_thread_that_a_run_holds_is_busy_where_prune_waits_for_runs():
    class Impatient(ListingSaver):
        def _run_lock(self, config, timeout):
            return super()._run_lock(config, 0.0)

    saver = Impatient()
    fill(saver, "held")
    fill(saver, "free")
    policy = RetentionPolicy(keep_last=1)
    with ThreadPoolExecutor(1) as pool, saver.run_lock("held"):
        report = pool.submit(policy.apply, saver).result()
    assert (report.busy, report.pruned, report.ok) == (("held",), ("free",), True)
    assert len(ids(saver, "held")) == 5
    assert policy.apply(saver).pruned == ("held",)


def test_a_thread_that_cannot_be_read_is_named_and_the_others_are_pruned(tmp_path):
    store = tmp_path / "store"
    with FileSystemSaver(store, fsync="never") as saver:
        for thread in ("damaged", "good", "plain"):
            fill(saver, thread)
        damage(store, "damaged", -200)

    with FileSystemSaver(store, fsync="never") as saver:
        report = RetentionPolicy(keep_last=1, max_bytes_per_thread=10**6).apply(saver)

    assert not report.ok
    assert report.pruned == ("good", "plain")
    assert report.failed.keys() == {"damaged"}
    assert "CheckpointCorruptionError" in report.failed["damaged"]


def test_a_policy_that_names_no_saver_is_refused():
    with pytest.raises(CheckpointerConfigurationError, match="needs a saver"):
        RetentionPolicy(keep_last=1).apply("store")
    with pytest.raises(CheckpointerConfigurationError, match="cannot list its threads"):
        RetentionPolicy(keep_last=1).apply(ListSaver())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.yaml", "keep_last: 1\nkeep_last: 2", "'keep_last' occurs twice"),
        ("p.yaml", "keep_lats: 1", "did you mean 'keep_last'"),
        ("p.yaml", "keep_tags: [a]", "needs keep_last"),
        ("p.json", "{", "is not JSON"),
        ("p.yaml", "{", "is not YAML"),
        ("p.yaml", "max_age: soon", "max_age: an age is"),
        ("p.yaml", "max_age: 3", "max_age must be"),
        ("p.yaml", "max_age: -1d", "max_age: an age is"),
        ("p.yaml", "keep_last: 0", "keep_last must be"),
        ("p.yaml", "keep_last: 1\nkeep_tags: a", "keep_tags must be a list"),
        ("p.yaml", "keep_last: 1\nstatuses: [finishd]", "did you mean 'finished'"),
        ("p.yaml", "on_limit: f", "there is no key"),
        ("p.json", "[]", "must be a mapping"),
        ("p.yaml", "keep_last: 1\nthreads: 3", "threads must be"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointerConfigurationError, match=message):
        RetentionPolicy.from_file(tmp_path / name)


def test_the_command_applies_a_file(tmp_path):
    with FileSystemSaver(tmp_path / "store", fsync="never") as saver:
        fill(saver, "t")
    policy = tmp_path / "policy.yaml"
    policy.write_text("keep_last: 2\nmax_bytes: 1\n")
    command = ("prune", tmp_path / "store", "--policy", policy)
    assert graphkit(*command, "--dry-run").out == "would remove 3 checkpoints of 1 thread\n"
    done = graphkit(*command, "--json")
    assert done.json["removed"] == 3
    assert done.err.count("its limit is 1 B") == 1
    assert graphkit(*command, "--keep-last", "1").code == 2
    damage(tmp_path / "store", "t")
    assert_refused(graphkit(*command), 1, "t: ")


# Workers


KEEP_TWO = RetentionPolicy(keep_last=2, threads="old*")


def make_app(saver, **nodes):
    return make_chain(LOG, **(nodes or {"a": lambda state: {"log": "a"}})).compile(checkpoint_saver=saver)


class Passes(SaverWrapper):
    """Notes when a policy lists the threads, which is where a pass begins, and how long a prune may take."""

    def __init__(self, delegate):
        super().__init__(delegate)
        self.begun = threading.Semaphore(0)
        self.pruning = threading.Event()
        self.may_prune = threading.Event()
        self.may_prune.set()
        self.count = 0

    def wait_for_passes(self, count):
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE)

    def threads(self, **options):
        if threading.current_thread().name == "graphkit-retention":
            self.count += 1
            self.begun.release()
        return self.delegate.threads(**options)

    def prune(self, *arguments, **options):
        self.pruning.set()
        assert self.may_prune.wait(PATIENCE)
        return self.delegate.prune(*arguments, **options)


def test_a_run_begins_while_a_thread_is_pruned():
    saver = Passes(MemorySaver())
    fill(saver, "old")
    saver.may_prune.clear()
    has_run = threading.Event()
    app = make_app(saver, a=lambda state: has_run.set())
    with serving(Worker(saver, app, policy=KEEP_TWO, interval=0.01)):
        assert saver.pruning.wait(PATIENCE)
        app.submit({}, RunnableConfig("new"))
        assert has_run.wait(PATIENCE)
        assert len(ids(saver, "old")) == 5
        saver.may_prune.set()


@pytest.fixture(params=["file", "sqlite", "postgres"])
def two_savers(request, tmp_path):
    """Two savers on one store, as two processes have them."""
    server = request.getfixturevalue("server") if request.param == "postgres" else None
    with open_kind(request.param, tmp_path, server=server) as one, one.opener()() as other:
        yield [Passes(one), Passes(other)]


def test_of_two_workers_one_applies_the_policy_and_the_other_takes_over(two_savers, monkeypatch):
    monkeypatch.setattr(retention_policy, "_PAUSE", 0.02)
    first, second = two_savers
    workers = [Worker(saver, make_app(saver), policy=KEEP_TWO) for saver in two_savers]
    fill(first, "old")

    with serving(workers[0]):
        first.wait_for_passes(2)
        with serving(workers[1]):
            first.wait_for_passes(5)
            assert second.count == 0
            workers[0].stop()
            second.wait_for_passes(1)


def test_an_error_is_logged_and_the_policy_is_applied_again(monkeypatch, caplog):
    monkeypatch.setattr(retention_policy, "_PAUSE", 0.02)
    has_failed = threading.Event()

    class Failing(Passes):
        def threads(self, **options):
            threads = super().threads(**options)
            if self.count == 1:
                has_failed.set()
                raise CheckpointStorageError("store", "list", "gone for a moment")
            return threads

    saver = Failing(MemorySaver())
    fill(saver, "old")
    app = make_app(saver)
    with caplog.at_level(logging.WARNING, logger="graphkit.worker"), serving(Worker(saver, app, policy=KEEP_TWO)):
        assert saver.pruning.wait(PATIENCE)
    assert has_failed.is_set()
    assert "the retention policy failed here" in caplog.text
    assert "gone for a moment" in caplog.text
    assert ids(saver, "old") == ["c4", "c3"]


def test_a_thread_that_fails_is_named_and_the_others_are_pruned(caplog):
    saver = ScriptedSaver(MemorySaver()).fail("prune", CheckpointStorageError("old 1", "prune", "read-only"))
    fill(saver, "old 1")
    fill(saver, "old 2")
    with caplog.at_level(logging.WARNING, logger="graphkit.worker"):
        assert Worker(saver, make_app(saver), policy=KEEP_TWO).run(once=True) == 0
        saver.fail("prune", MemoryError())
        assert Worker(saver, make_app(saver), policy=KEEP_TWO).run(once=True) == 0
    assert "cannot prune old 1: " in caplog.text
    assert ids(saver, "old 2") == ["c4", "c3"]
    assert caplog.text.rstrip().endswith("the retention policy failed here: MemoryError")


def test_ages_count_from_the_clock_of_the_worker():
    saver = MemorySaver()
    fill(saver, "old")
    policy = RetentionPolicy(max_age=timedelta(days=1))
    app = make_app(saver)
    assert Worker(saver, app, policy=policy).run(once=True) == 0
    assert len(ids(saver, "old")) == 5

    later = datetime.now(UTC) + timedelta(days=2)
    Worker(saver, app, policy=policy, clock=lambda: later).run(once=True)
    assert ids(saver, "old") == ["c4"]


def test_a_worker_stops_in_the_middle_of_a_pass():
    saver = Passes(MemorySaver())
    for number in range(3):
        fill(saver, f"old {number}")
    saver.may_prune.clear()

    worker = Worker(saver, make_app(saver), policy=KEEP_TWO)
    with serving(worker):
        assert saver.pruning.wait(PATIENCE)
        worker.stop()
        threading.Timer(0.05, saver.may_prune.set).start()  # `run` waits for it

    assert [len(ids(saver, f"old {number}")) for number in range(3)] == [2, 5, 5]
    assert "graphkit-retention" not in {thread.name for thread in threading.enumerate()}


def test_the_policy_is_applied_as_the_principal_of_the_worker(caplog):
    store = MemorySaver()
    fill(store, "old")
    saver = AccessControlledSaver(store, lambda principal, operation, thread, namespace: principal == "robot")
    worker = Worker(saver, make_app(store), policy=KEEP_TWO)
    with caplog.at_level(logging.WARNING, logger="graphkit.worker"):
        worker.run(once=True)
        assert "may not run_lock" in caplog.text
        assert len(ids(store, "old")) == 5
        with acting_as("robot"):
            worker.run(once=True)
    assert ids(store, "old") == ["c4", "c3"]


def test_a_worker_refuses_what_it_could_never_apply():
    app = make_app(MemorySaver())
    with pytest.raises(CheckpointerConfigurationError, match="must be a graphkit"):
        Worker(MemorySaver(), app, policy={"keep_last": 1})
    with pytest.raises(CheckpointerConfigurationError, match="cannot measure sizes"):
        Worker(ListingSaver(), app, policy=RetentionPolicy(max_bytes=1))
    with pytest.raises(CheckpointerConfigurationError, match="cannot list its threads"):
        Worker(ListSaver(), app, policy=RetentionPolicy(keep_last=1))
