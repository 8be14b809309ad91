"""Events, the Outbox that carries them, and the observers that come with graphkit."""

import asyncio
import logging
import pickle
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta
from pathlib import Path
from queue import SimpleQueue

import pytest

from graphkit._plan.events import EVENTS, LEVELS, Outbox, observers_of
from graphkit.errors import CheckpointerConfigurationError
from graphkit.observers import (
    Level,
    LoggingObserver,
    Metrics,
    MultiObserver,
    NoOpObserver,
    get_observer,
    register_observer,
)
from savers import FileSystemSaver

OF_EACH_LEVEL = ["state.set", "graph.start", "retry.attempt", "graph.fail"]


def event(type_="graph.start", /, *, thread_id="t", **data):
    """Return an event as an observer gets it."""
    got = []
    outbox = Outbox([got.append])
    outbox.post(type_, thread_id=thread_id, node_id="n", checkpoint_id="c", data=data)
    outbox.close()
    return got[0]


class Collector:
    """Keeps the events of a level and above; waits inside each of them while the test has blocked it."""

    def __init__(self, level="verbose"):
        self.level = level
        self.events = []
        self.is_inside = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, event):
        self.events.append(event)
        self.is_inside.set()
        self.go.wait(60)


@pytest.fixture
def blocked():
    observer = Collector()
    observer.go.clear()
    yield observer
    observer.go.set()


@pytest.mark.requirement("G33")
def test_levels_are_ordered():
    assert sorted(Level) == list(Level) == [Level.VERBOSE, Level.INFO, Level.WARNING, Level.ERROR]
    assert Level.INFO == "info"
    assert "verbose" < Level.INFO < "warning"
    assert "info" <= Level.INFO <= "info"
    with pytest.raises(ValueError):
        assert Level.INFO < "loud"


def test_an_event_is_immutable_aware_and_pickles():
    saved = event("checkpoint.save", run_id="r")
    assert saved == ("checkpoint.save", "info", "t", "n", "c", saved.timestamp, {"run_id": "r"})
    assert saved.timestamp.tzinfo is UTC
    with pytest.raises(AttributeError):
        saved.type = "y"
    with pytest.raises(TypeError):
        saved.data["run_id"] = "s"
    assert pickle.loads(pickle.dumps(saved)) == saved


@pytest.mark.requirement("G25", "G26", "G33")
def test_the_table_names_every_event_of_the_other_systems():
    go = """state.create state.clone state.set state.merge graph.start graph.complete node.start node.complete node.state
    edge.evaluate edge.transition cycle.detected checkpoint.save checkpoint.load checkpoint.resume chain.start
    chain.complete step.start step.complete parallel.start parallel.complete worker.start worker.complete
    route.evaluate route.select"""
    own = """graph.cancel graph.fail checkpoint.fail checkpoint.delete interrupt.raised interrupt.answered
    interrupt.reminder timer.set model.retry parallel.branch parallel.overwrite retry.attempt retry.exhausted"""
    assert set(LEVELS) == {*go.split(), *own.split()}


def test_events_come_in_order_from_one_thread_that_ends_with_close():
    got = []
    outbox = Outbox([lambda event: got.append((event.data["n"], threading.current_thread()))])
    for n in range(1000):
        outbox.post("graph.start", data={"n": n})
    outbox.close()
    thread = got[0][1]
    assert got == [(n, thread) for n in range(1000)]
    assert thread.daemon
    assert not thread.is_alive()


@pytest.mark.requirement("G26")
def test_a_blocked_observer_delays_no_other_and_is_abandoned(blocked, caplog):
    got = SimpleQueue()
    outbox = Outbox([blocked, got.put])
    for _ in range(5):
        outbox.post("graph.start")
    for _ in range(5):
        got.get(timeout=60)
    outbox.close(timeout=0.05)
    assert "is abandoned: it misses" in caplog.text
    blocked.go.set()
    (line, _) = outbox._subscriptions
    line.thread.join(60)
    assert not line.thread.is_alive(), "the thread ends once the call returns"
    assert len(blocked.events) <= 1, "and nothing is handed over after close"


