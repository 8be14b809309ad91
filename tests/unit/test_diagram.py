"""Diagrams: every kind of edge and node, clusters, the way of a run, and ids that no syntax likes."""

import re

import pytest

from graphkit import END, START, GraphRepresentation, StateGraph
from graphkit._diagram import draw
from tests.support.graphs import make_chain, make_graph as connected

MERMAID, PLANTUML = GraphRepresentation.Type.MERMAID, GraphRepresentation.Type.PLANTUML
FORK = "__PARALLEL__(A)"


def node(state):
    return None


def make_graph(edges):
    return connected({}, edges, lambda name: node)


def chain(*names):
    return make_chain({}, **dict.fromkeys(names, node))


def agent():
    graph = make_graph("START>agent").add_node("action", node)
    return graph.add_conditional_edges("agent", node, {"go": "action", END: END}).add_edge("action", "agent")


def forked():
    graph = make_graph("START>A A>B,C B>E E>J C>J")
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


def test_a_representation_has_its_type():
    drawn = chain("A").get_graph("plantuml")
    assert (drawn.type, drawn.content.splitlines()[-1]) == (PLANTUML, "@enduml")
    assert (MERMAID, PLANTUML) == ("mermaid", "plantuml")
    with pytest.raises(AttributeError):
        drawn.type = MERMAID


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
    graph = StateGraph({}).add_node("A", node).add_edge("A", END).add_conditional_edges(START, node, ["A", "S"])
    return graph.add_node("S", make_chain({}, x=node, I=chain("y"))).add_node("E", agent().compile())


def test_subgraphs_are_clusters_in_clusters():
    parts = [
        'package "S" as S {',
        '"x" as _x',
        'package "I" as _I {',
        '"y" as __y',
        "}",
        "}",
        'package "E" as E {',
        "}",
    ]
    assert re.search(".*".join(map(re.escape, parts)), "\n".join(lines(nested(), PLANTUML)), re.DOTALL)


def test_every_shape_has_a_name_of_its_own():
    graph = make_chain({}, S=chain("a"), T=chain("a"), condition1=node).add_conditional_edges("x", node, {"y": "S"})
    text = "\n".join(lines(graph.add_node("x", node)))
    names = re.findall(r"^(\w+)[({]|^subgraph (\w+)", text, re.MULTILINE)
    assert len(set(names)) == len(names) == 13


def test_without_shapes_of_their_own_conditions_are_comments():
    text = lines(agent(), conditions=False)
    assert '%%\tcondition1{"check state"}' in text
    assert 'agent("agent")' in text


def test_a_compiled_picture_has_merged_graphs_expanded_and_embedded_ones_as_clusters():
    graph = nested().add_edge("S", "E").add_edge("E", END)
    text = graph.compile().get_graph(MERMAID, None).content
    assert '("S-x")' in text
    assert '("S-I-y")' in text
    assert re.findall(r"subgraph .*", text) == ["subgraph E"]


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
    assert links[1:6] == ['A -->|"2, 5"| B', 'A -->|"2, 5"| C', 'B -->|"2, 5"| E', 'E -->|"3, 6"| J', 'C -->|"3, 6"| J']


def test_of_conditions_in_branches_only_what_the_path_names_is_passed():
    graph = make_graph("START>A A>B,C C>J X>J Y>J J>END").add_conditional_edges("B", node, ["X", "Y"])
    names, _ = passed(graph, [START, "A", FORK, "J", END])
    assert "X" not in names

    names, links = passed(graph, [START, "A", "B", "X", "C", FORK, "J", END])
    assert {*names} & {"X", "Y", "C"} == {"X", "C"}
    assert not [link for link in links if link.startswith("X") and link.endswith("C")]


def test_a_step_that_follows_no_edge_is_drawn_too():
    graph = chain("A", "B", "C")
    _, links = passed(graph, [START, "A", "C", END])
    assert links == ["__START__ -->|1| A", "C -->|3| __END__", "A -.->|2| C"]


def test_the_destinations_of_commands_are_drawn():
    graph = make_graph("B>END C>END").add_node("A", node, destinations=["B", "C", END])
    graph.add_edge(START, "A").add_edge("A", "B")

    expected = ["A --> B", "A -.-> C", "A -.-> __END__"]
    assert [arrow for arrow in arrows(graph) if arrow.startswith("A")] == expected
    assert [arrow for arrow in arrows(graph.compile()) if arrow.startswith("A")] == expected


def test_a_branch_that_ends_with_destinations_has_no_edge_to_its_join():
    graph = make_graph("START>A A>C C>D X>D D>END")
    graph.add_node("B", node, destinations=["X"]).add_edge("A", "B")

    drawn = arrows(graph.compile())

    assert [arrow for arrow in drawn if arrow.startswith("B")] == ["B -.-> X"]


