"""AgentConfig: what an agent consists of. The fields of these models are the keys of an agent file.

The JSON schema for editors and the reference in the documentation are made from them. A file and code give the
same values; only code can give objects, where a file names them as `module:name`. While a file is loaded
(`LOADING`), each name is replaced by what it stands for as soon as it is validated, so that all problems of a
file, those of its names included, are found at once and where they stand.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Annotated, Any, Final, Literal, Self, TypeVar, final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    SecretStr,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from graphkit._build.state_graph import StateGraph
from graphkit._compiled import CompiledGraph
from graphkit._plan.retry import RetryPolicy
from graphkit._records.context import setting
from graphkit._saver.base import BaseCheckpointSaver
from graphkit.agents.settings import (
    IN_CODE,
    PATTERN,
    KeyProblemError,
    MappingOr,
    Path,
    Retry,
    Seconds,
    Settings,
    YamlFile,
    as_list,
    check_key,
    check_reference,
    make_policy,
    name_object,
    parse_address,
    resolve_reference,
)
from graphkit.agents.state import DefaultState, check_template, parse_state_type
from graphkit.agents.thread_ids import ThreadIDManager
from graphkit.agents.tools import Tool, tool
from graphkit.errors import AgentConfigurationError, CheckpointerConfigurationError, MissingDependencyError
from graphkit.registry import check_saver_options, get_saver, saver_names

_T = TypeVar("_T")

# Files

LOADING: Final[ContextVar[Mapping[str, type] | None]] = ContextVar("graphkit_loading", default=None)
"""While a file is loaded: the state types that it may name without their module. None: the configuration is plain data,
or made in code. Nothing is imported then. Code that the file names or needs runs with None, too: what it configures is
no part of the file."""


# The model of a step

PROVIDERS: Final = ("openai",)
"""The providers that are known by name. Any other is a function, or a server that `openai` talks to."""
_TIMEOUT: Final = 600.0
_DEFAULT_RETRY: Final = RetryPolicy(max_attempts=3, max_delay=60)


def _check_provider(provider: str) -> str:
    if provider not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise ValueError(
            f"unknown provider {provider!r}; the known providers are: {known}. For a server that speaks "
            "OpenAI's protocol, use openai with its base_url; for any other, pass a function"
        )
    return provider


def _check_base_url(url: str) -> str:
    parts = parse_address(url, example="https://api.openai.com/v1")
    if "@" in parts.netloc or parts.query:
        raise ValueError("must not contain a user, a password or a query; use api_key_env")
    return url


def _check_variable(name: str) -> str:
    if not name.isidentifier():  # it may be the key itself, so the message does not repeat it
        raise ValueError("must be the name of an environment variable, such as OPENAI_API_KEY, not a key")
    return name


Variable = Annotated[str, AfterValidator(_check_variable)]


def _check_key(key: SecretStr) -> SecretStr:
    return check_key(key.get_secret_value(), "it")


Provider = Annotated[str, AfterValidator(_check_provider)]


class _Endpoint(Settings):
    """Where a model is asked."""

    provider: Provider
    """`openai`: the protocol of chat completions, which many servers speak."""
    model: Annotated[str, Field(min_length=1)]
    """The name of the model at the provider."""
    base_url: Annotated[str, AfterValidator(_check_base_url)] | None = None
    """The address of the API. Without it, OPENAI_BASE_URL or OpenAI's."""
    api_key: Annotated[SecretStr, AfterValidator(_check_key)] | None = Field(default=None, exclude=True)
    """The key. Write `${NAME}`, never the key itself; or use `api_key_env`."""
    api_key_env: Variable | None = "OPENAI_API_KEY"
    """The environment variable that has the key; `null` if the server needs none."""
    timeout: Seconds | None = None
    """Seconds for a connection, and for each part of an answer. Without it, 600."""
    retry: Retry | None = None
    """When a request is repeated. Without it, there are 3 attempts, at most 60 seconds apart."""


