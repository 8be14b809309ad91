"""interrupt() inside a node: asking, answering, asking again."""

import pickle
from contextlib import suppress

import pytest

from graphkit import (
    END,
    START,
    GraphInterrupt,
    GraphResume,
    InterruptableAction,
    InterruptionMetadata,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    interrupt,
)
from graphkit.errors import GraphRunnerError, NodeExecutionError
from tests.support.graphs import (
    CONFIG,
    LOG,
    at_checkpoint,
    fail_once,
    invoke,
    make_chain,
    make_chain_of,
    make_graph,
    make_map,
    payloads_of,
    pending_ids,
    pending_payloads,
)


def asking(*questions):
    """A graph a -> ask -> z; `ask` asks the questions in turn and logs the answers."""
    return make_chain_of(LOG, {}, "a", "ask", "z", ask=lambda state: {"log": [interrupt(each) for each in questions]})


def run(compiled, given=None, config=CONFIG):
    return compiled.invoke_final(given, config)


def test_a_question_stops_the_run_and_its_answer_is_returned(saver):
    compiled = asking("ok?").compile(checkpoint_saver=saver)
    stop = run(compiled, {})

    assert stop.reason() == "ok?"
    assert stop.state["log"] == ["a"]
    assert list(stop.interrupts) == [stop]
    (pending,) = saver.interrupts("t")
    (shown,) = compiled.get_state(CONFIG).interrupts
    for each in (stop, pending, shown):
        assert (each.node_id, each.when, each.payload, each.id) == ("ask", "inside", "ok?", stop.id)
    assert len(saver.list(CONFIG)) == 2  # the stop itself stores no checkpoint
    assert pending.checkpoint_id == saver.get(CONFIG).id

    end = run(compiled, GraphResume("yes"))

    assert end.state["log"] == ["a", "yes", "z"]
    assert saver.interrupts("t") == []
    assert len(saver.list(CONFIG)) == 4


def test_a_resume_without_a_value_asks_again_under_the_same_id(saver):
    payloads = iter(["first", "second", "third"])
    compiled = make_chain({}, ask=lambda state: {"answer": interrupt(next(payloads))}).compile(checkpoint_saver=saver)
    first = run(compiled, {})
    since = saver.interrupts("t")[0].created_at

    again = run(compiled, GraphResume())

    assert (again.id, again.payload) == (first.id, "second")

    (waiting,) = saver.interrupts("t")

    assert (waiting.id, waiting.payload, waiting.created_at) == (first.id, "second", since)
    assert run(compiled, GraphResume(1)).state["answer"] == 1


@pytest.mark.parametrize("answer", [None, False, 0, "", {}, [], {"not": "an id"}, [1, {"x": 2}]])
def test_any_value_is_an_answer(saver, answer):
    compiled = make_chain({}, ask=lambda state: {"answer": interrupt()}).compile(checkpoint_saver=saver)
    run(compiled, {})
    assert run(compiled, GraphResume(answer)).state["answer"] == answer


def test_an_answer_is_read_only_the_first_time_too(saver):
    compiled = make_chain({}, ask=lambda state: interrupt("q").append(1)).compile(checkpoint_saver=saver)
    run(compiled, {})
    mine = [0]
    with pytest.raises(NodeExecutionError, match="read-only"):
        run(compiled, GraphResume(mine))
    assert mine == [0]


def test_an_answer_given_twice_is_refused(saver):
    log_answer = fail_once(lambda answer: {"log": answer}, KeyboardInterrupt)
    compiled = make_chain(LOG, ask=lambda state: log_answer(interrupt("q"))).compile(checkpoint_saver=saver)
    run(compiled, {})
    with pytest.raises(KeyboardInterrupt):
        run(compiled, GraphResume("one"))

    assert saver.interrupts("t") == []
    with pytest.raises(GraphRunnerError, match="nothing waits"):
        run(compiled, GraphResume("two"))
    assert run(compiled).state["log"] == ["one"]


