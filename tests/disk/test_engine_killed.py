"""SIGKILL at every call that stores something, of a graph with all that the engine has.

A loop, a fork with a chain, an embedded graph, a question to a human, `once`. The reference is the same graph left
alone. A node writes its line as the last thing it does, so whoever is killed between that line and its record runs
again, which is right. What is claimed: what was stored as finished when the process died never runs again, and the
final state is the one of the undisturbed run. A process finds in the store what another one has asked, and answers it.
"""

import operator
import os
import threading
from collections import Counter
from signal import SIGKILL

import pytest

from graphkit import END, Channels, GraphResume, RunnableConfig, interrupt
from savers import FileSystemSaver
from tests.support.disks import kill_this_process
from tests.support.forked import exit_code_of_child
from tests.support.graphs import LOG, make_chain, make_graph, stored

# Since 3.12 a fork beside other threads warns; none of them is in the middle of anything here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
THREAD = RunnableConfig(thread_id="t")
ENDED = 100
"""The exit code of a run that has ended, without the number of its calls."""


class Deadly:
    """Counts the calls that store something, and kills this process before or after one of them."""

    def __init__(self, when, call):
        self.when = when
        self.call = call
        self.count = 0
        self.one_at_a_time = threading.Lock()
        for name in ("put", "put_writes"):
            setattr(FileSystemSaver, name, self.around(getattr(FileSystemSaver, name)))

    def around(self, method):
        def store(saver, *arguments):
            with self.one_at_a_time:
                self.count += 1
                if self.when == "before" and self.count == self.call:
                    kill_this_process()
                result = method(saver, *arguments)
                if self.when == "after" and self.count == self.call:
                    kill_this_process()
                return result

        return store


def make_app(directory, saver):
    """Make the graph; each node logs its line in a file."""
    log = os.open(directory / "work.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def did(what, state):
        os.write(log, f"{what} {state['round']}\n".encode())

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

    schema = {**LOG, "sum": Channels.base(operator.add, lambda: 1000)}
    inner = make_chain(schema, first=make_node("first"), asks=asks).compile()
    branches = "begins>left,right,pays left>further further>joins right>joins pays>joins"
    edges = f"START>begins {branches} joins>inner inner>counts"
    graph = make_graph(schema, edges, make_node, pays=pays, inner=inner, counts=counts)
    graph.add_conditional_edges("counts", lambda state: "begins" if state["round"] < 2 else END, ["begins", END])
    return graph.compile(checkpoint_saver=saver)


def run(directory, when="never", call=0):
    """Run the graph in a child until it ends or is killed at a call; return how many calls it made if it ended, or None."""
    directory.mkdir(exist_ok=True)

    def go_on():
        deadly = Deadly(when, call)
        saver = FileSystemSaver(directory / "runs", fsync="never")
        app = make_app(directory, saver)
        is_end = False
        while not is_end:
            questions = saver.interrupts()
            if questions:
                (question,) = questions
                given = GraphResume("yes " + question.payload)
            else:
                given = GraphResume() if app.state_of(THREAD) else {"round": 0}
            is_end = app.invoke_final(given, THREAD).is_end
        assert saver.interrupts() == []
        os._exit(ENDED + deadly.count)

    code = exit_code_of_child(go_on)
    assert code >= ENDED or code == -SIGKILL
    return code - ENDED if code >= ENDED else None


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
    inner = RunnableConfig("t", checkpoint_ns="inner")
    return dict(saver.get(THREAD).state), stored(saver, THREAD), stored(saver, inner)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
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
def test_killed_at_every_call_that_stores(tmp_path, reference, when, sweep):
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
