"""The harness can fail: each promise-keeping line of the saver is taken out in turn, and must be missed within bounds.

A test that stays green whatever is broken proves nothing. Each mutation is applied to the running code,
and at least one of the harnesses beside this file must raise within a bounded number of states.
"""

import errno
import uuid
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory
from unittest import mock

import pytest

from graphkit import CheckpointCorruptionError, CheckpointerError, CheckpointStorageError
from savers import FileSystemSaver
from savers._filesystem import lifecycle, log_bytes, rewrite, store, sync
from savers._filesystem.io import FileRange
from savers._filesystem.log_bytes import FileDurability, LogFile
from savers._log import frame, frame_log, sealing, writer
from savers._log.history import History, Scan
from savers._log.stored_checkpoint import EarlyWrites
from savers._log.writer import LogWriter
from tests.disk import crashes
from tests.disk.crashes import PLACE, Crashes, config_of, fixed, made, view
from tests.disk.simfs import SimFS
from tests.support.checkpoints import list_numbers
from tests.support.logs import CHECKPOINT, HEADER_SIZE, flip, forge_meta, locate_log, read_records, replace_payload
from tests.support.sealed import NEW

BOUND = 2500


def nothing(*_, **__):
    return None


# What breaks it: each a context manager


def without_fdatasync():
    return mock.patch.object(SimFS, "fdatasync", nothing)


def without_directory_sync():
    return mock.patch.object(store.Store, "sync_directories", nothing)


def forgetting(log):
    log.frames.bytes.durability.note_replaced()


@contextmanager
def only(keep):
    original = SimFS.fsync_dir

    def fsync_dir(self, path):
        if keep(path):
            original(self, path)

    with mock.patch.object(SimFS, "fsync_dir", fsync_dir):
        yield


def without_root_sync():
    return only(lambda path: path != PLACE)


def without_thread_directory_sync():
    return only(lambda path: "/t-" not in path or "/n-" in path)


def without_namespace_directory_sync():
    return only(lambda path: "/n-" not in path)


def without_parent_sync():
    return only(lambda path: path != "/")


@contextmanager
def without_file_sync(*names):
    original = SimFS.fsync

    def fsync(self, fd):
        if not self._fds[fd].path.rsplit("/", 1)[1].startswith(names):
            original(self, fd)

    with mock.patch.object(SimFS, "fsync", fsync):
        yield


def without_rewrite_sync():
    return without_file_sync("tmp-")


def without_release_sync():
    return without_file_sync("log")


@contextmanager
def without_rewrite_directory_sync():
    install = rewrite._install

    def quietly(*args):
        with mock.patch.object(SimFS, "fsync_dir", nothing):
            install(*args)

    with mock.patch.object(rewrite, "_install", quietly):
        yield


@contextmanager
def without_checksums():
    """Each checksum is whatever it is compared with."""

    class Any(int):
        def __eq__(self, _):
            return True

        def __ne__(self, _):
            return False

        __hash__ = int.__hash__

    original = frame.crc32
    with mock.patch.object(frame, "crc32", lambda *data: Any(original(*data))):
        yield


def without_cutting_the_tail():
    return mock.patch.object(LogFile, "_salvage_tail", return_value="")


def cutting_without_keeping_the_rest():
    """Anything behind a bad record is taken for a tail: damage becomes a shorter history."""
    return mock.patch("savers._log.records.judge", nothing)


def without_finishing():
    return mock.patch.object(lifecycle, "finish_begun", nothing)


def without_the_lock():
    return mock.patch.object(SimFS, "lock", return_value=True)


def believing_a_sync_that_failed():
    original = sync.sync_bytes

    def believe(ticket):
        with suppress(OSError):
            original(ticket)

    return mock.patch.object(sync, "sync_bytes", believe)


def without_a_new_generation():
    return mock.patch.object(rewrite, "renew", forgetting)


def without_undoing():
    return mock.patch.object(LogFile, "cut_back", nothing)


def without_a_durable_undo():
    def cut_back(self, start):
        self._io.truncate(self.fd, start)
        self._clean_size = start

    return mock.patch.object(LogFile, "cut_back", cut_back)


def without_going_on_after_a_short_write():
    def write(self, start, data):
        self._io.write_at(self.fd, start, data)

    return mock.patch.object(LogFile, "write", write)