def test_an_update_alone_asks_again_and_is_kept(saver):
    compiled = asking("q").compile(checkpoint_saver=saver)
    first = run(compiled, {})
    again = run(compiled, GraphResume(update={"log": "u1"}))
    assert (again.id, list(again.state["log"])) == (first.id, ["a", "u1"])
    run(compiled, GraphResume(update={"log": "u2"}))
    assert run(compiled, GraphResume("yes")).state["log"] == ["a", "u1", "u2", "yes", "z"]


def test_time_travel_to_an_answered_question_asks_again_or_takes_a_new_answer_and_leaves_the_old_line(saver):
    compiled = asking("q1", "q2").compile(checkpoint_saver=saver)
    run(compiled, {})
    asked_at = at_checkpoint(saver.get(CONFIG))
    (first,) = pending_ids(saver)
    run(compiled, GraphResume("old1"))
    (second,) = pending_ids(saver)
    run(compiled, GraphResume("old2"))
    before = list(saver.list(CONFIG))
    record = saver.get_writes(asked_at)

    stop = run(compiled, None, asked_at)

    assert stop.payload == "q1"
    assert payloads_of(stop) == ["q1"]
    assert pending_payloads(saver) == ["q1"]
    for answer, config in (("new", CONFIG), ("newer", asked_at)):
        assert run(compiled, GraphResume(answer), config).payload == "q2"
        assert run(compiled, GraphResume("new2")).state["log"] == ["a", answer, "new2", "z"]
    end = run(compiled, GraphResume({first: "x1", second: "x2"}), asked_at)

    assert end.state["log"] == ["a", "x1", "x2", "z"]
    assert list(saver.list(CONFIG))[-len(before) :] == before
    assert saver.get_writes(asked_at) == record


def test_a_node_may_raise_the_interrupt_itself(saver):
    graph = make_chain({}, ask=fail_once(lambda state: {}, GraphInterrupt({"why": "by hand"})))
    assert run(graph.compile(checkpoint_saver=saver), {}).payload == {"why": "by hand"}


def test_outside_a_node_an_interrupt_is_refused():
    with pytest.raises(GraphRunnerError, match="inside a node"):
        interrupt("q")


@pytest.mark.parametrize("edge", [fail_once(interrupt, GraphInterrupt("q")), lambda state: interrupt("q")])
def test_an_edge_cannot_ask(saver, edge):
    graph = make_graph({}, "START>a").add_conditional_edges("a", edge)
    with pytest.raises(NodeExecutionError, match="edge of 'a'"):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)


def test_a_run_inside_a_node_has_questions_of_its_own(saver):
    inner = asking("inner").compile(checkpoint_saver=saver)

    def outer(state):
        first = interrupt("outer")
        stop = inner.invoke_final({}, RunnableConfig("inner"))
        return {"log": [first, stop.payload, interrupt("outer again")]}

    compiled = make_chain(LOG, n=outer).compile(checkpoint_saver=saver)
    assert run(compiled, {}).payload == "outer"
    assert run(compiled, GraphResume(1)).payload == "outer again"
    assert run(compiled, GraphResume(2)).state["log"] == [1, "inner", 2]


def test_a_stop_pickles_with_its_payload():
    raised = GraphInterrupt({"q": 1})
    assert pickle.loads(pickle.dumps(raised)).payload == {"q": 1}


# --- InterruptableAction ----------------------------------------------------------------------------------------------


class Gate(InterruptableAction):
    """Stops until the state says `go`."""

    def __init__(self, result=None):
        self.asked = 0
        self.runs = 0
        self.result = result or {"reason": "no go yet"}

    def interrupt(self, node_id, state, config):
        assert (node_id, config.thread_id) == ("gate", "t")
        self.asked += 1
        return None if state.value("go") else self.result

    def __call__(self, state, config):
        self.runs += 1
        return {"log": "gate"}


def gated(gate, **options):
    return make_chain(LOG, gate=gate).compile(**options)


