"""A conversation with an agent that remembers each person, even after a restart.

Shows: an agent with a checkpointer; a thread per person; text that is printed while the model writes it.
The model follows a few rules and needs no network. `--model openai:gpt-4o-mini` asks a real one.
Run:   python examples/10_agent_conversation.py [--runs DIR] [--user NAME] [--model PROVIDER:NAME]
Reads one message per line and prints the answer to each, until the input ends. Type `I like tea`, stop the
program, start it again and ask `What do I like?`: it prints `You like tea.` Another user gets another answer.
"""

import argparse
import re
import sys
from pathlib import Path

from graphkit import StreamingOutput
from graphkit.agents import AgentBuilder, CheckpointerConfig


def follow_rules(messages, on_text=None):
    """Answer as a model would, from the messages alone."""
    said = [message["content"] for message in messages if message["role"] == "user"]
    likes = [found[1] for text in said if (found := re.match(r"I like ([\w ]+)", text))]
    if said[-1].startswith("What do I like"):
        answer = f"You like {' and '.join(likes)}." if likes else "You have not told me."
    else:
        answer = f"I have read {len(said)} of your messages."
    if on_text:
        for word in re.findall(r"\S+\s*", answer):
            on_text(word)
    return answer


parser = argparse.ArgumentParser(description="Talk to an agent that remembers.")
parser.add_argument("--runs", default="runs")
parser.add_argument("--user", default="ada")
parser.add_argument("--model", default=follow_rules)
args = parser.parse_args()

checkpointer = CheckpointerConfig(type="file", config={"base_directory": str(Path(args.runs, "checkpoints"))})
builder = AgentBuilder().with_chat(args.model, system_prompt="Answer in one sentence.")
agent = builder.with_checkpointer(checkpointer).build()
thread = f"user-{args.user}"

if history := agent.get_state_history(thread):
    print(f"Welcome back, {args.user}. Messages so far: {len(history[0].values['messages'])}.", flush=True)
for line in sys.stdin:
    if text := line.strip():
        for output in agent.stream(text, thread):
            if isinstance(output, StreamingOutput):
                print(output.chunk, end="", flush=True)
        print(flush=True)
