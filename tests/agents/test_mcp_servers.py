"""The tools of MCP servers: local servers over standard input and output, and over HTTP."""

import asyncio
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import weakref
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path

import pytest

from graphkit import RetryPolicy
from graphkit.agents import AgentBuilder, AgentConfig, ToolError
from graphkit.agents.mcp_servers import McpServers
from graphkit.errors import AgentConfigurationError, McpServerError, McpToolError
from tests.support.agents import AsyncScript, call, calling, contents, everything_about
from tests.support.http_server import Handler, serve

SERVER = str(Path(__file__).with_name("mcp_server.py"))
PLAIN_SERVER = str(Path(__file__).with_name("plain_mcp_server.py"))
SECRET = "token-0123456789"


class LocalServer:
    """Settings of a server of the tests, and what it was asked."""

    def __init__(self, directory, program=SERVER):
        self.journal = directory / "journal"
        self.journal.touch()
        self.settings = {"command": sys.executable, "args": [program, str(self.journal)]}

    def calls(self):
        return self.journal.read_text(encoding="utf-8").split("\n")[:-1]


class HttpServer(LocalServer):
    """A server over HTTP, in a process that a test may kill and start again on the same port."""

    def __init__(self, directory):
        super().__init__(directory)
        self.port = 0
        self.process = None

    def start(self):
        command = [sys.executable, SERVER, self.journal, str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.settings = {"url": f"http://127.0.0.1:{self.port}/mcp"}

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def local(tmp_path):
    return LocalServer(tmp_path)


@pytest.fixture
def plain(tmp_path):
    """A server that starts in a tenth of the time, and speaks the first version of the protocol."""
    return LocalServer(tmp_path, PLAIN_SERVER)


@pytest.fixture
def http(tmp_path):
    server = HttpServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def short_ends(monkeypatch):
    """Let a server that does not end when its input does be killed at once, not after two seconds."""
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 0.05)


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    """A connection or a process that nothing closed warns when it is collected, and warnings are errors."""
    yield
    gc.collect()


async def tools_of(servers):
    return {tool.name: tool.function for tool in await servers.atools()}


@asynccontextmanager
async def connect_to(server):
    """Connect to a server; give its tools by name."""
    async with aclosing(McpServers({"test": server.settings})) as servers:
        yield await tools_of(servers)


# ---------------------------------------------------------------------------------------------- tools


def test_a_started_server_offers_its_tools(local):
    add = McpServers({"test": local.settings | {"tools": ["add"]}}).tools()[0]
    assert (add.is_async, add.requires_approval, add.description) == (True, False, "Add two numbers.")
    assert add.parameters["properties"].keys() == {"a", "b"}
    assert add.parameters["required"] == ["a", "b"]


async def test_the_tools_of_a_started_server_answer(local):
    async with connect_to(local) as call:
        report = await call["report"](city="Graz")
        assert json.loads(report) == {"city": "Graz", "degrees": 3}
        (picture,) = await call["picture"]()
        assert picture["type"] == "image"
        assert picture["data"] == "cGl4ZWxz"
        assert picture["mimeType"] == "image/png"

        additions = [call["add"](a=number, b=1) for number in range(20)]
        sums = await asyncio.gather(*additions)
        assert sums == [*map(str, range(1, 21))]

        with pytest.raises(McpToolError, match="the tool 'fail' failed: ") as caught:
            await call["fail"](reason="no")
        assert caught.value.tool == "fail"


def test_the_settings_choose_tools_approval_and_names(plain):
    settings = plain.settings | {"tools": ["process", "add"], "requires_approval": ["add"], "prefix": "my."}
    listed = McpServers({"test": settings}).tools()
    assert [(tool.name, tool.requires_approval) for tool in listed] == [("my_process", False), ("my_add", True)]
    assert asyncio.run(listed[1].function(a=1, b=2)) == "3"
    assert listed[1].parameters == {"type": "object", "properties": {}}  # the server says only the first

    for key in ("tools", "requires_approval"):
        with pytest.raises(AgentConfigurationError, match=rf"'test': {key} names 'ad', .* it has add, complain"):
            McpServers({"test": plain.settings | {key: ["ad"]}}).tools()


