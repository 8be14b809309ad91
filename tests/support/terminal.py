"""The command line in this process, in a CliContext of its own; checkpoints with known ids and times; a module with graphs."""

import contextlib
import dataclasses
import io
import json
from datetime import UTC, datetime, timedelta

from graphkit import Checkpoint
from graphkit.cli.app import run
from graphkit.cli.context import CliContext

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class Terminal(io.StringIO):
    def __init__(self, text="", *, is_terminal):
        super().__init__(text)
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@dataclasses.dataclass(frozen=True)
class Human:
    """The input of a terminal whose lines a function types, when they are asked for."""

    type_line: object

    def isatty(self):
        return True

    def readline(self, *_):
        return self.type_line()


@dataclasses.dataclass(frozen=True)
class Done:
    """What a command has done."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return self.out.splitlines()


def graphkit(*args, terminal=False, width=100, colour=False, stdin="", now=NOW, zone=UTC, **environment):
    """Run a command line in this process, in a CliContext of its own; `stdin` may be a function that types lines."""
    out, err = Terminal(is_terminal=terminal), Terminal(is_terminal=terminal)
    context = CliContext(
        out=out,
        err=err,
        input=Terminal(stdin, is_terminal=terminal) if isinstance(stdin, str) else Human(stdin),
        is_terminal=terminal,
        width=width,
        colour=colour,
        environment=environment,
        now=lambda: now,
        zone=zone,
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([str(arg) for arg in args], context)
    return Done(code, out.getvalue(), err.getvalue())


def read_json(*args, **environment):
    """Run a command line in this process; return what it shows with --json."""
    return graphkit(*args, "--json", **environment).json


def assert_refused(done, code, *words):
    """Check that a command ended with this code, and that its error output has each of the words."""
    assert done.code == code, done.err
    for word in words:
        assert word in done.err


def assert_shows(done, code, *words):
    """Check that a command ended with this code, and that its output has each of the words."""
    assert done.code == code, done.err
    for word in words:
        assert word in done.out


def minutes_ago(minutes):
    return NOW - timedelta(minutes=minutes)


def checkpoint(number, node, following, state, parent=None, **metadata):
    return Checkpoint(
        id=f"00000000-0000-7000-8000-{number:012d}",
        node_id=node,
        next_node_id=following,
        state=state,
        parent_id=None if parent is None else f"00000000-0000-7000-8000-{parent:012d}",
        created_at=minutes_ago(60 - number),
        metadata={"run_id": "run-1", "source": "loop", **metadata},
    )


STOP = {"node_id": "approve", "when": "inside", "payload": {"question": "Ship lamp?"}, "metadata": {}}


def damage(store, thread, offset=-10):
    """Flip all bits of a byte of a thread's log: a single bit is corrected."""
    (path,) = store.glob(f"t-{thread}-*/log")
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


SHOP = """
import operator
from dataclasses import dataclass
from typing import Annotated, TypedDict

from graphkit import END, START, StateGraph, interrupt


@dataclass
class Place:
    city: str


class Order(TypedDict):
    item: str
    city: str
    place: Place
    log: Annotated[list[str], operator.add]


def reserve(state):
    if state.get("item") == "ghost":
        raise ValueError("no such item")
    return {"log": [f"reserved {state['item']}"]}


def approve(state):
    question = f"Ship {state['item']}?"
    return {"log": [f"approval: {interrupt({'question': question})}"]}


def ship(state):
    return {"log": [f"shipped to {state.get('city')}"], "place": Place(state.get("city") or "")}


graph = StateGraph(Order)
for node in (reserve, approve, ship):
    graph.add_node(node.__name__, node)
graph.add_edge(START, "reserve").add_edge("reserve", "approve").add_edge("approve", "ship").add_edge("ship", END)
app = graph.compile()
reviewed = graph.compile(interrupt_before=["ship"])
changed = StateGraph(Order).add_node("reserve", reserve).add_edge(START, "reserve").add_edge("reserve", END).compile()


async def soon(state):
    return {"log": ["soon"]}


asynchronous = StateGraph(Order).add_node("soon", soon).add_edge(START, "soon").add_edge("soon", END).compile()


def made():
    return graph


number = 7
"""
