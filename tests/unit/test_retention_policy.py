"""Retention policies: what stays, which threads they choose, alerts, and files that are wrong."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest

from graphkit import CheckpointerConfigurationError, RunnableConfig
from graphkit.retention import RetentionPolicy
from savers import FileSystemSaver, MemorySaver
from tests.support.checkpoints import make_interrupt
from tests.support.retention import fill, ids
from tests.support.savers import SAVER_KINDS, ListingSaver, ListSaver, saver_fixture
from tests.support.sweeps import ALL
from tests.support.terminal import damage, graphkit

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


def test_a_prune_with_one_text_as_tags_or_a_naive_time_changes_nothing(saver):
    fill(saver, "t")
    saver.add_tags(RunnableConfig("t", "c0"), "golden")
    with pytest.raises(TypeError, match="keep_tags"):
        saver.prune("t", keep_last=1, keep_tags="golden")
    with pytest.raises(ValueError, match="time zone"):
        saver.prune("t", older_than=datetime(2026, 1, 1))  # noqa: DTZ001
    assert len(ids(saver, "t")) == 5


def test_young_checkpoints_and_the_latest_stay(saver):
    fill(saver, "young")
    fill(saver, "old", days=3)
    RetentionPolicy(max_age=timedelta(days=1)).apply(saver)
    assert (len(ids(saver, "young")), ids(saver, "old")) == (5, ["c4"])


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
    policy = RetentionPolicy(max_bytes_per_thread=1, max_bytes=1, on_limit=lambda *found: alerts.append(found))
    assert len(policy.apply(saver, dry_run=True).over_limit) == 2
    assert alerts == []
    policy.apply(saver)
    policy.apply(saver)
    assert [(thread, limit) for thread, _, limit in alerts] == [("t", 1), (None, 1)]
    assert len(ids(saver, "t")) == 5
    saver.delete("t")
    policy.apply(saver)
    fill(saver, "t")
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


@pytest.mark.parametrize("age", [timedelta(days=-1), timedelta.max, 30, "30"])
def test_an_age_that_is_none_is_refused(age):
    with pytest.raises(CheckpointerConfigurationError, match="max_age"):
        RetentionPolicy(max_age=age)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.yaml", "keep_last: 1\nkeep_last: 2", "'keep_last' occurs twice"),
        ("p.json", '{"keep_last": 1, "keep_last": 2}', "'keep_last' occurs twice"),
        ("p.yaml", "keep_lats: 1", "did you mean 'keep_last'"),
        ("p.yaml", "keep_tags: [a]", "needs keep_last"),
        ("p.yaml", "", "must be a mapping"),
        ("p.json", "[]", "must be a mapping"),
        ("p.json", "{", "is not JSON"),
        ("p.yaml", "{", "is not YAML"),
        ("p.yaml", "max_age: soon", "max_age: an age is"),
        ("p.yaml", "max_age: 3", "max_age must be"),
        ("p.yaml", "keep_last: 0", "keep_last must be"),
        ("p.yaml", "keep_last: 1\nkeep_tags: a", "keep_tags must be a list"),
        ("p.yaml", "keep_last: 1\nstatuses: [finishd]", "did you mean 'finished'"),
        ("p.yaml", "keep_last: 1\nthreads: 3", "threads must be"),
        ("p.yaml", "on_limit: f", "there is no key"),
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
