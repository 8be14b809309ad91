"""The Hypothesis strategies of the state machine test: histories, states, pending writes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

THREADS: Final = ("t", "T", "../t")
NAMESPACES: Final = ("", "n")
TAGS: Final = ("keep", "other")
INTERRUPT: Final = {
    "node_id": "a",
    "when": "inside",
    "payload": (1,),
    "metadata": {},
    "created_at": datetime(2026, 1, 2, tzinfo=UTC),
}


class HistoryKey(NamedTuple):
    """The thread and the namespace of a history."""

    thread: str
    namespace: str


# --- histories --------------------------------------------------------------------------------------------------------

threads = st.sampled_from(THREADS)
histories = st.builds(HistoryKey, threads, st.sampled_from(NAMESPACES))
positions = st.floats(0, 1, exclude_max=True)
"""Where in a history a rule picks a checkpoint; see `SaverMachine.pick`."""

# --- values -----------------------------------------------------------------------------------------------------------

_scalars = (
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
# Few keys, so that two states often have one in common.
keys = st.text("abc", min_size=1, max_size=2) | st.integers(0, 3)


def _nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make compound values of a strategy for their parts."""
    hashable = st.integers(0, 9) | st.text("ab", max_size=1)
    return (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.tuples(inner)
        | st.frozensets(hashable, max_size=3)
        | st.sets(st.integers(0, 9), max_size=3)
    )


values = st.recursive(_scalars, _nest, max_leaves=6)
items = st.lists(values, max_size=3)

# --- states -----------------------------------------------------------------------------------------------------------

names = st.sampled_from(("a", "b", "c", "deep"))


def _make_state(state: dict[str, Any], growing: list[Any] | None) -> dict[str, Any]:
    return state if growing is None else {**state, "list": growing}


states = st.builds(
    _make_state,
    st.dictionaries(names, values, max_size=4),
    st.none() | items,
)

# --- pending writes ---------------------------------------------------------------------------------------------------

_plain_writes = st.dictionaries(st.sampled_from(("w", "x")), values, max_size=2)
_interrupt_writes = st.sampled_from(
    (
        {"interrupt:i": INTERRUPT},
        {"answer:i": None},
        {"interrupt:i": INTERRUPT, "answer:i": 1},
    )
)
writes = _plain_writes | _interrupt_writes
