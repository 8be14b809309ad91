"""McpServerSettings: how an MCP server is started or reached, and which of its tools are offered."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self
from urllib.parse import urlsplit

from graphkit.agents.model_settings import shown_url
from graphkit.agents.secret import Secret
from graphkit.errors import AgentConfigurationError

_COMMAND_KEYS: Final = ("args", "command", "cwd", "env")
_URL_KEYS: Final = ("token_env", "url")
_COMMON_KEYS: Final = ("prefix", "requires_approval", "timeout", "tools")


@dataclasses.dataclass(frozen=True, kw_only=True)
class McpServerSettings:
    """How an MCP server is started or reached, and which of its tools are offered.

    A mapping has the same keys without `name`. It has either `command` or `url`.
    """

    name: str
    """The name of the server in the settings."""
    command: str | None = None
    """The program that is started; it speaks over its standard input and output."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: Mapping[str, str | None] = dataclasses.field(default_factory=dict, repr=False)
    """Its environment variables, besides a few such as PATH and HOME. None passes the variable of this
    process on, so that the settings hold no key."""
    cwd: str | None = None
    """Its working directory."""
    url: str | None = None
    """The address of a server that speaks streamable HTTP."""
    token_env: str | None = None
    """The environment variable with the bearer token for that server."""
    tools: tuple[str, ...] | None = None
    """The names of the tools that are offered; None for all."""
    requires_approval: bool | tuple[str, ...] = False
    """Whether a human approves each call: for all tools, or for those that are named."""
    prefix: str = ""
    """Put before the name of each tool, where two servers have a tool of the same name."""
    timeout: float = 30.0
    """How long the server may take to start, connect and list its tools, in seconds. Calls may take as
    long as they take."""

    @property
    def where(self) -> str:
        """What is started or reached, for messages; without arguments and variables, which may be secret."""
        if self.url is not None:
            return shown_url(self.url)
        return str(self.command)

    @classmethod
    def from_mapping(cls, name: Any, settings: Any) -> Self:
        """Return the settings of a mapping.

        Raises:
            AgentConfigurationError: a key is unknown, is missing or has a wrong value. The message names
                the server and the key.
        """
        if not isinstance(name, str) or not name:
            raise AgentConfigurationError(f"the name of an MCP server must be a text, not {name!r}")
        return cls(**_Reader(name, settings).read())

    def environment(self) -> dict[str, str]:
        """Return the environment variables that the server gets besides the usual ones.

        Raises:
            AgentConfigurationError: one that is to be passed on is not set.
        """
        return {key: self._require_variable(key) if value is None else value for key, value in self.env.items()}

    def token(self) -> Secret | None:
        """Return the bearer token, or None if the server needs none.

        Raises:
            AgentConfigurationError: its environment variable is not set.
        """
        if self.token_env is None:
            return None
        text = self._require_variable(self.token_env)
        return Secret.parse(text, f"the environment variable {self.token_env}")

    def _require_variable(self, variable: str) -> str:
        value = os.environ.get(variable)
        if not value:
            raise AgentConfigurationError(
                f"the MCP server {self.name!r} needs the environment variable {variable}: set it"
            )
        return value


class _Reader:
    """Reads the settings of one server."""

    def __init__(self, name: str, settings: Any) -> None:
        self._name = name
        if not isinstance(settings, Mapping):
            raise self._wrong("its settings", "a mapping with command or url", settings)
        self._settings = settings

    def read(self) -> dict[str, Any]:
        self._check_keys()
        found = {
            "name": self._name,
            "command": self._read_text("command"),
            "args": self._read_texts("args") or (),
            "env": self._read_environment(),
            "cwd": self._read_text("cwd"),
            "url": self._read_url(),
            "token_env": self._read_text("token_env"),
            "tools": self._read_texts("tools"),
            "requires_approval": self._read_approval(),
            "prefix": self._read_text("prefix"),
            "timeout": self._read_timeout(),
        }
        return {key: value for key, value in found.items() if value is not None}

    def _check_keys(self) -> None:
        has_command = self._settings.get("command") is not None
        has_url = self._settings.get("url") is not None
        if has_command == has_url:
            raise self._error("give either command or url")
        kind = "command" if has_command else "url"
        known = sorted((*(_COMMAND_KEYS if has_command else _URL_KEYS), *_COMMON_KEYS))
        for key in self._settings:
            if key not in known:
                raise self._error(f"unknown key {key!r}; the keys of a server with {kind} are {', '.join(known)}")

    def _read_text(self, key: str) -> str | None:
        value = self._settings.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        if "\0" in value:
            raise self._error(f"{key} contains a null character")
        return value

    def _read_texts(self, key: str) -> tuple[str, ...] | None:
        value = self._settings.get(key)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self._wrong(key, "a list of texts", value)
        if not all(isinstance(item, str) and "\0" not in item for item in value):
            raise self._error(f"{key} must be a list of texts")
        return tuple(value)

    def _read_environment(self) -> dict[str, str | None] | None:
        value = self._settings.get("env")
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong("env", "a mapping", value)
        for variable, text in value.items():
            if not isinstance(variable, str) or not variable or "=" in variable or "\0" in variable:
                raise self._error(f"env: {variable!r} is not the name of an environment variable")
            if text is not None and not isinstance(text, str):
                raise self._wrong(f"env: {variable}", "a text, or null to pass the variable on", text)
            if text is not None and "\0" in text:
                raise self._error(f"env: {variable} contains a null character")
        return dict(value)

    def _read_url(self) -> str | None:
        url = self._read_text("url")
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
            has_user = "@" in parts.netloc
        except ValueError:
            is_usable = has_user = False
        if not is_usable:
            raise self._error("url must be an address such as http://localhost:8000/mcp")
        if has_user:
            raise self._error("url must not contain a user or a password; name the variable of a token in token_env")
        return url

    def _read_approval(self) -> bool | tuple[str, ...] | None:
        if isinstance(self._settings.get("requires_approval"), bool):
            return bool(self._settings["requires_approval"])
        return self._read_texts("requires_approval")

    def _read_timeout(self) -> float | None:
        value = self._settings.get("timeout")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong("timeout", "a number of seconds", value)
        if not (math.isfinite(value) and value > 0):
            raise self._error(f"timeout must be a positive number of seconds, not {value!r}")
        return float(value)

    def _wrong(self, key: str, expected: str, value: Any) -> AgentConfigurationError:
        return self._error(f"{key} must be {expected}, not {type(value).__name__}")

    def _error(self, reason: str) -> AgentConfigurationError:
        return AgentConfigurationError(f"the MCP server {self._name!r}: {reason}")
