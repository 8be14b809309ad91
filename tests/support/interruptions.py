"""Interrupts an operation at every line and at every call, as Ctrl-C, a signal handler or a lack of memory may.

`find_places` runs an operation once and notes each line, and each call, of graphkit and savers that it reaches: where it is
reached first and where it is reached last. `interrupt` runs it again, with an exception at one of these places.

Left out are places at which Python runs no signal handler, or none against which code could guard: the line of a `try` itself,
which does nothing; the end of an `except` block, where the exception would go on being handled; the way out of a `with` block
that ended well, between its last line and the call of `__exit__`; the way into an `__exit__` that is written in Python; and
what a generator does when it is closed, and a `__del__`, because Python reports an exception there and goes on.

`count_signal_points` and `interrupt_signal_point` are for short operations that hold a lock. The points are those at which
Python runs a signal handler, also in contextlib and threading: when a function is entered, an `__exit__` too, and when a
function in C returns.
"""

import contextlib
import dis
import inspect
import sys
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import graphkit
import savers

_PACKAGES = tuple(str(Path(package.__file__).parent) for package in (graphkit, savers))

_SIGNALLED = (*_PACKAGES, contextlib.__file__, threading.__file__)


class Place(NamedTuple):
    """A line or a call of the code, and how often the operation has come there when it is interrupted."""

    file: str
    function: str
    line: int
    event: str
    occurrence: int

    def __str__(self):
        return f"{self.file}:{self.line} in {self.function} ({self.event}, time {self.occurrence})"


def find_places(operation):
    """Run an operation; return the places at which it can be interrupted, in the order in which it reaches them first."""
    tracer = _Tracer(None)
    with _tracing(tracer):
        operation()
    found = []
    for key, count in tracer.counts.items():
        found += (Place(*key, occurrence) for occurrence in sorted({1, count}))
    return found


def interrupt(operation, place):
    """Run an operation that is interrupted at a place; return whether it came there."""
    tracer = _Tracer(place)
    try:
        with _tracing(tracer):
            operation()
    except KeyboardInterrupt:
        return True
    return False


class _Tracer:
    """Counts how often a thread of execution comes to each place, and raises at one of them."""

    def __init__(self, place):
        self.counts = {}
        self._place = place
        self._entered = None
        self._closing = set()
        """The generators that are being closed."""

    def trace_call(self, frame, event, argument):
        if not self._may_note(frame.f_code):
            return None
        if frame.f_code.co_name == "__exit__":
            self._entered = frame  # Its first line is left out, too.
        elif not frame.f_code.co_flags & inspect.CO_GENERATOR:  # It is called again whenever it goes on.
            self._note(frame, "call")
        return self._trace_line

    def _may_note(self, code):
        """Whether places in a function count: to trace the lines of the others takes most of the time."""
        if self._place is not None:
            return (code.co_filename, code.co_name) == self._place[:2]
        return code.co_filename.startswith(_PACKAGES) and code.co_name != "__del__"

    def _trace_line(self, frame, event, argument):
        if event == "exception" and issubclass(argument[0], GeneratorExit):
            self._closing.add(frame)
        elif event == "return":
            self._closing.discard(frame)
        elif event == "line" and frame not in self._closing:
            if self._entered is frame:
                self._entered = None
            elif frame.f_lasti not in _unguarded(frame.f_code):
                self._note(frame, "line")
        return self._trace_line

    def _note(self, frame, event):
        code = frame.f_code
        key = code.co_filename, code.co_name, frame.f_lineno, event
        count = self.counts[key] = self.counts.get(key, 0) + 1
        if self._place == (*key, count):
            raise KeyboardInterrupt


@cache
def _unguarded(code):
    """The offsets in a function at which it does nothing, ends an `except` block, or begins to leave a `with` block by `__exit__(None, None, None)`."""
    instructions = list(dis.get_instructions(code))
    offsets = {instruction.offset for instruction in instructions if instruction.opname in {"NOP", "POP_EXCEPT"}}
    for number in range(len(instructions) - 2):
        three = instructions[number : number + 3]
        if not all(map(_loads_none, three)):
            continue
        offsets.add(three[0].offset)
        before = instructions[number - 1]
        if number and before.opname == "SWAP":  # below the value that is returned
            offsets.add(before.offset)
    return offsets


def _loads_none(instruction):
    return instruction.opname == "LOAD_CONST" and instruction.argval is None


@contextmanager
def _tracing(tracer):
    before = sys.gettrace()
    sys.settrace(tracer.trace_call)
    try:
        yield
    finally:
        sys.settrace(before)


def count_signal_points(operation):
    """Run an operation; return at how many points a signal may interrupt it."""
    profiler = _Profiler(None)
    profiler.run(operation)
    return profiler.count


def interrupt_signal_point(operation, number):
    """Run an operation that a signal interrupts at a point; return the exception, which keeps the frames alive, or None.

    So does Python for the last exception of an interactive session.
    """
    try:
        _Profiler(number).run(operation)
    except KeyboardInterrupt as error:
        return error
    except RuntimeError as error:
        # An interrupt within `Condition.wait` of the library may end as "release unlocked lock".
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        return error
    return None


class _Profiler:
    """Counts the points at which a thread of execution would run a signal handler, and raises at one of them."""

    def __init__(self, number):
        self.count = 0
        self._number = number

    def run(self, operation):
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            operation()
        finally:
            sys.setprofile(before)

    def _note(self, frame, event, argument):
        code = frame.f_code
        if not code.co_filename.startswith(_SIGNALLED) or code.co_name == "__del__":
            return
        # A generator that goes on would not catch what is raised here.
        is_entered = event == "call" and not code.co_flags & inspect.CO_GENERATOR
        if is_entered or event == "c_return":
            self.count += 1
            if self.count == self._number:
                raise KeyboardInterrupt


def run_apart(operation, where=""):
    """Run an operation in another thread of execution, which must not wait for ever; `where` is for the error."""
    other = threading.Thread(target=operation, daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive(), where
