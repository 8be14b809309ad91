"""ModelSettings: which model to ask, where, and how. Holds the key, and shows it nowhere."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from graphkit._plan.retry import RetryPolicy
from graphkit.agents.secret import check_key
from graphkit.errors import AgentConfigurationError

PROVIDERS: Final = ("openai",)
"""The providers that are known by name. Any other is a function, or a server that `openai` talks to."""

REQUEST_OPTIONS: Final = (
    "extra_body",
    "frequency_penalty",
    "max_completion_tokens",
    "max_tokens",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "seed",
    "stop",
    "temperature",
    "tool_choice",
    "top_p",
)
"""The settings that are sent with each request as they are; `extra_body` is a mapping of any others."""

RETRY_KEYS: Final = ("backoff", "initial_delay", "jitter", "max_attempts", "max_delay")
"""The settings of `retry`, as in a RetryPolicy."""

_OWN_KEYS: Final = ("api_key", "api_key_env", "base_url", "model", "provider", "retry", "timeout")
MODEL_KEYS: Final = tuple(sorted((*_OWN_KEYS, *REQUEST_OPTIONS)))
"""The keys of a mapping that describes a model."""


def _default_retry() -> RetryPolicy:
    return RetryPolicy(max_attempts=3, max_delay=60)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model to ask, where, and how.

    A mapping has the same keys; those of `options` stand beside the others, as in
    `{"provider": "openai", "model": "gpt-4o", "temperature": 0}`.
    """

    provider: str
    """Who is asked: `openai`, which means the protocol of chat completions."""
    model: str
    """The name of the model at the provider."""
    base_url: str | None = None
    """The address of the API; by default that of the environment variable OPENAI_BASE_URL, or OpenAI's."""
    api_key: SecretStr | None = None
    """The key. Prefer `api_key_env`: a key in settings must not be written to a file."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """The environment variable that has the key; None if the server needs none."""
    timeout: float = 600.0
    """How long to wait for a connection, and for each part of an answer, in seconds."""
    retry: RetryPolicy = dataclasses.field(default_factory=_default_retry)
    """How often a request is attempted, and the delays. A Retry-After of the server up to `max_delay` is
    obeyed."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What is sent with each request, such as `temperature`."""

    @property
    def name(self) -> str:
        """`provider:model`, for messages."""
        return f"{self.provider}:{self.model}"

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
        return cls.from_mapping({"provider": provider, "model": model})

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> Self:
        """Return the settings of a mapping.

        Raises:
            AgentConfigurationError: a key is unknown, is missing, or has a wrong value. The message
                names the key, and never its value where that may be secret.
        """
        _check_keys(settings)
        found: dict[str, Any] = {
            "provider": parse_provider(_require_text(settings, "provider")),
            "model": _require_text(settings, "model"),
            "options": _parse_options(settings),
        }
        if settings.get("base_url") is not None:
            found["base_url"] = parse_base_url(settings["base_url"])
        if settings.get("api_key") is not None:
            found["api_key"] = _parse_key(settings["api_key"])
        if "api_key_env" in settings:
            found["api_key_env"] = parse_variable(settings["api_key_env"])
        if settings.get("timeout") is not None:
            found["timeout"] = _parse_timeout(settings["timeout"])
        if settings.get("retry") is not None:
            found["retry"] = _parse_retry(settings["retry"])
        return cls(**found)

    def find_key(self) -> SecretStr | None:
        """Return the key: that of the settings, or that of the environment variable.

        None if `api_key_env` is None: the server needs no key.

        Raises:
            AgentConfigurationError: there is none; the message names the environment variable.
        """
        if self.api_key is not None:
            return self.api_key
        if self.api_key_env is None:
            return None
        value = os.environ.get(self.api_key_env, "")
        if not value:
            raise AgentConfigurationError(
                f"no key for the model {self.name}: set the environment variable {self.api_key_env}, or name "
                "another one in api_key_env (null if the server needs no key)"
            )
        return check_key(value, f"the environment variable {self.api_key_env}")


