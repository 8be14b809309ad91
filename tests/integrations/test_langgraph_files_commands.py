"""`graphkit verify` and `repair` on a directory that also holds LangGraph's items and cached values."""

import pytest

from graphkit import Checkpoint
from graphkit.errors import CheckpointFormatError
from savers import FileSystemSaver
from savers.langgraph import EntriesReport, FileSystemCache, FileSystemStore
from tests.support.langgraph import HEADER_SIZE, FileIO, run_without_langgraph
from tests.support.logs import flip_in_file, with_format
from tests.support.terminal import assert_shows, graphkit, read_json

KINDS = {"langgraph-store": "item", "langgraph-cache": "cached value"}
CLASSES = {"langgraph-store": FileSystemStore, "langgraph-cache": FileSystemCache}
COUNT = 4


@pytest.fixture
def runs(tmp_path):
    """A directory with a thread, four items and four cached values."""
    root = tmp_path / "runs"
    checkpoint = Checkpoint(node_id="a", next_node_id="b", state={"n": 1})
    with FileSystemSaver(root, fsync="never") as saver:
        saver.put("order-17", checkpoint)
    namespace = ("users",)
    with FileSystemStore(root, fsync="never") as store, FileSystemCache(root, fsync="never") as cache:
        for n in range(COUNT):
            key = f"k{n}"
            text = f"{n}" * 50
            store.put(namespace, key, {"n": n, "text": text})
            cache.set({(namespace, key): (text, None)})
    return root


def entries(root, kind):
    """What can be read, by key."""
    if kind == "langgraph-store":
        with FileSystemStore(root) as store:
            return {item.key: item.value["text"] for item in store.search(("users",))}
    with FileSystemCache(root) as cache:
        found = cache.get([(("users",), f"k{n}") for n in range(COUNT)])
        return {key: value for (_, key), value in found.items()}


WHOLE = {f"k{n}": f"{n}" * 50 for n in range(COUNT)}


def damage(root, kind, key=1):
    """Change one byte of an entry; return where."""
    path = root / kind / "log"
    offset = path.read_bytes().index(f"{key}".encode() * 50) + 10
    flip_in_file(path, offset, 0x21)
    return offset


