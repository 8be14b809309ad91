"""States that an older version of the graph has stored: migrated once, in order, wherever they are read."""

import asyncio

import pytest

from graphkit import GraphResume, RunnableConfig
from graphkit.errors import GraphRunnerError
from savers import MemorySaver
from tests.support.graphs import CONFIG, asking, fail_once, make_chain

INSIDE = RunnableConfig("t", checkpoint_ns="s")


class Migration:
    """Renames a key, and counts its calls."""

    def __init__(self, old, new):
        self.old, self.new = old, new
        self.calls = 0

    def __call__(self, state):
        self.calls += 1
        return {self.new if key == self.old else key: value for key, value in state.items()}


ask = asking("?")


def migrated(saver, graph, given, *migrations):
    """Run a graph with an input before it has migrations; return it with them."""
    graph.compile(checkpoint_saver=saver).invoke(given, CONFIG)
    return graph.compile(checkpoint_saver=saver, migrations=[*migrations])


@pytest.mark.requirement("H40")
def test_a_resume_goes_on_in_the_new_shape(saver):
    graph = make_chain(a=ask, b=lambda state: {"log": state["third"]})
    first = Migration("first", "second")
    second = Migration("second", "third")
    new = migrated(saver, graph, {"first": 1}, first, second)

    final = new.invoke(GraphResume("x"), CONFIG)

    assert final == {"third": 1, "log": ["x", 1]}
    assert new.get_state(CONFIG).metadata["schema_version"] == 2
    assert new.invoke({}, CONFIG)["third"] == 1
    assert (first.calls, second.calls) == (1, 1)


def test_a_state_half_way_is_migrated_the_rest_of_the_way(saver):
    graph = make_chain(a=ask)
    first, second = Migration("first", "second"), Migration("second", "third")
    graph.compile(checkpoint_saver=saver, migrations=[first]).invoke({"second": 1}, CONFIG)
    new = graph.compile(checkpoint_saver=saver, migrations=[first, second])
    assert new.invoke(GraphResume("x"), CONFIG)["third"] == 1
    assert (first.calls, second.calls) == (0, 1)


def test_histories_and_updates_see_the_new_shape_and_the_stored_past_stays(saver):
    new = migrated(saver, make_chain(a=ask), {"old": 1}, Migration("old", "new"))

    assert [snapshot.values for snapshot in new.get_state_history(CONFIG)] == [{"new": 1, "log": []}]
    assert asyncio.run(new.aget_state(CONFIG)).values == {"new": 1, "log": []}

    changed = new.update_state(CONFIG, {"new": 2})

    assert new.get_state(changed).values == {"new": 2, "log": []}

    newest, oldest = saver.list(CONFIG)

    assert (newest.state, newest.metadata["schema_version"]) == ({"new": 2, "log": []}, 1)
    assert (oldest.state, oldest.metadata.get("schema_version")) == ({"old": 1, "log": []}, None)
    assert new.invoke(GraphResume("x"), CONFIG) == {"new": 2, "log": ["x"]}


@pytest.mark.parametrize("given", [None, {}, GraphResume("x")])
def test_a_state_of_a_newer_version_is_refused_before_anything(saver, given):
    runs = []
    graph = make_chain(a=ask, b=lambda state: runs.append(1))
    graph.compile(checkpoint_saver=saver, migrations=[Migration("a", "b")] * 3).invoke({}, CONFIG)
    old = graph.compile(checkpoint_saver=saver, migrations=[Migration("a", "b")])
    before = [(checkpoint.id, dict(saver.get_writes(CONFIG))) for checkpoint in saver.list(CONFIG)]

    with pytest.raises(GraphRunnerError, match=r"schema version 3.*knows 1"):
        old.invoke(given, CONFIG)

    with pytest.raises(GraphRunnerError, match="schema version 3"):
        old.update_state(CONFIG, {"log": "u"})

    with pytest.raises(GraphRunnerError, match="schema version 3"):
        old.get_state(CONFIG).state  # noqa: B018 - decoded when looked at

    assert [(checkpoint.id, dict(saver.get_writes(CONFIG))) for checkpoint in saver.list(CONFIG)] == before
    assert runs == []


def test_a_migration_that_fails_is_an_error_and_changes_nothing(saver):
    graph = make_chain(a=ask)
    graph.compile(checkpoint_saver=saver).invoke({}, CONFIG)

    for broken in (lambda state: 1 / 0, lambda state: None, lambda state: state.update(x=state)):
        new = graph.compile(checkpoint_saver=saver, migrations=[broken])
        with pytest.raises(GraphRunnerError, match="migration of checkpoint"):
            new.invoke(GraphResume("x"), CONFIG)

    assert len(saver.list(CONFIG)) == 1
    assert len(saver.interrupts("t")) == 1


def test_what_a_migration_does_to_its_argument_changes_no_stored_state(saver):
    def in_place(state):
        state["new"] = [*state.pop("old"), 2]
        return state

    new = migrated(saver, make_chain(a=ask), {"old": [1]}, in_place)
    assert new.invoke(GraphResume("x"), CONFIG)["new"] == [1, 2]
    assert dict(saver.list(CONFIG)[-1].state) == {"old": [1], "log": []}


def test_a_subgraph_migrates_its_own(saver):
    def graph(version):
        inner = [Migration("old", "new")] if version else []
        child = make_chain(p=lambda state: {("new" if version else "old"): 1}, q=ask).compile(migrations=inner)
        return make_chain(s=child, z=lambda state: {"log": "z"}).compile(checkpoint_saver=saver)

    graph(0).invoke({"mine": 1}, CONFIG)

    assert graph(1).get_state(INSIDE).values["new"] == 1

    graph(1).update_state(INSIDE, {"more": 2})

    state = graph(1).invoke(GraphResume("x"), CONFIG)

    assert dict(state) == {"mine": 1, "new": 1, "more": 2, "log": ["x", "z"]}
    assert graph(1).get_state(INSIDE).values == {"mine": 1, "new": 1, "more": 2, "log": ["x"]}


def test_a_subgraph_hands_on_what_it_changed_and_nothing_else_that_a_migration_moved(saver):
    def graph(version):
        moves = [Migration("shared", "moved")] if version else []
        child = make_chain(p=lambda state: {"own": 1}, q=ask).compile(migrations=moves)
        return make_chain(s=child).compile(checkpoint_saver=saver, migrations=moves)

    graph(0).invoke({"shared": 1}, CONFIG)
    graph(1).update_state(CONFIG, {"moved": 2})

    final = graph(1).invoke(GraphResume("x"), CONFIG)
    assert dict(final) == {"moved": 2, "own": 1, "log": ["x"]}


def test_an_answer_that_was_recorded_before_is_merged_after():
    options = {"checkpoint_saver": MemorySaver(), "interrupt_before": ["a"]}
    a = fail_once(lambda state: {"log": state.get("new")})
    graph = make_chain(a=a)
    old = graph.compile(**options)
    old.invoke({"old": 1}, CONFIG)
    answer = GraphResume({"log": "answer"})
    with pytest.raises(GraphRunnerError):
        old.invoke(answer, CONFIG)
    new = graph.compile(**options, migrations=[Migration("old", "new")])
    final = new.invoke(None, CONFIG)
    assert final["log"] == ["answer", 1]
