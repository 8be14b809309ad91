"""A process that puts checkpoints on one thread, and tells which were acknowledged."""

import pickle
import sys

from graphkit import Checkpoint, RunnableConfig


def main():
    opener, name, count = pickle.loads(bytes.fromhex(sys.argv[1]))
    with opener() as saver:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        parent = None
        for number in range(count):
            checkpoint = Checkpoint(
                id=f"{name} {number}",
                node_id="a",
                next_node_id="b",
                parent_id=parent,
                state={"name": name, "items": list(range(number))},
            )
            saver.put(RunnableConfig("t"), checkpoint)
            parent = checkpoint.id
            sys.stdout.write(f"{parent}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
