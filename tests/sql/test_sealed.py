"""Sealed histories in every store: what the key of a history protects; in databases: no plaintext in any column."""

from functools import partial
from pathlib import Path

import psycopg
import pytest

from graphkit import END, Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError, CheckpointKeyError
from savers import Compression, FileSystemSaver, SqliteSaver
from tests.sql.savers import every_store, run_sql
from tests.support.contents import read_all, read_history
from tests.support.disks import quiet
from tests.support.logs import pack_frame, parse_frame
from tests.support.sealed import BOTH, CONFIG, INNER, MARKERS, NEW, OLD, READS, WRONG, fill, fill_rotatable, made, write

OTHER = RunnableConfig("u")
IN_COLUMNS = {"interrupts", "namespaces"}
"""What is read from columns that are not sealed."""


@pytest.fixture
def files_opener(tmp_path):
    compression = Compression(threshold=20_000)
    return partial(FileSystemSaver, tmp_path / "files", fsync="never", lock_timeout=0, compression=compression)


def logs_of(saver):
    """The bytes of all logs of a store in files, and of what a repair sets aside; of a database, nothing."""
    if not isinstance(saver, FileSystemSaver):
        return {}
    files = Path(saver.base_directory).rglob("*")
    return {path: path.read_bytes() for path in files if path.name.endswith(("log", ".bin"))}


def stored(saver):
    """All bytes that the store has: of files and of SQLite the files, of PostgreSQL all columns of all rows."""
    if isinstance(saver, FileSystemSaver):
        return b"".join(logs_of(saver).values())
    if isinstance(saver, SqliteSaver):
        file = Path(saver.db_file)
        return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))
    dump = b""
    with psycopg.connect(saver._connection_string) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s", (saver._schema,)
        ).fetchall()
        assert len(tables) >= 5
        for (table,) in tables:
            sql = psycopg.sql.SQL("COPY {} TO STDOUT (FORMAT binary)")
            with connection.cursor().copy(sql.format(psycopg.sql.Identifier(saver._schema, table))) as rows:
                dump += b"".join(bytes(part) for part in rows)
    return dump


def assert_no_plaintext(saver):
    data = stored(saver)
    for marker in MARKERS:
        assert marker not in data, data[data.index(marker) - 50 : data.index(marker) + 50]


def count_terms(saver, history=None):
    """How many terms a search may find: those of all histories, or of one with a number."""
    names = saver._database.names
    sql = f"SELECT coalesce(sum(array_length(terms, 1)), 0)::bigint FROM {names.records}"
    if isinstance(saver, SqliteSaver):
        sql = f"SELECT count(*) FROM {names.terms}"
    ((count,),) = saver._database.read(sql if history is None else f"{sql} WHERE history = {history}")
    return count


# No plaintext


@pytest.mark.requirement("P70")
def test_no_column_has_plaintext(open_saver):
    """States, their keys, writes, metadata, tags and nodes, through every operation."""
    saver = open_saver(cipher=NEW)
    with quiet():
        write(saver)
        write(saver, INNER, 4)
        assert_no_plaintext(saver)
        before = read_history(saver, CONFIG)
        saver.copy("t", "u")
        saver.put(CONFIG.with_check_point_id(before[3][0]), made(99, plain="replaced"))
        saver.compact()
        saver.prune("t", keep_last=5)
        saver.put_writes(CONFIG.with_check_point_id(made(300).id), {"plain_early": "plain"}, early=True)
        saver.release(CONFIG)
        write(saver)
    assert_no_plaintext(saver)
    assert count_terms(saver) == 5  # one for each history
    assert saver.verify().ok


def test_the_options_are_checked_without_the_key_file(open_saver):
    saver = type(open_saver())
    saver.check_options(*open_saver.opener.args, cipher="no such file")
    with pytest.raises(CheckpointerConfigurationError, match="32 random bytes"):
        saver.check_options(*open_saver.opener.args, cipher={"a": b"short"})


def test_the_markers_are_found_in_a_plain_database(open_saver):
    saver = open_saver(compression=None)
    write(saver)
    data = stored(saver)
    for marker in (b"plain item", b"plain_step", b"plain tag", b"plain answer", b"plain_node", b"plain_text"):
        assert marker in data, marker


