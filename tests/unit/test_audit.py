"""AuditedSaver and AuditLog: what is recorded, what is not, with which keys, and where else it may go."""

import enum
import json
import logging
import pickle
import stat
import threading
import tracemalloc
from base64 import b64encode
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import sleep

import pytest

from graphkit import RunnableConfig
from graphkit.errors import (
    AccessDeniedError,
    CheckpointErasedError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    CheckpointStorageError,
    ThreadBusyError,
)
from graphkit.operations import erase
from graphkit.testing import ScriptedSaver, made
from savers import (
    AccessControlledSaver,
    AuditedSaver,
    AuditLog,
    FileSystemSaver,
    KeyFile,
    MemorySaver,
    SqliteSaver,
    SubjectKeys,
    VersionedMemorySaver,
    acting_as,
    policies,
)
from tests.support.disks import FileIO
from tests.support.savers import ListSaver
from tests.unit.test_access import ASYNC, FREE, OPERATIONS, call

pytest.importorskip("cryptography")
pytestmark = pytest.mark.requirement("P72")
SECRET = "xyzzy"
CONFIG = RunnableConfig("t")
KEY = bytes(range(32))
CHECKPOINT = made({"n": 1})


class Amount(enum.Enum):
    SMALL = 1


@pytest.fixture
def log(tmp_path):
    with AuditLog(tmp_path / "log") as log:
        yield log


def audit(log, saver=None, **options):
    """Return an audited saver in memory."""
    return AuditedSaver(saver or MemorySaver(), log, **options)


def put_one(log, config=CONFIG):
    """Put a checkpoint in a new store, and return its audited saver."""
    saver = audit(log)
    saver.put(config, made({"n": 1}))
    return saver


def append_call(log):
    return log.append({"kind": "call", "operation": "get"}, is_lasting=False)


def make_store(tmp_path):
    """A store whose thread "t" has everything that an operation may need."""
    saver = FileSystemSaver(tmp_path / "store", fsync="never", cipher={"key": KEY})
    saver.put(CONFIG, made({"n": 0}))
    saver.release(CONFIG)
    saver.put(CONFIG, made({"n": 1}, metadata={"owner": "ann"}))
    return saver


def test_a_relative_path_means_the_same_log_after_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with AuditLog("log") as log:
        monkeypatch.chdir(tmp_path.parent)
        append_call(log)
    assert AuditLog(tmp_path / "log").verify().entries == 2


OPERATIONS_WITH_RECORDS = sorted({*OPERATIONS} - FREE)


def test_each_operation_leaves_one_record(tmp_path, log):
    for name in OPERATIONS_WITH_RECORDS:
        saver = AuditedSaver(make_store(tmp_path / name), log)
        if name == "awatch" or not hasattr(saver, name):  # it waits for a change; the saver does not declare it
            continue
        before = len(log.records())
        with acting_as("ann"):
            result = call(saver, name)
            if name == "run_lock":
                with result:
                    pass
        (record,) = log.records()[before:]
        assert record.operation == name.removeprefix("a" if name in ASYNC else "")
        assert (record.principal, record.result) == ("ann", "ok")
        assert record.thread_id == (None if name == "threads" else "t")
        saver.close()


def test_each_refused_operation_leaves_one_record_without_reads_too(tmp_path, log):
    guarded = AccessControlledSaver(make_store(tmp_path), lambda *_: False)
    saver = AuditedSaver(guarded, log, reads=False)
    number = 0
    for name in OPERATIONS_WITH_RECORDS:
        if not hasattr(saver, name) or name == "threads":  # it is not declared; it refuses nothing
            continue
        with acting_as("bob"), pytest.raises(AccessDeniedError):
            call(saver, name)
        number += 1
        assert len(log.records()) == number, name
    found = {(record.principal, record.result, record.error) for record in log.records()}
    assert found == {("bob", "refused", "AccessDeniedError")}


