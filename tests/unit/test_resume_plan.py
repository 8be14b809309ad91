"""What `plan_resume` decides, given a checkpoint, its pending writes and the resume. It has no effects."""

from datetime import UTC, datetime

import pytest

from graphkit import RESET, Checkpoint, GraphResume
from graphkit._engine.history import RunHistory
from graphkit._engine.resume import plan_resume
from graphkit.errors import GraphRunnerError
from tests.unit.graphs import CONFIG, chain, says


@pytest.fixture
def state():
    compiled = chain(a=says("a"), b=says("b")).compile()
    return RunHistory(compiled.program, CONFIG, None).state


def checkpoint(source="loop"):
    return Checkpoint(
        node_id="a",
        next_node_id="b",
        state={"log": ["a"]},
        metadata={"run_id": "r", "source": source, "step": 7, "mine": 1},
    )


def stop(when, key=""):
    return {"node_id": "b", "when": when, "payload": None, "created_at": datetime.now(UTC), "key": key}


def test_a_plan_changes_nothing(state):
    writes = {"interrupt:i": stop("before"), "failure": {"node_id": "b"}}
    resume = GraphResume({"log": [RESET]}, update={"log": "u"})
    before = (state.data, state.private, dict(writes))
    base = checkpoint()
    plans = [plan_resume(state, base, writes, resume, is_latest=True) for _ in range(2)]
    assert plans[0] == plans[1]
    assert (state.data, state.private, writes) == before


def test_where_nothing_waits_the_run_goes_on_with_its_count(state):
    plan = plan_resume(state, checkpoint(), {}, GraphResume(), is_latest=True)
    assert (plan.next_node_id, plan.step, plan.may_stop, plan.added) == ("b", 7, True, {})
    assert plan.inherited == {"run_id": "r", "mine": 1}
    assert not plan_resume(state, checkpoint("update"), {}, GraphResume(), is_latest=True).may_stop


def test_after_a_stop_the_count_begins_again_and_the_answer_is_an_update(state):
    plan = plan_resume(state, checkpoint(), {"interrupt:i": stop("before")}, GraphResume({"log": "x"}), is_latest=True)
    assert (plan.step, plan.may_stop) == (0, False)
    assert plan.updates == {"answer:i": {"log": "x"}}
    assert plan.added == {"answer:i": {"log": "x"}, "resumed:i": True}


def test_an_answer_to_a_declared_stop_is_a_mapping(state):
    with pytest.raises(GraphRunnerError, match="resume with a mapping"):
        plan_resume(state, checkpoint(), {"interrupt:i": stop("after")}, GraphResume("yes"), is_latest=True)
    plan = plan_resume(state, checkpoint(), {"interrupt:i": stop("inside")}, GraphResume("yes"), is_latest=True)
    assert (plan.added["answer:i"], plan.updates) == ("yes", {})


def test_a_failure_is_cleared_and_noted(state):
    plan = plan_resume(state, checkpoint(), {"failure": {"node_id": "b"}}, GraphResume(), is_latest=True)
    assert (plan.follows_failure, plan.added) == (True, {"failure": None})


def test_at_an_older_checkpoint_its_questions_wait_again_one_after_the_other(state):
    writes = {
        "interrupt:1": stop("inside"),
        "answer:1": "old",
        "interrupt:2": stop("inside"),
        "interrupt:3": stop("inside", key="other"),
        "task:0": {"node": "b"},
    }
    plan = plan_resume(state, checkpoint(), writes, GraphResume(), is_latest=False)
    assert list(plan.recorded) == ["interrupt:1", "interrupt:3"]
    answered = plan_resume(state, checkpoint(), writes, GraphResume({"1": "new"}), is_latest=False)
    assert list(answered.recorded) == ["interrupt:1", "interrupt:2", "interrupt:3"]


def test_what_is_for_a_nested_graph_is_kept_apart(state):
    writes = {"inner:i": "sub"}
    plan = plan_resume(state, checkpoint(), writes, GraphResume("yes"), is_latest=True)
    assert {name: resume.value for name, resume in plan.nested.items()} == {"sub": "yes"}
    assert plan.added == {}