def test_two_tools_of_one_name_are_refused(plain):
    settings = plain.settings | {"tools": ["add"]}
    with pytest.raises(AgentConfigurationError, match=r"'one' and 'two' both have a tool 'add': give one .* a prefix"):
        McpServers({"one": settings, "two": settings}).tools()
    listed = McpServers({"one": settings, "two": settings | {"prefix": "two_"}}).tools()
    assert [tool.name for tool in listed] == ["add", "two_add"]


# ---------------------------------------------------------------------------------------------- connections


def test_tools_outlive_loops_and_connections(plain):
    servers = McpServers({"test": plain.settings})
    tools = {tool.name: tool.function for tool in servers.tools()}
    assert asyncio.run(tools["add"](a=1, b=2)) == "3"  # its loop ends without aclose

    async def close_between():
        before = await tools["process"]()
        await servers.aclose()
        return before, await tools["process"]()

    before, after = asyncio.run(close_between())
    assert before != after
    assert plain.calls().count("start") == 4
    for process in (before, after):
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)
    assert len(servers._servers[0]._loops) == 1  # the next connection lets go of loops that were closed


async def test_a_connection_that_opens_during_a_close_is_closed_by_the_next_one(plain):
    servers = McpServers({"test": plain.settings})

    tools = await tools_of(servers)
    await servers.aclose()
    call = asyncio.create_task(tools["process"]())
    await asyncio.sleep(0)
    await servers.aclose()
    process = int(await call)
    await servers.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_a_server_that_died_is_started_again_and_no_call_is_executed_twice(plain):
    async with connect_to(plain) as call:
        os.kill(int(await call["process"]()), signal.SIGKILL)
        calls = 2
        try:
            assert await call["add"](a=1, b=2) == "3"
        except McpServerError:  # the call was on its way when the end was noticed
            calls = 1
        assert await call["add"](a=1, b=2) == "3"
        assert plain.calls().count("add") == calls
    assert plain.calls().count("start") == 2


async def test_a_call_in_whose_midst_the_server_dies_is_repeated_once_if_it_only_reads_and_else_not(plain):
    async with connect_to(plain) as call:
        with pytest.raises(McpServerError, match="the server may have executed it") as caught:
            await call["die"](how_often=1)
        assert caught.value.server == "test"
        assert plain.calls().count("die") == 1
        assert await call["die"](how_often=1) == "alive in attempt 2"
        assert await call["die_reading"](how_often=1) == "alive in attempt 2"
        plain.journal.write_text("", encoding="utf-8")
        with pytest.raises(McpServerError, match="could not call die_reading: "):
            await call["die_reading"](how_often=5)
        assert plain.calls().count("die_reading") == 2


@pytest.mark.parametrize("code", [-32000, 1])
async def test_an_error_of_the_server_is_its_message_whatever_its_code(plain, code):
    async with connect_to(plain) as call:
        with pytest.raises(McpServerError) as caught:
            await call["refuse"](code=code, message="Connection closed")
        assert str(caught.value).startswith("the MCP server 'test': could not call refuse: Connection closed")
        assert ("may have executed" in str(caught.value)) == (code == -32000)

        with pytest.raises(McpServerError, match="could not call refuse_and_die: quota used up"):
            await call["refuse_and_die"](code=code, message="quota used up")
    assert plain.calls() == ["start", "refuse_and_die"]


@pytest.mark.requirement("P83")
async def test_a_server_over_http_may_go_and_come_back(http):
    async with connect_to(http) as call:
        assert await call["add"](a=1, b=2) == "3"

        http.kill()
        with pytest.raises(McpServerError, match=r"'test': could not call add: http://127.0.0.1:\d+/mcp: ConnectError"):
            await call["add"](a=3, b=4)

        http.start()
        assert await call["add"](a=5, b=6) == "11"
        http.kill()
        http.start()
        sums = await asyncio.gather(*(call["add"](a=number, b=1) for number in range(5)))
        assert sums == [str(number + 1) for number in range(5)]

        with pytest.raises(McpServerError, match="the server may have executed it"):
            await call["die"]()
        assert http.calls().count("die") == 1
    assert [call for call in http.calls() if call.startswith("add")][:2] == ["add 1 2", "add 5 6"]
    assert http.calls().count("add 3 4") == 0


