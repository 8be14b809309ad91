"""Both spellings, everywhere: one body under two names, getters equal to attributes, builders equal to keywords."""

import dataclasses
import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from datetime import UTC, datetime

import pytest

import graphkit
import graphkit.errors
import savers
from graphkit import (
    END,
    START,
    AgentState,
    Channel,
    Channels,
    Checkpoint,
    Command,
    CompileConfig,
    InterruptionMetadata,
    MessagesState,
    NodeOutput,
    RemoveByHash,
    RemoveIdentifier,
    ReplaceAllWith,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    StreamMode,
    Tag,
)
from graphkit.testing import ManualClock
from graphkit.when import after
from savers import MemorySaver, VersionedMemorySaver

PUBLIC = {
    name: getattr(package, name)
    for package in (graphkit, savers)
    for name in package.__all__
    if inspect.isclass(getattr(package, name))
}

PYTHON_ONLY = {"AuditLog", "CheckpointInfo", "GraphInterrupt", "StateSerializer", "StreamMode", "WaitingInterrupt"}
"""Public classes that Java does not have under this name, or whose only methods are those of a builtin; errors too."""

METHODS = (type(lambda: 0), staticmethod, classmethod)


def java_classes():
    return [
        cls
        for name, cls in sorted(PUBLIC.items())
        if name not in PYTHON_ONLY and not issubclass(cls, Exception)
    ]  # fmt: skip


def camel(snake):
    return re.sub(r"_(\w)", lambda match: match[1].upper(), snake)


def multi_word_methods(cls):
    """Names of a class's public methods, inherited ones too, that Java would spell otherwise."""
    for name in dir(cls):
        is_snake = not name.startswith("_") and "_" in name and name == name.lower()
        if is_snake and isinstance(inspect.getattr_static(cls, name), METHODS):
            yield name


PAIRS = [(cls, snake, camel(snake)) for cls in java_classes() for snake in multi_word_methods(cls)]


def test_both_spellings_are_one_function():
    assert len(PAIRS) > 100
    for cls, snake, java in PAIRS:
        assert inspect.getattr_static(cls, java, None) is inspect.getattr_static(cls, snake), f"{cls.__name__}.{java}"


def overridden(cls, name):
    def other(*arguments, **options):
        raise NotImplementedError

    return type(cls.__name__, (cls,), {name: other}), other


def test_overriding_one_spelling_overrides_both():
    open_pairs = [pair for pair in PAIRS if not getattr(pair[0], "__final__", False)]
    for cls, snake, java in open_pairs:
        for written, other in ((snake, java), (java, snake)):
            child, body = overridden(cls, written)
            assert inspect.getattr_static(child, other) is body, f"{cls.__name__}.{java}"
            grandchild, newer = overridden(child, other)
            assert inspect.getattr_static(grandchild, written) is newer, f"{cls.__name__}.{java}"


# Getters


def snapshot():
    graph = StateGraph({}).add_node("a", lambda state: {"x": 1}).add_edge(START, "a").add_edge("a", END)
    app = graph.compile(checkpoint_saver=MemorySaver())
    app.invoke({}, RunnableConfig("t"))
    return app.get_state(RunnableConfig("t"))


CONFIG = RunnableConfig("t", "c", next_node="n", stream_mode="snapshots", metadata={"k": 1})
OPTIONS = CompileConfig(
    checkpoint_saver=MemorySaver(),
    interrupt_before=["a"],
    interrupt_after=["b"],
    interrupt_before_edge=True,
    release_thread=True,
    max_iterations=7,
    graph_id="g",
)
CHANNEL = Channel(max, int)
GRAPH = StateGraph({"x": CHANNEL})
APP = StateGraph({}).add_edge(START, END).compile(OPTIONS.replace(interrupt_before=(), interrupt_after=()))
STOP = InterruptionMetadata("a", AgentState(), payload="why")

GETTERS = [
    (Checkpoint(node_id="a", next_node_id="b", state={"x": 1}), {"getId": "id", "getNodeId": "node_id", "getNextNodeId": "next_node_id", "getState": "state"}),
    (snapshot(), {"getNodeId": "node", "getNextNodeId": "next", "getCheckpointId": "checkpoint_id", "getState": "state", "nextNodeId": "next", "checkpointId": "checkpoint_id"}),
    (NodeOutput("a", AgentState()), {"isSTART": "is_start", "isEND": "is_end", "isSubGraph": "is_subgraph"}),
    (NodeOutput(END, AgentState(), is_subgraph=True), {"isSTART": "is_start", "isEND": "is_end", "isSubGraph": "is_subgraph"}),
    (STOP, {"nodeId": "node_id", "getNodeId": "node_id", "reason": "payload"}),
    (CONFIG, {"nodeId": "node_id", "nodePath": "node_path", "threadId": "thread_id", "checkPointId": "checkpoint_id", "nextNode": "next_node", "streamMode": "stream_mode"}),
    (OPTIONS, {"checkpointSaver": "checkpoint_saver", "interruptsBefore": "interrupt_before", "interruptsAfter": "interrupt_after", "interruptBeforeEdge": "interrupt_before_edge", "releaseThread": "release_thread", "recursionLimit": "max_iterations", "graphId": "graph_id"}),
    (Tag("t", ()), {"threadId": "thread_id"}),
    (Command("n"), {"gotoNode": "goto"}),
    (CHANNEL, {"getReducer": "reducer", "getDefault": "default"}),
    (GRAPH, {"getChannels": "channels", "getStateFactory": "state_factory", "getStateSerializer": "state_serializer"}),
    (APP, {"compileConfig": "compile_config"}),
]  # fmt: skip