class ModelSettings(_Endpoint):
    """Which model answers, and how it is asked."""

    temperature: float | None = None
    """Sent with each request."""
    top_p: float | None = None
    """Sent with each request."""
    max_tokens: int | None = None
    """Sent with each request."""
    max_completion_tokens: int | None = None
    """Sent with each request."""
    frequency_penalty: float | None = None
    """Sent with each request."""
    presence_penalty: float | None = None
    """Sent with each request."""
    parallel_tool_calls: bool | None = None
    """Sent with each request."""
    reasoning_effort: str | None = None
    """Sent with each request."""
    response_format: dict[str, Any] | None = None
    """Sent with each request."""
    seed: int | None = None
    """Sent with each request."""
    stop: str | list[str] | None = None
    """Sent with each request."""
    tool_choice: str | dict[str, Any] | None = None
    """Sent with each request."""
    extra_body: dict[str, Any] | None = Field(default=None, repr=False)
    """Further values of the request."""

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return the settings that a text `provider:model` names.

        Raises:
            AgentConfigurationError: the text has another form, or the provider is unknown.
        """
        provider, colon, model = text.partition(":")
        if not colon:
            raise AgentConfigurationError(
                f"{text!r} does not name a model: write 'provider:model', for example 'openai:{text or 'gpt-4o'}'"
            )
        return cls(provider=provider, model=model)

    @property
    def name(self) -> str:
        """`provider:model`, for messages."""
        return f"{self.provider}:{self.model}"

    @property
    def options(self) -> dict[str, Any]:
        """What is sent with each request, such as `temperature`."""
        return {name: value for name, value in self if name in REQUEST_OPTIONS and value is not None}

    @property
    def seconds(self) -> float:
        """The timeout, or its default."""
        return _TIMEOUT if self.timeout is None else self.timeout

    @property
    def policy(self) -> RetryPolicy:
        """How often a request is attempted, and the delays. A Retry-After of the server up to `max_delay` is obeyed."""
        return make_policy(self.retry, max_delay=60) or _DEFAULT_RETRY

    def find_key(self) -> SecretStr | None:
        """Return the key: that of the settings, or that of the environment variable.

        None if `api_key_env` is None: the server needs no key.

        Raises:
            AgentConfigurationError: there is none; the message names the environment variable.
        """
        if self.api_key is not None or self.api_key_env is None:
            return self.api_key
        value = os.environ.get(self.api_key_env, "")
        if not value:
            raise AgentConfigurationError(
                f"no key for the model {self.name}: set the environment variable {self.api_key_env}, or name "
                "another one in api_key_env (null if the server needs no key)"
            )
        return check_key(value, f"the environment variable {self.api_key_env}")


REQUEST_OPTIONS: Final = tuple(name for name in ModelSettings.model_fields if name not in _Endpoint.model_fields)
"""The settings that are sent with each request as they are; `extra_body` is a mapping of any others."""


# Checkpointers

_HIDDEN_OPTION: Final = "connection_string"
"""May have a password, so that no error and no `repr` shows it."""


class CheckpointerConfig(Settings):
    """Which saver an agent uses. Immutable.

    Making one checks its shape: the type exists, and there is no unknown key. `from_dict` makes one of the block
    `checkpointer` of a file. `build` imports the backend of the type, and no other, and checks the arguments in
    `config`.

        CheckpointerConfig("sqlite", {"db_file": "runs.db"}).build()
    """

    error_class = CheckpointerConfigurationError

    type: str = Field("memory", examples=["memory", "versioned_memory", "file", "sqlite", "postgres"])
    """The kind of saver: `memory`, `versioned_memory`, `file` (also `disk`, `filesystem`), `sqlite`, `postgres`, or
    a kind that is registered or installed."""
    config: dict[str, Any] | None = Field(None, repr=False)
    """The arguments of the saver: `base_directory` of `file`, `db_file` of `sqlite`, `connection_string` of
    `postgres`, and the options of each. Relative paths start at the working directory."""
    enabled: bool = True
    """Whether there are checkpoints. `false`: the agent runs without a saver."""

    def __init__(
        self,
        /,
        type: str = "memory",
        config: Mapping[str, Any] | None = None,
        enabled: bool = True,
        **unknown: Any,
    ) -> None:
        """Check a configuration.

        Args:
            type: the kind of saver.
            config: the arguments of the saver.
            enabled: False: `build` returns None.
            unknown: refused.

        Raises:
            CheckpointerConfigurationError: the type is unknown, or a value has the wrong type. The
                message names the key.
        """
        if isinstance(config, Mapping):
            config = dict(config)
        super().__init__(type=type, config=config, enabled=enabled, **unknown)

    @field_validator("type")
    @classmethod
    def _check_type(cls, name: str) -> str:
        known = saver_names()
        if name not in known:
            raise ValueError(f"Unsupported checkpointer type: {name!r}; known are {', '.join(known)}")
        return name

    @field_validator("config")
    @classmethod
    def _hide_secret(cls, config: dict[str, Any] | None) -> dict[str, Any] | None:
        if config is not None and isinstance(config.get(_HIDDEN_OPTION), str):
            return {**config, _HIDDEN_OPTION: SecretStr(config[_HIDDEN_OPTION])}
        return config

    def build(self) -> BaseCheckpointSaver | None:
        """Make the saver; return None if checkpoints are not enabled.

        Raises:
            CheckpointerConfigurationError: a key of `config` is missing, unknown or wrong. The
                message names it. Nothing was stored.
            MissingDependencyError: the saver needs a package that is not installed.
        """
        return self._with_options(get_saver) if self.enabled else None

    def check(self) -> None:
        """Check `config` without making the saver: nothing is opened or created.

        The values for a kind that another package or the application registered are checked if the kind
        has a method `check_options`, and else by `build`.

        Raises:
            CheckpointerConfigurationError: a key is missing, unknown or wrong. The message names it.
            MissingDependencyError: the saver needs a package that is not installed.
        """
        if self.enabled:
            self._with_options(check_saver_options)

    @model_validator(mode="after")
    def _check_in_file(self) -> Self:
        """Check `config` while a file is loaded: an error names the line of the wrong option."""
        if LOADING.get() is None:
            return self
        try:
            with setting(LOADING, None):
                self.check()
        except MissingDependencyError:
            pass  # a file can be read where the package of its saver is missing; `build` needs it
        except CheckpointerConfigurationError as error:
            # As `check_saver_options` promises: a message about an option that is given begins with its name.
            option, _, reason = str(error).partition(" ")
            if option not in (self.config or {}):
                raise
            raise KeyProblemError(reason, "config", option) from error
        return self

    def _with_options(self, call: Callable[..., _T]) -> _T:
        """Call a function with the type and the arguments of the saver; its errors become those of a configuration."""
        options: dict[str, Any] = {}
        for name, value in (self.config or {}).items():
            options[name] = value.get_secret_value() if isinstance(value, SecretStr) else value
        if "name" in options:
            raise CheckpointerConfigurationError(f"name is not an option of the checkpointer type {self.type!r}")
        try:
            return call(self.type, **options)
        except CheckpointerConfigurationError:
            raise
        except (TypeError, ValueError) as error:
            raise CheckpointerConfigurationError(f"config of the checkpointer type {self.type!r}: {error}") from error


@final
class CheckpointerYAMLHandler:
    """Reads the block `checkpointer` of a YAML file that has been loaded."""

    def parse_checkpointer_config(self, block: Mapping[str, Any]) -> CheckpointerConfig:
        """Return the configuration that a block describes.

        Args:
            block: the mapping with the keys `type`, `config` and `enabled`, each optional.

        Raises:
            CheckpointerConfigurationError: it is no mapping, the type is unknown, or a key is
                unknown or wrong.
        """
        return CheckpointerConfig.from_dict(block)

    def validate_checkpointer_config(self, block: object) -> bool:
        """Return whether `parse_checkpointer_config` accepts a value. Never raises an Exception."""
        try:
            CheckpointerConfig.from_dict(block)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - the promise: objects of any class may raise anything
            return False
        return True


def parse_checkpointer(checkpointer: Any) -> Any:
    """Return a checkpointer as an agent takes it: a saver, None, or an object whose `build()` returns one of these.

    Args:
        checkpointer: one of these, such as a CheckpointerConfig; or a mapping of the fields of that class.

    Raises:
        CheckpointerConfigurationError: it is none of these, or a field is unknown or wrong.
    """
    if isinstance(checkpointer, Mapping):
        return CheckpointerConfig.from_dict(checkpointer)
    is_saver = checkpointer is None or isinstance(checkpointer, BaseCheckpointSaver)
    if is_saver or hasattr(checkpointer, "build"):
        return checkpointer
    raise CheckpointerConfigurationError(
        f"a checkpointer must be a mapping, a CheckpointerConfig or a saver, not {type(checkpointer).__name__}"
    )


# MCP servers

_KEYS_OF_OTHERS: Final = {"url": {"args", "env", "cwd"}, "command": {"headers", "token_env"}}
"""The keys that do not go with a server that is reached by its URL, or started by a command."""


def _flag_or_names(value: Any) -> str | None:
    if isinstance(value, bool):
        return "<flag>"
    return "<names>" if isinstance(value, list | tuple) else None


def _check_url(url: str) -> str:
    parts = parse_address(url, example="http://localhost:8000/mcp")
    if "@" in parts.netloc:
        raise ValueError("must not contain a user or a password; name the variable of a token in token_env")
    return url


_Texts = Annotated[list[str], BeforeValidator(as_list)]
_Approval = Annotated[
    Annotated[bool, Tag("<flag>")] | Annotated[_Texts, Tag("<names>")],
    Discriminator(_flag_or_names, "approval", "must be true, false or a list of the names of tools"),
]


class McpCallSettings(Settings):
    """How calls of tools are executed; as the options of `tool()`."""

    timeout: Seconds | None = 300.0
    """Seconds for one attempt; `null`: no limit."""
    retry: Retry | None = None
    """When a failed call is executed again, also one that the server may have executed. Without it: never."""
    on_error: Literal["model", "raise"] = "model"
    """`model`: the model receives the error; `raise`: the run fails."""


class McpServerSettings(Settings):
    """An MCP server: a `command` to start, or the `url` of a running server."""

    command: str | None = None
    """The program to start; it speaks the protocol on its standard streams."""
    args: _Texts = Field(default_factory=list)
    """Its arguments."""
    env: dict[str, SecretStr | None] = Field(default_factory=dict)
    """Environment variables for it; `null` passes the variable of this process on."""
    cwd: str | None = None
    """Its working directory."""
    url: Annotated[str, AfterValidator(_check_url)] | None = None
    """The address of a server that runs already and speaks streamable HTTP."""
    token_env: Variable | None = None
    """The environment variable that has the bearer token for that server."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers of each request to that server, such as a key. Write `${NAME}`, never the key itself."""
    tools: MappingOr[dict[str, McpCallSettings | None], _Texts] | None = None
    """The names of the tools that are offered, as a list; or as a mapping of each to how its calls are
    executed. Without it, all."""
    calls: McpCallSettings = Field(default_factory=McpCallSettings)
    """How calls of its tools are executed, where `tools` does not say otherwise."""
    requires_approval: _Approval = False
    """Whether a human has to approve each call: `true` for all tools, or the names of some."""
    prefix: str = ""
    """Put before the name of each tool."""
    timeout: Seconds = 30.0
    """Seconds for the server to start, connect and list its tools."""

    @field_validator("env")
    @classmethod
    def _check_variables(cls, env: dict[str, SecretStr | None]) -> dict[str, SecretStr | None]:
        for name in env:
            if not name or "=" in name:
                raise ValueError("the name of an environment variable must not be empty or contain '='")
        return env

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command or url, not both")
        kind = "url" if self.command is None else "command"
        misplaced = sorted(_KEYS_OF_OTHERS[kind] & self.model_fields_set)
        if misplaced:
            raise ValueError(f"{misplaced[0]} does not go with {kind}")
        return self

    def call_options(self, tool: str) -> dict[str, Any]:
        """Return how calls of a tool are executed: its own settings, those of all tools, and the defaults."""
        options = dict(self.calls)
        own = self.tools.get(tool) if isinstance(self.tools, dict) else None
        if own is not None:
            options.update(own.set_fields())
        options["retry"] = make_policy(options["retry"])
        return options


