"""The terms by which an index finds the histories with some metadata: none is missing, whatever its writer knows."""

import random

import pytest

from graphkit import Checkpoint, RunnableConfig
from savers import SqliteSaver


def make_metadata(seed):
    """Metadata of checkpoints in turn: most values are those of the checkpoint before, and the same objects."""
    dice = random.Random(seed)
    metadata = {"source": "loop"}
    for step in range(60):
        metadata = {**metadata, "step": step}
        if dice.random() < 0.4:
            metadata[dice.choice(["a", "b"])] = dice.choice(["x", "y", None, 1, 2.5, True, [1], "long" * 100])
        if dice.random() < 0.1:
            metadata.pop(dice.choice(["a", "b"]), None)
        yield metadata


def search_ids(saver, metadata):
    """Return the ids of the checkpoints that have this metadata."""
    return {info.id for info in saver.search(metadata)}


@pytest.mark.parametrize("most_known", [3, 4096])
@pytest.mark.parametrize("seed", range(3))
def test_each_checkpoint_of_a_run_is_found_by_its_metadata(seed, most_known, tmp_path, monkeypatch):
    monkeypatch.setattr("savers._sql.columns._MOST_KNOWN", most_known)
    metadata_by_id = {}

    with SqliteSaver(tmp_path / "store.db") as saver:
        for number, metadata in enumerate(make_metadata(seed)):
            config = RunnableConfig(f"t{number % 2}")
            checkpoint = Checkpoint(node_id="a", next_node_id="b", state={}, metadata=metadata)
            saver.put(config, checkpoint)
            metadata_by_id[checkpoint.id] = metadata
        for checkpoint_id, metadata in metadata_by_id.items():
            assert checkpoint_id in search_ids(saver, metadata)
            for key, value in metadata.items():
                expected = {each for each, other in metadata_by_id.items() if (key, value) in other.items()}
                assert search_ids(saver, {key: value}) == expected