def without_recording_what_is_not_synced():
    return mock.patch.object(FileDurability, "count_unsynced", return_value=0)


def without_looking_at_what_others_wrote():
    return mock.patch.object(lifecycle, "make_ready", lambda _, log: log.is_open or log.refresh())


def without_looking_at_the_bytes_behind_the_end():
    """As if others' records always changed the size."""
    return mock.patch.object(LogFile, "is_unchanged", lambda self, size, _: size == self._clean_size)


@contextmanager
def without_a_durable_tombstone():
    original = SimFS.fsync
    inside = []
    delete = lifecycle.delete

    def fsync(self, fd):
        if not inside:
            original(self, fd)

    def deleting(*args, **kwargs):
        inside.append(1)
        try:
            return delete(*args, **kwargs)
        finally:
            inside.pop()

    with mock.patch.object(SimFS, "fsync", fsync), mock.patch.object(lifecycle, "delete", deleting):
        yield


def acknowledging_before_the_sync():
    return mock.patch.object(sync.SyncAlways, "settle", lambda _, ticket, **__: sync.release_ticket(ticket))


# Early writes, and the sync that they share with a put


def without_early_distances():
    """A reader of the end of the log finds no write before its checkpoint."""
    return mock.patch.object(EarlyWrites, "measure", nothing)


def without_the_distance_of_others():
    """Of what waits for other checkpoints, a record says nothing."""
    original = EarlyWrites.measure

    def measure(self, id, offset):
        found = original(self, id, offset)
        return found and (found[0], 0)

    return mock.patch.object(EarlyWrites, "measure", measure)


def losing_what_waits_in_a_rewrite():
    return mock.patch.object(EarlyWrites, "select_recent", return_value=[])


def keeping_what_waits_when_its_checkpoint_comes():
    """A second checkpoint of that id would have the writes again."""

    def give_to(self, checkpoint):
        waiting = self.find(checkpoint.id)
        if waiting is not None:
            checkpoint.writes = waiting.writes

    return mock.patch.object(EarlyWrites, "give_to", give_to)


def acknowledging_writes_that_wait_for_a_put():
    """Whether a put follows or not, its sync is believed in."""

    def wait_for_put(_, ticket):
        durability = ticket.log.frames.bytes.durability
        durability.note_synced(ticket.end, with_names=True)

    return mock.patch.object(sync.SyncAlways, "_wait_for_put", wait_for_put)


def believing_that_a_sync_covers_what_was_appended_meanwhile():
    original = sync.sync_bytes

    def believe(ticket):
        original(ticket)
        ticket.log.frames.bytes.durability.note_synced(ticket.file.appended_end)

    return mock.patch.object(sync, "sync_bytes", believe)


# Logs that are extended ahead


def extending_with_other_bytes_than_zeros():
    def _write_and_extend(self, start, data):
        end = start + len(data)
        return self._io.write_at(self.fd, start, data + b"\xff" * (log_bytes._choose_size(end) - end))

    return mock.patch.object(LogFile, "_write_and_extend", _write_and_extend)


def taking_zeros_for_a_torn_write():
    return mock.patch.object(FileRange, "is_zero", return_value=False)


def cutting_zeros_without_looking():
    """As if nobody else could have written over them."""
    return mock.patch.object(LogFile, "is_unchanged", return_value=True)


# Sealed records


@contextmanager
def without_their_place():
    with ExitStack() as stack:
        for module in (frame_log, sealing, rewrite):
            stack.enter_context(mock.patch.object(module, "pack_place", return_value=b""))
        yield


def without_their_history():
    original = sealing.derive_key
    return mock.patch.object(sealing, "derive_key", lambda key, salt, *_: original(key, salt, "", ""))


# Keyframes, and the search for an id


def without_a_cost_of_records():
    return mock.patch.object(writer, "RECORD_COST", 0)


def without_the_size_of_the_keyframe():
    """Keyframes come as often however long they are."""

    def needs_keyframe(self, _):
        distance = self._frames.end - self._history.scan.keyframe_end
        return distance + self._history.scan.depth * writer.RECORD_COST > writer.MIN_KEYFRAME_DISTANCE

    return mock.patch.object(LogWriter, "_needs_keyframe", needs_keyframe)


def without_short_chains():
    return mock.patch.object(writer, "USUAL_DEPTH", 1 << 30)


