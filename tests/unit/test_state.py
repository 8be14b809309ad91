"""States, and how an update merges: what comes out, and what is said to have changed."""

import copy
import heapq
import json
import pickle
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from graphkit import REMOVE, RESET, AgentState, Channels, MessagesState, RemoveByHash, RemoveIdentifier, ReplaceAllWith
from graphkit._values.state import merge
from graphkit.errors import CheckpointSerializationError
from graphkit.saver_kit import REMOVED, SET, Changes, FrozenDict, FrozenList, freeze
from savers import MemorySaver
from tests.support.graphs import CONFIG, log_node, make_graph

CHANNELS = {
    "log": Channels.appender_with_duplicate(),
    "unique": Channels.appender(),
    "sum": Channels.base(lambda old, new: old + new, lambda: 10),
    "bare": Channels.base(reducer=lambda old, new: new),
    "list": Channels.base(lambda old, new: (old or []) + new),
}


def merged(data, update):
    return dict(merge(freeze(data), update, CHANNELS)[0])


@pytest.mark.requirement("behaviour 2")
@pytest.mark.parametrize(
    ("data", "update", "expected"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": 1}, {"a": REMOVE}, {}),
        ({"a": 1}, {"a": RESET}, {}),
        ({}, {"a": REMOVE, "b": RESET}, {}),
        ({"sum": 1}, {"sum": 2}, {"sum": 3}),
        ({}, {"sum": 2}, {"sum": 12}),
        ({"sum": 1}, {"sum": None}, {"sum": 10}),
        ({"sum": 1}, {"sum": RESET}, {"sum": 10}),
        ({"sum": 1}, {"sum": REMOVE}, {}),
        ({"bare": 1}, {"bare": RESET}, {}),
        ({"log": ["a"]}, {"log": None}, {"log": []}),
    ],
)
def test_merging(data, update, expected):
    assert merged(data, update) == expected


@pytest.mark.parametrize("marker", [RemoveByHash("a"), ReplaceAllWith(["a"])])
@pytest.mark.parametrize("key", ["plain", "bare", "list"])
def test_a_marker_for_lists_is_refused_by_other_keys(key, marker):
    with pytest.raises(ValueError, match=rf"'{key}' cannot .*{type(marker).__name__} is for a key with Channels"):
        merged({key: ["a"]}, {key: marker})


def test_nothing_to_do_gives_the_state_itself():
    data = freeze({"log": ["a"], "x": None, "y": 1})
    for update in (None, {}, {"log": []}, {"x": None}, {"gone": REMOVE}):
        assert merge(data, update, CHANNELS) == (data, {})
        assert merge(data, update, CHANNELS)[0] is data


def test_what_did_not_change_is_shared():
    data = freeze({"big": [[1], [2]], "log": [[1]]})
    new, ops = merge(data, {"log": [[2]], "x": 1}, CHANNELS)
    assert new["big"] is data["big"]
    assert new["log"][0] is data["log"][0]
    assert ops == {"log": 1, "x": SET}


def test_a_list_that_a_node_grew_is_known_to_have_grown():
    data = freeze({"plain": [[0], 1]})
    assert merge(data, {"plain": data["plain"] + [2]}, {})[1] == {"plain": 2}
    assert merge(data, {"plain": data["plain"] + [2] + [3]}, {})[1] == {"plain": 2}
    assert merge(data, {"plain": [*data["plain"], 2]}, {})[1] == {"plain": 2}
    assert merge(data, {"plain": [[0], 1, 2]}, {})[1] == {"plain": SET}
    assert merge(data, {"other": data["plain"] + [2]}, {})[1] == {"other": SET}
    grown, _ = merge(data, {"plain": data["plain"] + [2]}, {})
    assert grown["plain"].base is None  # else it would keep all lists before it


def replay(base, final, ops):
    """What a saver makes of changes: an independent reading of their documentation."""
    data = dict(base)
    for key, op in ops.items():
        if op == REMOVED:
            del data[key]
        elif op == SET:
            data[key] = final[key]
        else:
            data[key] = [*data[key][:op], *final[key][op:]]
            assert op == len(base[key])
    return data


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(st.text("xy", max_size=1), deeper, max_size=2),
    max_leaves=6,
)
UPDATES = st.dictionaries(
    st.sampled_from(["log", "unique", "bare", "plain", "other"]),
    VALUES
    | st.lists(VALUES, max_size=3)
    | st.sampled_from([REMOVE, RESET])
    | st.builds(RemoveByHash, VALUES)
    | st.builds(ReplaceAllWith, st.lists(VALUES, max_size=2)),
    max_size=4,
).filter(
    lambda update: (
        not any(isinstance(update.get(key), (RemoveByHash, ReplaceAllWith)) for key in ("bare", "plain", "other"))
    )
)
GROW = st.just("grow")


