"""load_agent: an agent from a YAML file that the user wrote."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple, Self, final

from pydantic import ValidationError

from graphkit._plan.retry import RetryPolicy
from graphkit._values.state import AgentState, MessagesState
from graphkit.agents.agent import Agent
from graphkit.agents.checkpointer_config import CheckpointerConfig
from graphkit.agents.configuration import AgentConfig
from graphkit.agents.default_state import DefaultState, find_declared_keys, parse_state_type
from graphkit.agents.director import AgentBuilderDirector, InvalidStepError
from graphkit.agents.model_settings import PROVIDERS
from graphkit.agents.references import resolve_reference
from graphkit.agents.settings import Path, Problem, find_problems
from graphkit.agents.steps import INPUT, STRATEGIES, keys_of_template
from graphkit.agents.tools import Tool, tool
from graphkit.agents.yaml_file import YamlFile
from graphkit.errors import AgentConfigurationError, CheckpointerConfigurationError, GraphStateError

_LOGGER: Final = getLogger("graphkit.agents")
_OWN_STATE_TYPES: Final = (AgentState, DefaultState, MessagesState)
_MOST_PROBLEMS: Final = 10
"""How many problems one message lists."""


def load_agent(
    path: str | os.PathLike[str],
    *,
    state_types: Iterable[type] = (),
    environment: Mapping[str, str] | None = None,
) -> Agent:
    """Build the agent that a YAML file describes.

    The file names functions and classes as `module:name`, and these modules are imported. So load
    only files that you would also run as programs.

    Args:
        path: the file.
        state_types: classes that the file, and the files of agents in it, may name without their module:
            `state_type: OrderState`. Those of graphkit, such as `DefaultState`, are known.
        environment: what `${NAME}` in the file stands for; `os.environ` by default.

    Raises:
        ValueError: two state types have the same name, or one is no class.
        AgentFileNotFoundError: there is no such file.
        AgentFileSyntaxError: it is not YAML, or the root is not a mapping.
        AgentConfigurationError: a key is unknown, missing or wrong. The message names the file, the
            line and the key. Nothing was stored.
        MissingDependencyError: a package is not installed that the agent needs.
    """
    return _AgentFile(path, _Names.of(environment, state_types)).build()


def load_agent_config(
    path: str | os.PathLike[str],
    *,
    state_types: Iterable[type] = (),
    environment: Mapping[str, str] | None = None,
) -> AgentConfig:
    """Return what a YAML file describes, with the functions and classes in place of their names.

    `AgentBuilderDirector(config).abuild()` builds it on an event loop.

    Raises:
        AgentConfigurationError: as `load_agent`.
    """
    return _AgentFile(path, _Names.of(environment, state_types)).config


def check_agent_file(path: str | os.PathLike[str], *, environment: Mapping[str, str] | None = None) -> AgentConfig:
    """Check a file as `load_agent` does, without a store and without connecting to MCP servers.

    A template that needs a key which the declared state type does not have is an error, too. One that
    needs a key which only the input of a run can have is logged as a warning.

    Raises:
        AgentConfigurationError: as `load_agent`.
    """
    return _AgentFile(path, _Names.of(environment, ())).check()


@final
class _Names(NamedTuple):
    """What the names in a file stand for."""

    variables: Mapping[str, str]
    """The environment variables."""
    state_types: Mapping[str, type]
    """The state types that a file may name without their module."""

    @classmethod
    def of(cls, environment: Mapping[str, str] | None, state_types: Iterable[type]) -> Self:
        """Read the arguments of the functions above.

        Raises:
            ValueError: two state types have the same name, or one is no class.
        """
        given: dict[str, type] = {}
        for state_type in state_types:
            checked: object = state_type
            if not isinstance(checked, type):
                raise ValueError(f"state_types must be classes, not {checked!r}")  # noqa: TRY004 - one kind for all
            if given.setdefault(checked.__name__, checked) is not checked:
                raise ValueError(f"two state_types are named {checked.__name__}: name one as module:name in the file")
        own = {known.__name__: known for known in _OWN_STATE_TYPES}
        return cls(os.environ if environment is None else environment, {**own, **given})


@final
class _AgentFile:
    """An agent file that is being loaded.

    Attributes:
        config: what it describes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        names: _Names,
        outer: tuple[FilePath, ...] = (),
    ) -> None:
        """Read a file and the files of the agents in it.

        Args:
            path: the file.
            names: what the names in it stand for.
            outer: the files that contain this one.
        """
        self._file = YamlFile(path, names.variables)
        self._names = names
        self._outer = (*outer, FilePath(self._file.path).resolve())
        self._inner: dict[Path, _AgentFile] = {}
        """The files of the steps that are agents in files of their own, by the path of the step."""
        self.config = self._load()

    def build(self) -> Agent:
        """Build the agent; its errors name the file."""
        self._check_checkpointers(self.config, ())
        try:
            return AgentBuilderDirector(self.config).build()
        except AgentConfigurationError as error:
            if error.file is not None:
                raise
            raise self._locate(error) from error
        except (TypeError, ValueError) as error:
            raise self._locate(error) from error

    def _locate(self, error: Exception) -> AgentConfigurationError:
        """Return the error of a build with the closest place in the file that is known."""
        if isinstance(error, InvalidStepError):
            return self._locate_step(error)
        message = str(error)
        if isinstance(error, CheckpointerConfigurationError) and self.config.checkpointer is not None:
            return self._file.make_error(message, ("checkpointer",))
        return self._file.make_error(message, ("steps",) if isinstance(error, ValueError) else ())

    def _locate_step(self, error: InvalidStepError) -> AgentConfigurationError:
        """Return the error of a step, which may be one of an agent in this file, or in a file of its own."""
        file = self
        path: Path = ()
        *outer, number = error.numbers
        for outer_number in outer:
            step: Path = (*path, "steps", outer_number)
            inner = file._inner.get(step)
            file = inner or file
            path = (*step, "agent") if inner is None else ()
        return file._file.make_error(error.reason, (*path, "steps", number))  # noqa: SLF001

    def check(self) -> AgentConfig:
        """Build the agent without savers and MCP servers, and check the settings of these."""
        config = self.config
        self._check_checkpointers(config, ())
        if config.mcp_servers:
            from graphkit.agents.mcp_servers import McpServers

            McpServers(config.mcp_servers)
        self._check_templates(config)
        self.config = _without_stores(config)
        try:
            self.build()
        finally:
            self.config = config
        return config

    def _check_templates(self, config: AgentConfig) -> None:
        """Check that the keys which the prompt templates need can be in the state.

        The agents in the agent are left out: their states have what the outer agent's has.
        """
        declared = find_declared_keys(config.state_type)
        can_store_any = False
        for index, step in enumerate(config.steps):
            if step["type"] != "llm":
                can_store_any = True
                continue
            for key in keys_of_template(step.get("prompt_template") or ""):
                if key == INPUT or key in declared.keys:
                    continue
                error = self._file.make_error(
                    f"needs {key!r}, which the state type does not have; it has {', '.join(sorted(declared.keys))}",
                    self._place_of("prompt_template", ("steps", index)),
                )
                if declared.are_all:
                    raise error
                if not can_store_any:
                    _LOGGER.warning("%s. A run with a text fails; run it with a mapping that has this key", error)

    def _check_checkpointers(self, config: AgentConfig, path: Path) -> None:
        """Check the checkpointers of an agent of this file, and of the agents in it."""
        self._check_checkpointer(config.checkpointer, path)
        for index, step in enumerate(config.steps):
            agent = step.get("agent")
            if isinstance(agent, AgentConfig):
                self._check_nested(agent, (*path, "steps", index))

    def _check_nested(self, agent: AgentConfig, step: Path) -> None:
        """Check the checkpointers of the agent of a step."""
        if self._file.has((*step, "checkpointer")):
            self._check_checkpointer(agent.checkpointer, step)
        inner = self._inner.get(step)
        if inner is None:
            self._check_checkpointers(agent, (*step, "agent"))
        else:
            inner._check_checkpointers(inner.config, ())  # noqa: SLF001 - of the same class

    def _check_checkpointer(self, checkpointer: Any, path: Path) -> None:
        """Check the checkpointer at a path. The error names the option whose value is wrong."""
        if not isinstance(checkpointer, CheckpointerConfig):
            return
        try:
            checkpointer.check()
        except CheckpointerConfigurationError as error:
            where = (*path, "checkpointer")
            option, _, reason = str(error).partition(" ")
            if option not in (checkpointer.config or {}):
                raise self._file.make_error(str(error), where) from error
            raise self._file.make_error(reason, (*where, "config", option)) from error

    # From plain data to a configuration

    def _load(self) -> AgentConfig:
        return self._resolve(self._read_config(), ())

    def _read_config(self) -> AgentConfig:
        try:
            return AgentConfig.from_dict(self._file.data)
        except AgentConfigurationError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise self._file.make_error(str(error)) from error
            raise self._describe_problems(error.__cause__) from error.__cause__

    def _describe_problems(self, error: ValidationError) -> AgentConfigurationError:
        """Return one error for all problems; it stands at the first, and lists the others."""
        problems = sorted(find_problems(error), key=self._find_line)
        first = problems[0]
        reasons = [first.reason]
        for problem in problems[1:_MOST_PROBLEMS]:
            line = self._find_line(problem)
            reasons.append(f"line {line}: {problem}")
        left_out = len(problems) - _MOST_PROBLEMS
        if left_out > 0:
            reasons.append(f"and {left_out} more problems")
        text = "; ".join(reasons)
        return self._file.make_error(text, first.path)

    def _find_line(self, problem: Problem) -> int:
        return self._file.find_line(problem.path) or 0

    # From names to objects

    def _resolve(self, config: AgentConfig, path: Path) -> AgentConfig:
        if not config.steps:
            raise self._file.make_error("is missing: an agent needs at least one step", (*path, "steps"))
        state_type = self._resolve_state_type(config.state_type, (*path, "state_type"))
        steps = self._resolve_steps(config.steps, (*path, "steps"))
        tools = self._resolve_tools(config.tools, (*path, "tools"))
        thread_id = self._resolve_thread_id(config.thread_id, (*path, "thread_id"))
        return dataclasses.replace(
            config,
            written=self._file.written,
            state_type=state_type,
            steps=steps,
            tools=tools,
            thread_id=thread_id,
        )

    def _resolve_thread_id(self, settings: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
        make_id = settings.get("generator_func")
        if not isinstance(make_id, str):
            return settings
        function = self._import_function(make_id, (*path, "generator_func"))
        return {**settings, "generator_func": function}

    def _resolve_steps(self, steps: Sequence[Mapping[str, Any]], path: Path) -> list[dict[str, Any]]:
        return [self._resolve_step(step, (*path, index)) for index, step in enumerate(steps)]

    def _resolve_step(self, step: Mapping[str, Any], path: Path) -> dict[str, Any]:
        type_name = step["type"]
        if type_name not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise self._file.make_error(f"there is no type {type_name!r}; the types are {known}", (*path, "type"))
        if type_name == "llm":
            return self._resolve_chat(step, path)
        if type_name == "function":
            return self._resolve_function(step, path)
        if type_name == "agent":
            return self._resolve_agent(step, path)
        return dict(step)  # of a registered type, which reads its own settings

    def _resolve_chat(self, step: Mapping[str, Any], path: Path) -> dict[str, Any]:
        resolved = dict(step)
        model = step["model"]
        if isinstance(model, str):
            resolved["model"] = self._resolve_model(model, (*path, "model"))
        if "tools" in step:
            resolved["tools"] = self._resolve_tools(step["tools"], self._place_of("tools", path))
        return resolved

    def _place_of(self, key: str, step: Path) -> Path:
        """Return the path at which a chat step of this file has a key: in its `config`, or in the step itself."""
        in_config = (*step, "config", key)
        return in_config if self._file.has(in_config) else (*step, key)

    def _resolve_function(self, step: Mapping[str, Any], path: Path) -> dict[str, Any]:
        function = step["function"]
        if isinstance(function, str):
            function = self._import_function(function, (*path, "function"))
        return {**step, "function": function}

    def _resolve_agent(self, step: Mapping[str, Any], path: Path) -> dict[str, Any]:
        if "file" in step:
            return self._load_inner(step, path)
        agent = self._resolve(step["agent"], (*path, "agent"))
        return {**step, "agent": agent}

    def _load_inner(self, step: Mapping[str, Any], path: Path) -> dict[str, Any]:
        """Load the agent of a step from its own file; it takes the place of `file` and `checkpointer`."""
        others = dict(step)
        directory = FilePath(self._file.path).parent
        file = directory / others.pop("file")
        checkpointer = others.pop("checkpointer", None)
        if file.resolve() in self._outer:
            raise self._file.make_error(f"{file} contains itself", (*path, "file"))
        inner = _AgentFile(file, self._names, self._outer)
        self._inner[path] = inner
        config = inner.config
        if checkpointer is None:
            return {**others, "agent": config}
        if config.checkpointer is not None:
            reason = f"{file} has a checkpointer, too; keep one"
            raise self._file.make_error(reason, (*path, "checkpointer"))
        agent = dataclasses.replace(config, checkpointer=checkpointer)
        return {**others, "agent": agent}

    def _resolve_model(self, text: str, path: Path) -> Any:
        """Return the text `provider:model`, or the function that `module:name` stands for."""
        if text.partition(":")[0] in PROVIDERS:
            return text
        try:
            return self._import_function(text, path)
        except AgentConfigurationError as error:
            known = ", ".join(PROVIDERS)
            reason = f"{error.reason}. A model is provider:model (providers: {known}) or module:name of a function"
            raise self._file.make_error(reason, path) from error

    def _resolve_tools(self, tools: Any, path: Path) -> list[Any]:
        return [self._resolve_tool(entry, (*path, index)) for index, entry in enumerate(tools)]

    def _resolve_tool(self, entry: Any, path: Path) -> Any:
        if not isinstance(entry, Mapping):
            entry = {"function": entry}
        options = {name: value for name, value in entry.items() if value is not None}
        function = options.pop("function")
        if isinstance(function, str):
            function = self._import_function(function, path)
        try:
            return _make_tool(function, options)
        except (TypeError, ValueError) as error:
            raise self._file.make_error(str(error), path) from error

    def _resolve_state_type(self, state_type: Any, path: Path) -> Any:
        if not isinstance(state_type, str):
            return state_type
        if state_type.isidentifier():
            return self._find_state_type(state_type, path)
        found = self._import(state_type, path)
        try:
            parse_state_type(found, with_messages=False)
        except GraphStateError as error:
            raise self._file.make_error(str(error), path) from error
        return found

    def _find_state_type(self, name: str, path: Path) -> type:
        known = self._names.state_types
        if name not in known:
            names = ", ".join(sorted(known))
            reason = f"there is no state type {name!r}; known are {names}. Write module:name, or give the class to "
            raise self._file.make_error(f"{reason}load_agent(..., state_types=[{name}])", path)
        return known[name]

    def _import_function(self, reference: str, path: Path) -> Any:
        found = self._import(reference, path)
        if not callable(found) and not hasattr(found, "request"):
            raise self._file.make_error(f"{reference} is a {type(found).__name__}, which cannot be called", path)
        return found

    def _import(self, reference: str, path: Path) -> Any:
        try:
            return resolve_reference(reference)
        except ValueError as error:
            raise self._file.make_error(str(error), path) from error


def _make_tool(function: Any, options: dict[str, Any]) -> Any:
    """Return a function as a tool, or a tool with other options; a tool without options stays itself."""
    if not isinstance(function, Tool):
        function = tool(function, name=options.get("name"))
    retry = options.get("retry")
    if retry is not None:
        options["retry"] = RetryPolicy(**retry)
    if not options:
        return function
    return dataclasses.replace(function, **options)


def _without_stores(config: AgentConfig) -> AgentConfig:
    steps = []
    for step in config.steps:
        agent = step.get("agent")
        if isinstance(agent, AgentConfig):
            steps.append({**step, "agent": _without_stores(agent)})
        else:
            steps.append(dict(step))
    return dataclasses.replace(config, steps=steps, checkpointer=None, mcp_servers={})


def make_schema() -> dict[str, Any]:
    """Return the JSON schema of an agent file, for editors."""
    from graphkit.agents.agent_settings import AgentSettings

    definitions = AgentSettings.model_json_schema()["$defs"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **definitions["AgentSettings"],
        "title": "An agent of graphkit",
        "$defs": definitions,
    }
