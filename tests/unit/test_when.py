"""When to store a checkpoint: presets, each alone and put together."""

import copy
import pickle

import pytest

from graphkit import REMOVE
from graphkit.errors import GraphStateError
from graphkit.when import Step, after, any_of, before, changed_more_than, slower_than
from savers import MemorySaver
from tests.support.graphs import CONFIG, COUNTED, LOG, log_node, make_chain, make_graph, stored


def step(following="next", seconds=0.0, changed=(), **branches):
    return Step(following, seconds, changed, **branches)


def is_hot(node_id, state):
    return state["heat"] > 9


def is_last(node_id, state, step):
    return step.next == "__END__"


@pytest.mark.requirement("G37")
def test_after_the_nodes_that_are_named():
    when = after("a", "c")
    assert [when(node_id, {}, step("a")) for node_id in "abc"] == [True, False, True]


@pytest.mark.requirement("H30", "H51")
def test_before_the_nodes_that_are_risky():  # what is stored at a node's start
    when = before("b", "c")
    assert [when("x", {}, step(following)) for following in ("a", "b", "c", None)] == [False, True, True, False]
    assert not when("b", {}, step("a"))


@pytest.mark.requirement("H51")
def test_a_fork_stands_for_the_nodes_in_its_branches():
    fork = "__PARALLEL__(a)"
    assert after("b")(fork, {}, step(branches={"b", "c"}))
    assert not after("b")(fork, {}, step(branches={"c"}, next_branches={"b"}))
    assert before("b")("a", {}, step(fork, next_branches={"b", "c"}))
    assert not before("b")("a", {}, step(fork, branches={"b"}, next_branches={"c"}))
    assert after(fork)(fork, {}, step())
    assert before(fork)("a", {}, step(fork))


@pytest.mark.requirement("H51")
def test_after_slow_nodes():  # more than 30 seconds
    assert [slower_than()("a", {}, step(seconds=seconds)) for seconds in (0, 30, 30.1)] == [False, False, True]
    assert [slower_than(0.5)("a", {}, step(seconds=seconds)) for seconds in (0.5, 0.6)] == [False, True]
    assert slower_than(0)("a", {}, step(seconds=0.001))


@pytest.mark.requirement("H51")
def test_after_many_changes():  # more than 10 keys
    ten = tuple("abcdefghij")
    assert [changed_more_than()("a", {}, step(changed=keys)) for keys in ((), ten, (*ten, "k"))] == [False, False, True]
    assert [changed_more_than(0)("a", {}, step(changed=keys)) for keys in ((), ("a",))] == [False, True]


@pytest.mark.requirement("G37")
def test_presets_and_predicates_put_together_are_asked_in_order_and_no_further_than_needed():
    when = any_of(any_of(is_hot, slower_than()), is_last)
    assert [when("a", {"heat": heat}, step(seconds=seconds)) for heat, seconds in ((0, 0), (0, 60))] == [False, True]
    assert when("a", {"heat": 0}, step("__END__"))
    assert any_of(is_hot, lambda *_: 1 / 0)("a", {"heat": 10}, step())


def test_presets_pickle_and_compare():
    def make_preset(keys):
        return any_of(is_hot, any_of(after("a", "b"), is_last), before("a"), slower_than(), changed_more_than(keys))

    preset = make_preset(3)
    again = pickle.loads(pickle.dumps(preset))
    assert again == preset == copy.deepcopy(preset)
    assert hash(again) == hash(preset)
    assert preset != make_preset(4)
    assert after("a") != before("a")


def test_a_preset_shows_what_it_is():
    assert repr(any_of(after("a", "b"), slower_than(5))) == "any_of(after('a', 'b'), slower_than(5))"


