"""A simulated file system: the methods of FileIO, and what a power loss may leave of what was done through them.

`SimFS` is what the saver runs on. It records every change as an operation; `Disk` replays those operations and says, at
any point between two of them, which contents the disk may legally have:

- of a file, the changes since its last fsync: none, all, any prefix with a tear at any byte, the size without the
  bytes (zeros), or each 512-byte sector (or 4096-byte block) as it was at any moment since that fsync;
- of a directory, the names since its last fsync: none, all, an ordered prefix, or any subset.

An fsync that failed proves nothing: what was written before it may never reach the disk, whatever later ones say.
"""

import errno
import itertools
import math
import os
import stat
import threading
from types import SimpleNamespace

from tests.support.disks import take_part

SECTOR = 512
BLOCK = 4096
ROOT = 1


def _raise(number, path):
    raise OSError(number, os.strerror(number), path)


def _on_path(method):
    """Let a method whose first argument is a path call the hook first."""

    def call_hook_first(self, path, *args, **options):
        with self._guard:
            self._meet(method.__name__, path)
            return method(self, path, *args, **options)

    return call_hook_first


def _on_file(method):
    """Let a method of an open file call the hook first. It is given the file, not the descriptor."""

    def call_hook_first(self, fd, *args):
        with self._guard:
            handle = self._handle(fd)
            part = self._meet(method.__name__, handle.path)
            if part is not None:
                *args, data = args
                args = (*args, take_part(data, part))
            return method(self, handle, *args)

    return call_hook_first


