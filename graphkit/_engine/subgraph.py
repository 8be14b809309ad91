"""A graph as a node: its run inside the run around it, in a namespace of its own.

Its loop is the same loop; what it asks for is passed on to the driver of the run around it, except that it does not let
go of the run lock, and that its outputs are flagged. What it saves goes to the namespace `<node id>`, below that of the
graph around it, with the visit it belongs to; so a resume finds out whether it was begun, and goes on inside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import Any, Final

from graphkit._engine.cursor import Steps
from graphkit._engine.node_runner import Halt
from graphkit._engine.requests import Emit, Finish, Hold, Load, LoadWrites, Record, Request, Save
from graphkit._engine.subgraph_updates import SubgraphUpdates
from graphkit._plan.topology import Node, Topology
from graphkit._records.output import ABSENT, GraphResume, InterruptionMetadata
from graphkit._saver.base import BaseCheckpointSaver
from graphkit._saver.writes import (
    OUTER_EXECUTION,
    SUBGRAPH_INTERRUPT,
    subgraph_interrupts,
    subgraph_namespace as namespace_of,
    unanswered_interrupts,
)
from graphkit._values.frozen import FrozenDict
from graphkit.errors import GraphRunnerError

_BEFORE_IT_GOES_ON: Final = (Load, LoadWrites, Hold, Record, Save)
"""What a graph asks for while an answer to it is not stored yet."""


def visit(strand: Any, node: Node, key: str, make: Callable[..., Any]) -> Steps:
    """Run an embedded graph, from the strand's state or from where it was left, and merge what it changed."""
    run = strand.run
    yield from run.settle()
    child = _child(strand, node, key, make)
    if child.saver is not None and child.saver is not run.saver:
        yield Hold(child.saver, child.config)
    child.given = yield from _given(strand, child)
    stopped = yield from _relay(run, child)
    if stopped:
        run.inner += stopped
        yield from run.record({SUBGRAPH_INTERRUPT + stop.id: child.config.checkpoint_ns for stop in stopped})
        raise Halt
    assert child.contribution is not None
    for update in child.contribution.updates(child.data):
        strand.merge(node.id, update)
    theirs = {name: value for name, value in child.private.items() if name in strand.transient}
    strand.private = FrozenDict({**strand.private, **theirs})


def accept(run: Any, make: Callable[..., Any]) -> Steps:
    """See that the graphs inside take what a resume brought for them, before anything of it is stored.

    Raises:
        GraphRunnerError: one does not, or what waited in it is gone.
    """
    for node in run.topology.nodes.values():
        resume = run.for_children.get(namespace_of(run.config.checkpoint_ns, node.id))
        if node.graph is not None and resume is not None:
            child = _child(run, node, "", make)
            child.post = None  # it only tries
            yield from child.accept(resume)
            if not child.base.metadata.get(OUTER_EXECUTION, "").startswith(f"{run.root()}/"):
                raise run.failure(GraphRunnerError, f"what waited in the subgraph {node.id!r} waits no more", node.id)


def _child(strand: Any, node: Node, key: str, make: Callable[..., Any]) -> Any:
    run = strand.run
    graph: Any = node.graph
    program = graph.program
    config = run.config.replace(checkpoint_ns=namespace_of(run.config.checkpoint_ns, node.id))
    saver = None
    if program.options.checkpoint_interval:
        saver = program.options.checkpoint_saver or run.saver
    child = make(program, config, None, saver=saver)
    child.limit, child.exits, child.control = run.limit, run.exits, run.control
    child.within = f"{run.root()}/{key}"
    child.contribution = SubgraphUpdates(strand.schema.channels)
    child.taps.append(child.contribution.add)
    child.transient |= strand.transient
    child.private = strand.private
    child.post, child.perform, child.clock = run.post, run.perform, run.clock
    child.metadata = FrozenDict({key: run.metadata[key] for key in ("run_id",) if key in run.metadata})
    child.held = run.held
    if saver is not None:
        lock = saver.run_lock_key(config)
        child.held = run.held | {lock, (lock, config.checkpoint_ns)}
    return child


def _given(strand: Any, child: Any) -> Generator[Request, Any, Any]:
    """What the child starts from: where this very visit was left, or the state around it."""
    run = strand.run
    resume = run.for_children.pop(child.config.checkpoint_ns, None)
    if child.saver is not None:
        latest = yield Load(child.saver, child.config)
        if latest is not None and latest.metadata.get(OUTER_EXECUTION) == child.within:
            return resume or GraphResume()
    return strand.data