@pytest.mark.parametrize(
    "append",
    [
        lambda saver: saver.put(CONFIG, made(70)),
        lambda saver: saver.put_writes(CONFIG, {"plain_write": "plain answer"}),
        lambda saver: saver.add_tags(CONFIG, "plain tag"),
    ],
    ids=["put", "put_writes", "add_tags"],
)
@every_store
@pytest.mark.parametrize("is_open", [False, True])
def test_a_plain_history_is_sealed_by_the_next_append(append, is_open, open_saver):
    plain = open_saver()
    write(plain, count=5)
    write(plain, INNER, 2)
    before = read_history(plain, CONFIG)
    sealed = open_saver(cipher=NEW)
    if is_open:
        assert read_history(sealed, CONFIG) == before
    append(sealed)
    assert read_history(sealed, CONFIG)[-4:] == before[-4:]
    assert sealed.verify().ok
    with pytest.raises(CheckpointKeyError, match="open the store with `cipher`"):
        plain.get(CONFIG)
    with pytest.raises(CheckpointKeyError, match="open the store with `cipher`"):
        plain.put(CONFIG, made(71))
    assert read_history(plain, INNER) == read_history(sealed, INNER)
    if not logs_of(sealed):
        numbers = [sealed._store.shared_log("t", namespace).frames.bytes.history for namespace in ("", "inner")]
        of_root, of_inner = (count_terms(sealed, number) for number in numbers)
        assert of_root == 1
        assert of_inner > 1


# Searching


def test_a_search_finds_plain_and_sealed_histories(open_saver):
    plain = open_saver()
    sealed = open_saver(cipher=NEW)

    def threads_with(step):
        return [info.thread_id for info in sealed.search({"plain_step": step})]

    for thread in ("a", "b"):
        plain.put(RunnableConfig(thread), made(1))
    sealed.put(RunnableConfig("c"), made(1))
    sealed.put(RunnableConfig("c"), made(2))
    sealed.put(RunnableConfig("d"), made(2))
    assert threads_with("plain1") == ["a", "b", "c"]
    assert threads_with("plain2") == ["c", "d"]
    sealed.rotate("a")
    assert threads_with("plain1") == ["a", "b", "c"]


# Keys


@pytest.fixture
def store(open_saver):
    fill(open_saver(cipher=NEW))
    return open_saver


@every_store
@pytest.mark.requirement("P70")
@pytest.mark.parametrize("wrong", WRONG)
def test_without_the_key_nothing_is_read_or_changed(store, wrong):
    with store(cipher=NEW) as saver:
        before = read_history(saver, CONFIG)
        logs = logs_of(saver)

    for operation in READS if logs else READS.keys() - IN_COLUMNS:
        with store(cipher=WRONG[wrong]) as saver, pytest.raises(CheckpointKeyError, match="'current'") as caught:
            READS[operation](saver)
        assert caught.value.key_id == "current", operation
        assert caught.value.has_keys is (wrong != "without")
        reader = store(cipher=NEW)
        assert read_history(reader, CONFIG) == before
        assert logs_of(saver) == logs


@every_store
@pytest.mark.parametrize("wrong", WRONG)
def test_without_the_key_verify_reports_it_and_repair_refuses(store, wrong):
    saver = store(cipher=WRONG[wrong])
    logs = logs_of(saver)
    report = saver.verify()
    assert not report.ok
    for file in [file for thread in report.threads for file in thread.files]:
        assert file.state == "sealed"
        assert "'current'" in file.reason
        assert file.records > 2
    if logs:
        repaired = saver.repair()
        assert not repaired.changed
        assert all("'current'" in file.refused for file in repaired.files)
        assert logs_of(saver) == logs


# Moved and changed records