# Agents

STEP_TYPES: Final = ("llm", "function", "agent")
"""The types of steps."""


# Values that a file names, and code gives


def _look_up(reference: str) -> Any:
    """Return what a reference stands for if a file is being loaded, and else the reference."""
    if LOADING.get() is None:
        return check_reference(reference)
    with setting(LOADING, None):
        return resolve_reference(reference)


def _resolve(value: Any, check: Callable[[Any], bool]) -> Any:
    """Return what a reference stands for if a file is being loaded; other values as they are."""
    if not isinstance(value, str):
        if check(value):
            return value
        raise ValueError(f"must be module:name, not {type(value).__name__}")
    found = _look_up(value)
    if found is not value and not check(found):
        raise ValueError(f"{value} is a {type(found).__name__}, which cannot be called")
    return found


def require_object(value: Any, key: str) -> Any:
    """Return what a configuration has under a key, if it is not the name of that.

    Raises:
        AgentConfigurationError: it is the name, as `from_dict` leaves it.
    """
    if isinstance(value, str):
        reason = f"is still the name {value!r}, which only load_agent looks up: put what it names in its place"
        raise AgentConfigurationError(reason, key=key)
    return value


def _is_model(value: Any) -> bool:
    return callable(value) or hasattr(value, "request")


def _read_model(value: Any) -> Any:
    if not isinstance(value, str):
        if _is_model(value):
            return value
        raise ValueError(f"must be provider:model or a mapping, not {type(value).__name__}")
    provider, _, name = value.partition(":")
    if not provider or not name:
        raise ValueError(f"must be provider:model, such as openai:gpt-4o-mini, not {value!r}")
    if provider in PROVIDERS or LOADING.get() is None:
        return value
    try:
        return _resolve(value, _is_model)
    except ValueError as error:
        known = ", ".join(PROVIDERS)
        raise ValueError(
            f"{error}. A model is provider:model (providers: {known}) or module:name of a function"
        ) from error