@pytest.mark.parametrize("key", [None, KEY])
def test_content_is_never_recorded_and_a_key_hides_ids_and_principals(tmp_path, key):
    log = AuditLog(tmp_path / "log", digest_key=key)
    saver = audit(log)
    checkpoint = made({SECRET: SECRET}, metadata={SECRET: SECRET})
    refused = CheckpointSerializationError(SECRET, SECRET, SECRET)
    config = RunnableConfig("customer 4711", checkpoint_ns="tenant seven")
    with acting_as("ann@example.com"):
        for each in (CONFIG, config, RunnableConfig("customer 4711")):
            saver.put(each, checkpoint)
        saver.put_writes(CONFIG, {SECRET: SECRET})
        saver.add_tags(CONFIG, SECRET)
        saver.remove_tags(CONFIG, SECRET)
        saver.search({SECRET: SECRET})
        saver.copy("customer 4711", "customer 4712")
        saver.prune("t", keep_last=1)
        saver.prune(keep_last=1)
        saver.delete("customer 4712")
        with pytest.raises(CheckpointSerializationError):
            audit(log, ScriptedSaver(MemorySaver()).fail("put", refused)).put(CONFIG, checkpoint)
    assert len(log.records(thread_id="customer 4711", operation="put")) == 2
    assert len(log.records(principal="ann@example.com")) == 12
    assert log.verify(saver).problems == ()
    log.close()
    text = b"".join(file.read_bytes() for file in (tmp_path / "log").iterdir())
    assert SECRET.encode() not in text
    for hidden in (b"customer", b"tenant", b"ann@"):
        assert (hidden in text) == (key is None)


def test_a_record_has_the_outcome_of_an_operation_and_its_checkpoint(log):
    saver = audit(log)
    checkpoint = made({"n": 1})
    saver.put(CONFIG, checkpoint)
    with pytest.raises(CheckpointNotFoundError):
        saver.put(CONFIG.with_check_point_id("none"), made({"n": 2}))

    saver.put(CONFIG.with_check_point_id(checkpoint.id), made({"n": 3}))
    latest = saver.get(CONFIG).id
    saver.add_tags(CONFIG, "good")

    first, failed, replaced, _, tagged = log.records()
    assert (first.result, first.checkpoint_id) == ("ok", checkpoint.id)
    assert first.digest.startswith("sha256:")
    assert datetime.fromisoformat(first.time) <= datetime.now(UTC)
    assert (failed.result, failed.error) == ("failed", "CheckpointNotFoundError")
    assert replaced.details["replaces"] == checkpoint.id
    assert tagged.checkpoint_id == latest


