"""What comes after a read of a past state finds what it would have found without it."""

import shutil

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import FileSystemSaver

THREAD = RunnableConfig("t")
OTHER_ID = "01a20482-9c2f-7cff-8d43-936a1ab1d30f"


def at(checkpoint_id):
    return THREAD.replace(checkpoint_id=checkpoint_id)


@pytest.fixture
def ids(tmp_path):
    """The ids of 30 checkpoints of several keyframes, in the directory `store`."""
    saver = FileSystemSaver(tmp_path / "store", fsync="never")
    ids = []
    for number in range(30):
        large = "x" * (20_000 if number % 10 == 0 else 3)
        new = Checkpoint(node_id="a", next_node_id="b", metadata={"step": number}, state={"n": number, "large": large})
        saver.put(THREAD, new)
        saver.put_writes(at(new.id), {"k": number})
        ids.append(new.id)
    return ids


END = {
    "a checkpoint": lambda saver, ids: saver.put(THREAD, Checkpoint(node_id="z", next_node_id="b", state={"n": 99})),
    "pending writes": lambda saver, ids: None,
    "a tag": lambda saver, ids: saver.add_tags(at(ids[-1]), "late"),
    "early writes": lambda saver, ids: saver.put_writes(at(OTHER_ID), {"early": 1}, early=True),
    "early writes twice": lambda saver, ids: [
        saver.put_writes(at(OTHER_ID), {"early": number}, early=True) for number in range(2)
    ],
}
NEXT = {
    "latest": lambda saver, ids: saver.get(THREAD).state,
    "latest by id": lambda saver, ids: saver.get(at(ids[-1])).state,
    "writes": lambda saver, ids: saver.get_writes(at(ids[-1])),
    "tags": lambda saver, ids: saver.tags_of(at(ids[-1])),
    "history": lambda saver, ids: list(saver.history(THREAD)),
    "recent": lambda saver, ids: list(saver.recent(THREAD, limit=3)),
    "summary": lambda saver, ids: saver.summary(THREAD),
    "put": lambda saver, ids: saver.put(THREAD, Checkpoint(id="n", node_id="a", next_node_id="b", state={"n": 1})),
    "put of the early one": lambda saver, ids: saver.put(
        THREAD, Checkpoint(id=OTHER_ID, node_id="a", next_node_id="b", state={"n": 1})
    ),
    "writes of the last": lambda saver, ids: saver.put_writes(at(ids[-1]), {"k": "new", "l": 2}),
    "more early writes": lambda saver, ids: saver.put_writes(at(OTHER_ID), {"early": "new"}, early=True),
    "tag of the last": lambda saver, ids: saver.add_tags(at(ids[-1]), "new"),
    "writes of a past one": lambda saver, ids: saver.put_writes(at(ids[4]), {"k": "new"}),
    "release": lambda saver, ids: saver.release(THREAD),
}


def outline(saver, ids):
    """Return what a history holds; not the times of puts, nor the sizes, which depend on the times."""
    infos = list(saver.history(THREAD))
    known = [OTHER_ID, "n", *ids]
    return (
        [info._replace(created_at=None, size=0) for info in infos],
        [saver.get_writes(at(each)) for each in known],
        [dict(saver.get(at(info.id)).state) for info in infos],
        saver.versions_by_thread_id(THREAD),
    )


@pytest.mark.parametrize("follows", NEXT)
@pytest.mark.parametrize("end", END)
def test_whatever_follows_a_past_state(tmp_path, ids, end, follows):
    END[end](FileSystemSaver(tmp_path / "store", fsync="never"), ids)
    results = []
    for is_first in (True, False):
        directory = tmp_path / f"copy {is_first}"
        shutil.copytree(tmp_path / "store", directory)
        saver = FileSystemSaver(directory, fsync="never")
        if is_first:
            assert saver.get(at(ids[7])).state["n"] == 7
            assert saver.get_writes(at(ids[7])) == {"k": 7}
        found = NEXT[follows](saver, ids)
        if follows.startswith("put") or follows == "release":
            found = None  # it has a time of its own
        saver.put_writes(at(ids[-1]), {"after": 1}) if follows != "release" else None
        results.append((found, outline(saver, ids), outline(FileSystemSaver(directory), ids)))
        assert results[-1][1] == results[-1][2]
    assert results[0] == results[1]
