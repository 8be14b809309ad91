"""The crash harness: workloads, every state that a power loss may leave behind them, and what must be true of each.

A workload runs once, on a simulated file system and on an oracle in memory. Its operations are then replayed, and
after each of them the legal states of the disk (all where they are few, a seeded sample where they are many) are opened
by a new saver:

- it opens, and every history of every thread reads as it did at a moment between the last acknowledged change and the
  last one begun, type for type and in order;
- the next put on every history works, and what is there then is one of those moments as a whole, and that put;
- a checkpoint that comes only now has the early writes that waited for it, each once, and no other has them;
- it survives a second crash, at any operation of that recovery.

What differs from run to run otherwise (ids, clocks, random file ids) is fixed, so that a failure is replayed by its
seed. `Lost` is raised with all of it.
"""

import errno
import itertools
import os
import random
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from unittest import mock

from graphkit import Checkpoint, CheckpointStorageError, RunnableConfig
from graphkit.saver_kit import Codec
from savers import FileSystemSaver, VersionedMemorySaver
from savers._filesystem import log_bytes, rewrite, sync
from savers._log import frame_log, log
from savers._log.frame import SYNC
from tests.disk.simfs import Disk, SimFS, few_of
from tests.support.contents import describe, expect_alike, outline
from tests.support.disks import failing, quiet

PLACE = "/store"
THREADS = ("t", "u")
NAMESPACES = ("", "inner")
INCOMPLETE = "graphkit:incomplete"
EARLY = "early"
"""The key of a view under which it keeps early writes, beside its threads: {(thread, namespace, id): writes}."""
WHEN = datetime(2026, 5, 1, tzinfo=UTC)
SEED = os.environ.get("GRAPHKIT_CRASH_SEED", "1")


class Lost(AssertionError):
    """A state of the disk that breaks a promise."""


def open_saver(fs, fsync="always", **options):
    """Open a saver on a simulated disk."""
    return FileSystemSaver(PLACE, fsync=fsync, lock_timeout=0, io=fs, **options)


def open_durable(fs):
    """Open a saver on what is certainly on the disk."""
    return open_saver(SimFS(Disk(ops=fs.ops).durable(), record=False))


def config_of(thread="t", namespace=""):
    return RunnableConfig(thread_id=thread, checkpoint_ns=namespace)


def id_of(number):
    return f"00000000-0000-7000-8000-{number:012x}"


def made(number, id=None, **state):
    return Checkpoint(
        id=id or id_of(number),
        node_id=f"n{number}",
        next_node_id=f"n{number + 1}",
        state={"n": number, **state},
        created_at=WHEN,
        metadata={"step": number},
    )


def view(saver, threads=THREADS, namespaces=NAMESPACES):
    """Everything that a saver holds: {thread: {(namespace, version or None): history, newest first}}.

    Without what only says that a copy has not ended.
    """
    found = {}
    for thread in threads:
        histories = found[thread] = {}
        for namespace in namespaces:
            config = config_of(thread, namespace)
            complete = [checkpoint for checkpoint in saver.list(config) if INCOMPLETE not in checkpoint.metadata]
            if complete:
                histories[namespace, None] = tuple(describe(saver, config, checkpoint) for checkpoint in complete)
        for version in saver.versions_by_thread_id(thread):
            for namespace in namespaces:
                if listed := saver.tag(config_of(thread, namespace), version).checkpoints:
                    histories[namespace, version] = tuple(map(outline, listed))
    return found


def grown(before, thread, namespace, number, id=None):
    """A view after one more put."""
    checkpoint = made(number, id)
    early = dict(before.get(EARLY, {}))
    writes = early.pop((thread, namespace, checkpoint.id), {})
    histories = dict(before.get(thread, {}))
    older = histories.get((namespace, None), ())
    histories[namespace, None] = (outline(checkpoint, writes, ()), *older)
    return {**before, thread: histories, EARLY: early}