@pytest.mark.parametrize(
    ("predicate", "takes_step"),
    [
        (lambda node_id, state: False, False),
        (lambda node_id, state, anything: isinstance(anything, Step), True),
        (lambda node_id, state, step=None: step is not None, True),
        (lambda node_id, state, seen=(): seen != (), False),  # a value of its own, bound by the usual trick
        (lambda node_id, state, *, seen=(): seen != (), False),
        (lambda node_id, *arguments: len(arguments) == 2, True),
        (after("a"), True),
    ],
)
def test_which_predicates_take_the_step(predicate, takes_step):
    saver = MemorySaver()
    make_chain(a=log_node("a"), b=log_node("b")).compile(checkpoint_saver=saver, checkpoint_when=predicate).invoke(
        {}, CONFIG
    )
    assert ((("a", "b") in stored(saver)), len(stored(saver))) == (takes_step, 3 if takes_step else 2)


@pytest.mark.requirement("H51")
def test_a_run_tells_a_predicate_which_nodes_and_changes_a_fork_has():
    steps = []
    graph = make_graph(LOG, "START>a a>b,c b>x x>d c>d d>END", c=log_node("c", n=1))
    graph.compile(
        checkpoint_saver=MemorySaver(),
        checkpoint_when=lambda node_id, state, step: steps.append((node_id, [*state["log"]], step)),
    ).invoke({}, CONFIG)

    fork = "__PARALLEL__(a)"
    assert [(node_id, log, step.next) for node_id, log, step in steps] == [
        ("a", ["a"], fork),
        (fork, ["a", "b", "x", "c"], "d"),
    ]
    assert [{*step.branches} for _, _, step in steps] == [set(), {"b", "x", "c"}]
    assert [{*step.next_branches} for _, _, step in steps] == [{"b", "x", "c"}, set()]
    assert [{*step.changed} for _, _, step in steps] == [{"log"}, {"log", "n"}]


@pytest.mark.requirement("H51")
def test_a_key_counts_as_changed_in_each_step_that_changes_it():
    def pay(state, config):
        config.once("pay", lambda: None)  # stores where the run is, in the middle of the step
        return {"log": "pay"}

    changed = []
    twice = {"a": log_node("a", n=1), "b": log_node("b", n=1)}
    graph = make_chain(
        COUNTED, **twice, pay=pay, drop=lambda state: {"n": REMOVE}, none=lambda state: None, last=log_node("last")
    )
    graph.add_before_call_node_hook("pay", lambda *_: {"n": 1})
    graph.compile(
        checkpoint_saver=MemorySaver(),
        checkpoint_when=lambda node_id, state, step: changed.append((node_id, {*step.changed})),
    ).invoke({}, CONFIG)
    assert changed == [
        ("a", {"log", "n"}),
        ("b", {"log", "n"}),
        ("pay", {"log", "n"}),
        ("drop", {"n"}),
        ("none", set()),
    ]


def test_the_nodes_that_presets_name():
    when = any_of(after("x", "y"), any_of(is_hot, before("z")), changed_more_than())
    with pytest.raises(GraphStateError) as refused:
        make_chain(a=log_node("a")).compile(checkpoint_when=when)
    assert [name for name in "axyz" if f"'{name}'" in str(refused.value)] == ["x", "y", "z"]
    make_chain(a=log_node("a")).compile(checkpoint_when=any_of(slower_than(), is_hot))


@pytest.mark.parametrize(
    ("make", "error", "reason"),
    [
        (before, ValueError, r"before\(\) names no node"),
        (lambda: after("a", None), TypeError, "node ids, not None"),
        (lambda: slower_than(-1), ValueError, "seconds must be 0 or more, not -1"),
        (lambda: slower_than(float("nan")), ValueError, "seconds"),
        (lambda: changed_more_than(-1), ValueError, "keys must be 0 or more"),
        (any_of, ValueError, r"any_of\(\) has no predicate"),
        (lambda: any_of(after("a"), "b"), TypeError, "not a str"),
    ],
)
def test_what_is_refused(make, error, reason):
    with pytest.raises(error, match=reason):
        make()
