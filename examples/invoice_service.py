"""A service that pays batches of invoices: started, followed, answered and cancelled by HTTP, and run by workers.

Shows: `submit` with a key; a map with live progress; a question with a deadline; a timer; `cancel`; a schedule.
Needs `pip install starlette uvicorn`, and the extra `schedules`.
Run:   python examples/invoice_service.py serve [--runs DIR] [--port N]
       python examples/invoice_service.py work [--runs DIR]          in as many terminals as you like
The service prints uvicorn's log; a worker prints nothing. Kill each of them at any moment, and start it again.
From a shell, with URL=http://127.0.0.1:8000/batches:
    curl -H 'Idempotency-Key: march' -d '{"count": 200, "seconds": 3600}' $URL    begins a batch; returns its thread
    curl -N $URL/THREAD/events                                                    shows what happens
    curl -d '{"answer": true}' $URL/THREAD/answer                                 approves it, within those seconds
    curl -d '{"reason": "sent twice"}' $URL/THREAD/cancel
Each effect of a node is a line of DIR/effects.log.
"""

import argparse
import asyncio
import json
import operator
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, TypedDict

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from graphkit import END, RunnableConfig, StateGraph, interrupt, operations, sleep
from graphkit.errors import CheckpointConflictError, CheckpointNotFoundError, ThreadBusyError
from graphkit.worker import Worker
from savers import FileSystemSaver


class Batch(TypedDict):
    count: int
    seconds: float
    invoices: list[int]
    checked: Annotated[list[int], operator.add]
    approved: bool
    paid: int


Update = dict[str, object]


def log_effect(config: RunnableConfig, effect: str) -> None:
    """Append a line with one system call, so that processes never mix theirs."""
    file = os.open(args.runs / "effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{config.thread} {effect}\n".encode())
    os.close(file)


def load(state: Batch, config: RunnableConfig) -> Update:
    log_effect(config, "load")
    return {"invoices": list(range(state["count"]))}


def check(invoice: int, config: RunnableConfig) -> Update:
    log_effect(config, f"check {invoice}")
    time.sleep(0.02)
    return {"checked": [invoice]}


def approve(state: Batch) -> Update:
    question = f"Pay {len(state['checked'])} invoices?"
    return {"approved": interrupt(question, deadline=state["seconds"], default=False)}


def cool_off(_state: Batch) -> Update:
    sleep(args.cool_off)  # until then an approved batch can still be cancelled
    return {}


def pay(state: Batch, config: RunnableConfig) -> Update:
    log_effect(config, "pay")
    return {"paid": sum(state["checked"])}


def report(_state: Batch, config: RunnableConfig) -> Update:
    log_effect(config, "report")
    return {}


batches = StateGraph(Batch).set_entry_point("load").set_finish_point("pay")
batches.add_node(load).add_map_node("check", check, "invoices", max_concurrency=4).add_node(approve)
batches.add_sequence([cool_off, pay])
batches.add_edge("load", "check").add_edge("check", "approve")
batches.add_conditional_edges("approve", lambda state: "cool_off" if state["approved"] else END, ["cool_off", END])
reports = StateGraph(Batch).add_node(report).set_entry_point("report").set_finish_point("report")


async def begin(request: Request) -> JSONResponse:
    body = await request.json()
    batch: Update = {"count": int(body["count"]), "seconds": float(body["seconds"])}
    config = await app.asubmit(batch, key=request.headers.get("idempotency-key"))
    return JSONResponse({"thread": config.thread}, status_code=202)


async def answer(request: Request) -> JSONResponse:
    thread, value = request.path_params["thread"], (await request.json())["answer"]
    try:
        await operations.aanswer(saver, thread, value)
    except CheckpointNotFoundError as error:
        return JSONResponse({"error": str(error)}, status_code=404)
    except (CheckpointConflictError, ThreadBusyError) as error:  # answered already, or after the deadline
        return JSONResponse({"error": str(error)}, status_code=409)
    return JSONResponse({}, status_code=202)


async def cancel(request: Request) -> JSONResponse:
    thread, reason = request.path_params["thread"], (await request.json()).get("reason")
    try:
        return JSONResponse({"cancelled": await operations.acancel(saver, thread, reason=reason)})
    except CheckpointNotFoundError as error:
        return JSONResponse({"error": str(error)}, status_code=404)


async def follow(request: Request) -> JSONResponse | StreamingResponse:
    thread = request.path_params["thread"]
    if await asyncio.to_thread(saver.summary, thread) is None:  # the watch would wait until it exists
        return JSONResponse({"error": f"there is no thread {thread!r}"}, status_code=404)

    async def events() -> AsyncIterator[str]:
        async with aclosing(saver.awatch(thread, latest=True, until="finished")) as changes:
            async for change in changes:
                yield f"data: {json.dumps(change.to_dict())}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def serve() -> None:
    routes = [
        Route("/batches", begin, methods=["POST"]),
        Route("/batches/{thread}/answer", answer, methods=["POST"]),
        Route("/batches/{thread}/cancel", cancel, methods=["POST"]),
        Route("/batches/{thread}/events", follow),
    ]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=args.port)


def work() -> None:
    worker = Worker(saver, {"batch": app, "report": reports.compile(checkpoint_saver=saver)}, concurrency=4)
    worker.schedule("report", args.report, {}, graph_id="report")
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())  # stops the runs at their next node boundary
    signal.signal(signal.SIGINT, lambda *_: worker.stop())
    worker.run()


parser = argparse.ArgumentParser(description="Pay batches of invoices.")
parser.add_argument("role", choices=["serve", "work"])
parser.add_argument("--runs", default="runs", type=Path)
parser.add_argument("--port", default=8000, type=int)
parser.add_argument("--cool-off", default=60.0, type=float, help="seconds in which an approved one can be cancelled")
parser.add_argument("--report", default="0 7 * * *", help="when to report, as cron")
args = parser.parse_args()
args.runs.mkdir(parents=True, exist_ok=True)
saver = FileSystemSaver(args.runs / "checkpoints")
app = batches.compile(checkpoint_saver=saver, graph_id="batch")
{"serve": serve, "work": work}[args.role]()
