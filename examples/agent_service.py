"""A web service in which many users talk to one agent, each in a thread of their own.

Shows: an ASGI app; text by server-sent events while the model writes it; approvals by another request; a worker
that goes on with runs whose process or client went away. Needs `pip install starlette uvicorn`.
Run:   python examples/agent_service.py [--runs DIR] [--port N]
Prints uvicorn's log, and serves until it is stopped. The user is the bearer token:
    curl -N -H 'Authorization: Bearer ada' -d 'pay 20' http://127.0.0.1:8000/messages    the answer, as events
    curl -H 'Authorization: Bearer ada' http://127.0.0.1:8000/messages                   messages, and what waits
    curl -H 'Authorization: Bearer ada' -d '{"approved": true}' http://127.0.0.1:8000/answer
"""

import argparse
import asyncio
import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from graphkit import StreamingOutput, operations
from graphkit.agents import AgentBuilder, tool
from graphkit.errors import CheckpointConflictError, CheckpointNotFoundError, GraphKitError, ThreadBusyError
from graphkit.worker import Worker
from savers import FileSystemSaver


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def follow_rules(messages, on_text=None):
    """Answer as a model would."""
    last = messages[-1]
    if last["role"] == "user" and (wanted := re.fullmatch(r"pay (\d+)", last["content"])):
        function = {"name": "pay", "arguments": json.dumps({"amount": int(wanted[1])})}
        call = {"id": f"call-{len(messages)}", "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if on_text:
        for word in re.findall(r"\S+\s*", last["content"]):
            on_text(word)
    return last["content"]


def thread_of(request):
    kind, _, user = request.headers.get("authorization", "").partition(" ")
    if kind != "Bearer" or not user:
        raise HTTPException(401, "send a bearer token")
    return f"user-{user}"


def make_event(name, value):
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


async def converse(request):
    thread, text = thread_of(request), (await request.body()).decode()

    async def events():
        try:
            async for output in agent.astream(text, thread):
                if isinstance(output, StreamingOutput):
                    yield make_event("text", output.chunk)
        except GraphKitError as error:
            yield make_event("error", str(error))
            return
        waiting = [dict(interrupt.payload) for interrupt in saver.interrupts(thread)]
        yield make_event("waiting" if waiting else "end", waiting)

    return StreamingResponse(events(), media_type="text/event-stream")


async def look(request):
    history = agent.get_state_history(thread_of(request))
    messages = list(map(dict, history[0].values["messages"])) if history else []
    waiting = [dict(interrupt.payload) for interrupt in history[0].interrupts] if history else []
    return JSONResponse({"messages": messages, "waiting": waiting})


async def answer(request):
    thread, value = thread_of(request), await request.json()
    try:
        waiting = await operations.aanswer(saver, thread, value)
    except CheckpointNotFoundError as error:
        raise HTTPException(404, str(error)) from error
    except (CheckpointConflictError, ThreadBusyError) as error:
        raise HTTPException(409, str(error)) from error
    return JSONResponse({"answered": dict(waiting.payload)}, status_code=202)  # the worker goes on


@asynccontextmanager
async def work(_app):
    """Serve, beside the requests, runs that were answered or interrupted."""
    worker = Worker(saver, agent.graph)
    working = asyncio.create_task(asyncio.to_thread(worker.run))
    yield
    worker.stop()
    await working


parser = argparse.ArgumentParser(description="Serve an agent.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--port", default=8000, type=int)
args = parser.parse_args()
saver = FileSystemSaver(Path(args.runs, "checkpoints"))
agent = AgentBuilder().with_chat(follow_rules).with_tools(pay).with_checkpointer(saver).build()
routes = [
    Route("/messages", converse, methods=["POST"]),
    Route("/messages", look),
    Route("/answer", answer, methods=["POST"]),
]
uvicorn.run(Starlette(routes=routes, lifespan=work), host="127.0.0.1", port=args.port)
