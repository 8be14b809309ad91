"""What tests of agents share: a model of which the conversation chooses the reply, and shorthands."""

import itertools
import json
import traceback
from collections.abc import Mapping

from graphkit import StreamingOutput

_IDS = itertools.count()
APP = "tests.agents.application"
"""The module that agent files of the tests name."""
STEPS = f"steps: [{{type: llm, model: '{APP}:echo'}}]\n"
"""The shortest agent file."""


def call(tool, /, id=None, **arguments):
    """A tool call as a model writes it."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"id": id or f"call_{next(_IDS)}", "type": "function", "function": function}


def calling(*calls, content=None):
    """A reply that calls tools."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


class Script:
    """Answers the nth request of a conversation with the nth reply; counts the requests.

    The conversation itself says how many there were, as with a real model: a process that starts again gets
    the same replies.
    """

    is_async = False

    def __init__(self, *replies, pieces=False):
        self.replies = replies
        self.pieces = pieces
        self.requests = []

    def request(self, messages, tools=(), on_text=None):
        self.requests.append((list(messages), tools))
        reply = self.replies[sum(message["role"] == "assistant" for message in messages)]
        text = reply if isinstance(reply, str) else reply["content"]
        if on_text is not None and self.pieces:
            for word in ["", None, *(text or "").split()]:  # as servers send them
                on_text(word)
        return reply

    async def arequest(self, messages, tools=(), on_text=None):
        return self.request(messages, tools, on_text)


class AsyncScript(Script):
    """As Script, for asynchronous runs only."""

    is_async = True


def transcript(state):
    """The messages of a state without the ids that each run makes anew."""
    return [{key: value for key, value in message.items() if key != "id"} for message in state["messages"]]


def messages_in(value):
    """The messages anywhere in a state or in pending writes."""
    if isinstance(value, Mapping):
        if "role" in value:
            return [value]
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [message for item in value for message in messages_in(item)]


def contents(state, role="tool"):
    return [message["content"] for message in state["messages"] if message["role"] == role]


def texts(outputs):
    return [output.chunk for output in outputs if isinstance(output, StreamingOutput)]


def everything_about(error):
    """What a traceback shows of an error and all that led to it, shown or not."""
    found, waiting = [], [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in found:
            found.append(one)
            waiting += [one.__cause__, one.__context__]
    return "".join("".join(traceback.format_exception(error)) + repr(error) + str(vars(error)) for error in found)