def files(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_verify_counts_the_entries(runs):
    done = graphkit("verify", runs)

    assert done.out.startswith("1 thread, 1 checkpoint, 4 items, 4 cached values, ")
    assert done.out.endswith(": no problems\n")

    data = read_json("verify", runs)
    assert (data["items"], data["cached_values"], data["ok"]) == (COUNT, COUNT, True)
    assert data["size"] == sum(path.stat().st_size for path in runs.rglob("log"))
    assert graphkit("repair", runs).out == "nothing was damaged\n"
    assert "items" not in graphkit("verify", runs, "order-17").out


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_reported_and_repaired(runs, kind):
    offset = damage(runs, kind)
    log = runs / kind / "log"
    before = files(runs)
    done = graphkit("verify", runs)
    assert done.code == 12

    titles, row, *_ = done.lines
    assert titles.startswith("FILE ")

    name, state, *_ = row.split()
    assert name == f"{kind}/log"
    assert state == "damaged"
    assert "1 problem; see `graphkit repair`" in done.out
    data = read_json("verify", runs)
    assert (data["ok"], data["checkpoints"]) == (False, 1)
    (problem,) = data["problems"]
    with CLASSES[kind](runs) as opened:
        report = opened.verify()
    assert not report.ok
    assert report.offset < offset < report.offset + report.lost
    assert (report.state, report.entries, report.size) == ("damaged", COUNT - 1, log.stat().st_size)
    for field in ("path", "state", "entries", "size", "offset"):
        assert problem[field] == getattr(report, field)
    assert graphkit("verify", runs, "order-17").code == 0

    would = graphkit("repair", runs, "--dry-run")
    assert would.code == 0
    kept = f"3 {KINDS[kind]}s"
    assert would.lines[0] == f"{kind}: would keep {kept}, would lose {report.lost} bytes"
    assert files(runs) == before
    assert graphkit("repair", runs, "order-17").out == "nothing was damaged\n"
    assert log.read_bytes() == before[log]

    done = graphkit("repair", runs)
    assert done.code == 0
    assert done.lines[0] == f"{kind}: kept {kept}, lost {report.lost} bytes"
    (copy,) = log.parent.glob("damaged-*.bin")
    assert done.lines[-1] == f"    the old bytes are in {copy}"
    assert copy.read_bytes() == before[log]
    assert entries(runs, kind) == {key: text for key, text in WHOLE.items() if key != "k1"}
    assert graphkit("verify", runs).code == 0


def test_both_are_repaired_beside_a_damaged_thread(runs):
    for kind in KINDS:
        damage(runs, kind)

    (path,) = runs.glob("t-order-17-*/log")
    flip_in_file(path, path.stat().st_size - 30, 1)
    assert [row["thread"] for row in read_json("verify", runs)["problems"]] == ["order-17", None, None]

    done = read_json("repair", runs)
    assert [row["thread"] for row in done["threads"]] == ["order-17"]

    for kind, row in zip(KINDS, done["entry_logs"], strict=True):
        assert (row["path"], row["state"], row["kept"], row["refused"]) == (f"{kind}/log", "damaged", COUNT - 1, "")
        assert row["lost_bytes"] > 50
        assert (runs / row["set_aside"]).exists()

    assert graphkit("verify", runs).code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_torn_end_is_no_error_and_is_set_aside(runs, kind):
    path = runs / kind / "log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert_shows(graphkit("verify", runs), 0, "sets a torn end aside")
    done = graphkit("repair", runs)
    (torn,) = (runs / kind).glob("torn-*.bin")
    assert_shows(done, 0, f"{kind}: kept 3 {KINDS[kind]}s, lost nothing", str(torn))

    assert whole[:-5].endswith(torn.read_bytes())
    assert graphkit("verify", runs).out.endswith("no problems\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_is_damaged_altogether_is_no_success(runs, kind):
    path = runs / kind / "log"
    data = path.read_bytes()
    path.write_bytes(data[:150] + b"?" * (len(data) - 150))
    assert_shows(graphkit("repair", runs), 12, f"{kind}: kept 0 {KINDS[kind]}s, lost ")
    assert entries(runs, kind) == {}


def test_a_log_of_another_kind_or_of_a_newer_format_is_left_alone(runs):
    store = runs / "langgraph-store" / "log"
    cache = runs / "langgraph-cache" / "log"
    header = with_format(store.read_bytes()[:HEADER_SIZE], 99)
    store.replace(cache)
    store.write_bytes(header)
    before = files(runs)
    with pytest.raises(CheckpointFormatError, match="put the file back"):
        entries(runs, "langgraph-cache")
    problems = read_json("verify", runs)["problems"]
    assert [problem["state"] for problem in problems] == ["newer", "foreign"]
    done = graphkit("repair", runs)
    assert done.code == 12
    assert done.lines[0] == "langgraph-store: not repaired"
    assert files(runs).items() >= before.items()


@pytest.mark.parametrize(
    ("content", "state", "reason"),
    [(b"", "ok", ""), (bytes(600), "ok", ""), (b"\x89GKL", "torn", "its creation did not finish")],
)
def test_a_log_whose_creation_did_not_finish_is_no_error(runs, content, state, reason):
    (runs / "langgraph-store" / "log").write_bytes(content)
    with FileSystemStore(runs) as store:
        report = store.verify()
    assert (report.state, report.reason) == (state, reason)
    assert_shows(graphkit("verify", runs), 0, "0 items")
    assert graphkit("repair", runs).code == 0


def test_a_directory_without_threads_is_verified(runs, tmp_path):
    (tmp_path / "memory").mkdir()
    with FileSystemStore(tmp_path / "memory") as store:
        assert store.verify() == EntriesReport(path="langgraph-store/log"), "it was never used"
    (runs / "langgraph-store").rename(tmp_path / "memory" / "langgraph-store")
    assert graphkit("verify", tmp_path / "memory").out.startswith("0 threads, 0 checkpoints, 4 items, ")
    damage(tmp_path / "memory", "langgraph-store")
    assert graphkit("repair", tmp_path / "memory").lines[0].startswith("langgraph-store: kept 3 items")


def test_the_commands_need_no_langgraph(runs):
    damage(runs, "langgraph-cache")
    assert run_without_langgraph("repair", runs).stdout.startswith("langgraph-cache: kept 3 cached values")


def test_a_writer_is_not_blocked_and_not_taken_for_damage(runs):
    """Each look finds another size; verify reads a log again that has changed since."""
    path = runs / "langgraph-store" / "log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])

    class Growing(FileIO):
        def fstat(self, fd):
            status = super().fstat(fd)
            path.write_bytes(whole)
            return status

    with FileSystemStore(runs, io=Growing()) as store:
        report = store.verify()
    assert (report.state, report.entries) == ("ok", COUNT)