def test_records_are_chosen_by_who_and_thread_and_time_and_operation(log):
    for principal in ("ann", "bob"):
        config = RunnableConfig(f"{principal}/1")
        with acting_as(principal):
            put_one(log, config).get(config)
    now, minute = datetime.now(UTC), timedelta(minutes=1)
    assert len(log.records(principal="ann")) == 2
    assert len(log.records(thread_id="bob/1", operation="get")) == 1
    assert len(log.records(since=now - minute)) == 4
    assert log.records(since=now + minute) == []
    with pytest.raises(ValueError, match="aware"):
        log.records(since=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_principal_that_is_an_object_is_recorded_by_its_type(log):
    class User:
        def __repr__(self):
            return SECRET

    saver = AuditedSaver(MemorySaver(), log)
    for principal in (User(), 17):
        saver.get(CONFIG.with_principal(principal))
    assert [record.principal for record in log.records()] == ["of type User", "17"]


def test_reads_need_not_be_recorded_and_a_dry_run_is_one(tmp_path, log):
    saver = AuditedSaver(make_store(tmp_path), log, reads=False)
    saver.get(CONFIG)
    saver.threads()
    saver.compact(dry_run=True)
    saver.delete_idle(idle_since=datetime.now(UTC), dry_run=True)
    assert log.records() == []
    saver.compact()
    assert [record.operation for record in log.records()] == ["compact"]


def test_what_each_of_several_policies_adds_to_metadata_is_part_of_the_digest(log):
    store = MemorySaver()
    by_tenant = AccessControlledSaver(store, policies.owner("tenant"))
    saver = AuditedSaver(AccessControlledSaver(by_tenant, policies.owner("owner")), log)

    with acting_as("ann"):
        saver.put(CONFIG, CHECKPOINT)
        saver.put_writes(CONFIG, {"answer": 1})
    assert {"tenant", "owner"} <= store.get(CONFIG).metadata.keys()
    assert log.verify(saver).problems == ()


def test_what_defaults_to_one_thread_is_recorded_with_it(log):
    saver = AuditedSaver(VersionedMemorySaver(), log)
    default = RunnableConfig().thread
    saver.put(None, made({"n": 1}))
    saver.release()
    saver.namespaces()
    saver.versions_by_thread_id()
    saver.version_namespaces(None, 1)
    saver.recent(limit=1)
    saver.get()
    assert [record.thread_id for record in log.records()] == [default] * 7


class Unreadable(FileSystemSaver):
    """Cannot list a history after a prune."""

    is_pruned = False

    def list(self, config=None):
        if self.is_pruned:
            raise CheckpointStorageError("t", "read", OSError(5, "EIO"))
        return super().list(config)

    def prune(self, thread=None, **retention):
        removed = super().prune(thread, **retention)
        self.is_pruned = True
        return removed


def test_a_prune_whose_result_cannot_be_read_is_no_finding(tmp_path, log):
    store = Unreadable(tmp_path / "store", fsync="never")
    saver = AuditedSaver(store, log)
    for number in range(4):
        saver.put(CONFIG, made({"n": number}))
    assert saver.prune("t", keep_last=3) == 1
    store.is_pruned = False
    assert log.verify(store).problems == ()
    store.put(CONFIG, made({"n": 9}))
    assert not log.verify(store).ok


def test_a_run_lock_that_another_run_holds_is_recorded_as_failed(tmp_path, log):
    saver = AuditedSaver(FileSystemSaver(tmp_path / "store", fsync="never"), log)
    with saver.delegate.run_lock(CONFIG), ThreadPoolExecutor(1) as executor:
        lock = executor.submit(saver.run_lock, CONFIG, 0).result()
        with pytest.raises(ThreadBusyError):
            executor.submit(lock.__enter__).result()
    with saver.run_lock(CONFIG):
        pass
    assert [(record.result, record.error) for record in log.records()] == [("failed", "ThreadBusyError"), ("ok", None)]


def test_an_error_while_a_history_is_replayed_is_recorded(tmp_path, log):
    saver = AuditedSaver(FileSystemSaver(tmp_path / "store", fsync="never", types=[Amount]), log)
    saver.put(CONFIG, made({"n": 1}))
    saver.put(CONFIG, made({"n": Amount.SMALL}))
    reader = AuditedSaver(FileSystemSaver(tmp_path / "store"), log)
    with pytest.raises(CheckpointSerializationError):
        list(reader.replay(CONFIG))
    next(reader.replay(CONFIG))
    records = log.records(operation="replay")
    assert [record.error for record in records] == [None, "CheckpointSerializationError", None]


def test_the_wrong_order_of_wrappers_warns(log, caplog):
    AuditedSaver(AccessControlledSaver(MemorySaver(), policies.read_only()), log)
    assert caplog.text == ""
    AccessControlledSaver(AuditedSaver(MemorySaver(), log), policies.read_only())
    assert "refusals are not recorded" in caplog.text


def test_the_log_stays_valid_after_a_key_was_destroyed(tmp_path, log):
    keys = KeyFile(tmp_path / "keys")
    keys.add("shared")
    keys.add("customer-17")
    cipher = SubjectKeys(keys, key_for=lambda thread_id, metadata: metadata.get("subject"))
    saver = AuditedSaver(FileSystemSaver(tmp_path / "store", cipher=cipher), log)
    saver.put(CONFIG, made({"n": 1}, metadata={"subject": "customer-17"}))
    saver.put(RunnableConfig("u"), made({"n": 1}))
    saver.delegate.put("unrecorded", made({"n": 1}, metadata={"subject": "customer-17"}))
    saver.delegate.release("unrecorded")
    keys.destroy("customer-17")
    saver.close()
    with pytest.raises(CheckpointErasedError):
        saver.get(CONFIG)
    assert log.verify(FileSystemSaver(tmp_path / "store", cipher=cipher)).problems == ()
    saver.delete("t")
    assert log.verify(saver).problems == ()


def test_the_log_stays_valid_after_an_erasure(tmp_path, log):
    saver = AuditedSaver(SqliteSaver(tmp_path / "store.db"), log)
    for thread in ("t", "u"):
        saver.put(RunnableConfig(thread), made({"n": 1}))
    assert erase(saver, "t").ok
    assert log.verify(saver).problems == ()
    assert {"delete", "erase_deleted"} <= {record.operation for record in log.records()}


def test_a_prune_of_threads_that_cannot_be_listed_does_not_say_what_it_removed(log):
    saver = AuditedSaver(ListSaver(), log)
    with pytest.raises(CheckpointerConfigurationError):
        saver.prune(keep_last=1)
    (record,) = log.records()
    assert record.result == "failed"
    assert "removed" not in record.details


# Other processes


def put_in_another_process(opener):
    opener().put(RunnableConfig("other"), CHECKPOINT)


def test_what_another_process_opens_is_audited_with_the_same_keys(tmp_path):
    log = AuditLog(tmp_path / "log", digest_key=KEY, signing_key=KEY, sign_every=1)
    store = FileSystemSaver(tmp_path / "store", fsync="never")
    saver = AuditedSaver(store, log)
    saver.put(CONFIG, CHECKPOINT)

    opener = pickle.loads(pickle.dumps(saver.opener()))
    with ProcessPoolExecutor(1) as executor:
        executor.submit(put_in_another_process, opener).result()

    (record,) = log.records(thread_id="other")
    assert record.result == "ok"
    assert log.verify(saver).problems == ()
    assert AuditedSaver(store, lambda entry: None).opener() is None


# Keys


def test_another_digest_key_is_refused(tmp_path):
    saver = put_one(AuditLog(tmp_path / "log", digest_key=KEY))
    for other in (None, b"another key of 16"):
        log = AuditLog(tmp_path / "log", digest_key=other)
        with pytest.raises(CheckpointerConfigurationError, match="another digest_key"):
            put_one(log)
        with pytest.raises(CheckpointerConfigurationError, match="digest_key"):
            log.verify(saver)
        assert log.verify().ok
        assert log.verify(saver, digest_key=KEY).ok


@pytest.mark.parametrize("named", [{"thread_id": "t"}, {"principal": "ann"}])
def test_keyed_names_are_not_looked_for_without_the_key(tmp_path, named):
    log = AuditLog(tmp_path / "log", digest_key=KEY)
    with acting_as("ann"):
        audit(log).put(RunnableConfig("t"), CHECKPOINT)
    assert len(log.records(**named)) == 1

    for other in (None, b"another key of 16"):
        keyless = AuditLog(tmp_path / "log", digest_key=other)
        assert len(keyless.records(operation="put")) == 1
        with pytest.raises(CheckpointerConfigurationError, match="digest_key"):
            keyless.records(**named)
    assert AuditLog(tmp_path / "empty").records(**named) == []


def test_a_guess_cannot_be_confirmed_without_the_key(tmp_path):
    digests = set()
    for number, key in enumerate([None, b"a" * 16, b"b" * 16]):
        log = AuditLog(tmp_path / str(number), digest_key=key)
        audit(log).put(CONFIG, CHECKPOINT)
        digests.add(log.records()[0].digest)
    assert len(digests) == 3


@pytest.fixture
def keys(tmp_path):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private = Ed25519PrivateKey.from_private_bytes(KEY)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "private.pem").write_bytes(pem)
    pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(pem)
    return {
        "bytes": (KEY, private.public_key().public_bytes_raw()),
        "file": (tmp_path / "private.pem", str(tmp_path / "public.pem")),
        "object": (private, private.public_key()),
    }


