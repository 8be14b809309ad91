"""go-agents-orchestration's classes and functions: state stores, configurations, nodes made of functions.

    options = GraphConfig.from_json(text).compile_options()
    graph.add_node("clean", process_chain(strip, parse, tidy))
    graph.add_node("fetch", process_parallel(fetch, "urls", "pages"))
    ready = branch_on((key_exists("pages"), "report"), otherwise="fetch")
    graph.add_conditional_edges("clean", ready, ready.mappings)
    app = graph.compile(**options)

    store = CheckpointStore("memory")
    state = State({"documents": []}).set_checkpoint_node("ingest")
    state.checkpoint(store)

docs/from-other-systems.md says what stands for what.
"""

from graphkit._public_names import set_public_module
from graphkit.compat.go_agents.flows import (
    Branch,
    Predicate,
    always,
    and_,
    branch_on,
    key_equals,
    key_exists,
    not_,
    or_,
    process_chain,
    process_conditional,
    process_parallel,
)
from graphkit.compat.go_agents.graph_config import CheckpointConfig, GraphConfig
from graphkit.compat.go_agents.store import CheckpointStore, State

__all__ = [
    "Branch",
    "CheckpointConfig",
    "CheckpointStore",
    "GraphConfig",
    "Predicate",
    "State",
    "always",
    "and_",
    "branch_on",
    "key_equals",
    "key_exists",
    "not_",
    "or_",
    "process_chain",
    "process_conditional",
    "process_parallel",
]

set_public_module(globals(), __name__)
