"""An agent of pydantic-ai that plans a journey, and asks a human before it books.

Shows: `make_durable`; two calls at once; an approval that another process answers; no call is repeated after a kill.
The model follows a few rules and needs no network. Replace it with `openai:gpt-4o-mini`.
Run:   python examples/13_pydantic_ai.py [--runs DIR] [--answer yes|no|REASON]
Prints each tool call as it is executed, and the booking that waits. Run it again with `--answer yes`, or with a reason
to refuse: it prints the output of the agent. Kill it (kill -9), start it again, and look at `calls.log`.
"""

import argparse
import time
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from graphkit import GraphResume, RunnableConfig
from graphkit.pydantic_ai import make_durable
from savers import FileSystemSaver

parser = argparse.ArgumentParser(description="Plan a journey.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--answer")
parser.add_argument("--pause", default=0.0, type=float, help="seconds that a tool takes")
args = parser.parse_args()
(runs := Path(args.runs)).mkdir(parents=True, exist_ok=True)


def follow_rules(messages, info):
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    results = {part.tool_call_id: part.content for part in parts}
    if not results:
        tools = {"find_trains": "trains", "forecast": "weather"}
        return ModelResponse(parts=[ToolCallPart(tool, {"city": "Porto"}, name) for tool, name in tools.items()])
    if "booking" not in results:
        return ModelResponse(parts=[ToolCallPart("book", {"train": "09:40"}, "booking")])
    return ModelResponse(parts=[TextPart(f"Weather: {results['weather']}. {results['booking']}")])


agent = Agent(FunctionModel(follow_rules), output_type=[str, DeferredToolRequests], name="journeys")


def log(call):
    time.sleep(args.pause)
    print(f"{call}\n", end="", flush=True)  # one write, because the calls run in parallel
    with (runs / "calls.log").open("a", encoding="utf-8") as file:
        file.write(f"{call}\n")


@agent.tool_plain
def find_trains(city: str) -> list[str]:
    log(f"find_trains {city}")
    return [f"07:15 to {city}", f"09:40 to {city}"]


@agent.tool_plain
def forecast(city: str) -> str:
    log(f"forecast {city}")
    return "sunny"


@agent.tool_plain(requires_approval=True)
def book(train: str) -> str:
    """Book a seat."""
    log(f"book {train}")
    return f"booked {train}"


with FileSystemSaver(runs / "checkpoints") as saver:
    durable = make_durable(agent, saver)
    is_new = saver.get(RunnableConfig("journey")) is None
    result = durable.run("Book me a train to Porto." if is_new else None, "journey")
    if result.interrupts and args.answer:
        result = durable.run(GraphResume({"approved": args.answer == "yes", "reason": args.answer}), "journey")
    for waiting in result.interrupts:
        print(f"waits for approval: {waiting.payload['tool']} {waiting.payload['arguments']}")
    if not result.interrupts:
        print(result.output)
