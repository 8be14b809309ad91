"""load_agent: an agent from a YAML file that the user wrote."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from logging import getLogger
from pathlib import Path as FilePath
from typing import Any, Final, final

from pydantic import SecretStr, ValidationError

from graphkit._records.context import setting
from graphkit._values.state import AgentState, MessagesState
from graphkit.agents.agent import Agent
from graphkit.agents.builder import AgentBuilderDirector, check_agent
from graphkit.agents.configuration import LOADING, AgentConfig
from graphkit.agents.settings import Path, YamlFile, find_problems
from graphkit.agents.state import DefaultState
from graphkit.errors import AgentConfigurationError, AgentFileNotFoundError

_LOGGER: Final = getLogger("graphkit.agents")
_OWN_STATE_TYPES: Final = (AgentState, DefaultState, MessagesState)
_MOST_PROBLEMS: Final = 10
"""How many problems one message lists."""
_SECRET_NAMES: Final = ("KEY", "PASSWORD", "SECRET", "TOKEN")
"""Parts of the names of environment variables that probably hold a secret."""


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
        OSError: a file cannot be read.
    """
    config = load_agent_config(path, state_types=state_types, environment=environment)
    return AgentBuilderDirector(config).build()


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
    return _Loader(environment, state_types).load(FilePath(os.fsdecode(path)))


def check_agent_file(path: str | os.PathLike[str], *, environment: Mapping[str, str] | None = None) -> AgentConfig:
    """Check a file as `load_agent` does, without a store and without connecting to MCP servers.

    An environment variable with the name of a secret in a field that errors may show is logged as a warning.

    Raises:
        AgentConfigurationError, MissingDependencyError: as `load_agent`.
    """
    loader = _Loader(environment, ())
    config = loader.load(FilePath(os.fsdecode(path)))
    for loaded, file in loader.loaded:
        for place, name in file.variables:
            is_named_so = any(part in name.upper() for part in _SECRET_NAMES)
            if is_named_so and not isinstance(_find_value(loaded, place), SecretStr):
                error = file.make_error(f"${{{name}}} is probably a secret, and errors may show this field", place)
                _LOGGER.warning("%s. Use a field for secrets, or the name of the variable, such as api_key_env", error)
    check_agent(config)
    return config


@final
class _Loader:
    """Loads an agent file, and the files of the agents in it.

    Attributes:
        loaded: each configuration with its file, the innermost first.
    """

    def __init__(self, environment: Mapping[str, str] | None, state_types: Iterable[type]) -> None:
        """Take what the names in the files stand for.

        Raises:
            ValueError: two state types have the same name, or one is not a class.
        """
        self.loaded: list[tuple[AgentConfig, YamlFile]] = []
        self._environment = os.environ if environment is None else environment
        given: dict[str, type] = {}
        for state_type in state_types:
            checked: object = state_type
            if not isinstance(checked, type):
                raise ValueError(f"state_types must be classes, not {checked!r}")  # noqa: TRY004 - one kind for all
            if given.setdefault(checked.__name__, checked) is not checked:
                raise ValueError(f"two state_types are named {checked.__name__}: name one as module:name in the file")
        self._state_types = {**{known.__name__: known for known in _OWN_STATE_TYPES}, **given}
        self._outer: list[FilePath] = []

    def load(self, path: FilePath) -> AgentConfig:
        """Read a file, with the functions and classes in place of their names.

        Raises:
            AgentConfigurationError: as `load_agent`.
        """
        file = YamlFile(path, self._environment)
        self._outer.append(path.resolve())
        self._load_inner(file, file.data, ())
        self._outer.pop()
        try:
            with setting(LOADING, self._state_types):
                config = AgentConfig.model_validate(file.data)
        except ValidationError as error:
            raise _combine_problems(file, error) from error
        config.set_place(file)
        self.loaded.append((config, file))
        return config

    def _load_inner(self, file: YamlFile, agent: Mapping[str, Any], place: Path) -> None:
        """Put the agents that have files of their own into the data of an agent, in place of the names of the files."""
        # Before the data are validated, so that a step never holds both: what is built, written and compared does not
        # depend on whether an agent stood in a file of its own. What is no agent and no step, the validation refuses.
        steps = agent.get("steps")
        if not isinstance(steps, list):
            return
        for index, step in enumerate(steps):
            match step:
                case {"type": "agent", "agent": dict(inner)}:
                    self._load_inner(file, inner, (*place, "steps", index, "agent"))
                case {"type": "agent", "file": str(name)} if step.get("agent") is None:
                    directory = FilePath(file.path).parent
                    path = directory / name
                    shown = directory / file.written.get(name, name)  # the value of a variable may be secret
                    if path.is_dir() or not path.exists():
                        raise AgentFileNotFoundError(f"there is no such file; {file.path} names it", file=str(shown))
                    if path.resolve() in self._outer:
                        raise file.make_error(f"{shown} contains itself", (*place, "steps", index, "file"))
                    step["agent"] = self.load(path)
                    del step["file"]


def _combine_problems(file: YamlFile, error: ValidationError) -> AgentConfigurationError:
    """Return one error for all problems of a file; it stands at the first, and lists the others."""
    problems = sorted(find_problems(error), key=lambda problem: file.find_line(problem.path))
    first, *others = problems
    reasons = [first.reason]
    for problem in others[: _MOST_PROBLEMS - 1]:
        line = file.find_line(problem.path)
        reasons.append(f"line {line}: {problem}")
    left_out = len(problems) - _MOST_PROBLEMS
    if left_out > 0:
        reasons.append(f"and {left_out} more problems")
    return file.make_error("; ".join(reasons), first.path)


def _find_value(config: AgentConfig, path: Iterable[Any]) -> Any:
    """Return the value that a configuration has at a path of its file."""
    value: Any = config
    for part in path:
        value = value[part] if isinstance(value, list | dict) else getattr(value, str(part))
    return value


def make_schema() -> dict[str, Any]:
    """Return the JSON schema of an agent file, for editors."""
    definitions = AgentConfig.model_json_schema()["$defs"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **definitions["AgentConfig"],
        "title": "An agent of graphkit",
        "$defs": definitions,
    }