def _read_state_type(value: Any) -> Any:
    if not isinstance(value, str):
        if isinstance(value, int | float | list | None):
            raise ValueError(f"must be module:name, not {type(value).__name__}")  # noqa: TRY004 - pydantic collects it
        return value
    known = LOADING.get()
    if not value.isidentifier():
        found = _look_up(value)
        if known is not None:
            parse_state_type(found, with_messages=False)
        return found
    if known is None:
        return value
    if value not in known:
        raise ValueError(
            f"there is no state type {value!r}; known are {', '.join(sorted(known))}. Write module:name, or give the "
            f"class to load_agent(..., state_types=[{value}])"
        )
    return known[value]


Reference = Annotated[
    Any,
    AfterValidator(lambda value: _resolve(value, callable)),
    WithJsonSchema({"type": "string", "pattern": PATTERN, "title": "Reference"}),
]
"""`module:name`, or in code the object itself."""
_StateType = Annotated[
    Any,
    AfterValidator(_read_state_type),
    WithJsonSchema({"type": "string", "pattern": r"^[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?$", "title": "StateType"}),
]
_ModelName = Annotated[
    Any, AfterValidator(_read_model), WithJsonSchema({"type": "string", "pattern": "^[^:]+:.+$", "title": "ModelName"})
]
CheckpointerEntry = MappingOr[CheckpointerConfig, Annotated[Any, AfterValidator(parse_checkpointer), IN_CODE]]