async def test_a_malformed_answer_is_an_error_and_the_connection_stays(plain):
    async with connect_to(plain) as call:
        reason = "could not call malformed: ValidationError: (.|\n)*; the server may have executed it"
        with pytest.raises(McpServerError, match=reason):
            await call["malformed"]()
        assert await call["add"](a=1, b=2) == "3"
    assert plain.calls().count("start") == 1


async def test_a_connection_keeps_nothing_of_the_node_that_opened_it(plain):
    variable = ContextVar("variable")

    class Node:
        pass

    async with aclosing(McpServers({"test": plain.settings})) as servers:
        context = copy_context()
        node = Node()
        context.run(variable.set, node)
        kept = weakref.ref(node)
        await asyncio.create_task(servers.atools(), context=context)
        del node, context
        call = await tools_of(servers)
        await call["add"](a=1, b=2)
        gc.collect()
        assert kept() is None


async def test_a_cancelled_call_leaves_the_connection_usable(plain):
    async with connect_to(plain) as call:
        process = await call["process"]()
        task = asyncio.create_task(call["wait"]())
        while "wait" not in plain.calls():
            await call["process"]()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await call["process"]() == process
        assert "cancelled" in plain.calls()  # the server was told to stop


@pytest.mark.usefixtures("short_ends")
async def test_a_call_that_cannot_be_sent_to_a_server_is_made_on_a_new_connection_if_it_only_reads(plain):
    async with connect_to(plain) as call:
        task = asyncio.create_task(call["stop_listening"]())
        while "stop_listening" not in plain.calls():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
        task.cancel()  # the server cannot be told
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await call["die_reading"](how_often=0) == "alive in attempt 1"
    assert plain.calls().count("start") == 2


def refuse(code, make_message):
    """Answer a call with an error, whose message depends on the headers."""

    def answer(handler, request):
        error = {"code": code, "message": make_message(handler.headers)}
        handler.send(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}))

    return answer


RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "stub", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
}


def call_over_http(answer_call, **settings):
    """Call the only tool of a server that answers the call as a test says; return the error, and how often it was called."""
    calls = []

    class StubHandler(Handler):
        def do_POST(self):
            request = self.read_json()
            if request["method"] == "tools/call":
                calls.append(request)
                answer_call(self, request)
                return
            reply = {"jsonrpc": "2.0", "id": request.get("id")}
            if request["method"] in RESULTS:
                reply["result"] = RESULTS[request["method"]]
            else:
                reply["error"] = {"code": -32601, "message": "Method not found"}
            self.send(json.dumps(reply), status=200 if "id" in request else 202, **{"mcp-session-id": "s1"})

        def do_GET(self):
            self.send_error(405)

        def do_DELETE(self):
            self.send("", "text/plain")

    async def call(url):
        async with aclosing(McpServers({"web": {"url": url} | settings})) as servers:
            (tool,) = await servers.atools()
            with pytest.raises(McpServerError) as caught:
                await tool.function()
            return str(caught.value)

    with serve(StubHandler) as port:
        return asyncio.run(call(f"http://127.0.0.1:{port}/mcp")), len(calls)


NOT_CALLED = "the MCP server 'web': could not call act: "


@pytest.mark.parametrize(
    ("answer", "message", "calls"),
    [
        (refuse(-32000, lambda _: "quota used up"), f"{NOT_CALLED}quota used up", 1),
        (lambda stub, _: stub.send(": busy\n\n", "text/event-stream", sent=3), "may have executed it", 1),
        (lambda stub, _: stub.send("timeout", "text/plain", 504), "may have executed it", 1),
        (lambda stub, _: stub.send('{"error": "what session?"}', status=404), NOT_CALLED, 2),
    ],
    ids=["error", "broken off", "gateway that gives up", "forgotten session, of which a new one is opened"],
)
def test_a_call_over_http_that_fails_is_made_again_only_if_it_was_not_executed(answer, message, calls):
    error, count = call_over_http(answer)
    assert message in error
    assert count == calls


