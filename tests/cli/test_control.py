"""interrupts, answer, update, fork, rollback: what is stored, and what a run makes of it."""

from unittest.mock import Mock

import pytest

from graphkit import RunnableConfig
from graphkit.cli.resolve import load_app
from tests.support.terminal import NOW, STOP, assert_refused, checkpoint, damage, graphkit, minutes_ago, read_json

AT = RunnableConfig("order-17")


def resume(store):
    assert graphkit("resume", store, "order-17", "--app", "shop:app").code == 0


def state_of(store):
    return load_app("shop:app", str(store)).get_state(AT)


def test_interrupts(store):
    assert graphkit("interrupts", store).out == (
        "THREAD    NODE     WHEN    INTERRUPT  SINCE                 PAYLOAD\n"
        "order-17  approve  inside  q-1        2026-11-20T11:02:00Z  Ship lamp?\n"
    )
    (row,) = read_json("interrupts", store, "order-17")
    assert row == {
        "thread": "order-17", "ns": "", "checkpoint": "00000000-0000-7000-8000-000000000002", "id": "q-1",
        "node": "approve", "when": "inside", "payload": {"question": "Ship lamp?"}, "since": "2026-11-20T11:02:00+00:00",
        "deadline": None,
    }  # fmt: skip
    assert graphkit("interrupts", store, "order-18").err == "no pending interrupts\n"


def test_interrupts_among_damage(store):
    damage(store, "order-18")
    done = graphkit("interrupts", store, "--json")
    assert [row["thread"] for row in done.json] == ["order-17"]
    assert "is damaged" in done.err
    assert_refused(graphkit("interrupts", store, "order-18"), 12, "is damaged")


def test_an_answer_from_the_input_and_as_json(waiting):
    done = graphkit("answer", waiting, "order-17", "--value", "-", "--json", stdin='{"ok": true}')
    assert (done.json["answer"], done.json["node"]) == ({"ok": True}, "approve")
    assert read_json("interrupts", waiting) == []
    assert list(state_of(waiting).state["log"]) == ["reserved lamp"]  # nothing has run
    resume(waiting)
    assert "approval: {'ok': True}" in state_of(waiting).state["log"]


def test_one_of_several_questions(saver, store):
    for number, question in ((2, "Wrap?"), (10, "Send?")):
        asked = {**STOP, "payload": question, "created_at": minutes_ago(57)}
        saver.put_writes("order-17", {f"interrupt:q-{number}": asked})
    answer = ["answer", store, "order-17", "--value", "1"]
    all_three = "q-1 (inside approve: Ship lamp?), q-2 (inside approve: Wrap?), q-10 (inside approve: Send?)"
    assert_refused(graphkit(*answer), 2, all_three)
    assert graphkit(*answer, "--interrupt", "q-3").code == 11
    assert graphkit(*answer, "--interrupt", "-2").code == 0
    assert saver.get_writes("order-17")["answer:q-2"] == 1
    # A whole id is no beginning of another one.
    assert graphkit(*answer, "--interrupt", "q-1").code == 0
    (pending,) = read_json("interrupts", store)
    assert pending["id"] == "q-10"


def test_an_update_without_the_graph_is_merged_by_the_next_resume(waiting):
    done = graphkit("update", waiting, "order-17", "--set", "city=Bern", "--set", 'log=["by hand"]')
    assert done.out == "stored for order-17: the next resume merges city, log\n"
    graphkit("answer", waiting, "order-17", "--value", "1")
    resume(waiting)
    assert list(state_of(waiting).state["log"]) == ["reserved lamp", "by hand", "approval: 1", "shipped to Bern"]


def test_an_update_with_the_graph(waiting):
    done = graphkit("update", waiting, "order-17", "--app", "shop:app", "--set", "city=Bern", "--as-node", "approve")
    assert done.out == "updated order-17: it continues with ship\n"
    resume(waiting)
    assert list(state_of(waiting).state["log"]) == ["reserved lamp", "shipped to Bern"]