# Tools and thread ids


class ToolSettings(Settings):
    """A function that the model may call."""

    function: Reference
    """The function, as `module:name`."""
    name: str | None = None
    """The name for the model. Without it, that of the function."""
    description: str | None = None
    """What the tool does, for the model. Without it, the docstring of the function."""
    requires_approval: bool = False
    """Whether a human has to approve each call."""
    retry: Retry | None = None
    """When a failed call is executed again. Without it: never."""
    timeout: Seconds | None = None
    """Seconds for one attempt."""
    on_error: Literal["model", "raise"] = "model"
    """`model`: the model receives the error; `raise`: the run fails."""

    def make_tool(self) -> Tool:
        """Return the function as a tool, or a tool with other options; a tool without options stays itself."""
        options = {name: value for name, value in self.set_fields() if name != "function" and value is not None}
        function = require_object(self.function, "function")
        made = function if isinstance(function, Tool) else tool(function, name=self.name)
        if "retry" in options:
            options["retry"] = make_policy(self.retry)
        return dataclasses.replace(made, **options) if options else made


def _check_tool(entry: Any) -> Any:
    """Check that an entry of a file that is being loaded can be a tool."""
    if LOADING.get() is None:
        return entry
    settings = entry if isinstance(entry, ToolSettings) else ToolSettings(function=entry)
    try:
        settings.make_tool()
    except TypeError as error:
        raise ValueError(str(error)) from error
    return entry


