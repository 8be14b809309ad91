"""The model behind the protocol of chat completions, against a local server that speaks it."""

import asyncio
import gc
import json
import logging
import pickle
import threading
import traceback
from contextlib import ExitStack, closing

import pytest

from graphkit import END, START, StateGraph
from graphkit.agents import AgentBuilder, ModelError, make_model
from graphkit.errors import AgentConfigurationError
from savers import FileSystemSaver, MemorySaver
from tests.agents import chat_server
from tests.agents.chat_server import Reply, calls, failure, text
from tests.support.agents import contents, everything_about

KEY = "sk-0123456789-topsecret"
QUESTION = [{"role": "user", "content": "Hello?", "id": "m1"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]
FAST = {"initial_delay": 0, "max_attempts": 3}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def connect():
    """Makes models that ask a server, and closes their connections at the end."""
    with ExitStack() as stack:

        def connect(server, **settings):
            options = {"provider": "openai", "model": "test", "base_url": server.base_url, "retry": FAST, **settings}
            return stack.enter_context(closing(make_model(options)))

        yield connect


def ask_sync(model, on_text=None, tools=()):
    return model.request(QUESTION, tools, on_text)


def ask_async(model, on_text=None, tools=()):
    return asyncio.run(model.arequest(QUESTION, tools, on_text))


both = pytest.mark.parametrize("ask", [ask_sync, ask_async], ids=["sync", "async"])
streaming = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


@both
@streaming
def test_it_answers_with_a_message_and_an_id_of_its_own(connect, ask, is_streamed):
    pieces = []
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    with chat_server.start([text("Hello there!", usage=usage)] * 2) as server:
        model = connect(server)
        on_text = pieces.append if is_streamed else None
        first, second = ask(model, on_text), ask(model, on_text)

    said = {"role": "assistant", "content": "Hello there!"}

    assert first == {**said, "finish_reason": "stop", "usage": usage, "id": first["id"]}
    assert first["id"] != second["id"]
    assert pieces == (["Hell", "o th", "ere!"] * 2 if is_streamed else [])


@both
def test_a_server_that_refuses_the_option_for_the_usage_is_asked_without_it(connect, ask):
    def answer(request):
        return failure(400, "what is that?") if "stream_options" in request else text("Hello")

    with chat_server.start(answer) as server:
        model = connect(server)
        for _ in range(2):
            pieces = []
            assert ask(model, pieces.append)["content"] == "".join(pieces) == "Hello"
        ask(model)
    assert ["stream_options" in request for request in server.requests] == [True, False, False, False]


@both
@streaming
def test_tool_calls_arrive_whole_however_they_are_sent(connect, ask, is_streamed):
    wanted = calls(("add", {"a": 1, "b": 22222}), ("look_up", '{"city": "Zürich'), content="Let me see.", piece=3)
    pieces = []
    with chat_server.start([wanted]) as server:
        message = ask(connect(server), pieces.append if is_streamed else None, TOOLS)

    assert message["content"] == "Let me see."
    assert message["tool_calls"] == wanted.message["tool_calls"]
    assert message["finish_reason"] == "tool_calls"
    assert "".join(pieces) == ("Let me see." if is_streamed else "")


def test_the_request_has_the_form_of_the_protocol_and_nothing_of_ours(connect):
    messages = [
        {"role": "system", "content": "Be brief.", "id": "m0"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "id": "m1"},
        {"role": "assistant", "content": None, "tool_calls": [], "id": "m2", "usage": {}, "finish_reason": "stop"},
        {"role": "tool", "tool_call_id": "call_1", "content": "3", "id": "m3"},
    ]
    with chat_server.start([text("ok"), text("ok")]) as server:
        model = connect(server, temperature=0, tool_choice="auto", extra_body={"top_k": 5})
        model.request(messages, TOOLS)
        model.request(messages)

    with_tools, without = server.requests
    assert with_tools == {
        "model": "test",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        ],
        "tools": TOOLS,
        "temperature": 0,
        "tool_choice": "auto",
        "top_k": 5,
    }
    assert without.keys() == with_tools.keys() - {"tools", "tool_choice"}
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


# ---------------------------------------------------------------------------------------------- failures that pass


@pytest.mark.sweep(1, of="ask", in_turn=True)
@both
@pytest.mark.parametrize(
    "reply",
    [
        failure(429, "slow down"),
        Reply(body="<html>busy</html>", headers={"content-type": "text/html"}),
        Reply(body="{broken", headers={"content-type": "application/json"}),
        Reply(body='{"choices": [{"message": {"role": "assistant", "tool_calls": [{}]}}]}'),
        Reply(body='{"error": {"message": "overloaded"}}'),
    ],
    ids=lambda reply: f"{reply.status}-{reply.body}"[:30],
)
def test_what_may_pass_is_asked_again(connect, ask, reply):
    with chat_server.start([reply, reply, text("Hello")]) as server:
        assert ask(connect(server))["content"] == "Hello"
    assert len(server.requests) == 3


