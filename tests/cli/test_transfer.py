"""Threads as a file: nothing lost, in either form, between directories and savers; and files that are no such files."""

import json
import os
import random
import shutil
from hashlib import blake2b

import pytest

from graphkit import START, RunnableConfig
from graphkit.errors import (
    CheckpointConflictError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointerError,
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointSerializationError,
    CheckpointStorageError,
)
from graphkit.transfer import export_threads, import_threads
from savers import FileSystemSaver, MemorySaver, SqliteSaver, VersionedMemorySaver
from tests.support.logs import locate_log
from tests.support.odd import odd
from tests.support.terminal import NOW, assert_refused, checkpoint, damage, graphkit
from tests.support.threads import MAKERS, TYPES, assert_same, everything, exact, made


@pytest.fixture
def source(tmp_path):
    return everything(FileSystemSaver(tmp_path / "source", fsync="never", types=TYPES))


KINDS = ["file", "memory", "versioned"]


@pytest.mark.requirement("P54")
@pytest.mark.sweep(1, of="kind", in_turn=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("origin", KINDS)
def test_every_type_comes_back_between_any_savers(tmp_path, origin, kind):
    source, target = everything(made(origin, tmp_path / "a")), MAKERS[kind](tmp_path / "b")
    done = import_threads(target, export_threads(source, types=TYPES), types=TYPES)
    assert done == (["t"], 5, 0)
    assert_same(source, target)


def test_the_lines_are_readable_and_as_long_as_what_changed(source):
    lines = [json.loads(line) for line in export_threads(source, types=TYPES)]
    assert [next(iter(line)) for line in lines] == ["graphkit", "thread", "ns", "ns", "ns", "ns", "ns", "end"]
    states = [line["state"] for line in lines[2:7]]
    assert states[0] == {"set": {"log": ["one"], "gone": 1, "n": 1}}
    assert states[1] == {"set": {"n": True}, "extend": {"log": ["two"]}, "drop": ["gone"]}
    assert states[2] == {"set": {"n": 1.0, "log": ["two"]}, "order": ["n", "log"]}
    assert lines[3]["metadata"]["when"]["text"] == str(NOW)


def released(saver, namespace=""):
    """The checkpoints of the first version of the thread."""
    versions = saver.tag(RunnableConfig("t", checkpoint_ns=namespace), 1).checkpoints
    return [exact(checkpoint) for checkpoint in versions]


@pytest.fixture
def versions(source):
    """The lines of a thread with two versions and a third history."""
    for number in (7, 8):
        source.release("t")
        source.put("t", checkpoint(number, START, "a", {"new": number}))
    return list(export_threads(source, types=TYPES))


@pytest.mark.requirement("P54")
def test_released_histories_come_along(tmp_path, source, versions):
    for target in (FileSystemSaver(tmp_path / "b", fsync="never"), VersionedMemorySaver()):
        assert import_threads(target, versions, types=TYPES).checkpoints == 7
        assert list(target.versions_by_thread_id("t")) == [1, 2]
        for namespace in ("", "sub"):
            assert released(target, namespace) == released(source, namespace) != []
        assert_same(source, target)
        assert import_threads(target, versions, types=TYPES).skipped == 7


def test_the_namespaces_of_a_version_may_be_others_than_those_of_the_active_history(tmp_path):
    source = FileSystemSaver(tmp_path / "a", fsync="never")
    for number, namespaces in enumerate((("", "z"), ("", "a", "z"))):
        source.release("t")
        for namespace in namespaces:
            source.put(RunnableConfig("t", checkpoint_ns=namespace), checkpoint(number, START, "a", {}))
    lines = list(export_threads(source))
    target = FileSystemSaver(tmp_path / "b", fsync="never")

    assert import_threads(target, lines).checkpoints == 5
    assert list(export_threads(target)) == lines


@pytest.mark.parametrize(("form", "dies"), [("lines", False), ("logs", False), ("lines", True)])
def test_one_of_all_threads_that_has_no_checkpoint_is_passed_over(tmp_path, form, dies):
    """It is deleted meanwhile, or its process has died in its first put."""
    saver = FileSystemSaver(tmp_path / "source", fsync="never")
    for thread in ("a", "b", "c"):
        saver.put(thread, checkpoint(1, START, "a", {}))
    lines = export_threads(saver, format=form)
    head = next(lines)
    if dies:
        log = locate_log(tmp_path / "source", "b")
        os.truncate(log, log.stat().st_size - 1)
    else:
        saver.delete("b")
    assert import_threads(made("file", tmp_path / "target"), [head, *lines]).threads == ["a", "c"]
    with pytest.raises(CheckpointNotFoundError):
        list(export_threads(saver, ["b"], format="lines"))


def test_a_thread_that_is_deleted_after_its_first_line_spoils_no_file():
    saver = MemorySaver()
    saver.put("a", checkpoint(1, START, "a", {}))
    lines = export_threads(saver)
    begun = [next(lines), next(lines)]
    saver.delete("a")
    assert import_threads(MemorySaver(), [*begun, *lines]).threads == ["a"]


def test_logs_that_are_removed_while_they_are_read_are_named(tmp_path, source):
    lines = export_threads(source, ["t"], format="logs")
    while '"file"' not in next(lines):
        pass
    shutil.rmtree(locate_log(tmp_path / "source").parent)
    with pytest.raises(CheckpointStorageError, match=r"cannot export .*log: No such file"):
        next(lines)


def test_a_saver_without_versions_takes_none(source, versions):
    kept = MemorySaver()
    with pytest.raises(CheckpointerConfigurationError, match="keeps no versions"):
        import_threads(kept, versions, types=TYPES)
    assert list(kept.threads()) == []
    assert import_threads(kept, export_threads(source, types=TYPES, versions=False)).checkpoints == 1


LISTS = [
    [], [1], [2, 3], [2, 3], [2, 3.0, 4], [2], [True], [1, 1], [1.0, 1, 1], [(1,)], [(1,), (2,)], [[1], (2,)], [-0.0],
    [0.0, 1], "ab",
]  # fmt: skip


def test_only_a_list_that_goes_on_exactly_is_exported_as_what_it_grew_by():
    source = MemorySaver()
    for number, value in enumerate(LISTS):
        state = {"l": value}
        source.put("t", checkpoint(number, "n", "m", state))
    lines = list(export_threads(source))
    changes = [line["state"] for line in read(lines) if "state" in line]
    kinds = [next(iter(change), "same") for change in changes]
    other_kinds = {1: "extend", 3: "same", 10: "extend"}
    assert kinds == [other_kinds.get(number, "set") for number in range(len(LISTS))]

    target = MemorySaver()
    import_threads(target, lines)
    assert_same(source, target)


@pytest.mark.parametrize("form", ["lines", "logs"])
def test_a_file_that_is_cut_short_or_altered_changes_nothing(tmp_path, source, form):
    def read_all(saver):
        return list(export_threads(saver, types=TYPES))

    target = FileSystemSaver(tmp_path / "b", fsync="never")
    if form == "lines":  # the import has something to add to the thread
        import_threads(target, read_all(source), types=TYPES)
    before = read_all(target)
    source.release(RunnableConfig("t"))
    everything(source)
    lines = list(export_threads(source, types=TYPES, format=form))
    for cut in range(2, len(lines)):
        without = [*lines[:cut], *lines[cut + 1 :]]
        for damaged in (lines[:cut], without, [*without, lines[cut]]):
            if damaged == lines:
                continue
            with pytest.raises(CheckpointFormatError):
                import_threads(target, damaged, types=TYPES)
            assert read_all(target) == before
    import_threads(target, lines, types=TYPES)
    assert_same(source, target)


def test_a_thread_for_whose_lines_there_is_no_room_is_not_stored(tmp_path, monkeypatch):
    source = MemorySaver()
    source.put("t", checkpoint(1, START, "a", {"text": "x" * (1 << 20)}))
    lines = list(export_threads(source))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    target = MemorySaver()
    with pytest.raises(CheckpointStorageError, match="missing"):
        import_threads(target, lines)
    assert not target.threads()


def test_a_refused_import_adds_nothing_to_what_is_there():
    source, target = MemorySaver(), MemorySaver()
    for saver, value in ((source, "yes"), (target, "no")):
        here = saver.put("t", checkpoint(1, START, "a", {}))
        saver.put_writes(here, {"answer:q": value, "once:x": float("nan")})
    source.add_tags(here, "late")
    source.put("u", checkpoint(1, START, "a", {}))
    lines = list(export_threads(source))
    before = list(export_threads(target))

    with pytest.raises(
        CheckpointConflictError, match=r"differs from the file \(cannot import t; all others are done\)"
    ):
        import_threads(target, lines)
    assert list(export_threads(target, ["t"])) == before
    assert target.get("u") == source.get("u")

    with pytest.raises(CheckpointConflictError, match=r"differs from the file$"):
        import_threads(target, export_threads(source, ["t"]))

    target.delete("t")
    assert [import_threads(target, lines).skipped for _ in range(2)] == [1, 2]


def extend_by_hand(lines):
    """Write a list that grew as a whole."""
    before, line = map(json.loads, lines[2:4])
    line["state"]["set"]["log"] = [*before["state"]["set"]["log"], *line["state"].pop("extend")["log"]]
    lines[3] = json.dumps(line) + "\n"


def repeat_key(lines):
    """Write a key twice: one of the values would be lost."""
    lines[3] = lines[3].replace('"ns": ""', '"ns": "", "ns": ""', 1)


@pytest.mark.parametrize("change", [extend_by_hand, repeat_key])
def test_a_line_that_an_export_would_write_in_another_way_changes_nothing(source, change):
    lines = list(export_threads(source, types=TYPES))
    change(lines)
    lines[-1] = end_of("".join(lines[2:-1]))
    target = MemorySaver()
    with pytest.raises(CheckpointFormatError, match="line 4: malformed: an export would write it in another way"):
        import_threads(target, lines, types=TYPES)
    assert not target.threads()


def test_histories_must_be_in_the_order_of_an_export(versions):
    lines = read(versions)
    for order in (
        [*lines[:2], *lines[3:-1], lines[2]],  # the first line of a history last
        [*lines[:2], *[line for line in lines[2:-1] if "release" not in line]],
        [*lines[:2], *[line for line in lines[2:-1] if "release" in line], *lines[2:3]],
        [*lines[:2], {**lines[2], "version": True}],
        [*lines[:2], {"release": "1"}],
        [*lines[:2], *[{**line, "other": 1} if "release" in line else line for line in lines[2:-1]]],
        lines[:2],
    ):
        target = VersionedMemorySaver()
        text = written(order)
        with pytest.raises(CheckpointFormatError, match=r"histories|not a version|another way|no checkpoints"):
            import_threads(target, [*text, end_of("".join(text[2:]))], types=TYPES)
        assert not target.threads()


def test_types_must_be_known(source):
    """A saver knows its own: an export need not name them."""
    stranger = FileSystemSaver(source.base_directory, fsync="never")
    with pytest.raises(CheckpointSerializationError, match="Colour"):
        list(export_threads(stranger))
    lines = list(export_threads(source))
    assert list(export_threads(stranger, types=TYPES)) == lines
    with pytest.raises(CheckpointSerializationError):
        import_threads(MemorySaver(), lines)
    for form in ("lines", "logs"):
        with pytest.raises(CheckpointNotFoundError):
            list(export_threads(source, ["x"], format=form))


def end_of(lines):
    """Return the line that ends a thread of these lines."""
    return json.dumps({"end": blake2b(lines.encode(), digest_size=16).hexdigest()})


NO_EXPORTS = [
    (lambda _: [], "line 1: this is not an export"),
    (lambda _: ["{}"], "not an export of graphkit"),
    (lambda _: ["import os"], "line 1: this is not an export of graphkit"),
    (lambda _: ['{"graphkit": "threads", "format": 2}'], "reads up to 1"),
    (lambda lines: [lines[0], *lines[2:]], "line 2: expected a thread"),
    (lambda lines: [*lines[:3], "nonsense", *lines[3:]], "line 4: not JSON"),
    (lambda lines: [*lines[:3], "[" * 100_000, *lines[3:]], "line 4: not JSON"),
    (lambda lines: [*lines[:3], '{"next": -Infinity}', *lines[3:]], "line 4: not JSON: JSON has no -Infinity"),
    (lambda lines: [*lines[:3], "[1]", *lines[3:]], "line 4: not an object"),
    (lambda lines: [*lines[:2], '{"ns": ""}\n', end_of('{"ns": ""}\n')], "line 3: malformed"),
    (lambda lines: [*lines[:3], *lines[4:]], "were changed"),
    (lambda lines: [line.replace('"one"', '"two"') for line in lines], "were changed"),
    (lambda lines: [lines[0], '{"thread": "u"}', *lines[2:]], "lines of thread 'u' were changed"),
]


def test_files_that_are_no_such_files(source):
    lines = list(export_threads(source, types=TYPES))
    for change, message in NO_EXPORTS:
        with pytest.raises(CheckpointFormatError, match=message):
            import_threads(MemorySaver(), change(lines), types=TYPES)


def test_lines_of_older_versions_are_read(source):
    *lines, end = export_threads(source, types=TYPES)
    older = json.dumps({key: value for key, value in json.loads(end).items() if key != "thread"})
    assert import_threads(MemorySaver(), [*lines, older], types=TYPES).threads == ["t"]


def make_odd(dice, whole):
    """Return the objects of an export, one of which is changed, and the number of that one."""
    at = dice.randrange(len(whole))
    return [*whole[:at], jsonable(odd(dice, whole[at])), *whole[at + 1 :]], at


def written(lines):
    return [json.dumps(line) + "\n" for line in lines]


def read(lines):
    return [json.loads(line) for line in lines]


@pytest.mark.sweep(5)
@pytest.mark.parametrize("seed", range(20))
def test_lines_that_make_no_sense_are_refused_as_such(source, seed):
    dice = random.Random(seed)
    whole = read(export_threads(source, types=TYPES))
    for _ in range(10):
        lines, at = make_odd(dice, whole)
        if at != len(lines) - 1:  # the sum is right, as if a bug had written the file
            end = end_of("".join(written(lines[2:-1])))
            lines[-1] |= json.loads(end)
        saver_class = dice.choice([MemorySaver, VersionedMemorySaver])
        target = saver_class()
        try:
            report = import_threads(target, written(lines), types=TYPES)
        except CheckpointerError:
            continue
        (thread,) = report.threads
        again = read(export_threads(target, [thread], types=TYPES))
        assert again[2:-1] == lines[2:-1]


@pytest.mark.sweep(5)
@pytest.mark.parametrize("seed", range(20))
def test_logs_that_make_no_sense_are_refused_as_such(tmp_path, seed):
    dice = random.Random(seed)
    saver = FileSystemSaver(tmp_path / "from", fsync="never")
    saver.put(RunnableConfig("t"), checkpoint(1, "n", "m", {"x": "y" * 50}))
    whole = read(export_threads(saver, format="logs"))
    for number in range(10):
        lines, _ = make_odd(dice, whole)
        target = FileSystemSaver(tmp_path / str(number), fsync="never")
        try:
            (thread,) = import_threads(target, written(lines), format="logs").threads
        except CheckpointerError:
            assert target.verify().ok
            continue
        assert target.get(RunnableConfig(thread)).state == {"x": "y" * 50}


def jsonable(value):
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [jsonable(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def test_progress_is_reported(source):
    reported = []
    lines = list(export_threads(source, types=TYPES, progress=lambda *args: reported.append(args)))
    import_threads(MemorySaver(), lines, types=TYPES, progress=lambda *args: reported.append(args))
    assert reported == [(1, 1, "t"), (1, 0, "t")]


# The raw logs


def logs_of(store):
    paths = [path for path in store.glob("t-*/**/*") if path.name != "run.lock" and path.is_file()]
    return {path.relative_to(store): path.read_bytes() for path in paths}


def test_the_logs_come_along_byte_by_byte(tmp_path, source):
    source.release(RunnableConfig("t"))
    everything(source)
    lines = list(export_threads(source, format="logs"))
    root = tmp_path / "b"
    target = FileSystemSaver(root, fsync="never", types=TYPES)
    assert import_threads(target, lines, format="logs").threads == ["t"]
    assert logs_of(root) == logs_of(tmp_path / "source")

    assert_same(source, target)
    assert list(target.versions_by_thread_id("t")) == [1]
    log = root / json.loads(lines[1])["directory"] / "log"
    before = log.stat().st_ino

    assert import_threads(target, lines, format="logs").threads == ["t"]  # all is there
    assert log.stat().st_ino == before, "a writer may append to it at this moment"
    for path in root.glob("t-*/**/*"):
        mode = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == mode


def test_logs_do_not_overwrite_and_damage_comes_along_and_is_reported(tmp_path, source):
    for thread in ("u", "v"):
        source.put(thread, checkpoint(1, START, "a", {}))
    target = FileSystemSaver(tmp_path / "b", fsync="never")
    target.put("u", checkpoint(2, START, "a", {}))
    before = logs_of(tmp_path / "b")
    damage(tmp_path / "source", "t")
    lines = list(export_threads(source, ["u", "t", "v"], format="logs"))
    with pytest.raises(CheckpointConflictError, match=r"holds other data.*\(cannot import u, t; all others are done\)"):
        import_threads(target, lines, format="logs")
    assert logs_of(tmp_path / "b").items() >= before.items()
    assert sorted(target.threads()) == ["t", "u", "v"]
    target.delete("u")
    with pytest.raises(CheckpointCorruptionError, match=r"\(cannot import t; all others are done\)"):
        import_threads(target, lines, format="logs")


def test_logs_from_strangers_get_nowhere(tmp_path, source):
    empty_log = '{"file": "log"}\n' + json.dumps({"digest": blake2b(digest_size=16).hexdigest()}) + "\n"
    for old, new, message in (
        ('"graphkit": "logs"', '"graphkit": "threads"', "in the format 'lines', not 'logs'"),
        ('"thread": "t"', '"thread": "u"', "is not the directory of thread 'u'"),
        ('"directory": "t-', '"directory": "../t-', "is not the directory of thread 't'"),
        ('"file": "log"', '"file": "../../log"', "expected a log"),
        ('"file": "log"', '"file": "run.lock"', "expected a log"),
        ('{"file": "log"}', f'{empty_log}{{"file": "log"}}', "expected a log"),  # the file would have it twice
        ('"file": "log"', '"file": "v000007.log"', "are missing, or were changed"),
        ('"data": "', '"data": "AAAA', "were changed"),
        ('{"digest"', 'nonsense {"digest"', "not JSON"),
        ('{"file": "log"}', "[]", "not an object"),
    ):
        target = FileSystemSaver(tmp_path / "b" / "c", fsync="never")
        text = "".join(export_threads(source, format="logs")).replace(old, new)
        with pytest.raises(CheckpointFormatError, match=message):
            import_threads(target, text.splitlines(), format="logs")
        assert not list((tmp_path / "b").rglob("log"))


# On the command line


def test_export_and_import(store, tmp_path, saver):
    file = tmp_path / "all.jsonl"
    would = graphkit("export", store, "--output", file, "--dry-run")
    assert would.out == f"would export 3 threads to {file}: import-a, order-17, order-18\n"
    assert not file.exists()
    done = graphkit("export", store, "--output", file)
    assert done.out == f"exported 3 threads to {file}\n"
    would = graphkit("import", tmp_path / "b", file, "--dry-run")
    assert would.out == "would import 3 threads: import-a, order-17, order-18\n"
    assert not (tmp_path / "b").exists()
    assert graphkit("import", tmp_path / "b", file).out == "imported 5 checkpoints of 3 threads, verified\n"
    again = graphkit("import", tmp_path / "b", file)
    assert again.out == "imported 0 checkpoints of 3 threads, verified; skipped 5 that were already there\n"
    for thread in saver.threads():
        assert_same(saver, FileSystemSaver(tmp_path / "b"), thread, thread)

    assert list(tmp_path.glob("*.part")) == []


def test_an_export_replaces_no_file_but_its_own(store, tmp_path):
    assert_refused(graphkit("export", store, "--output", ""), 2, "needs the name of a file")
    pipe = tmp_path / "pipe"  # as /dev/null is, which a fault would replace for the whole machine
    os.mkfifo(pipe)
    assert_refused(graphkit("export", store, "--output", pipe), 15, "it is not a file")
    assert pipe.is_fifo()
    own = tmp_path / "all.jsonl.part"
    own.write_text("the user's")
    assert graphkit("export", store, "--output", tmp_path / "all.jsonl").code == 0
    assert own.read_text() == "the user's"


def test_an_export_without_a_damaged_thread_replaces_no_file_that_may_have_it(store, tmp_path):
    damage(store, "order-17")
    new = tmp_path / "new.jsonl"
    done = graphkit("export", store, "--output", new)
    assert_refused(done, 12, "cannot export order-17; all others are done")
    piped = graphkit("export", store)
    assert (piped.code, piped.out) == (12, new.read_text())
    new.write_text("has order-17")
    assert_refused(graphkit("export", store, "--output", new), 12, f"{new} stays as it was")
    assert new.read_text() == "has order-17"
    assert graphkit("export", store, "order-17", "--output", tmp_path / "one.jsonl").code == 12
    assert not (tmp_path / "one.jsonl").exists()


def test_a_dry_run_of_an_export_refuses_what_the_export_would(tmp_path):
    name = f"sqlite:{tmp_path / 'runs.db'}"
    with SqliteSaver(tmp_path / "runs.db", fsync="never") as saver:
        saver.put("t", checkpoint(1, START, "a", {}))
    for options in ((), ("--dry-run",)):
        assert_refused(graphkit("export", name, "--raw", *options), 18, "SqliteSaver has no logs")


def test_a_dry_run_of_an_import_refuses_what_the_import_would(store, tmp_path):
    def would(lines):
        return graphkit("import", tmp_path / "b", "-", "--dry-run", stdin=lines)

    one = graphkit("export", store, "order-17").out
    assert would(one).out == "would import 1 thread: order-17\n"
    assert_refused(would(one.rpartition('{"end"')[0]), 13, "cut short within thread 'order-17'")
    assert_refused(would(f'{one}{{"thread": x'), 13, "line 6: not JSON")
    assert_refused(would(one.replace('"next"', '"text"')), 13, "were changed")
    raw = graphkit("export", store, "--raw").out
    assert would(raw).out == "would import 3 threads: import-a, order-17, order-18\n"
    assert_refused(would(raw.replace('{"data": "', '{"data": "AAAA')), 13, "were changed")


def test_a_file_that_cannot_be(store, tmp_path):
    target = tmp_path / "b"
    missing = tmp_path / "nothing"
    assert graphkit("export", store, "--output", missing / "file").code == 15
    assert graphkit("import", target, missing).code == 15
    for text in ("hello\n", "[" * 100_000, ""):
        assert graphkit("import", target, "-", stdin=text).code == 13
    picture = tmp_path / "picture"
    picture.write_bytes(b'{"graphkit": "\x89PNG\xff"}')
    assert_refused(graphkit("import", target, picture), 13, "it is not UTF-8")
    assert not target.exists()
