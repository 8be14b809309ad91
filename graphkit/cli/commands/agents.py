"""Agents from YAML: agents schema, agents check, agents run."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import click

from graphkit._records.config import END
from graphkit._records.output import ABSENT, GraphResume, InterruptionMetadata, NodeOutput, StreamingOutput
from graphkit.cli.command import Command
from graphkit.cli.context import CliContext
from graphkit.cli.values import UsageError, abbreviate, describe_payload, escape, pluralize
from graphkit.cli.views import Message, Text
from graphkit.errors import CheckpointNotFoundError, GraphKitError, MaxIterationsError

if TYPE_CHECKING:
    import asyncio

    from graphkit.agents import Agent

_APPROVAL_KEYS: Final = frozenset({"tool", "arguments", "id"})
_MESSAGES: Final = "messages"

_agent_file = click.argument("file", metavar="FILE", help="The YAML file of the agent.")


@click.command("agents-schema", cls=Command)
def agents_schema(_context: CliContext) -> Text:
    """Print the JSON schema of agent files.

    Editors use it to complete keys and to mark mistakes: store it in a file, and name that file in
    the first line of an agent file, `# yaml-language-server: $schema=agent.schema.json`.

    Example: graphkit agents schema
    """
    from graphkit.agents.yaml_loader import make_schema

    schema = make_schema()
    return Text(json.dumps(schema, indent=2), schema)


@click.command("agents-check", cls=Command)
@_agent_file
def agents_check(context: CliContext, file: str) -> Message:
    """Check an agent file.

    The command imports the modules that the file names, but makes no store, connects to no MCP
    server and asks no model.

    Example: graphkit agents check assistant.yaml
    """
    from graphkit.agents.yaml_loader import check_agent_file

    _search_modules_here()
    config = check_agent_file(file, environment=context.environment)
    types = [str(step["type"]) for step in config.steps]
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


@click.command("agents-run", cls=Command)
@_agent_file
@click.option(
    "--thread",
    "-t",
    metavar="THREAD",
    help="The conversation to start or to continue. Default: a new one, with an id that the agent makes.",
)
def agents_run(context: CliContext, file: str, thread: str | None) -> Iterator[Text | Message]:
    """Run a conversation with an agent.

    Each line of standard input is a message; Ctrl-D ends the conversation. The answer appears while
    the model writes it. Before a tool that requires approval, the command asks: `y` approves, `n`
    refuses, `n REASON` tells the model why, and a JSON object approves with other arguments.

    If the agent has a checkpointer, --thread continues a conversation, also after a crash or in the
    middle of an approval. After an error, an empty line tries again, and another line is a message.

    Example: graphkit agents run assistant.yaml --thread bob
    """
    from graphkit.agents import check_thread_id, load_agent

    _search_modules_here()
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
    else:
        thread = thread or agent.new_thread_id()
    return _converse(context, agent, thread)


def _search_modules_here() -> None:
    """Let the file name modules of the current directory, as `--app` does."""
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)


def _converse(context: CliContext, agent: Agent, thread: str | None) -> Iterator[Text | Message]:
    if not agent.graph.topology.asynchronous:
        with agent:
            yield from _Conversation(context, agent, thread, None).run()
        return
    import asyncio

    # One event loop for all turns: connections belong to their loop.
    with asyncio.Runner() as runner:
        try:
            yield from _Conversation(context, agent, thread, runner).run()
        finally:
            runner.run(agent.aclose())


@final
class _Conversation:
    """A conversation at the terminal."""

    def __init__(self, context: CliContext, agent: Agent, thread: str | None, runner: asyncio.Runner | None) -> None:
        self._context = context
        self._agent = agent
        self._thread = thread
        self._runner = runner
        self._is_interactive = context.input.isatty()
        self._shown = 0
        """How many messages have been shown."""
        self._waiting: Sequence[InterruptionMetadata] = ()
        """What waits for an answer when the input has ended."""

    def run(self) -> Iterator[Text | Message]:
        """Read messages and yield the answers, until the input ends."""
        turns = 0
        given: Any = ABSENT
        if self._thread is not None:
            given = self._find_rest()
        while True:
            if given is ABSENT:
                given = self._read_message()
                if given is None:
                    break
            turns += 1
            is_done = yield from self._take_turn(given)
            if not is_done:
                break
            given = ABSENT
        yield self._describe_end(turns)

    def _find_rest(self) -> Any:
        """Return what resumes a turn that has not ended: None; ABSENT if there is none."""
        try:
            snapshot = self._agent.get_state(self._thread or "")
        except CheckpointNotFoundError:
            return ABSENT
        messages = snapshot.state.get(_MESSAGES) or ()
        self._shown = len(messages)
        self._context.warn(f"continuing {escape(self._thread or '')}: {pluralize(len(messages), 'message')}")
        return ABSENT if snapshot.next == END else None

    def _read_message(self) -> str | None:
        """Return the next line that is not empty; None at the end of the input."""
        while True:
            line = self._read_line("> ")
            if line is None:
                return None
            if line.strip():
                return line

    def _read_next_attempt(self, failed: Any) -> Any:
        """Return what goes on after an error: the same again, or a message; ABSENT at the end of the input."""
        line = self._read_line("press Enter to try again, or type another message; Ctrl-D ends: ")
        if line is None:
            return ABSENT
        if line.strip():
            return line
        return failed if self._thread is None else None

    def _read_line(self, prompt: str) -> str | None:
        if self._is_interactive:
            self._context.err.write(prompt)
            self._context.err.flush()
        line = self._context.input.readline()
        if line:
            return line.rstrip("\n")
        if self._is_interactive:
            self._context.err.write("\n")  # Ctrl-D leaves the cursor after the prompt
        return None

    def _take_turn(self, given: Any) -> Generator[Text, None, bool]:
        """Run to the end of the turn, with its approvals; return whether the conversation goes on."""
        while True:
            try:
                last = yield from self._follow(given)
            except MaxIterationsError as error:
                # To try again would execute nothing; a message starts a new count.
                if self._is_interactive:
                    self._context.warn(f"graphkit: {error}")
                    return True
                is_resumed = given is None
                given = self._read_message() if is_resumed else None
                if given is None:
                    raise
                self._context.warn(f"graphkit: {error}")
                continue
            except GraphKitError as error:
                if not self._is_interactive:
                    raise
                self._context.warn(f"graphkit: {error}")
                given = self._read_next_attempt(given)
                if given is ABSENT:
                    return False
                continue
            if not isinstance(last, InterruptionMetadata):
                return True
            answers = self._ask(last.interrupts)
            if answers is None:
                self._waiting = last.interrupts
                return False
            given = GraphResume(answers)

    def _follow(self, given: Any) -> Generator[Text, None, NodeOutput | None]:
        """Run once; show text as it arrives and messages as they are finished; return the last output."""
        last: NodeOutput | None = None
        streamed = ""
        try:
            with self._context.stop_on_signal(self._stop):
                for last in self._outputs(given):
                    if isinstance(last, StreamingOutput):
                        if isinstance(last.chunk, str):
                            streamed += last.chunk
                            self._write(last.chunk)
                        continue
                    if streamed:
                        self._write("\n")
                    yield from self._show_messages(last.state, is_streamed=bool(streamed))
                    streamed = ""
        finally:
            if streamed:
                self._write("\n")  # after the part of an answer that broke off
        return last

    def _stop(self) -> None:
        """Stop the run before the next node."""
        if self._thread is not None:
            self._agent.graph.pause(self._thread)

    def _outputs(self, given: Any) -> Iterator[NodeOutput]:
        if self._runner is None:
            yield from self._agent.stream(given, self._thread)
            return

        async def read_next(stream: Any) -> NodeOutput | None:
            return await anext(stream, None)

        stream = self._agent.astream(given, self._thread)
        while (output := self._runner.run(read_next(stream))) is not None:
            yield output

    def _write(self, text: str) -> None:
        if not self._context.as_json:
            self._context.out.write(escape_lines(text))
            self._context.out.flush()

    def _show_messages(self, state: Mapping[str, Any], *, is_streamed: bool) -> Iterator[Text]:
        """Yield the messages that are new in a state; the text of one that was streamed is left out."""
        messages: Sequence[Mapping[str, Any]] = state.get(_MESSAGES) or ()
        for message in messages[self._shown :]:
            for line in _lines_of(message, is_streamed=is_streamed) or [""]:
                if line or self._context.as_json:
                    yield Text(line, {"message": dict(message)})
        self._shown = len(messages)

    def _ask(self, interrupts: Sequence[InterruptionMetadata]) -> dict[str, Any] | None:
        """Return the answers by the ids of the interrupts; None if the input has ended before the first.

        If it ends later, the answers so far are kept, and the next conversation asks for the others.
        """
        answers: dict[str, Any] = {}
        for interrupt in interrupts:
            answer = self._ask_one(interrupt)
            if answer is ABSENT:
                break
            answers[interrupt.id] = answer
        return answers or None

    def _ask_one(self, interrupt: InterruptionMetadata) -> Any:
        payload = interrupt.payload
        if not _is_approval(payload):
            line = self._read_question(describe_payload(interrupt.reason()))
            return ABSENT if line is None else _parse_answer(line)
        if "error" in payload:
            self._context.warn(escape(str(payload["error"])))
        question = f"approve {_describe_call(payload)}? [y/n/JSON]"
        while True:
            line = self._read_question(question)
            if line is None:
                return ABSENT
            answer = _parse_approval(line)
            if answer is not None:
                return answer

    def _read_question(self, question: str) -> str | None:
        if not self._is_interactive:
            self._context.warn(question)
        return self._read_line(f"{question} ")

    def _describe_end(self, turns: int) -> Message:
        parts = [pluralize(turns, "turn"), *map(_describe_waiting, self._waiting)]
        if self._thread is not None:
            parts.append(f"continue with --thread {escape(self._thread)}")
        elif self._waiting:
            parts.append("no answer can come later, because the agent has no checkpointer")
        waiting = [interrupt.payload for interrupt in self._waiting]
        return Message("; ".join(parts), {"thread": self._thread, "turns": turns, "waiting": waiting})


def _is_approval(payload: Any) -> bool:
    return isinstance(payload, Mapping) and payload.keys() >= _APPROVAL_KEYS


def _describe_call(payload: Mapping[str, Any]) -> str:
    return f"{escape(str(payload['tool']))} {abbreviate(payload['arguments'], 400)}"


def _describe_waiting(interrupt: InterruptionMetadata) -> str:
    if _is_approval(interrupt.payload):
        return f"a call waits for approval: {_describe_call(interrupt.payload)}"
    return f"a question waits for an answer: {describe_payload(interrupt.reason())}"


def escape_lines(text: str) -> str:
    """Return a text without the characters that a terminal would interpret; lines stay lines."""
    return "".join(one if one.isprintable() or one in "\n\t" else escape(one) for one in text)


def _lines_of(message: Mapping[str, Any], *, is_streamed: bool) -> list[str]:
    """Return the lines that show a message of the model or of a tool."""
    lines: list[str] = []
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        return [f"  = {abbreviate(content, 200)}"]
    if role != "assistant":
        return lines
    if isinstance(content, str) and content and not is_streamed:
        lines.append(escape_lines(content))
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        lines.append(f"  * {escape(str(function.get('name')))} {abbreviate(function.get('arguments'), 200)}")
    return lines


def _parse_answer(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _parse_approval(line: str) -> Any:
    """Return the answer to an approval; None if it cannot be understood."""
    word, _, rest = line.strip().partition(" ")
    if word.lower() in {"y", "yes"} and not rest:
        return True
    if word.lower() in {"n", "no"}:
        return {"approved": False, "reason": rest.strip()} if rest.strip() else False
    if word.startswith("{"):
        try:
            return {"approved": True, "arguments": json.loads(line)}
        except ValueError:
            return None
    return None
