"""run and resume: live output, answers, recovery, and what cannot go on."""

import json
import signal

import pytest

from graphkit import CompiledGraph, RunnableConfig
from graphkit.cli.resolve import load_app
from tests.support.terminal import assert_refused, assert_shows, damage, graphkit, read_json

INPUT = '{"item": "lamp"}'


def run(store, *options, thread="t", given=INPUT, app="shop:app"):
    return graphkit("run", store, "--app", app, "--thread", thread, "--input", given, *options)


def log_of(store, thread="t"):
    return list(load_app("shop:app", str(store)).get_state(RunnableConfig(thread)).state["log"])


def test_a_run_step_by_step(runs, shop):
    done = run(runs)
    assert done.out == (
        "   0 __START__\n"
        '   1 reserve                  log=["reserved lamp"]\n'
        "t stopped after 1 step and waits inside approve: Ship lamp?\n"
    )
    on = graphkit("resume", runs, "t", "--app", shop, "--value", '"yes"', "--set", "city=Bern")
    assert on.out == (
        '   1 approve                  log=["approval: yes"]\n'
        '   2 ship                     log=["shipped to Bern"]  place={"city": "Bern"}\n'
        "t finished after 2 steps\n"
    )


def test_a_signal_before_the_run_has_begun_stops_it_too(runs, shop, monkeypatch):
    def begin(*args):
        signal.raise_signal(signal.SIGTERM)
        return stream(*args)

    stream = CompiledGraph.stream
    monkeypatch.setattr(CompiledGraph, "stream", begin)
    assert_shows(run(runs), 0, "t stopped after 0 steps and waits before reserve")


def test_a_run_as_lines_of_json(runs, shop):
    lines = [json.loads(line) for line in run(runs, "--json").lines]
    assert [line.get("node") for line in lines] == ["__START__", "reserve", None]
    assert lines[1]["update"] == {"log": ["reserved lamp"]}
    assert lines[2]["status"] == "interrupted"
    assert lines[2]["interrupts"][0]["payload"] == {"question": "Ship lamp?"}


def test_what_starts_a_run(runs, shop):
    options = ["--app", shop, "-t", "t", "--input", "-", "--meta", "user=anna"]
    assert graphkit("run", *options, stdin=INPUT, GRAPHKIT_DIR=str(runs)).code == 0
    assert read_json("threads", runs, "--meta", "user=anna")[0]["thread"] == "t"
    limited = run(runs, "--max-iterations", "1", thread="u")
    assert_refused(limited, 4, "max_iterations")


@pytest.mark.parametrize("app", ["shop:graph", "shop:made", "shop:app", "shop:asynchronous"])
def test_what_an_app_may_be(runs, shop, app):
    assert run(runs, app=app).code == 0


def test_what_is_no_app(runs, shop):
    for app, message in (
        ("shop:", "--app must be module:object"),
        ("shopp:app", "there is no module shopp"),
        ("shop:ap", "shop has no ap; did you mean app?"),
        ("shop:numbr", "shop has no numbr; its graphs: app, asynchronous, changed, graph, reviewed\n"),
        ("shop:START_", "shop has no START_; its graphs: "),
        ("os:graph", "os has no graph; it has no graph\n"),
        ("shop:number", "shop:number is of type int; name a graph, or a function that returns one"),
    ):
        done = run(runs, app=app)
        assert_refused(done, 2, message)
        assert not runs.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_this_name", "broken needs the module nothing_of_this_name, which is not installed"),
        ("raise ModuleNotFoundError('get it')", "importing broken failed: ModuleNotFoundError: get it ({here}"),
        ("class E(Exception): __str__ = None\nraise E", "importing broken failed: E: its __str__ raised TypeError ("),
        ("1 / 0", "importing broken failed: ZeroDivisionError: division by zero ({here}, line 2)"),
        ("def f(:", "importing broken failed: SyntaxError: invalid syntax (broken.py, line 2)"),
        ("from shop import nothing", "importing broken failed: ImportError: cannot import name 'nothing' from 'shop'"),
        ("def app(): raise OSError('no disk')", "broken:app without arguments failed: OSError: no disk ({here}"),
        ("def app(x): return x", "failed: TypeError: app() missing 1 required positional argument: 'x'; --debug"),
    ],
)
def test_an_app_that_fails_is_reported_with_the_place(tmp_path, runs, shop, write_module, text, message):
    write_module("broken", f"# a module\n{text}\n")
    done = run(runs, app="broken:app")
    assert (done.code, done.err.count("\n"), "Traceback" in done.err) == (2, 1, False)
    assert message.format(here=tmp_path / "broken.py") in done.err
    assert not runs.exists()