def test_where_a_thread_goes_on(waiting):
    goto = ["update", waiting, "order-17", "--app", "shop:app", "--goto"]
    done = graphkit(*goto, "ship", "--json")
    assert (done.json["next"], done.json["values"]) == ("ship", {})
    *_, oldest = read_json("history", waiting, "order-17")
    assert graphkit(*goto, "reserve", "-c", oldest["id"]).code == 0
    assert state_of(waiting).next == "reserve"
    assert read_json("history", waiting, "order-17")[0]["parent"] == oldest["id"]


def test_an_update_that_makes_no_sense_changes_nothing(waiting):
    for options, code, message in (
        ([], 2, "nothing to change"),
        (["--goto", "ship"], 2, "require the graph"),
        (["--set", "city=Bern", "--as-node", "approve"], 2, "require the graph"),
        (["--set", "city=Bern", "--checkpoint", "0001"], 2, "require the graph"),
        (["--set", "city"], 2, "--set must be key=value"),
        (["--goto", "nowhere", "--app", "shop:app"], 4, "goto='nowhere' is not a node"),
        (["--goto", "ship", "--as-node", "approve", "--app", "shop:app"], 4, "not both"),
    ):
        before = read_json("history", waiting, "order-17")
        done = graphkit("update", waiting, "order-17", *options)
        assert_refused(done, code, message)
        assert read_json("history", waiting, "order-17") == before


def assert_begins_now(head, rest, before):
    """Check that a history goes on from the checkpoints of another, with a creation time of its own."""
    assert (head["created"], head["seconds"], head["source"]) == (NOW.isoformat(), None, "fork")
    assert rest == [{**row, "status": None} for row in before]  # the latest has the status, and no other


def test_a_fork_begins_with_the_path_to_a_checkpoint(waiting):
    reserved, *before = read_json("history", waiting, "order-17")
    graphkit("resume", waiting, "order-17", "--app", "shop:app", "--value", '"yes"')
    done = graphkit("fork", waiting, "order-17", "again", "--checkpoint", reserved["id"], "--app", "shop:app")
    assert done.out == "again begins with 2 checkpoints of order-17 and continues with approve\n"
    head, *rest = read_json("history", waiting, "again")
    assert_begins_now(head, rest, before)


def test_a_rollback_removes_nothing(waiting):
    graphkit("resume", waiting, "order-17", "--app", "shop:app", "--value", '"yes"')
    before = read_json("history", waiting, "order-17")
    (reserved,) = [row["id"] for row in before if row["node"] == "reserve"]
    done = graphkit("rollback", waiting, "order-17", reserved, "--app", "shop:app")
    place = "order-17 is back at the checkpoint after reserve and continues with approve"
    assert done.out == f"{place}; nothing was removed\n"

    head, *rest = read_json("history", waiting, "order-17")
    assert_begins_now(head, rest, before)

    assert (head["parent"], head["status"]) == (reserved, "interrupted")
    assert read_json("diff", waiting, "order-17")["nodes"] == [], "the copy repeats the node of its origin"


NESTED = """
from graphkit import interrupt
from tests.support.graphs import make_chain
inner = make_chain({}, ask=lambda state: {"answer": interrupt("Really?")}).compile()
app = make_chain({}, sub=inner, last=lambda state: {"done": state["answer"]}).compile()
"""


def test_a_question_inside_an_embedded_graph(runs, write_module):
    write_module("nested", NESTED)
    graphkit("run", runs, "--app", "nested:app", "--thread", "t")
    (row,) = read_json("interrupts", runs)
    assert (row["ns"], row["node"], row["payload"]) == ("sub", "ask", "Really?")
    (listed,) = read_json("threads", runs)
    assert listed["waiting"] == "Really?"
    *_, last = graphkit("interrupts", runs).lines
    assert last.endswith("  sub  Really?")
    for options in ([], ["--ns", "sub"]):
        shown = graphkit("show", runs, "t", *options)
        assert "waiting for  inside ask of sub: Really?\n" in shown.out
    update = ["update", runs, "t", "--ns", "sub", "--set", "answer=no"]
    graphkit(*update)
    shown = read_json("show", runs, "t", "--ns", "sub")
    assert list(shown["recorded"].values()) == [{"answer": "no"}]
    graphkit(*update, "--app", "nested:app")

    graphkit("answer", runs, "t", "--value", '"yes"')
    done = graphkit("resume", runs, "t", "--app", "nested:app")

    assert done.lines[-1] == "t finished after 3 steps"
    assert read_json("show", runs, "t", "--key", "done") == "yes"
    assert read_json("show", runs, "t", "--ns", "sub", "--key", "answer") == "yes"
    history = read_json("history", runs, "t", "--ns", "sub")
    assert [row["source"] for row in history] == ["loop", "update", "input"]
    assert graphkit("history", runs, "t", "--ns", "nothing").err == "thread 't' has no matching checkpoints\n"


