"""Histories with keys of their own: what destroying a key erases, and what it does not touch."""

import errno
import logging
import os
import pickle
import shutil
import stat
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from graphkit import RunnableConfig, errors, operations
from graphkit.retention import RetentionPolicy
from graphkit.saver_kit import freeze
from graphkit.transfer import copy_threads, export_threads, import_threads
from savers import (
    DESTROYED,
    AccessControlledSaver,
    FileSystemSaver,
    KeyFile,
    PostgresSaver,
    SqliteSaver,
    SubjectKeys,
    acting_as,
)
from tests.support.contents import read_history
from tests.support.disks import quiet
from tests.support.logs import locate_log, read_records
from tests.support.sealed import READS, made
from tests.support.sweeps import in_turn

CURRENT = {"current": bytes(range(32))}
ANN = {"ann": bytes(range(1, 33))}
BOB = {"bob": bytes(range(2, 34))}
KEYS = {**CURRENT, **ANN, **BOB}
WITHOUT_ANN = {**KEYS, "ann": DESTROYED}
T = RunnableConfig("t")
INNER = RunnableConfig("t", checkpoint_ns="inner")


def by_subject(keys=KEYS, key_for=None):
    """A cipher that gives each subject the key of its name."""
    return SubjectKeys(keys, key_for=key_for or choose_by_subject)


def choose_by_subject(_, metadata):
    return metadata["subject"]


def about(subject, number=0, **state):
    checkpoint = made(number, **state)
    return checkpoint.with_metadata(freeze({**checkpoint.metadata, "subject": subject}))


def put_some(saver, config, subject, count=6):
    config = RunnableConfig.of(config)
    for number in range(count):
        saver.put(config, about(subject, number, text=f"{subject} says {number}"))
    saver.put_writes(config, {"answer": subject})
    saver.add_tags(config, subject)


@pytest.fixture(params=in_turn(["file", "sqlite", "postgres"], "store"))
def store(request, tmp_path):
    """A store that is opened again with each call; all savers are closed in the end."""
    directory = tmp_path / "store"
    directory.mkdir()
    if request.param == "postgres":
        server = request.getfixturevalue("server")
        schema = f"own_{uuid.uuid4().hex}"
        opener = partial(PostgresSaver, server.connection_string, schema=schema, lock_timeout=0)
    elif request.param == "sqlite":
        opener = partial(SqliteSaver, directory / "store.db", fsync="never", lock_timeout=0)
    else:
        opener = partial(FileSystemSaver, directory, fsync="never", lock_timeout=0)
    with ExitStack() as opened:
        if request.param == "postgres":
            opened.callback(server.drop_schema, schema)
        yield lambda cipher=None: opened.enter_context(opener(cipher=cipher))


def put_released(saver, thread, subject):
    """Put a thread with a nested graph, release it, and put it again."""
    for is_last in (False, True):
        put_some(saver, thread, subject)
        saver.put(RunnableConfig(thread, checkpoint_ns="inner"), made(90))
        if not is_last:
            saver.release(thread)


def states_of(report):
    return {file.state for thread in report.threads for file in thread.files}


# One key opens all of a subject, and nothing else


