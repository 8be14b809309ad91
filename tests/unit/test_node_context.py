"""interrupt() inside a node: asking, answering, asking again."""

import asyncio
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
from tests.support.graphs import CONFIG, LOG, at_checkpoint, make_chain, payloads_of, pending_ids, pending_payloads


def asking(*questions, before=None, after=None):
    """A graph a -> ask -> z; `ask` asks the questions in turn and logs the answers."""

    def ask(state):
        if before:
            before()
        answers = [interrupt(question) for question in questions]
        if after:
            after()
        return {"log": answers}

    return make_chain(LOG, a=lambda s: {"log": "a"}, ask=ask, z=lambda s: {"log": "z"})


def run(compiled, given=None, config=CONFIG):
    return compiled.invoke_final(given, config)


def test_a_question_stops_the_run_and_its_answer_is_returned(saver):
    compiled = asking("ok?").compile(checkpoint_saver=saver)
    stop = run(compiled, {})

    assert stop.reason() == "ok?"
    assert stop.state["log"] == ["a"]
    assert list(stop.interrupts) == [stop]
    (pending,) = saver.interrupts("t")
    for each in (stop, pending):
        assert each.node_id == "ask"
        assert each.when == "inside"
        assert each.payload == "ok?"
        assert each.id == stop.id
    (shown,) = compiled.get_state(CONFIG).interrupts
    assert shown.id == stop.id
    assert len(saver.list(CONFIG)) == 2  # the stop itself stores no checkpoint
    assert pending.checkpoint_id == saver.get(CONFIG).id

    end = run(compiled, GraphResume("yes"))
    assert end.is_end
    assert end.state["log"] == ["a", "yes", "z"]
    assert saver.interrupts("t") == []
    assert len(saver.list(CONFIG)) == 4


def test_several_questions_are_asked_in_turn_and_answers_replayed_in_order(saver):
    started = []
    compiled = asking("q1", "q2", "q3", before=lambda: started.append(1)).compile(checkpoint_saver=saver)
    stop = run(compiled, {})

    for number in (1, 2, 3):
        assert stop.payload == f"q{number}"
        assert pending_payloads(saver) == [f"q{number}"]
        stop = run(compiled, GraphResume(f"a{number}"))

    assert stop.state["log"] == ["a", "a1", "a2", "a3", "z"]
    assert len(started) == 4


def test_a_resume_without_a_value_asks_again_under_the_same_id(saver):
    payloads = iter(["first", "second", "third"])

    def ask(state):
        return {"answer": interrupt(next(payloads))}

    compiled = make_chain({}, ask=ask).compile(checkpoint_saver=saver)
    first = run(compiled, {})
    since = saver.interrupts("t")[0].created_at
    again = run(compiled, GraphResume())
    assert (again.id, again.payload) == (first.id, "second")
    (waiting,) = saver.interrupts("t")
    assert (waiting.id, waiting.payload, waiting.created_at) == (first.id, "second", since)
    assert run(compiled, GraphResume(1)).state["answer"] == 1


@pytest.mark.parametrize("answer", [None, False, 0, "", {}, [], {"not": "an id"}, [1, {"x": 2}]])
def test_any_value_is_an_answer(saver, answer):
    seen = []

    def ask(state):
        seen.append(interrupt())

    compiled = make_chain({}, ask=ask).compile(checkpoint_saver=saver)
    run(compiled, {})
    assert run(compiled, GraphResume(answer)).is_end
    assert seen == [answer]


def test_an_answer_is_read_only_the_first_time_too(saver):
    compiled = make_chain({}, ask=lambda state: interrupt("q").append(1)).compile(checkpoint_saver=saver)
    run(compiled, {})
    mine = [0]
    with pytest.raises(NodeExecutionError, match="read-only"):
        run(compiled, GraphResume(mine))
    assert mine == [0]


def test_an_answer_given_twice_is_refused(saver):
    broken = [True]

    def crash():
        if broken:
            raise KeyboardInterrupt

    compiled = asking("q", after=crash).compile(checkpoint_saver=saver)
    run(compiled, {})
    with pytest.raises(KeyboardInterrupt):
        run(compiled, GraphResume("one"))
    assert saver.interrupts("t") == []
    with pytest.raises(GraphRunnerError, match="nothing waits"):
        run(compiled, GraphResume("two"))
    broken.clear()
    assert run(compiled).state["log"] == ["a", "one", "z"]


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


def test_a_broad_except_lets_a_question_pass(saver):
    def ask(state):
        try:
            return {"log": interrupt("q")}
        except Exception:  # noqa: BLE001 - as careless users write it
            return {"log": "swallowed"}

    compiled = make_chain(LOG, ask=ask).compile(checkpoint_saver=saver)
    assert run(compiled, {}).payload == "q"
    assert run(compiled, GraphResume("yes")).state["log"] == ["yes"]


def test_a_node_may_raise_the_interrupt_itself(saver):
    def ask(state):
        raise GraphInterrupt({"why": "by hand"})

    graph = make_chain({}, ask=ask)
    assert run(graph.compile(checkpoint_saver=saver), {}).payload == {"why": "by hand"}


def test_outside_a_node_an_interrupt_is_refused():
    with pytest.raises(GraphRunnerError, match="inside a node"):
        interrupt("q")


@pytest.mark.parametrize("raised", [GraphInterrupt("q"), None])
def test_an_edge_cannot_ask(saver, raised):
    def edge(state):
        if raised:
            raise raised
        return interrupt("q")

    graph = StateGraph({}).add_node("a", lambda s: None).add_edge(START, "a").add_conditional_edges("a", edge)
    with pytest.raises(NodeExecutionError, match="edge of 'a'"):
        graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)


