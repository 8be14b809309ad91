"""AgentConfig: what an agent consists of, as plain data."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self, final

from pydantic import SecretStr

from graphkit._plan.retry import RetryPolicy
from graphkit.agents.checkpointer_config import CheckpointerConfig, parse_checkpointer
from graphkit.agents.default_state import DefaultState
from graphkit.agents.model_settings import MODEL_KEYS, without_key
from graphkit.agents.references import describe_reference, find_loaded
from graphkit.agents.settings import Path, Settings, format_path
from graphkit.agents.tools import Tool, tool
from graphkit.errors import AgentConfigurationError

_PLAIN: Final = (str, int, float, bool, type(None))
_TOOL_OPTIONS: Final = ("requires_approval", "timeout", "on_error")
_RETRY_OPTIONS: Final = ("max_attempts", "initial_delay", "backoff", "max_delay", "jitter")


@final
@dataclasses.dataclass(kw_only=True, repr=False)
class AgentConfig:
    """What an agent consists of; `AgentBuilderDirector` builds it.

    `to_dict` returns plain data, in which functions and classes are named `module:name`. Building a
    configuration that was read by `from_dict` therefore needs those objects in place of their names;
    `load_agent` puts them there, for a file that the user wrote.
    """

    name: str = "agent"
    """The name of the agent, for people."""
    state_type: Any = DefaultState
    """As the schema of a StateGraph."""
    steps: Sequence[Mapping[str, Any]] = dataclasses.field(default_factory=list)
    """Each with a `type`, perhaps a `name`, and the settings of that type of step."""
    checkpointer: Any = None
    """A saver, a CheckpointerConfig, or another object whose `build()` returns a saver or None."""
    tools: Sequence[Any] = dataclasses.field(default_factory=list)
    """What the models of all chat steps may call."""
    mcp_servers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of MCP servers, by name."""
    max_iterations: int | None = None
    """How many nodes one run executes, at most; None: 1,000. Agents in this agent have the same limit."""
    thread_id: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The strategy for thread ids, and its options."""
    written: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    """Texts of the file that this was loaded from in which a variable was replaced, and how the file writes them."""

    def __repr__(self) -> str:
        """Name the agent and the types of its steps; other values may be secret."""
        types = [step.get("type") for step in self.steps]
        return f"AgentConfig(name={self.name!r}, steps={types!r})"

    def set_checkpointer(self, checkpointer: Any) -> None:
        """Choose the checkpointer.

        Args:
            checkpointer: a CheckpointerConfig, a mapping of its fields, a saver, or None.

        Raises:
            CheckpointerConfigurationError: it is none of these, or a field of the mapping is unknown or
                wrong. Nothing was changed.
        """
        self.checkpointer = parse_checkpointer(checkpointer)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as values that JSON and YAML can hold. `from_dict` reads them.

        The `api_key` of a model is left out: what is loaded takes the key from the environment. A
        text with `${NAME}` or `$${` in the file that this was loaded from is written as it is there, so
        write it to a file to load it again. A `${` of a configuration made in code stays as it is; a file
        has `$${` for it.

        Raises:
            AgentConfigurationError: a saver, an agent, a function without a name of its own, the
                `retry_on` of a tool, or parameters of a tool that are not those of its function have no
                plain form. The message names the key.
        """
        plain: dict[str, Any] = {"name": self.name}
        if self.state_type is not DefaultState:
            plain["state_type"] = _name_object(self.state_type, ("state_type",))
        plain["steps"] = _dump_steps(self.steps, ("steps",))
        if self.checkpointer is not None:
            plain["checkpointer"] = _dump_checkpointer(self.checkpointer, ("checkpointer",))
        if self.tools:
            plain["tools"] = _dump_tools(self.tools, ("tools",))
        if self.mcp_servers:
            plain["mcp_servers"] = _dump_value(self.mcp_servers, ("mcp_servers",))
        if self.max_iterations is not None:
            plain["max_iterations"] = self.max_iterations
        if self.thread_id:
            plain["thread_id"] = _dump_value(self.thread_id, ("thread_id",))
        restored: dict[str, Any] = _restore(plain, self.written)
        return restored

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> Self:
        """Read plain data: what `to_dict` returned, or the content of an agent file.

        Nothing is imported: names of functions and classes stay names.

        Raises:
            AgentConfigurationError: a key is unknown, missing or wrong. The message names each.
        """
        from graphkit.agents.agent_settings import AgentSettings

        return cls._of_settings(_read_fields(AgentSettings.from_mapping(mapping)))

    @classmethod
    def _of_settings(cls, fields: dict[str, Any]) -> Self:
        """Make a configuration of checked fields; nested agents become configurations, too."""
        given = _without_none(fields)
        given["steps"] = [cls._of_step(step) for step in given.get("steps", ())]
        thread_id = given.get("thread_id")
        if isinstance(thread_id, str):
            given["thread_id"] = {"strategy": thread_id}
        return cls(**given)

    @classmethod
    def _of_step(cls, step: dict[str, Any]) -> dict[str, Any]:
        given = _without_none(step)
        if given["type"] == "llm" and "config" in given:
            return _merge_config(given)
        if given["type"] != "agent" or "agent" not in given:
            return given
        agent = cls._of_settings(given["agent"])
        # The saver belongs to the nested agent, wherever the file has it.
        checkpointer = given.pop("checkpointer", None)
        if checkpointer is not None:
            agent.set_checkpointer(checkpointer)
        return {**given, "agent": agent}