FIRST = config_of().with_check_point_id(id_of(0))
STEPS = (
    ("put", lambda saver: saver.put(config_of(), made(0, text="a" * 300))),
    ("put", lambda saver: saver.put(config_of(), made(1, items=[1, 2]))),
    ("put", lambda saver: saver.put(config_of("t", "inner"), made(2, text="i" * 600))),
    ("put", lambda saver: saver.put_writes(config_of(), {"branch": [1]})),
    ("put", lambda saver: saver.add_tags(config_of(), "kept")),
    ("put", lambda saver: saver.put(FIRST, made(3, id=made(0).id, text="instead"))),
    ("copy", lambda saver: saver.copy("t", "u")),
    ("prune", lambda saver: saver.prune("t", keep_last=1)),
    ("put", lambda saver: saver.put(config_of(), made(4))),
    ("release", lambda saver: saver.release(config_of())),
    ("put", lambda saver: saver.put(config_of("t", "inner"), made(7))),
    ("release", lambda saver: saver.release(config_of())),
    ("put", lambda saver: saver.put(config_of(), made(5))),
    ("delete", lambda saver: saver.delete("t")),
    ("put", lambda saver: saver.put(config_of(), made(6))),
)
"""Changes in an order in which each can be made; what is done to each one alone is done on a store with those before it."""
STEP_IDS = [f"{number}-{kind}" for number, (kind, _) in enumerate(STEPS)]


def prepare(saver, steps):
    """Make some steps; return the saver."""
    for _, step in STEPS[:steps]:
        step(saver)
    return saver


def views_around(steps):
    """What readers may see if a step is cut short: what was there before, half of a copy, or what is there after the step."""
    before, after = (view(prepare(VersionedMemorySaver(), count)) for count in (steps, steps + 1))
    if STEPS[steps][0] != "copy":
        return [before, after]
    return [before, without_root(after), after]


def without_root(after):
    """A view in which a copy to "u" has not come to its root, which says so."""
    return {**after, "u": {key: one for key, one in after["u"].items() if key[0]}}


@contextmanager
def fixed(seed):
    """Nothing differs from run to run: random bytes and the clock of the files."""
    rng = random.Random(seed)
    clock = itertools.count(1_800_000_000_000_000_000, 1_000_000)
    with (
        mock.patch("os.urandom", rng.randbytes),
        mock.patch.object(log, "time_ns", clock.__next__),
        mock.patch.object(frame_log, "time_ns", clock.__next__),
        quiet(),
    ):
        yield


def fail_next_sync(fs):
    """Let the next sync of a log fail."""
    return failing(fs, "fdatasync", times=1, where="/log")


class Run:
    """A workload on its way."""

    def __init__(self, fsync="always", hook=None):
        self.fs = SimFS(hook=hook)
        self.oracle = VersionedMemorySaver()
        self.early = {}
        """What waits for its checkpoint; the oracle knows no early writes."""
        self.changes = []
        """What was done to the oracle."""
        self.texts = set()
        """What may stand in each log once at most."""
        self.views = [self.expected()]
        self.fsync = fsync
        self.saver = self.open()

    def flush(self):
        """With fsync=seconds: what follows cannot lose what was before."""
        self.saver.flush()
        self.fs.note("flushed")

    def open(self):
        return open_saver(self.fs, self.fsync)

    def expected(self):
        """What there is to be now."""
        return {**view(self.oracle), EARLY: dict(self.early)}

    def do(self, change, saver=None, half=None, foreseen=None):
        """Let both do something; between `begin` and `ack` it may be there or not, or half of it where that is said.

        `foreseen` does it to the oracle, where that takes something else.
        """
        self.changes.append(foreseen or change)
        self.changes[-1](self.oracle)
        after = self.expected()
        self.views += [after] if half is None else [half(after), after]
        step = len(self.views) - 1
        self.fs.note("begin", step)
        try:
            change(saver or self.saver)
        except CheckpointStorageError:
            # Allowed only where a workload injects it: it was not acknowledged, and the oracle forgets it.
            self.fs.note("failed", step)
            raise
        self.fs.note("ack", step)

    def forget(self):
        """Take back the last change, which failed: a new oracle repeats those before it."""
        before = self.views[-2]
        self.changes.pop()
        self.oracle = VersionedMemorySaver()
        self.early = {}
        for change in self.changes:
            change(self.oracle)
        assert self.expected() == before == {**view(self.saver), EARLY: self.early}
        self.views.append(before)
        step = len(self.views) - 1
        self.fs.note("begin", step)
        self.fs.note("ack", step)

    def put(self, number, thread="t", namespace="", saver=None, id=None, is_next=False, **state):
        options = {"unique": True} if is_next else {}  # as LangGraph's adapter does it
        config = config_of(thread, namespace)
        if id is not None:
            config = config.with_check_point_id(id)
        checkpoint = made(number, **state)

        def foreseen(oracle):
            oracle.put(config, checkpoint)
            writes = self.early.pop((thread, namespace, checkpoint.id), None)
            if writes:
                oracle.put_writes(config_of(thread, namespace), writes)

        def change(saver):
            saver.put(config, checkpoint, **options)

        self.do(change, saver, foreseen=foreseen)
        return checkpoint.id

    def write(self, number, thread="t", namespace="", expects_put=False, **texts):
        """Writes of the checkpoint with a number, which may still be to come; no other text contains these."""
        assert self.texts.isdisjoint(texts.values())
        self.texts |= {text.encode() for text in texts.values()}
        config = config_of(thread, namespace).with_check_point_id(id_of(number))
        packed = {key: Codec().pack(text, key) for key, text in texts.items()}

        def change(saver):
            saver.put_packed_writes(config, id_of(number), packed, early=True, expects_put=expects_put)

        def foreseen(oracle):
            if oracle.get(config) is None:
                key = (thread, namespace, id_of(number))
                self.early[key] = {**self.early.get(key, {}), **texts}
            else:
                oracle.put_writes(config, texts)

        self.do(change, foreseen=foreseen)


