"""show, diff, graph."""

import enum
import os
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel

from graphkit import END, START, Checkpoint, RunnableConfig
from savers import FileSystemSaver
from tests.support.terminal import NOW, STOP, assert_refused, checkpoint, graphkit, read_json
from tests.support.threads import Pair, Point


@pytest.mark.requirement("H44")
def test_show(store):  # get checkpoint
    assert graphkit("show", store, "order-17").out == (
        "thread       order-17\n"
        "checkpoint   00000000-0000-7000-8000-000000000002\n"
        "parent       00000000-0000-7000-8000-000000000001\n"
        "node         reserve\n"
        "next         approve\n"
        "status       interrupted\n"
        "created      2026-11-20 11:02:00 (58 min ago)\n"
        'metadata     {"run_id": "run-1", "source": "loop", "user": "anna", "step": 1}\n'
        "waiting for  inside approve: Ship lamp?\n"
        "\n"
        "item: lamp\n"
        "log:\n"
        "  [0]: reserved\n"
    )


def test_an_error_has_nothing_that_a_terminal_would_obey(tmp_path):
    @dataclass
    class Item:
        number: int

    Item.__qualname__ = "It\x1b]0;title\x07em"
    with FileSystemSaver(tmp_path, types=[Item]) as saver:
        saver.put("t", checkpoint(1, "a", "b", {}, metadata={"item": Item(1)}))
    done = graphkit("history", tmp_path, "t")
    assert_refused(done, 14, r"It\x1b]0;title\x07em")
    assert "\x1b" not in done.err


def test_show_as_json(store):
    data = read_json("show", store, "order-17")
    assert data["state"] == {"item": "lamp", "log": ["reserved"]}
    assert data["waiting"] == read_json("interrupts", store)
    assert (data["created"], data["tags"], data["failure"]) == ("2026-11-20T11:02:00+00:00", [], None)
    graphkit("answer", store, "order-17", "--value", "[1]")
    data = read_json("show", store, "order-17")
    assert (data["recorded"], data["waiting"]) == ({"answer:q-1": [1]}, []), "what the resume finds"


@pytest.mark.requirement("G36")
def test_show_an_older_checkpoint_by_either_end_of_its_id_or_what_history_shows(store, saver):
    for checkpoint_id in ("…1", "00000000-0000-7000-8000-0000deadbeef"):
        saver.put("t", Checkpoint(id=checkpoint_id, node_id="n", next_node_id=END, state={}))
    assert read_json("show", store, "t", "--checkpoint", "…1")["id"] == "…1"
    assert "\ndeadbeef  " in graphkit("history", store, "t", terminal=True).out
    assert read_json("show", store, "t", "--checkpoint", "dead")["node"] == "n"

    for typed in ("0001", "000000000001", "00000000-0000-7000-8000-000000000001"):
        assert read_json("show", store, "order-17", "--checkpoint", typed)["node"] == START

    several = graphkit("show", store, "order-17", "--checkpoint", "00000000")
    assert_refused(several, 2, "2 checkpoints match 00000000")
    unknown = graphkit("show", store, "order-17", "-c", "0003")
    assert_refused(unknown, 11, "has no checkpoint 0003")
    assert_refused(graphkit("show", store, "order-17", "-c", "2"), 11, "type at least 4 characters")


@pytest.mark.requirement("H44")
def test_the_keys_without_their_values(store):  # session state without memory values
    assert read_json("show", store, "order-17", "--keys")["state"] == {"item": "str", "log": "FrozenList"}


STATE = {"a": {"b": [1, 2, {"c": "deep"}], "odd.key": 5}, "text": "one\ntwo", "none": None, "when": NOW, "empty": []}


@pytest.fixture
def deep(tmp_path):
    FileSystemSaver(tmp_path / "deep", fsync="never").put(RunnableConfig("t"), checkpoint(1, "n", END, STATE))
    return tmp_path / "deep"


@pytest.mark.requirement("H44")
def test_one_key(deep):
    for key, expected in (("a.b[2].c", "deep"), ("a.b[-3]", 1), ("a['odd.key']", 5), ("none", None), ("empty", [])):
        assert read_json("show", deep, "t", "--key", key) == expected


def test_no_such_key(deep):
    for key, message in (
        ("a.x", "there is no a.x; a has b, odd.key"),
        ("x", "there is no x; the state has a, text, none, when, empty"),
        ("a.b[7]", "there is no a.b[7]; a.b has 3 items"),
        ("text.x", "there is no text.x; text"),
        ("a..b", "cannot parse the key"),
    ):
        assert_refused(graphkit("show", deep, "t", "--key", key), 2, message)


