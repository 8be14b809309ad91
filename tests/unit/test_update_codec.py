"""Updates as plain values: packed, stored, and back, they merge as they would have at once."""

import operator

import pytest
from hypothesis import given, strategies as st

from graphkit import REMOVE, RESET, Channels, RemoveByHash, RemoveIdentifier, ReplaceAllWith, StateGraph
from graphkit._engine.state import pack, unpack
from graphkit.errors import CheckpointSerializationError
from savers import FileSystemSaver
from tests.support.graphs import CONFIG, make_chain

SCHEMA = {
    "log": Channels.appender(),
    "twice": Channels.appender_with_duplicate(),
    "sum": Channels.base(operator.add, lambda: 10),
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)
ITEMS = st.integers(0, 4)
LISTS = st.lists(ITEMS, max_size=4)
APPENDED = (
    st.sampled_from([RESET, REMOVE, None])
    | LISTS
    | ITEMS
    | LISTS.map(ReplaceAllWith)
    | ITEMS.map(RemoveByHash)
    | st.lists(ITEMS | ITEMS.map(RemoveByHash), max_size=4)
)
UPDATES = st.fixed_dictionaries(
    {},
    optional={
        "log": APPENDED,
        "twice": APPENDED,
        "sum": st.integers() | st.sampled_from([RESET, REMOVE]),
        "free": VALUES | st.sampled_from([RESET, REMOVE]),
        "set": VALUES,
        "do": VALUES,
    },
)


def merged(updates):
    schema = make_chain(SCHEMA, n=lambda state: None).compile().topology.schema
    data = schema.initial_state()
    for update in updates:
        data, _ = schema.merge(data, update)
    return dict(data)


@given(st.lists(UPDATES, min_size=1, max_size=3))
def test_a_packed_and_stored_update_merges_as_the_update_does(tmp_path_factory, updates):
    saver = FileSystemSaver(tmp_path_factory.mktemp("store"), fsync="never")
    make_chain(SCHEMA, n=lambda state: None).compile(checkpoint_saver=saver).invoke({}, CONFIG)
    saver.put_writes(CONFIG, {f"task:{n}": pack(update) for n, update in enumerate(updates)})
    stored = FileSystemSaver(saver.base_directory).get_writes(CONFIG)
    assert merged(unpack(stored[f"task:{n}"]) for n in range(len(updates))) == merged(updates)


def test_what_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError):
        pack({"free": loop})


class RemoveEven(RemoveIdentifier):
    def compare_to(self, element, index):
        return element % 2


def test_an_identifier_of_the_applications_own_merges_and_is_refused_by_a_store(tmp_path):
    assert merged([{"log": [1, 2, 3, 4]}, unpack(pack({"log": RemoveEven()}))])["log"] == [1, 3]

    graph = StateGraph(SCHEMA)
    for name in "bc":
        graph.add_node(name, lambda state: {"log": RemoveEven()}).add_edge("__START__", name).add_edge(name, "__END__")

    assert graph.compile().invoke({"log": [1, 2, 3, 4]})["log"] == [1, 3]

    with pytest.raises(CheckpointSerializationError, match="RemoveEven"):
        graph.compile(checkpoint_saver=FileSystemSaver(tmp_path, fsync="never")).invoke(
            {"log": [1, 2]}, {"configurable": {"thread_id": "t"}}
        )