@pytest.mark.requirement("P73")
def test_one_key_opens_every_copy_of_a_history_and_nothing_else_does(store):
    with store(by_subject()) as saver:
        put_some(saver, "t", "ann")
        put_some(saver, "other", "bob")
        saver.put(INNER, made(90))  # `key_for` would raise: the nested graph knows no subject
        saver.copy("t", "copied")
        operations.fork(saver, "t", "forked")
        saver.release(T)
        put_some(saver, "t", "ann")
    # Savers without `key_for`, such as that of the command line, keep to the key.
    with store(KEYS) as saver:
        saver.put(T, about("bob", 20))
        saver.put_writes(T, {"later": 1})
        saver.put(RunnableConfig("t", checkpoint_ns="inner2"), made(91))
        saver.put_writes(T.with_check_point_id(made(300).id), {"early": 1}, early=True)
        saver.copy("t", "copied later")
        operations.fork(saver, "t", "forked later")
        saver.prune("t", keep_last=2)
        saver.compact()
        assert saver.rotate().rewritten == ()
        assert saver.own_key("t") == saver.own_key("t", version=1) == "ann"
        threads = [thread for thread in saver.threads(released=True) if thread != "other"]
        found = {thread: read_history(saver, RunnableConfig(thread)) for thread in threads}
        assert len(found) == 5
    with store({"another": bytes(32), **ANN}) as saver:
        assert {thread: read_history(saver, RunnableConfig(thread)) for thread in threads} == found
        assert len(saver.tag(T, 1).checkpoints) == 6
        assert saver.get(RunnableConfig("copied", checkpoint_ns="inner")).state["plain_n"] == 90
        with pytest.raises(errors.CheckpointKeyError, match="'bob'"):
            saver.get("other")
    with store(WITHOUT_ANN) as saver:
        assert states_of(saver.verify("other")) == {"ok"}
        for thread in threads:
            assert states_of(saver.verify(thread)) == {"erased"}


def test_the_answer_of_key_for_is_not_asked_again(store):
    answers = ["ann"]
    asked = []

    def key_for(thread_id, metadata):
        asked.append((thread_id, dict(metadata)["plain_step"]))
        return answers[-1]

    with store(by_subject(key_for=key_for)) as saver:
        saver.put(T, made(1))
        answers.append("bob")
        saver.put(T, made(2))
    with store(by_subject(key_for=key_for)) as saver:
        saver.put(T, made(3))
        saver.prune("t", keep_last=2)
        saver.rotate()
        assert saver.own_key("t") == "ann"
    assert asked == [("t", "plain1")]


def test_a_history_without_a_subject_is_sealed_with_the_current_key(store):
    def key_for(_, metadata):
        return metadata.get("subject")

    with store(by_subject(key_for=key_for)) as saver:
        saver.put(T, made(1))
        assert saver.own_key("t") is None
        assert saver.own_key("no such thread") is None
    new = {"new": bytes(32), **KEYS}
    with store(by_subject(new, key_for)) as saver:
        assert len(saver.rotate().rewritten) == 1
    with store({"new": bytes(32)}) as saver:
        assert saver.get(T).state["plain_n"] == 1


@pytest.mark.parametrize("before", [None, CURRENT], ids=["plain", "one key"])
def test_an_existing_store_gets_keys_for_its_subjects_by_a_rotation(store, before):
    with store(before) as saver:
        for subject in ("ann", "bob"):
            put_released(saver, subject, subject)
        found = read_history(saver, RunnableConfig("bob"))

    with store(by_subject(key_for=lambda thread_id, _: thread_id)) as saver:
        assert len(saver.rotate().rewritten) == 8
        assert saver.rotate().rewritten == ()
        assert saver.own_key("ann") == saver.own_key("ann", version=1) == "ann"

    with store({"another": bytes(32), **BOB}) as saver:
        assert read_history(saver, RunnableConfig("bob")) == found
        assert len(saver.tag("bob", 1).checkpoints) == 6


def test_a_plain_history_gets_the_key_of_its_subject_with_the_next_put(store):
    with store() as saver:
        put_some(saver, "t", "ann")
    with store(by_subject()) as saver:
        saver.put(T, made(50))
        assert saver.own_key("t") == "ann"
        assert len(saver.list(T)) == 7


# Refusals


def raise_error(_, metadata):
    return metadata["no such key"]


