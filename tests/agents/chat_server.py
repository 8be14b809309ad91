"""A local HTTP server that speaks the protocol of chat completions, as its script says.

    with chat_server.start([text("Hello")]) as server:
        model = make_model({"provider": "openai", "model": "test", "base_url": server.base_url})

Each request takes the next reply of the script, or is answered by a function of the request, so that a
process that was killed and restarted is answered by what it asks. `server.requests` keeps what was asked.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.http_server import Handler, serve


@dataclass(frozen=True)
class Reply:
    """What the server answers to one request."""

    message: Mapping = field(default_factory=dict)
    status: int = 200
    headers: Mapping = field(default_factory=dict)
    body: str | None = None
    """Sent as it is, instead of a completion."""
    break_after: int | None = None
    """Close the connection after so many events of a stream; without a stream, in the middle of the body."""
    piece: int = 4
    """How many characters of text or arguments one event of a stream carries."""
    usage: Mapping | None = None


def text(content, **options):
    """An answer in words."""
    return Reply({"role": "assistant", "content": content}, **options)


def calls(*wanted, content=None, **options):
    """An answer that calls tools: pairs of a name and arguments. The ids are call_1, call_2, ..."""
    tool_calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(wanted, 1)
    ]
    return Reply({"role": "assistant", "content": content, "tool_calls": tool_calls}, **options)


def failure(status, message="no", *, code=None, **headers):
    """An error of the API, in the form in which it reports them."""
    body = json.dumps({"error": {"message": message, "type": "test", "code": code}})
    return Reply(status=status, headers={name.replace("_", "-"): value for name, value in headers.items()}, body=body)


@dataclass
class ChatServer:
    """The server of a test."""

    answer: Callable[[dict], Reply]
    base_url: str = ""
    requests: list = field(default_factory=list)
    """The body of each request, in the order in which they came."""
    headers: list = field(default_factory=list)
    """The headers of each request, with names in lower case."""


def scripted(replies: Sequence):
    """Answer the n-th request with the n-th reply; any further one with an error that says so."""
    remaining = iter(replies)
    return lambda _request: next(remaining, failure(400, "the script has no more replies"))


@contextmanager
def start(replies):
    """Run a server on a free port of this machine.

    Args:
        replies: what to answer in turn; or a function from the body of a request to a Reply.
    """
    server = ChatServer(replies if callable(replies) else scripted(replies))
    with serve(type("ChatHandler", (_Handler,), {"chat": server})) as port:
        server.base_url = f"http://127.0.0.1:{port}/v1"
        yield server


class _Handler(Handler):
    chat: ChatServer

    def do_POST(self):
        request = self.read_json()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.chat.headers.append(headers)
        self.chat.requests.append(request)
        assert self.path == "/v1/chat/completions"
        reply = self.chat.answer(request)
        if reply.body is not None:
            content_type = reply.headers.get("content-type", "application/json")
            others = {name: value for name, value in reply.headers.items() if name != "content-type"}
            self.send(reply.body, content_type, reply.status, **others)
        elif request.get("stream"):
            options = request.get("stream_options") or {}
            include_usage = bool(options.get("include_usage"))
            self._stream(reply, include_usage=include_usage)
        else:
            body = json.dumps(_completion(reply))
            sent = None if reply.break_after is None else len(body) // 2
            self.send(body, status=reply.status, sent=sent, **reply.headers)

    def _stream(self, reply, *, include_usage):
        self.send_response(reply.status)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(_events(reply, include_usage)):
            if number == reply.break_after:
                self.close_connection = True
                return
            self._write_chunk(f"data: {event}\n\n".encode())
        self._write_chunk(b"")

    def _write_chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()


def _completion(reply):
    choice = {"index": 0, "message": dict(reply.message), "finish_reason": _finish_reason(reply)}
    usage = {} if reply.usage is None else {"usage": dict(reply.usage)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "test",
        "choices": [choice],
        **usage,
    }


def _finish_reason(reply):
    return "tool_calls" if reply.message.get("tool_calls") else "stop"


def _events(reply, include_usage):
    """The events of a stream: the role, the text in pieces, the tool calls in pieces, the reason of the end."""
    yield _chunk({"role": "assistant", "content": ""})
    content = reply.message.get("content") or ""
    for piece in _pieces(content, reply.piece):
        yield _chunk({"content": piece})
    for index, call in enumerate(reply.message.get("tool_calls") or ()):
        name = call["function"]["name"]
        arguments = call["function"]["arguments"]
        yield _call_chunk({"name": name, "arguments": ""}, index=index, id=call["id"], type="function")
        for piece in _pieces(arguments, reply.piece):
            yield _call_chunk({"arguments": piece}, index=index)
    yield _chunk({}, finish_reason=_finish_reason(reply))
    if include_usage and reply.usage is not None:
        yield json.dumps(json.loads(_chunk({})) | {"choices": [], "usage": dict(reply.usage)})
    yield "[DONE]"


def _call_chunk(function, **fields):
    return _chunk({"tool_calls": [{**fields, "function": function}]})


def _pieces(whole, size):
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def _chunk(delta, finish_reason=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "test", "choices": [choice]}
    )
