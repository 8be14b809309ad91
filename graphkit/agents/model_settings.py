"""ModelSettings: which model to ask, where, and how. Holds the key, and shows it nowhere."""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, SecretStr

from graphkit._plan.retry import RetryPolicy
from graphkit.agents.plain_data import Path
from graphkit.agents.settings import Retry, Seconds, Secret, Settings, check_key, make_policy, parse_address
from graphkit.errors import AgentConfigurationError

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
    api_key: Annotated[Secret, AfterValidator(_check_key)] | None = None
    """The key. Write `${NAME}`, never the key itself; or use `api_key_env`."""
    api_key_env: Annotated[str, AfterValidator(_check_variable)] | None = "OPENAI_API_KEY"
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
        found = {name: getattr(self, name) for name in REQUEST_OPTIONS}
        return {name: value for name, value in found.items() if value is not None}

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

    def dump(self, path: Path = ()) -> dict[str, Any]:
        """As in Settings, without the key: what is loaded takes it from the environment."""
        plain = super().dump(path)
        plain.pop("api_key", None)
        return plain


REQUEST_OPTIONS: Final = tuple(name for name in ModelSettings.model_fields if name not in _Endpoint.model_fields)
"""The settings that are sent with each request as they are; `extra_body` is a mapping of any others."""