@pytest.mark.requirement("L12")
@pytest.mark.parametrize(("thing", "getters"), GETTERS, ids=lambda value: type(value).__name__)
def test_a_getter_gives_the_attribute(thing, getters):
    found = {getter: getattr(thing, getter)() for getter in getters}
    assert found == {getter: getattr(thing, attribute) for getter, attribute in getters.items()}


TESTED_APART = {("BaseCheckpointSaver", "threadId"), ("RunnableConfig", "customDispatcher")}


def java_names():
    """Yield each class with Java names, and each of its names of more than one word."""
    for cls in java_classes():
        for name, value in vars(cls).items():
            is_one_word = name == name.lower() or name.isupper()
            if not (name.startswith("_") or is_one_word or inspect.isclass(value)):
                yield cls, name


def test_every_java_name_is_an_alias_or_a_tested_getter():
    aliases = {java for _, _, java in PAIRS}
    getters = {(cls, getter) for thing, names in GETTERS for cls in type(thing).__mro__ for getter in names}
    for cls, name in java_names():
        if name not in aliases and (cls, name) not in getters:
            assert (cls.__name__, name) in TESTED_APART, f"{cls.__name__}.{name}"


def test_a_name_is_an_attribute_or_a_method_never_both():
    for thing, getters in GETTERS:
        assert all(callable(inspect.getattr_static(type(thing), getter)) for getter in getters)
        names = {attribute for attribute in getters.values() if "_" in attribute}
        assert not [name for name in names if isinstance(inspect.getattr_static(type(thing), name, None), METHODS)]


@pytest.mark.requirement("L5")
def test_small_accessors():
    assert MemorySaver().threadId(None) == MemorySaver.THREAD_ID_DEFAULT == "$default"
    assert MemorySaver().threadId(CONFIG) == "t"
    assert CONFIG.getMetadata("k") == 1
    assert CONFIG.getMetadata("none") is None
    assert CONFIG.withStreamMode(StreamMode.SNAPSHOTS) is CONFIG
    assert CONFIG.withCheckPointId(None).checkpoint_id is None
    assert isinstance(VersionedMemorySaver(), MemorySaver)
    assert isinstance(VersionedMemorySaver(), graphkit.HasVersions)
    assert issubclass(RemoveByHash, RemoveIdentifier)
    assert RemoveByHash.of("x").compareTo("x", 0) == 0
    assert ReplaceAllWith.of(["x"]).values == ["x"]
    assert isinstance(Channels.appenderWithDuplicate(list), graphkit.AppenderChannel)
    assert "messages" in MessagesState.SCHEMA


# Builders


def fields_of(cls):
    return [field.name for field in dataclasses.fields(cls)]


JAVA_SPELLINGS = {
    "checkpoint_id": "checkPointId", "checkpoint_ns": "checkPointNs",
    "initial_delay": "retryDelay", "backoff": "backoffFactor", "max_delay": "maxInterval",
}  # fmt: skip
"""Fields that Java spells with a capital P, or would, and those it calls by another word."""

POOL = ThreadPoolExecutor()
BUILDERS = [
    (CompileConfig, fields_of(CompileConfig), {
        "checkpoint_saver": MemorySaver(), "interrupt_before": "a", "interrupt_after": "b", "interrupt_before_edge": True,
        "release_thread": True, "checkpoint_interval": 3, "max_iterations": 9, "graph_id": "g",
        "checkpoint_when": after("a"), "preserve": True, "on_save_error": "warn", "durability": "async", "observers": (print,),
        "executor": POOL, "retry": RetryPolicy(max_attempts=2), "timeout": 1.5, "clock": ManualClock(),
        "migrations": (dict,),
    }),
    (RunnableConfig, fields_of(RunnableConfig), {
        "thread_id": "t", "checkpoint_id": "c", "checkpoint_ns": "n", "next_node": "a", "stream_mode": StreamMode.SNAPSHOTS,
        "metadata": {"k": 1}, "max_iterations": 9, "executor": POOL, "max_concurrency": 4,
        "principal": "ann",
    }),
    (RetryPolicy, fields_of(RetryPolicy), {
        "max_attempts": 4, "initial_delay": 0.1, "backoff": 3.0, "max_delay": 9.0, "jitter": False, "retry_on": OSError,
    }),
    (Checkpoint, ["id", "node_id", "next_node_id", "parent_id", "created_at", "metadata", "state"], {
        "id": "i", "node_id": "a", "next_node_id": "b", "parent_id": "p", "created_at": datetime(2024, 5, 1, tzinfo=UTC),
        "metadata": {"k": 1}, "state": {"x": [1]},
    }),
]  # fmt: skip