# The workloads


def puts(run):
    """A history that grows, small and large, over a keyframe, with the mark of a record among its values."""
    for number in range(4):
        run.put(number, items=[*range(number)], text="x" * (number * 900))
    for number in range(4, 10):
        run.put(number, items=[*range(number)], text=f"{number}" * 4500, mark=SYNC * number)


def replaces(run):
    """Checkpoints replaced in place, keeping their id and changing it."""
    first = run.put(0, text="first" * 50)
    second = run.put(1, text="second" * 200)
    run.put(2, id=first, text="instead of the first")
    run.put(3)
    run.put(4, id=second, items=[1])
    run.put(5)


def beside(run):
    """Writes and tags beside checkpoints."""
    first = run.put(0)
    run.do(lambda saver: saver.put_writes(config_of(), {"branch:a": [1, 2], "b": "x" * 600}))
    run.put(1)
    run.do(lambda saver: saver.put_writes(config_of().with_check_point_id(first), {"branch:a": (1, 2), "c": None}))
    run.do(lambda saver: saver.add_tags(config_of(), "good", "kept"))
    run.do(lambda saver: saver.remove_tags(config_of(), "good"))
    run.put(2)


def release(run):
    """Histories released with their namespaces, twice."""
    for number in range(2):
        run.put(number)
        run.put(number + 10, namespace="inner", text="i" * 600)
    run.do(lambda saver: saver.release(config_of()))
    run.put(2)
    run.do(lambda saver: saver.release(config_of()))
    run.put(3, namespace="inner")


def prune(run):
    """A log written anew with fewer checkpoints (compaction), then used."""
    for number in range(6):
        run.put(number, items=[*range(number)], text=f"{number}" * 800)
    run.do(lambda saver: saver.add_tags(config_of(), "kept"))
    run.do(lambda saver: saver.prune("t", keep_last=3))
    run.put(6, items=[1])
    run.do(lambda saver: saver.prune("t", keep_last=1, keep_tags=["kept"]))
    run.put(7)


def delete(run):
    """A thread removed with namespaces and versions, and made again."""
    run.put(0)
    run.put(1, thread="u")
    run.put(2, namespace="inner")
    run.do(lambda saver: saver.release(config_of()))
    run.put(3, text="d" * 700)
    run.put(4, namespace="inner")
    run.do(lambda saver: saver.delete("t"))
    run.put(5)
    run.do(lambda saver: saver.delete("t"))
    run.put(6, namespace="inner")


def copy(run):
    """A thread copied to another, which then goes its own way."""
    for number in range(3):
        run.put(number, items=["x"] * number)
    run.put(3, namespace="inner", text="y" * 600)

    run.do(lambda saver: saver.copy("t", "u"), half=without_root)
    run.put(4, thread="u", items=["x"] * 4)
    run.put(5)
    run.put(6, thread="u", namespace="inner")


def several_threads(run):
    """Two threads and a namespace, interleaved."""
    for number in range(3):
        run.put(number, thread="t", text="t" * 300)
        run.put(number + 10, thread="u", items=[number])
        run.put(number + 20, thread="t", namespace="inner")


