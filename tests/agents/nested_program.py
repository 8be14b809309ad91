"""A program of agents in agents: `python -m tests.agents.nested_program sync|async`. Tests kill it.

The outer agent has a nested agent as its first step, and a tool that asks a third agent. Each line of its input is a
conversation in a child of its own: a directory, and before or after which call of a store to die (0: never). A model or
tool writes its line in work.log as the last thing it does.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

from graphkit import RunnableConfig
from graphkit.agents import AgentBuilder
from savers import FileSystemSaver
from tests.support.agents import AsyncScript, Script, call, calling

THREAD = "t"
REPLIES = [
    calling(call("look_up", "tool one", word="tea"), call("look_up", "tool two", word="rum")),
    "found both",
    calling(call("consult", "tool three", question="price?"), call("look_up", "tool four", word="salt")),
    "done",
]
"""Of the nested agent, which comes first, and of the outer one: both find them by the length of the conversation."""
ADVICE = [calling(call("look_up", "tool five", word="price")), "three euros"]
"""Of the agent that the tool asks."""
CALLS = {
    *(f"model {number}" for number in range(4)),
    *(f"advice {number}" for number in range(2)),
    *(f"tool {number}" for number in ("one", "two", "three", "four", "five")),
}


class Recorder:
    """Writes lines to work.log, and kills the process at a call of a store."""

    def __init__(self, directory, when, left):
        self.log = os.open(directory / "work.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.when = when
        self.left = left
        self.calls = 0
        self.lock = threading.Lock()

    def write(self, line):
        os.write(self.log, f"{line}\n".encode())

    def deadly(self, method):
        def stores(*arguments):
            with self.lock:
                self.calls += 1
                is_last = self.calls == self.left
                if is_last and self.when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                result = method(*arguments)
                if is_last:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

        return stores


def make_model(recorder, kind, name, replies):
    class Counted(kind):
        def request(self, messages, tools=(), on_text=None):
            reply = super().request(messages, tools, on_text)
            recorder.write(f"{name} {sum(message['role'] == 'assistant' for message in messages)}")
            return reply

    return Counted(*replies)


def make_agent(directory, recorder, how):
    kind = AsyncScript if how == "async" else Script
    saver = FileSystemSaver(directory / "runs", fsync="never")
    saver.put = recorder.deadly(saver.put)
    saver.put_writes = recorder.deadly(saver.put_writes)
    marks = {"tea": "one", "rum": "two", "salt": "four", "price": "five"}

    def look_up(word: str) -> str:
        recorder.write(f"tool {marks[word]}")
        return word.upper()

    adviser = AgentBuilder().with_chat(make_model(recorder, kind, "advice", ADVICE)).with_tools(look_up)
    adviser = adviser.with_checkpointer(saver).build()

    def find_input(question, thread):
        is_started = bool(adviser.get_state_history(thread))
        return None if is_started else question

    def consult(question: str, config: RunnableConfig) -> str:
        thread = config.idempotency_key
        state = adviser.run(find_input(question, thread), thread)
        recorder.write("tool three")
        return state["messages"][-1]["content"]

    async def aconsult(question: str, config: RunnableConfig) -> str:
        thread = config.idempotency_key
        state = await adviser.arun(find_input(question, thread), thread)
        recorder.write("tool three")
        return state["messages"][-1]["content"]

    aconsult.__name__ = "consult"
    model = make_model(recorder, kind, "model", REPLIES)
    research = AgentBuilder().with_chat(model).with_tools(look_up).build()
    outer = AgentBuilder().with_step("research", research).with_chat(model, name="answer")
    outer = outer.with_tools(look_up, aconsult if how == "async" else consult)
    return outer.with_checkpointer(saver).build()


def converse(directory, how, recorder):
    agent = make_agent(directory, recorder, how)
    given = None if agent.get_state_history(THREAD) else "go"
    if how == "async":
        asyncio.run(agent.arun(given, THREAD))
    else:
        agent.run(given, THREAD)


def main():
    how = sys.argv[1]
    for line in sys.stdin:
        directory, when, left = json.loads(line)
        child = os.fork()
        if not child:
            recorder = Recorder(Path(directory), when, left)
            converse(Path(directory), how, recorder)
            Path(directory, "calls").write_text(str(recorder.calls))
            os._exit(0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