def test_close_waits_as_long_as_an_observer_makes_progress():
    go, got = threading.Semaphore(0), []
    outbox = Outbox([lambda event: go.acquire() and got.append(event)])
    for _ in range(3):
        outbox.post("graph.start")
    (line,) = outbox._subscriptions
    join = line.thread.join

    def join_for_one_event(timeout):
        handled = line.handled
        go.release()
        while line.thread.is_alive() and line.handled == handled:
            join(0.001)

    line.thread.join = join_for_one_event
    outbox.close(60)
    assert len(got) == 3


def test_what_does_not_fit_is_dropped_and_logged_once(blocked, caplog):
    outbox = Outbox([blocked])
    outbox.post("graph.start", data={"n": 0})
    assert blocked.is_inside.wait(60)
    for n in range(1, 10_008):
        outbox.post("graph.start", data={"n": n})
    blocked.go.set()
    outbox.close(60)
    assert [each.data["n"] for each in blocked.events] == [*range(10_001)]
    assert caplog.text.count("events are dropped") == 1


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
def test_a_signal_handler_may_post(monkeypatch):
    got, posted = [], 0

    def handler(*_):
        nonlocal posted
        outbox.post("graph.cancel")
        posted += 1

    monkeypatch.setattr("graphkit._plan.events._MOST_WAITING", 10**6)
    outbox = Outbox([got.append])
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        while posted < 50:
            outbox.post("graph.start")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    outbox.close(60)
    assert [each.type for each in got].count("graph.cancel") == posted


@pytest.mark.requirement("G27")
def test_multi_forwards_in_order_and_survives_one_that_raises(caplog):
    events = []
    errors_only = Collector("error")
    observer = MultiObserver(events.append, None, lambda _: 1 / 0, "noop", errors_only, events.append)
    a, b = event("node.start"), event("node.complete")
    observer(a)
    observer(b)
    assert events == [a, a, b, b]
    assert errors_only.events == []
    assert caplog.text.count("ZeroDivisionError") == 2
    assert MultiObserver(errors_only, LoggingObserver(level="warning")).level == "warning"


@pytest.mark.requirement("G33")
def test_events_below_every_level_are_not_made():
    calm, curious = Collector("warning"), Collector("info")
    outbox = Outbox([calm, curious])
    for type_ in OF_EACH_LEVEL:
        outbox.post(type_)
    outbox.close()

    assert [event.level for event in calm.events] == ["warning", "error"]
    assert [event.level for event in curious.events] == ["info", "warning", "error"]


@pytest.mark.requirement("G27")
def test_logging(caplog):
    caplog.set_level(logging.DEBUG, "graphkit.events")
    observer = LoggingObserver()
    observer(event("node.start", step=3))
    observer(event("node.state", state={}))
    message = "node.start thread='t' node='n' checkpoint='c' step=3"
    assert caplog.record_tuples == [("graphkit.events", logging.INFO, message)]
    assert caplog.records[0].event.data["step"] == 3
    caplog.clear()
    mine = LoggingObserver(logging.getLogger("graphkit.events.mine"), "verbose")
    for type_ in OF_EACH_LEVEL:
        mine(event(type_, text="y" * 1000))
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "WARNING", "ERROR"]
    assert len(caplog.records[0].getMessage()) < 600
    with pytest.raises(ValueError):
        LoggingObserver(level="loud")


@pytest.mark.requirement("G27")
def test_the_registry():
    assert isinstance(get_observer("noop"), NoOpObserver)
    assert isinstance(get_observer("logging"), LoggingObserver)
    assert isinstance(get_observer("slog"), LoggingObserver)
    register_observer("test-mine", len)
    register_observer("test-mine", print)
    with pytest.raises(CheckpointerConfigurationError, match="'logging', 'noop', 'slog'"):
        get_observer("unknown")
    for wrong in ("", None, 3):
        with pytest.raises(CheckpointerConfigurationError, match="must be a text that is not empty"):
            register_observer(wrong, print)
    with pytest.raises(CheckpointerConfigurationError, match="must be callable"):
        register_observer("test-mine", "print")
    assert get_observer("test-mine") is print


