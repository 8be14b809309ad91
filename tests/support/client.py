"""A process that puts checkpoints on a thread, or holds its run lock, and tells what it has done.

A holder puts a checkpoint for each line of its standard input, and ends with it.
"""

import pickle
import sys
from pathlib import Path

from graphkit.testing import made

ROOT = Path(__file__).resolve().parents[2]


def start_client(launcher, opener, name, count=0, thread="t"):
    """Start a process that puts checkpoints whose ids are the name and their numbers, or without a count holds the run lock."""
    return launcher.start("-m", "tests.support.client", pickle.dumps((opener, name, count, thread)).hex(), cwd=ROOT)


def tell(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def put(saver, name, count, thread):
    tell("ready")
    parent = None
    for number in range(count):
        state = {"name": name, "items": list(range(number))}
        checkpoint = made(state, id=f"{name} {number}", parent_id=parent)
        saver.put(thread, checkpoint)
        parent = checkpoint.id
        tell(parent)


def main():
    opener, name, count, thread = pickle.loads(bytes.fromhex(sys.argv[1]))
    with opener() as saver:
        if count:
            put(saver, name, count, thread)
        else:
            with saver.run_lock(thread):
                tell("held")
                for line in sys.stdin:
                    saver.put(thread, made({"line": line}))
                    tell("put")


if __name__ == "__main__":
    main()
