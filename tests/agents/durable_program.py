"""An agent of pydantic-ai that a test kills, and the notes that it leaves."""

import os
import random
import re
import time
from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from graphkit import GraphResume, RunnableConfig
from graphkit.pydantic_ai import (
    _durability,  # noqa: F401 - in the process that is not killed
    make_durable,
)
from savers import FileSystemSaver

STEPS = [["c1", "c2", "c3"], ["c4", "approve_c5"], ["c6", "c7"], []]
"""The tool calls of each answer of the model."""
MODEL_CALLS = [f"m{number}" for number in range(len(STEPS))]
TOOL_CALLS = ["c1", "c2", "c3", "c4", "approve_c5", "c6", "c7"]
THREAD = RunnableConfig("t")


def note(directory, line):
    """Append a line, which outlives the process."""
    file = os.open(Path(directory) / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.close(file)


class NotingSaver(FileSystemSaver):
    """Notes what is durable: each recorded result contains `result of <call>`."""

    def put_writes(self, config, writes):
        super().put_writes(config, writes)
        for call in re.findall(r"result of (\w+)", repr(dict(writes))):
            note(Path(self.base_directory).parent, f"recorded {call}")


def make_agent(directory):
    def answer(messages, info):
        number = sum(isinstance(message, ModelResponse) for message in messages)
        time.sleep(random.uniform(0, 0.005))
        note(directory, f"effect m{number}")
        calls = [
            ToolCallPart("approved" if call.startswith("approve") else "work", {"mark": call}, call)
            for call in STEPS[number]
        ]
        return ModelResponse(parts=[TextPart(f"result of m{number}"), *calls])

    agent = Agent(FunctionModel(answer), output_type=[str, DeferredToolRequests], name="worker")

    def work(mark: str) -> str:
        time.sleep(random.uniform(0, 0.01))
        note(directory, f"effect {mark}")
        return f"result of {mark}"

    agent.tool_plain(work)
    agent.tool_plain(work, name="approved", requires_approval=True)
    return agent


def go_on(directory):
    """Start the run, or go on with it, to its end."""
    note(directory, "attempt")
    with NotingSaver(Path(directory) / "runs") as saver:
        durable = make_durable(make_agent(directory), saver)
        result = durable.run("go" if saver.get(THREAD) is None else None, "t")
        if result.interrupts:
            result = durable.run(GraphResume(True), "t")
        note(directory, f"output {result.output}")