def short_chains_of_any_state():
    original = Scan._note_record

    def note_record(self, keyframe):
        original(self, keyframe)
        self.has_whole_keyframe = self.has_whole_keyframe or keyframe is not None

    return mock.patch.object(Scan, "_note_record", note_record)


def searching_from_the_beginning():
    original = History._search
    return mock.patch.object(History, "_search", lambda *args: reversed([*original(*args)]))


def searching_for_what_may_be_replaced():
    return mock.patch.object(History, "can_search", lambda self: self.index is None and self._frames.bytes.is_open)


def searching_without_proof():
    """The record that holds the bytes of an id is taken for its checkpoint, wherever they stand."""

    def find_at(self, offsets, id):
        for offset in offsets:
            return next(
                checkpoint for checkpoint in reversed(self.load_index().checkpoints) if checkpoint.offset <= offset
            )
        return None

    return mock.patch.object(History, "_find_at", find_at)


# What must miss it


def crash_states(*workloads):
    def look():
        for workload in workloads:
            Crashes().explore(workload, BOUND)

    return look


def damage():
    """Bytes of a log are changed: an error, never other data and never less of it."""
    with fixed("damage"):
        fs = SimFS()
        saver = FileSystemSaver(PLACE, io=fs)
        for number in range(6):
            saver.put(config_of(), made(number, text=f"{number}" * 9000))
        whole = view(saver)
        tree = fs.tree()
        home = next(name for name in tree["store"] if name.startswith("t-"))
        data = tree["store"][home]["log"]
        for at in (*range(HEADER_SIZE, 600, 7), *range(600, len(data) - 9900, 331)):
            tree["store"][home]["log"] = flip(data, at, 0x41)
            with suppress(CheckpointCorruptionError):
                assert view(FileSystemSaver(PLACE, io=SimFS(tree))) == whole, at


def two_at_once():
    """Two savers whose appends overlap: between looking and appending of the first, the second appends."""
    with fixed("two"):
        fs = SimFS()
        first, second = (FileSystemSaver(PLACE, lock_timeout=0, io=fs) for _ in range(2))
        first.put(config_of(), made(0))
        second.put(config_of(), made(1))
        busy = []
        expected = [2, 1, 0]

        def meanwhile(kind, _, place):
            if kind == "write_at" and not busy:
                busy.append(place)
                with suppress(CheckpointStorageError):
                    second.put(config_of(), made(3))
                    expected.insert(1, 3)

        fs.hook = meanwhile
        first.put(config_of(), made(2))
        fs.hook = None
        found = list_numbers(FileSystemSaver(PLACE, io=fs), config_of())
        assert found == expected


def longer_torn_write():
    """A record was torn that is longer than the one that takes its place: nothing of it may follow that."""
    with fixed("torn"):
        fs = SimFS()
        saver = FileSystemSaver(PLACE, fsync="never", io=fs)
        saver.put(config_of(), made(0))
        home = next(name for name in fs.tree()["store"] if name.startswith("t-"))
        end = len(fs.tree()["store"][home]["log"])
        saver.put(config_of(), made(1, text="x" * 9000))
        tree = fs.tree()
        for cut in (40, 2000, 9000):
            for zeros in (0, 4096):
                tree["store"][home]["log"] = fs.tree()["store"][home]["log"][: end + cut] + bytes(zeros)
                for fsync in ("never", "always"):
                    again = SimFS(tree)
                    for number in (2, 3):
                        FileSystemSaver(PLACE, fsync=fsync, io=again).put(config_of(), made(number))
                    fresh = FileSystemSaver(PLACE, io=again)
                    assert list_numbers(fresh, config_of()) == [3, 2, 0]
                    assert fresh.verify().ok


def full_disk():
    """The second half of a write is refused: nothing of it stays, and the next put works."""
    with fixed("full"):
        fs = SimFS()
        saver = FileSystemSaver(PLACE, io=fs)
        saver.put(config_of(), made(0))
        log_file = next(iter(fs.tree()["store"].keys() - {"graphkit.store", "locks"}))
        before = fs.tree()["store"][log_file]["log"]
        refusing = []

        def refuse(kind, _, place):
            if kind == "write_at":
                refusing.append(place)
                if len(refusing) == 1:
                    return 20
                if len(refusing) == 2:
                    raise OSError(errno.ENOSPC, "injected", place)
            return None

        fs.hook = refuse
        with pytest.raises(CheckpointStorageError):
            saver.put(config_of(), made(1))
        assert fs.tree()["store"][log_file]["log"] == before.rstrip(b"\0"), "the zeros ahead may be gone"
        saver.put(config_of(), made(2))
        assert list_numbers(FileSystemSaver(PLACE, io=fs), config_of()) == [2, 0]


