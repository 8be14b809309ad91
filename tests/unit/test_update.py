"""update_state: what it appends, what stays, what is refused."""

from datetime import UTC, datetime

import pytest

from graphkit import END, START, Command, GraphResume, RunnableConfig, StateGraph, interrupt
from graphkit.errors import CheckpointNotFoundError, GraphRunnerError, ThreadBusyError
from graphkit.operations import cancel, rollback, update
from graphkit.worker import Worker
from savers import MemorySaver
from tests.support.graphs import (
    CONFIG,
    COUNTED,
    LOG,
    FlakyNode,
    asking,
    at_checkpoint,
    connect,
    fail_once,
    log_node,
    make_chain,
    make_graph,
    nodes_of,
    pending_ids,
)
from tests.support.workers import status


def graph():
    built = make_graph(LOG, "START>a b>c c>END")
    return built.add_conditional_edges("a", lambda s: Command("c" if s.value("skip") else "b", {"log": "edge"}))


@pytest.fixture
def compiled(saver):
    return graph().compile(checkpoint_saver=saver, interrupt_before=["b"])


@pytest.mark.requirement("L13")
def test_it_appends_a_child_and_keeps_node_next_and_what_waits(compiled, saver):
    stop = compiled.invoke_final({}, CONFIG)
    before = list(saver.list(CONFIG))
    config = compiled.update_state(CONFIG, {"log": "u"})
    latest, *rest = saver.list(CONFIG)

    assert rest == before
    assert (config.checkpoint_id, config.next_node) == (latest.id, "b")
    assert (latest.node_id, latest.next_node_id, latest.parent_id) == ("a", "b", before[0].id)
    assert latest.state["log"] == ["a", "edge", "u"]
    assert latest.metadata["source"] == "update"
    assert pending_ids(saver) == [stop.id]
    assert compiled.invoke(GraphResume({"log": "answer"}), config)["log"] == ["a", "edge", "u", "answer", "b", "c"]


@pytest.mark.requirement("L13", "P33", "behaviour 11")
def test_as_node_takes_its_edge_on_the_new_state_and_does_not_run(compiled, saver):
    compiled.invoke({}, CONFIG)
    config = compiled.update_state(CONFIG, {"log": "u", "skip": True}, "a")
    latest = saver.get(CONFIG)

    assert (latest.node_id, latest.next_node_id, config.next_node) == ("a", "c", "c")
    assert latest.state["log"] == ["a", "edge", "u", "edge"]
    assert saver.interrupts("t") == []
    assert saver.get_writes(CONFIG) == {}
    assert nodes_of(compiled.stream(None, CONFIG)) == ["c", END]

    compiled.update_state(CONFIG, {}, START)

    assert (saver.get(CONFIG).node_id, saver.get(CONFIG).next_node_id) == (START, "a")


@pytest.mark.requirement("L13")
@pytest.mark.parametrize("target", ["a", "b", "c", END])
def test_goto_names_the_next_node_which_will_run(compiled, saver, target):
    compiled.invoke({}, CONFIG)
    compiled.update_state(CONFIG, {"log": "u"}, goto=target)
    latest = saver.get(CONFIG)
    assert (latest.node_id, latest.next_node_id) == ("a", target)
    assert saver.interrupts("t") == []
    assert next(compiled.stream(None, CONFIG)).node == target

    with pytest.raises(GraphRunnerError, match="nothing waits"):
        compiled.invoke(GraphResume(1), config=at_checkpoint(latest))


@pytest.mark.parametrize(
    ("as_node", "goto"),
    [("a", "b"), ("nope", None), ("", None), (END, None), (None, "nope"), (None, START), (None, "")],
)
def test_wrong_places_are_refused(compiled, saver, as_node, goto):
    compiled.invoke({}, CONFIG)
    before = list(saver.list(CONFIG))
    with pytest.raises(GraphRunnerError):
        compiled.update_state(CONFIG, {"log": "u"}, as_node, goto=goto)
    assert list(saver.list(CONFIG)) == before


@pytest.mark.parametrize("config", [None, CONFIG, RunnableConfig("t", "nope")])
def test_an_unknown_checkpoint(compiled, saver, config):
    with pytest.raises(CheckpointNotFoundError):
        compiled.update_state(config, {"log": "u"})
    compiled.invoke({}, CONFIG)
    with pytest.raises(CheckpointNotFoundError):
        compiled.update_state(RunnableConfig("t", "nope"), {"log": "u"})
    assert len(saver.list(CONFIG)) == 2


def test_metadata_of_the_run_the_caller_and_the_update(compiled, saver):
    compiled.invoke({}, RunnableConfig("t", metadata={"user": "ann"}))
    run_id = saver.get(CONFIG).metadata["run_id"]
    compiled.update_state(RunnableConfig("t", metadata={"editor": "bob", "run_id": "x", "step": 7}), {"log": "u"})
    found = saver.get(CONFIG).metadata
    assert (found["run_id"], found["user"], found["editor"], found["source"]) == (run_id, "ann", "bob", "update")
    assert found["step"] == 0