def two_savers(run):
    """A second saver appends, and is acknowledged, while the first one waits for the disk."""
    other = run.open()
    run.put(0)
    pending = [1, 3, 5]

    def meanwhile(kind, place):
        if kind == "fdatasync" and place.endswith("/log") and pending:
            number = pending.pop(0)
            run.fs.hook = None
            run.put(number + 1, saver=other, text="b" * 700)
            run.fs.hook = meanwhile

    for number in (1, 3, 5):
        run.fs.hook = meanwhile
        run.put(number, text="a" * 500)
        run.fs.hook = None
    run.put(7)


class Worker:
    """A thread of execution that appends through the same saver, during a put of the first one."""

    def __init__(self, append):
        self.thread = threading.Thread(target=append)
        self.appended = threading.Event()

    def let_append(self):
        """Start it, and wait for its append; does nothing after the first call."""
        if not self.thread.ident:
            self.thread.start()
            self.appended.wait()

    def notice(self, kind):
        """Notice the end of its append by a call of the file system."""
        if kind == "unlock" and threading.current_thread() is self.thread:
            self.appended.set()


def two_workers(run, *, is_late=False):
    """A second thread of execution appends through the same saver while the first one waits for the disk."""
    run.put(0)
    for number in (1, 3, 5):
        worker = Worker(partial(run.put, number + 1, text="b" * 700))

        def meanwhile(kind, _, worker=worker):
            if kind == "fdatasync" and not is_late:
                worker.let_append()
            worker.notice(kind)

        run.fs.hook = meanwhile
        run.fs.after_sync = worker.let_append if is_late else None
        run.put(number, text="a" * 500)
        worker.thread.join()
        run.fs.hook = None
        run.fs.after_sync = None
    run.put(7)


def late_worker(run):
    """As two_workers; the second thread appends when the sync of the first one is over, and not yet returned."""
    two_workers(run, is_late=True)


def failed_sync(run):
    """An fsync fails: the log is written anew, and goes on."""
    run.put(0, text="a" * 700)
    run.put(1, text="b" * 700)
    run.do(lambda saver: saver.add_tags(config_of(), "kept"))
    with fail_next_sync(run.fs), suppress(CheckpointStorageError):
        run.put(2, text="c" * 700)
    run.forget()
    run.put(3, text="d" * 700)
    run.put(4)


def failed_write(run):
    """A disk fills up in the middle of a write, which is undone; what comes next stands in the same place."""
    run.put(0, text="a" * 100)
    for number, part in ((1, 1200), (2, 700)):
        full = failing(run.fs, "write_at", errno.ENOSPC, times=2, where="/log", part=part)
        with full, suppress(CheckpointStorageError):
            run.put(number, text="b" * 3000)
        run.forget()
        run.put(number + 10, text="c" * 2000)


def flushes(run):
    """Puts with a flush now and then."""
    for number in range(9):
        run.put(number, items=[*range(number)], text="f" * number * 200)
        if number % 3 == 2:
            run.flush()


def early_writes(run):
    """Writes that come before their checkpoint: it follows, after another one, or never."""
    run.write(0, a="first of all", b="B" * 700)
    run.put(0, text="a" * 300)
    run.write(2, a="the next but one")
    run.put(1)
    run.write(2, b="C" * 600)
    run.write(7, a="of none")
    run.put(2, text="b" * 900)
    run.write(2, c="behind it")
    run.write(3, namespace="inner", a="inside")
    run.write(4, a="D" * 1100)
    run.put(3, namespace="inner")
    run.put(4)
    run.write(8, namespace="inner", a="never there")


def rewritten_early_writes(run):
    """Logs written anew while writes wait in them: by a prune, and after a failed sync."""
    for number in range(3):
        run.put(number, text=f"{number}" * 600)
    run.write(3, a="before the prune", b="E" * 600)
    run.write(7, a="of none")
    run.do(lambda saver: saver.prune("t", keep_last=1))
    run.put(3)
    run.write(5, a="before the failure")
    with fail_next_sync(run.fs), suppress(CheckpointStorageError):
        run.put(4, text="d" * 700)
    run.forget()
    run.write(5, b="after the failure")
    run.put(5)


