"""What the errors of the official client mean: whether they may pass, and why, without the key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr

from graphkit._wording import describe_error
from graphkit.agents.completions import UnreadableAnswerError
from graphkit.agents.model_settings import shown_url
from graphkit.agents.secret import hide_secrets

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

_RETRIED_STATUSES: Final = frozenset({408, 409, 425, 429})
"""Besides those from 500: the same request may be answered later."""


class AttemptError(Exception):
    """An attempt failed. Replaces the error of the client, which may quote the key.

    Attributes:
        reason: why, without the key.
        is_temporary: whether the same request may be answered later.
        status: the status of the answer, if there was one.
        retry_after: how long the server asked to wait, in seconds.
    """

    def __init__(
        self, reason: str, *, is_temporary: bool, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_temporary = is_temporary
        self.status = status
        self.retry_after = retry_after


@contextmanager
def failures(client: OpenAI | AsyncOpenAI) -> Iterator[None]:
    """Raise AttemptError for each error of the client, without the error itself."""
    failure = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - each becomes a failure with a reason
        failure = _explain(error, client)
    if failure is not None:
        raise failure


def _explain(error: Exception, client: OpenAI | AsyncOpenAI) -> AttemptError:
    """Return what an error of the client means, without the key."""
    import openai

    def hide(text: str) -> str:
        return hide_secrets(text, [SecretStr(client.api_key)])

    if isinstance(error, openai.APIStatusError):
        return _explain_status(error, hide)
    reason = _explain_answer(error, client)
    if reason is None:
        return AttemptError(hide(describe_error(error)), is_temporary=False)
    return AttemptError(hide(reason), is_temporary=True)


def _explain_answer(error: Exception, client: OpenAI | AsyncOpenAI) -> str | None:
    """Return why there was no usable answer; None if the error is of another kind."""
    import openai

    where = shown_url(str(client.base_url))
    if isinstance(error, openai.APITimeoutError):
        return f"{where} did not answer within the timeout of {client.timeout} s"
    if isinstance(error, openai.APIConnectionError) or _is_transport_error(error):
        cause = error.__cause__ or error
        return f"the connection to {where} failed: {describe_error(cause)}"
    if isinstance(error, openai.APIError):  # an event of a stream
        return f"the server reported: {error.message}"
    if isinstance(error, UnreadableAnswerError):
        return str(error)
    if isinstance(error, JSONDecodeError | UnicodeDecodeError):
        return f"the answer of {where} is not valid JSON"
    return None


def _is_transport_error(error: Exception) -> bool:
    """Return whether the connection broke in a stream.

    Clients before 3.0 let such errors of their HTTP library through, which depends on their version.
    """
    libraries = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return isinstance(error, tuple(library.TransportError for library in libraries))


def _explain_status(error: Any, hide: Callable[[str], str]) -> AttemptError:
    status = error.status_code
    body = error.body if isinstance(error.body, Mapping) else {}
    reason = f"status {status}"
    message = body.get("message")
    if message:
        reason = f"{reason}: {message}"
    may_pass = status in _RETRIED_STATUSES or status >= 500  # noqa: PLR2004 - of HTTP
    # This code means that the account has no credit left, which no waiting changes.
    is_out_of_credit = body.get("code") == "insufficient_quota"
    retry_after = error.response.headers.get("retry-after")
    return AttemptError(
        hide(reason),
        status=status,
        is_temporary=may_pass and not is_out_of_credit,
        retry_after=_parse_retry_after(retry_after),
    )


def _parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None if there is none to read."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        then = parsedate_to_datetime(value)
    except ValueError:
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    left = then - datetime.now(UTC)
    return max(0.0, left.total_seconds())