@pytest.mark.parametrize("kind", ["bytes", "file", "object"])
def test_a_signing_key_may_be_given_in_several_forms(tmp_path, keys, kind):
    private, public = keys[kind]
    log = AuditLog(tmp_path / "log", signing_key=private)
    put_one(log)
    log.close()
    report = log.verify(public_key=public)
    assert report.ok
    assert report.signed == report.head.seq
    assert KEY.hex() not in repr(log)
    wrong = [public] if kind != "bytes" else [b"short", b"-----BEGIN nonsense"]
    for each in wrong:
        with pytest.raises(CheckpointerConfigurationError):
            AuditLog(tmp_path / "other", signing_key=each)


@pytest.mark.parametrize(
    "use",
    [
        lambda log: AuditLog("new", digest_key=b"short"),
        lambda log: AuditLog("new", digest_key="no such file"),
        lambda log: audit(log, on_error="ignore"),
        lambda log: audit("log"),
        lambda log: log.verify(expect_head="12"),
    ],
)
def test_invalid_options_are_refused(log, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointerConfigurationError):
        use(log)
    assert not (tmp_path / "new").exists()


def test_reading_makes_no_directory_and_files_are_private(tmp_path):
    directory = tmp_path / "new" / "log"
    log = AuditLog(directory)
    assert log.records() == list(log.export()) == []
    assert log.verify().entries == 0
    assert not (tmp_path / "new").exists()

    put_one(log)
    for path in (directory, *directory.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) in {0o700, 0o600}


