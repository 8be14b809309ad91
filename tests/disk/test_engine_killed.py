"""SIGKILL at every call that stores something, of a graph with all that the engine has.

A loop, a fork with a chain, an embedded graph, a question to a human, `once`. The reference is the same graph left
alone. A node writes its line as the last thing it does, so whoever is killed between that line and its record runs
again, which is right. What is claimed: what was stored as finished when the process died never runs again, and the
final state is the one of the undisturbed run. A process finds in the store what another one has asked, and answers it.
"""

import os
import signal
from collections import Counter

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver

pytestmark = pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")

THREAD = RunnableConfig(thread_id="t")
PROGRAM = """
import os, signal, sys, threading
from graphkit import END, START, Channels, GraphResume, RunnableConfig, StateGraph, interrupt
from savers import FileSystemSaver

directory, when, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = os.open(os.path.join(directory, "work.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
one_at_a_time = threading.Lock()

def deadly(method):
    def stores(self, *arguments):
        global left
        with one_at_a_time:
            left -= 1
            if when == "before" and not left:
                os.kill(os.getpid(), signal.SIGKILL)
            result = method(self, *arguments)
            if when == "after" and not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
    return stores

FileSystemSaver.put = deadly(FileSystemSaver.put)
FileSystemSaver.put_writes = deadly(FileSystemSaver.put_writes)

def did(what, state):
    os.write(log, f"{what} {state['round']}\\n".encode())

def make_node(name):
    def node(state):
        did(name, state)
        return {"log": [f"{name}{state['round']}"], "sum": 1}
    return node

def pays(state, config):
    paid = config.once("pay", lambda: did("effect", state) or f"paid{state['round']}")
    did("pays", state)
    return {"log": [paid], "sum": 10}

def asks(state):
    answer = interrupt(f"go on with {state['round']}?")
    did("asks", state)
    return {"log": [answer], "sum": 100}

def counts(state):
    did("counts", state)
    return {"round": state["round"] + 1}

schema = {
    "log": Channels.appender_with_duplicate(),
    "sum": Channels.base(lambda old, new: old + new, lambda: 1000),
}
child = StateGraph(schema).add_node("first", make_node("first")).add_node("asks", asks)
child.add_edge(START, "first").add_edge("first", "asks").add_edge("asks", END)
graph = StateGraph(schema).add_node("begins", make_node("begins"))
for name in ("left", "further", "right"):
    graph.add_node(name, make_node(name))
graph.add_node("pays", pays).add_node("joins", make_node("joins")).add_node("inner", child.compile()).add_node("counts", counts)
graph.add_edge(START, "begins").add_edge("begins", "left").add_edge("begins", "right").add_edge("begins", "pays")
graph.add_edge("left", "further").add_edge("further", "joins").add_edge("right", "joins").add_edge("pays", "joins")
graph.add_edge("joins", "inner").add_edge("inner", "counts")
graph.add_conditional_edges("counts", lambda state: "begins" if state["round"] < 2 else END, ["begins", END])
saver = FileSystemSaver(os.path.join(directory, "runs"), fsync="never")
app = graph.compile(checkpoint_saver=saver)

config = RunnableConfig("t")
is_end = False
while not is_end:
    questions = saver.interrupts()
    if questions:
        (question,) = questions
        given = GraphResume("yes " + question.payload)
    else:
        given = GraphResume() if app.state_of(config) else {"round": 0}
    is_end = app.invoke_final(given, config).is_end
assert saver.interrupts() == []
print(-left)
"""


@pytest.fixture(scope="module")
def run(launcher):
    def run_once(directory, when="never", call=0):
        """Run the program until it ends or is killed at its call-th call; how many calls it made if it ended."""
        directory.mkdir(exist_ok=True)
        done = launcher.run("-c", PROGRAM, directory, when, call)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return int(done.stdout) + call if done.returncode == 0 else None

    return run_once


def logged(directory):
    return (directory / "work.log").read_text().splitlines() if (directory / "work.log").exists() else []


def finished(directory):
    """What the store says is finished, spelled as the log spells it, with the round it was finished in."""
    saver = FileSystemSaver(directory / "runs")
    done = set()
    for namespace in saver.namespaces("t"):
        at = RunnableConfig("t", checkpoint_ns=namespace)
        for checkpoint in saver.list(at):
            ended = checkpoint.state["round"] - (checkpoint.node_id == "counts")
            done.add(f"{checkpoint.node_id} {ended}")
            for key, value in saver.get_writes(at.replace(checkpoint_id=checkpoint.id)).items():
                if key.startswith("task:"):
                    done.add(f"{value['node']} {ended}")
                elif key.startswith("once:"):
                    done.add(f"effect {ended}")
    return done


def outcome(directory):
    """The final state, and the way there."""
    saver = FileSystemSaver(directory / "runs")

    def steps(config):
        return [(checkpoint.node_id, checkpoint.next_node_id) for checkpoint in saver.list(config)]

    return dict(saver.get(THREAD).state), steps(THREAD), steps(RunnableConfig("t", checkpoint_ns="inner"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory, run):
    directory = tmp_path_factory.mktemp("undisturbed")
    calls = run(directory)
    done = Counter(logged(directory))
    assert set(done.values()) == {1}

    undisturbed = outcome(directory)
    state = undisturbed[0]
    of_a_round = 5 * 1 + 10 + 1 + 100
    assert state["sum"] == 1000 + 2 * of_a_round
    assert state["log"][:5] == ["begins0", "left0", "further0", "right0", "paid0"]
    assert len(state["log"]) == 16
    return done.keys(), undisturbed, calls


FEWEST_CALLS = 26
"""A run stores with 33 calls. In each of its two rounds the five records of the branches may take two calls."""


@pytest.mark.requirement("H13", "G38", "L15")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_call_that_stores(tmp_path, run, reference, when, sweep):
    work, undisturbed, calls = reference
    assert calls >= FEWEST_CALLS, "each node, branch, question, answer and effect is stored by a call of its own"
    all_calls = range(1, calls + 1)
    for call in sweep.some(all_calls, 5):
        case = f"killed {when} call {call}"
        place = tmp_path / str(call)
        ended = run(place, when, call)
        # What branches record together may be stored by one call, so that a run makes fewer calls than another.
        assert ended is None or call > FEWEST_CALLS
        done = finished(place) if ended is None else set()
        assert run(place) is not None
        assert outcome(place) == undisturbed, case
        lines = Counter(logged(place))
        assert lines.keys() == work
        repeated = {line for line in done if lines[line] > 1}
        assert repeated == set(), case
        assert max(lines.values()) <= 2