def die_in(operation, saver, *arguments, **options):
    """Call an operation, and die when it is to take over the pending writes of the parent."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(saver, "put_writes", None)
        with pytest.raises(TypeError):
            operation(*arguments, **options)


@pytest.mark.parametrize("goto", [None, "b"])
def test_a_process_that_dies_in_an_update_loses_no_stop(compiled, saver, goto):
    stop = compiled.invoke_final({}, CONFIG)
    if goto is None:
        die_in(compiled.update_state, saver, CONFIG, {"log": "u"})
    else:  # nothing is left to take over
        compiled.update_state(CONFIG, {"log": "u"}, goto=goto)
    assert saver.get(CONFIG).state["log"] == ["a", "edge", "u"]
    compiled.update_state(CONFIG, {"log": "v"})  # takes it over from where it was left
    if goto is None:
        assert pending_ids(saver) == [stop.id]
        answer = GraphResume({"log": "ok"})
        final = compiled.invoke(answer, CONFIG)
        assert final["log"] == ["a", "edge", "u", "v", "ok", "b", "c"]
    else:
        assert pending_ids(saver) == []


def grant_cancel(saver, compiled):
    """A request comes before the process dies; a worker grants it."""
    if not saver.lists_threads:
        pytest.skip("a worker needs a list of the threads")
    saver.put_writes(CONFIG, {"cancel_request": {"reason": None, "at": datetime.now(UTC)}})
    Worker(saver, compiled).run(once=True)
    assert status(saver) == "cancelled"


@pytest.mark.parametrize(
    "operation",
    [
        lambda saver, *_: update(saver, CONFIG, {"log": []}),
        lambda saver, *_: cancel(saver, CONFIG),
        grant_cancel,
        lambda saver, compiled: die_in(compiled.update_state, saver, CONFIG, {}),
        lambda saver, *_: saver.prune("t", keep_last=1, keep_interrupted=False),
    ],
    ids=["update", "cancel", "worker", "update_state", "prune"],
)
def test_an_operation_after_a_death_in_an_update_loses_nothing(saver, operation):
    effects = []

    def ask(state, config):
        config.once("pay", lambda: effects.append("paid"))
        return {"log": [interrupt("q1"), interrupt("q2")]}

    compiled = make_chain(LOG, ask=ask).compile(checkpoint_saver=saver)
    compiled.invoke({}, CONFIG)
    update(saver, CONFIG, {"log": "early"})
    compiled.invoke(GraphResume("a1"), CONFIG)
    die_in(compiled.update_state, saver, CONFIG, {})

    operation(saver, compiled)

    assert compiled.invoke_final(None, CONFIG).payload == "q2"
    assert compiled.invoke(GraphResume("a2"), CONFIG)["log"] == ["early", "a1", "a2"]
    assert effects == ["paid"]


def test_an_update_frees_no_stop_that_was_passed_but_not_left(saver):
    graph = make_chain(LOG, b=fail_once(log_node("b"), KeyboardInterrupt))
    compiled = graph.compile(checkpoint_saver=saver, interrupt_before=["b"])
    compiled.invoke({}, CONFIG)
    with pytest.raises(KeyboardInterrupt):
        compiled.invoke(GraphResume({"log": "ok"}), CONFIG)

    compiled.update_state(CONFIG, {"log": "u"})
    assert saver.interrupts("t") == []
    assert compiled.invoke_final(None, CONFIG).is_end


@pytest.mark.parametrize("updates", [1, 2])
def test_updates_of_a_graph_whose_subgraph_waits_do_not_begin_it_again(saver, updates):
    p = FlakyNode("p")
    nested = make_chain(LOG, p=p, ask=asking("?")).compile()
    compiled = make_chain(LOG, s=nested).compile(checkpoint_saver=saver)
    compiled.invoke({}, CONFIG)

    for _ in range(updates):
        compiled.update_state(CONFIG, {"log": "u"})

    assert compiled.invoke(GraphResume("yes"), CONFIG)["log"] == ["u"] * updates + ["p", "yes"]
    assert p.runs == ["p"]


def test_inside_a_node_of_the_own_run(saver):
    def node(state):
        compiled.update_state(CONFIG, {"log": "inside"})
        return {"log": "node"}

    compiled = make_chain(LOG, n=node).compile(checkpoint_saver=saver)
    assert compiled.invoke({}, CONFIG)["log"] == ["node"]
    assert [checkpoint.metadata["source"] for checkpoint in saver.list(CONFIG)] == ["loop", "update", "input"]


def test_a_branch_that_updated_its_own_thread_asks_where_readers_look(saver):
    def node(state):
        compiled.update_state(CONFIG, {})
        return {"log": interrupt("?")}

    edges = "START>a a>b,c b>d c>d d>e,f e>END f>END"
    compiled = make_graph(LOG, edges, e=node).compile(checkpoint_saver=saver)
    compiled.invoke({}, CONFIG)
    assert [waiting.payload for waiting in saver.interrupts("t")] == ["?"]


def test_a_running_thread_cannot_be_updated_from_outside():
    compiled = graph().compile(checkpoint_saver=MemorySaver(lock_timeout=0))
    stream = compiled.stream({}, CONFIG)
    next(stream)
    with pytest.raises(ThreadBusyError):
        compiled.update_state(CONFIG, {})
    stream.close()
    compiled.update_state(CONFIG, None)


# --- an earlier checkpoint: its next node is executed again -----------------------------------------------------------


def reading_n(name):
    return lambda state: {"log": f"{name}{state['n']}"}


def fork_of_n():
    return make_graph(COUNTED, "START>a a>b,c b>d c>d d>END", b=reading_n("b"), c=reading_n("c"))


def map_of_n():
    graph = StateGraph(COUNTED).add_node("a", log_node("a"))
    graph.add_map_node("m", lambda item: {"log": f"m{item}"}, lambda state: [state["n"]] * 2)
    return connect(graph, "START>a a>m m>END")


def nested_of_n():
    return make_chain(COUNTED, a=log_node("a"), s=make_chain(COUNTED, p=reading_n("p"), q=reading_n("q")).compile())


def once_of_n():
    def pay(state, config):
        return {"log": config.once("pay", lambda: f"paid{state['n']}")}

    return make_chain(COUNTED, a=log_node("a"), pay=pay)


@pytest.mark.parametrize("earlier", [0, 1, 2])
@pytest.mark.parametrize(
    ("make", "log"),
    [
        (fork_of_n, ["b{n}", "c{n}", "d"]),
        (map_of_n, ["m{n}", "m{n}"]),
        (nested_of_n, ["p{n}", "q{n}"]),
        (once_of_n, ["paid{n}"]),
    ],
)
def test_after_an_earlier_checkpoint_all_of_its_next_node_runs_with_the_new_values(saver, make, log, earlier):
    compiled = make().compile(checkpoint_saver=saver)
    assert compiled.invoke({"n": 1}, CONFIG)["log"] == ["a", *(word.format(n=1) for word in log)]
    config = next(snapshot for snapshot in compiled.get_state_history(CONFIG) if snapshot.node == "a").config
    before = list(saver.list(CONFIG))

    for _ in range(earlier):
        compiled.update_state(config, {})
        config = CONFIG
    compiled.update_state(config, {"n": 1})

    assert list(saver.list(CONFIG))[earlier + 1 :] == before
    assert status(saver) == "stalled"
    assert compiled.invoke(None, CONFIG)["log"] == ["a", *(word.format(n=2) for word in log)]


@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_what_an_earlier_checkpoint_asked_is_asked_again(saver, deaths):
    keys = set()

    def ask(state, config):
        keys.add(config.idempotency_key)
        return {"log": [interrupt(f"q{state['n']}"), interrupt("really?")]}

    compiled = make_chain(COUNTED, a=log_node("a"), ask=ask).compile(checkpoint_saver=saver)
    stop = compiled.invoke_final({}, CONFIG)
    compiled.invoke(GraphResume("yes"), CONFIG)
    compiled.invoke(GraphResume("sure"), CONFIG)
    config = CONFIG.replace(checkpoint_id=stop.waiting.checkpoint_id)

    for _ in range(deaths):
        die_in(compiled.update_state, saver, config, {})
        config = CONFIG
    compiled.update_state(config, {"n": 1})

    assert pending_ids(saver) == [stop.id]
    assert compiled.invoke_final(None, CONFIG).payload == "q1"
    assert compiled.invoke_final(GraphResume("no"), CONFIG).payload == "really?"
    assert compiled.invoke(GraphResume("never"), CONFIG)["log"] == ["a", "no", "never"]
    assert len(keys) == 2


@pytest.mark.parametrize(("updates", "rollbacks"), [(1, 0), (0, 1), (1, 1)])
def test_a_death_while_going_back_to_a_declared_stop_does_not_pass_it(updates, rollbacks):
    saver = MemorySaver()
    compiled = make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver, interrupt_before=["b"])
    stop = compiled.invoke_final({}, CONFIG)
    compiled.invoke(None, CONFIG)
    config = CONFIG.replace(checkpoint_id=stop.waiting.checkpoint_id)

    if updates:
        die_in(compiled.update_state, saver, config, {})
        config = CONFIG.replace(checkpoint_id=saver.get(CONFIG).id)
    if rollbacks:
        die_in(rollback, saver, saver, config)

    assert status(saver) == "stalled"
    Worker(saver, compiled).run(once=True)
    assert pending_ids(saver) == [stop.id]
    assert compiled.invoke(None, CONFIG)["log"] == ["a", "b"]
