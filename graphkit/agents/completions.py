"""Reads answers in the form of chat completions: whole bodies, and streams of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphkit.agents.messages import Message, as_reply, new_message_id

_KEPT: Final = ("content", "refusal", "annotations", "audio", "reasoning", "reasoning_content")
"""What a state keeps of an answer, besides its role and tool calls, where the server sent it."""


class UnreadableAnswerError(ValueError):
    """The answer does not have the form of chat completions, or is not complete."""


def read_completion(completion: Any) -> Message:
    """Return the message of a whole answer.

    Raises:
        UnreadableAnswerError: it has no message, or one that the protocol does not allow.
    """
    if not isinstance(completion, Mapping):
        raise UnreadableAnswerError("the server did not answer with JSON; check base_url")
    choice = _first_choice(completion)
    if choice is None or not isinstance(choice.get("message"), Mapping):
        raise UnreadableAnswerError(_explain_no_choice(completion))
    finish_reason = choice.get("finish_reason")
    usage = completion.get("usage")
    return _finish(choice["message"], finish_reason, usage)


def _first_choice(completion: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    first = choices[0]
    return first if isinstance(first, Mapping) else None


def _explain_no_choice(completion: Mapping[str, Any]) -> str:
    error = completion.get("error")
    if isinstance(error, Mapping) and error.get("message"):  # some servers send errors with status 200
        return f"the server reported: {error['message']}"
    return "the answer has no message; check that base_url speaks the protocol of chat completions"


def _finish(sent: Mapping[str, Any], finish_reason: Any, usage: Any) -> Message:
    """Return the message of an answer, as a state keeps it."""
    message: Message = {"role": "assistant", "content": None}
    for name in _KEPT:
        value = sent.get(name)
        if value is not None:
            message[name] = value
    calls = sent.get("tool_calls")
    if calls:
        message["tool_calls"] = _with_ids(calls)
    if isinstance(finish_reason, str):
        message["finish_reason"] = finish_reason
    if isinstance(usage, Mapping):
        message["usage"] = dict(usage)
    message["id"] = new_message_id()  # ids of compatible servers are not unique
    try:
        return as_reply(message)
    except (TypeError, ValueError) as error:
        raise UnreadableAnswerError(f"the answer is not a message: {error}") from error


def _with_ids(calls: Any) -> Any:
    """Return the tool calls with an id for each that has none, or the id of another.

    A result is matched to its call by this id, and some compatible servers send none or always the same.
    """
    seen: set[str] = set()
    completed = []
    for call in _require_calls(calls):
        call_id = _text_of(call, "id")
        if not call_id or call_id in seen:
            call_id = f"call_{new_message_id()}"
        seen.add(call_id)
        call_type = call.get("type") or "function"
        completed.append({**call, "id": call_id, "type": call_type})
    return completed


def _require_calls(calls: Any) -> list[Mapping[str, Any]]:
    """Return tool calls, or pieces of some, if they are a list of mappings."""
    if isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls):
        return calls
    raise UnreadableAnswerError("tool_calls is not a list of calls")


class StreamedCompletion:
    """An answer that arrives in chunks."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._calls: list[_StreamedCall] = []
        self._finish_reason: str | None = None
        self._usage: Any = None

    def add(self, chunk: Any) -> str:
        """Take a chunk; return the text that it adds, "" if none.

        Raises:
            UnreadableAnswerError: the chunk does not have the form of the protocol.
        """
        if not isinstance(chunk, Mapping):
            raise UnreadableAnswerError("the server sent an event that is not a JSON object")
        if chunk.get("error"):
            raise UnreadableAnswerError(_explain_no_choice(chunk))
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choice = _first_choice(chunk)
        if choice is None:  # the last chunk has the usage and no choice
            return ""
        if isinstance(choice.get("finish_reason"), str):
            self._finish_reason = choice["finish_reason"]
        delta = choice.get("delta")
        if not isinstance(delta, Mapping):
            return ""
        self._add_delta(delta)
        return _text_of(delta, "content")

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        """Take what a chunk adds to the message."""
        pieces = delta.get("tool_calls")
        if pieces is not None:
            for piece in _require_calls(pieces):
                self._find_call(piece).add(piece)
        for name in _KEPT:
            text = delta.get(name)
            if isinstance(text, str):
                self._texts.setdefault(name, []).append(text)

    def _find_call(self, piece: Mapping[str, Any]) -> _StreamedCall:
        """Return the call that a piece belongs to.

        The protocol numbers the calls. Some compatible servers send no numbers, or the same number for
        all calls; there, an id that is new begins a call.
        """
        index = piece.get("index")
        call_id = piece.get("id")
        # The newest first: where a server sends neither number nor id with the rest of the arguments, they belong to
        # the call that it began last.
        for call in reversed(self._calls):
            if call.may_have(index, call_id):
                return call
        call = _StreamedCall(index)
        self._calls.append(call)
        return call

    def finish(self) -> Message:
        """Return the message.

        Raises:
            UnreadableAnswerError: the stream ended without the reason of its end, so a part is missing.
        """
        if self._finish_reason is None:
            raise UnreadableAnswerError("the stream ended before the answer did")
        sent: dict[str, Any] = {}
        for name, pieces in self._texts.items():
            text = "".join(pieces)
            is_empty = name == "content" and not text
            if not is_empty:
                sent[name] = text
        if self._calls:
            sent["tool_calls"] = [call.finish() for call in self._calls]
        return _finish(sent, self._finish_reason, self._usage)


class _StreamedCall:
    """A tool call that arrives in pieces."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self.id = ""
        self._name = ""
        self._arguments: list[str] = []

    def may_have(self, index: Any, call_id: Any) -> bool:
        """Return whether a piece with this number and this id can be a part of the call."""
        is_same_number = index is None or index == self.index
        is_same_id = not call_id or not self.id or call_id == self.id
        return is_same_number and is_same_id

    def add(self, piece: Mapping[str, Any]) -> None:
        self.id = self.id or _text_of(piece, "id")
        function = piece.get("function")
        if not isinstance(function, Mapping):
            return
        self._name = self._name or _text_of(function, "name")
        self._arguments.append(_text_of(function, "arguments"))

    def finish(self) -> dict[str, Any]:
        function = {"name": self._name, "arguments": "".join(self._arguments)}
        return {"id": self.id, "type": "function", "function": function}


def _text_of(piece: Mapping[str, Any], key: str) -> str:
    """Return the text under a key; empty if there is none."""
    value = piece.get(key)
    return value if isinstance(value, str) else ""
