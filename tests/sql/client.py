"""A process that puts checkpoints on one thread, and tells which were acknowledged."""

import pickle
import sys

from graphkit.testing import made


def main():
    opener, name, count = pickle.loads(bytes.fromhex(sys.argv[1]))
    with opener() as saver:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        parent = None
        for number in range(count):
            state = {"name": name, "items": list(range(number))}
            checkpoint = made(state, id=f"{name} {number}", parent_id=parent)
            saver.put("t", checkpoint)
            parent = checkpoint.id
            sys.stdout.write(f"{parent}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
