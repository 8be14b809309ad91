"""A nested graph: a node that is a graph, run inside the outer run, in a namespace of its own.

It is driven by the same loop. Its requests go to the driver of the outer run, with two exceptions:
it does not release the run lock, and its outputs are flagged. Its checkpoints are stored in the
namespace `<node id>`, below that of the outer graph, with the node execution that they belong to.
So a resume finds out whether this execution had begun, and continues inside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, cast

from graphkit._engine.cursor import Steps
from graphkit._engine.node_runner import Halt, NodeRunner, RunContext
from graphkit._engine.program import Program
from graphkit._engine.requests import (
    Emit,
    Finish,
    Hold,
    Load,
    LoadWrites,
    Record,
    Request,
    Save,
)
from graphkit._engine.subgraph_updates import SubgraphUpdates
from graphkit._plan.topology import Node, Topology
from graphkit._records.checkpoint import Checkpoint
from graphkit._records.config import RunnableConfig
from graphkit._records.output import ABSENT, GraphResume, InterruptionMetadata
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import (
    OUTER_EXECUTION,
    SUBGRAPH_INTERRUPT,
    subgraph_interrupts,
    subgraph_namespace,
    unanswered_interrupts,
)
from graphkit._values.frozen import FrozenDict
from graphkit.errors import GraphRunnerError

_BEFORE_FIRST_STEP: Final = (Load, LoadWrites, Hold, Record, Save)
"""The requests of a nested run while an answer to it may not be stored yet."""


class _CompiledGraph(Protocol):
    """A compiled graph, as the node that holds it is run."""

    @property
    def program(self) -> Program: ...


class NestedRun(Protocol):
    """The run of a nested graph; `RunState` describes its attributes."""

    config: RunnableConfig
    saver: BaseCheckpointSaver | None
    run_input: Any
    data: FrozenDict
    private: FrozenDict
    base: Checkpoint | None
    writes: dict[str, Any]
    outer_execution: str | None
    subgraph_updates: SubgraphUpdates | None

    def steps(self) -> Steps:
        """Run from `run_input` to the end or a stop."""
        ...

    def accept_resume(self, resume: GraphResume) -> Generator[Request, Any, dict[str, Any]]:
        """Move to the position where a resume continues."""
        ...


def program_of(node: Node) -> Program:
    """Return the program of a node that is a graph."""
    return cast("_CompiledGraph", node.graph).program


def execute(runner: NodeRunner, node_id: str, nested: NestedRun) -> Steps:
    """Run a nested graph and merge its updates into the outer graph.

    It starts from the runner's state, or continues where this node execution has stopped before.

    Raises:
        Halt: the nested graph waits for a human; its interrupts are recorded in the outer run.
    """
    run = runner.run
    if nested.saver is not None and nested.saver is not run.saver:
        yield Hold(nested.saver, nested.config)
    nested.run_input = yield from _find_input(runner, nested)
    interrupts = yield from _relay_requests(run, nested)
    if interrupts:
        run.nested_interrupts += interrupts
        namespace = nested.config.checkpoint_ns
        waiting = {SUBGRAPH_INTERRUPT + interrupt.id: namespace for interrupt in interrupts}
        yield from run.record(waiting)
        raise Halt
    assert nested.subgraph_updates is not None
    for update in nested.subgraph_updates.updates_for_outer_graph(nested.data):
        # Keys of its own stay in the nested graph, if the outer one has a closed schema.
        runner.merge(node_id, runner.schema.select_known(update))
    shared = {key: value for key, value in nested.private.items() if key in runner.transient}
    runner.private = FrozenDict({**runner.private, **shared})


def accept_resumes(run: RunContext, topology: Topology, make_nested: Callable[[Node], NestedRun]) -> Steps:
    """Check that the nested graphs accept what a resume contains for them, before it is stored.

    Args:
        run: the outer run.
        topology: its graph.
        make_nested: makes the nested run of a node; it must not post events.

    Raises:
        GraphRunnerError: a nested graph refuses it, or no longer waits.
    """
    for node in topology.nodes.values():
        if node.graph is None:
            continue
        namespace = subgraph_namespace(run.config.checkpoint_ns, node.id)
        resume = run.resumes_by_namespace.get(namespace)
        if resume is None:
            continue
        nested = make_nested(node)
        yield from nested.accept_resume(resume)
        assert nested.base is not None
        execution = nested.base.metadata.get(OUTER_EXECUTION, "")
        if not execution.startswith(f"{run.execution_start()}/"):
            reason = f"the interrupt in subgraph {node.id!r} was already answered, or the run has moved past it"
            raise run.make_error(GraphRunnerError, reason, node.id)


def _find_input(runner: NodeRunner, nested: NestedRun) -> Generator[Request, Any, Any]:
    """Return what a nested run starts from.

    Returns:
        A GraphResume if this very node execution has begun before; else the state of the outer
        graph.
    """
    resume = runner.run.resumes_by_namespace.pop(nested.config.checkpoint_ns, None)
    if nested.saver is not None:
        latest = yield Load(nested.saver, nested.config)
        if latest is not None and latest.metadata.get(OUTER_EXECUTION) == nested.outer_execution:
            return resume or GraphResume()
    return runner.data


def _relay_requests(run: RunContext, nested: NestedRun) -> Generator[Request, Any, list[InterruptionMetadata]]:
    """Pass the requests of a nested run to the driver; return the interrupts of its stop."""
    steps = nested.steps()
    waiting = _recorded_interrupts(run, nested)
    interrupts: list[InterruptionMetadata] = []
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return interrupts
        answer = None
        error = None
        try:
            if waiting and not isinstance(request, _BEFORE_FIRST_STEP):
                waiting = yield from _clear_answered(run, nested, waiting)
            if isinstance(request, Finish):  # the outer run keeps the run lock
                continue
            output = request.output if isinstance(request, Emit) else None
            if isinstance(output, InterruptionMetadata):
                interrupts = _flag_interrupts(output)
                continue
            if output is not None:
                output.is_subgraph = True
            answer = yield request
        except BaseException as raised:  # noqa: BLE001 - the nested run handles it
            error = raised


def _recorded_interrupts(run: RunContext, nested: NestedRun) -> list[str]:
    """Return the ids of the interrupts in a nested graph that the outer run has recorded."""
    namespace = nested.config.checkpoint_ns
    return [interrupt_id for interrupt_id, recorded in subgraph_interrupts(run.writes).items() if recorded == namespace]


def _clear_answered(
    run: RunContext, nested: NestedRun, recorded: Collection[str]
) -> Generator[Request, Any, list[str]]:
    """Record in the outer run which interrupts of a nested run no longer wait; return the others.

    The answers must be stored in the nested graph's namespace by now.
    """
    waiting = {*unanswered_interrupts(nested.writes), *subgraph_interrupts(nested.writes)}
    answered = [interrupt_id for interrupt_id in recorded if interrupt_id not in waiting]
    if answered:
        yield from run.record({SUBGRAPH_INTERRUPT + interrupt_id: None for interrupt_id in answered})
    return [interrupt_id for interrupt_id in recorded if interrupt_id in waiting]


def _flag_interrupts(interruption: InterruptionMetadata) -> list[InterruptionMetadata]:
    interrupts = list(interruption.interrupts)
    for interrupt in interrupts:
        interrupt.is_subgraph = True
    return interrupts


# A resume


class SplitResume(NamedTuple):
    """A resume, divided between a graph and its nested graphs."""

    own: GraphResume
    by_namespace: dict[str, GraphResume]


class _SplitValue(NamedTuple):
    """The value of a resume, divided."""

    own: Any
    by_namespace: dict[str, Any]


def split_resume(resume: GraphResume, waiting: Mapping[str, Any], nested: Mapping[str, str]) -> SplitResume:
    """Divide a resume between a graph and the nested graphs that wait.

    Args:
        resume: what the caller gave.
        waiting: the unanswered interrupts of the graph itself, by id.
        nested: the namespaces of the interrupts in nested graphs, by id.

    Raises:
        ValueError: it is ambiguous which graph the value or the update is for.
    """
    if not nested or (not resume.has_value and resume.update is None):
        return SplitResume(own=resume, by_namespace={})
    values = _split_value(resume.value, waiting, nested)
    own_update = resume.update
    updates: dict[str, Mapping[str, Any] | None] = {}
    if resume.update is not None and not waiting:
        namespaces = set(nested.values())
        if len(namespaces) > 1:
            raise ValueError(
                f"several subgraphs wait ({', '.join(sorted(map(repr, namespaces)))}): "
                f"change the state of one with update_state at its checkpoint_ns"
            )
        updates = dict.fromkeys(namespaces, resume.update)
        own_update = None
    by_namespace = {
        namespace: GraphResume(values.by_namespace.get(namespace, ABSENT), update=updates.get(namespace))
        for namespace in {*values.by_namespace, *updates}
    }
    return SplitResume(own=GraphResume(values.own, update=own_update), by_namespace=by_namespace)


def _split_value(value: Any, waiting: Mapping[str, Any], nested: Mapping[str, str]) -> _SplitValue:
    if value is ABSENT:
        return _SplitValue(own=ABSENT, by_namespace={})
    known = dict.fromkeys((*waiting, *nested))
    if isinstance(value, Mapping) and value and all(key in known for key in value):
        return _split_answers(value, waiting, nested)
    if waiting or len(nested) > 1:
        raise ValueError(
            f"several interrupts wait: resume with a mapping of id to answer; the ids are {', '.join(map(repr, known))}"
        )
    (namespace,) = nested.values()
    return _SplitValue(own=ABSENT, by_namespace={namespace: value})


def _split_answers(answers: Mapping[str, Any], waiting: Mapping[str, Any], nested: Mapping[str, str]) -> _SplitValue:
    """Divide answers by interrupt id."""
    own: dict[str, Any] = {}
    by_namespace: dict[str, dict[str, Any]] = {}
    for interrupt_id, answer in answers.items():
        if interrupt_id in waiting:
            own[interrupt_id] = answer
        if interrupt_id in nested:
            by_namespace.setdefault(nested[interrupt_id], {})[interrupt_id] = answer
    return _SplitValue(own=own or ABSENT, by_namespace=by_namespace)


# All graphs


def iter_savers(topology: Topology, saver: BaseCheckpointSaver) -> Iterator[BaseCheckpointSaver]:
    """Yield the saver of a graph and those that its nested graphs have of their own, once each."""
    seen = [saver]
    yield saver
    for node in topology.nodes.values():
        if node.graph is None:
            continue
        own_saver = program_of(node).options.checkpoint_saver or saver
        for nested_saver in iter_savers(node.graph.topology, own_saver):
            if not any(nested_saver is known for known in seen):
                seen.append(nested_saver)
                yield nested_saver


def find_programs(program: Program, namespace: str) -> list[Program] | None:
    """Find the programs on the path to a namespace, the outermost first; or None."""
    programs = [program]
    for name in namespace.split("/") if namespace else ():
        nested = _find_nested(programs[-1].topology, name)
        if nested is None:
            return None
        programs.append(nested)
    return programs


def _find_nested(topology: Topology, name: str) -> Program | None:
    for node in topology.nodes.values():
        if node.graph is not None and subgraph_namespace("", node.id) == name:
            return program_of(node)
    return None
