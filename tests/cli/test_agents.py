"""agents schema, agents check and agents run: a conversation at the terminal."""

import json
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from graphkit import ModelError
from graphkit.agents import Agent
from tests.support.terminal import assert_refused, assert_shows, graphkit, read_json

ROOT = Path(__file__).resolve().parents[2]
SHOP = '''
import os
import pathlib
import signal
from graphkit.agents import tool
from graphkit.errors import ModelError


@tool(requires_approval=True)
def cancel_order(number: float) -> str:
    """Cancel an order."""
    with pathlib.Path("calls").open("a") as calls:
        calls.write(f"cancel {number:g}\\n")
    return f"order {number:g} is cancelled"


def answer(messages, on_text=None):
    last = messages[-1]
    with pathlib.Path("calls").open("a") as calls:
        calls.write("model\\n")
    if last["role"] == "tool":
        return f"Done: {last['content']}"
    if "cancel" in last["content"]:
        numbers = (3, 4) if "both" in last["content"] else (3,)
        functions = [{"name": "cancel_order", "arguments": '{"number": %d}' % number} for number in numbers]
        calls = [{"id": f["arguments"], "type": "function", "function": f} for f in functions]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    if last["content"] == "half":
        on_text("Half an")
        raise ModelError("m", "it broke off", attempts=1)
    if last["content"] == "stop":
        os.kill(os.getpid(), signal.SIGINT)
    if "die" in last["content"] and not pathlib.Path("back").exists():
        os._exit(9)
    if "fail" in last["content"] and not pathlib.Path("fixed").exists():
        raise ModelError("m", "it is down", attempts=1)
    text = f"You said {last['content']!r}."
    for word in text.split(" "):
        if on_text:
            on_text(word + " ")
    return text + " "


async def answer_later(messages):
    return answer(messages)


def ask(state):
    from graphkit import interrupt
    return {"messages": [{"role": "assistant", "content": f"Answer: {interrupt('Which city?')}"}]}
'''


def agent_file(model="answer", store="{type: file, config: {base_directory: runs}}", steps=""):
    text = f"name: shop\ntools: ['agent_shop:cancel_order']\nsteps:\n  - {{type: llm, model: 'agent_shop:{model}'}}\n{steps}"
    return text + (f"checkpointer: {store}\n" if store else "")


@pytest.fixture(autouse=True)
def shop(tmp_path, write_module):
    write_module("agent_shop", SHOP)
    (tmp_path / "shop.yaml").write_text(agent_file())


def run(*options, stdin, **extra):
    return graphkit("agents", "run", "shop.yaml", *options, stdin=stdin, **extra)


@pytest.fixture
def run_process(launcher):
    """As `run`, in a process of its own."""

    def run_once(*options, stdin):
        command = ("-m", "graphkit", "agents", "run", "shop.yaml", *options)
        return launcher.run(*command, environment={"PYTHONPATH": str(ROOT)}, given=stdin)

    return run_once


def calls():
    return Path("calls").read_text().split("\n")[:-1]


@pytest.mark.parametrize("words", [["agents", "--help"], ["agents", "-h"], ["agents"]], ids=" ".join)
def test_the_help_of_the_group_lists_its_commands(words):
    done = graphkit(*words)
    shown = done.out or done.err
    assert shown.startswith("Usage: graphkit agents [OPTIONS] COMMAND")
    assert [line.split()[0] for line in shown.partition("Commands:\n")[2].splitlines()] == ["schema", "check", "run"]
    assert done.code == (0 if len(words) == 2 else 2)


def test_the_schema_is_json():
    assert graphkit("agents", "schema").json["required"] == ["steps"]


def test_a_valid_file_is_checked_without_a_store():
    done = graphkit("agents", "check", "shop.yaml")
    assert (done.code, done.out) == (0, "shop.yaml is valid: agent shop, 1 step (llm)\n")
    assert read_json("agents", "check", "shop.yaml")["checkpointer"] == "file"


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_wrong_file_is_one_line_with_its_place(command):
    Path("shop.yaml").write_text("name: shop\nsteps:\n  - type: lml\n")
    done = graphkit("agents", command, "shop.yaml")
    assert_refused(done, 22, "graphkit: shop.yaml, line 3: steps[0].type: Invalid step 0: there is no type 'lml'")
    assert graphkit("agents", command, "gone.yaml").code == 26
    Path("shop.yaml").write_text("steps: [")
    assert graphkit("agents", command, "shop.yaml").code == 27


