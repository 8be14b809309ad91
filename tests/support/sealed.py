"""What the tests of sealed stores share: keys, histories full of plaintext that can be found, and operations on them."""

from datetime import UTC, datetime, timedelta
from functools import partial

from graphkit import Checkpoint, RunnableConfig
from tests.support.readings import READINGS

OLD = {"2025": bytes(range(32))}
NEW = {"current": bytes(range(1, 33))}
BOTH = {**NEW, **OLD}
CONFIG = RunnableConfig("t")
INNER = RunnableConfig("t", checkpoint_ns="inner")
MARKERS = [b"plain", b"Plain"]
"""Every value, key, tag, node and id of a write below has one of these in its name."""


def made(number, **state):
    return Checkpoint(
        id=f"00000000-0000-7000-8000-{number:012x}",
        node_id=f"plain_node{number}",
        next_node_id=f"plain_node{number + 1}",
        state={"plain_n": number, **state},
        created_at=datetime(2026, 11, 22, tzinfo=UTC) + timedelta(seconds=number),
        metadata={"plain_step": f"plain{number}"},
    )


def states(count, size=300, lines=400):
    """States of a list that grows, a window that slides, a text that is spliced, and one that is compressed."""
    items = []
    for number in range(count):
        items = [*items, f"plain item {number} " + "x" * size]
        text = "".join(f"plain line {n // 2}\n" for n in range(number, number + lines))
        yield {"plain_items": items, "plain_window": items[-3:], "plain_text": text, "plain_big": text * 5}


def write(saver, config=CONFIG, count=12, **options):
    for number, state in enumerate(states(count, **options)):
        saver.put(config, made(number, **state))
        if number % 4 == 1:
            saver.put_writes(config, {"plain_write": [f"plain answer {number}"] * 3})
            saver.add_tags(config, f"plain tag {number}")


def fill(saver):
    """Write a history, its version and the history of a nested graph."""
    write(saver)
    saver.release(CONFIG)
    write(saver)
    write(saver, INNER, 2)


def fill_rotatable(open_saver):
    """Write histories of an old key, of the new one, of both, and plain ones; live and released.

    Args:
        open_saver: opens a saver on the store with a `cipher`.
    """
    with open_saver(cipher=None) as plain:
        write(plain, RunnableConfig("unsealed"), 3)
        write(plain, RunnableConfig("unsealed-released"), 3)
        plain.release(RunnableConfig("unsealed-released"))
    with open_saver(cipher=OLD) as old:
        write(old, CONFIG, 4)
        write(old, INNER, 3)
        old.release(CONFIG)
        write(old, CONFIG, 4)
        write(old, RunnableConfig("Odd id!", checkpoint_ns="Odd ns!"), 2)
    with open_saver(cipher=BOTH) as both:
        both.put(CONFIG, made(70, plain="new"))
        write(both, RunnableConfig("new"), 2)


_READINGS = (
    "get", "list", "history", "recent", "summary", "writes", "interrupts", "namespaces", "versions", "replay", "watch",
)  # fmt: skip
READS = {
    **{name: partial(READINGS[name], config=CONFIG) for name in _READINGS},
    "info": lambda saver: saver.info(CONFIG),
    "tags_of": lambda saver: saver.tags_of(CONFIG),
    "search": lambda saver: saver.search({"plain_step": "plain1"}),
    "tag": lambda saver: saver.tag(CONFIG).checkpoints,
    "copy": lambda saver: saver.copy("t", "x"),
    "put": lambda saver: saver.put(CONFIG, made(70)),
    "put_writes": lambda saver: saver.put_writes(CONFIG, {"a": 1}),
    "add_tags": lambda saver: saver.add_tags(CONFIG, "a"),
    "release": lambda saver: saver.release(CONFIG),
    "prune": lambda saver: saver.prune(keep_last=1),
    "compact": lambda saver: saver.compact(),
}
WRONG = {"without": None, "missing": {"other": bytes(32)}, "wrong": {"current": bytes(32)}}