def test_an_action_is_asked_each_time_after_a_resume_too(saver):
    gate = Gate()
    compiled = gated(gate, checkpoint_saver=saver)
    stop = run(compiled, {})

    assert (stop.node_id, stop.when) == ("gate", "action")
    assert stop.reason() == "no go yet"
    assert stop.metadata == {"reason": "no go yet"}

    assert run(compiled).id == stop.id
    assert (gate.asked, gate.runs) == (2, 0)
    assert pending_ids(saver) == [stop.id]

    assert run(compiled, GraphResume({"go": True})).state["log"] == ["gate"]
    assert (gate.asked, gate.runs) == (3, 1)


def test_an_action_may_return_whole_metadata(saver):
    metadata = InterruptionMetadata.builder("gate", None).reason("because").addMetadata("k", 1).build()
    stop = run(gated(Gate(metadata), checkpoint_saver=saver), {})
    assert (stop.payload, stop.metadata, stop.node_id) == ("because", {"k": 1}, "gate")


@pytest.mark.parametrize("result", [True, "stop", 3])
def test_an_action_that_returns_something_else_is_an_error(saver, result):
    with pytest.raises(NodeExecutionError, match="gate"):
        run(gated(Gate(result), checkpoint_saver=saver), {})


def test_an_action_without_a_result_is_an_error(saver):
    gate = Gate()
    gate.interrupt = fail_once(gate.interrupt, OSError("no line"))
    with pytest.raises(NodeExecutionError, match="no line"):
        run(gated(gate, checkpoint_saver=saver), {})
    assert gate.runs == 0


# --- interrupts that a node swallows ----------------------------------------------------------------------------------


def swallowing(**options):
    """A node whose bare except takes the GraphInterrupt for one more error."""

    def node(state):
        try:
            return {"log": interrupt("ok?")}
        except:  # noqa: E722 - the slip that this is about
            return {"log": "went on"}

    return StateGraph(LOG).add_node("ask", node, **options).add_edge(START, "ask").add_edge("ask", END)


@pytest.mark.parametrize("options", [{}, {"timeout": 60}, {"retry": RetryPolicy(max_attempts=2, initial_delay=0)}])
def test_a_swallowed_interrupt_is_an_error_that_names_the_node(saver, options):
    app = swallowing(**options).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match=r"'ask' caught the GraphInterrupt.*`except Exception:`") as failed:
        app.invoke({}, CONFIG)
    assert failed.value.node_id == "ask"
    assert len(saver.list(CONFIG)) == 1  # nothing of the step is stored, and nothing waits
    assert app.get_state(CONFIG).interrupts == ()


def swallow(item):
    with suppress(BaseException):
        interrupt(item)


def swallow_between_chunks(state):
    yield "chunk"
    swallow("?")


async def swallow_later(state):
    swallow("?")


@pytest.mark.parametrize(
    ("graph", "how"),
    [
        (make_map(swallow, [1, 2]), "sync"),
        (make_graph(LOG, "START>m,b m>END b>END", m=swallow), "sync"),
        (make_chain(m=swallow_between_chunks), "sync"),
        (make_chain(m=swallow_later), "async"),
    ],
    ids=["map", "branch", "generator", "async"],
)
def test_a_swallowed_interrupt_is_an_error_wherever_it_was(graph, how):
    with pytest.raises(NodeExecutionError, match="'m' caught the GraphInterrupt"):
        invoke(graph.compile(), {}, how=how)


def test_an_error_raised_out_of_an_interrupt_names_both():
    def node(state):
        try:
            interrupt("ok?")
        except BaseException as error:
            raise ValueError("wrapped") from error

    graph = make_chain(LOG, ask=node)
    with pytest.raises(NodeExecutionError, match="ValueError: wrapped; it was raised while interrupt"):
        graph.compile().invoke({})


def test_except_exception_catches_no_interrupt_and_a_clean_up_that_raises_it_again_swallows_none(saver):
    cleaned = []

    def node(state):
        try:
            return {"log": interrupt("ok?")}
        except Exception:  # noqa: BLE001 - as careless users write it
            return {"log": "swallowed"}
        except BaseException:
            cleaned.append(1)
            raise

    app = make_chain(LOG, ask=node).compile(checkpoint_saver=saver)
    assert run(app, {}).when == "inside"
    assert run(app, GraphResume("yes")).state["log"] == ["yes"]
    assert cleaned == [1]
