"""The steps of an agent: chat, function and nested agent. Each adds its nodes to the graph.

`STRATEGIES` maps the `type` of a step to its class. An application adds its own with
`register_step`.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any, ClassVar, Final, final

from graphkit._build.state_graph import StateGraph
from graphkit._compiled import CompiledGraph
from graphkit._plan.topology import StateItems, TwoForms
from graphkit._records.output import Command
from graphkit.agents.default_state import MESSAGES
from graphkit.agents.messages import Message, as_reply, to_plain
from graphkit.agents.models import FunctionModel, make_model
from graphkit.agents.templates import fill_template
from graphkit.agents.text_stream import IS_TEXT_READ, AsyncTextStream, TextStream
from graphkit.agents.tool_calls import ToolCalls, complete_results, find_pending_calls
from graphkit.agents.tools import Tool, ToolRegistry

_CUT_OFF: Final = {
    "length": "it reached the limit of tokens; raise max_tokens or max_completion_tokens",
    "content_filter": "the filter of the provider left out a part",
}
"""What a `finish_reason` says of an answer that is not complete."""
_LOGGER: Final = getLogger("graphkit.agents")


class Step(abc.ABC):
    """One step of an agent: one or several nodes of its graph, the first of which has its name.

    Implement `add_to` and `connect`. The constructor receives the name, the tools of the agent, and
    the settings of the step as keyword arguments.
    """

    needs_messages: ClassVar[bool] = False
    """Whether the state must have the channel `messages`."""
    uses_tools: ClassVar[bool] = False
    """Whether the step lets a model call the tools of the agent."""

    resources: Sequence[Any] = ()
    """What the step has opened, and `Agent.close` closes by its method `close`."""

    def __init__(self, name: str, agent_tools: Iterable[Tool] = ()) -> None:  # noqa: ARG002 - for subclasses
        self.name = name

    @abc.abstractmethod
    def add_to(self, graph: StateGraph) -> None:
        """Add the nodes of the step, and the edges among them."""

    def connect(self, graph: StateGraph, target: str) -> None:
        """Add the edge from the end of the step to the first node of the next step, or to END."""
        graph.add_edge(self.name, target)


@final
class ChatStep(Step):
    """A model answers the messages, and may call tools until it answers without a call.

    Each request to the model is one step of the run, in the node with the name of the step. The
    tool calls of one message are the items of the map node `<name>_tools`.
    """

    needs_messages = True
    uses_tools = True

    def __init__(
        self,
        name: str,
        agent_tools: Iterable[Tool] = (),
        *,
        model: Any,
        prompt_template: str | None = None,
        system_prompt: str | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        max_parallel_tools: int | None = None,
    ) -> None:
        """Create the step.

        Args:
            name: the name of its node.
            agent_tools: the tools of the agent; the model may call these, too.
            model: as in `make_model`.
            prompt_template: formatted with the state and sent as a system message. `{input}` is the
                newest message of the user, where the state has no such key.
            system_prompt: sent as the first message.
            tools: what only the model of this step may call.
            max_parallel_tools: how many calls of one message run at the same time, at most; None:
                limited only by the threads of the run.

        Raises:
            ValueError: the model is not one, or two tools have the same name.
        """
        super().__init__(name)
        self.model = make_model(model)
        if self.model is not model:
            self.resources = (self.model,)
        self.prompt_template = prompt_template
        self.system_prompt = system_prompt
        self.tools = ToolRegistry([*agent_tools, *tools])
        self.tools_name = f"{name}_tools"
        self.max_parallel_tools = max_parallel_tools

    def add_to(self, graph: StateGraph) -> None:
        """Add the node of the model, and that of the tools if there are any."""
        graph.add_node(self.name, self._make_action())
        if not len(self.tools):
            return
        calls = ToolCalls(self.tools)
        graph.add_map_node(
            self.tools_name,
            calls.aexecute if calls.is_async else calls.execute,
            StateItems(find_pending_calls),
            max_concurrency=self.max_parallel_tools,
        )
        graph.add_edge(self.tools_name, self.name)

    def connect(self, graph: StateGraph, target: str) -> None:
        """Add the edge to the tools while the model calls any, and else to the next step."""
        if len(self.tools):
            targets = {"tools": self.tools_name, "next": target}
            graph.add_conditional_edges(self.name, _choose_edge, targets)
        else:
            super().connect(graph, target)

    def _make_action(self) -> Callable[..., Any]:
        """Return the action: asynchronous if the model is, and else in two forms."""
        # Only the driver knows whether a run is asynchronous, and it chooses the form when it starts the action. In
        # an asynchronous run, a model that can be awaited then needs no thread for each conversation.
        if self.model.is_async:
            return self._arequest
        if isinstance(self.model, FunctionModel):
            return self._request  # its `arequest` needs a thread, too
        return TwoForms(self._request, self._arequest)

    def _request(self, state: Mapping[str, Any]) -> Generator[str, None, dict[str, Any]]:
        """Yield the text of the model while it arrives; return the update."""
        messages = self._make_messages(state)
        tools = self.tools.schemas
        if IS_TEXT_READ.get():
            stream = TextStream(lambda on_text: self.model.request(messages, tools, on_text))
            reply = yield from stream.run()
        else:
            reply = self.model.request(messages, tools)
        return self._make_update(reply)

    async def _arequest(self, state: Mapping[str, Any]) -> AsyncIterator[Any]:
        """As `_request`; the update comes last, as a Command."""
        messages = self._make_messages(state)
        tools = self.tools.schemas
        if IS_TEXT_READ.get():
            stream = AsyncTextStream(lambda on_text: self.model.arequest(messages, tools, on_text))
            async for text in stream.run():
                yield text
            reply = stream.reply
        else:
            reply = await self.model.arequest(messages, tools)
        yield Command(update=self._make_update(reply))

    def _make_messages(self, state: Mapping[str, Any]) -> list[Message]:
        """Return what the model receives: system prompt, prompt template, conversation."""
        messages: list[Message] = []
        if self.system_prompt is not None:
            messages.append({"role": "system", "content": self.system_prompt})
        if self.prompt_template is not None:
            content = fill_template(self.prompt_template, state, self.name)
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
        if calls and not len(self.tools):
            names = ", ".join(repr(call["function"]["name"]) for call in calls)
            raise ValueError(f"the model of step {self.name!r}, which has no tools, called {names}")
        advice = _CUT_OFF.get(str(message.get("finish_reason")))
        if advice is not None:
            _LOGGER.warning("the answer of the model of step %r is not complete: %s", self.name, advice)
        return {MESSAGES: [message]}


@final
class FunctionStep(Step):
    """A function of the state, or of the state and the config, as a node of StateGraph."""

    def __init__(self, name: str, agent_tools: Iterable[Tool] = (), *, function: Callable[..., Any]) -> None:
        super().__init__(name, agent_tools)
        if not callable(function):
            raise TypeError(f"step {name!r} needs a function, not {function!r}")
        self.function = function

    def add_to(self, graph: StateGraph) -> None:
        """Add the node."""
        graph.add_node(self.name, self.function)


@final
class AgentStep(Step):
    """A graph or another agent as a step.

    A compiled graph or an agent is nested: it has a history of its own in the namespace `<name>` of
    the thread, in its own saver if it was built with one. A StateGraph is inlined.
    """

    def __init__(
        self, name: str, agent_tools: Iterable[Tool] = (), *, graph: CompiledGraph | StateGraph, saver: Any = None
    ) -> None:
        """Create the step.

        Args:
            name: the name of its node.
            agent_tools: ignored: the graph has its own.
            graph: the graph.
            saver: stores the history of a StateGraph, which is then nested.

        Raises:
            TypeError: it is not a graph.
            ValueError: a saver is given for a graph that has been compiled.
        """
        super().__init__(name, agent_tools)
        if not isinstance(graph, CompiledGraph | StateGraph):
            raise TypeError(f"step {name!r} needs an agent or a graph, not {graph!r}")
        if saver is not None:
            if isinstance(graph, CompiledGraph):
                raise ValueError(f"step {name!r} is built already: give the checkpointer to the agent itself")
            graph = graph.compile(checkpoint_saver=saver)
        self.graph = graph

    def add_to(self, graph: StateGraph) -> None:
        """Add the graph as a node."""
        graph.add_node(self.name, self.graph)


StepFactory = Callable[..., Step]
STRATEGIES: Final[dict[str, StepFactory]] = {"llm": ChatStep, "function": FunctionStep, "agent": AgentStep}
"""The classes of steps by `type`."""


def register_step(type: str, factory: StepFactory) -> None:
    """Let agents have steps of a further type.

    Args:
        type: its name in configurations.
        factory: called as factory(name, agent_tools, **settings); returns a Step.

    Raises:
        ValueError: the type exists with another factory.
    """
    known = STRATEGIES.setdefault(type, factory)
    if known is not factory:
        raise ValueError(f"there is a step type {type!r} already")


def _choose_edge(state: Mapping[str, Any]) -> str:
    return "tools" if find_pending_calls(state) else "next"
