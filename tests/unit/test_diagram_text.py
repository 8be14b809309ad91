"""A graph as boxes of characters, for a terminal."""

from typing import Any, TypedDict

import pytest

from graphkit import END, START, StateGraph
from graphkit._diagram import draw


class State(TypedDict):
    x: Any


def make_graph(*names, **edges):
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, lambda _: {})
    graph.add_edge(START, names[0])
    for source, targets in edges.items():
        for target in targets:
            graph.add_edge(source, target)
    return graph


def lines_of(graph, **options):
    return draw(graph.compile().topology, "text", None, **options).content.splitlines()


def test_a_chain_with_the_path_and_the_node_that_is_next():
    graph = make_graph("a", "bb", a=["bb"], bb=[END])
    assert lines_of(graph, path=[START, "a"], current="bb") == [
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
    graph = make_graph("check", "ship", "refuse", ship=[END], refuse=[END])
    graph.add_conditional_edges("check", lambda _: "yes", {"yes": "ship", "no": "refuse", "again": "check"})
    text = "\n".join(lines_of(graph))
    assert "├┄ no ┄▶ refuse\n" in text
    assert "├┄ again ┄▶ check\n" in text
    assert "┆ yes\n" in text
    assert text.count("▶ refuse") == 1


def test_a_condition_that_may_return_any_node():
    graph = make_graph("a")
    graph.add_conditional_edges("a", lambda _: END)
    assert "╰┄▶ (decided at run time)" in "\n".join(lines_of(graph))


def test_branches_stand_side_by_side():
    graph = make_graph("a", "b", "c", "d", "j", a=["b", "c"], b=["d"], d=["j"], c=["j"], j=[END])
    assert lines_of(graph, current="__PARALLEL__(a)")[6:-4] == [
        "      └─┬─┘",
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
        "        ▼",
        "      ┌───┐",
        "      │ j │",
        "      └─┬─┘",
    ]


def test_branches_that_are_too_wide_are_listed():
    heads = [f"branch-with-a-long-name-{number}" for number in range(4)]
    graph = make_graph("a", *heads, "j", a=heads, j=[END], **{head: ["j"] for head in heads})
    text = "\n".join(lines_of(graph))
    assert max(map(len, lines_of(graph))) < 80
    for head in heads[1:]:
        assert f"├─▶ {head}" in text


def test_every_edge_is_drawn_once():
    """In a graph with loops, jumps over a node and a branch of conditions."""
    graph = make_graph("a", "b", "c", "d", a=["b"], c=["d"], d=[END])
    graph.add_conditional_edges("b", lambda _: "c", {"c": "c", "d": "d", "back": "a"})
    lines = lines_of(graph)
    assert sum("▼" in line for line in lines) == 5  # start-a, a-b, b-c, c-d, d-stop
    assert sum("▶" in line for line in lines) == 2


def test_wide_letters_and_control_characters():
    graph = make_graph("\u6ce8\u6587", "a\x1b[31m", **{"\u6ce8\u6587": ["a\x1b[31m"], "a\x1b[31m": [END]})
    lines = lines_of(graph)
    assert "│ \u6ce8\u6587 │" in lines[5]
    assert len(lines[5].strip()) + 2 == len(lines[4].strip())
    assert "\\x1b[31m" in lines[9]


def test_a_long_chain_needs_no_deep_stack():
    names = [f"n{number}" for number in range(1_500)]
    graph = make_graph(*names, **{source: [target] for source, target in zip(names, [*names[1:], END], strict=True)})
    assert len(graph.get_graph("text").content.splitlines()) > 4 * len(names)


def test_a_graph_inside_is_drawn_below():
    inner = make_graph("one", one=[END])
    graph = make_graph("a", a=["nested"]).add_node("nested", inner.compile()).add_edge("nested", END)
    lines = lines_of(graph, current="nested")
    assert "┃ ▶ nested (graph) ┃" in "\n".join(lines)
    below = lines.index("nested:")
    assert any("│ one │" in line for line in lines[below:])


@pytest.mark.parametrize("form", ["mermaid", "plantuml"])
def test_only_text_marks_the_node_that_is_next(form):
    topology = make_graph("a", a=[END]).compile().topology
    assert draw(topology, form, current="a") == draw(topology, form)
