"""langgraph4j's documentation page on checkpoints, usage by usage, in Java's spelling.

Shows: code written for langgraph4j reads the same here; docs/porting-from-java.md lists the names.
Run:   python examples/java_style.py
Prints a line per usage, such as `time travel: 4 checkpoints before, 6 after`.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from graphkit import (
    END,
    START,
    AgentState,
    Channels,
    CheckpointNotFoundError,
    CompileConfig,
    GraphResume,
    InterruptionMetadata,
    RunnableConfig,
    StateGraph,
)
from savers import FileSystemSaver, MemorySaver, SaverWrapper, VersionedMemorySaver


class State(AgentState):
    SCHEMA = {"messages": Channels.appender(list)}


class ValidatingCheckpointSaver(SaverWrapper):
    """A saver that wraps another: it overrides one method and forwards the others to the delegate."""

    def put(self, config, checkpoint):
        if not checkpoint.getNodeId() or not checkpoint.getState():
            raise ValueError("a checkpoint needs a node and a state")
        return self.delegate.put(config, checkpoint)


def thread(thread_id):
    return RunnableConfig.builder().threadId(thread_id).build()


def compiled(saver, **options):
    graph = StateGraph(State.SCHEMA, State)
    graph.addNode("agent", lambda state: {"messages": f"agent heard {state.value('messages')[-1]}"})
    graph.addNode("tool", lambda state: {"messages": f"tool got {state.value('approved', 'no answer')}"})
    graph.addEdge(START, "agent").addEdge("tool", END)
    graph.addConditionalEdges("agent", lambda state: "use" if state else "end", {"use": "tool", "end": END})
    builder = CompileConfig.builder().checkpointSaver(saver)
    for name, value in options.items():
        getattr(builder, name)(value)
    return graph.compile(builder.build())


# Memory: run the graph, then read the latest state and the history
app, config = compiled(MemorySaver()), thread("1")
state = app.invoke({"messages": "hello"}, config)
print("invoke:", state.data["messages"])
print("stream:", [output.node for output in app.stream({"messages": "again"}, config)])
snapshot = app.getState(config)
print("getState:", snapshot.getNodeId(), "->", snapshot.getNextNodeId(), snapshot.state.data["messages"][3:])
for snapshot in app.getStateHistory(config)[:2]:
    assert app.getState(config.withCheckPointId(snapshot.getCheckpointId())).getState() == snapshot.getState()
    print("getStateHistory:", snapshot.getNodeId(), snapshot.config.checkPointId() == snapshot.getCheckpointId())

# releaseThread(true): the run's end releases the history; an explicit release returns it as a Tag
saver = MemorySaver()
compiled(saver, releaseThread=True).invoke({"messages": "hello"}, config)
print("releaseThread:", len(saver.list(config)), "checkpoints left")
compiled(saver).invoke({"messages": "hello"}, config)
tag = saver.release(config)
print("release:", tag.threadId(), len(tag.checkpoints), "checkpoints, left:", saver.get(config))

# Versions: each release makes one
saver = VersionedMemorySaver()
app = compiled(saver, releaseThread=True)
for text in ("first", "second"):
    app.invoke({"messages": text}, config)
print("versions:", *saver.versionsByThreadId(config), "last:", saver.getVersion(config))
print("tag:", saver.tag(config, 1).checkpoints[0].getState()["messages"])

# Human in the loop: the last output is an InterruptionMetadata; update the state, then resume with GraphResume
app, config = compiled(ValidatingCheckpointSaver(MemorySaver()), interruptBefore="tool"), thread("human")
last = list(app.stream({"messages": "delete it"}, config))[-1]
assert isinstance(last, InterruptionMetadata)
print("interruption:", last.getNodeId())
updated = app.updateState(config, {"approved": "yes"})
latest = app.lastStateOf(config)  # None if the thread is unknown
assert latest is not None
print("updateState:", updated.checkPointId() == latest.getCheckpointId(), updated.nextNode())
print("GraphResume:", app.invoke(GraphResume(), config).value("messages")[-1])

# updateState with a node: acts as if that node had returned the values
forced = app.updateState(config, {"messages": "said by hand"}, "agent")
print("updateState as agent:", app.getState(forced).getNextNodeId())

# Time travel: go back to a checkpoint, change it and continue from there; the old checkpoints stay
history = app.getStateHistory(config)
past = next(snapshot for snapshot in history if snapshot.getNextNodeId() == "tool")
fork = app.updateState(RunnableConfig.builder(config).checkPointId(past.getCheckpointId()).build(), {"approved": "no"})
app.invoke(GraphResume(), fork)
print("time travel:", len(history), "checkpoints before,", len(app.getStateHistory(config)), "after")
try:
    app.getState(config.withCheckPointId("nowhere"))
except CheckpointNotFoundError as error:
    print("unknown checkpoint:", type(error).__name__)

# Concurrent sessions, each on its own thread
with ThreadPoolExecutor() as pool:
    app = compiled(MemorySaver())
    futures = [pool.submit(app.invoke, {"messages": f"session {n}"}, thread(f"session-{n}")) for n in range(20)]
    assert all(future.result().value("messages")[0] == f"session {n}" for n, future in enumerate(futures))
print("sessions:", len(futures))

# Files: another saver object, as after a restart, reads the same threads
with TemporaryDirectory() as folder:
    compiled(FileSystemSaver(Path(folder)), interruptBefore="tool").invoke({"messages": "hello"}, thread("disk"))
    app = compiled(FileSystemSaver(Path(folder)))
    print("after a restart:", app.invoke(GraphResume(), thread("disk")).value("messages")[-1])
    history = FileSystemSaver(folder).list(thread("disk"))
    print("FileSystemSaver:", *[f"{checkpoint.getNodeId()} -> {checkpoint.getNextNodeId()}" for checkpoint in history])