class SimFS:
    """The simulated file system, for any number of savers at once.

    Args:
        tree: what is there already and durable: {name: bytes | dict}.
        hook: called before every call, as that of `HookedIO`.
        record: whether to keep the operations for `Disk`.
    """

    def __init__(self, tree=None, hook=None, *, record=True):
        self.hook = hook
        self.record = record
        self.after_sync = None
        """Called after each fdatasync that succeeded, before it returns."""
        self.ops = []
        self._guard = threading.RLock()
        self._numbers = itertools.count(ROOT)
        self._files = {}
        self._dirs = {}
        self._links = {}
        self._locks = {}
        self._fds = {}
        self._poisoned = {}
        self.root = self._plant({} if tree is None else tree)

    def _plant(self, tree):
        number = next(self._numbers)
        self._links[number] = 1
        if isinstance(tree, dict):
            self._dirs[number] = {name: self._plant(below) for name, below in tree.items()}
        else:
            self._files[number] = bytearray(tree)
        return number

    def note(self, *what):
        """Put a remark between the operations."""
        self._done("note", *what)

    def _done(self, *op):
        if self.record:
            self.ops.append(op)

    def _meet(self, kind, path):
        return self.hook(kind, path) if self.hook is not None else None

    def tree(self, number=None):
        """What a process sees."""
        number = self.root if number is None else number
        if number in self._files:
            return bytes(self._files[number])
        return {name: self.tree(below) for name, below in self._dirs[number].items()}

    # Paths

    def _find(self, path):
        number = self.root
        for part in path.split("/"):
            if part:
                if number not in self._dirs:
                    _raise(errno.ENOTDIR, path)
                number = self._dirs[number].get(part)
                if number is None:
                    _raise(errno.ENOENT, path)
        return number

    def _parent(self, path):
        directory, _, name = path.rpartition("/")
        number = self._find(directory)
        if number not in self._dirs:
            _raise(errno.ENOTDIR, path)
        return number, name

    def _status(self, number):
        mode = stat.S_IFREG | 0o600 if number in self._files else stat.S_IFDIR | 0o700
        return SimpleNamespace(
            st_mode=mode,
            st_ino=number,
            st_nlink=self._links[number],
            st_size=len(self._files.get(number, b"")),
            st_mtime_ns=0,
            st_ctime_ns=0,
        )

    # Files

    @_on_path
    def open(self, path, *, write=False, create=False):
        parent, name = self._parent(path)
        number = self._dirs[parent].get(name)
        if number is None:
            if not create:
                _raise(errno.ENOENT, path)
            number = self._plant(b"")
            self._dirs[parent][name] = number
            self._done("create", number, parent, name)
        elif number in self._dirs and write:
            _raise(errno.EISDIR, path)
        # The lowest free number, as a kernel gives it: descriptors are reused.
        fd = next(fd for fd in itertools.count(3) if fd not in self._fds)
        poisoned = self._poisoned.get(number, 0)
        self._fds[fd] = SimpleNamespace(fd=fd, number=number, path=path, write=write, poisoned=poisoned)
        return fd

    def _handle(self, fd):
        if fd not in self._fds:
            raise AssertionError(f"a call on descriptor {fd}, which is not open")
        return self._fds[fd]

    def close(self, fd):
        with self._guard:
            self._handle(fd)
            del self._fds[fd]
            self._locks = {number: holder for number, holder in self._locks.items() if holder != fd}

    @_on_file
    def read_at(self, handle, offset, length):
        return bytes(self._files[handle.number][offset : offset + length])

    @_on_file
    def write_at(self, handle, offset, data):
        assert handle.write
        data = bytes(data)
        content = self._files[handle.number]
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data
        self._done("write", handle.number, offset, data)
        return len(data)

    @_on_file
    def truncate(self, handle, size):
        content = self._files[handle.number]
        if len(content) != size:
            del content[size:]
            content.extend(bytes(size - len(content)))
            self._done("truncate", handle.number, size)

    @_on_file
    def fstat(self, handle):
        return self._status(handle.number)

    def measure(self, fd):
        status = self.fstat(fd)
        return status.st_size, status.st_nlink

    def fsync(self, fd):
        self._sync("fsync", fd)

    def fdatasync(self, fd):
        self._sync("fdatasync", fd)
        if self.after_sync is not None:
            self.after_sync()

    def start_writing(self, fd):
        """Promises nothing. If it fails, what was dirty counts as clean, and no later sync says so."""
        with self._guard:
            handle = self._handle(fd)
            try:
                self._meet("start_writing", handle.path)
            except OSError:
                self._done("sync failed", handle.number)
                raise

    def _sync(self, kind, fd):
        handle = self._handle(fd)
        try:
            # Outside the guard: a hook may let another thread go on meanwhile.
            self._meet(kind, handle.path)
        except OSError:
            with self._guard:
                # As on Linux: every descriptor that is open now reports it once, and what was dirty counts as clean.
                self._poisoned[handle.number] = handle.poisoned = self._poisoned.get(handle.number, 0) + 1
                self._done("sync failed", handle.number)
            raise
        with self._guard:
            if handle.poisoned != self._poisoned.get(handle.number, 0):
                handle.poisoned = self._poisoned[handle.number]
                _raise(errno.EIO, handle.path)
            self._done("sync", handle.number)

    # Directories

    @_on_path
    def stat(self, path):
        try:
            return self._status(self._find(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def is_dir(self, path):
        found = self.stat(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def real_path(self, path):
        return path

    @_on_path
    def listdir(self, path):
        try:
            return list(self._dirs[self._find(path)])
        except FileNotFoundError:
            return []

    def entries(self, path):
        return [(name, self.is_dir(f"{path}/{name}")) for name in self.listdir(path)]

    @_on_path
    def mkdir(self, path):
        parent, name = self._parent(path)
        if name in self._dirs[parent]:
            if self._dirs[parent][name] not in self._dirs:
                _raise(errno.EEXIST, path)
            return False
        number = self._plant({})
        self._dirs[parent][name] = number
        self._done("mkdir", number, parent, name)
        return True

    @_on_path
    def fsync_dir(self, path):
        self._done("sync dir", self._find(path))

    @_on_path
    def rename(self, source, target):
        (parent, name) = self._parent(source)
        (other, new) = self._parent(target)
        if name not in self._dirs[parent]:
            _raise(errno.ENOENT, source)
        number = self._dirs[parent].pop(name)
        old = self._dirs[parent].get(new)
        if old is not None:
            if self._dirs.get(old):
                _raise(errno.ENOTEMPTY, target)
            self._links[old] = 0
        self._dirs[parent][new] = number
        if parent == other:
            self._done("rename", number, parent, name, new)
        else:
            # Each directory is brought to the disk by itself; nothing promises that both change at once.
            self._done("link", number, other, new)
            self._done("unlink", number, parent, name)

    @_on_path
    def unlink(self, path):
        self._remove(path, is_dir=False)

    @_on_path
    def rmdir(self, path):
        self._remove(path, is_dir=True)

    def _remove(self, path, *, is_dir):
        parent, name = self._parent(path)
        number = self._find(path)
        if self._dirs.get(number):
            _raise(errno.ENOTEMPTY, path)
        assert (number in self._dirs) is is_dir
        del self._dirs[parent][name]
        self._links[number] = 0
        self._done("unlink", number, parent, name)

    # Locks

    @_on_file
    def lock(self, handle):
        return self._locks.setdefault(handle.number, handle.fd) == handle.fd

    @_on_file
    def unlock(self, handle):
        if self._locks.get(handle.number) == handle.fd:
            del self._locks[handle.number]


# What a power loss leaves


class _File:
    def __init__(self, durable=b""):
        self.moments = [durable]
        """The content at the last fsync, and after each change since."""
        self.changes = []
        self.lost = []
        """Ranges that a failed fsync has left to chance, with what the disk had there before."""

    def write(self, offset, data):
        old = self.moments[-1]
        self.changes.append((offset, data))
        self.moments.append(overwrite(old, offset, data))
        self.lost = [
            write for write in self.lost if not (offset <= write[0] and write[0] + len(write[1]) <= offset + len(data))
        ]

    def truncate(self, size):
        self.changes.append((size, None))
        self.moments.append(self.moments[-1][:size].ljust(size, b"\0"))
        self.lost = [(at, old) for at, old in self.lost if at < size]

    def sync(self):
        now = bytearray(self.moments[-1])
        for at, old in self.lost:
            to = min(len(now), at + len(old))
            now[at:to] = old[: to - at]
        self.moments = [bytes(now)]
        self.changes = []
        self.lost = []

    def sync_failed(self):
        before = self.moments[0]
        for offset, data in self.changes:
            if data:
                self.lost.append((offset, before[offset : offset + len(data)].ljust(len(data), b"\0")))

    def variants(self, rng, many):
        """Contents that the disk may have, as (description, content); all simple ones, some of the others."""
        moments = self.moments
        yield "none", moments[0]
        last = len(moments) - 1
        if not last:
            return
        yield "all", moments[last]
        for k in range(1, last):
            yield f"first {k}", moments[k]
        for k, (offset, data) in enumerate(self.changes):
            if data:
                old = moments[k]
                for cut in few_of(range(1, len(data)), many, rng):
                    torn = overwrite(old, offset, data[:cut])
                    yield f"first {k} and {cut} bytes of {len(data)}", torn
        for k in range(1, last + 1):
            yield from self._scattered(k, rng, many)

    def _scattered(self, k, rng, many):
        """The size as after change k; each sector as at any moment since its block was last freed."""
        now = self.moments[k]
        old = self.moments[0]
        if not now:
            return
        for unit in (SECTOR, BLOCK):
            dirty = {}
            for n in range(-(-len(now) // unit)):
                floor = self._floor(n * unit, k)
                if self._at(now, n, unit, k) != self._at(now, n, unit, floor):
                    dirty[n] = floor
            if not dirty:
                continue
            yield f"size of {k}, nothing else", self._mixed(now, unit, k, {})
            patterns = [*self._patterns(dirty, k, rng, many)]
            for kept in few_of(patterns, many, rng):
                content = self._mixed(now, unit, k, kept)
                yield f"size of {k}, {unit}-byte sectors {kept}", content
        # The size reaches the disk within the last block only.
        size = len(now)
        edge = size // BLOCK * BLOCK
        if len(old) < edge < size:
            zeroed = now[:edge].ljust(size, b"\0")
            yield f"size of {k}, last block zero", zeroed

    @staticmethod
    def _patterns(dirty, k, rng, many):
        """The moment that each dirty sector is from: the first few from the last one, one from an earlier one, any."""
        sectors = [*dirty]
        for n in range(1, len(sectors)):
            first = sectors[:n]
            yield dict.fromkeys(first, k)
        whole = dict.fromkeys(sectors, k)
        for sector, floor in dirty.items():
            for moment in range(floor, k):
                yield {**whole, sector: moment}
        for _ in range(many):
            yield {sector: rng.randint(floor, k) for sector, floor in dirty.items()}

    def _floor(self, position, k):
        """The first moment from which bytes at a position may be: blocks beyond a truncation are new."""
        block = position // BLOCK * BLOCK
        return max(
            (n + 1 for n, (size, data) in enumerate(self.changes[:k]) if data is None and size <= block), default=0
        )

    def _at(self, now, n, unit, moment):
        size = min(unit, len(now) - n * unit)
        return self.moments[moment][n * unit : n * unit + size].ljust(size, b"\0")

    def _mixed(self, now, unit, k, kept):
        return b"".join(
            self._at(now, n, unit, kept.get(n, self._floor(n * unit, k))) for n in range(-(-len(now) // unit))
        )


class _Directory:
    def __init__(self):
        self.durable = {}
        self.changes = []

    def after(self, changes):
        names = dict(self.durable)
        for kind, name, number, new in changes:
            if kind == "link":
                names[name] = number
            else:
                if names.get(name) == number:
                    del names[name]
                if kind == "rename":
                    names[new] = number
        return names

    def sync(self):
        self.durable = self.after(self.changes)
        self.changes = []

    def variants(self, rng, many):
        yield "none", self.durable
        changes = self.changes
        count = len(changes)
        if not count:
            return
        yield "all", self.after(changes)
        for k in range(1, count):
            yield f"first {k}", self.after(changes[:k])
        subsets = range(1, 2**count - 1)
        for bits in few_of(subsets, many, rng):
            chosen = [change for n, change in enumerate(changes) if bits >> n & 1]
            names = self.after(chosen)
            yield f"changes {bits:b}", names


def overwrite(content, offset, data):
    """The content of a file after a write, which may begin beyond the end."""
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


def few_of(things, many, rng):
    """All of them if they are few, a sample otherwise."""
    return things if len(things) <= many else rng.sample(things, many)


def distinct(variants):
    """Each content once, with its first description."""
    found = {}
    for what, content in variants:
        found.setdefault(content if isinstance(content, bytes) else frozenset(content.items()), (what, content))
    return list(found.values())


class Disk:
    """What operations have left, and may have left, on the disk.

    Args:
        tree: what was durable before.
        ops: operations of a SimFS.
    """

    def __init__(self, tree=None, ops=()):
        self._things = {}
        self._numbers = itertools.count(ROOT)
        self._plant({} if tree is None else tree)
        for op in ops:
            self.apply(op)

    def _plant(self, tree):
        # In the order in which SimFS numbers the same tree.
        number = next(self._numbers)
        if isinstance(tree, dict):
            thing = self._things[number] = _Directory()
            thing.durable = {name: self._plant(below) for name, below in tree.items()}
        else:
            self._things[number] = _File(tree)
        return number

    def apply(self, op):
        """Take in the next operation."""
        kind, number, *rest = op
        if kind in {"create", "mkdir"}:
            self._things[number] = _File() if kind == "create" else _Directory()
            kind = "link"
        if kind in {"link", "unlink", "rename"}:
            directory, name, *new = rest
            change = kind, name, number, new[0] if new else None
            self._things[directory].changes.append(change)
        elif kind in {"write", "truncate"}:
            getattr(self._things[number], kind)(*rest)
        elif kind in {"sync", "sync dir"}:
            self._things[number].sync()
        elif kind == "sync failed":
            self._things[number].sync_failed()
        else:
            assert kind == "note", op

    def _tree(self, choices, number=ROOT):
        thing = self._things[number]
        if isinstance(thing, _File):
            return choices[number][1] if number in choices else thing.moments[0]
        names = choices[number][1] if number in choices else thing.durable
        return {name: self._tree(choices, below) for name, below in names.items()}

    def current(self, cut=None):
        """What a process sees; `cut` has, per file, where a write began that its writer's death cut short, and its bytes."""
        choices = {}
        for number, thing in self._things.items():
            if isinstance(thing, _File):
                now = thing.moments[-1]
                if number in (cut or {}):
                    offset, data = cut[number]
                    now = overwrite(now, offset, data)
                choices[number] = "all", now
            else:
                choices[number] = "all", thing.after(thing.changes)
        return self._tree(choices)

    def durable(self):
        """What is certainly there."""
        return self._tree({})

    def states(self, rng, limit, many=12):
        """Legal contents of the disk as (description, tree): all if they are few, at most `limit` otherwise."""
        dirty = {}
        for number, thing in self._things.items():
            if thing.changes:
                dirty[number] = distinct(thing.variants(rng, many))
        each = dirty.values()
        combinations = math.prod(map(len, each))
        if combinations <= limit:
            picks = itertools.product(*each)
        else:
            none_of_all = tuple(variants[0] for variants in each)
            all_of_all = tuple(variants[:2][-1] for variants in each)
            drawn = (tuple(map(rng.choice, each)) for _ in range(limit - 2))
            picks = itertools.chain([none_of_all, all_of_all], drawn)
        for pick in picks:
            choices = dict(zip(dirty, pick, strict=True))
            descriptions = {number: description for number, (description, _) in choices.items()}
            yield descriptions, self._tree(choices)