def test_a_branch_that_ends_without_an_edge_leads_to_its_own_join():
    graph = make_graph("START>A A>B,C,H B>E,F E>G G>D H>D D>END")
    drawn = arrows(graph.compile())
    assert {"F --> G", "C --> D"} <= set(drawn)
    assert len(drawn) == 12


def test_the_ids_of_a_history_are_a_path():
    """A node is there twice where its state was updated, and START again where a second input came."""
    _, links = passed(chain("A", "B"), [START, "A", "A", "B", START, "A", "gone", END])
    assert links == ['__START__ -->|"1, 3"| A', "A -->|2| B"]
    loop = make_graph("START>A").add_conditional_edges("A", node, ["A", END])
    _, links = passed(loop, [START, "A", "A", END], conditions=False)
    assert links == ["__START__ -->|1| A", "A -.->|2| A", "A -.->|3| __END__"]


def test_a_cluster_is_passed():
    graph = make_chain({}, E=agent().compile())
    text = lines(graph, PLANTUML, path=[START, "E", END])
    assert 'package "E" as E #C8E6C9 {' in text
    assert "__START__ -[#2E7D32,bold]down-> E : 1" in text
    text = lines(agent(), PLANTUML, path=[START, "agent", "action"])
    assert 'usecase "agent" as agent<<Node>> #C8E6C9' in text
    assert "condition1 .[#2E7D32,bold]down.> action : go (2)" in text
    assert "condition1 .down.> __END__" in text


# Ids that no syntax likes. What the real parsers make of these was looked at: mermaid 11, PlantUML 1.2020

UGLY = [
    "end", "a b", 'say "hi"', "x[0]", "{y}", "(z)", "日本語", "naïve", "-->", "|", "`tick`", "#35;", "<b>", "back\\slash",
    "new\nline", "subgraph", "_self", "1", "%%", "A&B", ";", "@startuml", "a:::b", "***", "~", "//c//", "'q", "😀", "fa:fa-car",
    "condition1", "End", "graphic", "n2", "__START__x", "package", "}", "$$x$$", "\u2028", "\x00",
]  # fmt: skip


def ugly():
    graph = chain(*UGLY).add_node("SSS", chain(*UGLY))
    return graph.add_conditional_edges("SSS", node, {f"{name}!": name for name in UGLY})


NAME = r"[A-Za-z_][A-Za-z0-9_]*"
MERMAID_TEXT = r'"(?:[\w \-.,()/]|#\d+;)*"'
PLANTUML_TEXT = r"(?:[\w \-.,()]|<U\+[0-9A-F]+>)*"
KNOWN_LINE = {
    MERMAID: rf"(%%\t)?({NAME}\(\((start|stop)\)\)(:::{NAME})?|{NAME}[({{]{MERMAID_TEXT}[)}}]|subgraph SSS|end|flowchart TD|"
    rf"classDef .*|{NAME}:::{NAME} (-->|-\.->)(\|({MERMAID_TEXT}|[A-Za-z0-9_ ]+)\|)? {NAME}:::{NAME})?",
    PLANTUML: rf"'?((circle|usecase|hexagon) \"{PLANTUML_TEXT}\" as {NAME}(<<\w+>>)?|package \"{PLANTUML_TEXT}\" as {NAME} {{|"
    rf"}}|@startuml unnamed|@enduml|{NAME} [-.]down[-.]> {NAME}( : {PLANTUML_TEXT})?)",
}


@pytest.mark.parametrize("conditions", [True, False])
@pytest.mark.parametrize("type", KNOWN_LINE)
def test_any_id_gives_lines_of_known_form(type, conditions):
    for line in lines(ugly(), type, conditions=conditions):
        assert re.fullmatch(KNOWN_LINE[type], line), line


@pytest.mark.parametrize(("type", "code"), [(MERMAID, r"#(\d+);"), (PLANTUML, r"<U\+([0-9A-F]+)>")])
def test_every_id_can_be_read_back_and_every_name_is_one_nodes(type, code):
    base = 10 if type is MERMAID else 16
    shown = "\n".join(lines(chain(*UGLY), type))
    found = re.findall(r'^(\w+)\("(.*)"\)' if type is MERMAID else r'^usecase "(.*)" as (\w+)', shown, re.MULTILINE)
    labels = {pair[type is MERMAID]: pair[type is not MERMAID] for pair in found}
    assert [re.sub(code, lambda one: chr(int(one[1], base)), label) for label in labels] == UGLY
    assert len(set(labels.values())) == len(UGLY)