# ---------------------------------------------------------------------------------------------- options of calls


def run_agent(settings, *replies, tool_calls=(), **changes):
    """Run an agent that calls tools of a server; return the results of the calls."""

    async def use():
        servers = {"test": settings}
        script = AsyncScript(calling(*tool_calls), *replies)
        agent = await AgentBuilder().with_chat(script, name="chat").with_mcp_servers(servers).abuild()
        async with agent:
            state = await agent.arun("go")
        assert len(asyncio.all_tasks()) == 1  # the agent has closed its connection
        return contents(state)

    return asyncio.run(use())


def test_a_call_has_a_time_limit_unless_the_settings_have_none(plain):
    def limits(**settings):
        return {tool.name: tool.timeout for tool in McpServers({"test": plain.settings | settings}).tools()}

    assert set(limits().values()) == {300}
    assert set(limits(calls={"timeout": None}).values()) == {None}
    assert limits(tools={"add": {"timeout": 2}, "wait": None}, calls={"timeout": 9}) == {"add": 2, "wait": 9}


@pytest.mark.requirement("P11")
def test_the_settings_say_what_a_failed_call_does(plain):
    again = RetryPolicy(max_attempts=3, initial_delay=0, jitter=False, retry_on=McpServerError)
    settings = plain.settings | {"tools": {"die": {"retry": again}, "complain": {"retry": again}}}
    repeated, once = run_agent(
        settings, "done", tool_calls=[call("die", how_often=2), call("complain", name="PATH", kind="tool")]
    )
    assert repeated == "alive in attempt 3"
    assert once.startswith("Error: McpToolError: ")
    with pytest.raises(ToolError, match=r"tool 'refuse' failed in call 'c1': McpServerError: .*: quota"):
        run_agent(
            plain.settings | {"calls": {"on_error": "raise"}},
            tool_calls=[call("refuse", id="c1", code=-32000, message="quota")],
        )


def test_half_a_surrogate_pair_stops_neither_a_call_nor_its_connection(plain):
    results = run_agent(plain.settings, "done", tool_calls=[call("listed"), call("echo", text="a\udce9")])
    assert results == [r"caf\udce9", r"a\udce9"]
    assert plain.calls() == ["start", "listed"]


# ---------------------------------------------------------------------------------------------- errors


@pytest.mark.usefixtures("short_ends")
async def test_a_connection_that_is_cancelled_leaves_no_server():
    servers = McpServers({"late": {"command": "/bin/sleep", "args": ["60"]}})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(servers.atools(), 0.05)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("mcp")] == []


REFUSE_ALL = 's/"method"/"error":{"code":-32000,"message":"no license"},"was"/'


@pytest.mark.usefixtures("short_ends")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"command": "/no/such/program"}, "cannot start /no/such/program: No such file or directory"),
        ({"command": "/bin/true"}, "/bin/true ended the connection: is it an MCP server?"),
        ({"command": "/bin/cat"}, "/bin/cat: MCPError: Method not found"),
        ({"command": "/bin/sed", "args": ["-u", REFUSE_ALL]}, "/bin/sed: MCPError: no license"),
        ({"command": "/bin/sleep", "args": ["60"], "timeout": 0.05}, "/bin/sleep did not answer within 0.05 s"),
        ({"url": "http://127.0.0.1:9/mcp"}, "http://127.0.0.1:9/mcp: ConnectError: "),
    ],
    ids=lambda value: value.get("command", "url") if isinstance(value, dict) else "",
)
async def test_a_server_that_cannot_be_used_is_an_error_that_names_it_and_is_not_left_running(settings, reason):
    with pytest.raises(McpServerError) as caught:
        await McpServers({"broken": settings}).atools()
    assert str(caught.value).startswith(f"the MCP server 'broken': {reason}")
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("mcp")] == []


GOOD = {"command": "server"}


