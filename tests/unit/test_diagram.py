"""Diagrams: every kind of edge and node, clusters, the way of a run, and ids that no syntax likes."""

import re

import pytest

from graphkit import END, START, GraphRepresentation, StateGraph
from tests.support.graphs import make_chain

MERMAID, PLANTUML = GraphRepresentation.Type.MERMAID, GraphRepresentation.Type.PLANTUML
FORK = "__PARALLEL__(A)"


def node(state):
    return None


def chain(*names):
    graph = StateGraph({})
    before = START
    for name in names:
        graph.add_node(name, node).add_edge(before, name)
        before = name
    return graph.add_edge(before, END)


def agent():
    graph = StateGraph({}).add_node("agent", node).add_node("action", node).add_edge(START, "agent")
    return graph.add_conditional_edges("agent", node, {"go": "action", END: END}).add_edge("action", "agent")


def forked():
    graph = StateGraph({})
    for name in "ABCEJ":
        graph.add_node(name, node)
    graph.add_edge(START, "A").add_edge("A", "B").add_edge("A", "C").add_edge("B", "E").add_edge("E", "J").add_edge(
        "C", "J"
    )
    return graph.add_conditional_edges("J", node, {"again": "A", "end": END})


def lines(graph, type=MERMAID, title=None, conditions=True, path=()):
    if path:
        drawing = graph.compile().get_graph(type, title, conditions, path=path)
    else:
        drawing = graph.get_graph(type, title, conditions)
    return [line.strip() for line in drawing.content.splitlines()]


def arrows(graph, **more):
    """The arrows that are shown, without the classes."""
    shown = [re.sub(r":::\w+", "", line) for line in lines(graph, **more)]
    return [line for line in shown if (" -->" in line or " -.->" in line) and not line.startswith("%%")]


def test_a_representation_says_what_it_is():
    drawn = chain("A").get_graph("plantuml")
    assert (drawn.type, drawn.content.splitlines()[-1]) == (PLANTUML, "@enduml")
    assert (MERMAID, PLANTUML) == ("mermaid", "plantuml")
    with pytest.raises(AttributeError):
        drawn.type = MERMAID


def test_forks_are_edges():
    assert arrows(forked(), conditions=False)[:6] == [
        "__START__ --> A",
        "A --> B",
        "A --> C",
        "B --> E",
        "E --> J",
        "C --> J",
    ]


def test_a_compiled_graph_is_drawn_as_it_was_written():
    one = set(lines(forked()))
    two = {line.strip() for line in forked().compile().get_graph(MERMAID, None).content.splitlines()}
    assert one == two


def test_map_nodes_look_like_several():
    graph = chain("A").add_map_node("M", node, "items")
    assert 'M[["M"]]' in lines(graph)
    assert 'usecase "M" as M<<Map>>' in lines(graph, PLANTUML)


# Clusters


def nested():
    return (
        StateGraph({})
        .add_node("A", node)
        .add_conditional_edges(START, node, ["A", "S"])
        .add_edge("A", END)
        .add_node("S", make_chain({}, x=node, I=chain("y")))
        .add_node("E", agent().compile())
    )


def test_subgraphs_are_clusters_in_clusters():
    text = "\n".join(lines(nested()))
    order = [
        "subgraph S",
        '_x("x")',
        'subgraph _I["I"]',
        '__y("y")',
        "end",
        "end",
        "subgraph E",
        '_agent("agent")',
        "end",
    ]
    places = [0]
    for part in order:
        places.append(text.index(part, places[-1] + 1))
    assert places == sorted(places)


def test_a_compiled_picture_has_merged_graphs_expanded_and_embedded_ones_as_clusters():
    graph = nested().add_edge("S", "E").add_edge("E", END)
    text = graph.compile().get_graph(MERMAID, None).content
    assert '("S-x")' in text
    assert '("S-I-y")' in text
    assert re.findall(r"subgraph .*", text) == ["subgraph E"]


def test_clusters_in_plantuml():
    text = "\n".join(lines(nested(), PLANTUML))
    assert (
        text.count('package "S" as S {') == text.count('package "I" as _I {') == text.count('package "E" as E {') == 1
    )
    assert text.count("{\n") == text.count("\n}")


def test_names_in_clusters_are_their_own():
    graph = chain("_x").add_node("S", chain("x", "_x")).add_node("T", chain("x"))
    names = re.findall(r'^(\w+)\("', "\n".join(lines(graph)), re.MULTILINE)
    assert len(names) == len(set(names)) == 4


