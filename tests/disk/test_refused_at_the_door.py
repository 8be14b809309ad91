"""What a saver acknowledges, every reader accepts; what it refuses, it refuses before it writes (finding A1)."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from graphkit import Checkpoint, CheckpointSerializationError, RunnableConfig
from graphkit.errors import CheckpointerConfigurationError
from savers import FileSystemSaver
from tests.support.contents import read_all
from tests.support.odd import ODD

CONFIG = RunnableConfig("t")


class Text(str):
    """A str of the application's own, whose type a log would lose."""

    __slots__ = ()


FAR = datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))
MANY = (
    *ODD,
    (),
    1 << 70,
    float("nan"),
    datetime.max,  # noqa: DTZ901 - naive on purpose
    datetime.min,  # noqa: DTZ901
    FAR,
    Text("text"),
    object(),
    "\ud800key",
    "ü" * 9000,
)
HASHABLE = tuple(value for value in MANY if not isinstance(value, (list, dict)))


def made(**fields):
    return Checkpoint(**{"id": "x", "node_id": "a", "next_node_id": "b", "state": {"n": 1}, **fields})


def field(name):
    return lambda saver, value: saver.put(CONFIG, made(**{name: value}))


CALLS = {
    **{name: (field(name), MANY) for name in ("id", "node_id", "next_node_id", "parent_id", "created_at")},
    "metadata": (lambda saver, value: saver.put(CONFIG, made(metadata={"step": value})), MANY),
    "metadata key": (lambda saver, value: saver.put(CONFIG, made(metadata={value: 1})), HASHABLE),
    "metadata key of a text": (lambda saver, value: saver.put(CONFIG, made(metadata={"a": 1, value: "b"})), HASHABLE),
    "state": (lambda saver, value: saver.put(CONFIG, made(state={"key": value})), MANY),
    "state key": (lambda saver, value: saver.put(CONFIG, made(state={value: 1})), HASHABLE),
    "tag": (lambda saver, value: saver.add_tags(CONFIG, "fine", value), MANY),
    "tag removed": (lambda saver, value: saver.remove_tags(CONFIG, value), MANY),
    "write key": (lambda saver, value: saver.put_writes(CONFIG, {"fine": 1, value: 1}), HASHABLE),
    "write": (lambda saver, value: saver.put_writes(CONFIG, {"fine": 1, "key": value}), MANY),
    "writes": (lambda saver, value: saver.put_writes(CONFIG, value), MANY),
    "write beside a new one": (
        lambda saver, value: saver.put_writes(CONFIG.with_check_point_id("new"), {"key": value}, early=True),
        MANY,
    ),
    "write key beside a new one": (
        lambda saver, value: saver.put_writes(CONFIG.with_check_point_id("new"), {value: 1}, early=True),
        HASHABLE,
    ),
}


def bytes_below(root):
    """All that a store holds but the texts of its locks."""
    return {path: path.read_bytes() for path in Path(root).rglob("*") if path.is_file() and path.name != "run.lock"}


def refusal(call, saver, value, kind=CheckpointSerializationError):
    """The error with which a call refuses a value."""
    try:
        call(saver, value)
    except kind as error:
        return error
    return None


def expect_readable(root):
    """Read everything in every way."""
    with FileSystemSaver(root, fsync="never") as fresh:
        for (thread, namespace, _), listed in read_all(fresh).items():
            config = RunnableConfig(thread, checkpoint_ns=namespace)
            assert fresh.get(config) is not None
            assert len(fresh.history(config)) == fresh.summary(config).checkpoints == len(listed)
        fresh.interrupts()
        report = fresh.verify()
        assert report.ok, report.problems


def began(root):
    saver = FileSystemSaver(root, fsync="never")
    saver.put(CONFIG, made(id="c0", metadata={"step": 0}))
    saver.put(CONFIG, made(id="c1", metadata={"step": 1}))
    return saver


@pytest.mark.parametrize("name", CALLS)
def test_what_is_acknowledged_can_be_read_and_what_is_refused_changes_nothing(tmp_path, name):
    call, values = CALLS[name]
    for number, value in enumerate(values):
        root = tmp_path / str(number)
        with began(root) as saver:
            before = bytes_below(root)
            refused = refusal(call, saver, value)
            if refused is not None:
                assert refused.path, (value, refused)
                assert bytes_below(root) == before, (value, refused)
            expect_readable(root)
            saver.put(CONFIG, made(id="after"))
        expect_readable(root)


@pytest.mark.parametrize("field", ["thread_id", "checkpoint_ns", "checkpoint_id"])
@pytest.mark.parametrize("value", [5, True, b"t", 1.5, object()])
def test_a_place_that_is_no_text_is_refused_before_any_file_is_touched(field, value):
    with pytest.raises(CheckpointerConfigurationError, match=field):
        RunnableConfig(**{field: value})