def _merge_config(step: dict[str, Any]) -> dict[str, Any]:
    """Return a chat step with what its key `config` holds at the places where a step has it."""
    merged = dict(step)
    config = merged.pop("config")
    model = {name: value for name, value in config.items() if name in MODEL_KEYS}
    others = {name: value for name, value in config.items() if name not in MODEL_KEYS}
    merged.setdefault("model", model)
    return {**merged, **_without_none(others)}


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have a value."""
    return {name: value for name, value in settings.items() if value is not None}


def _read_fields(value: Any) -> Any:
    """Return settings as a dict of the fields that were set; a checkpointer stays as it is."""
    if isinstance(value, CheckpointerConfig):
        return value
    if isinstance(value, Settings):
        return _read_settings(value)
    if isinstance(value, list):
        return [_read_fields(item) for item in value]
    if isinstance(value, dict):
        return {name: _read_fields(item) for name, item in value.items()}
    return value


def _read_settings(settings: Settings) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in type(settings).model_fields:  # in the order of the class
        if name in settings.model_fields_set:
            fields[name] = _read_fields(getattr(settings, name))
    if settings.model_extra is not None:
        fields.update(settings.model_extra)
    return fields


def _restore(plain: Any, written: Mapping[str, str]) -> Any:
    """Return plain data whose texts are as the file writes them: `${NAME}`, and `$${` for `${`."""
    if isinstance(plain, str):
        return written.get(plain, plain)
    if isinstance(plain, Mapping):
        return {name: _restore(item, written) for name, item in plain.items()}
    if isinstance(plain, list):
        return [_restore(item, written) for item in plain]
    return plain


# Plain data of each part. A path names the part in errors.


def _dump_steps(steps: Sequence[Mapping[str, Any]], path: Path) -> list[dict[str, Any]]:
    return [_dump_step(step, (*path, index)) for index, step in enumerate(steps)]


def _dump_step(step: Mapping[str, Any], path: Path) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in step.items():
        is_empty = name == "tools" and not value
        if value is not None and not is_empty:
            plain[name] = _dump_setting(name, value, (*path, name))
    return plain


def _dump_setting(name: str, value: Any, path: Path) -> Any:
    """Return a setting of a step as plain data."""
    if name == "tools":
        return _dump_tools(value, path)
    if name == "checkpointer":
        return _dump_checkpointer(value, path)
    if name == "agent":
        return _dump_agent(value, path)
    if name == "model":
        value = without_key(value)
    return _dump_value(value, path)


def _dump_agent(agent: Any, path: Path) -> dict[str, Any]:
    if not isinstance(agent, AgentConfig):
        raise _no_plain_form(path, f"a {type(agent).__name__} that was built; give its AgentConfig instead")
    return agent.to_dict()


def _dump_checkpointer(checkpointer: Any, path: Path) -> dict[str, Any]:
    if not isinstance(checkpointer, CheckpointerConfig):
        raise _no_plain_form(path, f"a {type(checkpointer).__name__}; give a CheckpointerConfig instead")
    plain = checkpointer.to_dict()
    plain["config"] = _dump_value(plain["config"], (*path, "config"))
    return plain


def _dump_tools(tools: Sequence[Any], path: Path) -> list[Any]:
    return [_dump_tool(entry, (*path, index)) for index, entry in enumerate(tools)]


def _dump_tool(given: Any, path: Path) -> Any:
    if not isinstance(given, Tool):
        return _dump_value(given, path)
    reference, loaded = _find_loadable(given, path)
    if loaded is given:  # made by the decorator
        return reference
    _check_signature(given, loaded, path)
    plain: dict[str, Any] = {"function": reference, "name": given.name}
    if given.description != loaded.description:
        plain["description"] = given.description
    for option in _TOOL_OPTIONS:
        plain[option] = getattr(given, option)
    if given.retry is not None:
        plain["retry"] = _dump_retry(given.retry, (*path, "retry"))
    return plain


def _find_loadable(given: Tool, path: Path) -> tuple[str, Tool]:
    """Return the reference that a file has for a tool, and the tool that loading makes of it."""
    reference = _find_reference(given)
    if reference is not None:
        loaded = find_loaded(*reference.split(":"))
        if isinstance(loaded, Tool):
            return reference, loaded
    name = _name_object(given.function, path)
    return name, _make_tool(given, path)


def _find_reference(given: Tool) -> str | None:
    """Return the reference to this tool, or to one with the same function; None if there is neither."""
    module_name = getattr(given.function, "__module__", "")
    if module_name == "__main__":
        return None
    module = sys.modules.get(module_name)
    for name, value in getattr(module, "__dict__", {}).items():
        if value is given:
            return f"{module_name}:{name}"
    name = getattr(given.function, "__qualname__", "")
    loaded = find_loaded(module_name, name)
    if not isinstance(loaded, Tool) or loaded.function is not given.function:
        return None
    return f"{module_name}:{name}"


def _make_tool(given: Tool, path: Path) -> Tool:
    """Return the tool that loading makes of the function of this one."""
    try:
        return tool(given.function, name=given.name)
    except TypeError as error:
        raise _no_plain_form((*path, "function"), str(error)) from error


def _check_signature(given: Tool, loaded: Tool, path: Path) -> None:
    """Check that what is loaded from a file has the parameters of a tool.

    Raises:
        AgentConfigurationError: it would have others, or check the arguments in another way.
    """
    is_same_check = (given.signature is None) == (loaded.signature is None)
    is_same_kind = given.is_async == loaded.is_async
    if given.parameters == loaded.parameters and is_same_check and is_same_kind:
        return
    raise _no_plain_form(
        (*path, "parameters"),
        "a file cannot hold parameters that differ from those of the function; make the Tool in its module, "
        "and name that",
    )


def _dump_retry(retry: RetryPolicy, path: Path) -> dict[str, Any]:
    if retry.retry_on != RetryPolicy().retry_on:
        raise _no_plain_form(
            (*path, "retry_on"),
            "a file cannot choose errors; leave retry_on out, or give the policy to the tool in its module, "
            "as in @tool(retry=...)",
        )
    return {option: getattr(retry, option) for option in _RETRY_OPTIONS}


def _dump_value(value: Any, path: Path) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, RetryPolicy):
        return _dump_retry(value, path)
    if isinstance(value, Mapping):
        return {name: _dump_value(item, (*path, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_dump_value(item, (*path, index)) for index, item in enumerate(value)]
    return _name_object(value, path)


def _name_object(thing: Any, path: Path) -> str:
    if isinstance(thing, str):
        return thing
    try:
        return describe_reference(thing)
    except ValueError as error:
        raise _no_plain_form(path, str(error)) from error


def _no_plain_form(path: Path, reason: str) -> AgentConfigurationError:
    return AgentConfigurationError(f"has no plain form: {reason}", key=format_path(path))