def test_variables_come_from_the_environment_of_the_command():
    Path("shop.yaml").write_text(agent_file().replace("name: shop", "name: ${AGENT}"))
    assert "AGENT is not set" in graphkit("agents", "check", "shop.yaml").err
    assert "agent lamp" in graphkit("agents", "check", "shop.yaml", AGENT="lamp").out


def test_after_the_limit_the_next_message_goes_on():
    Path("shop.yaml").write_text(agent_file() + "max_iterations: 1\n")
    stopped = run("--thread", "bob", stdin="cancel it\nhello\n")
    assert_refused(stopped, 4, "has reached its max_iterations, 1,", "continue with --thread bob")
    again = run("--thread", "bob", stdin="hello\n")
    assert_shows(again, 0, "You said 'hello'.")
    assert "has reached its max_iterations, 1," in again.err
    assert calls() == ["model", "model"]


@pytest.mark.parametrize("command", [("resume", "runs", "bob"), ("worker", "runs", "--once")])
def test_other_commands_take_an_agent_as_the_app(command, monkeypatch):
    Path("shop_app.py").write_text("from graphkit.agents import load_agent\nagent = load_agent('shop.yaml')\n")
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)
    assert "cancel_order" in run("--thread", "bob", stdin="cancel it\n").err
    assert graphkit("answer", "runs", "bob", "--value", "true").code == 0
    assert graphkit(*command, "--app", "shop_app:agent").code == 0
    assert read_json("threads", "runs")[0]["status"] == "finished"
    assert calls() == ["model", "cancel 3", "model"]


@pytest.mark.parametrize("model", ["answer", "answer_later"])
def test_a_conversation_is_remembered_by_its_thread(model):
    Path("shop.yaml").write_text(agent_file(model))
    first = run("--thread", "bob", stdin="Hello\n\nHow are you?\n")
    assert_shows(first, 0, "You said 'Hello'. \nYou said 'How are you?'. \n", "2 turns; continue with --thread bob")
    second = run("--thread", "bob", stdin="Bye\n")
    assert "continuing bob: 4 messages" in second.err
    *messages, last = run("--json", stdin="Hi\n").lines
    assert len(messages) == 2
    thread = json.loads(last)["thread"]
    assert "continuing" in run("--thread", thread, stdin="").err


def test_without_a_checkpointer_nothing_is_kept():
    Path("shop.yaml").write_text(agent_file(store=""))
    done = run(stdin="Hello\n")
    assert_shows(done, 0, "You said 'Hello'.")
    assert "it forgets each message" in done.err
    assert run("--thread", "bob", stdin="Hello\n").code == 2
    assert_shows(run(stdin="cancel it\n"), 0, "a call waits for approval: cancel_order", "no answer can come later")


def test_a_wrong_thread_id_is_a_usage_error():
    for thread in ("", "a\nb", " "):
        done = run("--thread", thread, stdin="")
        assert_refused(done, 2, "--thread: a thread id")
    Path("shop.yaml").write_text(agent_file() + "thread_id: {strategy: user_specific}\n")
    assert_refused(run(stdin=""), 2, "give a --thread", "needs the option user_id")


@pytest.mark.parametrize(
    ("line", "call", "result"),
    [
        ("y", ["cancel 3"], "order 3 is cancelled"),
        ('{"number": 4}', ["cancel 4"], "order 4 is cancelled"),
        ("n", [], "Done"),
        ("n it is shipped", [], "it is shipped"),
        (" Yes ", ["cancel 3"], "order 3 is cancelled"),
        ("No", [], "Done"),
        ("y but only 4\nn", [], "Done"),
        ("what?\ny", ["cancel 3"], "order 3 is cancelled"),
        ('{"number": "x"}\ny', ["cancel 3"], "order 3 is cancelled"),
        ('{"number": NaN}\ny', ["cancel 3"], "order 3 is cancelled"),
        ('{"number": ' + "[" * 100_000 + "\ny", ["cancel 3"], "order 3 is cancelled"),
    ],
)
def test_a_tool_is_approved_changed_or_refused(line, call, result):
    done = run("--thread", "bob", stdin=f"cancel it\n{line}\n")
    assert done.code == 0
    assert 'approve cancel_order {"number": 3}? [y/n/JSON]' in done.err
    assert result in done.out
    assert [name for name in calls() if name != "model"] == call


