"""What the configurations of these tests name: functions, tools and state types of an application."""

from typing import TypedDict

from graphkit import RetryPolicy
from graphkit.agents import Tool, tool
from graphkit.agents.testing import ScriptedModel


class OrderState(TypedDict):
    order: str
    city: str


class Shop:
    @staticmethod
    def ship(state):
        return {"city": "Bern"}


def echo(messages):
    """Answer with the last message."""
    return f"You said: {messages[-1]['content']}"


def find_order(number: int) -> str:
    """Find an order by its number."""
    return f"order {number}"


@tool(requires_approval=True, retry=RetryPolicy(max_attempts=2), timeout=5)
def cancel_order(number: int) -> str:
    """Cancel an order."""
    return f"cancelled {number}"


def find_any(**filters):
    return str(filters)


search = Tool(
    name="search",
    description="Find orders by a text.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}},
    function=find_any,
)


def take_order(state):
    return {"order": "lamp"}


def make_id():
    return "order-17"


not_callable = "text"
scripted = ScriptedModel([])


def many(*numbers: int) -> str:
    """Find many orders."""
    return str(numbers)