def zeros_ahead():
    """Two savers use the zeros of one log: nothing is set aside, and closing one takes nothing from the other."""
    fs = SimFS()

    def open_saver():
        return FileSystemSaver(PLACE, lock_timeout=0, io=fs)

    first = open_saver()
    second = open_saver()
    for number in range(6):
        first.put(config_of(), made(number, text=f"{number}" * 900))
    second.put(config_of(), made(6))
    first.close()
    second.put(config_of(), made(7))
    assert list_numbers(open_saver(), config_of()) == [7, 6, 5, 4, 3, 2, 1, 0]
    (thread,) = (files for name, files in fs.tree()["store"].items() if name.startswith("t-"))
    assert not [name for name in thread if name.endswith(".bin")]
    assert open_saver().verify().ok


def repeated_early_id():
    """A checkpoint is removed and comes again: its early writes belonged to the first one."""
    fs = SimFS()
    saver = FileSystemSaver(PLACE, io=fs)
    saver.put(config_of(), made(0))
    at = config_of().with_check_point_id(crashes.id_of(1))
    saver.put_writes(at, {"a": "early"}, early=True)
    for _ in range(2):
        saver.put(config_of(), made(1))
        writes = saver.get_writes(at)
        saver.remove(config_of(), [crashes.id_of(1)])
    assert writes == {}
    assert saver.verify().ok


def moved_records():
    """Sealed records change places, with right checksums: an error."""

    for thread in ("t", "u"):
        with TemporaryDirectory() as root:
            saver = FileSystemSaver(root, fsync="never", cipher=NEW)
            for number in range(6):
                saver.put(config_of(), made(number, text=f"text {number}"))
                saver.put(config_of("u"), made(number, text=f"text {number}"))
            saver.close()
            one = read_records(locate_log(root))[3]
            two = read_records(locate_log(root, thread))[4 if thread == "t" else 3]
            assert len(one.payload) == len(two.payload)
            replace_payload(locate_log(root), one, two.payload)
            with pytest.raises(CheckpointerError):
                FileSystemSaver(root, cipher=NEW).list(config_of())


def replaced_log():
    """The sealed log of another thread takes the place of a log: an error."""

    with TemporaryDirectory() as root:
        saver = FileSystemSaver(root, fsync="never", cipher=NEW)
        for thread in ("t", "u"):
            saver.put(config_of(thread), made(1, text="text"))
        saver.close()
        locate_log(root).write_bytes(locate_log(root, "u").read_bytes())
        forge_meta(locate_log(root), thread="t", ns="")
        with pytest.raises(CheckpointerError):
            FileSystemSaver(root, cipher=NEW).get(config_of())


def keyframes():
    """Small logs get keyframes often, longer ones now and then, those with a long keyframe rarely."""
    for length, least, most in ((0, 17, 19), (70_000, 2, 4), (200_000, 1, 1)):
        with TemporaryDirectory() as root:
            saver = FileSystemSaver(root, fsync="never", compression=None)
            for number in range(300):
                saver.put(config_of(), made(number, text="x" * length))
            found = [
                record for record in read_records(locate_log(root)) if record.type == CHECKPOINT and record.is_keyframe
            ]
            assert least <= len(found) <= most


def found_by_id():
    """The newest of two checkpoints with one id, none that was replaced, and none that only holds the bytes."""
    fs = SimFS()

    def fresh():
        return FileSystemSaver(PLACE, io=fs)

    def at(name):
        return config_of().with_check_point_id(name)

    saver = fresh()
    twice, wanted, absent = (str(uuid.UUID(int=number << 64, version=4)) for number in (1, 2, 3))
    saver.put(config_of(), made(0, twice))
    saver.put(config_of(), made(1, wanted, lure=b"\x96\xc4\x10" + uuid.UUID(absent).bytes))
    for number in range(2, 40):
        saver.put(config_of(), made(number, twice if number == 20 else None))
    assert fresh().get(at(twice)).state["n"] == 20
    assert fresh().get(at(wanted)).state["n"] == 1
    assert fresh().get(at(absent)) is None
    saver.put(at(wanted), made(50))
    assert fresh().get(at(wanted)) is None
    assert fresh().get(at(made(50).id)).state["n"] == 50


