"""An agent under SIGKILL: no recorded model call and no recorded tool call is made again.

The model is a local server of chat completions. The agent has four tools; two calls of a message run in parallel, one
needs approval. A call writes its line in work.log as the last thing it does, so a call that is killed between that line
and its record is made again, which is right. The claim: what was recorded when the process died is not made again, and
the transcript is that of the undisturbed run.
"""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from savers import FileSystemSaver
from tests.agents import chat_server
from tests.agents.chat_server import Reply
from tests.support.agents import call, calling, messages_in, transcript

pytestmark = [pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX"), pytest.mark.requirement("P82")]
ROOT = Path(__file__).resolve().parents[2]
THREAD = RunnableConfig("t")


def parallel(*calls):
    return calling(*(call(tool, mark, mark=mark, **arguments) for tool, mark, arguments in calls))


REPLIES = [
    parallel(("look_up", "c1", {"word": "tea"}), ("weigh", "c2", {"grams": 3})),
    parallel(("note", "c3", {"text": "x"}), ("sell", "c4", {"item": "tea"}), ("look_up", "c5", {"word": "rum"})),
    parallel(("nothing", "c6", {}), ("weigh", "c7", {"grams": 4})),
    "sold",
    parallel(("sell", "c8", {"item": "rum"}), ("sell", "c9", {"item": "salt"})),
    "bye",
]
MODEL_CALLS = [f"model {number}" for number in range(len(REPLIES))]
TOOL_CALLS = [f"tool c{number}" for number in (1, 2, 3, 4, 5, 7, 8)]
"""c6 calls no tool that there is, and c9 is refused."""

PROGRAM = """
import asyncio, json, os, signal, sys, threading, traceback
from graphkit import GraphResume, InterruptionMetadata
from graphkit.agents import AgentBuilder, tool
from savers import FileSystemSaver
import openai  # once, in the process that is not killed

how, base_url = sys.argv[1:]
is_nested = how.startswith("nested ")
how = how.removeprefix("nested ")
one_at_a_time = threading.Lock()

def deadly(method):
    def stores(self, *arguments):
        global left
        with one_at_a_time:
            left -= 1
            if when == "before" and not left:
                os.kill(os.getpid(), signal.SIGKILL)
            result = method(self, *arguments)
            if when == "after" and not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
    return stores

FileSystemSaver.put = deadly(FileSystemSaver.put)
FileSystemSaver.put_writes = deadly(FileSystemSaver.put_writes)

def work(line):
    os.write(log, f"{line}\\n".encode())

def look_up(word: str, mark: str) -> str:
    work(f"tool {mark}")
    return word.upper()

@tool(on_error="raise")
def weigh(grams: int, mark: str) -> dict:
    work(f"tool {mark}")
    return {"grams": grams}

@tool(requires_approval=True)
def sell(item: str, mark: str) -> str:
    work(f"tool {mark}")
    return f"sold {item}"

async def anote(text: str, mark: str) -> None:
    work(f"tool {mark}")

def note(text: str, mark: str) -> None:
    work(f"tool {mark}")

def converse(directory):
    is_async = how == "async"
    model = {"provider": "openai", "model": "test", "base_url": base_url, "api_key_env": None}
    saver = FileSystemSaver(os.path.join(directory, "runs"), fsync="never")
    tools = [look_up, weigh, sell, tool(anote, name="note") if is_async else note]
    builder = AgentBuilder().with_chat(model, name="chat").with_tools(*tools)
    if is_nested:
        builder = AgentBuilder().with_step("inner", builder.build())
    agent = builder.with_checkpointer(saver).build()

    def run(given):
        if is_async:
            asyncio.run(agent.arun(given, "t"))
        elif how == "sync":
            agent.run(given, "t")
        else:
            for _ in agent.stream(given, "t"):
                pass

    for question in ("one", "two"):
        latest = agent.graph.state_of({"configurable": {"thread_id": "t"}})
        asked = [] if latest is None else [m["content"] for m in latest.state["messages"] if m["role"] == "user"]
        if question not in asked:
            run(question)
        while True:
            waiting = agent.get_state("t").interrupts
            if waiting:
                run(GraphResume({waiting[-1].id: {"approved": waiting[-1].payload["id"] != "c9", "reason": "no"}}))
            elif agent.get_state("t").next != "__END__":
                run(None)
            else:
                break

for line in sys.stdin:  # each line is a conversation in a process of its own, which may be killed
    directory, when, left = json.loads(line)
    child = os.fork()
    if not child:
        log = os.open(os.path.join(directory, "work.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        calls = left
        try:
            converse(directory)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        with open(os.path.join(directory, "calls"), "w") as file:
            file.write(str(round(calls - left)))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def recorded(directory):
    """The calls that the store has, in the words of the log."""
    saver = FileSystemSaver(directory / "runs")
    messages = {}
    for namespace in saver.namespaces("t"):
        history = THREAD.replace(checkpoint_ns=namespace)
        for checkpoint in saver.list(history):
            own = history.replace(checkpoint_id=checkpoint.id)
            writes = saver.get_writes(own)
            for message in messages_in([checkpoint.state.get("messages", ()), writes]):
                key = message.get("id") or message["content"]
                messages[key] = message
    replies = sum(message["role"] == "assistant" for message in messages.values())
    found = {f"model {number}" for number in range(replies)}
    for message in messages.values():
        if message["role"] == "tool":
            found.add(f"tool {message['tool_call_id']}")
    return found


def number_of(request):
    return sum(message["role"] == "assistant" for message in request["messages"])


def answer(request):
    """Answer as a server of chat completions, by the number of replies that the conversation has."""
    reply = REPLIES[number_of(request)]
    return Reply({"role": "assistant", "content": reply} if isinstance(reply, str) else reply)


class Program:
    """The program, imported once, and the server that it asks. Each conversation is a child of the program."""

    def __init__(self, process, server):
        self.process = process
        self.server = server

    def calls(self, directory):
        """How often each call was made: those that reached the server, and those that the tools have logged."""
        log = directory / "work.log"
        tools = log.read_text().splitlines() if log.exists() else []
        return Counter([f"model {number_of(request)}" for request in self.server.requests] + tools)

    def run(self, directory, when="never", left=0):
        """Let a child run on until it ends or is killed; check that it repeats nothing; whether it was killed."""
        directory.mkdir(exist_ok=True)
        known = recorded(directory)
        before = self.calls(directory)
        self.process.stdin.write(json.dumps([str(directory), when, left]) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        made = self.calls(directory) - before
        repeated = known.intersection(made)
        assert repeated == set(), f"recorded, and made again: {repeated}"
        return code != 0

    def run_to_the_end(self, directory):
        """Return the transcript."""
        assert not self.run(directory)
        return transcript(FileSystemSaver(directory / "runs").get(THREAD).state)


@pytest.fixture(scope="module", params=["sync", "stream", "async", "nested sync"])
def program(request, launcher):
    with (
        chat_server.start(answer) as server,
        launcher.start("-c", PROGRAM, request.param, server.base_url, cwd=ROOT) as process,
    ):
        yield Program(process, server)
        process.stdin.close()


@pytest.fixture(scope="module")
def undisturbed(program, tmp_path_factory):
    """The number of store calls and the transcript of a run that nothing disturbs."""
    directory = tmp_path_factory.mktemp("undisturbed")
    expected = program.run_to_the_end(directory)
    assert program.calls(directory) == Counter(MODEL_CALLS + TOOL_CALLS)
    return int((directory / "calls").read_text()), expected


@pytest.mark.requirement("H13", "L15")
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_store_call_nothing_recorded_is_made_again(tmp_path, program, undisturbed, when, sweep):
    calls, expected = undisturbed
    assert calls > 20
    kills = 0
    for call_number in sweep.some(range(1, calls), 3):
        directory = tmp_path / f"{call_number}"
        kills += program.run(directory, when, call_number)
        assert program.run_to_the_end(directory) == expected
    # Records of parallel calls are combined if they come together, so the number of store calls varies.
    assert kills >= sweep.count(20, 2)