def ask(store, *typed):
    return graphkit("answer", store, terminal=True, width=300, stdin="".join(f"{line}\n" for line in typed))


@pytest.fixture
def queue(store, saver):
    """Two more threads that wait: one asks, later than order-17, and one has stopped before a node."""
    declared = {"node_id": "b", "when": "before", "payload": None, "metadata": {}, "created_at": minutes_ago(8)}
    asked = {**STOP, "payload": {"amount": [1, 2]}, "created_at": minutes_ago(9)}
    for number, thread, stop in ((2, "second", asked), (3, "third", declared)):
        here = saver.put(thread, checkpoint(30 + number, "a", "b", {}))
        saver.put_writes(here, {f"interrupt:q-{number}": stop})
    return store


def test_a_terminal_asks_for_one_answer_after_another(queue, saver):
    done = ask(queue, "yes", "", "no", "{}")
    assert done.code == 0
    assert done.err.count("answer (Enter skips, q quits): ") == 4
    assert "the run stopped before b" in done.err  # `no` is no object to merge
    assert 'order-17: answered "Ship lamp?" with yes' in done.out
    assert "question: Ship lamp?" in done.out
    assert "amount:\n  [0]: 1\n  [1]: 2\n" in done.out
    assert done.lines[-2:] == ["answered 2 of 3 interrupts", f"next: graphkit resume {queue} third --app MODULE:OBJECT"]
    assert [stop.id for stop in saver.interrupts()] == ["q-2"]

    assert ask(queue, "42").lines[-2] == "answered 1 of 1 interrupt"
    assert ask(queue).out == "no pending interrupts\n"


def test_q_the_end_of_the_input_and_ctrl_c_end_the_questions(queue):
    for typed in (["q"], []):
        done = ask(queue, *typed)
        assert (done.code, done.lines[-1]) == (0, "answered 0 of 3 interrupts")
    typed = Mock(side_effect=["yes\n", KeyboardInterrupt])
    done = graphkit("answer", queue, terminal=True, width=300, stdin=typed)
    assert (done.code, done.lines[-2]) == (0, "answered 1 of 3 interrupts")


def test_questions_that_were_answered_elsewhere_are_passed_over(queue):
    def type_line():
        if graphkit("answer", queue, "order-17", "--text", "first").code:
            raise KeyboardInterrupt
        return "second\n"

    done = graphkit("answer", queue, terminal=True, stdin=type_line)
    assert "graphkit: thread 'order-17'" in done.err
    assert done.lines[-1] == "answered 0 of 3 interrupts"


def test_one_thread_or_one_interrupt_is_asked_for(queue):
    assert "waiting for  before b\n" in graphkit("show", queue, "third").out  # a declared stop asks nothing
    assert "1 of 1" in graphkit("answer", queue, "second", terminal=True, stdin="q\n").out
    assert "second" in graphkit("answer", queue, "--interrupt", "q-2", terminal=True, stdin="q\n").lines[1]


def test_without_a_terminal_an_answer_is_an_option(waiting):
    for options, message in (
        ([], "'--value' or '--text'"),
        (["--json"], "'--value' or '--text'"),
        (["--value", "1", "--text", "a"], "not both"),
        (["--value", "yes"], "--value is not JSON: text needs quotes"),
    ):
        done = graphkit("answer", waiting, "order-17", *options, terminal="--json" in options)
        assert_refused(done, 2, *message.split(": "))
    assert len(read_json("interrupts", waiting)) == 1
    assert graphkit("answer", "order-17", "--text", "yes").code == 2
    done = graphkit("answer", "order-17", "--text", "1", "--json", GRAPHKIT_DIR=str(waiting))
    assert done.json["answer"] == "1", "a text, not a number"
