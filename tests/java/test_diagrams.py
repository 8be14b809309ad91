"""langgraph4j's drawings, re-stated: the layout of both syntaxes."""

import pytest

from graphkit import END, START, GraphRepresentation, StateGraph

MERMAID, PLANTUML = GraphRepresentation.Type.MERMAID, GraphRepresentation.Type.PLANTUML


def node(state):
    return {}


def agent():
    return (
        StateGraph({})
        .addNode("agent", node)
        .addNode("action", node)
        .addEdge(START, "agent")
        .addConditionalEdges("agent", node, {"continue": "action", END: END})
        .addEdge("action", "agent")
    )


END_OF_MERMAID = """
	classDef ___START__ fill:black,stroke-width:1px,font-size:xx-small;
	classDef ___END__ fill:black,stroke-width:1px,font-size:xx-small;
"""


@pytest.mark.requirement("behaviour 17")
def test_mermaid_with_conditions():
    drawn = agent().getGraph(MERMAID)
    assert drawn.type == MERMAID
    assert drawn.content == """---
title: Graph Diagram
---
flowchart TD
	__START__((start))
	__END__((stop))
	agent("agent")
	action("action")
	condition1{"check state"}
	__START__:::__START__ --> agent:::agent
	agent:::agent -.-> condition1:::condition1
	condition1:::condition1 -.->|continue| action:::action
	%%	agent:::agent -.->|continue| action:::action
	condition1:::condition1 -.-> __END__:::__END__
	%%	agent:::agent -.-> __END__:::__END__
	action:::action --> agent:::agent
""" + END_OF_MERMAID  # fmt: skip


@pytest.mark.requirement("behaviour 17")
def test_plantuml_with_and_without_conditions():
    assert agent().getGraph(PLANTUML, "An agent!").content == """@startuml An_agent_
title "An agent<U+0021>"
circle "start" as __START__<<input>>
circle "stop" as __END__
usecase "agent" as agent<<Node>>
usecase "action" as action<<Node>>
hexagon "check state" as condition1<<Condition>>
__START__ -down-> agent
agent .down.> condition1
condition1 .down.> action : continue
'agent .down.> action : continue
condition1 .down.> __END__
'agent .down.> __END__
action -down-> agent
@enduml
"""  # fmt: skip
    without = agent().getGraph(PLANTUML, "T", False).content.splitlines()
    assert without[6] == '\'hexagon "check state" as condition1<<Condition>>'
    assert without[9:11] == ["'condition1 .down.> action : continue", "agent .down.> action : continue"]


def test_a_conditional_start_is_called_so():
    graph = StateGraph({}).addNode("A", node).addConditionalEdges(START, node, {"a": "A"}).addEdge("A", END)
    assert '\tstartcondition{"check state"}' in graph.getGraph(MERMAID).content


def test_subgraphs_are_clusters_whose_ids_begin_with_an_underscore():
    child = StateGraph({}).addNode("step", node).addEdge(START, "step").addEdge("step", END)
    graph = StateGraph({}).addNode("S", child).addEdge(START, "S").addEdge("S", END)
    assert graph.getGraph(MERMAID, None).content == """flowchart TD
	__START__((start))
	__END__((stop))
subgraph S
	___START__((start)):::___START__
	___END__((stop)):::___END__
	_step("step")
	___START__:::___START__ --> _step:::_step
	_step:::_step --> ___END__:::___END__
end
	__START__:::__START__ --> S:::S
	S:::S --> __END__:::__END__
""" + END_OF_MERMAID  # fmt: skip