MUTATIONS = [
    (without_fdatasync, crash_states(crashes.puts)),
    (acknowledging_before_the_sync, crash_states(crashes.puts)),
    (without_directory_sync, crash_states(crashes.first_put)),
    (without_root_sync, crash_states(crashes.first_put)),
    (without_thread_directory_sync, crash_states(crashes.first_put)),
    (without_parent_sync, crash_states(crashes.first_put)),
    (without_namespace_directory_sync, crash_states(crashes.several_threads)),
    (without_rewrite_sync, crash_states(crashes.prune)),
    (without_rewrite_directory_sync, crash_states(crashes.prune, crashes.failed_sync, crashes.copy)),
    (without_release_sync, crash_states(crashes.release)),
    (without_checksums, crash_states(crashes.puts)),
    (without_checksums, damage),
    (without_cutting_the_tail, longer_torn_write),
    (cutting_without_keeping_the_rest, damage),
    (without_finishing, crash_states(crashes.release)),
    (without_finishing, crash_states(crashes.delete)),
    (without_a_durable_tombstone, crash_states(crashes.delete)),
    (without_the_lock, two_at_once),
    (without_looking_at_what_others_wrote, two_at_once),
    (without_looking_at_what_others_wrote, crash_states(crashes.two_savers)),
    (without_looking_at_the_bytes_behind_the_end, two_at_once),
    (without_looking_at_the_bytes_behind_the_end, crash_states(crashes.two_savers)),
    (believing_a_sync_that_failed, crash_states(crashes.failed_sync)),
    (without_a_new_generation, crash_states(crashes.failed_sync)),
    (without_undoing, full_disk),
    (without_a_durable_undo, crash_states(crashes.failed_write)),
    (without_going_on_after_a_short_write, full_disk),
    (without_recording_what_is_not_synced, crash_states(crashes.two_savers, crashes.two_workers)),
    (without_early_distances, crash_states(crashes.early_writes)),
    (without_early_distances, crash_states(crashes.langgraph_steps)),
    (without_the_distance_of_others, crash_states(crashes.early_writes)),
    (losing_what_waits_in_a_rewrite, crash_states(crashes.rewritten_early_writes)),
    (keeping_what_waits_when_its_checkpoint_comes, repeated_early_id),
    (without_fdatasync, crash_states(crashes.langgraph_steps)),
    (acknowledging_writes_that_wait_for_a_put, crash_states(crashes.langgraph_steps)),
    (believing_that_a_sync_covers_what_was_appended_meanwhile, crash_states(crashes.late_worker)),
    (extending_with_other_bytes_than_zeros, zeros_ahead),
    (extending_with_other_bytes_than_zeros, crash_states(crashes.puts)),
    (taking_zeros_for_a_torn_write, zeros_ahead),
    (cutting_zeros_without_looking, zeros_ahead),
    (without_their_place, moved_records),
    (without_their_history, replaced_log),
    (without_a_cost_of_records, keyframes),
    (without_the_size_of_the_keyframe, keyframes),
    (without_short_chains, keyframes),
    (short_chains_of_any_state, keyframes),
    (searching_from_the_beginning, found_by_id),
    (searching_for_what_may_be_replaced, found_by_id),
    (searching_without_proof, found_by_id),
]


@pytest.mark.sweep(16)
@pytest.mark.parametrize(
    ("mutation", "harness"),
    MUTATIONS,
    ids=[f"{number}-{mutation.__name__}" for number, (mutation, _) in enumerate(MUTATIONS)],
)
def test_a_broken_saver_is_found_out(mutation, harness):
    with mutation(), pytest.raises((AssertionError, CheckpointerError, pytest.fail.Exception)):
        harness()


HARNESSES = [
    damage, two_at_once, longer_torn_write, full_disk, zeros_ahead, repeated_early_id, moved_records, replaced_log,
    keyframes, found_by_id,
]  # fmt: skip


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda one: one.__name__)
def test_the_saver_as_it_is_passes(harness):
    harness()
