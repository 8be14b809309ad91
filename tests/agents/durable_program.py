"""An agent of pydantic-ai that is killed at a call of its store, and the notes that it leaves.

`python -m tests.agents.durable_program DIRECTORY WHEN CALL` starts the run, or goes on with it, to its end, and is
killed before or after this call; 0 kills it never. The last note is the number of calls.
"""

import os
import re
import signal
import sys
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from graphkit import GraphResume, RunnableConfig
from graphkit.pydantic_ai import make_durable
from savers import FileSystemSaver

STEPS = [["c1", "c2", "c3"], ["c4", "approve_c5"], ["c6", "c7"], []]
"""The tool calls of each answer of the model."""
CALLS = {f"m{number}" for number in range(len(STEPS))}.union(*STEPS)


def note(line):
    """Append a line, which outlives the process."""
    with Path(sys.argv[1], "notes").open("a") as notes:
        notes.write(f"{line}\n")


class DeadlySaver(FileSystemSaver):
    """Kills the process at a call; notes what is durable: each recorded result contains `result of <call>`."""

    calls = 0

    def store(self, method, *arguments):
        self.calls += 1
        moment = (sys.argv[2], int(sys.argv[3]))
        if moment == ("before", self.calls):
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments)
        for call in re.findall(r"result of (\w+)", repr(arguments)):
            note(f"recorded {call}")
        if moment == ("after", self.calls):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def put(self, config, checkpoint):
        return self.store(super().put, config, checkpoint)

    def put_writes(self, config, writes):
        self.store(super().put_writes, config, writes)


def answer(messages, info):
    number = sum(isinstance(message, ModelResponse) for message in messages)
    note(f"effect m{number}")
    calls = [
        ToolCallPart("approved" if call.startswith("approve") else "work", {"mark": call}, call)
        for call in STEPS[number]
    ]
    return ModelResponse(parts=[TextPart(f"result of m{number}"), *calls])


def work(mark: str) -> str:
    note(f"effect {mark}")
    return f"result of {mark}"


def main():
    agent = Agent(FunctionModel(answer), output_type=[str, DeferredToolRequests], name="worker")
    agent.tool_plain(work)
    agent.tool_plain(work, name="approved", requires_approval=True)
    with DeadlySaver(Path(sys.argv[1], "runs"), fsync="never") as saver:
        durable = make_durable(agent, saver)
        result = durable.run("go" if saver.get(RunnableConfig("t")) is None else None, "t")
        if result.interrupts:
            result = durable.run(GraphResume(True), "t")
        assert result.output == "result of m3"
        note(saver.calls)


if __name__ == "__main__":
    main()