@pytest.mark.parametrize("is_open", [True, False])
def test_what_could_not_be_written_is_recorded_at_the_latest_by_close(tmp_path, is_open):
    log = AuditLog(tmp_path / "log", signing_key=KEY)
    saver = AuditedSaver(MemorySaver(), log)
    saver.put(CONFIG, made({"n": 1}))
    if not is_open:
        log.close()
    log.note_gap()
    log.note_gap()
    log.close()
    report = log.verify()
    assert (report.gaps, report.signed) == (2, 0)
    assert json.loads(list(log.export())[-1])["kind"] == "head"
    log.close()
    assert log.verify().head == report.head


@pytest.mark.parametrize("is_reopened", [True, False])
@pytest.mark.parametrize("numbers", [(2, 100), (100, 2)])
def test_a_signed_head_is_due_when_the_last_one_requires_it(tmp_path, keys, numbers, is_reopened):
    first, second = [AuditLog(tmp_path / "log", signing_key=KEY, sign_every=each, max_bytes=3000) for each in numbers]
    put_one(first)
    if is_reopened:
        first.close()
    for _ in range(2):
        for _ in range(9):
            put_one(second)
            assert second.verify(public_key=keys["bytes"][1]).ok
        append_call(first)
    heads = [line for line in first.export() if '"kind":"head"' in line]
    assert len(heads) < 25


def test_a_missing_last_file_is_reported_without_waiting_for_ever(tmp_path):
    with AuditLog(tmp_path / "log", max_bytes=1) as log:
        append_call(log)
        append_call(log)
    *_, last = sorted((tmp_path / "log").glob("audit-*"))
    last.unlink()
    (tmp_path / "log" / "lock").unlink()
    (problem,) = AuditLog(tmp_path / "log").verify().problems
    assert "its writer died" in problem.reason
    assert not (tmp_path / "log" / "lock").exists(), "verify changes nothing"


