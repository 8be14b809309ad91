"""Object storage whose requests are answered in another way, and writers that die between two of them."""

from itertools import count

from savers._objects import Bucket
from tests.support.disks import Died

OPERATIONS = ("create", "empty", "remove", "remove_directory")


def replace_operation(monkeypatch, name, make):
    """Let `make` return, for an operation of buckets, what takes its place."""
    monkeypatch.setattr(Bucket, name, make(getattr(Bucket, name)))


def die_at(monkeypatch, number, operations=OPERATIONS):
    """Let the process die before it does an operation, when so many have been done."""
    left = iter(range(number))

    def dying(operation):
        def operate(*args):
            if next(left, None) is None:
                raise Died
            return operation(*args)

        return operate

    for name in operations:
        replace_operation(monkeypatch, name, dying)


def act_beside(monkeypatch, name, act, number=0, *, is_done=False):
    """Let something happen before an operation with a number, or when it is done; return an iterator that counts them."""
    numbers = count()

    def beside(operation):
        def operate(*args):
            is_now = next(numbers) == number
            if is_now and not is_done:
                act()
            found = operation(*args)
            if is_now and is_done:
                act()
            return found

        return operate

    replace_operation(monkeypatch, name, beside)
    return numbers
