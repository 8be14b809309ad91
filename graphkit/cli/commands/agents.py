"""Agents from YAML: agents schema, agents check, agents run."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, final

from graphkit._options import parse_json
from graphkit._records.config import END
from graphkit._records.context import ABSENT
from graphkit._records.output import GraphResume, InterruptionMetadata, NodeOutput, StreamingOutput
from graphkit._to_thread import step_through
from graphkit._wording import describe_error
from graphkit.cli.context import CliContext
from graphkit.cli.options import argument, option
from graphkit.cli.render import Message, Text
from graphkit.cli.resolve import search_modules_here
from graphkit.cli.values import (
    UsageError,
    abbreviate,
    describe_payload,
    escape,
    escape_lines,
    parse_json_or_text,
    pluralize,
)
from graphkit.errors import CheckpointNotFoundError, MaxIterationsError

if TYPE_CHECKING:
    import asyncio

    from graphkit.agents import Agent

_APPROVAL_KEYS: Final = frozenset({"tool", "arguments", "id"})
_MESSAGES: Final = "messages"

_AgentFile: TypeAlias = Annotated[str, argument("The YAML file of the agent.")]


def agents_schema(_context: CliContext) -> Text:
    """Print the JSON schema of agent files.

    Editors use it to complete keys and to mark mistakes: store it in a file, and name that file in
    the first line of an agent file, `# yaml-language-server: $schema=agent.schema.json`.

    Example: graphkit agents schema
    """
    from graphkit.agents.yaml_loader import make_schema

    schema = make_schema()
    return Text(json.dumps(schema, indent=2), schema)


def agents_check(context: CliContext, file: _AgentFile) -> Message:
    """Check an agent file.

    The command imports the modules that the file names, but makes no store, connects to no MCP
    server and asks no model.

    Example: graphkit agents check assistant.yaml
    """
    from graphkit.agents.yaml_loader import check_agent_file

    search_modules_here()
    config = check_agent_file(file, environment=context.environment)
    types = [step.type for step in config.steps]
    data = {
        "file": file,
        "name": config.name,
        "steps": types,
        "tools": len(config.tools),
        "mcp_servers": list(config.mcp_servers),
        "checkpointer": getattr(config.checkpointer, "type", None),
    }
    steps = f"{pluralize(len(types), 'step')} ({', '.join(map(escape, types))})"
    return Message(f"{escape(file)} is valid: agent {escape(config.name)}, {steps}", data)


def agents_run(
    context: CliContext,
    file: _AgentFile,
    thread: Annotated[str | None, option("The conversation to continue. Default: a new one.", "-t", "THREAD")],
) -> Iterator[Text | Message]:
    """Run a conversation with an agent.

    Each line of standard input is a message; Ctrl-D ends the conversation. The answer appears while
    the model writes it. Before a tool that requires approval, the command asks: `y` approves, `n`
    refuses, `n REASON` tells the model why, and a JSON object approves with other arguments.

    If the agent has a checkpointer, --thread continues a conversation, also after a crash, after an
    error, or in the middle of an approval.

    Example: graphkit agents run assistant.yaml --thread bob
    """
    import asyncio

    from graphkit.agents import load_agent
    from graphkit.agents.thread_ids import check_thread_id

    search_modules_here()
    if thread is not None:
        try:
            check_thread_id(thread)
        except ValueError as error:
            raise UsageError(f"--thread: {error}") from error
    agent = load_agent(file, environment=context.environment)
    if agent.graph.compile_config.saver is None:
        if thread is not None:
            raise UsageError(f"--thread: {escape(file)} has no checkpointer, so there is nothing to continue")
        context.warn("the agent has no checkpointer: it forgets each message when it has answered")
    elif thread is None:
        try:
            thread = agent.new_thread_id()
        except Exception as error:  # a function of the application may raise anything
            raise UsageError(f"give a --thread: the agent cannot make an id: {describe_error(error)}") from error

    # One event loop for all turns, because connections belong to their loop.
    with asyncio.Runner() as runner:
        try:
            yield from _Conversation(context, agent, thread, runner).run()
        finally:
            runner.run(agent.aclose())


@final
class _Conversation:
    """A conversation at the terminal.

    What a turn is given is a message, None to resume the turn before, or the answers to its interrupts;
    ABSENT ends the conversation.
    """

    def __init__(self, context: CliContext, agent: Agent, thread: str | None, runner: asyncio.Runner) -> None:
        self._context = context
        self._agent = agent
        self._thread = thread
        self._runner = runner
        self._is_interactive = context.input.isatty()
        self._shown = 0
        """The number of messages that were shown."""

    def run(self) -> Iterator[Text | Message]:
        """Read messages and yield the answers, until the input ends."""
        turns = 0
        waiting: Sequence[InterruptionMetadata] = ()
        snapshot = None
        if self._thread is not None:
            with suppress(CheckpointNotFoundError):
                snapshot = self._agent.get_state(self._thread)
        if snapshot is not None:
            messages = snapshot.state.get(_MESSAGES) or ()
            self._shown = len(messages)
            self._context.warn(f"continuing {escape(str(self._thread))}: {pluralize(len(messages), 'message')}")
        given: Any = None  # resumes a turn that has not ended
        if snapshot is None or snapshot.next == END:
            given = self._read_message()

        while given is not ABSENT:
            if not isinstance(given, GraphResume):
                turns += 1
            try:
                last = yield from self._follow(given)
            except Exception as error:
                if given is not None or not isinstance(error, MaxIterationsError):
                    if self._thread is not None:  # which the agent may have made
                        self._context.warn(f"the turn has failed; continue with --thread {escape(self._thread)}")
                    raise
                # A resume executes nothing more; a message starts a new count.
                self._context.warn(f"graphkit: {error}")
                last = None
            stops = last.interrupts if isinstance(last, InterruptionMetadata) else ()
            waiting = [stop for stop in stops if stop.when != "before" and stop.due is None]
            given = ABSENT  # Ctrl-C has stopped the run before its next node
            if waiting:
                given = self._ask(waiting)
            elif all(stop.when != "before" for stop in stops):
                given = self._read_message()
        yield self._summarize(turns, waiting)

    def _summarize(self, turns: int, waiting: Sequence[InterruptionMetadata]) -> Message:
        """Return what the conversation ends with: its turns, what waits for an answer, and how to continue."""
        parts = [pluralize(turns, "turn")]
        for stop in waiting:
            if _is_approval(stop.payload):
                parts.append(f"a call waits for approval: {_describe_call(stop.payload)}")
            else:
                parts.append(f"a question waits for an answer: {describe_payload(stop.reason())}")
        if self._thread is not None:
            parts.append(f"continue with --thread {escape(self._thread)}")
        elif waiting:
            parts.append("no answer can come later, because the agent has no checkpointer")
        payloads = [interrupt.payload for interrupt in waiting]
        return Message("; ".join(parts), {"thread": self._thread, "turns": turns, "waiting": payloads})

    def _read_message(self) -> Any:
        """Return the next line that is not empty; ABSENT at the end of the input."""
        while (line := self._read_line("> ")) is not None:
            if line.strip():
                return line
        return ABSENT

    def _read_line(self, prompt: str) -> str | None:
        line = self._context.ask(prompt if self._is_interactive else "")
        if line:
            return line.rstrip("\n")
        if self._is_interactive:
            self._context.err.write("\n")  # Ctrl-D leaves the cursor after the prompt
        return None

    def _follow(self, given: Any) -> Generator[Text, None, NodeOutput | None]:
        """Run once; show text as it arrives and messages as they are finished; return the last output."""
        last: NodeOutput | None = None
        is_streamed = False
        try:
            with (
                self._context.stop_on_signal(lambda: self._agent.graph.pause(self._thread)) as stop_again,
                closing(step_through(self._agent.astream(given, self._thread), self._runner)) as outputs,
            ):
                for output in outputs:
                    stop_again()
                    last = output
                    if isinstance(output, StreamingOutput):
                        is_streamed = is_streamed or isinstance(output.chunk, str)
                        self._write(output.chunk)
                        continue
                    if is_streamed:
                        self._write("\n")
                    yield from self._show_messages(output.state, is_streamed=is_streamed)
                    is_streamed = False
        finally:
            if is_streamed:
                self._write("\n")  # after the part of an answer that broke off
        return last

    def _write(self, text: Any) -> None:
        if isinstance(text, str) and not self._context.as_json:
            self._context.out.write(escape_lines(text))
            self._context.out.flush()

    def _show_messages(self, state: Mapping[str, Any], *, is_streamed: bool) -> Iterator[Text]:
        """Yield the messages that are new in a state; the text of one that was streamed is left out."""
        messages: Sequence[Mapping[str, Any]] = state.get(_MESSAGES) or ()
        for message in messages[self._shown :]:
            lines: list[str] = []
            role = message.get("role")
            content = message.get("content")
            if role == "tool":
                lines.append(f"  = {abbreviate(content, 200)}")
            elif role == "assistant":
                if isinstance(content, str) and content and not is_streamed:
                    lines.append(escape_lines(content))
                for call in message.get("tool_calls") or ():
                    function = call.get("function") or {}
                    name = escape(str(function.get("name")))
                    arguments = abbreviate(function.get("arguments"), 200)
                    lines.append(f"  * {name} {arguments}")
            if lines or self._context.as_json:
                yield Text("\n".join(lines), {"message": dict(message)})
        self._shown = len(messages)

    def _ask(self, interrupts: Sequence[InterruptionMetadata]) -> Any:
        """Return the answers to interrupts; ABSENT if the input has ended before the first.

        If it ends later, the answers so far are kept, and the next conversation asks for the others.
        """
        answers: dict[str, Any] = {}
        for interrupt in interrupts:
            payload = interrupt.payload
            is_approval = _is_approval(payload)
            question = describe_payload(interrupt.reason())
            if is_approval:
                question = f"approve {_describe_call(payload)}? [y/n/JSON]"
                if "error" in payload:
                    self._context.warn(escape(str(payload["error"])))
            answer: Any = ABSENT
            while answer is ABSENT:
                if not self._is_interactive:
                    self._context.warn(question)
                line = self._read_line(f"{question} ")
                if line is None:
                    return GraphResume(answers) if answers else ABSENT
                answer = _parse_approval(line) if is_approval else parse_json_or_text(line, "the answer")
            answers[interrupt.id] = answer
        return GraphResume(answers)


def _is_approval(payload: Any) -> bool:
    return isinstance(payload, Mapping) and payload.keys() >= _APPROVAL_KEYS


def _describe_call(payload: Mapping[str, Any]) -> str:
    return f"{escape(str(payload['tool']))} {abbreviate(payload['arguments'], 400)}"


def _parse_approval(line: str) -> Any:
    """Return the answer to an approval; ABSENT if it cannot be understood."""
    word, _, rest = line.strip().partition(" ")
    if word.lower() in {"y", "yes"} and not rest:
        return True
    if word.lower() in {"n", "no"}:
        return {"approved": False, "reason": rest.strip()} if rest.strip() else False
    if word.startswith("{"):
        with suppress(ValueError, RecursionError):
            return {"approved": True, "arguments": parse_json(line)}
    return ABSENT