def langgraph_steps(run):
    """Steps of LangGraph: the writes of a task come before the checkpoint that it ran from, and one of a step that never ends."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from savers.langgraph import checkpoint_savers as adapters
    from savers.langgraph.encoding import encode_writes
    from tests.support import langgraph_checkpoints

    def adapt(store):
        with mock.patch.object(adapters, "FileSystemSaver", return_value=store):
            return adapters.FileSystemCheckpointSaver(PLACE)

    # No saver in memory has LangGraph's methods. This disk never fails.
    run.oracle = FileSystemSaver(PLACE, fsync="never", io=SimFS(record=False))

    def name(number):
        return langgraph_checkpoints.thread(checkpoint_id=id_of(number) if number >= 0 else None)

    def put(number):
        fields = {
            "id": id_of(number),
            "ts": WHEN.isoformat(),
            "version": f"{number:032}.0",
            "metadata": {"step": number},
        }
        made = langgraph_checkpoints.make_checkpoint(**fields, messages=["m" * 300] * number)

        def change(store):
            adapt(store).put(name(number - 1), *made)

        def foreseen(store):
            run.early.pop(("t", "", id_of(number)), None)
            change(store)

        run.do(change, foreseen=foreseen)

    def write(number, text):
        writes = [("messages", text), ("other", [text.upper()])]
        encoded = encode_writes(JsonPlusSerializer(), writes, f"task{number}", "~path")
        run.texts |= {text.encode(), text.upper().encode()}

        def change(store):
            adapt(store).put_writes(name(number), writes, f"task{number}", "~path")

        def foreseen(store):
            if store.get(config_of().with_check_point_id(id_of(number))) is None:
                run.early["t", "", id_of(number)] = {each.key: list(each) for each in encoded}
            change(store)

        run.do(change, foreseen=foreseen)

    write(0, "first of all")
    put(0)
    for number in range(1, 4):
        write(number, f"step {number} " * 9 * number)
        put(number)
    write(5, "of a step that never ends")
    put(4)
    write(4, "behind its checkpoint")


def shared_sync(run):
    """One sync covers writes and the put that follows them: the writes are acknowledged without one of their own."""
    run.put(0)
    for number in (1, 2, 3):
        has_put = threading.Event()

        class Waits(sync._Waits):
            def wait(self, has_put=has_put):
                return super().wait() and has_put.wait()

        run.saver._sync_mode._waits[run.saver.catalogue.shared_log("t", "")] = Waits()
        worker = Worker(partial(run.write, number, expects_put=True, a=f"{number}" * 300 * number))
        run.fs.hook = lambda kind, _, worker=worker: worker.notice(kind)
        with mock.patch.object(sync, "_LONGEST_WAIT", 60):
            worker.let_append()
            run.put(number, text="a" * 500, is_next=True)
            has_put.set()
            worker.thread.join()
        run.fs.hook = None


WORKLOADS = (
    puts, replaces, beside, release, prune, delete, copy, several_threads, two_savers, two_workers, late_worker, failed_sync, failed_write,
    early_writes, rewritten_early_writes, langgraph_steps, shared_sync,
)  # fmt: skip


# The states behind a workload


class Progress:
    """How far a workload has come by the notes between its operations: which of its views a state may show.

    Attributes:
        acknowledged: the last change that was acknowledged.
        begun: the last change that was begun.
        flushed: the last change that was acknowledged before a flush.
    """

    def __init__(self):
        self.acknowledged = 0
        self.begun = 0
        self.flushed = 0

    def read(self, note):
        match note:
            case "note", "ack", step:
                self.acknowledged = max(self.acknowledged, step)
            case "note", "begin", step:
                self.begun = max(self.begun, step)
            case "note", "flushed":
                self.flushed = self.acknowledged

    def select(self, views):
        """The views that a state may show after the death of the process."""
        return views[self.acknowledged : self.begun + 1]


class Crashes:
    """Goes through the crash states of workloads, and counts them.

    A saver that does not wait for the disk (fsync is "never", or seconds) promises less: the death of the process loses
    nothing that was acknowledged. A power loss, after which the system starts once more, leaves each history as it was
    at some moment since the last flush, in every way to read it.
    """

    def __init__(self, seed=SEED, fsync="always"):
        self.seed = seed
        self.fsync = fsync
        self.waits = fsync == "always"
        self.boot = 1
        """How often the system has started, as the savers see it."""
        self.states = self.nested = 0

    def explore(self, workload, limit, many=12):
        """Check about `limit` states of a workload.

        Raises:
            Lost: one of them breaks a promise.
        """
        self.name = workload.__name__ if self.waits else f"{workload.__name__} {self.fsync}"
        with (
            fixed(f"{self.seed} {self.name}"),
            mock.patch.object(log_bytes, "boot_number", self._count_boots),
            mock.patch.object(rewrite, "boot_number", self._count_boots),
        ):
            run = Run(self.fsync)
            workload(run)
            run.saver.close()
            self._look_at(run)
            rng = random.Random(f"{self.seed} {self.name} states")
            changes = sum(op[0] != "note" for op in run.fs.ops)
            share = max(3, -(-limit // changes))
            disk = Disk()
            progress = Progress()
            seen = set()
            for point, op in enumerate(run.fs.ops):
                if op[0] == "note":
                    progress.read(op)
                    # A state that was legal before an acknowledgement must hold more after it.
                    if op[1] != "ack" or not self.waits:
                        continue
                else:
                    self._apply(run, point, op, disk, progress, rng)
                if self.waits:
                    begun = progress.begun
                    lowest = progress.acknowledged
                else:
                    begun = None
                    lowest = progress.flushed
                for what, tree in disk.states(rng, share, many):
                    key = hash((repr(tree), lowest, begun))
                    if key not in seen:
                        seen.add(key)
                        self.states += 1
                        views = run.views[lowest : progress.begun + 1]
                        deep = self.states % 4 == 0
                        check = partial(self.check, rng=rng, deep=deep) if self.waits else self._look
                        self.boot = 2
                        self._examine(run, point, what, check, tree, views)

    def _count_boots(self):
        return self.boot

    def _apply(self, run, point, op, disk, progress, rng):
        """Apply an operation; of a saver that does not wait, check what its death within or after it leaves."""
        if self.waits:
            disk.apply(op)
            return
        trees = []
        for cut in cuts(op, rng, 4):
            _, number, offset, data = op
            trees.append((cut, disk.current({number: (offset, data[:cut])})))
        disk.apply(op)
        trees.append(("all of it", disk.current()))
        check = partial(self.check, rng=rng, deep=False)
        views = progress.select(run.views)
        for what, tree in trees:
            self.states += 1
            self._examine(run, point, what, check, tree, views)

    def _examine(self, run, point, what, check, tree, views):
        try:
            check(tree, views)
            self.boot = 1
        except Exception as error:
            ops = list_operations(run.fs, point)
            raise Lost(
                f"{self.name}, seed {self.seed!r}, state {self.states}, after operation {point}: {what}\n"
                f"{type(error).__name__}: {error}\n{ops}"
            ) from error

    def _look(self, tree, views):
        fs = SimFS(tree, record=False)
        saver = open_saver(fs, self.fsync)
        for number, (thread, namespace) in enumerate(self.histories, 900):
            here = self._views_of(views, thread, namespace)
            config = config_of(thread, namespace)
            view_here = partial(view, threads=[thread], namespaces=[namespace])
            for reader in (saver, open_saver(fs, self.fsync)):
                expect_each(view_here(reader), here)
                expect_alike(reader, config)
            saver.put(config, made(number))
            longer = [grown(expected, thread, namespace, number) for expected in here]
            expect_each(view_here(saver), longer)
            expect_alike(saver, config)
            self._expect_early_or_none(saver, views, thread, namespace)
        if "damaged" in {file.state for file in saver.verify().problems}:
            raise Lost("a log is damaged")

    @staticmethod
    def _views_of(views, thread, namespace):
        """What the views have of one history and its versions."""
        return [
            {thread: {key: found for key, found in view.get(thread, {}).items() if key[0] == namespace}}
            for view in views
        ]

    def _expect_early_or_none(self, saver, views, thread, namespace):
        """A checkpoint that comes after a power loss has the writes that waited for it at one of these moments."""
        config = config_of(thread, namespace)
        for number, key in enumerate(self._awaited(saver, views), 950):
            *history, checkpoint_id = key
            if history != [thread, namespace]:
                continue
            checkpoint = made(number, checkpoint_id)
            saver.put(config, checkpoint)
            found = dict(saver.get_writes(config))
            early = [expected.get(EARLY, {}) for expected in views]
            allowed = [writes.get(key, {}) for writes in early]
            if found not in allowed:
                raise Lost(f"{key} has the writes {found}; may be {allowed}")

    def _look_at(self, run):
        views = run.views
        self.threads = [thread for thread in THREADS if any(view.get(thread) for view in views)]
        keys = (key for view in views for thread in self.threads for key in view.get(thread, {}))
        self.namespaces = sorted({"", *(key[0] for key in keys)})
        self.histories = [*itertools.product(self.threads, self.namespaces)]
        self.texts = run.texts

    def _view(self, saver):
        return view(saver, self.threads, self.namespaces)

    def check(self, tree, views, rng, *, deep):
        fs = SimFS(tree)
        saver = open_saver(fs)
        expect_each(self._view(saver), views)
        steps = [views]

        def put(by, number, thread, namespace, name=None):
            step = [grown(expected, thread, namespace, number, name) for expected in steps[-1]]
            steps.append(step)
            fs.note("begin", len(steps) - 1)
            by.put(config_of(thread, namespace), made(number, name))
            fs.note("ack", len(steps) - 1)

        for number, (thread, namespace) in enumerate(self.histories, 900):
            put(saver, number, thread, namespace)
        # By a saver that knows only the end of each log: it must find what waits.
        other = open_saver(fs)
        for number, key in enumerate(self._awaited(saver, views), 950):
            put(other, number, *key)
        expect_whole(self._view(saver), steps[-1])
        self._expect_texts_once(fs.tree())
        self._second_crash(tree, fs, steps, rng, deep=deep)

    @staticmethod
    def _awaited(saver, views):
        """The checkpoints that early writes waited for at one of these moments, and that are not there."""
        awaited = sorted({key for view in views for key in view.get(EARLY, {})})
        return [
            (thread, namespace, name)
            for thread, namespace, name in awaited
            if saver.get(config_of(thread, namespace).with_check_point_id(name)) is None
        ]

    def _expect_texts_once(self, tree):
        for name, content in tree.items():
            if isinstance(content, dict):
                self._expect_texts_once(content)
            elif name == "log":
                for text in self.texts:
                    if content.count(text) > 1:
                        raise Lost(f"a log has the write {text[:20]} {content.count(text)} times")

    def _second_crash(self, tree, fs, steps, rng, *, deep):
        self.boot += 1
        disk = Disk(tree)
        progress = Progress()
        chosen = rng.sample(range(len(fs.ops)), min(2, len(fs.ops))) if deep else ()
        for point, op in enumerate(fs.ops):
            if op[0] == "note":
                progress.read(op)
            else:
                disk.apply(op)
            if point in chosen:
                allowed = [expected for step in progress.select(steps) for expected in step]
                longer = [grown(expected, "t", "", 990) for expected in allowed]
                for what, state in disk.states(rng, 2, many=3):
                    self.nested += 1
                    again = open_saver(SimFS(state, record=False))
                    try:
                        expect_each(self._view(again), allowed)
                        again.put(config_of(), made(990))
                        expect_each(self._view(again), longer)
                    except Exception as error:
                        ops = list_operations(fs, point)
                        message = f"in a second crash, after operation {point} of the recovery: {what}\n{error}\n{ops}"
                        raise Lost(message) from error
        self.nested += 1
        after = open_saver(SimFS(disk.durable(), record=False))
        expect_whole(self._view(after), steps[-1])


def cuts(op, rng, many):
    """Where a write may be cut by the death of the process."""
    return few_of(range(1, len(op[3])), many, rng) if op[0] == "write" else []


def expect_each(found, views):
    """Each history is as it was at one of these moments."""
    for thread, histories in found.items():
        for key in {*histories, *(key for view in views for key in view.get(thread, {}))}:
            here = histories.get(key, ())
            if not any(view.get(thread, {}).get(key, ()) == here for view in views):
                raise Lost(
                    f"thread {thread}, history {key}: {brief(here)}; may be {[brief(view[thread].get(key, ())) for view in views]}"
                )


def expect_whole(found, views):
    """Each thread as a whole is as it was at one of these moments."""
    for thread, histories in found.items():
        if not any(view[thread] == histories for view in views):
            raise Lost(
                f"thread {thread}: { {key: brief(one) for key, one in histories.items()} }; may be "
                f"{[{key: brief(some) for key, some in view[thread].items()} for view in views]}"
            )


def brief(history):
    return [text[:400] if len(history) == 1 else text[26:37] + "..." + text[-60:] for text in history]


def list_operations(fs, last):
    """The operations on a simulated disk up to one, for a message."""
    done = enumerate(fs.ops[: last + 1])
    return "\n".join(f"  {number:4} {shortened(op)}" for number, op in done)


def shortened(op):
    return " ".join(repr(part) if len(repr(part)) < 60 else f"{repr(part)[:40]}...[{len(part)}]" for part in op)
