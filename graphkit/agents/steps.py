"""ChatStep: the step of an agent in which a model answers. It adds its nodes to the graph.

While a model answers, its request runs on a thread or as a task, and the step yields the pieces of its text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing
from contextvars import ContextVar, copy_context
from copy import copy
from functools import partial
from logging import getLogger
from typing import Any, Final, final

from graphkit._build.state_graph import StateGraph
from graphkit._plan.topology import StateItems, TwoForms
from graphkit._records.context import CURRENT_NODE_CONTEXT, NO_JOURNAL
from graphkit._records.output import Command
from graphkit._to_thread import JobThread, run_beside, unwrap_outcome
from graphkit.agents.configuration import LlmStepSettings
from graphkit.agents.messages import Message, TextHandler, as_reply, to_plain
from graphkit.agents.models import FunctionModel, Model
from graphkit.agents.state import MESSAGES, fill_template
from graphkit.agents.tools import Tool, ToolCalls, complete_results, find_pending_calls

IS_TEXT_READ: Final[ContextVar[bool]] = ContextVar("graphkit_is_text_read", default=True)
"""Whether the caller of the run reads its stream. `Agent.run` does not, and saves the streaming."""
GRACE: Final = 1.0
"""Seconds for which a stream that is closed waits for its request to end."""


class _ClosedError(Exception):
    """Raised in a request whose stream the caller has closed."""


def stream_text(request: Callable[[TextHandler], Message]) -> Generator[str, None, Message]:
    """Make a request on a thread of its own; yield the pieces of its text, and return the reply.

    The text of a model that does not stream is one piece. A caller that closes the generator ends the request at
    its next piece. If none arrives within GRACE seconds, the thread is abandoned, and records nothing more.
    """
    # A context can be entered by one thread at a time, so the request gets a copy, and a node context of its own,
    # which can be cut off from the run without touching that of the node.
    node_context = copy(CURRENT_NODE_CONTEXT.get())
    variables = copy_context()
    variables.run(CURRENT_NODE_CONTEXT.set, node_context)
    model = JobThread("graphkit-model", variables, is_daemon=True)
    is_closed = False

    def on_text(text: str) -> None:
        if is_closed:
            raise _ClosedError
        if text:
            model.outcomes.put(text)

    model.jobs.put(partial(request, on_text))
    model.jobs.put(None)
    is_streamed = False
    try:
        while isinstance(piece := model.outcomes.get(), str):
            is_streamed = True
            yield piece
    finally:
        is_closed = True
        if node_context is not None:
            node_context.journal = NO_JOURNAL  # the run may be over, and its lock free
        model.thread.join(GRACE)
    reply = as_reply(unwrap_outcome(piece))
    if not is_streamed:
        yield from _whole_text(reply)
    return reply


async def astream_text(request: Callable[[TextHandler], Awaitable[Message]]) -> AsyncGenerator[str | Message, None]:
    """As `stream_text`, in a task, with the reply as the last item. Closing the iterator cancels the request."""

    async def work(emit: Callable[[str], None]) -> Message:
        # What a model passes may have no text: the delta of a client has None then.
        return as_reply(await request(lambda text: emit(text) if text else None))

    is_streamed = False
    async with aclosing(run_beside(work)) as items:
        async for item in items:
            if not isinstance(item, str) and not is_streamed:
                for text in _whole_text(item):
                    yield text
            is_streamed = True
            yield item


def _whole_text(reply: Message) -> list[str]:
    content = reply["content"]
    return [content] if isinstance(content, str) and content else []


_CUT_OFF: Final = {
    "length": "it reached the limit of tokens; raise max_tokens or max_completion_tokens",
    "content_filter": "the filter of the provider left out a part",
}
"""What a `finish_reason` says of an answer that is not complete."""
_LOGGER: Final = getLogger("graphkit.agents")


@final
class ChatStep:
    """A model answers the messages, and may call tools until it answers without a call.

    Each request to the model is one step of the run, in the node with the name of the step. The
    tool calls of one message are the items of the map node `<name>_tools`.
    """

    def __init__(self, name: str, settings: LlmStepSettings, tools: Mapping[str, Tool], model: Model) -> None:
        """Create the step.

        Args:
            name: the name of its node.
            settings: how the model is asked.
            tools: what the model may call, by name.
            model: the model that the settings describe.
        """
        self.name = name
        self.tools_name = f"{name}_tools"
        self.tools = tools
        self._settings = settings
        self._model = model

    def add_to(self, graph: StateGraph, target: str) -> None:
        """Add the node of the model, and that of the tools if there are any, with the edges that lead to the target."""
        # An asynchronous run awaits a model that can be awaited, and then needs no thread for each conversation. Only
        # the driver knows whether the run is asynchronous, and it chooses the form when it starts the action.
        action: Any = TwoForms(self._request, self._arequest)
        if self._model.is_async:
            action = self._arequest
        elif isinstance(self._model, FunctionModel):
            action = self._request  # its `arequest` needs a thread, too
        graph.add_node(self.name, action)
        if not self.tools:
            graph.add_edge(self.name, target)
            return
        calls = ToolCalls(self.tools)
        graph.add_map_node(
            self.tools_name,
            calls.aexecute if calls.is_async else calls.execute,
            StateItems(find_pending_calls),
            max_concurrency=self._settings.max_parallel_tools,
        )
        graph.add_edge(self.tools_name, self.name)
        targets = {"tools": self.tools_name, "next": target}
        graph.add_conditional_edges(self.name, lambda state: "tools" if find_pending_calls(state) else "next", targets)

    def _request(self, state: Mapping[str, Any]) -> Generator[str, None, dict[str, Any]]:
        """Yield the text of the model while it arrives; return the update."""
        messages = self._make_messages(state)
        tools = [tool.schema for tool in self.tools.values()]
        if IS_TEXT_READ.get():
            reply = yield from stream_text(lambda on_text: self._model.request(messages, tools, on_text))
        else:
            reply = self._model.request(messages, tools)
        return self._make_update(reply)

    async def _arequest(self, state: Mapping[str, Any]) -> AsyncIterator[Any]:
        """As `_request`; the update comes last, as a Command."""
        messages = self._make_messages(state)
        tools = [tool.schema for tool in self.tools.values()]
        if IS_TEXT_READ.get():
            items = astream_text(lambda on_text: self._model.arequest(messages, tools, on_text))
            async with aclosing(items):  # a stream that is closed ends with its request
                async for item in items:
                    yield item if isinstance(item, str) else Command(update=self._make_update(item))
        else:
            reply = await self._model.arequest(messages, tools)
            yield Command(update=self._make_update(reply))

    def _make_messages(self, state: Mapping[str, Any]) -> list[Message]:
        """Return what the model receives: system prompt, prompt template, conversation."""
        messages: list[Message] = []
        if self._settings.system_prompt is not None:
            messages.append({"role": "system", "content": self._settings.system_prompt})
        if self._settings.prompt_template is not None:
            content = fill_template(self._settings.prompt_template, state, self.name)
            messages.append({"role": "system", "content": content})
        conversation = state.get(MESSAGES) or ()
        sendable: list[Message] = to_plain(messages + complete_results(conversation))
        return sendable

    def _make_update(self, reply: Any) -> dict[str, Any]:
        """Return the update that appends a reply.

        Raises:
            TypeError, ValueError: it is not a message of the assistant, a call has no name or no id, or it calls
                tools, and the step has none.
        """
        message = as_reply(reply)
        calls = message.get("tool_calls")
        if calls and not self.tools:
            names = ", ".join(repr(call["function"]["name"]) for call in calls)
            raise ValueError(f"the model of step {self.name!r}, which has no tools, called {names}")
        advice = _CUT_OFF.get(str(message.get("finish_reason")))
        if advice is not None:
            _LOGGER.warning("the answer of the model of step %r is not complete: %s", self.name, advice)
        return {MESSAGES: [message]}