_Tools = Annotated[
    list[Annotated[MappingOr[ToolSettings, Reference], AfterValidator(_check_tool)]], BeforeValidator(as_list)
]


class ThreadIdSettings(Settings):
    """How the agent makes thread ids."""

    strategy: Literal["uuid", "timestamp", "user_specific", "custom"] = "uuid"
    """`uuid`, `timestamp` (ids sort by time), `user_specific` (needs `user_id`) or `custom` (needs
    `generator_func`)."""
    user_id: str | None = None
    """The user, for `user_specific`."""
    generator_func: Reference | None = None
    """A function that returns an id, as `module:name`, for `custom`."""

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        self.make_manager()
        return self

    def make_manager(self) -> ThreadIDManager:
        """Return what makes the ids."""
        return ThreadIDManager(**dict(self.set_fields()))


# Steps


class _LlmStepHead(Settings):
    type: Literal["llm"]
    """`llm`."""
    name: str | None = None
    """The name of the step. Without it, `llm_step_<number>`."""
    model: MappingOr[ModelSettings, _ModelName] | None = None
    """`provider:model`, or a mapping; or `config` describes the model."""


class _ChatSettings(Settings):
    system_prompt: str | None = None
    """Sent before everything else."""
    prompt_template: Annotated[str, AfterValidator(check_template)] | None = None
    """Sent after it; `{city}` stands for the key `city` of the state, and `{input}`, where the state has no such
    key, for the newest message of the user."""
    tools: _Tools = Field(default_factory=list)
    """What only the model of this step may call."""
    max_parallel_tools: Annotated[int, Field(ge=1)] | None = None
    """How many tool calls of one message run at the same time, at most. Without it: no limit."""


class LlmStepConfig(_ChatSettings, ModelSettings):
    """The model of a step of type `llm`, and its other settings. Each key stands here or in the step, not in both."""

    provider: Provider | None = None  # type: ignore[assignment]
    """`openai`: the protocol of chat completions, which many servers speak. With it, `model` is the name of
    the model."""
    model: str | None = None  # type: ignore[assignment]
    """The name of the model at the provider."""


