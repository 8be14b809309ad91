"""Retry and timeout: a service hangs once and is busy once, and a payment must happen only once.

Shows: RetryPolicy and timeout on a node; the retry events that an observer receives; `config.once`, which
records its result and returns the record when the node runs again.
Run:   python examples/09_retry_and_timeout.py
Prints one payment, the two failed attempts with their reasons, and the receipt.
"""

import asyncio

from graphkit import AgentState, Event, RetryPolicy, RunnableConfig, StateGraph
from savers import MemorySaver

attempts: list[str] = []


def pay():
    print("pays 12.50")
    return "receipt 1"


async def order(state: AgentState, config: RunnableConfig):
    receipt = config.once("payment", pay)
    attempts.append(config.idempotency_key)
    if len(attempts) == 1:
        await asyncio.sleep(60)  # the service hangs: the timeout ends this attempt
    if len(attempts) == 2:
        raise ConnectionError("busy")
    return {"receipt": receipt}


def watch(event: Event):
    if event.type == "retry.attempt":
        print(f"attempt {event.data['attempt']} failed: {event.data['error_type']}: {event.data['error']}")


policy = RetryPolicy(max_attempts=3, initial_delay=0.01, retry_on=(ConnectionError, TimeoutError))
graph = StateGraph({}).add_node(order, retry=policy, timeout=0.2)
graph.set_entry_point("order").set_finish_point("order")
app = graph.compile(checkpoint_saver=MemorySaver(), observers=[watch])

final = asyncio.run(app.ainvoke({}, "order"))
print(final["receipt"])
assert len(set(attempts)) == 1, "one execution of the node, three attempts"