def test_no_name_begins_with_a_word_of_mermaids():
    ids = [
        "call", "class", "click", "default", "direction", "end", "flowchart", "graph", "href", "interpolate", "linkStyle",
        "style", "subgraph", "classes", "END", "_self", "_blank", "_parent", "_top",
    ]  # fmt: skip
    names = re.findall(r'^(n\d+)\("', "\n".join(lines(chain(*ids))), re.MULTILINE)
    assert len(names) == len(ids)


@pytest.mark.parametrize(
    ("title", "mermaid", "plantuml"),
    [
        ('a "b": [c]\n#', r'title: "a \"b\": [c]\n#"', ["@startuml a__b____c___", 'title "a <U+0022>b<U+0022><U+003A> <U+005B>c<U+005D><U+000A><U+0023>"']),
        ("", 'title: ""', ["@startuml unnamed", 'title ""']),
    ],
)  # fmt: skip
def test_titles(title, mermaid, plantuml):
    assert lines(chain("A"), title=title)[:4] == ["---", mermaid, "---", "flowchart TD"]
    assert lines(chain("A"), PLANTUML, title=title)[:2] == plantuml


# --- as text ----------------------------------------------------------------------------------------------------------


def lines_of(graph, **options):
    return draw(graph.compile().topology, "text", None, **options).content.splitlines()


def test_a_chain_with_the_path_and_the_node_that_is_next():
    assert lines_of(chain("a", "bb"), path=[START, "a"], current="bb") == [
        "╭─────────╮",
        "│ ✓ start │",
        "╰────┬────╯",
        "     │ 1",
        "     ▼",
        "  ┌─────┐",
        "  │ ✓ a │",
        "  └──┬──┘",
        "     ▼",
        " ┏━━━━━━┓",
        " ┃ ▶ bb ┃",
        " ┗━━━┯━━┛",
        "     ▼",
        " ╭──────╮",
        " │ stop │",
        " ╰──────╯",
    ]


def test_conditional_targets_are_named():
    graph = make_graph("START>check ship>END refuse>END")
    graph.add_conditional_edges("check", node, {"yes": "ship", "no": "refuse", "again": "check"})
    text = "\n".join(lines_of(graph))
    assert "├┄ no ┄▶ refuse\n" in text
    assert "├┄ again ┄▶ check\n" in text
    assert "┆ yes\n" in text
    assert text.count("▶ refuse") == 1
    assert "╰┄▶ (decided at run time)" in lines_of(make_graph("START>a").add_conditional_edges("a", node))[-1]


def test_branches_stand_side_by_side():
    graph = make_graph("START>a a>b,c b>d d>j c>j j>END")
    assert lines_of(graph, current="__PARALLEL__(a)")[7:17] == [
        "   ╭────┴───╮",
        "   ▼        ▼",
        "┏━━━━━┓  ┏━━━━━┓",
        "┃ ▶ b ┃  ┃ ▶ c ┃",
        "┗━━┯━━┛  ┗━━┯━━┛",
        "   ▼        │",
        " ┌───┐      │",
        " │ d │      │",
        " └─┬─┘      │",
        "   ╰────┬───╯",
    ]


def test_branches_that_are_too_wide_are_listed():
    heads = [f"branch-with-a-long-name-{number}" for number in range(4)]
    drawn = lines_of(make_graph(f"START>a a>{','.join(heads)} j>END " + " ".join(f"{head}>j" for head in heads)))
    assert max(map(len, drawn)) < 80
    assert {f"├─▶ {head}" for head in heads[1:]} <= {line.strip() for line in drawn}


def test_branches_with_a_condition_are_listed():
    graph = make_graph("START>a a>b,c c>j j>END").add_conditional_edges("b", node, {"yes": "j", "no": "j"})
    assert "├─▶ c" in "\n".join(lines_of(graph))


def test_wide_letters_and_control_characters():
    lines = lines_of(chain("\u6ce8\u6587", "a\x1b[31m"))
    assert "│ \u6ce8\u6587 │" in lines[5]
    assert len(lines[5].strip()) + 2 == len(lines[4].strip())
    assert "\\x1b[31m" in lines[9]


def test_a_long_chain_needs_no_deep_stack():
    assert len(chain(*map(str, range(1_500))).get_graph("text").content.splitlines()) > 4 * 1_500


def test_a_graph_inside_is_drawn_below():
    text = "\n".join(lines_of(make_chain({}, a=node, nested=chain("one").compile()), current="nested"))
    assert "┃ ▶ nested (graph) ┃" in text
    assert "│ one │" in text.partition("\nnested:\n")[2]
