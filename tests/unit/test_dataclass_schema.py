"""A dataclass as the schema of a graph: its defaults, reducers and methods, and its objects as updates."""

import operator
import pickle
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from graphkit import Channels, GraphRunnerError, NodeExecutionError
from savers import FileSystemSaver
from tests.support.graphs import make_chain


@dataclass
class Address:
    city: str


@dataclass
class Order:
    item: str
    amount: int = 1
    address: Address | None = None
    log: Annotated[list[str], operator.add] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    @property
    def label(self):
        return f"{self.amount} x {self.item}"

    def is_for(self, city):
        return self.address is not None and self.address.city == city


CONFIG = {"configurable": {"thread_id": "t"}}


def run(node, given, schema=Order, saver=None):
    return make_chain(schema, node=node).compile(checkpoint_saver=saver).invoke(given, CONFIG)


def test_a_node_reads_fields_properties_and_methods():
    seen = []
    run(lambda state: seen.append((state.item, state.label, state.is_for("Rome"))), Order("tea", 2, Address("Rome")))

    assert seen == [("tea", "2 x tea", True)]


def test_a_channel_without_a_default_gets_that_of_its_field():
    channel = Channels.base(operator.add)

    @dataclass
    class Counts:
        ten: Annotated[int, channel] = 10
        own: Annotated[int, Channels.base(operator.add, lambda: 1)] = 2

    assert run(lambda state: {"ten": 1, "own": 1}, {}, Counts) == {"ten": 11, "own": 2}


def test_fields_that_the_input_lacks_get_their_defaults():
    state = run(lambda state: {}, {"item": "tea"})

    assert state == {"item": "tea", "amount": 1, "address": None, "log": [], "seen": set()}


def test_an_object_of_the_schema_is_an_update_of_all_its_fields():
    state = run(lambda state: Order(state.item, 7, log=["node"]), Order("tea", log=["input"]))

    assert (state.amount, state.log) == (7, ["input", "node"])


def test_a_field_without_a_value_is_an_attribute_error():
    with pytest.raises(NodeExecutionError, match="item"):
        run(lambda state: {"amount": len(state.item)}, {})


def test_a_frozen_dataclass_with_slots():
    @dataclass(frozen=True, slots=True)
    class Frozen:
        value: int = 2

    assert run(lambda state: Frozen(state.value + 1), {}, schema=Frozen).value == 3


@pytest.mark.parametrize("given", [{"itme": "tea"}, {"item": "tea", "label": "x"}])
def test_an_unknown_field_is_refused(given):
    with pytest.raises(GraphRunnerError, match="Order has no key"):
        run(lambda state: {}, given)


def test_an_object_of_another_class_is_not_an_update():
    with pytest.raises(GraphRunnerError, match="Address"):
        run(lambda state: {}, Address("Rome"))
    with pytest.raises(NodeExecutionError, match="Address"):
        run(lambda state: Address("Rome"), {"item": "tea"})


def test_a_state_is_read_only_and_pickles():
    state = run(lambda state: {}, Order("tea", 2))

    with pytest.raises(TypeError, match="read-only"):
        state.amount = 3
    copy = pickle.loads(pickle.dumps(state))
    assert (copy, copy.label) == (state, "2 x tea")


def test_fields_with_types_of_the_application_are_stored(tmp_path):
    with FileSystemSaver(tmp_path) as saver:
        run(lambda state: {"seen": {"a"}}, Order("tea", address=Address("Rome")), saver=saver)

    with FileSystemSaver(tmp_path, types=[Address]) as saver:
        state = saver.get(CONFIG).state
        assert (state["address"], state["seen"]) == (Address("Rome"), {"a"})