@both
@pytest.mark.parametrize("reply", [failure(500, "out of order"), text("Hello there", break_after=1)])
def test_when_all_attempts_fail_the_error_counts_them(connect, ask, reply):
    with chat_server.start([reply] * 3) as server, pytest.raises(ModelError) as caught:
        ask(connect(server))
    assert len(server.requests) == 3
    assert caught.value.attempts == 3
    assert "the model openai:test gave no usable answer after 3 attempts: " in str(caught.value)
    assert caught.value.status == (500 if reply.status == 500 else None)


@pytest.mark.sweep(1, of="ask", in_turn=True)
@both
@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (failure(400, "context too long"), "status 400: context too long"),
        (Reply(status=404, body="gone"), "status 404 of http://127.0.0.1:"),
        (failure(429, "no credit", code="insufficient_quota"), "status 429: no credit"),
        (failure(429, "slow down", retry_after=3600), "status 429: slow down; the server asks to wait 3600 s"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_what_does_not_pass_is_asked_once(connect, ask, reply, reason):
    with chat_server.start([reply, text("Hello")]) as server, pytest.raises(ModelError) as caught:
        ask(connect(server))
    assert len(server.requests) == 1
    assert caught.value.attempts == 1
    assert caught.value.status == reply.status
    assert f"after 1 attempt: {reason}" in str(caught.value)


def test_a_server_that_is_not_there_or_does_not_answer_is_asked_again(connect):
    never = threading.Event()
    with chat_server.start(lambda _request: never.wait(60) and text("late")) as server:
        with pytest.raises(ModelError, match=r"after 3 attempts: .* did not answer within the timeout of 0.05 s"):
            connect(server, timeout=0.05).request(QUESTION)
        never.set()
    with pytest.raises(ModelError, match=r"after 3 attempts: the connection to http://127.0.0.1:\d+/v1/ failed"):
        connect(server).request(QUESTION)


@pytest.mark.parametrize(
    "value", ["7", "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 99999999999 08:49:37 GMT", "soon"]
)
def test_no_attempt_starts_before_the_time_that_the_server_names(connect, monkeypatch, value):
    delays = []
    monkeypatch.setattr("graphkit.agents.models.sleep", delays.append)
    with chat_server.start([failure(429, retry_after=value), text("Hello")]) as server:
        connect(server, retry={"initial_delay": 0.25, "jitter": False}).request(QUESTION)
    assert delays == [7.0 if value == "7" else 0.25]  # a date in the past and no date at all ask for no delay


# ---------------------------------------------------------------------------------------------- streams that break


@both
@pytest.mark.parametrize("events", [0, 4])
def test_a_stream_that_broke_goes_on_without_giving_text_twice(connect, ask, events):
    pieces = []
    broken = text("Hello there, friend", break_after=events)
    with chat_server.start([broken, broken, text("Hello there, friend", piece=7)]) as server:
        message = ask(connect(server), pieces.append)
    assert message["content"] == "".join(pieces) == "Hello there, friend"
    assert len(server.requests) == 3


@both
@pytest.mark.parametrize("answer", ["Hello! How are you?", "Hello", ""])
def test_a_next_answer_that_differs_from_what_was_shown_is_an_error(connect, ask, answer):
    pieces = []
    replies = [text("Hello there, friend", break_after=3), text(answer), text("Hello there, friend")]
    with chat_server.start(replies) as server, pytest.raises(ModelError) as caught:
        ask(connect(server), pieces.append)
    assert "".join(pieces) == "Hello th"
    assert caught.value.attempts == 2
    assert "the stream broke after 8 characters had been shown" in str(caught.value)


@pytest.mark.sweep(1, of="ask", in_turn=True)
@both
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("data: {broken", "not valid JSON"),
        ('data: {"error": {"message": "overloaded"}}', "overloaded"),
        ('data: {"choices": 3}', "check that base_url"),
        ("<html>", "check that base_url"),
    ],
)
def test_a_bad_event_is_a_failure(connect, ask, body, reason):
    reply = Reply(body=f"{body}\n\n", headers={"content-type": "text/event-stream"})
    with chat_server.start([reply] * 3) as server, pytest.raises(ModelError, match=f"after 3 attempts: .*{reason}"):
        ask(connect(server), lambda text: None)


