"""The Hypothesis strategies of the state machine test: ids, states, pending writes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from hypothesis import strategies as st

THREADS: Final = ("t", "T", "../t")
NAMESPACES: Final = ("", "n")
TAGS: Final = ("keep", "other")
STOP: Final = {
    "node_id": "a",
    "when": "inside",
    "payload": (1,),
    "metadata": {},
    "created_at": datetime(2026, 1, 2, tzinfo=UTC),
}

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
)
keys = st.text("abc", min_size=1, max_size=2) | st.integers(0, 3)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.tuples(inner)
        | st.frozensets(st.integers(0, 9) | st.text("ab", max_size=1), max_size=3)
        | st.sets(st.integers(0, 9), max_size=3)
    ),
    max_leaves=6,
)
names = st.sampled_from(("a", "b", "c", "deep"))
items = st.lists(values, max_size=3)
states = st.builds(
    lambda rest, growing: rest if growing is None else {**rest, "list": growing},
    st.dictionaries(names, values, max_size=4),
    st.none() | items,
)
positions = st.floats(0, 1, exclude_max=True)
threads = st.sampled_from(THREADS)
namespaces = st.sampled_from(NAMESPACES)
writes = st.dictionaries(st.sampled_from(("w", "x")), values, max_size=2) | st.sampled_from(
    ({"interrupt:i": STOP}, {"answer:i": None}, {"interrupt:i": STOP, "answer:i": 1})
)
