"""Interrupts an operation at every place where Python may run a signal handler, and before every line besides.

Ctrl-C raises KeyboardInterrupt between two instructions, and a lack of memory raises at any call. `interrupt` raises at one
event of the interpreter's tracing inside graphkit and savers: the call of a function, or a line. A sweep counts the
events of an operation once, and then repeats it with an interruption at each of them.

Three places are left out, at which Python runs no handler, or none that code could guard against: the line of a `try` itself,
which does nothing; the way out of a `with` block that ended well, between its last line and the call of `__exit__`; and
the way into an `__exit__` that is written in Python.
"""

import dis
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import graphkit
import savers

FEW = 20
"""By how many events two runs of one operation may differ: names and times are of other lengths."""
_PACKAGES = tuple(str(Path(package.__file__).parent) for package in (graphkit, savers))


@cache
def _unguarded(code):
    """The offsets in a function at which it does nothing, or begins to leave a `with` block by `__exit__(None, None, None)`."""
    instructions = list(dis.get_instructions(code))
    offsets = {instruction.offset for instruction in instructions if instruction.opname == "NOP"}
    for number in range(len(instructions) - 2):
        if all(one.opname == "LOAD_CONST" and one.argval is None for one in instructions[number : number + 3]):
            offsets.add(instructions[number].offset)
            if number and instructions[number - 1].opname == "SWAP":  # below the value that is returned
                offsets.add(instructions[number - 1].offset)
    return offsets


class _Tracer:
    """Counts the events of one thread of execution, and raises at one of them."""

    def __init__(self, at):
        self.at = at
        self.count = 0
        self._entered = None

    def trace_call(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(_PACKAGES):
            return None
        if frame.f_code.co_name == "__exit__":
            self._entered = frame  # Its first line is left out, too.
        else:
            self._note()
        return self._trace_line

    def _trace_line(self, frame, event, argument):
        if event == "line":
            if self._entered is frame:
                self._entered = None
            elif frame.f_lasti not in _unguarded(frame.f_code):
                self._note()
        return self._trace_line

    def _note(self):
        self.count += 1
        if self.count == self.at:
            raise KeyboardInterrupt


@contextmanager
def _tracing(tracer):
    before = sys.gettrace()
    sys.settrace(tracer.trace_call)
    try:
        yield
    finally:
        sys.settrace(before)


def count_events(operation):
    """Run an operation; return at how many events it can be interrupted."""
    tracer = _Tracer(at=0)
    with _tracing(tracer):
        operation()
    return tracer.count


def interrupt(operation, at):
    """Run an operation that is interrupted at an event, counted from 1; return whether it came so far."""
    try:
        with _tracing(_Tracer(at)):
            operation()
    except KeyboardInterrupt:
        return True
    return False
