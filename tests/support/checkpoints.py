"""Checkpoints of a few fields, for tests that need some."""

from datetime import UTC, datetime

from graphkit import Checkpoint
from graphkit._values.state import merge
from graphkit.saver_kit import Changes, freeze


def make_checkpoint(number, **state):
    """Return a checkpoint whose nodes, state and metadata show its number."""
    return Checkpoint(
        node_id=f"n{number}",
        next_node_id=f"n{number + 1}",
        state={"n": number, **state},
        metadata={"step": number},
    )


def apply_update(state, update, channels=None):
    """Return the state after an update, and what changed: what the engine gives a saver after a step."""
    new, ops = merge(state, update, channels or {})
    return new, Changes(state, ops)


def make_following(number, state, changes=None, **fields):
    """Return a checkpoint as the engine gives it to a saver: it knows what changed since its parent."""
    fields = {
        "id": f"c{number}",
        "node_id": "a",
        "next_node_id": "b",
        "parent_id": f"c{number - 1}" if number else None,
        "created_us": 1_800_000_000_000_000 + number,
        "metadata": freeze({"step": number}),
        **fields,
    }
    return Checkpoint.from_stored(state=state, changes=changes, **fields)


def make_interrupt(node_id="a", payload=None):
    """Return the value that is recorded for a pending interrupt."""
    when = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    return {"node_id": node_id, "when": "inside", "payload": payload, "metadata": {}, "created_at": when}


def list_numbers(saver, config):
    """Return the numbers of all checkpoints of a history, the newest first."""
    return [checkpoint.state["n"] for checkpoint in saver.list(config)]


def list_ids(saver, config):
    """Return the ids of all checkpoints of a history, the newest first."""
    return [checkpoint.id for checkpoint in saver.list(config)]


def list_states(saver, config):
    """Return the states of all checkpoints of a history as dictionaries, the newest first."""
    return [dict(checkpoint.state) for checkpoint in saver.list(config)]


def with_lazy_state(checkpoint, load):
    """Return a checkpoint whose state is loaded when it is first read."""
    names = ("id", "node_id", "next_node_id", "parent_id", "created_us", "metadata")
    fields = {name: getattr(checkpoint, name) for name in names}
    return Checkpoint.from_stored(**fields, state=None, load=load)