@pytest.mark.parametrize("text", ["app = StateGraph({}).compile()", "def app(): return StateGraph({}).compile()"])
def test_an_app_that_cannot_be_built(runs, write_module, text):
    write_module("broken", f"from graphkit import StateGraph\n{text}\n")
    assert_refused(run(runs, app="broken:app"), 3, "no entry point")


def test_an_app_with_a_saver_of_its_own(shop, write_module):
    saver = "from savers import FileSystemSaver\nsaver = FileSystemSaver('own')\n"
    write_module("kept", f"import shop\n{saver}app = shop.graph.compile(checkpoint_saver=saver)\n")
    assert graphkit("run", "--app", "kept:app", "--thread", "t", "--input", INPUT).code == 0
    assert read_json("threads", "own")[0]["thread"] == "t"
    assert graphkit("resume", "t", "--app", "kept:app", "--value", "1").lines[-1] == "t finished after 2 steps"
    without = graphkit("resume", "t", "--app", "shop:app")
    assert_refused(without, 2, "name a checkpoint directory")


TWO_WAIT = """
from graphkit import END, START, StateGraph, interrupt
from tests.support.graphs import make_chain
child = make_chain({}, b=lambda state: {}).compile(interrupt_before=["b"])
graph = StateGraph({}).add_node("ask", lambda state: {"n": interrupt("?")}).add_node("child", child)
graph.add_node("join", lambda state: {}).add_edge("join", END)
for name in ("ask", "child"):
    graph.add_edge(START, name).add_edge(name, "join")
app = graph.compile()
"""


def test_the_next_command_fits_what_waits(write_module):
    write_module("two", TWO_WAIT)
    done = graphkit("run", "runs", "--app", "two:app", "--thread", "t", terminal=True)
    assert done.lines[-1] == "next: graphkit answer runs t"
    assert_refused(graphkit("answer", "runs", "t", "--text", "x"), 2, "2 interrupts are pending")


def test_a_mistake_is_named_and_leaves_no_empty_store_behind(runs, shop):
    start = (runs, "--app", shop, "--input")
    deep = "[" * 100_000
    lines = '{"format": 1, "graphkit": "threads"}'
    for mistake, message in (
        (("run", *start, "[1]"), "--input must be a JSON object"),
        (("run", *start, deep), "--input is not JSON"),
        (("run", *start, '{"item": NaN}'), "--input is not JSON: JSON has no NaN"),
        (("run", *start, "{}", "--meta", f"key={deep}"), "--meta: the value of key is nested too deeply"),
        (("submit", *start, "{"), "--input is not JSON"),
        (("submit", *start, "{}", "--meta", "x"), "--meta must be key=value"),
        (("submit", *start, "{}", "--at", "soon"), "--at: soon is not a time"),
        (("import", runs, "-", "--app", "shop:nothing"), "shop has no nothing"),
    ):
        assert_refused(graphkit(*mistake, stdin=lines), 2, message)
        assert not runs.exists(), mistake


def test_a_failing_node_is_one_sentence(runs, shop):
    done = run(runs, given='{"item": "ghost"}')
    assert_refused(done, 4, "no such item")
    assert done.err.count("\n") == 1
    assert read_json("threads", runs)[0]["status"] == "failed"
    debug = run(runs, "--debug", thread="u", given='{"item": "ghost"}')
    assert_refused(debug, 4, "Traceback", "ValueError: no such item")
    # Once its cause is gone, it goes on.
    assert graphkit("resume", runs, "t", "--app", shop, "--set", "item=lamp").code == 0
    assert log_of(runs) == ["reserved lamp"]


@pytest.mark.requirement("G36", "H42", "H43")
def test_resume_from_a_checkpoint_with_other_values(runs, shop):
    resume = ["resume", runs, "t", "--app", shop]
    run(runs)
    graphkit(*resume, "--value", '"yes"', "--set", "city=Bern")
    before = read_json("history", runs, "t")
    approved = next(row for row in before if row["node"] == "approve")
    end_of_id = approved["id"][-8:]
    done = graphkit(*resume, "--checkpoint", end_of_id, "--set", "city=Thun")
    assert done.code == 0
    assert log_of(runs)[-1] == "shipped to Thun"
    # The checkpoint that it went on from, and all others, are as they were.
    after = read_json("history", runs, "t")
    unchanged = [{**row, "status": None} for row in before]
    assert after[-len(before) :] == unchanged


@pytest.mark.requirement("H46")
def test_a_graph_without_the_stored_node(runs, shop):
    run(runs)
    before = read_json("history", runs, "t")
    done = graphkit("resume", runs, "t", "--app", "shop:changed", "--value", '"yes"')
    assert_refused(done, 4, "the stored next node 'approve' is not a node of this graph")
    assert read_json("history", runs, "t") == before
    # An earlier checkpoint that fits is a way on.
    first = before[-1]["id"]
    assert graphkit("resume", runs, "t", "--app", "shop:changed", "--checkpoint", first).code == 0