def test_start_and_end_of_every_cluster_are_black():
    content = "\n".join(lines(nested()))
    assert content.count(")):::___START__") == content.count(")):::___END__") == 3


# The way of a run


def passed(graph, path, type=MERMAID, conditions=True):
    shown = lines(graph, type, conditions=conditions, path=path)
    (names,) = [line for line in shown if line.startswith("class ")]
    (links,) = [line for line in shown if line.startswith("linkStyle ")]
    numbers = [int(number) for number in links.split()[1].split(",")]
    drawn = arrows(graph, conditions=conditions, path=path)
    return names.split()[1].split(","), [drawn[number] for number in numbers]


def test_the_way_is_marked_and_its_steps_are_numbered():
    names, links = passed(agent(), [START, "agent", "action", "agent", END])
    assert names == ["__START__", "__END__", "agent", "action", "condition1"]
    assert links == [
        "__START__ -->|1| agent",
        'agent -.->|"2, 4"| condition1',
        'condition1 -.->|"go (2)"| action',
        "condition1 -.->|4| __END__",
        "action -->|3| agent",
    ]


def test_all_branches_of_a_fork_are_passed_with_it():
    path = [START, "A", FORK, "J", "A", FORK, "J", END]
    names, links = passed(forked(), path)
    assert names == ["__START__", "__END__", "A", "B", "C", "E", "J", "condition1"]
    assert links[1:6] == [
        'A -->|"2, 5"| B',
        'A -->|"2, 5"| C',
        'B -->|"2, 5"| E',
        'E -->|"3, 6"| J',
        'C -->|"3, 6"| J',
    ]


def test_of_conditions_in_branches_only_what_the_path_names_is_passed():
    graph = StateGraph({})
    for name in "ABCXYJ":
        graph.add_node(name, node)
    graph.add_edge(START, "A").add_edge("A", "B").add_edge("A", "C").add_edge("C", "J").add_edge("X", "J").add_edge(
        "Y", "J"
    )
    graph.add_conditional_edges("B", node, ["X", "Y"]).add_edge("J", END)
    names, _ = passed(graph, [START, "A", FORK, "J", END])
    assert "X" not in names
    names, links = passed(graph, [START, "A", "B", "X", "C", FORK, "J", END])
    assert {"X", "C"} <= set(names)
    assert "Y" not in names
    assert not [link for link in links if link.startswith("X") and link.endswith("C")]


def test_a_step_that_follows_no_edge_is_drawn_too():
    graph = chain("A", "B", "C")
    _, links = passed(graph, [START, "A", "C", END])
    assert links == ["__START__ -->|1| A", "C -->|3| __END__", "A -.->|2| C"]


def test_the_ids_of_a_history_are_a_path():
    """A node is there twice where its state was updated, and START again where a second input came."""
    _, links = passed(chain("A", "B"), [START, "A", "A", "B", START, "A"])
    assert links == ['__START__ -->|"1, 3"| A', "A -->|2| B"]
    loop = StateGraph({}).add_node("A", node).add_edge(START, "A").add_conditional_edges("A", node, ["A", END])
    _, links = passed(loop, [START, "A", "A", END], conditions=False)
    assert links == ["__START__ -->|1| A", "A -.->|2| A", "A -.->|3| __END__"]


def test_what_the_graph_does_not_have_is_left_out():
    names, links = passed(chain("A"), [START, "A", "gone", END])
    assert (names, links) == (["__START__", "__END__", "A"], ["__START__ -->|1| A"])


def test_a_cluster_is_passed():
    graph = make_chain({}, E=agent().compile())
    names, links = passed(graph, [START, "E", END])
    assert names == ["__START__", "__END__", "E"]
    assert links == ["__START__ -->|1| E", "E -->|2| __END__"]
    text = "\n".join(lines(graph, PLANTUML, path=[START, "E", END]))
    assert 'package "E" as E #C8E6C9 {' in text


def test_the_way_in_plantuml():
    text = lines(agent(), PLANTUML, path=[START, "agent", "action"])
    assert 'usecase "agent" as agent<<Node>> #C8E6C9' in text
    assert 'usecase "action" as action<<Node>> #C8E6C9' in text
    assert "__START__ -[#2E7D32,bold]down-> agent : 1" in text
    assert "condition1 .[#2E7D32,bold]down.> action : go (2)" in text
    assert "condition1 .down.> __END__" in text


def test_without_a_path_nothing_is_marked():
    text = agent().compile().get_graph(MERMAID).content
    assert "passed" not in text
    assert "linkStyle" not in text