@both
def test_an_error_of_the_handler_passes_through_and_nothing_is_asked_again(connect, ask):
    def fail(_text):
        raise ValueError("mine")

    with chat_server.start([text("Hello")] * 2) as server, pytest.raises(ValueError, match="mine"):
        ask(connect(server), fail)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"index": 0, "id": "a"}, {"index": 0, "id": "b"}),
        ({"id": "a"}, {"id": "b"}),
        ({"index": 0, "id": "a"}, {"index": 1, "id": "a"}),
        ({"index": 1, "id": ""}, {"index": 2, "id": None}),
    ],
    ids=["one number", "no numbers", "one id", "no ids"],
)
def test_calls_of_compatible_servers_are_distinguished(connect, one, other):
    body = ""
    for name, piece in (("f", one), ("g", other)):
        function = {"name": name, "arguments": "{}"}
        delta = {"tool_calls": [piece | {"function": function}]}
        event = json.dumps({"choices": [{"delta": delta}]})
        body += f"data: {event}\n\n"
    body += 'data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}\n\n'
    reply = Reply(body=body, headers={"content-type": "text/event-stream"})
    with chat_server.start([reply]) as server:
        message = connect(server).request(QUESTION, TOOLS, lambda text: None)
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["f", "g"]
    ids = {each["id"] for each in message["tool_calls"]}
    assert len(ids - {"", None}) == 2


# ---------------------------------------------------------------------------------------------- threads and loops


def test_one_model_serves_one_event_loop_after_another_and_leaves_nothing_open(connect):
    with chat_server.start(lambda request: text("Hello")) as server:
        model = connect(server)

        async def ask_twice_at_once():
            return await asyncio.gather(model.arequest(QUESTION), model.arequest(QUESTION, (), lambda text: None))

        for _ in range(3):
            assert [answer["content"] for answer in asyncio.run(ask_twice_at_once())] == ["Hello", "Hello"]
        assert model._clients._of_loops == {}
        gc.collect()  # a connection that was left open warns, and warnings are errors


