"""AgentSettings: the keys of an agent file, with their types and descriptions.

`AgentConfig.from_dict` checks plain data with these models. The JSON schema for editors and the
reference in the documentation are made from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

from graphkit.agents.checkpointer_config import CheckpointerConfig
from graphkit.agents.mcp_settings import McpServerSettings
from graphkit.agents.model_settings import MODEL_KEYS, parse_base_url, parse_provider, parse_variable
from graphkit.agents.references import PATTERN, check_reference
from graphkit.agents.secret import check_key
from graphkit.agents.settings import KeyProblemError, RetrySettings, Seconds, Settings
from graphkit.agents.thread_ids import ThreadIDManager

STEP_TYPES: Final = ("llm", "function", "agent")
"""The types of steps that every agent has; `register_step` adds others."""


def _check_reference(value: Any) -> Any:
    if isinstance(value, str):
        return check_reference(value)
    if not callable(value):
        raise ValueError(f"must be module:name, not {type(value).__name__}")  # noqa: TRY004 - pydantic collects it
    return value


def _check_model(value: Any) -> Any:
    if isinstance(value, str):
        provider, _, model = value.partition(":")
        if not provider or not model:
            raise ValueError(f"must be provider:model, such as openai:gpt-4o-mini, not {value!r}")
        return value
    is_model = callable(value) or hasattr(value, "request")
    if not is_model:
        found = type(value).__name__
        raise ValueError(f"must be provider:model or a mapping, not {found}")
    return value


def _check_state_type(value: Any) -> Any:
    is_bare_name = isinstance(value, str) and value.isidentifier()
    return value if is_bare_name else _check_reference(value)


def _check_key(value: str) -> str:
    check_key(value, "it")
    return value


Reference = Annotated[
    Any, AfterValidator(_check_reference), WithJsonSchema({"type": "string", "pattern": PATTERN, "title": "Reference"})
]
"""`module:name`, or in code the object itself."""
_StateType = Annotated[
    Any,
    AfterValidator(_check_state_type),
    WithJsonSchema({"type": "string", "pattern": r"^[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?$", "title": "StateType"}),
]
_Provider = Annotated[str, AfterValidator(parse_provider)]
_ModelName = Annotated[
    Any, AfterValidator(_check_model), WithJsonSchema({"type": "string", "pattern": "^[^:]+:.+$", "title": "ModelName"})
]


# The tags of unions are parts of the paths of problems; find_problems leaves out those in brackets.


def _mapping_or_other(value: Any) -> str:
    is_mapping = isinstance(value, Mapping | Settings)
    return "<mapping>" if is_mapping else "<other>"


class ModelTable(Settings):
    """Which model answers, and how it is asked."""

    provider: _Provider
    """`openai`: the protocol of chat completions, which many servers speak."""
    model: str
    """The name of the model at the provider."""
    base_url: Annotated[str, AfterValidator(parse_base_url)] | None = None
    """The address of the API. Without it, OPENAI_BASE_URL or OpenAI's."""
    api_key: Annotated[str, AfterValidator(_check_key)] | None = Field(None, repr=False)
    """The key. Write `${NAME}`, never the key itself; or use `api_key_env`."""
    api_key_env: Annotated[str, AfterValidator(parse_variable)] | None = None
    """The environment variable that has the key; `null` if the server needs none. Without it, OPENAI_API_KEY."""
    timeout: Seconds | None = None
    """Seconds for a connection, and for each part of an answer. Without it, 600."""
    retry: RetrySettings | None = None
    """When a request is repeated. Without it, there are 3 attempts, at most 60 seconds apart."""
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
    extra_body: dict[str, Any] | None = Field(None, repr=False)
    """Further values of the request."""


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
    retry: RetrySettings | None = None
    """When a failed call is executed again. Without it: never."""
    timeout: Seconds | None = None
    """Seconds for one attempt."""
    on_error: Literal["model", "raise"] = "model"
    """`model`: the model receives the error; `raise`: the run fails."""


