"""Retention policies: what stays, which threads they choose, alerts, and files that are wrong."""

from datetime import UTC, datetime, timedelta

import pytest

from graphkit import CheckpointerConfigurationError, RunnableConfig
from graphkit.retention import RetentionPolicy
from savers import FileSystemSaver, MemorySaver, SqliteSaver
from tests.support.retention import fill, ids
from tests.support.terminal import graphkit


@pytest.fixture(params=["memory", "file", "sqlite"])
def saver(request, tmp_path):
    kinds = {
        "memory": MemorySaver,
        "file": lambda: FileSystemSaver(tmp_path / "store", fsync="never"),
        "sqlite": lambda: SqliteSaver(tmp_path / "store.db", fsync="never"),
    }
    with kinds[request.param]() as saver:
        yield saver


def test_a_checkpoint_stays_if_any_rule_keeps_it(saver):
    fill(saver, "t", days=3)
    saver.add_tags(RunnableConfig("t", "c0"), "golden")
    interrupt = {"node_id": "a", "when": "inside", "payload": 1, "created_at": datetime.now(UTC)}
    saver.put_writes(RunnableConfig("t", "c1"), {"interrupt:1": interrupt})
    policy = RetentionPolicy(keep_last=2, max_age="1d", keep_tags=["golden"])
    assert policy.apply(saver, dry_run=True).removed == 1
    assert len(ids(saver, "t")) == 5
    report = policy.apply(saver)
    assert (report.removed, report.pruned, report.threads) == (1, ("t",), 1)
    assert ids(saver, "t") == ["c4", "c3", "c1", "c0"]
    assert policy.apply(saver).removed == 0


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


def test_limits_alert_once_per_crossing(saver):
    fill(saver, "t")
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


def test_a_thousand_threads(tmp_path, sweep):
    saver = MemorySaver()
    count = sweep.count(10_000, 1000)
    for number in range(count):
        fill(saver, f"t{number}", 2)
    assert RetentionPolicy(keep_last=1).apply(saver).removed == count


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
    (tmp_path / "policy.yaml").write_text("keep_last: 2\nmax_bytes: 1\n")
    command = ("prune", tmp_path / "store", "--policy", tmp_path / "policy.yaml")
    assert graphkit(*command, "--dry-run").out == "would remove 3 checkpoints of 1 thread\n"
    done = graphkit(*command, "--json")
    assert done.json["removed"] == 3
    assert done.err.count("its limit is 1 B") == 1
    assert graphkit(*command, "--keep-last", "1").code == 2