def test_a_question_that_contains_itself_is_an_error(saver):
    loop = []
    loop.append(loop)
    compiled = asking(loop).compile(checkpoint_saver=saver)
    with pytest.raises(NodeExecutionError, match="contains itself"):
        run(compiled, {})


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


def test_a_question_after_the_node_updated_its_own_thread_is_found(saver):
    done = []

    def ask(state):
        if not done:
            done.append(compiled.update_state(CONFIG, {"log": "from inside"}))
        return {"log": interrupt("q")}

    compiled = make_chain(LOG, ask=ask).compile(checkpoint_saver=saver)
    run(compiled, {})
    assert pending_payloads(saver) == ["q"]
    assert run(compiled, GraphResume("yes")).is_end


def test_a_stop_pickles_with_its_payload():
    raised = GraphInterrupt({"q": 1})
    assert pickle.loads(pickle.dumps(raised)).payload == {"q": 1}


# --- InterruptableAction ----------------------------------------------------------------------------------------------


class Gate(InterruptableAction):
    """Stops until the state says `go`."""

    def __init__(self, result=None):
        self.asked = 0
        self.runs = 0
        self.result = {"reason": "no go yet"} if result is None else result

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
    assert stop.node_id == "gate"
    assert stop.when == "action"
    assert stop.reason() == "no go yet"
    assert stop.metadata == {"reason": "no go yet"}
    again = run(compiled)
    assert again.id == stop.id
    assert (gate.asked, gate.runs) == (2, 0)
    assert len(saver.interrupts("t")) == 1
    end = run(compiled, GraphResume({"go": True}))
    assert end.is_end
    assert (gate.asked, gate.runs) == (3, 1)
    assert end.state["log"] == ["gate"]
    assert len(saver.list(CONFIG)) == 2


def test_an_action_may_return_whole_metadata(saver):
    metadata = InterruptionMetadata.builder("gate", None).reason("because").addMetadata("k", 1).build()
    stop = run(gated(Gate(metadata), checkpoint_saver=saver), {})
    assert (stop.payload, stop.metadata, stop.node_id) == ("because", {"k": 1}, "gate")


@pytest.mark.parametrize("result", [True, "stop", 3])
def test_an_action_that_returns_something_else_is_an_error(saver, result):
    with pytest.raises(NodeExecutionError, match="gate"):
        run(gated(Gate(result), checkpoint_saver=saver), {})


def test_an_action_without_a_result_is_an_error(saver):
    class Broken(Gate):
        def interrupt(self, node_id, state, config):
            raise OSError("no line")

    gate = Broken()
    with pytest.raises(NodeExecutionError, match="no line"):
        run(gated(gate, checkpoint_saver=saver), {})
    assert gate.runs == 0


def test_an_asynchronous_question_needs_an_asynchronous_run(saver):
    class Later(Gate):
        async def interrupt(self, node_id, state, config):
            return None

    with pytest.raises(GraphRunnerError, match="astream"):
        run(gated(Later(), checkpoint_saver=saver), {})
    assert saver.get(CONFIG) is None


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


def test_a_swallowed_interrupt_in_a_branch_a_map_and_a_generator_and_asynchronously():
    def item(value):
        with suppress(BaseException):
            interrupt(value)

    def chunks(state):
        yield "chunk"
        with suppress(BaseException):
            interrupt("?")

    async def later(state):
        item(state)

    for how, add in {
        "map": lambda graph: graph.add_map_node("ask", item, lambda state: [1, 2]),
        "generator": lambda graph: graph.add_node("ask", chunks),
        "branch": lambda graph: (
            graph.add_node("ask", item).add_node("b", lambda s: None).add_edge(START, "b").add_edge("b", END)
        ),
        "async": lambda graph: graph.add_node("ask", later),
    }.items():
        graph = add(StateGraph(LOG)).add_edge(START, "ask").add_edge("ask", END)
        with pytest.raises(NodeExecutionError, match="'ask' caught the GraphInterrupt"):
            asyncio.run(graph.compile().ainvoke({})) if how == "async" else graph.compile().invoke({})


def test_an_error_raised_out_of_an_interrupt_names_both():
    def node(state):
        try:
            interrupt("ok?")
        except BaseException as error:
            raise ValueError("wrapped") from error

    graph = make_chain(LOG, ask=node)
    with pytest.raises(NodeExecutionError, match="ValueError: wrapped; it was raised while interrupt"):
        graph.compile().invoke({})


def test_an_interrupt_that_is_caught_and_raised_again_is_none(saver):
    cleaned = []

    def node(state):
        try:
            return {"log": interrupt("ok?")}
        except BaseException:
            cleaned.append(1)
            raise

    app = make_chain(LOG, ask=node).compile(checkpoint_saver=saver)
    assert run(app, {}).when == "inside"
    assert run(app, GraphResume("yes")).state["log"] == ["yes"]
    assert cleaned == [1]


def test_answered_questions_may_stand_in_a_bare_except(saver):
    def node(state):
        first = interrupt("first?")
        try:
            raise ValueError
        except:  # noqa: E722
            return {"log": first}

    app = make_chain(LOG, ask=node).compile(checkpoint_saver=saver)
    assert run(app, {}).payload == "first?"
    assert run(app, GraphResume("a")).state["log"] == ["a"]
