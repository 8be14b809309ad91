"""McpServerSettings: how an MCP server is started or reached, and which of its tools are offered."""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated, Any, Final, Literal, Self, final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    field_validator,
    model_validator,
)

from graphkit.agents.settings import (
    Retry,
    Seconds,
    Secret,
    Settings,
    as_list,
    check_key,
    make_policy,
    mapping_or_other,
    parse_address,
    shown_url,
)
from graphkit.errors import AgentConfigurationError

_CALL_TIMEOUT: Final = 300.0
_KEYS_OF_OTHERS: Final = {"url": {"args", "env", "cwd"}, "command": {"headers", "token_env"}}
"""The keys that do not go with a server that is reached by its URL, or started by a command."""


def _flag_or_names(value: Any) -> str:
    return "<flag>" if isinstance(value, bool) else "<names>"


def _check_url(url: str) -> str:
    parts = parse_address(url, example="http://localhost:8000/mcp")
    if "@" in parts.netloc:
        raise ValueError("must not contain a user or a password; name the variable of a token in token_env")
    return url


_Texts = Annotated[list[str], BeforeValidator(as_list)]
_Approval = Annotated[Annotated[bool, Tag("<flag>")] | Annotated[_Texts, Tag("<names>")], Discriminator(_flag_or_names)]


class McpCallSettings(Settings):
    """How calls of tools are executed; as the options of `tool()`."""

    timeout: Seconds | None = _CALL_TIMEOUT
    """Seconds for one attempt; `null`: no limit."""
    retry: Retry | None = None
    """When a failed call is executed again, also one that the server may have executed. Without it: never."""
    on_error: Literal["model", "raise"] = "model"
    """`model`: the model receives the error; `raise`: the run fails."""


_Tools = Annotated[
    Annotated[dict[str, McpCallSettings | None], Tag("<mapping>")] | Annotated[_Texts, Tag("<other>")],
    Discriminator(mapping_or_other),
]


class McpServerSettings(Settings):
    """An MCP server: a `command` to start, or the `url` of a running server."""

    command: str | None = None
    """The program to start; it speaks the protocol on its standard streams."""
    args: _Texts = Field(default_factory=list)
    """Its arguments."""
    env: dict[str, Secret | None] = Field(default_factory=dict)
    """Environment variables for it; `null` passes the variable of this process on."""
    cwd: str | None = None
    """Its working directory."""
    url: Annotated[str, AfterValidator(_check_url)] | None = None
    """The address of a server that runs already and speaks streamable HTTP."""
    token_env: str | None = None
    """The environment variable that has the bearer token for that server."""
    headers: dict[str, Secret] = Field(default_factory=dict)
    """Headers of each request to that server, such as a key. Write `${NAME}`, never the key itself."""
    tools: _Tools | None = None
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
                raise ValueError(f"{name!r} is not the name of an environment variable")
        return env

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either command or url")
        kind = "url" if self.command is None else "command"
        misplaced = sorted(_KEYS_OF_OTHERS[kind] & self.model_fields_set)
        if misplaced:
            raise ValueError(f"{misplaced[0]} does not go with {kind}")
        return self

    def call_options(self, tool: str) -> dict[str, Any]:
        """Return how calls of a tool are executed: its own settings, those of all tools, and the defaults."""
        options: dict[str, Any] = {"timeout": _CALL_TIMEOUT, **dict(self.calls.set_fields())}
        own = self.tools.get(tool) if isinstance(self.tools, dict) else None
        if own is not None:
            options.update(own.set_fields())
        if "retry" in options:
            options["retry"] = make_policy(options["retry"])
        return options


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class McpServer:
    """A server of the settings, and what it takes from the environment."""

    name: str
    """Its name in the settings."""
    settings: McpServerSettings

    @property
    def where(self) -> str:
        """What is started or reached, for messages; without arguments and variables, which may be secret."""
        if self.settings.url is not None:
            return shown_url(self.settings.url)
        return str(self.settings.command)

    def environment(self) -> dict[str, SecretStr]:
        """Return the environment variables that the server gets besides the usual ones.

        Raises:
            AgentConfigurationError: one that is to be passed on is not set.
        """
        variables: dict[str, SecretStr] = {}
        for name, value in self.settings.env.items():
            variables[name] = SecretStr(self._require_variable(name)) if value is None else value
        return variables

    def token(self) -> SecretStr | None:
        """Return the bearer token, or None if the server needs none.

        Raises:
            AgentConfigurationError: its environment variable is not set.
        """
        variable = self.settings.token_env
        if variable is None:
            return None
        return check_key(self._require_variable(variable), f"the environment variable {variable}")

    def _require_variable(self, variable: str) -> str:
        value = os.environ.get(variable)
        if not value:
            raise AgentConfigurationError(
                f"the MCP server {self.name!r} needs the environment variable {variable}: set it"
            )
        return value