def test_what_may_be_given_as_observers():
    metrics = Metrics()
    assert observers_of(None) == ()
    assert observers_of("noop") == ()
    assert observers_of([None, "noop", NoOpObserver()]) == ()
    assert observers_of(metrics) == (metrics,)
    assert observers_of([print, None, metrics]) == (print, metrics)
    assert observers_of("slog") == (get_observer("slog"),)
    for wrong in ("unknown", [3], [asyncio.sleep]):  # nothing awaits an observer
        with pytest.raises(CheckpointerConfigurationError):
            observers_of(wrong)


def lived(metrics, events):
    """Pass events, as "type type@thread", to the metrics, one second apart."""
    start = event().timestamp
    for second, text in enumerate(events.split()):
        type_, _, thread = text.partition("@")
        one = event(type_, thread_id=thread or "t")
        metrics(one._replace(timestamp=start + timedelta(seconds=second)))


@pytest.mark.requirement("G38")
def test_metrics(tmp_path):
    metrics = Metrics()
    assert (metrics.resume_success, metrics.checkpoints_per_second) == (None, None)
    lived(
        metrics,
        "graph.start node.complete checkpoint.save retry.attempt graph.fail "
        "checkpoint.resume graph.start checkpoint.save interrupt.raised "
        "checkpoint.resume graph.start graph.fail graph.complete@unheard-of",
    )
    assert (metrics.checkpoints, metrics.failures, metrics.resumes) == (2, 2, 2)
    assert metrics.as_dict() == {
        "graph.start": 3, "node.complete": 1, "checkpoint.save": 2, "retry.attempt": 1, "graph.fail": 2,
        "checkpoint.resume": 2, "interrupt.raised": 1, "graph.complete": 1,
        "seconds": 7.0, "resume_success": 0.5, "checkpoints_per_second": 2 / 7,
    }  # fmt: skip
    assert metrics.count("graph.complete") == 1
    assert metrics.count("nothing") == 0
    saver = FileSystemSaver(tmp_path / "store", fsync="never")
    assert metrics.bytes(saver) == saver.size()
    assert metrics.bytes(saver, "t") == 0


@pytest.mark.requirement("G38")
def test_metrics_of_runs_within_runs_and_beside_each_other():
    metrics = Metrics()
    lived(
        metrics,
        "checkpoint.resume graph.start graph.start graph.complete graph.start interrupt.raised "
        "checkpoint.resume graph.start graph.complete",
    )
    assert metrics.resume_success == 1.0
    assert metrics.seconds == 1 + 1 + 4 + 1
    assert not metrics._running

    metrics = Metrics()
    lived(metrics, "graph.start@t0 graph.start@t1 graph.complete@t0 graph.complete@t1")
    assert metrics.seconds == 4.0


@pytest.mark.requirement("G26")
def test_the_documentation_has_the_table():
    page = (Path(__file__).resolve().parents[2] / "docs" / "from-other-systems.md").read_text(encoding="utf-8")
    for name, level in LEVELS.items():
        assert f"| `{name}` | {level} | {EVENTS[level][name]} |\n" in page


def test_close_in_an_observers_own_thread_does_not_wait_for_itself():
    done = []
    outbox = Outbox([lambda _: done.append(outbox.close(60))])
    outbox.post("graph.start")
    (line,) = outbox._subscriptions
    line.thread.join(60)
    assert done == [None]


@pytest.mark.requirement("G38")
def test_metrics_count_from_many_threads():
    class Watched(Counter):
        def __setitem__(self, key, value):
            were_locked.append(metrics._lock.locked())
            super().__setitem__(key, value)

    were_locked = []
    metrics = Metrics()
    metrics._counts = Watched()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(metrics, [event("checkpoint.save")] * 80))
    assert metrics.checkpoints == 80
    assert were_locked == [True] * 80