class LlmStepSettings(_ChatSettings, _LlmStepHead):
    """A step in which a model answers the messages; it may call tools before it answers."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["model"]}, {"required": ["config"]}]})

    config: LlmStepConfig | None = None
    """The model and the keys after `model`, in a mapping of their own."""

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        """Check that each key stands at one place, and that one place describes the model."""
        in_config: list[str] = []
        if self.config is not None:
            in_config = [name for name, value in self.config.set_fields() if value is not None]
        model_keys = [name for name in in_config if name in ModelSettings.model_fields]
        for name in in_config:
            if name in self.model_fields_set:
                raise KeyProblemError("is in the step, too; keep one", "config", name)
        if self.model is not None and model_keys:
            raise KeyProblemError("belongs to a model, and the step has its model in `model`", "config", model_keys[0])
        if self.model is None and not model_keys:
            raise KeyProblemError("is missing", "model")
        for name in ("provider", "model"):
            if model_keys and not getattr(self.config, name):
                raise KeyProblemError("is missing", "config", name)
        return self

    def merge_config(self) -> LlmStepSettings:
        """Return the step with what `config` holds at the places where a step has it."""
        if self.config is None:
            return self
        own = {name: value for name, value in self.set_fields() if name != "config"}
        found = dict(self.config.set_fields())
        in_model = {name: value for name, value in found.items() if name in ModelSettings.model_fields}
        others = {name: value for name, value in found.items() if name not in in_model and value is not None}
        return LlmStepSettings(**{"model": in_model, **own, **others})


class FunctionStepSettings(Settings):
    """A step that is a function of the state; it returns an update."""

    type: Literal["function"]
    """`function`."""
    name: str | None = None
    """The name of the step. Without it, `function_step_<number>`."""
    function: Reference
    """The function, as `module:name`."""


def _check_graph(value: Any) -> Any:
    if not isinstance(getattr(value, "graph", value), CompiledGraph | StateGraph):
        raise ValueError(f"must be an agent or a graph, not {type(value).__name__}")  # noqa: TRY004 - pydantic collects it
    return value


class AgentStepSettings(Settings):
    """A step that is another agent, written in place (`agent`) or in a file of its own (`file`)."""

    type: Literal["agent"]
    """`agent`."""
    name: str | None = None
    """The name of the step. Without it, `agent_step_<number>`."""
    agent: MappingOr[AgentConfig, Annotated[Any, AfterValidator(_check_graph), IN_CODE]] | None = None
    """The agent."""
    file: str | None = None
    """The file of the agent; a relative path starts at the directory of this file."""
    checkpointer: CheckpointerEntry | None = None
    """The saver of this agent alone. Without it, the saver of the outer agent keeps its checkpoints."""

    @model_validator(mode="after")
    def _check_agent(self) -> Self:
        if (self.agent is None) == (self.file is None):
            raise ValueError("needs either agent or file, not both")
        # Which of the two would count is not obvious, so neither does.
        inner = getattr(self.agent, "checkpointer", None)
        if self.checkpointer is not None and inner is not None:
            raise KeyProblemError("is in its agent, too; keep one", "checkpointer")
        return self


def _type_of_step(step: Any) -> Any:
    return step.get("type") if isinstance(step, Mapping) else getattr(step, "type", None)


def _tag_of_step(step: Any) -> str:
    type_name = _type_of_step(step)
    return f"<{type_name}>" if type_name in STEP_TYPES else "<llm>"


def _check_types(steps: Any) -> Any:
    """Refuse a step of an unknown type; what is no step at all is refused by the field."""
    if not isinstance(steps, list | tuple):
        return steps
    known = ", ".join(STEP_TYPES)
    for index, step in enumerate(steps):
        type_name = _type_of_step(step)
        if isinstance(type_name, str) and type_name not in STEP_TYPES:
            reason = f"Invalid step {index}: there is no type {type_name!r}; the types are {known}"
            raise KeyProblemError(reason, index, "type")
    return list(steps)


StepEntry = Annotated[
    Annotated[LlmStepSettings, Tag("<llm>")]
    | Annotated[FunctionStepSettings, Tag("<function>")]
    | Annotated[AgentStepSettings, Tag("<agent>")],
    Discriminator(_tag_of_step),
]


@final
class AgentConfig(Settings):
    """An agent.

    `AgentBuilderDirector` builds it. `to_dict` returns plain data, in which functions and classes are named
    `module:name`, and `from_dict` reads them. Building a configuration that was read by `from_dict` therefore needs
    those objects in place of their names; `load_agent` puts them there, for a file that the user wrote.
    """

    model_config = ConfigDict(frozen=False, json_schema_extra={"required": ["steps"]})

    name: Annotated[str, Field(min_length=1)] = "agent"
    """The name of the agent, for people."""
    state_type: _StateType = Field(default_factory=lambda: DefaultState)
    """The class of the state: `module:name`; `DefaultState` or another class of graphkit; or the name of a class
    that `load_agent` is given. Without it, the state is a conversation: `messages`."""
    steps: Annotated[list[StepEntry], BeforeValidator(_check_types)] = Field(default_factory=list)
    """The steps, in the order in which they run."""
    checkpointer: CheckpointerEntry | None = None
    """Where the checkpoints are kept. Without it, the agent forgets everything when a run ends."""
    tools: _Tools = Field(default_factory=list)
    """What the models of all steps may call."""
    mcp_servers: dict[Annotated[str, Field(min_length=1)], McpServerSettings] = Field(default_factory=dict)
    """MCP servers by name; the models of all steps may call their tools."""
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    """How many nodes one run executes, at most: each request to a model is one, and so are the tool calls of one
    message. Without it: 1,000. The agents in this agent have the same limit, and set none."""
    thread_id: MappingOr[ThreadIdSettings, Literal["uuid", "timestamp"]] | None = None
    """How the agent makes thread ids: `uuid`, `timestamp`, or a mapping."""

    _file: YamlFile | None = PrivateAttr(None)
    _path: Path = PrivateAttr(())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentConfig) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _check_in_file(self) -> Self:
        if LOADING.get() is not None and not self.steps:
            raise KeyProblemError("is missing: an agent needs at least one step", "steps")
        return self

    @property
    def file(self) -> YamlFile | None:
        """The file that the configuration was loaded from."""
        return self._file

    @property
    def path(self) -> Path:
        """Where in that file it stands."""
        return self._path

    def set_place(self, file: YamlFile, path: Path = ()) -> None:
        """Note where in a file this and the agents in it stand; an agent that has a file of its own keeps its place."""
        if self._file is None:
            self._file = file
            self._path = path
            for index, step in enumerate(self.steps):
                if isinstance(step, AgentStepSettings) and isinstance(step.agent, AgentConfig):
                    step.agent.set_place(file, (*path, "steps", index, "agent"))

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
            AgentConfigurationError: a saver, an agent, a function or tool without a name in its module, or
                the `retry_on` of a tool have no plain form. The message names the key.
        """
        return self.dump()

    def dump(self, path: Path = ()) -> dict[str, Any]:
        """As in Settings, with the texts of a file as the file has them."""
        plain = super().dump(path)
        plain.pop("state_type", None)
        if self.state_type is not DefaultState:
            plain["state_type"] = name_object(self.state_type, (*path, "state_type"))
        plain = {"name": self.name, "steps": [], **plain}
        return plain if self._file is None else _restore(plain, self._file.written)


def _restore(plain: Any, written: Mapping[str, str]) -> Any:
    """Return plain data whose texts are as the file writes them: `${NAME}`, and `$${` for `${`."""
    if isinstance(plain, str):
        return written.get(plain, plain)
    if isinstance(plain, dict):
        return {name: _restore(item, written) for name, item in plain.items()}
    if isinstance(plain, list):
        return [_restore(item, written) for item in plain]
    return plain


AgentStepSettings.model_rebuild()
AgentConfig.model_rebuild()