@given(VALUES, st.lists(UPDATES | GROW, max_size=8))
def test_changes_replayed_on_the_base_give_the_state(first, updates):
    base, _ = merge(FrozenDict(), {"plain": [first, 1], "log": [first]}, CHANNELS)
    data, changes = base, Changes(base, {})

    for update in updates:
        if update == "grow":
            old = data.get("plain")
            update = {"plain": old + [2] if isinstance(old, FrozenList) else [1]}  # noqa: PLW2901, RUF005
        data, ops = merge(data, update, CHANNELS)
        changes = changes.compose(ops)

    replayed = replay(base, data, changes.ops)

    assert json.dumps(replayed, sort_keys=True) == json.dumps(data, sort_keys=True)

    for key in {*base, *data} - set(changes.ops):
        assert base[key] is data[key]


# --- AgentState -------------------------------------------------------------------------------------------------------


def test_a_state_is_a_read_only_mapping():
    state = AgentState({"a": 1, "none": None})
    assert state["a"] == state.value("a") == 1
    assert (state.get("b", 2), state.value("none", 3), state.value("b")) == (2, 3, None)
    assert (len(state), "b" in state) == (2, False)
    assert state == dict(state) == {"a": 1, "none": None}
    assert state == AgentState(state.data)
    assert state != {"a": 1}
    assert state != 1
    assert repr(state) == "AgentState({'a': 1, 'none': None})"
    assert AgentState() == {}
    with pytest.raises(KeyError):
        state["b"]
    with pytest.raises(TypeError, match="read-only"):
        state["a"] = 2
    with pytest.raises(TypeError, match="read-only"):
        del state["a"]
    with pytest.raises(TypeError):
        hash(state)


@dataclass
class Box:
    n: int


def test_mutable_objects_are_private_copies():
    data = freeze({"box": Box(1), "boxes": [Box(2)], "n": 1})
    one, two = AgentState(data), AgentState(data)
    one["box"].n = one["boxes"][0].n = 9
    assert one["box"].n == 9
    assert two == {"box": Box(1), "boxes": [Box(2)], "n": 1}


def test_states_pickle_and_copy():
    state = MessagesState({"messages": ["a"], "box": Box(1)})
    for twin in (pickle.loads(pickle.dumps(state)), copy.copy(state), copy.deepcopy(state)):
        assert type(twin) is MessagesState
        assert twin == state


def test_update_state_merges_as_a_run_would():
    state = AgentState({"log": ["a"]})
    assert AgentState.update_state(state, {"log": "b", "x": 1}, CHANNELS) == {"log": ["a", "b"], "x": 1}
    assert AgentState.update_state({"log": ["a"]}, None, CHANNELS) == {"log": ["a"]}
    assert AgentState.update_state(state, {}, CHANNELS) is state.data


def test_messages():
    empty, state = MessagesState(), MessagesState({"messages": ["a", "b"]})
    assert state.messages() == ["a", "b"]
    assert (state.last_message(), state.last_minus(1), state.last_minus(0)) == ("b", "a", "b")
    assert (state.last_minus(2), state.last_minus(-1), empty.last_message()) == (None, None, None)
    with pytest.raises(KeyError, match="messages not found"):
        empty.messages()


def test_a_reducer_that_fails_is_named():
    with pytest.raises(ValueError, match="'sum'") as failed:
        merge(freeze({"sum": 1}), {"sum": "x"}, CHANNELS)
    assert isinstance(failed.value.__cause__, TypeError)


def test_a_reducer_that_changes_the_old_value_is_refused():
    def bad(old, new):
        old.append(new)
        return old

    with pytest.raises(ValueError, match="read-only"):
        merge(freeze({"x": [1]}), {"x": 2}, {"x": Channels.base(bad)})


# Messages


def messages_after(*updates):
    data = FrozenDict()
    for update in updates:
        data, _ = merge(data, {"messages": update}, MessagesState.SCHEMA)
    return data["messages"]


@dataclass(frozen=True)
class Message:
    id: object
    text: str


def test_a_message_without_an_id_is_always_appended():
    assert messages_after("ok", "ok") == ["ok", "ok"]
    text, nothing = {"text": "ok"}, {"text": "ok", "id": None}
    assert messages_after(text, [text, nothing]) == [text, text, nothing]
    assert messages_after(Message(None, "ok"), Message(None, "ok")) == [Message(None, "ok")] * 2


