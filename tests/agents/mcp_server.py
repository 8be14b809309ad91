"""An MCP server of the tests, as a program: `python mcp_server.py JOURNAL [PORT]`.

Without a port it speaks over its standard input and output; with one, over HTTP (0 chooses a free one, and the
first line of its output names it). Each call of a tool is a line in the journal.
"""

import os
import socket
import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer

JOURNAL = Path(sys.argv[1])
server = MCPServer("test", log_level="CRITICAL")


def record(line):
    with JOURNAL.open("a", encoding="utf-8") as journal:
        journal.write(f"{line}\n")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    record(f"add {a} {b}")
    return a + b


@server.tool()
def authorization(context: Context) -> str:
    """Return the header with the caller's token."""
    return context.headers["authorization"]


@server.tool()
def fail(reason: str) -> str:
    """Raise an error."""
    record("fail")
    raise ValueError(reason)


@server.tool()
def picture() -> Image:
    """Return an image."""
    return Image(data=b"pixels", format="png")


@server.tool()
def report(city: str) -> dict[str, object]:
    """Return data of a city."""
    return {"city": city, "degrees": 3}


@server.tool()
def die() -> str:
    """End the server in mid-call."""
    record("die")
    os._exit(1)


def main():
    if len(sys.argv) == 2:
        record("start")
        server.run("stdio")
        return
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[2])))
    listener.listen()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    record("start")
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
