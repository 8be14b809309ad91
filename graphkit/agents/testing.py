"""For tests of agents: a scripted model, savers that record or fail, and `graphkit.testing.ManualClock`.

The savers are `graphkit.testing.ScriptedSaver`, which also delays calls: `saver.slow("put", 2.5)`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from graphkit._options import check_count
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.agents.messages import Message, Messages, TextHandler, ToolSchemas, as_reply
from graphkit.errors import CheckpointStorageError
from graphkit.testing.fakes import Call, ManualClock, ScriptedSaver

__all__ = ["Call", "FailingSaver", "ManualClock", "RecordingSaver", "ScriptedModel"]

Reply = str | Mapping[str, Any] | BaseException | Callable[[list[Message]], Any]
"""What a ScriptedModel answers: a text, a message, an error to raise, or a function of the messages
that returns one of these."""
_WORDS: Final = re.compile(r"\S+\s*|\s+")


class ScriptedModel:
    """A model that gives the replies of a script, one for each request. Any thread may call it.

        model = ScriptedModel(["Hello.", {"role": "assistant", "tool_calls": [...]}, "Done."])

    It is accepted where an agent takes a model.

    Attributes:
        calls: the messages of each request, in the order of the requests.
        tools: the tools of each request.
        is_async: whether only `arequest` works.
    """

    def __init__(self, replies: Sequence[Reply], *, is_async: bool = False) -> None:
        """Write the script.

        Args:
            replies: texts, messages, errors to raise, or functions of the messages.
            is_async: refuse synchronous requests, as the model of an asynchronous client does.
        """
        self.is_async = is_async
        self.calls: list[list[Message]] = []
        self.tools: list[list[dict[str, Any]]] = []
        self._replies = list(replies)
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many requests there were."""
        return len(self.calls)

    def __call__(self, messages: Messages) -> Message:
        """As `request`, without tools."""
        return self._reply(messages, (), None)

    def request(self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None) -> Message:
        """Return the next reply of the script.

        Args:
            messages: the conversation.
            tools: what the model may call.
            on_text: receives the text word by word.

        Raises:
            AssertionError: the script has no further reply.
            RuntimeError: the model is asynchronous.
        """
        if self.is_async:
            raise RuntimeError("this model is asynchronous: call arequest")
        return self._reply(messages, tools, on_text)

    async def arequest(
        self, messages: Messages, tools: ToolSchemas = (), on_text: TextHandler | None = None
    ) -> Message:
        """As `request`."""
        return self._reply(messages, tools, on_text)

    def _reply(self, messages: Messages, tools: ToolSchemas, on_text: TextHandler | None) -> Message:
        received = [dict(message) for message in messages]
        with self._lock:
            number = len(self.calls)
            self.calls.append(received)
            self.tools.append([dict(tool) for tool in tools])
        if number >= len(self._replies):
            raise AssertionError(f"the script has {len(self._replies)} replies, and this is request {number + 1}")
        reply = self._replies[number]
        if callable(reply):
            reply = reply(received)
        if isinstance(reply, BaseException):
            raise reply
        message = as_reply(reply)
        text = message["content"]
        if on_text is not None and isinstance(text, str):
            for word in _WORDS.findall(text):
                on_text(word)
        return message


RecordingSaver = ScriptedSaver
"""Forwards every call to a saver and records it in `calls`."""


class FailingSaver(ScriptedSaver):
    """A saver whose nth call of a method fails, as if the disk were full. Nothing of that call is stored."""

    def __init__(self, saver: BaseCheckpointSaver, nth: int = 1, *, method: str = "put") -> None:
        """Wrap a saver.

        Args:
            saver: the saver that does the work.
            nth: which call of the method raises a CheckpointStorageError, from 1. Only that call
                fails.
            method: the name of the method.

        Raises:
            ValueError: `nth` is not a positive int, or the saver has no such method.
        """
        super().__init__(saver)
        check_count("nth", nth)
        error = CheckpointStorageError("FailingSaver", method, f"call {nth} of {method} fails, as scripted")
        self.fail(method, error, skip=nth - 1)