@pytest.mark.parametrize(
    ("keys", "key_for", "error", "message"),
    [
        (KEYS, raise_error, errors.CheckpointKeyError, "key_for raised KeyError: 'no such key'"),
        (KEYS, lambda *_: "eve", errors.CheckpointKeyError, "'eve': no such key was given; add it"),
        (KEYS, lambda *_: 7, errors.CheckpointerConfigurationError, "text of 1 to 250 bytes, not 7"),
        (KEYS, lambda *_: "x" * 251, errors.CheckpointerConfigurationError, "text of 1 to 250 bytes"),
        (WITHOUT_ANN, lambda *_: "ann", errors.CheckpointErasedError, "the key was destroyed"),
    ],
    ids=["raises", "unknown", "no text", "too long", "destroyed"],
)
def test_a_put_whose_key_cannot_be_chosen_is_refused_and_changes_nothing(store, keys, key_for, error, message):
    with store(by_subject()) as saver:
        put_some(saver, "other", "bob")
        size = saver.size()
    with store(by_subject(keys, key_for)) as saver:
        for attempt in (
            lambda: saver.put(T, about("ann", 1)),
            lambda: saver.put(T, about("ann", 1, text=["x" * 50_000] * 400)),
            lambda: saver.put_writes(T.with_check_point_id(made(9).id), {"a": 1}, early=True),
        ):
            with pytest.raises(error, match=message):
                attempt()
            assert saver.size() == size
            assert saver.threads() == ["other"]
        saver.put("other", about("bob", 30))
    with store(by_subject()) as saver:
        assert saver.threads() == ["other"]
        saver.put(T, about("ann", 1))
        assert saver.own_key("t") == "ann"


# Destroyed, missing and wrong keys


@pytest.fixture
def two_subjects(store):
    """Two threads, each with a key of its own; the one of ann has a version and a nested graph, too."""
    with store(by_subject()) as saver:
        put_released(saver, "t", "ann")
        put_some(saver, "other", "bob")
    return store


@pytest.mark.requirement("P73")
@pytest.mark.parametrize(
    "operation", sorted(READS.keys() - {"search", "interrupts", "prune", "compact", "watch", "namespaces"})
)
def test_without_its_key_only_the_erased_thread_is_refused(two_subjects, operation):
    with two_subjects(by_subject(WITHOUT_ANN)) as saver:
        with pytest.raises(errors.CheckpointErasedError, match=r"key 'ann': the key was destroyed") as caught:
            READS[operation](saver)
        assert caught.value.key_id == "ann"
        assert len(saver.list("other")) == 6


@pytest.mark.requirement("P73")
def test_what_is_about_all_threads_goes_on_with_the_others(two_subjects, caplog):
    with two_subjects(by_subject(WITHOUT_ANN)) as saver, caplog.at_level(logging.WARNING, "graphkit"):
        assert saver.threads() == ["other", "t"]
        assert {info.thread_id for info in saver.search({"plain_step": "plain1"})} == {"other"}
        assert saver.interrupts() == []
        assert saver.versions_by_thread_id("t") == [1]
        assert saver.namespaces("t") == ["", "inner"]
        assert saver.size("t") > 500
        report = RetentionPolicy(keep_last=5).apply(saver)
        assert report.pruned == ("other",)
        assert report.ok
        assert saver.prune(keep_last=4) == 1
        assert saver.compact() == 0
        saver.put("z", about("bob"))
        with saver.watch(latest=True) as watch:
            while (change := watch.get(60)).thread_id != "z":
                assert change.thread_id == "other"
            saver.put("other", about("bob", 60))
            assert watch.get(60).checkpoint.metadata["plain_step"] == "plain60"
        assert saver.delete("z")
        report = saver.verify()
        assert report.ok
        assert report.problems == ()
        assert len(report.erased) == 4
        assert all("'ann' was destroyed" in file.reason for file in report.erased)
        assert all(file.records > 2 for file in report.erased)
        assert not caplog.records
        with pytest.raises(errors.CheckpointErasedError):
            saver.prune("t", keep_last=1)
        assert saver.delete("t")
        assert saver.threads(released=True) == ["other"]
        with pytest.raises(errors.CheckpointErasedError):
            saver.put(T, about("ann", 1))