def _relay(run: Any, child: Any) -> Generator[Request, Any, list[InterruptionMetadata]]:
    """Pass on what the child asks for; returns what it waits for, if it stopped."""
    steps = child.steps()
    here = child.config.checkpoint_ns
    waited = [name for name, place in subgraph_interrupts(run.writes).items() if place == here]
    stopped: list[InterruptionMetadata] = []
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            request = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return stopped
        answer = error = None
        try:
            if waited and not isinstance(request, _BEFORE_IT_GOES_ON):
                waited = yield from _settled(run, child, waited)
            if isinstance(request, Finish):
                continue
            if isinstance(request, Emit):
                if isinstance(request.output, InterruptionMetadata):
                    stopped = list(request.output.interrupts)
                    for stop in stopped:
                        stop.is_subgraph = True
                    continue
                request.output.is_subgraph = True
            answer = yield request
        except BaseException as raised:  # noqa: BLE001 - the child decides what becomes of it
            error = raised


def _settled(run: Any, child: Any, waited: Collection[str]) -> Generator[Request, Any, list[str]]:
    """Note which stops in a child wait no more; returns those that do. An answer must be stored there by now."""
    waiting = {*unanswered_interrupts(child.writes), *subgraph_interrupts(child.writes)}
    gone = [name for name in waited if name not in waiting]
    if gone:
        yield from run.record({SUBGRAPH_INTERRUPT + name: None for name in gone})
    return [name for name in waited if name in waiting]


def split(
    resume: GraphResume, waiting: Mapping[str, Any], inner: Mapping[str, str]
) -> tuple[GraphResume, dict[str, GraphResume]]:
    """Part what a resume brings between the graph and the embedded ones that wait, by namespace.

    Raises:
        ValueError: it cannot be told for whom it is.
    """
    if not inner or (not resume.has_value and resume.update is None):
        return resume, {}
    values, mine = _split_value(resume.value, waiting, inner)
    updates: dict[str, Mapping[str, Any] | None] = {}
    own_update = resume.update
    if resume.update is not None and not waiting:
        namespaces = set(inner.values())
        if len(namespaces) > 1:
            raise ValueError(
                f"several subgraphs wait ({', '.join(sorted(map(repr, namespaces)))}): "
                f"change the state of one with update_state at its checkpoint_ns"
            )
        updates, own_update = dict.fromkeys(namespaces, resume.update), None
    children = {
        namespace: GraphResume(values.get(namespace, ABSENT), update=updates.get(namespace))
        for namespace in {*values, *updates}
    }
    return GraphResume(mine, update=own_update), children


def _split_value(value: Any, waiting: Mapping[str, Any], inner: Mapping[str, str]) -> tuple[dict[str, Any], Any]:
    if value is ABSENT:
        return {}, ABSENT
    known = {**dict.fromkeys(waiting), **inner}
    if isinstance(value, Mapping) and value and all(key in known for key in value):
        mine = {key: answer for key, answer in value.items() if key in waiting}
        values: dict[str, Any] = {}
        for key, answer in value.items():
            if key in inner:
                values.setdefault(inner[key], {})[key] = answer
        return values, mine or ABSENT
    if waiting or len(inner) > 1:
        raise ValueError(
            f"several questions wait: resume with a mapping of id to answer; the ids are {', '.join(map(repr, known))}"
        )
    return {next(iter(inner.values())): value}, ABSENT


def savers_of(topology: Topology, saver: BaseCheckpointSaver) -> Iterator[BaseCheckpointSaver]:
    """A saver and those that embedded graphs have of their own, once each."""
    seen = [saver]
    yield saver
    for node in topology.nodes.values():
        if node.graph is not None:
            graph: Any = node.graph
            own = graph.compile_config.checkpoint_saver or saver
            for one in savers_of(graph.topology, own):
                if not any(one is other for other in seen):
                    seen.append(one)
                    yield one


def find_programs(program: Any, namespace: str) -> list[Any] | None:
    """The graphs on the way to a namespace, the outermost first; None if there is none at it."""
    programs = [program]
    for name in namespace.split("/") if namespace else ():
        nodes = programs[-1].topology.nodes.values()
        found = [node.graph for node in nodes if node.graph is not None and namespace_of("", node.id) == name]
        if not found:
            return None
        programs.append(found[0].program)
    return programs
