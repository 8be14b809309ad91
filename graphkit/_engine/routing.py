"""Edges: which node comes next. Functions of a state and the node that has finished."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

from graphkit._engine.requests import Ask, Request
from graphkit._engine.state import RunState
from graphkit._plan.topology import Call, Condition, describe_unknown_node
from graphkit._records.context import GraphInterrupt
from graphkit._records.output import Command
from graphkit._wording import describe_error
from graphkit.errors import GraphRunnerError, GraphStateError, NodeExecutionError


def follow_edge(state: RunState, source: str) -> Generator[Request, Any, str]:
    """Take the outgoing edge of a node; return the id of the next node.

    A conditional edge is evaluated with its hooks, and their updates are merged.
    """
    edge = state.topology.edges.get(source)
    if isinstance(edge, str):
        return edge
    if edge is None:
        reason = f"{source!r} has no outgoing edge, and returned no Command with a goto; add_edge({source!r}, ...)"
        raise state.make_error(GraphRunnerError, reason, source)
    failure_message = f"the edge of {source!r} failed"
    for hook in edge.before_hooks:
        update = yield from call_hook(state, source, failure_message, hook)
        state.merge(source, update)
    result = yield from call_user(state, source, failure_message, edge.call, state.view(), state.reporter.config)
    for hook in edge.after_hooks:
        result = yield from call_hook(state, source, failure_message, hook, result)
    if isinstance(result, Command):
        state.merge(source, result.update)
        result = result.goto
    mappings = edge.mappings
    is_several = result.__class__ is not str and _is_collection(result)
    if is_several and isinstance(result, tuple) and mappings is not None and result in mappings:
        is_several = False  # the tuple is itself a key
    if not is_several:
        next_node_id = _resolve_one(state, source, mappings, result)
    elif mappings is None:  # where the branches meet is not known
        raise _several_targets_error(state, f"the edge of {source!r} leads", result, source)
    else:
        targets: set[str] = set()
        for each in result:  # no comprehension: the local names would become slower, as those of a closure
            targets.add(_resolve_one(state, source, mappings, each))
        next_node_id = _choose(state, source, targets)
    if state.reporter.post is not None:
        state.reporter.post_event("edge.evaluate", source, {"result": repr(result), "target": next_node_id})
    return next_node_id


def call_user(
    state: RunState, node_id: str, failure_message: str, call: Call, *arguments: Any
) -> Generator[Request, Any, Any]:
    """Call a function of a node or an edge that is no action; without the last argument, if it takes no config."""
    if not call.takes_config:
        arguments = arguments[:-1]
    try:
        return (yield Ask(call.function, arguments))
    except (Exception, GraphInterrupt) as error:  # only actions can interrupt the run
        reason = f"{failure_message}: {describe_error(error)}"
        raise state.make_error(NodeExecutionError, reason, node_id) from error


def call_hook(
    state: RunState, node_id: str, failure_message: str, hook: Call, *more: Any
) -> Generator[Request, Any, Any]:
    """Call what takes the node, the state and the config, and perhaps more, as hooks do."""
    arguments = (node_id, state.view(), state.reporter.config, *more)
    return (yield from call_user(state, node_id, failure_message, hook, *arguments))


def _resolve_one(state: RunState, source: str, mappings: Mapping[Any, str] | None, result: Any) -> str:
    """Return the node or fork that one result of a condition leads to."""
    if mappings is not None:
        try:
            # An id of this topology. In an inlined subgraph, a node may have the same name as the target of END.
            return mappings[result]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, mappings))
            reason = f"the edge of {source!r} gave {result!r}, which its mappings do not have (they have {known})"
    else:
        next_node_id = state.topology.resolve_target(result, source) if isinstance(result, str) else None
        if next_node_id is not None:
            return next_node_id
        reason = f"the edge of {source!r} leads to {describe_unknown_node(result, state.topology.nodes)}"
    if hasattr(result, "arg"):  # LangGraph's Send
        raise _several_targets_error(state, f"the edge of {source!r} leads", result, source)
    raise state.make_error(GraphRunnerError, reason, source)


def _choose(state: RunState, source: str, targets: Collection[str]) -> str:
    """Return what several declared targets lead to: a fork; END among them counts only if it is alone.

    The branches have the order in which they were declared: the same targets make the same fork.
    """
    heads = [target for target in state.topology.declared_targets(source) if target in targets]
    if len(heads) <= 1:
        return heads[0] if heads else state.topology.end_of(source)
    try:
        return state.topology.choose(source, heads).id
    except GraphStateError as error:
        raise state.make_error(GraphRunnerError, str(error), source) from error


def resolve_goto(state: RunState, node_id: str, goto: str | Sequence[str]) -> str:
    """Return the node, or the fork of several nodes, that the Command of a node goes to."""
    topology = state.topology
    if not isinstance(goto, str):
        if not _is_collection(goto) or not topology.nodes[node_id].destinations:
            raise _several_targets_error(state, f"the Command of {node_id!r} goes", goto, node_id)
        targets = [resolve_goto(state, node_id, target) for target in goto]
        return _choose(state, node_id, targets)
    target = topology.resolve_target(goto, node_id)
    if target is None:
        reason = f"the Command of {node_id!r} goes to {describe_unknown_node(goto, topology.nodes)}"
        raise state.make_error(GraphRunnerError, reason, node_id)
    node = topology.nodes.get(node_id)
    if node is None or not node.destinations:
        return target
    # A node that declares destinations may go to these, and where its edge leads.
    allowed = [*node.destinations]
    edge = topology.edges.get(node_id)
    if isinstance(edge, Condition):
        allowed += (edge.mappings or {}).values()
    elif edge:
        allowed.append(edge)
        fork = topology.find_fork(edge)
        if fork is not None:
            allowed += fork.heads
    if target not in allowed:
        known = ", ".join(map(repr, node.destinations))
        reason = (
            f"the Command of {node_id!r} goes to {goto!r}, which is not among its destinations ({known}); "
            f"name it in add_node({node_id!r}, ..., destinations=[...])"
        )
        raise state.make_error(GraphRunnerError, reason, node_id)
    return target


def _several_targets_error(state: RunState, what: str, targets: Any, source: str) -> GraphRunnerError:
    """Make the error of a goto that is not one node id."""
    reason = (
        f"{what} to {targets!r}, but a goto is one node id. To run several nodes at the same time, add_edge from one "
        f"source to each of them (a fork), or let a condition choose among its mappings, or a Command among the "
        f"destinations of its node; to run one node for several items, use add_map_node"
    )
    return state.make_error(GraphRunnerError, reason, source)


def _is_collection(target: Any) -> bool:
    """Return whether a condition returned several targets, as other libraries allow."""
    return isinstance(target, (list, tuple, set, frozenset))