@pytest.mark.parametrize("make", [lambda key, text: {"id": key, "text": text}, Message], ids=["mapping", "object"])
@pytest.mark.parametrize("ids", [("a", "b"), (1, 2), ((1,), (2,))])
def test_a_message_replaces_the_earlier_one_with_its_id_where_that_stands(make, ids):
    a, b = ids
    assert messages_after([make(a, "1"), make(b, "2"), "x"], make(a, "3")) == [make(a, "3"), make(b, "2"), "x"]
    assert messages_after([make(a, "1"), make(b, "2"), make(a, "3")]) == [make(a, "3"), make(b, "2")]
    assert messages_after([make(a, "1")], [make(b, "2"), make(a, "3"), make(b, "4")]) == [make(a, "3"), make(b, "4")]


def test_ids_of_different_types_are_different_ids():
    messages = [{"id": 1}, {"id": True}, {"id": "1"}, {"id": 1.0}]
    assert messages_after(*messages) == messages


def test_an_id_that_is_unhashable_or_a_method_does_no_harm():
    class Called:
        def id(self):
            return "never asked"

    one = Called()
    assert messages_after({"id": [1]}, {"id": [1], "n": 2}) == [{"id": [1], "n": 2}]
    assert len(messages_after([one], [one])) == 2


def test_a_list_from_another_channel_knows_nothing_of_ids():
    """What an appender remembers of its list must not be taken for the ids in it."""
    data = FrozenDict()
    for ids in (range(60), [60]):
        data, _ = merge(data, {"log": [{"id": n} for n in ids]}, {"log": Channels.appender()})
    data, _ = merge(data, {"messages": ReplaceAllWith(data["log"])}, MessagesState.SCHEMA)
    data, _ = merge(data, {"messages": [{"id": 5, "n": 1}, {"id": 61}]}, MessagesState.SCHEMA)
    assert [message["id"] for message in data["messages"]] == list(range(62))
    assert data["messages"][5] == {"id": 5, "n": 1}


def test_two_histories_that_grow_from_one_list_do_not_know_each_others_ids():
    data, _ = merge(FrozenDict(), {"messages": [{"id": "a"}]}, MessagesState.SCHEMA)
    one, changes = merge(data, {"messages": {"id": "b"}}, MessagesState.SCHEMA)
    assert changes == {"messages": 1}
    two, _ = merge(data, {"messages": [{"id": "c"}, {"id": "b", "n": 2}]}, MessagesState.SCHEMA)
    assert one["messages"] == [{"id": "a"}, {"id": "b"}]
    assert two["messages"] == [{"id": "a"}, {"id": "c"}, {"id": "b", "n": 2}]


# What gets around the read-only classes


AROUND = {
    "heapq": (["b", "c"], lambda value: heapq.heappush(value, "a")),
    "list.append": ([1], lambda value: list.append(value, 2)),
    "list.pop": ([1], list.pop),
    "dict.__setitem__": ({"a": 1}, lambda value: dict.__setitem__(value, "b", 2)),
    "set.add": ({1}, lambda value: set.add(value, 2)),
}


@pytest.mark.parametrize("way", AROUND)
@pytest.mark.sweep(1, of=("given", "channel"), in_turn=True)
@pytest.mark.parametrize("given", ["the same", "a copy", "another"])
@pytest.mark.parametrize("channel", [None, Channels.base(lambda old, new: new)])
def test_a_container_that_was_changed_in_place_is_found_at_the_next_update_of_its_key(way, given, channel):
    value, change = AROUND[way]
    channels = {} if channel is None else {"x": channel}
    data, _ = merge(FrozenDict(), {"x": value, "y": 1}, channels)
    change(data["x"])

    kind = type(value)
    update = {"the same": data["x"], "a copy": kind(data["x"]), "another": 5}[given]

    with pytest.raises(ValueError, match=f"a {kind.__name__} of the state was changed in place"):
        merge(data, {"x": update}, channels)

    merge(data, {"y": 2}, channels)  # other keys cost nothing


class RemoveEven(RemoveIdentifier):
    def compare_to(self, element, index):
        return element % 2


def test_an_identifier_of_the_applications_own_merges_and_is_refused_by_a_store():
    even = log_node(RemoveEven())
    fork = make_graph({"log": Channels.appender()}, "START>b,c b>END c>END", b=even, c=even)
    assert fork.compile().invoke({"log": [1, 2, 3, 4]})["log"] == [1, 3]
    with pytest.raises(CheckpointSerializationError, match="RemoveEven"):
        fork.compile(checkpoint_saver=MemorySaver()).invoke({"log": [1, 2]}, CONFIG)