async def test_a_cancelled_request_closes_its_connection(connect):
    asked, done = threading.Event(), threading.Event()

    def hang(_request):
        asked.set()
        done.wait(60)
        return text("late")

    with chat_server.start(hang) as server:
        task = asyncio.create_task(connect(server).arequest(QUESTION))
        await asyncio.to_thread(asked.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        done.set()
    assert len(server.requests) == 1


# ---------------------------------------------------------------------------------------------- the key


def test_a_missing_key_names_the_environment_variable(connect, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with chat_server.start([text("Hello")] * 2) as server:
        with pytest.raises(AgentConfigurationError, match="set the environment variable OPENAI_API_KEY"):
            connect(server).request(QUESTION)
        with pytest.raises(AgentConfigurationError, match="set the environment variable MY_KEY"):
            connect(server, api_key_env="MY_KEY").request(QUESTION)
        connect(server, api_key_env=None).request(QUESTION)
        monkeypatch.setenv("MY_KEY", "another")
        connect(server, api_key_env="MY_KEY").request(QUESTION)
    without, another = server.headers
    assert without["authorization"] == "Bearer -"
    assert another["authorization"] == "Bearer another"


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY} x", f"{KEY}é", f"\x00{KEY}"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key):
    with pytest.raises(AgentConfigurationError, match="api_key: it contains") as caught:
        make_model({"provider": "openai", "model": "m", "api_key": key})
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.sweep(1, of=("ask", "settings"), in_turn=True)
@both
@pytest.mark.parametrize("settings", [{}, {"api_key": KEY}], ids=["environment", "settings"])
@pytest.mark.parametrize(
    "answer",
    [
        lambda request: failure(401, f"Incorrect API key provided: {KEY}", code=KEY),
        lambda request: Reply(body=json.dumps({"error": {"message": KEY}})),
        lambda request: Reply(body=KEY),
        lambda request: text(KEY, break_after=0),
    ],
)
def test_no_error_shows_the_key(connect, ask, settings, answer):
    with chat_server.start(answer) as server:
        model = connect(server, **settings)
        for on_text in (None, lambda text: None):
            with pytest.raises(ModelError) as caught:
                ask(model, on_text)
            assert KEY not in everything_about(caught.value)
            stored = pickle.dumps(caught.value)
            assert pickle.loads(stored).args == caught.value.args
    assert KEY not in repr(model)
    assert KEY not in repr(model.settings)


def test_the_key_is_in_no_log_no_event_and_no_checkpoint(connect, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    events = []
    thread = {"configurable": {"thread_id": "t"}}
    replies = [failure(500, KEY), text("Hello"), *[failure(500, KEY)] * 3]
    with chat_server.start(replies) as server, FileSystemSaver(tmp_path / "store") as saver:
        model = connect(server)
        graph = StateGraph({}).add_node("ask", lambda state: {"answer": model.request(QUESTION)})
        graph.add_edge(START, "ask").add_edge("ask", END)
        app = graph.compile(checkpoint_saver=saver, observers=[events.append])
        app.invoke({"question": "Hello?"}, thread)
        with pytest.raises(Exception, match="status 500") as caught:
            app.invoke({"question": "again"}, thread)

    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"Hello" in stored
    assert KEY.encode() not in stored
    assert "chat/completions" in caplog.text
    assert KEY not in caplog.text
    assert KEY not in everything_about(caught.value)
    assert [event.data["attempt"] for event in events if event.type == "model.retry"] == [1, 1, 2]
    assert KEY not in repr(events)


def test_a_model_pickles_without_its_key(connect):
    with chat_server.start([text("Hello")] * 2) as server:
        model = connect(server)
        model.request(QUESTION)
        stored = pickle.dumps(model)
        assert KEY.encode() not in stored
        twin = pickle.loads(stored)
        assert twin.request(QUESTION)["content"] == "Hello"
        twin.close()
        with pytest.raises(TypeError, match="api_key_env"):
            pickle.dumps(connect(server, api_key=KEY))


# Half a surrogate pair in a text, which no request can carry, is replaced where it enters or is sent


HALF = "name \udce9"
ESCAPED = r"name \udce9"


@pytest.fixture
def build():
    """Builds an agent whose model is behind a server."""
    with ExitStack() as stack:

        def build(server, *tools, step=lambda _: {}, **options):
            settings = {"provider": "openai", "model": "m", "base_url": server.base_url, "retry": {"max_attempts": 1}}
            builder = AgentBuilder().with_step("step", step).with_chat(settings, **options).with_tools(*tools)
            return stack.enter_context(builder.with_checkpointer(MemorySaver()).build())

        yield build


def sent_texts(server):
    return [message["content"] for message in server.requests[-1]["messages"]]


def test_a_text_of_the_user_is_sent_and_the_thread_goes_on(build, caplog):
    with chat_server.start([text("What?"), text("Hello")]) as server:
        agent = build(server)
        state = agent.run(HALF, "t")
        assert contents(state, "user") == [ESCAPED]
        state = agent.run("hello", "t")
        assert contents(state, "assistant") == ["What?", "Hello"]
    assert sent_texts(server) == [ESCAPED, "What?", "hello"]
    (record,) = caplog.records
    assert record.name == "graphkit.agents"
    assert record.levelno == logging.WARNING
    assert r"'\udce9'" in record.getMessage()


@pytest.mark.parametrize("result", [{"sizes": {HALF: [HALF]}}, ValueError(HALF)], ids=ascii)
def test_a_result_or_an_error_of_a_tool_is_sent(build, result):
    def look() -> object:
        if isinstance(result, ValueError):
            raise result
        return result

    with chat_server.start([calls(("look", {})), text("done")]) as server:
        (content,) = contents(build(server, look).run("go", "t"))
    assert "\\udce9" in content
    assert HALF not in content
    assert sent_texts(server)[2] == content


def test_what_other_steps_and_inputs_store_is_sent(build):
    def step(state):
        return {"file": HALF, "messages": [{"role": "user", "content": HALF}]}

    with chat_server.start([text("one"), text("two")]) as server:
        agent = build(server, step=step, prompt_template="Read {file}.")
        message = {"role": "user", "content": [{"type": "text", "text": HALF}]}
        agent.run({"messages": [message]}, "t")
        parts = [{"type": "text", "text": ESCAPED}]
        assert sent_texts(server) == [f"Read {ESCAPED}.", parts, ESCAPED]
        agent.update_state("t", {"messages": [{"role": "user", "content": HALF}]})
        agent.run("more", "t")

    assert sent_texts(server)[-3:] == [ESCAPED, "more", ESCAPED]  # of update_state, and again of the step


def test_two_halves_of_one_character_become_it(build, caplog):
    with chat_server.start([text("done")]) as server:
        build(server).run("\ud83d\ude00", "t")
    assert sent_texts(server) == ["\N{GRINNING FACE}"]
    assert not caplog.records


def test_a_request_that_cannot_be_written_is_not_blamed_on_the_server(build):
    message = {"role": "user", "content": [{"type": "text", "text": float("nan")}]}
    with chat_server.start([]) as server, pytest.raises(ModelError) as raised:
        build(server).run({"messages": [message]}, "t")
    assert server.requests == []
    assert "ValueError" in raised.value.reason
    assert "answer" not in raised.value.reason
