"""The terms of the metadata of a history: each once, whatever the checkpoint before had."""

import json
import random

import pytest

from savers._sql.terms import MOST_NUMBERS, KnownTerms, list_search_terms


def make_run(seed):
    """Metadata of checkpoints in turn: most values are those of the checkpoint before, and the same objects."""
    dice = random.Random(seed)
    metadata = {"source": "loop", "graphkit:made_by": "x"}
    for step in range(60):
        metadata = {**metadata, "step": step}
        if dice.random() < 0.4:
            metadata[dice.choice(["a", "b"])] = dice.choice(["x", "y", None, 1, 2.5, True, [1], "long" * 100])
        if dice.random() < 0.1:
            metadata.pop(dice.choice(["a", "b"]), None)
        yield metadata


@pytest.mark.parametrize("seed", range(10))
def test_a_run_has_the_terms_of_each_of_its_metadata(seed):
    known, unrelated = KnownTerms(), KnownTerms()
    taken = []
    for metadata in make_run(seed):
        new = known.take_new(metadata)
        # The same values as other objects.
        assert new == unrelated.take_new(json.loads(json.dumps(metadata)))
        taken += new
    assert len(taken) == len(set(taken))
    for metadata in make_run(seed):
        for term, term_of_key in list_search_terms(metadata):
            assert {term, term_of_key} & set(taken)


def test_terms_are_taken_anew_after_too_many(monkeypatch):
    monkeypatch.setattr("savers._sql.terms._MOST_KNOWN", 3)
    known = KnownTerms()
    metadata = {key: key for key in "abcde"}
    first = known.take_new(metadata)
    assert len(first) == len(metadata)
    assert known.take_new(metadata) == first
    assert known.take_new(metadata) == first, "nothing is known of them any more"


def test_a_number_that_stays_is_counted_once():
    known = KnownTerms()
    for _ in range(MOST_NUMBERS + 5):
        known.take_new({"n": 7})
    assert len(known.take_new({"n": 8})) == 1
