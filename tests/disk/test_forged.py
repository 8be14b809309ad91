"""Records whose checksums are right and whose content is not, as a bug of some writer would leave them."""

import random
import shutil
from functools import partial

import msgpack
import pytest

from graphkit import Checkpoint, RunnableConfig
from graphkit.errors import CheckpointCorruptionError, CheckpointerError
from savers import Compression, FileSystemSaver
from tests.support.logs import (
    CHECKPOINT,
    COMPRESSED,
    HEADER_SIZE,
    KEY,
    MARK,
    META,
    RELEASE,
    REPLACE,
    TOMBSTONE,
    WRITE,
    locate_log,
    pack_frame,
    read_records,
)
from tests.support.odd import odd

CONFIG = RunnableConfig("t")


@pytest.fixture(scope="module", params=["plain", "compressed"])
def written(request, tmp_path_factory):
    """A log of records of every kind, with more than one keyframe."""
    root = tmp_path_factory.mktemp("written")
    compression = Compression(threshold=50) if request.param == "compressed" else None
    items = []
    with FileSystemSaver(root, fsync="never", compression=compression) as saver:
        for n in range(24):
            items = [*items, {"x": "lorem " * n}]
            state = {"items": items, "text": f"ipsum {n // 3} " * 300, "n": n, **({"odd": n} if n % 2 else {})}
            saver.put(
                CONFIG,
                Checkpoint(id=f"c{n}", node_id=f"n{n}", next_node_id=f"n{n + 1}", state=state, metadata={"step": n}),
            )
            if n % 5 == 1:
                saver.put_writes(
                    CONFIG,
                    {
                        "k": n,
                        "interrupt:1": {
                            "node_id": "a",
                            "when": "inside",
                            "payload": n,
                            "metadata": {},
                            "created_at": 1,
                        },
                    },
                )
                saver.add_tags(CONFIG, "good")
            if n == 9:
                saver.put(
                    CONFIG.with_check_point_id("c3"),
                    Checkpoint(id="c3b", node_id="a", next_node_id="b", state={"n": 3}),
                )
    return root


def forged(dice, frames):
    """The bytes behind the header, with one record that says something else."""
    which = dice.randrange(len(frames))
    moved = {}
    parts = []
    at = HEADER_SIZE
    for number, frame in enumerate(frames):
        payload = frame.payload
        flags = frame.flags
        type_ = frame.type
        back = at - moved[frame.offset - frame.back] if frame.back else 0
        key = at - moved[frame.offset - frame.key] if frame.key else 0
        if number == which:
            kind = dice.random()
            if kind < 0.8:
                value = odd(dice, msgpack.unpackb(payload, unicode_errors="surrogatepass", strict_map_key=False))
                payload = msgpack.packb(value, unicode_errors="surrogatepass")
            elif kind < 0.85:
                payload = dice.randbytes(dice.randrange(40))
            elif kind < 0.9:
                flags ^= dice.choice([KEY, REPLACE, COMPRESSED])
            elif kind < 0.95:
                key, back = dice.choice([(0, back), (key, 0), (back, key), (key + 1, back), (1 << 31, back)])
            else:
                type_ = dice.choice([META, CHECKPOINT, WRITE, MARK, RELEASE, TOMBSTONE])
        moved[frame.offset] = at
        parts.append(pack_frame(at, frame.fid, frame.seq, type_, payload, flags, back, key))
        at += len(parts[-1])
    return b"".join(parts)


def readings(saver):
    """Every way to read a thread."""
    yield lambda: [checkpoint.state for checkpoint in saver.list(CONFIG)]
    yield lambda: saver.get(CONFIG) and dict(saver.get(CONFIG).state)
    yield lambda: saver.history(CONFIG)
    yield lambda: saver.recent(CONFIG, limit=3)
    yield lambda: saver.summary(CONFIG)
    yield lambda: dict(saver.get_writes(CONFIG))
    yield lambda: saver.interrupts("t")
    yield lambda: saver.namespaces("t")
    yield saver.threads
    yield lambda: saver.versions_by_thread_id("t")


def refused(reading):
    try:
        reading()
    except CheckpointerError as error:
        return error
    return None


def is_damage(error):
    """Values are not looked into by those who check: their bytes may mean nothing and still be those that were stored."""
    of_values = ("not a packed value", "the state", "decompressing")
    return isinstance(error, CheckpointCorruptionError) and not any(words in str(error) for words in of_values)


@pytest.mark.requirement("P52")
@pytest.mark.sweep(30, of="seed")
@pytest.mark.parametrize("seed", [*range(100), 6327])
def test_a_record_that_makes_no_sense_is_damage_and_nothing_worse(written, tmp_path, seed):
    dice = random.Random(seed)
    shutil.copytree(written, tmp_path / "store")
    path = locate_log(tmp_path / "store")
    path.write_bytes(path.read_bytes()[:HEADER_SIZE] + forged(dice, read_records(path)))
    found = []
    for number in range(10):
        with FileSystemSaver(tmp_path / "store", fsync="never") as saver:
            found.append(refused([*readings(saver)][number]))
    with FileSystemSaver(tmp_path / "store", fsync="never") as saver:
        report = saver.verify()
        assert not report.ok or not any(map(is_damage, found)), found
        with saver.watch(latest=True) as changes:
            while changes.get(0) is not None:
                pass
        repair = saver.repair("t")
        if not any(file.refused for file in repair.files):
            assert saver.verify().ok, saver.verify().problems
            assert not any(is_damage(refused(one)) for one in readings(saver))
            put = partial(saver.put, CONFIG, Checkpoint(node_id="a", next_node_id="b", state={"n": 99}))
            if refused(put) is None:  # as it is where the description says that states are somebody else's bytes
                assert saver.get(CONFIG).state["n"] == 99