MORE = {
    "addMetadata", "putMetadata", "recursionLimit", "interruptsBefore", "interruptsAfter", "addParallelNodeExecutor",
}  # fmt: skip
"""Builder methods that are not named after one field."""


@pytest.mark.parametrize(("cls", "fields", "values"), BUILDERS, ids=lambda value: getattr(value, "__name__", ""))
def test_builder_methods_match_the_fields(cls, fields, values):
    methods = {name for name in vars(type(cls.builder())) if not name.startswith("_")} - MORE
    assert methods == {JAVA_SPELLINGS.get(field, camel(field)) for field in fields}
    assert set(values) == set(fields), "every field has its value in this test"


@pytest.mark.requirement("L10")
@pytest.mark.parametrize(("cls", "fields", "values"), BUILDERS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_builder_builds_what_keywords_make(cls, fields, values):
    builder = cls.builder()
    for field in fields:
        method = getattr(builder, JAVA_SPELLINGS.get(field, camel(field)))
        assert method(values[field]) is builder
    built = builder.build()
    assert built == cls(**values)
    assert cls.builder(built).build() == built


def test_the_other_builder_methods_of_a_compile_config():
    several = CompileConfig.builder().interruptBefore("a", "b").interruptAfter("c", "d").recursionLimit(5)
    assert several.build() == CompileConfig(interrupt_before=["a", "b"], interrupt_after=["c", "d"], max_iterations=5)
    collected = CompileConfig.builder().interruptsBefore({"a"}).interruptsAfter(["b"])
    assert collected.build() == CompileConfig(interrupt_before=["a"], interrupt_after=["b"])


def test_a_builder_checks_when_it_builds_and_may_build_again():
    builder = CompileConfig.builder().maxIterations(0).observers(iter([print])).migrations(iter([dict]))
    with pytest.raises(ValueError, match="max_iterations"):
        builder.build()
    copied = copy(builder).maxIterations(7)
    first = builder.maxIterations(9).build()
    assert first == builder.build() == CompileConfig(max_iterations=9, observers=[print], migrations=[dict])
    assert copied.build() == first.replace(max_iterations=7)


def test_the_other_builder_methods_of_a_runnable_config():
    builder = RunnableConfig.builder().recursionLimit(5).addMetadata("a", 1)
    first = builder.addParallelNodeExecutor("a", POOL).addParallelNodeExecutor("b", POOL).build()
    assert first == RunnableConfig(max_iterations=5, metadata={"a": 1}, executor={"a": POOL, "b": POOL})
    second = RunnableConfig.builder(first).putMetadata("b", 2).build()
    assert dict(second.metadata) == {"a": 1, "b": 2}
    third = deepcopy(RunnableConfig.builder()).metadata(given := {"a": 1})
    given["a"] = 2
    assert third.build().metadata["a"] == 1


def test_an_unfinished_checkpoint_is_not_built():
    with pytest.raises(TypeError, match="state"):
        Checkpoint.builder().nodeId("a").nextNodeId("b").build()


# Errors and the order of parameters


def test_exceptions_go_by_both_names():
    assert graphkit.GraphStateException is graphkit.GraphStateError is graphkit.errors.GraphStateException
    assert graphkit.GraphRunnerException is graphkit.GraphRunnerError is graphkit.errors.GraphRunnerException


@pytest.mark.parametrize(
    ("cls", "method", "parameters"),
    [
        ("StateGraph", "addNode", ["id", "action"]),
        ("StateGraph", "addConditionalEdges", ["source", "condition", "mappings"]),
        ("StateGraph", "compile", ["config"]),
        ("CompiledGraph", "stream", ["input", "config"]),
        ("CompiledGraph", "updateState", ["config", "values", "as_node"]),
        ("BaseCheckpointSaver", "put", ["config", "checkpoint"]),
        ("HasVersions", "tag", ["config", "version"]),
        ("Checkpoint", "updateState", ["values", "channels"]),
        ("AgentState", "updateState", ["state", "partial", "channels"]),
        ("FileSystemSaver", "__init__", ["base_directory", "state_serializer"]),
    ],
)
def test_positional_parameters_stand_in_javas_order(cls, method, parameters):
    signature = inspect.signature(getattr(PUBLIC[cls], method)).parameters.values()
    positional = [p.name for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"]
    assert positional == parameters