@pytest.mark.parametrize(
    ("keys", "error", "state"),
    [
        (CURRENT, errors.CheckpointKeyError, "sealed"),
        ({**KEYS, "ann": bytes(32)}, errors.CheckpointKeyError, "sealed"),
        (WITHOUT_ANN, errors.CheckpointErasedError, "erased"),
    ],
    ids=["missing", "wrong", "destroyed"],
)
def test_only_a_destroyed_key_is_no_problem(two_subjects, keys, error, state):
    with two_subjects(keys) as saver:
        with pytest.raises(errors.CheckpointKeyError, match="'ann'") as caught:
            saver.get(T)
        assert type(caught.value) is error
        if state == "sealed":
            with pytest.raises(errors.CheckpointKeyError):
                RetentionPolicy(keep_last=1).apply(saver)
        report = saver.verify("t")
        assert states_of(report) == {state}
        assert report.ok is (state == "erased")
        assert bool(report.problems) is (state == "sealed")
        if isinstance(saver, FileSystemSaver):
            assert bool(saver.repair("t").files) is (state == "sealed")


# Rotation


@pytest.mark.requirement("P73")
def test_a_rotation_names_what_is_erased_and_leaves_it(two_subjects):
    new = {"new": bytes(32), **WITHOUT_ANN}
    with two_subjects(new) as saver:
        report = saver.rotate()
        assert report.rewritten == ()
        assert len(report.erased) == 4
        assert saver.rotate("other").erased == ()
    with two_subjects({"new": bytes(32), **BOB}) as saver, pytest.raises(errors.CheckpointKeyError) as caught:
        saver.rotate("t")

    assert type(caught.value) is errors.CheckpointKeyError  # this one may be found again


def test_a_shared_key_may_be_destroyed_too(store):
    with store(CURRENT) as saver:
        put_some(saver, "t", "ann")
    with store({"new": bytes(32), **CURRENT}) as saver:
        put_some(saver, "other", "bob")
    with store({"newest": bytes(31) + b"\1", "new": bytes(32), "current": DESTROYED}) as saver:
        report = saver.rotate()
        assert (len(report.rewritten), len(report.erased)) == (1, 1)
    with store({"newest": bytes(31) + b"\1"}) as saver:
        assert len(saver.list("other")) == 6
    with (
        store({"current": DESTROYED, "new": bytes(32)}) as saver,
        pytest.raises(errors.CheckpointerConfigurationError, match="put another key first"),
    ):
        saver.put(RunnableConfig("third"), made(1))


def test_access_control_reports_what_is_erased_to_those_who_may_know(two_subjects):
    def policy(principal, operation, thread_id, namespace):
        return thread_id.startswith(principal)

    with two_subjects(WITHOUT_ANN) as saver:
        guarded = AccessControlledSaver(saver, policy)
        with acting_as("t"):
            assert len(guarded.rotate().erased) == 4
            assert guarded.own_key("t") == "ann"
            with pytest.raises(errors.CheckpointErasedError):
                guarded.prune("t", keep_last=1)
        with acting_as("other"):
            assert guarded.rotate().erased == ()
            with pytest.raises(errors.AccessDeniedError):
                guarded.own_key("t")
        with acting_as(""):
            assert guarded.prune(keep_last=1) > 0


# Copies in other stores


@pytest.fixture
def target(tmp_path):
    return partial(SqliteSaver, tmp_path / "target.db", fsync="never")


@pytest.mark.requirement("P73")
def test_a_copy_in_another_store_is_erased_with_the_same_key(two_subjects, target):
    with two_subjects(KEYS) as source, target(cipher=KEYS) as copied:
        copy_threads(source, copied)
        assert copied.own_key(T) == "ann"
        assert copied.own_key(T, version=1) == "ann"
        assert copied.own_key(INNER) == "ann"
        assert copied.own_key("other") == "bob"
        assert read_history(copied, T) == read_history(source, T)

        source.put(T, about("ann", 40))
        assert copy_threads(source, copied).checkpoints == 1

    with target(cipher=WITHOUT_ANN) as copied:
        assert len(copied.verify().erased) == 4
        assert len(copied.list("other")) == 6