@pytest.mark.requirement("H45")
def test_recovery_from_a_damaged_end(runs, shop):
    run(runs)
    graphkit("answer", runs, "t", "--value", '"yes"')
    damage(runs, "t")  # the answer
    refused = graphkit("resume", runs, "t", "--app", shop)
    assert_refused(refused, 12, "is damaged")
    done = graphkit("resume", runs, "t", "--app", shop, "--recover", "--set", "city=Chur", "--json")
    assert done.code == 0
    assert done.json["status"] == "interrupted"
    assert done.json["state"]["city"] == "Chur"
    assert "the newest checkpoint that can be read is" in done.err
    assert log_of(runs) == ["reserved lamp"]
    assert graphkit("resume", runs, "t", "--app", shop, "--recover", "--value", "1").code == 2


def test_resuming_with_an_answer_that_no_interrupt_asks_for(runs, shop):
    run(runs)
    graphkit("resume", runs, "t", "--app", shop, "--value", "1")
    again = graphkit("resume", runs, "t", "--app", shop)
    assert again.out == "t finished after 0 steps\n"
    answered = graphkit("resume", runs, "t", "--app", shop, "--value", "1")
    assert_refused(answered, 4, "nothing waits for an answer")
    assert graphkit("resume", runs, "x", "--app", shop).code == 11


LOUD = """
import sys
from tests.support.graphs import make_chain


def shout(state):
    sys.stderr.write("x" * 1_000_000 + "\\n")
    return {"n": state["n"] + 1}


app = make_chain({}, a=shout, b=shout).compile()
"""


def test_sigterm_while_a_node_prints_stops_at_the_node_boundary(tmp_path, runs, launcher):
    (tmp_path / "flow.py").write_text(LOUD)
    command = ["-m", "graphkit", "run", "runs", "--app", "flow:app", "-t", "t", "--input", '{"n": 0}']
    with launcher.start(*command, cwd=tmp_path, has_errors=True) as process:
        assert process.stderr.read(1) == "x"  # the pipe is full: the node is inside `write` until someone reads it
        process.send_signal(signal.SIGTERM)
        assert "stopping after the current node; press Ctrl-C again to stop now\n" in process.stderr.read()
        out, _ = process.communicate()

    assert process.returncode == 0
    assert out.splitlines()[-1] == "t stopped after 1 step and waits before b: pause"
    assert read_json("show", runs, "t")["state"] == {"n": 1}


FUSSY = """
from pydantic import BaseModel, field_validator
from graphkit import CompiledGraph
from tests.support.graphs import make_chain


class Order(BaseModel):
    count: int = 1

    @field_validator("count")
    @classmethod
    def some(cls, count):
        if count < 1:
            raise ValueError("order at least one")
        return count


def reserve(state):
    return {"count": state["count"] - 5}


def make() -> CompiledGraph:
    return make_chain(Order, reserve=reserve).compile()


app = make()
"""


LIBRARY_WORDS = ("Value error", "validation error", "Input should", "errors.pydantic.dev", "input_value", "[type=")


def test_what_pydantic_refuses_is_said_stored_and_shown_without_its_words(runs, write_module):
    write_module("fussy", FUSSY)
    for given, sentence in (
        ('{"count": "x"}', "the input cannot be merged: Order: count: must be a valid integer, "),
        ('{"count": 3}', "the update of 'reserve' cannot be merged: Order: count: order at least one"),
    ):
        done = graphkit("run", runs, "--app", "fussy:app", "-t", "t", "--input", given)
        assert_refused(done, 4, f"graphkit: {sentence}")
        assert not any(word in done.err for word in LIBRARY_WORDS)
    for command, *words in (["threads"], ["show", "t"], ["watch", "t", "--limit", "2"]):
        done = graphkit(command, runs, *words)
        assert_shows(done, 0, "Order: count:")  # a line of watch has no room for more
        assert not any(word in done.out for word in LIBRARY_WORDS)


def test_a_function_annotated_to_return_a_graph_is_suggested(runs, write_module):
    not_ready = 'settings = type("LazySettings", (), {"__getattr__": lambda *_: 1 / 0})()'
    write_module("fussy", FUSSY + not_ready)
    assert run(runs, app="fussy:mak").err == "graphkit: --app: fussy has no mak; did you mean make?\n"
    assert run(runs, app="fussy:reserv").err.endswith("has no reserv; its graphs: app, make\n")