def test_a_record_of_another_history_is_refused(open_saver):
    """Its checksums are made right for its new place; its seal is not."""
    saver = open_saver(cipher=NEW)
    for config in (CONFIG, OTHER, INNER):
        for number in range(4):
            saver.put(config, made(number, secret="plain secret"))
    logs = [saver._store.shared_log(config.thread, config.checkpoint_ns) for config in (CONFIG, OTHER, INNER)]
    sql = f"SELECT position, frame FROM {saver._database.names.records} WHERE history = ? ORDER BY position"
    own, *foreign = [
        [
            parse_frame(frame, 0, position, log.frames.fid)
            for position, frame in saver._database.read(sql, (log.frames.bytes.history,))[1:]
        ]
        for log in logs
    ]

    def forge(payload):
        """Store a record with another payload."""
        at = own[2]
        assert len(payload) == len(at.payload)
        forged = pack_frame(at.offset, logs[0].frames.fid, at.seq, at.type, payload, at.flags, at.back, at.key)
        sql = "UPDATE {records} SET frame = ? WHERE history = ? AND position = ?"
        run_sql(saver, sql, (forged, logs[0].frames.bytes.history, at.offset))

    for other in foreign:
        forge(other[2].payload)
        reader = open_saver(cipher=NEW)
        with pytest.raises(CheckpointKeyError, match="another thread or namespace"):
            reader.list(CONFIG)
        assert {file.state for file in reader.verify("t").problems} == {"sealed"}
    forge(own[1].payload)
    reader = open_saver(cipher=NEW)
    with pytest.raises(CheckpointCorruptionError, match="changed, or moved"):
        reader.list(CONFIG)
    assert {file.state for file in reader.verify("t").problems} == {"damaged"}


# Plain savers on a sealed store


@every_store
def test_a_saver_without_keys_begins_no_history_in_a_sealed_store(open_saver):
    plain = open_saver()
    plain.put(RunnableConfig("another"), made(0))
    write(open_saver(cipher=NEW), count=2)
    logs = logs_of(plain)
    for saver in (plain, open_saver()):
        for begin in (
            lambda saver: saver.put(RunnableConfig("new"), made(1)),
            lambda saver: saver.put(RunnableConfig("another", checkpoint_ns="new"), made(1)),
            lambda saver: saver.copy("another", "new"),
        ):
            with pytest.raises(CheckpointKeyError, match="open the store with `cipher`") as caught:
                begin(saver)
            assert (caught.value.key_id, caught.value.has_keys) == ("current", False)
        assert saver.threads() == ["another", "t"]
        assert logs_of(saver) == logs
    with plain.run_lock(RunnableConfig("new")), pytest.raises(CheckpointKeyError, match="'current'"):
        plain.put(RunnableConfig("new"), made(1))
    plain.put(RunnableConfig("another"), made(2))  # a plain history goes on until a saver with keys writes to it
    assert open_saver().prune("another", keep_last=1) == 1
    plain.put(RunnableConfig("another"), Checkpoint(node_id="a", next_node_id=END, state={}))  # though it was rewritten
    assert plain.delete("t")
    with pytest.raises(CheckpointKeyError, match="'current'"):
        plain.put(RunnableConfig("new"), made(1))


def test_a_key_id_of_any_text_is_named(open_saver):
    key_id = "\0'\udcff ü" * 20
    open_saver(cipher={key_id: bytes(32)}).put(CONFIG, made(0))
    with pytest.raises(CheckpointKeyError) as caught:
        open_saver().put(OTHER, made(1))
    assert caught.value.key_id == key_id


def test_a_database_that_took_the_place_of_a_sealed_one_is_marked_too(sqlite_opener, tmp_path):
    with SqliteSaver(tmp_path / "plain.db", fsync="never") as plain:
        plain.put(OTHER, made(0))
    with sqlite_opener(cipher=NEW) as saver:
        saver.put(CONFIG, made(1))
        for path in tmp_path.glob("store.db-*"):
            path.unlink()
        (tmp_path / "plain.db").rename(saver.db_file)
        saver.put(CONFIG, made(2))
    with sqlite_opener() as plain, pytest.raises(CheckpointKeyError, match="'current'"):
        plain.put(RunnableConfig("new"), made(3))


# Rotation


@pytest.fixture
def rotatable(open_saver):
    fill_rotatable(open_saver)
    return open_saver