# Ids that no syntax likes. What the real parsers make of these was looked at: mermaid 11, PlantUML 1.2020

UGLY = [
    "end", "a b", 'say "hi"', "x[0]", "{y}", "(z)", "日本語", "naïve", "-->", "|", "`tick`", "#35;", "<b>", "back\\slash",
    "new\nline", "subgraph", "_self", "1", "%%", "A&B", ";", "@startuml", "a:::b", "***", "~", "//c//", "'q", "😀", "fa:fa-car",
    "condition1", "End", "graphic", "n2", "__START__x", "package", "}", "$$x$$", "\u2028", "\x00",
]  # fmt: skip


def ugly():
    graph = chain(*UGLY)
    graph.add_node("S" * 3, chain(*UGLY))
    return graph.add_conditional_edges("SSS", node, {f"{name}!": name for name in UGLY})


@pytest.mark.parametrize("conditions", [True, False])
def test_mermaid_of_any_id(conditions):
    name = r"[A-Za-z_][A-Za-z0-9_]*"
    text = r'"(?:[\w \-.,()/]|#\d+;)*"'
    known = re.compile(
        rf"(%%\t)?({name}\(\((start|stop)\)\)(:::{name})?|{name}[({{]{text}[)}}]|subgraph SSS|end|flowchart TD|classDef .*|"
        rf"{name}:::{name} (-->|-\.->)(\|({text}|[A-Za-z0-9_ ]+)\|)? {name}:::{name})?"
    )
    for line in lines(ugly(), conditions=conditions):
        assert known.fullmatch(line), line


@pytest.mark.parametrize("conditions", [True, False])
def test_plantuml_of_any_id(conditions):
    name = r"[A-Za-z_][A-Za-z0-9_]*"
    text = r"(?:[\w \-.,()]|<U\+[0-9A-F]+>)*"
    known = re.compile(
        rf"'?((circle|usecase|hexagon) \"{text}\" as {name}(<<\w+>>)?|package \"{text}\" as {name} {{|}}|@startuml unnamed|@enduml|"
        rf"{name} [-.]down[-.]> {name}( : {text})?)"
    )
    for line in lines(ugly(), PLANTUML, conditions=conditions):
        assert known.fullmatch(line), line


@pytest.mark.parametrize(("type", "code"), [(MERMAID, r"#(\d+);"), (PLANTUML, r"<U\+([0-9A-F]+)>")])
def test_every_id_can_be_read_back_and_every_name_is_one_nodes(type, code):
    base = 10 if type is MERMAID else 16
    shown = "\n".join(lines(chain(*UGLY), type))
    found = re.findall(r'^(\w+)\("(.*)"\)' if type is MERMAID else r'^usecase "(.*)" as (\w+)', shown, re.MULTILINE)
    labels = {pair[type is MERMAID]: pair[type is not MERMAID] for pair in found}
    assert [re.sub(code, lambda one: chr(int(one[1], base)), label) for label in labels] == UGLY
    assert len(set(labels.values())) == len(UGLY)


def test_no_name_begins_with_a_word_of_mermaids():
    words = [
        "call",
        "class",
        "click",
        "default",
        "direction",
        "end",
        "flowchart",
        "graph",
        "href",
        "interpolate",
        "linkStyle",
        "style",
        "subgraph",
    ]
    longer = [f"{word}s" for word in words]
    upper = [word.upper() for word in words]
    targets = ["_self", "_blank", "_parent", "_top"]
    ids = [*words, *longer, *upper, *targets]
    names = re.findall(r'^(\w+)\("', "\n".join(lines(chain(*ids))), re.MULTILINE)
    assert len(names) == len(ids)
    assert all(re.fullmatch(r"n\d+", name) for name in names)


@pytest.mark.parametrize(
    ("title", "mermaid", "plantuml"),
    [
        ("Graph Diagram", "title: Graph Diagram", ["@startuml Graph_Diagram", 'title "Graph Diagram"']),
        ('a "b": [c]\n#', r'title: "a \"b\": [c]\n#"', ["@startuml a__b____c___", 'title "a <U+0022>b<U+0022><U+003A> <U+005B>c<U+005D><U+000A><U+0023>"']),
        ("", 'title: ""', ["@startuml unnamed", 'title ""']),
    ],
)  # fmt: skip
def test_titles(title, mermaid, plantuml):
    assert lines(chain("A"), title=title)[:4] == ["---", mermaid, "---", "flowchart TD"]
    assert lines(chain("A"), PLANTUML, title=title)[:2] == plantuml