def test_a_copy_without_the_key_is_refused(two_subjects, target):
    with two_subjects(KEYS) as source, target(cipher={**CURRENT, **BOB}) as copied:
        with pytest.raises(errors.CheckpointKeyError, match="'ann'"):
            copy_threads(source, copied)
        assert copied.threads() == ["other"]


def test_a_copy_with_another_key_is_not_continued(two_subjects, target):
    with two_subjects(KEYS) as source, target() as copied:
        copy_threads(source, copied, plaintext=True)
    with two_subjects(KEYS) as source, target(cipher=KEYS) as copied:
        copied.rotate()
        checkpoint = about("ann", 40)
        source.put(T, checkpoint)
        with pytest.raises(errors.CheckpointConflictError, match="the key 'ann' of its own"):
            copy_threads(source, copied, ["t"])
        assert len(copied.list(T)) == 6


def test_copies_and_exports_of_all_pass_over_what_is_erased(two_subjects, target, caplog):
    with two_subjects(WITHOUT_ANN) as source, target(cipher=KEYS) as copied:
        assert copy_threads(source, copied).threads == copied.threads() == ["other"]
        (record,) = caplog.records
        assert record.getMessage().startswith("thread 't' is passed ")

        lines = export_threads(source, plaintext=True)
        assert sum(line.startswith('{"thread"') for line in lines) == 1

        with pytest.raises(errors.CheckpointErasedError):
            copy_threads(source, copied, ["t"])
        with pytest.raises(errors.CheckpointErasedError):
            list(export_threads(source, ["t"], plaintext=True))


def test_key_for_decides_about_what_comes_from_a_plain_store_or_readable_lines(target, tmp_path):
    with FileSystemSaver(tmp_path / "plain", fsync="never") as plain, target(cipher=by_subject()) as copied:
        put_some(plain, "t", "ann")
        plain.put(INNER, about("ann", 90))
        put_some(plain, "other", "bob")
        copy_threads(plain, copied, ["t"])
        import_threads(copied, export_threads(plain, ["other"]))
        assert copied.own_key(T) == copied.own_key(INNER) == "ann"
        assert copied.own_key("other") == "bob"


# Files


@pytest.fixture
def files(tmp_path):
    return partial(FileSystemSaver, tmp_path / "store", fsync="never", lock_timeout=0)


GOLDEN = Path(__file__).parents[1] / "disk" / "golden_own_keys"
"""Written once by `write_golden`, when keys of their own were new; every later graphkit must read it."""


def write_golden(root):
    with FileSystemSaver(root, fsync="never", cipher=by_subject()) as saver:
        put_some(saver, "t", "ann", 3)
        saver.put(INNER, made(90))
        saver.release(T)
        put_some(saver, "t", "ann", 2)
        put_some(saver, "other", "bob", 2)


def test_the_golden_directory_is_read_as_it_was_written(tmp_path):
    golden = tmp_path / "golden"
    written = tmp_path / "new"
    shutil.copytree(GOLDEN, golden)
    write_golden(written)
    histories = [(T, None), (T, 1), (INNER, 1), (RunnableConfig("other"), None)]

    with FileSystemSaver(golden, cipher=KEYS) as saver, FileSystemSaver(written, cipher=KEYS) as new:
        for config, version in histories:
            assert saver.own_key(config, version=version) == new.own_key(config, version=version)
            assert read_history(saver, config, version) == read_history(new, config, version)

        assert saver.rotate().rewritten == ()
        assert saver.verify().ok