def test_wrong_settings_are_refused_by_name():
    for servers, message in (
        ([], "mcp_servers: must be"),
        ({"s": {}}, "mcp_servers.s: needs either command or url"),
        ({"s": {**GOOD, "url": "http://localhost/mcp"}}, "mcp_servers.s: needs either command or url"),
        ({"s": {"url": "http://h/", "env": {}}}, "env does not go with url"),
        ({"s": {**GOOD, "headers": {"X-Key": SECRET}}}, "headers does not go with command"),
        ({"s": {**GOOD, "env": {f"A={SECRET}": None}}}, "env: the name of an environment variable must not be empty"),
        ({"s": {"url": "http://localhost", "token_env": SECRET}}, "token_env: must be the name of an environment"),
        ({"s": {"url": "localhost"}}, "url: must be an address"),
        ({"s": {"url": f"http://me:{SECRET}@localhost/"}}, "url: must not contain a user or a password"),
    ):
        for take in (McpServers, AgentBuilder().with_mcp_servers):
            with pytest.raises(AgentConfigurationError) as caught:
                take(servers)
            assert message in str(caught.value)
            assert SECRET not in str(caught.value)


# ---------------------------------------------------------------------------------------------- variables


def test_a_variable_is_given_or_passed_on_and_never_shown(plain, monkeypatch):
    monkeypatch.setenv("SERVER_KEY", SECRET)
    monkeypatch.setenv("OTHER", "x")
    env = {"SERVER_KEY": None, "LEVEL": "high", "SHORT": "no", "LONG": f"{SECRET}-2", "NOT_UTF_8": "caf\udce9"}
    config = AgentConfig(mcp_servers={"test": plain.settings | {"env": env}})
    servers = McpServers(config.mcp_servers)

    async def use():
        async with aclosing(servers):
            call = await tools_of(servers)
            for name, kind, error, shown in (
                ("SERVER_KEY", "tool", McpToolError, "***"),
                ("SERVER_KEY", "protocol", McpServerError, "***"),
                ("LEVEL", "tool", McpToolError, "***"),
                ("LONG", "tool", McpToolError, "***"),
                ("SHORT", "tool", McpToolError, "no"),
            ):
                with pytest.raises(error) as caught:
                    await call["complain"](name=name, kind=kind)
                assert str(caught.value).endswith(f"bad key {shown}")
                assert SECRET not in everything_about(caught.value)
            return [await call["environment"](name=name) for name in ("SERVER_KEY", "LEVEL", "OTHER")]

    assert asyncio.run(use()) == [SECRET, "high", "not set"]
    assert "high" not in repr(servers) + repr(config)
    with pytest.raises(TypeError, match="build them again from their settings"):
        pickle.dumps(servers)
    monkeypatch.delenv("SERVER_KEY")
    with pytest.raises(AgentConfigurationError, match="'test' needs the environment variable SERVER_KEY: set it"):
        servers.tools()


@pytest.mark.parametrize(
    ("settings", "sent"),
    [({"headers": {"Authorization": SECRET}}, SECRET), ({"token_env": "MCP_TOKEN"}, f"Bearer {SECRET}")],
    ids=["header", "token"],
)
async def test_a_header_or_a_token_is_sent_and_never_shown(http, monkeypatch, settings, sent):
    monkeypatch.setenv("MCP_TOKEN", SECRET)
    config = AgentConfig(mcp_servers={"web": http.settings | settings})

    async with aclosing(McpServers(config.mcp_servers)) as servers:
        call = await tools_of(servers)
        assert await call["authorization"]() == sent
        http.kill()
        with pytest.raises(McpServerError) as caught:
            await call["authorization"]()
        http.start()
        assert SECRET not in everything_about(caught.value) + repr(config)


@pytest.mark.parametrize("header", [SECRET, f"Bearer {SECRET}"])
def test_a_server_that_repeats_a_header_is_an_error_without_it(header):
    answer = refuse(1, lambda headers: f"wrong key {headers['authorization'].split()[-1]}")
    error, _ = call_over_http(answer, headers={"Authorization": header})
    assert error == "the MCP server 'web': could not call act: wrong key ***"