def test_a_tree_is_cut_at_the_terminal_and_whole_in_a_pipe(deep):
    long = {"k": "x" * 300}
    FileSystemSaver(deep, fsync="never").put(RunnableConfig("l"), checkpoint(1, "n", END, long))

    assert len(graphkit("show", deep, "l", terminal=True, width=80).lines[-1]) == 80
    assert graphkit("show", deep, "l").lines[-1] == "k: " + "x" * 300
    assert graphkit("show", deep, "t").out.endswith(
        "a:\n  b:\n    [0]: 1\n    [1]: 2\n    [2]:\n      c: deep\n  odd.key: 5\ntext: |\n  one\n  two\nnone: null\n"
        "when: 2026-11-20T12:00:00+00:00\nempty: []\n"
    )


@pytest.mark.requirement("H44")
def test_diff(store):  # compare two; added, removed and changed keys, new nodes in path
    done = graphkit("diff", store, "order-18")
    assert done.out == '~ n: 1 → 2\n+ by: {"who": "bert"}\nnodes in between: pack\n'
    assert read_json("diff", store, "order-18") == {
        "from": "00000000-0000-7000-8000-000000000011",
        "to": "00000000-0000-7000-8000-000000000013",
        "nodes": ["pack"],
        "differences": [
            {"path": "n", "change": "changed", "old": 1, "new": 2},
            {"path": "by", "change": "added", "old": None, "new": {"who": "bert"}},
        ],
    }
    back = graphkit("diff", store, "order-18", "0013", "0011")
    assert back.out == '~ n: 2 → 1\n- by: {"who": "bert"}\nno nodes in between\n'
    assert_refused(graphkit("diff", store, "import-a"), 2, "has no parent; name the one to compare it with")


@pytest.mark.requirement("H44")  # values cut at 500 characters
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"l": [1, 2]}, {"l": [1, 2, 3]}, ["+ l[2]: 3"]),
        ({"l": [1, 2]}, {"l": [1]}, ["- l[1]: 2"]),
        ({"a": {"b.c": 1, ".d": 3}}, {"a": {"b.c": 2, ".d": 4}}, ["~ a['b.c']: 1 → 2", "~ a['.d']: 3 → 4"]),
        ({"[0]": 1}, {"[0]": 2}, ["~ ['[0]']: 1 → 2"]),
        ({"n": 1}, {"n": True}, ["~ n: 1 → true"]),
        ({"n": float("nan")}, {"n": float("nan")}, ["the states are the same"]),
        ({"t": "one\ntwo\nthree"}, {"t": "one\n2\nthree"}, ["~ t:", "    one", "  - two", "  + 2", "    three"]),
        ({"t": "x" * 60}, {"t": "y" * 60}, ["~ t:", "  - " + "x" * 60, "  + " + "y" * 60]),
        ({"t": 1}, {"t": "x" * 600}, ["~ t:", "  - 1", "  + " + "x" * 499 + "…"]),
    ],
)
def test_what_a_difference_looks_like(tmp_path, old, new, expected):
    saver = FileSystemSaver(tmp_path, fsync="never")
    saver.put("t", checkpoint(1, "a", "b", old))
    saver.put("t", checkpoint(2, "b", END, new, 1))
    assert graphkit("diff", tmp_path, "t").lines[:-1] == expected
    # JSON has as much of a long text.
    assert all(len(str(each["new"])) <= 501 for each in read_json("diff", tmp_path, "t")["differences"])


def test_a_path_without_the_graph(store):
    lines = graphkit("graph", store, "order-18").lines
    assert lines[:4] == ["---", "title: order-18", "---", "flowchart TD"]
    assert "\t__START__:::__START__ -->|1| pack:::pack" in lines
    assert "\tpack:::pack -->|2| __END__:::__END__" in lines
    plantuml = graphkit("graph", store, "order-18", "--format", "plantuml").lines
    assert (plantuml[0], plantuml[-1]) == ("@startuml order_18", "@enduml")