def test_a_repair_keeps_the_key_even_if_the_beginning_of_the_log_is_lost(files, tmp_path):
    with files(cipher=by_subject()) as saver:
        put_some(saver, "t", "ann")
    path = locate_log(tmp_path / "store")
    beginning = read_records(path)[2].offset
    data = path.read_bytes()
    path.write_bytes(bytes(beginning) + data[beginning:])

    with files(cipher=KEYS) as saver, quiet():
        assert saver.repair("t").ok
        assert saver.own_key("t") == "ann"
        assert len(saver.list(T)) == 6


def test_a_repaired_marker_names_a_key_without_what_marks_it(files, tmp_path):
    with files(cipher=by_subject()) as saver:
        put_some(saver, "t", "ann")
        (tmp_path / "store" / "graphkit.store").write_bytes(b"?")
        assert saver.repair().marker is not None
    with files() as saver, pytest.raises(errors.CheckpointKeyError, match="'ann'"):
        saver.put(RunnableConfig("new"), made(1))


def test_a_rewrite_after_a_release_chooses_again(files):
    answers = iter(["ann", "bob"])
    with files(cipher=by_subject(key_for=lambda *_: next(answers))) as saver:
        saver.put(T, made(1))
        saver.release(T)
        saver.put(T, made(2))
        assert (saver.own_key("t", version=1), saver.own_key("t")) == ("ann", "bob")


# Ciphers


def test_the_opener_takes_key_for_along(files):
    with files(cipher=by_subject()) as saver:
        opener = pickle.loads(pickle.dumps(saver.opener()))
    with opener() as saver:
        put_some(saver, "t", "ann")
        assert saver.own_key("t") == "ann"


def test_an_invalid_choice_is_refused_and_no_key_is_shown():
    with pytest.raises(errors.CheckpointerConfigurationError, match="key_for must be callable"):
        SubjectKeys(KEYS, key_for="ann")
    assert repr(KEYS["ann"]) not in repr(by_subject())
    with pytest.raises(errors.CheckpointerConfigurationError, match="must not begin with"):
        FileSystemSaver("unused", cipher={"\0own\0x": bytes(32)})


def test_a_key_file_makes_and_destroys_keys(files, tmp_path):
    path = tmp_path / "keys"
    keys = KeyFile(path)
    assert keys.add("2026") == "2026"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    path.write_text(path.read_text().rstrip("\n") + "\n# subjects", encoding="utf-8")

    def key_for(_, metadata):
        return keys.add(metadata["subject"])

    with files(cipher=SubjectKeys(path, key_for=key_for)) as saver:
        put_some(saver, "t", "ann")
        put_some(saver, "other", "bob")
    before = keys.read()
    assert list(before) == ["2026", "ann", "bob"]
    assert keys.add("ann") == "ann"
    assert keys.read() == before
    keys.destroy("ann")
    keys.destroy("ann")
    assert keys.read() == {**before, "ann": DESTROYED}
    assert path.stat().st_mode & 0o777 == 0o640
    assert "# subjects" in path.read_text()
    keys.add("ann")
    assert keys("ann") == DESTROYED
    with files(cipher=path) as saver:
        with pytest.raises(errors.CheckpointErasedError):
            saver.get(T)
        assert len(saver.list("other")) == 6
    with pytest.raises(LookupError, match="has no key 'eve'"):
        keys.destroy("eve")
    for word in ("", "two words", "#comment", " x", "\udcff", "a\0b"):
        with pytest.raises(errors.CheckpointerConfigurationError, match="one word"):
            keys.add(word)


def test_the_current_key_of_a_key_file_is_not_destroyed(tmp_path):
    path = tmp_path / "keys"
    keys = KeyFile(path)
    keys.add("2025")
    keys.add("2026")
    before = path.read_text(encoding="utf-8")
    with pytest.raises(errors.CheckpointerConfigurationError, match="is the current key: put another key before it"):
        keys.destroy("2025")
    assert path.read_text(encoding="utf-8") == before
    path.write_text("\n".join(reversed(before.splitlines())), encoding="utf-8")
    keys.destroy("2025")
    assert keys("2025") == DESTROYED