@every_store
@pytest.mark.requirement("P70")
def test_after_a_rotation_the_old_key_is_not_needed(rotatable):
    before = read_all(rotatable(cipher=BOTH))
    saver = rotatable(cipher=BOTH)
    steps = []
    report = saver.rotate(progress=lambda done, total, *_: steps.append((done, total)))
    assert steps == [(number, 5) for number in range(1, 6)]
    assert len(report.rewritten) == 6
    assert any(path.endswith(("namespace 'inner', version 1", "v000001.log")) for path in report.rewritten)
    assert not any("t-new" in path or "thread 'new'" in path for path in report.rewritten)
    assert report.set_aside == ()
    logs = logs_of(saver)
    again = saver.rotate()
    assert again.rewritten == ()
    assert logs_of(saver) == logs
    assert read_all(rotatable(cipher=NEW)) == before
    assert saver.verify().ok
    if logs:
        assert_no_plaintext(saver)
    else:
        assert count_terms(saver) == 7


def test_after_a_rotation_of_plain_histories_nothing_of_them_is_in_the_database(open_saver):
    plain = open_saver(compression=None)
    write(plain)
    write(plain, INNER, 3)
    plain.release(CONFIG)
    write(plain)
    plain.close()
    saver = open_saver(cipher=NEW)
    assert len(saver.rotate().rewritten) == 3
    assert_no_plaintext(saver)
    assert len(read_history(saver, CONFIG)) == len(read_history(saver, CONFIG, version=1)) == 12


def test_what_a_saver_with_keys_deletes_is_overwritten(sqlite_opener):
    with sqlite_opener(compression=None) as plain:
        write(plain)
        write(plain, OTHER)
    with sqlite_opener(cipher=NEW) as saver:
        saver.put(OTHER, made(70))
        saver.delete("t")
    assert_no_plaintext(saver)


@every_store
def test_rotation_needs_keys_and_leaves_a_history_whose_key_is_missing(rotatable):
    with pytest.raises(CheckpointerConfigurationError, match="cipher"):
        rotatable().rotate()
    with pytest.raises(CheckpointKeyError, match=r"'2025'.*all others are done"):
        rotatable(cipher=NEW).rotate()
    assert read_history(rotatable(cipher=NEW), RunnableConfig("unsealed"))
    assert len(rotatable(cipher=BOTH).rotate().rewritten) == 4
    assert read_all(rotatable(cipher=NEW))


def test_a_rotation_during_a_run_and_with_other_savers_open(rotatable):
    other = rotatable(cipher=BOTH)
    before = read_history(other, CONFIG)
    with other.run_lock(CONFIG):
        other.put(CONFIG, made(80))
        rotatable(cipher=BOTH).rotate()
        other.put(CONFIG, made(81))
        assert read_history(other, CONFIG)[2:] == before
    assert read_history(other, CONFIG, version=1)


def test_a_history_that_is_released_during_a_rotation_is_rotated_too(open_saver):
    old = open_saver(cipher=OLD)
    write(old, count=3)

    def release_first(key_id):
        if old.namespaces("t"):
            old.release(CONFIG)
        return ("current", NEW["current"]) if key_id is None else BOTH[key_id]

    # The rotation asks for a key when it has listed the histories and opens the live one.
    open_saver(cipher=release_first).rotate()
    assert len(open_saver(cipher=NEW).tag(CONFIG, 1).checkpoints) == 3


# Watching


def test_a_release_that_was_rotated_before_a_watch_read_it_is_a_release(open_saver):
    old = open_saver(cipher=OLD)
    old.put(CONFIG, made(1))
    saver = open_saver(cipher=BOTH)
    with saver.watch(CONFIG) as watch:
        old.put(CONFIG, made(2))
        old.release(CONFIG)
        assert len(saver.rotate().rewritten) == 1
        saver.put(CONFIG, made(3))
        second, release, third = (watch.get(30) for _ in range(3))

    assert (second.kind, release.kind, third.kind) == ("checkpoint", "release", "checkpoint")
    assert second.checkpoint.metadata["plain_step"] == "plain2"
    assert release.at is not None
    assert third.checkpoint.metadata["plain_step"] == "plain3"