def test_the_graph_with_the_path_taken(runs, shop):
    graphkit("run", runs, "--app", shop, "--thread", "t", "--input", '{"item": "lamp"}')
    graph = ["graph", runs, "t", "--app", shop]
    done = graphkit(*graph)
    assert "\treserve:::reserve --> approve:::approve" in done.lines
    assert "class __START__,reserve passed;" in done.out
    data = read_json(*graph)
    assert data["path"] == [START, "reserve"]
    assert len(data["fingerprint"]) == 16
    assert done.err == ""
    assert "the graph has changed" in graphkit("graph", runs, "t", "--app", "shop:changed").err
    assert graphkit("graph", "--app", shop).out.startswith("---\ntitle: Graph Diagram")
    assert graphkit("graph", runs).code == 2
    drawn = graphkit(*graph, terminal=True).lines
    assert (drawn[0], drawn[-1]) == ("t", "✓ has run  ▶ is next")
    assert graphkit(*graph, "--format", "text").lines == drawn
    assert "┃ ▶ approve ┃" in graphkit("graph", runs, "t", terminal=True).out


def test_a_path_has_only_what_nodes_led_to(runs, shop):
    def path():
        return read_json("graph", runs, "t")["path"]

    graphkit("submit", runs, "--app", shop, "--thread", "t", "--input", '{"item": "lamp"}')
    assert path() == []
    graphkit("worker", runs, "--app", shop, "--once")
    graphkit("update", runs, "t", "--set", "item=desk", "--app", shop)
    assert path() == [START, "reserve"]
    graphkit("prune", runs, "t", "--keep-last", "1", "--interrupted")
    assert path() == []


def test_types_of_a_graph(runs, shop):
    graphkit("run", runs, "--app", shop, "--thread", "t", "--input", '{"item": "lamp", "city": "Bern"}')
    graphkit("resume", runs, "t", "--app", shop, "--value", '"yes"')
    for options in ([], ["--app", shop]):
        show = ["show", runs, "t", *options, "--key"]
        assert read_json(*show, "place") == {"city": "Bern"}
        assert read_json(*show, "place.city") == "Bern"
    assert graphkit("diff", runs, "t").lines[-2] == '+ place: {"city": "Bern"}'
    assert graphkit("copy", runs, "t", "u").code == 0, "it moves bytes"


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Model(BaseModel, frozen=True):
    model_name: str
    inner: object = None


@dataclass(frozen=True)
class Place:
    city: str
    tags: dict = field(default_factory=dict, hash=False)


def test_values_of_unknown_types_are_shown_by_their_fields_in_sets_and_as_keys_too(tmp_path):
    strange = {
        "colours": [Colour.RED, Colour.BLUE, Colour.RED], "rights": Rights.READ | Rights.WRITE, "point": Point(Pair(1, Colour.RED)),
        "places": {Place("Bern", {"a": 1}), Place("Basel")},
        "models": {Model(model_name="m"): Pair(Model(model_name="n"), frozenset({Place("Chur")}))},
        "pairs": {(1, Pair(1, 2))},
    }  # fmt: skip
    saver = FileSystemSaver(tmp_path, fsync="never", types=[Colour, Rights, Pair, Point, Model, Place])
    saver.put("t", checkpoint(1, "n", "m", strange))
    here = saver.put("t", checkpoint(2, "m", "x", {**strange, "pairs": {(1, Pair(1, 3))}}, 1, place=Place("Bern")))
    saver.put_writes(here, {"interrupt:q": {**STOP, "payload": Point(1), "created_at": NOW}})
    assert read_json("show", tmp_path, "t")["state"] == {
        "colours": ["RED", "BLUE", "RED"], "rights": 3, "point": {"x": {"a": 1, "b": "RED"}},
        "places": [{"city": "Basel", "tags": {}}, {"city": "Bern", "tags": {"a": 1}}],
        "models": {"Model(model_name='m', inner=None)": {"a": {"model_name": "n", "inner": None}, "b": [{"city": "Chur", "tags": {}}]}},
        "pairs": [[1, {"a": 1, "b": 3}]],
    }  # fmt: skip
    (change,) = read_json("diff", tmp_path, "t")["differences"]
    assert (change["path"], change["new"]) == ("pairs", [[1, {"a": 1, "b": 3}]])
    (waiting,) = read_json("interrupts", tmp_path)
    (row,) = read_json("threads", tmp_path)
    assert waiting["payload"] == row["waiting"] == {"x": 1}
    for path in tmp_path.glob("t-t-*/*"):
        os.utime(path, (1, 1))
    assert read_json("prune", tmp_path, "--idle", "1d", "--dry-run")["waiting"] == ["t"]
