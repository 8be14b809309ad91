"""An MCP server of the tests that needs no package: `python plain_mcp_server.py JOURNAL`.

It speaks the first version of the protocol, with its handshake, over standard input and output, and can
do what a library prevents: die in mid-call. Each call is a line in the journal.
"""

import json
import os
import sys
import time
from pathlib import Path

JOURNAL = Path(sys.argv[1])


def record(line):
    with JOURNAL.open("a", encoding="utf-8") as journal:
        journal.write(f"{line}\n")


def add(a, b):
    record("add")
    return a + b


def process():
    return os.getpid()


def environment(name):
    return os.environ.get(name, "not set")


def die(how_often, name="die"):
    record(name)
    times = JOURNAL.read_text(encoding="utf-8").split("\n").count(name)
    if times <= how_often:
        os._exit(1)
    return f"alive in attempt {times}"


def die_reading(how_often):
    return die(how_often, "die_reading")


def wait():
    record("wait")


def stop_listening():
    os.close(sys.stdin.fileno())
    record("stop_listening")
    time.sleep(60)


def complain(name, kind):
    """Fail with a variable of the environment in the error, of the tool or of the protocol."""
    if kind == "tool":
        return {"content": [{"type": "text", "text": f"bad key {os.environ[name]}"}], "isError": True}
    raise RefusalError(-32602, f"bad key {os.environ[name]}")


def refuse(code, message):
    raise RefusalError(code, message)


def refuse_and_die(code, message):
    record("refuse_and_die")
    raise RefusalError(code, message, is_last=True)


def echo(text):
    return text


def listed():
    record("listed")
    sys.stdout.write("1 file, which is no message\n")
    return os.fsdecode(b"caf\xe9")


def malformed():
    return {"content": 3}


class RefusalError(Exception):
    def __init__(self, code, message, *, is_last=False):
        super().__init__(code, message)
        self.error = {"code": code, "message": message}
        self.is_last = is_last


FUNCTIONS = (
    add, process, environment, die, die_reading, wait, stop_listening, complain, refuse, refuse_and_die, echo, listed,
    malformed,
)  # fmt: skip
TOOLS = {function.__name__: function for function in FUNCTIONS}


def describe(name):
    described = {"name": name, "inputSchema": {"type": "object"}}
    if name == "die_reading":
        described["annotations"] = {"readOnlyHint": True}
    return described


def answer(method, params):
    """The result of a request; None leaves it without an answer."""
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "plain", "version": "1"},
        }
    if method == "tools/list":  # in pages of two
        start = int(params.get("cursor", 0))
        names = list(TOOLS)[start : start + 2]
        page = {"tools": [describe(name) for name in names]}
        if start + 2 < len(TOOLS):
            page["nextCursor"] = str(start + 2)
        return page
    if method == "tools/call":
        returned = TOOLS[params["name"]](**params.get("arguments", {}))
        if isinstance(returned, dict):
            return returned
        return None if returned is None else {"content": [{"type": "text", "text": str(returned)}]}
    raise KeyError(method)


def main():
    record("start")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            if message["method"] == "notifications/cancelled":
                record("cancelled")
            continue
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        is_last = False
        try:
            reply["result"] = answer(message["method"], message.get("params", {}))
        except KeyError:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        except RefusalError as error:
            reply["error"] = error.error
            is_last = error.is_last
        if reply.get("result", reply.get("error")) is not None:
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()
        if is_last:
            return


if __name__ == "__main__":
    main()
