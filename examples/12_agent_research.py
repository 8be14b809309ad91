"""A long task of an agent, with progress: it reads one chapter after the other and sums them up.

Shows: steps around a chat; progress from the stored state; a kill costs the call that was running.
The model follows a few rules and needs no network. Replace it with `openai:gpt-4o-mini`.
Run:   python examples/12_agent_research.py [--chapters N] [--runs DIR]
Prints a line per chapter, `read 3 of 12 chapters`, and finally `12 chapters, 78 pages`. Kill it (kill -9) and
start it again: it prints where it continues, and reads no chapter again. `calls.log` has a line per call.
"""

import argparse
import json
import time
from pathlib import Path

from graphkit import StreamingOutput
from graphkit.agents import AgentBuilder, DefaultState, tool
from savers import FileSystemSaver

parser = argparse.ArgumentParser(description="Read a book.")
parser.add_argument("--chapters", default=12, type=int)
parser.add_argument("--runs", default="runs")
parser.add_argument("--pause", default=0.0, type=float, help="seconds that a chapter takes")
args = parser.parse_args()
runs = Path(args.runs)
runs.mkdir(parents=True, exist_ok=True)


class Research(DefaultState):
    chapters: int
    pages: int


@tool
def read_chapter(number: int) -> int:
    """Read a chapter, and return its number of pages."""
    time.sleep(args.pause)
    with (runs / "calls.log").open("a", encoding="utf-8") as file:
        file.write(f"read_chapter {number}\n")
    return number


def results(messages):
    return [int(message["content"]) for message in messages if message["role"] == "tool"]


def follow_rules(messages):
    """Answer as a model would: ask for the next two chapters until all are read."""
    read = len(results(messages))
    if read >= args.chapters:
        return "All chapters are read."
    wanted = range(read + 1, min(read + 2, args.chapters) + 1)
    calls = [{"name": "read_chapter", "arguments": json.dumps({"number": n})} for n in wanted]
    ids = [f"chapter-{n}" for n in wanted]
    tool_calls = [{"id": i, "type": "function", "function": call} for i, call in zip(ids, calls, strict=True)]
    return {"role": "assistant", "tool_calls": tool_calls}


def sum_up(state):
    return {"pages": sum(results(state["messages"]))}


builder = AgentBuilder(Research).with_chat(follow_rules, name="read", tools=[read_chapter])
builder = builder.with_step("sum_up", sum_up).with_checkpointer(FileSystemSaver(runs / "checkpoints"))
agent, thread = builder.build(), f"book of {args.chapters}"

given: str | None = f"Read {args.chapters} chapters."
if history := agent.get_state_history(thread):
    print(f"going on after {len(results(history[0].values['messages']))} chapters", flush=True)
    given = None
for output in agent.stream(given, thread):
    if not isinstance(output, StreamingOutput) and output.node == "read_tools":
        print(f"read {len(results(output.state['messages']))} of {args.chapters} chapters", flush=True)
print(f"{args.chapters} chapters, {agent.get_state(thread).values['pages']} pages")
