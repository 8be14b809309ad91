"""What a person with write access does to the files of an audit log, or to the store, `verify` finds."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from graphkit import Checkpoint, CheckpointConflictError, CheckpointCorruptionError, RunnableConfig, ThreadBusyError
from graphkit.saver_kit import freeze
from savers import AuditedSaver, AuditLog, FileSystemSaver, SaverWrapper, SqliteSaver, acting_as
from tests.support.audit_logs import (
    chain_again,
    copy_directory,
    list_files,
    read_entries,
    replace_pause,
    to_canonical,
    write_entries,
)
from tests.support.checkpoints import list_numbers, make_checkpoint
from tests.support.logs import flip, flip_in_file

pytest.importorskip("cryptography")
pytestmark = pytest.mark.requirement("P72")
KEY = bytes(range(32))
CONFIG = RunnableConfig("t")


def public_key():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw()


def open_files(path):
    return FileSystemSaver(path / "store", fsync="never", lock_timeout=0)


def open_sqlite(path):
    (path / "store").mkdir(exist_ok=True)
    return SqliteSaver(path / "store" / "db", fsync="never")


def open_audited(path, open_store=open_files, **options):
    """An audit log, a store, and a saver that writes to both."""
    log = AuditLog(path / "log", **options)
    store = open_store(path)
    return log, store, AuditedSaver(store, log)


def put(saver, *numbers, thread="t"):
    for number in numbers:
        saver.put(RunnableConfig(thread), make_checkpoint(number))


def reasons_of(report):
    return [problem.reason for problem in report.problems]


class Audited:
    """A store with an audit log of three files, and a copy of the log."""

    def __init__(self, path):
        self.path = path
        self.log, store, self.saver = open_audited(path, signing_key=KEY, sign_every=5, max_bytes=1500)
        with acting_as("ann"):
            put(self.saver, *range(5))
            self.saver.put_writes(CONFIG, {"answer:1": "yes"})
            self.saver.add_tags(CONFIG, "good")
        self.files = list_files(path / "log")
        assert len(self.files) >= 3
        self.log.close()
        store.close()
        copy_directory(path / "log", path / "log copy")

    def verify(self, **options):
        return AuditLog(self.path / "log").verify(**options)

    def restore(self):
        copy_directory(self.path / "log copy", self.path / "log")

    def places(self):
        """Each entry: its file, the entries there, and its place among them."""
        for file in self.files:
            entries = read_entries(file)
            yield from ((file, entries, place) for place in range(len(entries)))


@pytest.fixture
def audited(tmp_path):
    return Audited(tmp_path)


def test_a_log_that_was_left_alone_has_no_problem(audited):
    report = audited.verify(store=audited.saver, public_key=public_key())
    assert report.problems == ()
    assert report.unknown == report.gaps == report.torn == 0
    assert report.signed == report.head.seq == report.entries


# Each changes the files in one way after another


def change_places(audited, sweep):
    for file, entries, place in audited.places():
        if place + 1 < len(entries):
            write_entries(file, [*entries[:place], entries[place + 1], entries[place], *entries[place + 2 :]])
            yield file.name, place


def change_fields(audited, sweep):
    for file, entries, place in [*audited.places()][:-1]:
        entry = json.loads(entries[place])
        for field in entry:
            forged = to_canonical({**entry, field: "forged"})
            write_entries(file, [*entries[:place], forged, *entries[place + 1 :]])
            yield file.name, place, field


def flip_bits(audited, sweep):
    for file in audited.files:
        content = file.read_bytes()
        for place in sweep.some(range(len(content)), 60):
            file.write_bytes(flip(content, place, 1 << place % 8))
            yield file.name, place


def exchange_files(audited, sweep):
    first, second, *_ = audited.files
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    yield "exchanged"
    for file in audited.files:
        file.unlink()
        yield file.name


def remove_entries(audited, sweep):
    for file, entries, place in audited.places():
        write_entries(file, entries[:place] + entries[place + 1 :])
        yield file.name, place


def cut_ends(audited, sweep):
    for number, file in enumerate(audited.files):
        content = file.read_bytes()
        for size in sweep.some(range(len(content)), 30):
            file.write_bytes(content[:size])
            for later in audited.files[number + 1 :]:
                later.unlink()
            yield file.name, size


@pytest.mark.parametrize("change", [change_places, change_fields, flip_bits, exchange_files])
def test_each_change_is_found_by_the_chain(audited, change, sweep):
    for place in change(audited, sweep):
        assert not audited.verify().ok, place
        audited.restore()


@pytest.mark.parametrize("change", [remove_entries, cut_ends])
def test_each_loss_is_found_by_the_head_that_was_kept(audited, change, sweep, monkeypatch):
    replace_pause(monkeypatch, lambda _: None)  # no writer is at work on an entry that is cut short
    head = audited.verify().head
    for place in change(audited, sweep):
        assert not audited.verify(expect_head=head).ok, place
        audited.restore()


@pytest.fixture
def signed(tmp_path):
    """A signed log of one file, the file, and its entries."""
    log, _, saver = open_audited(tmp_path, signing_key=KEY, sign_every=4)
    put(saver, *range(9))
    (file,) = list_files(tmp_path / "log")
    log.close()
    return AuditLog(tmp_path / "log"), saver, file, read_entries(file)


def test_each_entry_that_is_removed_from_a_rebuilt_chain_is_missed_by_its_number(signed):
    log, _, file, entries = signed
    for place in range(len(entries) - 1):
        write_entries(file, chain_again(entries[:place] + entries[place + 1 :], renumber=False))
        assert any("entries were removed" in reason for reason in reasons_of(log.verify())), place


def test_a_cut_beyond_the_last_signed_head_is_found(signed):
    log, _, file, (begin, first, *rest) = signed
    # Without the signatures, as if the heads behind the first one had never been.
    unsigned = [entry for entry in rest if b"signature" not in entry]
    write_entries(file, chain_again([begin, first, *unsigned]))
    assert "not signed" in " ".join(reasons_of(log.verify(public_key=public_key())))


CALL = {"kind": "call", "operation": "get", "principal": "bob", "thread_id": "t", "checkpoint_ns": "", "result": "ok"}


@pytest.mark.parametrize("forged", [{"kind": "head", "sign_every": 10**9}, {**CALL, "sign_every": 10**9}])
def test_an_unsigned_entry_does_not_decide_when_a_signed_head_is_due(tmp_path, forged):
    with AuditLog(tmp_path / "log", signing_key=KEY, sign_every=5) as log:
        log.append(CALL, is_lasting=True)
    with AuditLog(tmp_path / "log") as forger:
        forger.append(forged, is_lasting=True)
        for _ in range(10):
            forger.append(CALL, is_lasting=False)
    (problem,) = log.verify(public_key=public_key()).problems
    assert "not signed" in problem.reason


FORGED = [
    {"kind": "intent"},
    {"kind": "intent", "operation": "add_tags", "tags": 5},
    {"kind": "intent", "operation": "put", "checkpoint_id": ["x"]},
    {"kind": "call"},
    {"kind": "outcome", "of": 2},
    {"kind": "outcome", "of": [1], "result": "ok"},
    {"kind": "outcome", "of": 2, "result": "ok", "removed": {"t": 5}},
    {"kind": "intent", "operation": "put_writes", "checkpoint_id": "x", "writes": {"x": []}},
    {"kind": "gap", "count": "x"},
    {"kind": "head", "sign_every": "x"},
]


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_field_that_is_missing_or_of_another_type_is_reported(tmp_path, forged, is_first):
    log, store, saver = open_audited(tmp_path, digest_key=b"k" * 16)
    put(saver, 0)
    log.close()
    (file,) = list_files(tmp_path / "log")
    entries = [json.loads(entry) for entry in read_entries(file)]
    changed = {**entries[0], "key_check": None, **forged}
    place = 0 if is_first else len(entries)
    entries.insert(place, changed)
    lines = map(to_canonical, entries)
    chain = chain_again(lines, renumber=True)
    write_entries(file, chain)
    report = log.verify(store)
    assert "it is not an entry in its canonical form" in reasons_of(report)


@pytest.mark.parametrize("digest_key", [None, b"k" * 16])
def test_a_log_without_its_first_file_is_compared_with_the_store(tmp_path, digest_key):
    log, store, saver = open_audited(tmp_path, digest_key=digest_key, max_bytes=1500)
    put(saver, *range(9))
    log.close()
    list_files(tmp_path / "log")[0].unlink()
    wheres = {problem.where for problem in log.verify(store).problems}
    assert "thread 't'" in wheres
    assert len(wheres) > 1


def test_a_log_of_which_all_files_are_gone_is_found_with_the_public_key(audited):
    for file in audited.files:
        file.unlink()
    assert audited.verify().ok
    assert not audited.verify(public_key=public_key()).ok


def test_a_cut_back_to_a_signed_head_shows_only_against_the_store_or_a_kept_head(signed):
    log, saver, file, entries = signed
    head = log.verify().head
    kept = entries[:-6]
    while b'"signature"' not in kept[-1]:
        kept.pop()
    write_entries(file, kept)
    verify = partial(log.verify, public_key=public_key())
    assert verify().ok
    assert not verify(expect_head=head).ok
    assert not verify(saver).ok


def test_a_forged_chain_is_found_by_the_signature(signed):
    log, _, file, entries = signed
    write_entries(file, chain_again([entry.replace(b'"put"', b'"get"') for entry in entries]))
    assert log.verify().ok, "the chain alone proves nothing"
    assert not log.verify(public_key=public_key()).ok


def test_a_log_signed_with_another_key_is_found(audited):
    assert not audited.verify(public_key=bytes(32)[:31] + b"\1").ok


def test_records_and_export_refuse_a_damaged_log(audited):
    file = audited.files[0]
    flip_in_file(file, file.stat().st_size // 2)
    with pytest.raises(CheckpointCorruptionError):
        audited.log.records()
    with pytest.raises(CheckpointCorruptionError):
        list(audited.log.export())


# While a process has the log open


@pytest.mark.parametrize("how", ["cut", "removed", "exchanged", "rolled back"])
def test_a_process_that_has_the_log_open_notices_and_writes_no_more(tmp_path, how):
    _, _, saver = open_audited(tmp_path)
    put(saver, 0)
    copy_directory(tmp_path / "log", tmp_path / "hour ago")
    put(saver, 1, 2, 3)
    (file,) = list_files(tmp_path / "log")
    entries = read_entries(file)
    if how == "cut":
        write_entries(file, entries[:-3])
    elif how == "removed":
        file.unlink()
    elif how == "exchanged":
        write_entries(file, chain_again([entry.replace(b"put", b"get") for entry in [*entries, *entries]]))
    else:
        copy_directory(tmp_path / "hour ago", tmp_path / "log")
    for _ in range(2):
        with pytest.raises(CheckpointCorruptionError, match="cut, or exchanged"):
            put(saver, 9)
    assert list_numbers(saver, CONFIG) == [3, 2, 1, 0]


@pytest.mark.parametrize("is_on_the_disk", [True, False])
def test_a_process_that_has_the_log_open_notices_that_it_was_cut_and_grew_again(tmp_path, is_on_the_disk):
    log = AuditLog(tmp_path / "log")
    sizes = []
    for _ in range(3):
        log.append(CALL, is_lasting=is_on_the_disk)
        sizes.append(log._file.frames.end)
    (file,) = list_files(tmp_path / "log")
    with file.open("r+b") as opened:
        opened.truncate(sizes[0])
    with AuditLog(tmp_path / "log") as forger:
        for _ in range(3):
            forger.append({**CALL, "principal": "ann"}, is_lasting=True)
    for _ in range(2):
        with pytest.raises(CheckpointCorruptionError, match="cut, or exchanged"):
            log.append(CALL, is_lasting=True)


# The store


@pytest.mark.parametrize("open_store", [open_files, open_sqlite])
def test_a_store_that_was_rolled_back_to_an_older_copy_is_found(tmp_path, open_store):
    log, _, saver = open_audited(tmp_path, open_store)
    put(saver, 0, 1, 2)
    saver.close()
    copy_directory(tmp_path / "store", tmp_path / "hour ago")
    with AuditedSaver(open_store(tmp_path), log) as saver:
        put(saver, 3)
        put(saver, 4, thread="new")
    with open_store(tmp_path) as store:
        assert log.verify(store).ok
    shutil.rmtree(tmp_path / "store")
    copy_directory(tmp_path / "hour ago", tmp_path / "store")
    with open_store(tmp_path) as store:
        problems = log.verify(store).problems
    assert {problem.where for problem in problems} == {"thread 't'", "thread 'new'"}
    assert all("missing" in problem.reason for problem in problems)


def replace_latest(store, change, value):
    latest = store.list(CONFIG)[0]
    store.put(CONFIG.with_check_point_id(latest.id), change(latest, freeze(value)))


def reorder(store):
    _, middle, oldest = store.list(CONFIG)
    assert middle.state
    assert oldest.state
    store.remove(CONFIG, [middle.id, oldest.id])
    store.put(CONFIG, oldest)
    store.put(CONFIG, middle)


def remove_version(store):
    *_, version = sorted(Path(store.thread_directory("released")).glob("v*.log"))
    version.unlink()


def roll_version_back(store):
    first, second = sorted(Path(store.thread_directory("released")).glob("v*.log"))
    second.write_bytes(first.read_bytes())


ATTACKS = {
    "a checkpoint is added": lambda store: put(store, 9),
    "a thread is added": lambda store: put(store, 9, thread="forged"),
    "a namespace is added": lambda store: store.put(RunnableConfig("t", checkpoint_ns="x"), make_checkpoint(9)),
    "the latest is removed": lambda store: store.remove(CONFIG, [store.list(CONFIG)[0].id]),
    "a state is replaced": lambda store: replace_latest(store, Checkpoint.with_state, {"n": 10}),
    "metadata are changed": lambda store: replace_latest(store, Checkpoint.with_metadata, {"step": 99}),
    "the order is changed": reorder,
    "a thread is deleted": lambda store: store.delete("t"),
    "an answer is forged": lambda store: store.put_writes(CONFIG, {"answer:2": "yes"}),
    "an answer is changed": lambda store: store.put_writes(CONFIG, {"answer:1": "no"}),
    "a tag is added": lambda store: store.add_tags(CONFIG, "approved"),
    "a tag is removed": lambda store: store.remove_tags(CONFIG, "good"),
    "a thread is released": lambda store: store.release("t"),
    "a version is removed": remove_version,
    "a version is replaced by another one": roll_version_back,
    "a deleted thread comes back": lambda store: put(store, 1, thread="deleted"),
    "a thread is copied": lambda store: store.copy("t", "copy"),
}


@pytest.mark.parametrize("digest_key", [None, b"k" * 16])
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_done_to_the_store_without_a_record_is_found(tmp_path, attack, digest_key):
    log, store, saver = open_audited(tmp_path, digest_key=digest_key)
    for number in range(3):
        saver.put(CONFIG, make_checkpoint(number, text="x" * 1000))
    saver.put_writes(CONFIG, {"answer:1": "yes"})
    saver.add_tags(CONFIG, "good")
    for number in range(2):
        put(saver, number, thread="released")
        saver.release(RunnableConfig("released"))
    put(saver, 1, thread="deleted")
    saver.delete("deleted")
    assert log.verify(saver).problems == ()
    ATTACKS[attack](store)
    store.close()  # it remembers what it has read
    assert not log.verify(saver).ok
    assert not AuditLog(tmp_path / "log").verify(open_files(tmp_path), digest_key=digest_key).ok


# An id that a history has twice


def named(id):
    return CONFIG.with_check_point_id(id)


def put_id(saver, id, number, *, replaces=None):
    config = CONFIG if replaces is None else named(replaces)
    checkpoint = Checkpoint(id=id, node_id="a", next_node_id="b", state={"n": number})
    saver.put(config, checkpoint)


def put_again_after_writes(saver):
    saver.put_writes(named("x"), {"answer:1": "yes"})
    saver.add_tags(named("x"), "good")
    put_id(saver, "x", 3)


def change_the_newer_and_the_older(saver):
    saver.put_writes(named("x"), {"answer:1": "old"})
    put_id(saver, "x", 3)
    yield
    saver.put_writes(named("x"), {"answer:1": "new"})
    saver.add_tags(named("x"), "good")
    yield
    put_id(saver, "z", 4, replaces="x")
    yield
    saver.remove_tags(named("x"), "good")
    saver.put_writes(named("x"), {"answer:2": "yes"})
    put_id(saver, "x", 5, replaces="x")


def take_the_place_of_another(saver):
    saver.put_writes(named("x"), {"answer:1": "yes"})
    put_id(saver, "y", 3, replaces="x")


def copy_both(saver):
    put_again_after_writes(saver)
    saver.put_writes(named("x"), {"answer:1": "new"})
    saver.copy("t", "copy")
    saver.delete("t")
    saver.copy("copy", "t")
    put_id(saver, "z", 4, replaces="x")


TWICE = [put_again_after_writes, change_the_newer_and_the_older, take_the_place_of_another, copy_both]


@pytest.mark.parametrize("operate", TWICE)
@pytest.mark.parametrize("open_store", [open_files, open_sqlite])
def test_an_id_that_a_history_has_twice_is_no_finding_and_a_forgery_under_it_is(tmp_path, open_store, operate):
    log, store, saver = open_audited(tmp_path, open_store)
    put_id(saver, "x", 1)
    put_id(saver, "y", 2)

    for _ in operate(saver) or ():
        assert log.verify(store).problems == ()
    assert log.verify(store).problems == ()

    oldest = store.list(CONFIG)[-1].id
    store.put_writes(named(oldest), {"answer:1": "forged"})
    store.add_tags(named(oldest), "forged")
    put_id(store, oldest, 666, replaces=oldest)
    reasons = reasons_of(log.verify(store))
    assert f"checkpoint {oldest} is not what was recorded" in reasons
    assert [reason for reason in reasons if reason.startswith("pending write")]
    assert [reason for reason in reasons if reason.startswith("tag")]


@pytest.mark.parametrize(
    ("operate", "attack", "reason"),
    [
        (put_again_after_writes, lambda store: store.remove(CONFIG, ["x"]), "checkpoint x is missing"),
        (take_the_place_of_another, lambda store: store.remove(CONFIG, ["y"]), "checkpoint y is missing"),
        (take_the_place_of_another, lambda store: put_id(store, "x", 1), "checkpoint x has no record"),
    ],
)
def test_what_is_removed_or_put_back_under_an_id_that_a_history_had_twice_is_found(tmp_path, operate, attack, reason):
    log, store, saver = open_audited(tmp_path)
    put_id(saver, "x", 1)
    put_id(saver, "y", 2)
    operate(saver)
    attack(store)
    assert reasons_of(log.verify(store)) == [reason]


# After an operation that failed, or overlapped another one


@pytest.fixture
def two_threads(tmp_path):
    log, store, saver = open_audited(tmp_path)
    put(saver, 1, thread="a")
    put(saver, 1, thread="b")
    return log, store, saver


def copy_onto_a_thread(saver):
    with pytest.raises(CheckpointConflictError):
        saver.copy("a", "b")


def delete_idle_since_a_naive_time(saver):
    with pytest.raises(ValueError, match="aware"):
        saver.delete_idle(idle_since=datetime(2020, 1, 1))  # noqa: DTZ001


def repair_what_is_healthy(saver):
    assert not saver.repair().changed


def call_while_a_run_holds_the_thread(name):
    def call(saver):
        with ThreadPoolExecutor(1) as executor, saver.delegate.run_lock("b"), pytest.raises(ThreadBusyError):
            executor.submit(getattr(saver, name), "b").result()

    return call


FAILURES = {
    "copy": copy_onto_a_thread,
    "delete_idle": delete_idle_since_a_naive_time,
    "repair": repair_what_is_healthy,
    "delete": call_while_a_run_holds_the_thread("delete"),
    "release": call_while_a_run_holds_the_thread("release"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_after_an_operation_that_changed_nothing_what_is_removed_without_a_record_is_found(two_threads, name):
    log, store, saver = two_threads
    FAILURES[name](saver)
    assert log.verify(store).problems == ()
    store.delete("b")
    assert {problem.where for problem in log.verify(store).problems} == {"thread 'b'"}
    put(store, 2, thread="b")
    assert len(log.verify(store).problems) == 2


@pytest.mark.parametrize("ends_first", ["put", "copy"])
def test_a_copy_of_a_thread_that_is_written_accepts_what_it_copied_and_nothing_else(two_threads, ends_first):
    log, store, saver = two_threads
    other = AuditedSaver(store, log)

    class PuttingFirst(SaverWrapper):
        def copy(self, source, target):
            put(other, 2, thread="a")
            self.delegate.copy(source, target)

    class CopyingAfterwards(SaverWrapper):
        def put(self, config, checkpoint):
            put = self.delegate.put(config, checkpoint)
            other.copy("a", "c")
            return put

    if ends_first == "put":
        AuditedSaver(PuttingFirst(store), log).copy("a", "c")
    else:
        put(AuditedSaver(CopyingAfterwards(store), log), 2, thread="a")
    assert len(store.list(RunnableConfig("c"))) == 2
    put(saver, 3, thread="c")
    assert log.verify(store).problems == ()
    store.delete("c")
    put(store, 666, thread="c")
    reasons = reasons_of(log.verify(store))
    assert any("has no record" in reason for reason in reasons)
    assert any("is missing" in reason for reason in reasons)


# After an operation whose process was killed


def operate_and_die(operate, store, directory, meanwhile=lambda: None):
    """Let an operation take effect and record no outcome, in a process of its own; others act when it has begun."""
    with AuditLog(directory) as log:
        append = log.append

        def append_intent(entry, **options):
            log.append = lambda *_args, **_options: None  # the process is dead
            number = append(entry, **options)
            meanwhile()
            return number

        log.append = append_intent
        operate(AuditedSaver(store, log))


KILLED = {
    "prune": lambda saver: saver.prune("a", keep_last=1),
    "prune all": lambda saver: saver.prune(keep_last=1),
    "delete": lambda saver: saver.delete("a"),
    "release": lambda saver: saver.release(RunnableConfig("a")),
    "copy": lambda saver: saver.copy("a", "c"),
}


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_operation_that_others_overlapped_is_no_finding(two_threads, tmp_path, name):
    log, store, saver = two_threads

    def put_three():
        for number in range(3):
            put(saver, number, thread="a")
            saver.put_writes(RunnableConfig("a"), {"answer": number})

    operate_and_die(KILLED[name], store, tmp_path / "log", put_three)
    report = log.verify(store)
    assert (report.unknown, report.problems) == (1, ())
    put_three()
    assert log.verify(store).problems == ()
    put(store, 666, thread="b")
    assert not log.verify(store).ok


THREAD_A = RunnableConfig("a")
KILLED_LATE = {
    "put": (lambda saver, _: put(saver, 9, thread="a"), lambda saver, _: saver.release("a")),
    "tag": (lambda saver, at: saver.add_tags(at, "x"), lambda saver, at: saver.remove_tags(at, "x")),
    "write": (lambda saver, at: saver.put_writes(at, {"k": 1}), lambda saver, at: saver.put_writes(at, {"k": 2})),
    "replacement": (lambda saver, at: saver.put(at, make_checkpoint(9)), lambda saver, at: saver.add_tags(at, "x")),
}
"""Operations whose process is killed, and what others do between their intent and their effect."""


@pytest.mark.parametrize("name", KILLED_LATE)
def test_a_killed_operation_after_another_one_on_the_same_keys_is_no_finding(two_threads, tmp_path, name):
    log, store, saver = two_threads
    operate, act = KILLED_LATE[name]
    latest = THREAD_A.with_check_point_id(store.get(THREAD_A).id)
    operate_and_die(lambda each: operate(each, latest), store, tmp_path / "log", lambda: act(saver, latest))
    assert log.verify(store).problems == ()


def test_a_put_that_was_killed_and_began_within_a_delete_is_no_finding(two_threads, tmp_path, monkeypatch):
    log, store, saver = two_threads
    delete = store.delete

    def delete_within_a_put(thread):
        operate_and_die(lambda saver: put(saver, 9, thread="a"), store, tmp_path / "log", lambda: delete(thread))

    monkeypatch.setattr(store, "delete", delete_within_a_put)
    saver.delete("a")
    assert log.verify(store).problems == ()


@pytest.mark.parametrize("settle", [lambda saver: saver.delete("a"), lambda saver: saver.prune("a", keep_last=1)])
def test_after_a_killed_operation_was_repeated_or_the_thread_deleted_the_store_is_compared(
    two_threads, tmp_path, settle
):
    log, store, saver = two_threads
    operate_and_die(KILLED["prune"], store, tmp_path / "log")
    settle(saver)
    put(saver, 2, thread="a")
    assert log.verify(store).problems == ()
    store.delete("a")
    assert not log.verify(store).ok


def test_an_interrupted_operation_has_an_outcome(two_threads):
    class Interrupted(SaverWrapper):
        def prune(self, thread=None, **retention):
            self.delegate.prune(thread, **retention)
            raise KeyboardInterrupt

    log, store, saver = two_threads
    put(saver, 2, thread="a")
    with pytest.raises(KeyboardInterrupt):
        AuditedSaver(Interrupted(store), log).prune(keep_last=1)
    (record,) = log.records(operation="prune")
    assert (record.result, record.error) == ("failed", "KeyboardInterrupt")
    assert log.verify(store).problems == ()
    store.delete("b")
    assert not log.verify(store).ok