@contextmanager
def traced():
    """Gives a function that returns how much more memory is in use than now, and how much more was at most."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    yield lambda: [size - before for size in tracemalloc.get_traced_memory()]
    tracemalloc.stop()


class Dropping(MemorySaver):
    def put(self, config, checkpoint):
        return config


def test_long_values_are_remembered_up_to_a_bound_and_until_close(log):
    saver = audit(log, Dropping())

    def put(thread, megabytes):
        saver.put(RunnableConfig(thread), made({"text": "x" * (megabytes << 20)}))

    with traced() as measure:
        for number in range(20):
            put(str(number), 5)
        put("long", 50)
        put("last", 5)
        assert 4 << 20 < measure()[0] < 40 << 20
        saver.close()
        assert measure()[0] < 1 << 20


def test_records_that_are_not_wanted_are_not_kept(log):
    for number in range(1000):
        intent = {"kind": "intent", "operation": "put", "checkpoint_id": "c" * 500, "thread_id": str(number)}
        seq = log.append(intent, is_lasting=False)
        log.append({"kind": "outcome", "of": seq, "result": "ok"}, is_lasting=False)
    log.records(thread_id="none")
    with traced() as measure:
        (record,) = log.records(thread_id="7")
        most = measure()[1]
    assert (record.operation, record.result) == ("put", "ok")
    assert most < 3 << 19


def test_a_digest_key_may_be_in_a_key_file(tmp_path):
    (tmp_path / "keys").write_text(f"2026 {b64encode(KEY).decode()}\n")
    saver = put_one(AuditLog(tmp_path / "log", digest_key=tmp_path / "keys"))
    assert AuditLog(tmp_path / "log").verify(saver, digest_key=KEY).ok


def test_an_expected_head_may_be_text(log):
    put_one(log)
    head = log.verify().head
    assert log.verify(expect_head=f"{head.seq}:{head.digest}").ok
    assert not log.verify(expect_head=f"{head.seq}:{'0' * 64}").ok


class SlowIO(FileIO):
    """Says when a sync has begun, and takes long over it."""

    def __init__(self):
        super().__init__()
        self.has_begun = threading.Event()

    def fdatasync(self, fd):
        self.has_begun.set()
        sleep(0.2)
        super().fdatasync(fd)


def test_a_reader_waits_for_the_file_that_a_writer_is_about_to_begin(tmp_path):
    io = SlowIO()
    log = AuditLog(tmp_path / "log", io=io, max_bytes=1)
    append_call(log)
    with ThreadPoolExecutor(1) as writer:
        writer.submit(append_call, log)
        assert io.has_begun.wait(10)
        assert AuditLog(tmp_path / "log").verify().ok
        assert log.verify().ok


# Other sinks


def test_a_logger_gets_each_entry(caplog):
    caplog.set_level(logging.INFO, "audit")
    with acting_as("ann"):
        put_one(logging.getLogger("audit"))

    first, second = (record for record in caplog.records if record.name == "audit")
    intent = first.audit
    assert json.loads(first.getMessage()) == intent
    assert intent["kind"] == "intent"
    assert intent["principal"] == "ann"
    assert second.audit["kind"] == "outcome"
    assert second.audit["of"] == intent["seq"]


def test_a_function_gets_each_entry_and_may_refuse():
    entries = []

    def send(entry):
        if entry["kind"] == "intent" and len(entries) > 2:
            raise ValueError("no")
        entries.append(entry)

    saver = AuditedSaver(MemorySaver(), send)
    saver.put(CONFIG, made({"n": 1}))
    assert [entry["kind"] for entry in entries] == ["intent", "outcome"]
    entries.append({})
    with pytest.raises(CheckpointStorageError):
        saver.put(CONFIG, made({"n": 2}))
    assert len(saver.list(CONFIG)) == 1

    unrefused = AuditedSaver(MemorySaver(), send, on_error="warn")
    unrefused.put(CONFIG, made({"n": 2}))
    unrefused.get(CONFIG)
    assert entries[-1]["gaps"] == 2
