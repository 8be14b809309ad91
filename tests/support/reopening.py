"""What the contract tests of savers on files and databases share: other processes, and a saver object per operation."""

import inspect
import pickle
import shutil
import tempfile
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings

from graphkit import HasVersions
from graphkit.abc import BaseCheckpointSaver
from graphkit.testing import SaverContract
from graphkit.testing.stateful import SaverMachine

KEYS = {"current": bytes(range(32)), "old": bytes(32)}
"""The keys of sealed savers."""
_CODE = """
import pickle, sys
opener, argument = pickle.loads(bytes.fromhex(sys.stdin.read()))
saver = opener()
print(pickle.dumps({expression}).hex())
saver.close()
"""


def elsewhere(launcher, expression, saver, argument):
    """Evaluate in another process; what it returns must be of builtin types."""
    opener = saver.opener()
    # The types of the contract are classes of the calling process.
    opener = partial(opener.func, *opener.args, **{**opener.keywords, "types": ()})
    given = pickle.dumps((opener, argument)).hex()
    done = launcher.run("-c", _CODE.format(expression=expression), given=given)
    assert not done.returncode, done.stderr
    return pickle.loads(bytes.fromhex(done.stdout))


_USED = []
_MOST_OPEN = 50


def note_used(saver):
    """Let `close_used` close a saver that may be used again after it was closed."""
    _USED.append(saver)
    if not len(_USED) % _MOST_OPEN:  # a long run of a machine uses more of them than a server has connections
        for used in _USED[:-1]:
            used.close()
    return saver


def close_used():
    """Close the savers again that a checkpoint has opened by loading its state."""
    while _USED:
        _USED.pop().close()


def _reopened(name, *, is_async):
    def call(self, *args, **kwargs):
        with self.opened() as saver:
            return getattr(saver, name)(*args, **kwargs)

    async def async_call(self, *args, **kwargs):
        with self.opened() as saver:
            return await getattr(saver, name)(*args, **kwargs)

    return async_call if is_async else call


class Reopening(BaseCheckpointSaver, HasVersions):
    """Every operation on a saver object of its own; `reopening` adds the operations."""

    isolates_values = refuses_unstorable_values = waits_for_runs = True

    @property
    def seals_records(self):
        return self.open_saver.keywords.get("cipher") is not None

    def __init__(self, open_saver):
        self.open_saver = open_saver
        self.types = ()

    @contextmanager
    def opened(self):
        with self.open_saver(types=self.types) as saver:
            yield note_used(saver)

    def opener(self):
        with self.opened() as saver:
            return saver.opener()

    def register_types(self, *types):
        self.types = types

    run_lock = BaseCheckpointSaver.run_lock

    @contextmanager
    def _run_lock(self, config, timeout):
        with self.opened() as saver, saver.run_lock(config, timeout):
            yield


@cache
def reopening(saver_class):
    """Return a Reopening with the operations of a class of savers."""
    operations = {
        name: _reopened(name, is_async=inspect.iscoroutinefunction(method))
        for name, method in inspect.getmembers(saver_class, inspect.isfunction)
        if not name.startswith("_") and name not in vars(Reopening) and name != "close"
    }
    return type(Reopening)(f"Reopening{saver_class.__name__}", (Reopening,), operations)


class OnStores(SaverContract):
    """The contract on savers of stores. A subclass says how to open them; `cipher` seals what they store."""

    cipher = None
    is_reopened = False
    """Whether every single operation is done by a saver object of its own; otherwise two on each store stay open."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path, launcher):
        self.root = tmp_path
        self.launcher = launcher
        self.openers = {}
        yield
        self.openers.clear()
        close_used()

    def new_opener(self):
        """Return a partial of a class of savers that opens a new store."""
        raise NotImplementedError

    def plant(self, saver, config, checkpoint):
        elsewhere(self.launcher, "saver.put(*argument)", saver, (config, checkpoint))
        return True

    def peek(self, saver, config):
        return elsewhere(self.launcher, "[dict(one.state) for one in saver.list(argument)]", saver, config)

    def new_path(self):
        return self.root / f"store {uuid4().hex}"

    def make_saver(self):
        return self._open(self.new_opener())

    def reopen(self, saver):
        return type(saver)(saver.open_saver) if self.is_reopened else self._open(self.openers[saver])

    def _open(self, opener):
        if self.is_reopened:
            return reopening(opener.func)(opener)
        saver = note_used(opener())
        self.openers[saver] = opener
        return saver


class StoreMachine(SaverMachine):
    """Two objects on a store that stay open for as long as the machine lets them; or one for each operation."""

    is_reopened = False

    def new_opener(self):
        raise NotImplementedError

    def make_saver(self):
        self.root = Path(tempfile.mkdtemp())
        self.open_saver = self.new_opener()
        return self._open()

    def reopen(self, saver):
        return self._open()

    def _open(self):
        return reopening(self.open_saver.func)(self.open_saver) if self.is_reopened else note_used(self.open_saver())

    def open_again(self, index):
        if not self.is_reopened:
            self.savers[index].close()
        super().open_again(index)

    def teardown(self):
        assert self.savers[0].verify().ok
        close_used()
        shutil.rmtree(self.root)


def fewer(machine, part, steps=50):
    """Return the tests of a state machine with fewer examples: stores are slow, and reopening them is slower."""
    machine.TestCase.settings = settings(
        max_examples=max(1, settings.default.max_examples // part), stateful_step_count=steps
    )
    return machine.TestCase
