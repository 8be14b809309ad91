"""What the contract tests of the SQL savers share."""

import abc
import inspect
import pickle
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

from graphkit import HasVersions
from graphkit.abc import BaseCheckpointSaver
from savers import SqliteSaver

KEYS = {"current": bytes(range(32)), "old": bytes(32)}
"""The keys of sealed savers."""
_CODE = """
import pickle, sys
opener, argument = pickle.load(sys.stdin.buffer)
saver = opener()
pickle.dump({expression}, sys.stdout.buffer)
saver.close()
"""


def elsewhere(expression, saver, argument):
    """Evaluate in another process; what it returns must be of builtin types."""
    opener = saver.opener()
    # The types of the contract are classes of the calling process.
    opener = partial(opener.func, *opener.args, **{**opener.keywords, "types": ()})
    given = pickle.dumps((opener, argument))
    code = _CODE.format(expression=expression)
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=False, timeout=60)
    assert not done.returncode, done.stderr.decode()
    return pickle.loads(done.stdout)


class Elsewhere:
    """The hooks that write and read in another process."""

    def plant(self, saver, config, checkpoint):
        elsewhere("saver.put(*argument)", saver, (config, checkpoint))
        return True

    def peek(self, saver, config):
        return elsewhere("[dict(one.state) for one in saver.list(argument)]", saver, config)


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


def reopened(name):
    def call(self, *args, **kwargs):
        with self.opened() as saver:
            return getattr(saver, name)(*args, **kwargs)

    async def async_call(self, *args, **kwargs):
        with self.opened() as saver:
            return await getattr(saver, name)(*args, **kwargs)

    return async_call if inspect.iscoroutinefunction(getattr(SqliteSaver, name)) else call


class Reopening(BaseCheckpointSaver, HasVersions):
    """Every operation on a saver object of its own, which connects for it."""

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


for base in (BaseCheckpointSaver, HasVersions, SqliteSaver):
    for name, _ in inspect.getmembers(base, inspect.isfunction):
        if not name.startswith("_") and name not in vars(Reopening) and name != "close":
            setattr(Reopening, name, reopened(name))
abc.update_abstractmethods(Reopening)