ToolEntry = Annotated[
    Annotated[ToolSettings, Tag("<mapping>")] | Annotated[Reference, Tag("<other>")], Discriminator(_mapping_or_other)
]
ModelEntry = Annotated[
    Annotated[ModelTable, Tag("<mapping>")] | Annotated[_ModelName, Tag("<other>")], Discriminator(_mapping_or_other)
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
    def _check_options(self) -> ThreadIdSettings:
        names = self.model_fields_set - {"strategy"}
        options = {name: getattr(self, name) for name in names}
        ThreadIDManager(self.strategy, **options)
        return self


ThreadIdEntry = Annotated[
    Annotated[ThreadIdSettings, Tag("<mapping>")] | Annotated[Literal["uuid", "timestamp"], Tag("<other>")],
    Discriminator(_mapping_or_other),
]


def _set_fields(settings: Settings) -> Iterator[str]:
    """Yield the fields that have a value, in the order of the class."""
    for name in type(settings).model_fields:
        if name in settings.model_fields_set and getattr(settings, name) is not None:
            yield name


class _LlmStepHead(Settings):
    type: Literal["llm"]
    """`llm`."""
    name: str | None = None
    """The name of the step. Without it, `llm_step_<number>`."""
    model: ModelEntry | None = None
    """`provider:model`, or a mapping; or `config` describes the model."""


class _ChatSettings(Settings):
    system_prompt: str | None = None
    """Sent before everything else."""
    prompt_template: str | None = None
    """Sent after it; `{city}` stands for the key `city` of the state, and `{input}`, where the state has no such
    key, for the newest message of the user."""
    tools: list[ToolEntry] = Field(default_factory=list)
    """What only the model of this step may call."""
    max_parallel_tools: Annotated[int, Field(ge=1)] | None = None
    """How many tool calls of one message run at the same time, at most. Without it: no limit."""


class LlmStepConfig(_ChatSettings, ModelTable):
    """The model of a step of type `llm`, and its other settings. Each key stands here or in the step, not in both."""

    provider: _Provider | None = None  # type: ignore[assignment]
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
    def _check_places(self) -> LlmStepSettings:
        """Check that each key stands at one place, and that one place describes the model."""
        in_config = [] if self.config is None else list(_set_fields(self.config))
        model_keys = [name for name in in_config if name in MODEL_KEYS]
        for name in in_config:
            if name in self.model_fields_set:
                raise KeyProblemError("is in the step, too; keep one", "config", name)
        if self.model is not None and model_keys:
            raise KeyProblemError("belongs to a model, and the step has its model in `model`", "config", model_keys[0])
        if self.model is None and not model_keys:
            raise KeyProblemError("is missing", "model")
        for name in ("provider", "model"):
            if model_keys and name not in model_keys:
                raise KeyProblemError("is missing", "config", name)
        return self


class FunctionStepSettings(Settings):
    """A step that is a function of the state; it returns an update."""

    type: Literal["function"]
    """`function`."""
    name: str | None = None
    """The name of the step. Without it, `function_step_<number>`."""
    function: Reference
    """The function, as `module:name`."""


class AgentStepSettings(Settings):
    """A step that is another agent, written in place (`agent`) or in a file of its own (`file`)."""

    type: Literal["agent"]
    """`agent`."""
    name: str | None = None
    """The name of the step. Without it, `agent_step_<number>`."""
    agent: AgentSettings | None = None
    """The agent."""
    file: str | None = None
    """The file of the agent; a relative path starts at the directory of this file."""
    checkpointer: CheckpointerConfig | None = None
    """The saver of this agent alone. Without it, the saver of the outer agent keeps its checkpoints."""

    @model_validator(mode="after")
    def _check_agent(self) -> AgentStepSettings:
        if (self.agent is None) == (self.file is None):
            raise ValueError("needs either agent or file")
        inner = None if self.agent is None else self.agent.checkpointer
        if self.checkpointer is not None and inner is not None:
            raise ValueError("has two checkpointers: one of the step and one of its agent; keep one")
        return self


class OtherStepSettings(Settings):
    """A step of a type that the application registered with `register_step`."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, WithJsonSchema({"type": "string", "not": {"enum": list(STEP_TYPES)}})]
    """The name under which the type was registered. All other keys are its settings."""
    name: str | None = None
    """The name of the step. Without it, `<type>_step_<number>`."""


def _type_of_step(value: Any) -> str:
    is_data = isinstance(value, Mapping)
    type_name = value.get("type") if is_data else getattr(value, "type", None)
    is_known = isinstance(type_name, str) and type_name in STEP_TYPES
    return f"<{type_name}>" if is_known else "<other>"


StepEntry = Annotated[
    Annotated[LlmStepSettings, Tag("<llm>")]
    | Annotated[FunctionStepSettings, Tag("<function>")]
    | Annotated[AgentStepSettings, Tag("<agent>")]
    | Annotated[OtherStepSettings, Tag("<other>")],
    Discriminator(_type_of_step),
]


class AgentSettings(Settings):
    """An agent."""

    model_config = ConfigDict(json_schema_extra={"required": ["steps"]})

    name: Annotated[str, Field(min_length=1)] = "agent"
    """The name of the agent, for people."""
    state_type: _StateType | None = None
    """The class of the state: `module:name`; `DefaultState` or another class of graphkit; or the name of a class
    that `load_agent` is given. Without it, the state is a conversation: `messages`."""
    steps: list[StepEntry] = Field(default_factory=list)
    """The steps, in the order in which they run."""
    checkpointer: CheckpointerConfig | None = None
    """Where the checkpoints are kept. Without it, the agent forgets everything when a run ends."""
    tools: list[ToolEntry] = Field(default_factory=list)
    """What the models of all steps may call."""
    mcp_servers: dict[str, McpServerSettings] = Field(default_factory=dict)
    """MCP servers by name; the models of all steps may call their tools."""
    max_iterations: Annotated[int, Field(ge=1)] | None = None
    """How many nodes one run executes, at most: each request to a model is one, and so are the tool calls of one
    message. Without it: 1,000. The agents in this agent have the same limit, and set none."""
    thread_id: ThreadIdEntry | None = None
    """How the agent makes thread ids: `uuid`, `timestamp`, or a mapping."""


AgentStepSettings.model_rebuild()
LlmStepSettings.model_rebuild()