def test_the_mark_of_an_editor_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "keys"
    KeyFile(path).add("2026")
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig", newline="\r\n")
    assert [*KeyFile(path).read()] == ["2026"]


def test_a_pickled_key_file_has_no_key(tmp_path):
    keys = KeyFile(tmp_path / "keys")
    keys.add("a")
    key = keys("a")
    assert key not in pickle.dumps(keys)
    assert pickle.loads(pickle.dumps(keys))("a") == key


def test_keys_that_are_added_through_a_link_at_the_same_time_are_all_kept(tmp_path):
    path = tmp_path / "real" / "keys"
    path.parent.mkdir()
    link = tmp_path / "link"
    link.symlink_to(path)
    names = [f"key{number}" for number in range(40)]

    with ThreadPoolExecutor(8) as pool:
        added = [pool.submit(KeyFile(each).add, name) for name in names for each in (path, link)]
    for each in added:
        each.result()

    assert sorted(KeyFile(path).read()) == sorted(names)


def test_a_thread_that_has_read_an_old_key_file_hides_no_new_one(tmp_path):
    path = tmp_path / "keys"
    KeyFile(path).add("current")
    KeyFile(path).add("ann")
    before = {}

    class Overtaken(KeyFile):
        """Another thread, which has read the file before, notes its content after the first assignment of this one."""

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            vars(self).update(before)
            before.clear()

    keys = Overtaken(path)
    keys.read()
    before.update(vars(keys))
    KeyFile(path).destroy("ann")
    keys.read()
    assert not before
    assert keys("ann") == DESTROYED


def owned_key_file(path, mode, user, group):
    """A key file of another user, as root finds it."""
    KeyFile(path).add("current")
    os.chown(path, user, group)
    path.chmod(mode)
    return KeyFile(path)


needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes files of other users"
)


@needs_root
@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_root_leaves_a_key_file_to_its_owner(tmp_path, mode):
    path = tmp_path / "keys"
    keys = owned_key_file(path, mode, 1234, 2345)
    other = tmp_path / "other"
    other.touch()
    path.with_name("keys.new").symlink_to(other)
    keys.add("ann")
    keys.destroy("ann")
    lock = path.with_name("keys.lock").stat()
    assert (lock.st_uid, lock.st_gid) == (1234, 2345)
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (1234, 2345)
    assert stat.S_IMODE(status.st_mode) == mode
    untouched = other.stat()
    assert untouched.st_uid == 0
    assert untouched.st_size == 0


@needs_root
@pytest.mark.parametrize(
    ("mode", "user", "is_refused"),
    [(0o600, 1234, True), (0o640, 0, True), (0o600, 0, False)],
    ids=["another user", "a group that may read", "a group without rights"],
)
def test_a_key_file_stays_as_it_is_if_its_owner_cannot_be_kept(tmp_path, monkeypatch, mode, user, is_refused):
    def refuse(target, *_, **options):
        if not str(target).endswith(".lock"):
            raise PermissionError(errno.EPERM, "not permitted")

    path = tmp_path / "keys"
    keys = owned_key_file(path, mode, user, 2345)
    before = path.read_bytes()
    monkeypatch.setattr(os, "chown", refuse)
    if not is_refused:
        keys.add("ann")
        assert len(keys("ann")) == 32
        return
    with pytest.raises(errors.CheckpointStorageError, match="not permitted"):
        keys.add("ann")
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.new"))


def test_an_open_history_is_read_and_written_until_it_is_closed(files):
    """As docs/security.md says: the derived key is in memory."""
    keys = dict(CURRENT)
    with files(cipher=lambda key_id: ("current", keys["current"]) if key_id is None else keys["current"]) as saver:
        saver.put(T, made(1))
        keys["current"] = DESTROYED
        saver.put(T, made(2))
        assert saver.get(T).state["plain_n"] == 2
        saver.close()
        with pytest.raises(errors.CheckpointErasedError):
            saver.get(T)