def without_key(llm_config: Any) -> Any:
    """Return a configuration of a model as it may be written to a file: a mapping without its `api_key`.

    What is loaded from the file takes the key from the environment.
    """
    if not isinstance(llm_config, Mapping):
        return llm_config
    return {name: value for name, value in llm_config.items() if name != "api_key"}


def shown_url(url: str) -> str:
    """Return a URL for messages: without user, password, query and fragment, which may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _check_keys(settings: Mapping[str, Any]) -> None:
    for key in settings:
        if key not in MODEL_KEYS:
            names = ", ".join(MODEL_KEYS)
            raise AgentConfigurationError(f"unknown key {key!r} of a model; the keys are {names}")


def _require_text(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    if value is None or value == "":
        raise AgentConfigurationError(f"a model needs the key {key!r}, as in {{'provider': 'openai', 'model': ...}}")
    if not isinstance(value, str):
        raise _wrong(key, "a text", value)
    return value


def parse_provider(provider: str) -> str:
    """Return the name of a provider.

    Raises:
        AgentConfigurationError: it is unknown.
    """
    if provider not in PROVIDERS:
        known = ", ".join(PROVIDERS)
        raise AgentConfigurationError(
            f"unknown provider {provider!r}; the known providers are: {known}. For a server that speaks "
            "OpenAI's protocol, use openai with its base_url; for any other, pass a function"
        )
    return provider


def parse_base_url(url: Any) -> str:
    """Return the address of a server.

    Raises:
        AgentConfigurationError: it is none, or has parts that may be secret.
    """
    if not isinstance(url, str):
        raise _wrong("base_url", "a text", url)
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        has_more = "@" in parts.netloc or bool(parts.query)
    except ValueError:
        is_usable = has_more = False
    if not is_usable:
        raise AgentConfigurationError("base_url must be an address such as https://api.openai.com/v1")
    if has_more:
        raise AgentConfigurationError("base_url must not contain a user, a password or a query; use api_key_env")
    return url


def parse_variable(name: Any) -> str | None:
    """Return the name of the environment variable of a key, or None.

    Raises:
        AgentConfigurationError: it is no such name.
    """
    if name is None:
        return None
    if not isinstance(name, str):
        raise _wrong("api_key_env", "the name of an environment variable", name)
    if not name.isidentifier():  # it may be the key itself, so the message does not repeat it
        raise AgentConfigurationError(
            "api_key_env must be the name of an environment variable, such as OPENAI_API_KEY, not a key"
        )
    return name


def _parse_key(key: Any) -> SecretStr:
    text = key.get_secret_value() if isinstance(key, SecretStr) else key
    if not isinstance(text, str):
        raise _wrong("api_key", "a text", text)
    return check_key(text, "api_key")


def _parse_timeout(timeout: Any) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise _wrong("timeout", "a number of seconds", timeout)
    if not (math.isfinite(timeout) and timeout > 0):
        raise AgentConfigurationError(f"timeout must be a positive number of seconds, not {timeout!r}")
    return float(timeout)


def _parse_retry(retry: Any) -> RetryPolicy:
    if isinstance(retry, RetryPolicy):
        return retry
    if not isinstance(retry, Mapping):
        raise _wrong("retry", "a mapping or a RetryPolicy", retry)
    for key in retry:
        if key not in RETRY_KEYS:
            known = ", ".join(RETRY_KEYS)
            raise AgentConfigurationError(f"unknown key {key!r} of retry; the keys are {known}")
    try:
        return _default_retry().replace(**retry)
    except (TypeError, ValueError) as error:
        raise AgentConfigurationError(f"retry: {error}") from error


def _parse_options(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    options: dict[str, Any] = {}
    for key in REQUEST_OPTIONS:
        value = settings.get(key)
        if value is not None:
            options[key] = value
    extra_body = options.get("extra_body", {})
    if not isinstance(extra_body, Mapping):
        raise _wrong("extra_body", "a mapping", extra_body)
    return options


def _wrong(key: str, expected: str, value: Any) -> AgentConfigurationError:
    return AgentConfigurationError(f"{key} must be {expected}, not {type(value).__name__}")
