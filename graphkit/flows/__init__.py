"""Nodes and edges made of functions: predicates, chains, parallel items and choices.

Ported from go-agents-orchestration.

    graph.add_node("clean", process_chain(strip, parse, tidy))
    graph.add_node("fetch", process_parallel(fetch, "urls", "pages"))
    ready = branch_on((key_exists("pages"), "report"), otherwise="fetch")
    graph.add_conditional_edges("clean", ready, ready.mappings)
"""

from graphkit._public_names import set_public_module
from graphkit.flows.nodes import (
    process_chain as process_chain,
    process_conditional as process_conditional,
)
from graphkit.flows.parallel import process_parallel as process_parallel
from graphkit.flows.predicates import (
    Branch as Branch,
    Predicate as Predicate,
    always as always,
    and_ as and_,
    branch_on as branch_on,
    key_equals as key_equals,
    key_exists as key_exists,
    not_ as not_,
    or_ as or_,
)

__all__ = [
    "Branch",
    "Predicate",
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
