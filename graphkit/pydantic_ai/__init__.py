"""Agents of pydantic-ai on threads of graphkit (extra `pydantic-ai`).

    durable = make_durable(agent, FileSystemSaver("runs"))
    result = durable.run("Cancel order 3", "bob")

A durable agent is a graph of two nodes. The node `agent` runs the agent of pydantic-ai, whose model calls and tool
calls are recorded one by one. If it ends with tools that wait for an approval or an external result, the map node
`deferred` asks for each with an interrupt, and the agent goes on with the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from graphkit._build.state_graph import StateGraph
from graphkit._public_names import set_public_module
from graphkit._records.config import END, START, RunnableConfig
from graphkit._records.context import interrupt
from graphkit._records.output import Command, GraphResume, StreamingOutput, WaitingInterrupt
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._to_thread import iterate, run_beside
from graphkit._values.channels import Channels
from graphkit.errors import CheckpointNotFoundError, GraphRunnerError, MissingDependencyError

if TYPE_CHECKING:
    from pydantic_ai import AgentStreamEvent, RunContext
    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.messages import UserContent

    from graphkit._compiled import CompiledGraph

    _Prompt = str | Sequence[UserContent] | GraphResume | None

__all__ = ["DurableAgent", "DurableResult", "make_durable"]

_OutputT = TypeVar("_OutputT")
_TOOLS_WAIT: Final = "tools wait: give GraphResume(...), or None if all are answered, instead of a prompt"


@final
@dataclass(frozen=True, kw_only=True)
class DurableResult(Generic[_OutputT]):
    """Where a run of a durable agent stands."""

    output: _OutputT | None
    """The output of the agent; None while tools wait for answers."""
    interrupts: tuple[WaitingInterrupt, ...] = ()
    """What waits for an answer. A payload is `{"kind", "tool", "arguments", "id"}`, with the kind `approval`, whose
    answer is True, False or `{"approved": bool, "reason": str, "arguments": {...}}`; or `call`, whose answer is the
    result of the call."""
    messages: Sequence[Any] = field(repr=False)
    """The conversation of the thread: the `ModelMessage`s of pydantic-ai."""


def make_durable(agent: AbstractAgent[Any, _OutputT], saver: BaseCheckpointSaver) -> DurableAgent[_OutputT]:
    """Return an agent whose runs are stored in threads of a saver.

    Each model call and each tool call is recorded when it has finished. A run that was interrupted by a crash, an
    error or an approval goes on in any process that has made the same durable agent, and repeats no recorded call.
    A call that had finished without being recorded is repeated.

    Args:
        agent: any agent of pydantic-ai, with a model. Toolsets and capabilities that need an id in durable execution
            must have one. For tools that wait, its output types include DeferredToolRequests.
        saver: where the threads are stored.

    Raises:
        MissingDependencyError: pydantic-ai is not installed, or too old.
    """
    return DurableAgent(agent, saver)


@final
class DurableAgent(Generic[_OutputT]):
    """An agent of pydantic-ai on threads of graphkit; see `make_durable`.

    Every run raises the errors of `CompiledGraph.invoke`. A thread can have one run at a time.
    """

    def __init__(self, agent: AbstractAgent[Any, _OutputT], saver: BaseCheckpointSaver) -> None:
        try:
            from graphkit.pydantic_ai import _durability
        except ImportError as error:
            raise MissingDependencyError("pydantic-ai-slim", "pydantic-ai") from error
        self.agent = agent
        self.saver = saver
        self._records = _durability

    def run(self, prompt: _Prompt, thread_id: str, *, deps: Any = None) -> DurableResult[_OutputT]:
        """As `arun`, for code that is on no event loop."""
        return asyncio.run(self.arun(prompt, thread_id, deps=deps))

    async def arun(self, prompt: _Prompt, thread_id: str, *, deps: Any = None) -> DurableResult[_OutputT]:
        """Run the agent to its output, or until tools wait for answers.

        Args:
            prompt: what the user says; None, which resumes a run that has not ended; or a GraphResume, which answers
                interrupts: its value, or a mapping of their ids to values.
            thread_id: the thread, whose conversation goes on.
            deps: the dependencies of the agent. They are not stored.
        """
        graph = self._make_graph(deps, is_streamed=False)
        config = RunnableConfig(thread_id)
        await graph.ainvoke(await self._make_input(graph, prompt, config), config)
        return await self._read_result(graph, config)

    def stream(
        self, prompt: _Prompt, thread_id: str, *, deps: Any = None
    ) -> Generator[AgentStreamEvent | DurableResult[_OutputT], None, None]:
        """As `astream`, for code that is on no event loop."""
        return iterate(self.astream(prompt, thread_id, deps=deps))

    async def astream(
        self, prompt: _Prompt, thread_id: str, *, deps: Any = None
    ) -> AsyncGenerator[AgentStreamEvent | DurableResult[_OutputT], None]:
        """As `arun`, but yield the events of the agent while they happen, and the result last.

        The events of model calls that are recorded already are left out.
        """
        graph = self._make_graph(deps, is_streamed=True)
        config = RunnableConfig(thread_id)
        async with aclosing(graph.astream(await self._make_input(graph, prompt, config), config)) as outputs:
            async for output in outputs:
                if isinstance(output, StreamingOutput):
                    yield output.chunk
        yield await self._read_result(graph, config)

    # The graph

    def _make_graph(self, deps: Any, *, is_streamed: bool) -> CompiledGraph:
        growing = Channels.appender_with_duplicate()
        graph = StateGraph({"messages": growing, "answers": growing, "requests": Channels.base(_merge_requests, list)})
        graph.add_node("agent", partial(self._run_agent, deps=deps, is_streamed=is_streamed))
        graph.add_map_node("deferred", _ask, "requests")
        graph.add_edge(START, "agent")
        graph.add_conditional_edges("agent", lambda state: "deferred" if state["requests"] else END, ["deferred", END])
        graph.add_edge("deferred", "agent")
        return graph.compile(checkpoint_saver=self.saver)

    async def _run_agent(self, state: Mapping[str, Any], *, deps: Any, is_streamed: bool) -> AsyncIterator[Any]:
        """Run the agent of pydantic-ai once; yield its events, and the update last."""

        # pydantic-ai hands events to a callback, in the middle of the call of a model or a tool, and a node yields its
        # chunks. So the agent runs as a task.
        async def run(emit: Callable[[AgentStreamEvent], None]) -> Command:
            async def forward(context: RunContext[Any], stream: Any) -> None:  # noqa: ARG001 - of the interface
                async for event in stream:
                    emit(event)

            durability = self._records.Durability(forward if is_streamed else None)
            arguments = self._records.make_arguments(state)
            result = await self.agent.run(**arguments, deps=deps, capabilities=[durability])
            return Command(update=self._records.make_update(result.output, result.new_messages()))

        async with aclosing(run_beside(run)) as items:
            async for item in items:
                yield item

    async def _make_input(self, graph: CompiledGraph, prompt: _Prompt, config: RunnableConfig) -> Any:
        """Return the input of the graph.

        Raises:
            GraphRunnerError: it is a new prompt, and the thread waits for answers. Nothing was stored. The run itself
                refuses a prompt if the answers are not used yet, see `_merge_requests`.
        """
        if prompt is None or isinstance(prompt, GraphResume):
            return prompt
        with suppress(CheckpointNotFoundError):
            if (await graph.aget_state(config)).interrupts:
                raise GraphRunnerError(_TOOLS_WAIT)
        return {"prompt": self._records.dump_prompt(prompt), "requests": [], "output": None}

    async def _read_result(self, graph: CompiledGraph, config: RunnableConfig) -> DurableResult[_OutputT]:
        snapshot = await graph.aget_state(config)
        return DurableResult(
            output=self._records.load_output(self.agent.output_type, snapshot.state["output"]),
            interrupts=tuple(snapshot.interrupts),
            messages=self._records.load_messages(snapshot.state["messages"]),
        )


def _merge_requests(old: Sequence[Any], new: Sequence[Any]) -> Sequence[Any]:
    # The agent clears the requests with None. An empty list comes from a new prompt. The run holds its lock here, so
    # of two prompts at a time the second one finds what the first one has left.
    if old and not new:
        raise GraphRunnerError(_TOOLS_WAIT)
    return new


def _ask(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for the answer to a tool that waits; again if it is no answer to an approval."""
    answer = interrupt(dict(request))
    while request["kind"] == "approval" and not _is_approval(answer):
        forms = "True, False or {'approved': ..., 'reason': ..., 'arguments': ...}"
        answer = interrupt({**request, "error": f"answer {forms}, not {answer!r}"})
    return {"answers": [{"id": request["id"], "answer": answer}]}


def _is_approval(answer: object) -> bool:
    if not isinstance(answer, Mapping):
        return isinstance(answer, bool)
    has_types = isinstance(answer.get("approved"), bool) and isinstance(answer.get("arguments"), Mapping | None)
    return has_types and answer.keys() <= {"approved", "reason", "arguments"}


set_public_module(globals(), __name__)
