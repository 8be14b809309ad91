"""langgraph4j's state, channels and reducers (behaviour 2), re-stated. Deviations are the design's."""

from graphkit import (
    END,
    REMOVE,
    RESET,
    START,
    AgentState,
    Channels,
    MessagesState,
    MessagesStateGraph,
    RemoveByHash,
    RemoveIdentifier,
    ReplaceAllWith,
    StateGraph,
)

CHANNELS = {
    "list": Channels.appender(),
    "duplicates": Channels.appenderWithDuplicate(),
    "sum": Channels.base(lambda a, b: a + b, lambda: 0),
}


def updated(state, partial):
    return AgentState.updateState(state, partial, CHANNELS)


def test_an_empty_update_gives_the_state_itself():  # 2, updateState 1
    state = AgentState({"a": 1})
    assert updated(state, None) is updated(state, {}) is state.data


def test_keys_without_a_channel_pass_through_and_overwrite():  # 2, updateState 2 and 3
    assert updated({"a": 1, "b": 1}, {"b": 2, "c": 3}) == {"a": 1, "b": 2, "c": 3}


def test_none_is_a_value_without_a_channel():  # 2, updateState 3; deviation: Java removes the key
    assert updated({"a": 1}, {"a": None}) == {"a": None}


def test_none_and_reset_bring_a_channels_default_back():  # 2, updateState 4 [1.9]
    assert updated({"sum": 5, "list": [1]}, {"sum": None, "list": RESET}) == {"sum": 0, "list": []}
    assert updated({"sum": 5, "a": 1}, {"sum": REMOVE, "a": REMOVE}) == {}


def test_defaults_of_the_schema_are_the_initial_data():  # 2, initialDataFromSchema
    graph = StateGraph(CHANNELS).addEdge(START, END).compile()
    assert graph.invoke({}) == {"list": [], "duplicates": [], "sum": 0}


def test_the_appender():  # 2, AppenderChannel
    assert updated({"list": ["a"]}, {"list": "b"})["list"] == ["a", "b"]
    assert updated({"list": ["a"]}, {"list": ["b", "c"]})["list"] == ["a", "b", "c"]
    assert updated({"list": []}, {"list": ["A", "A", "b"]})["list"] == ["A", "b"]
    assert updated({"duplicates": ["A"]}, {"duplicates": ["A", "A"]})["duplicates"] == ["A", "A", "A"]
    assert updated({"list": ["a"]}, {"list": None})["list"] == []
    assert updated({"list": ["a"]}, {"list": []})["list"] == ["a"]
    assert updated({"list": ["a"]}, {"list": ReplaceAllWith.of(["z", "z"])})["list"] == ["z", "z"]
    assert updated({"list": ["a"]}, {"list": ReplaceAllWith.of("z")})["list"] == ["z"]


def test_two_texts_of_one_hash_are_two_elements():  # 2 and 19, defect: hashes were compared
    class Clash(str):
        __slots__ = ()

        def __hash__(self):
            return 1

    assert updated({"list": [Clash("a")]}, {"list": [Clash("b")]})["list"] == ["a", "b"]


def test_removals_go_first_and_all_matches_go():  # 2
    class First(RemoveIdentifier):
        def compareTo(self, element, index):
            return index

        compare_to = compareTo

    assert updated({"duplicates": ["a", "b", "a"]}, {"duplicates": RemoveByHash.of("a")})["duplicates"] == ["b"]
    assert updated({"duplicates": ["a", "b"]}, {"duplicates": [RemoveByHash.of("a"), "a"]})["duplicates"] == ["b", "a"]
    assert updated({"duplicates": ["a", "b"]}, {"duplicates": First()})["duplicates"] == ["b"]


def test_messages_state():  # 2
    graph = MessagesStateGraph().addNode("a", lambda s: {"messages": ["b", "c"]}).addEdge(START, "a").addEdge("a", END)
    state = graph.compile().invoke({"messages": "a"})
    assert isinstance(state, MessagesState)
    assert (state.messages(), state.lastMessage(), state.lastMinus(2), state.lastMinus(3), state.lastMinus(-1)) == (
        ["a", "b", "c"], "c", "a", None, None
    )  # fmt: skip