def test_an_approval_waits_for_the_next_process_and_an_answer_is_kept():
    first = run("--thread", "bob", stdin="cancel both\ny\n")
    said = '1 turn; a call waits for approval: cancel_order {"number": 4}; continue with --thread bob'
    assert first.code == 0
    assert first.out.endswith(f"{said}\n")
    assert calls() == ["model", "cancel 3"]
    again = run("--thread", "bob", "--json", stdin="")
    (payload,) = json.loads(again.lines[-1])["waiting"]
    assert payload["arguments"] == {"number": 4}
    done = run("--thread", "bob", stdin="n\nBye\n")
    assert done.err.count("approve cancel_order") == 1
    assert done.out.endswith("You said 'Bye'. \n2 turns; continue with --thread bob\n")
    assert calls() == ["model", "cancel 3", "model", "model"]


def test_another_question_takes_any_answer():
    Path("shop.yaml").write_text(agent_file(steps="  - {type: function, function: 'agent_shop:ask'}\n"))
    done = run("--thread", "bob", stdin='Hello\nBern\nAgain\n{"zip": 3000}\n')
    assert "Which city?" in done.err
    assert "a question waits" not in done.out
    assert "a question waits for an answer: Which city?; " in run("--thread", "eve", stdin="Hello\n").out
    assert "Answer: Bern\n" in done.out
    assert "Answer: {'zip': 3000}\n" in done.out


def test_at_a_terminal_there_are_prompts():
    done = run("--thread", "bob", stdin="Hello\n", terminal=True)
    assert (done.code, done.err) == (0, "> > \n")


def test_an_error_after_a_part_of_an_answer_begins_a_line_and_names_the_conversation():
    done = run(stdin="half\n")
    assert_refused(done, ModelError.exit_code, "graphkit: the model m gave no usable answer", "continue with --thread ")
    assert done.out == "Half an\n"


def test_a_conversation_that_was_killed_or_failed_goes_on_where_it_was(run_process):
    killed = run_process("--thread", "bob", stdin="Hello\ndie and fail\n")
    assert (killed.returncode, killed.stdout) == (9, "You said 'Hello'. \n")
    Path("back").touch()
    failed = run("--thread", "bob", stdin="")
    assert_refused(failed, ModelError.exit_code, "it is down")
    Path("fixed").touch()
    resumed = run("--thread", "bob", stdin="")
    assert resumed.out.startswith("You said 'die and fail'.")


def test_control_characters_of_a_model_do_not_reach_the_terminal():
    done = run("--thread", "bob", stdin="a\x1b[31mb é\n")
    assert ("\x1b" in done.out, "é" in done.out) == (False, True)


def test_ctrl_c_at_a_prompt_ends_a_conversation_without_a_traceback():
    done = run("--thread", "bob", stdin=Mock(side_effect=["Hello\n", KeyboardInterrupt]), terminal=True)
    assert "You said" in done.out
    assert (done.code, "Traceback" in done.err) == (130, False)


def test_a_ctrl_c_before_a_turn_has_begun_ends_the_conversation_too(monkeypatch):
    def begin(*args):
        signal.raise_signal(signal.SIGINT)
        return astream(*args)

    astream = Agent.astream
    monkeypatch.setattr(Agent, "astream", begin)
    assert_shows(run("--thread", "bob", stdin="Hello\nmore\n"), 0, "1 turn; continue with --thread bob")
    assert not Path("calls").exists()


@pytest.mark.parametrize("store", ["{type: file, config: {base_directory: runs}}", ""], ids=["stored", "not stored"])
def test_the_first_ctrl_c_ends_the_conversation_before_the_next_step(store, run_process):
    steps = "  - {type: function, function: 'agent_shop:ask'}\n"
    Path("shop.yaml").write_text(agent_file(store=store, steps=steps))
    done = run_process(stdin="stop\nmore\n")
    assert done.returncode == 0
    assert "You said 'stop'." in done.stdout
    assert "city" not in done.stdout + done.stderr
    assert "waits" not in done.stdout
    assert calls() == ["model"]
