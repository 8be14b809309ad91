"""AccessControlledSaver: what it refuses, what it leaves out, and for whom it acts."""

import asyncio
import gc
import inspect
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from graphkit import (
    END,
    START,
    BaseCheckpointSaver,
    Checkpoint,
    HasVersions,
    RunnableConfig,
    StateGraph,
    abc,
    interrupt,
)
from graphkit.abc import Watch
from graphkit.errors import (
    AccessDeniedError,
    CheckpointCorruptionError,
    CheckpointerConfigurationError,
    CheckpointNotFoundError,
)
from graphkit.operations import answer, fork, rollback, submit, update
from graphkit.saver_kit import get_principal
from graphkit.testing import made
from graphkit.worker import Worker
from savers import (
    DESTROYED,
    AccessControlledSaver,
    FileSystemSaver,
    MemorySaver,
    SaverWrapper,
    SubjectKeys,
    ValidatingSaver,
    acting_as,
    policies,
)
from tests.support.checkpoints import make_interrupt
from tests.support.graphs import invoke, make_chain, make_graph, payloads_of
from tests.support.interruptions import interrupt_signal_point

pytestmark = pytest.mark.requirement("P71")

SECRET = "xyzzy"
FREE = {"close", "erase_deleted", "exists", "flush", "opener", "register_types", "run_lock_key"}
"""The methods that neither read nor change a thread."""
OF_MANY = {"threads"}
"""The methods that are only about several threads."""


class Recording:
    """Allows everything but some operations; notes what it was asked."""

    def __init__(self, *refused):
        self.refused = refused
        self.asked = []

    def __call__(self, *question):
        self.asked.append(question)
        return question[1] not in self.refused


def is_refused(call, *arguments):
    """Whether the policy refuses a call."""
    try:
        call(*arguments)
    except AccessDeniedError:
        return True
    return False


def put_as(principal, saver, thread, **state):
    with acting_as(principal):
        saver.put(thread, made(state or {"n": 1}))


def operations():
    """Every operation of the contract and of the capabilities, by introspection."""
    contracts = [BaseCheckpointSaver, HasVersions]
    contracts += [getattr(abc, name) for name in abc.__all__ if name.startswith("Supports")]
    found = {}
    for contract in contracts:
        for name, member in inspect.getmembers(contract, inspect.isfunction):
            is_operation = not name.startswith("_") and name == member.__name__
            if is_operation and name not in {"check_access", "threadId"}:
                found.setdefault(name, member)
    return found


OPERATIONS = operations()
ASYNC = sorted(
    name
    for name, member in OPERATIONS.items()
    if inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
)
SYNC = sorted({*OPERATIONS}.difference(ASYNC))
ARGUMENTS = {
    "config": RunnableConfig("t"),
    "thread": "t",
    "thread_id": "t",
    "source": "t",
    "target": "new",
    "checkpoint": made({"n": 2}),
    "writes": {"k": SECRET},
    "tags": "label",
    "metadata": {"owner": "ann"},
    "limit": 1,
    "ids": ["none"],
    "idle_since": datetime.now(UTC) + timedelta(days=1),
    "retention": 1,
}


def call(saver, name, **changes):
    """Call an operation on the thread "t"."""
    values = {**ARGUMENTS, **changes}
    args, options = [], {}
    for parameter in list(inspect.signature(OPERATIONS[name]).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            options["keep_last"] = values[parameter.name]
        elif parameter.default is parameter.empty or parameter.name in {"config", "thread", "thread_id"}:
            if parameter.kind is parameter.KEYWORD_ONLY:
                options[parameter.name] = values[parameter.name]
            else:
                args.append(values[parameter.name])
    result = getattr(saver, name)(*args, **options)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    if inspect.isasyncgen(result):
        result = asyncio.run(anext(result))
    if inspect.isgenerator(result):
        result = list(result)
    return result


@pytest.fixture
def store(tmp_path):
    """A store with a thread that has all kinds of content, and with one more."""
    saver = FileSystemSaver(tmp_path, fsync="never")
    fill(saver)
    yield saver
    saver.close()


def fill(saver):
    for thread in ("t", "other"):
        saver.put(RunnableConfig(thread), made({"text": SECRET}))
        saver.release(thread)
        config = saver.put(RunnableConfig(thread), made({"text": SECRET}, metadata={"owner": "ann"}))
        saver.put_writes(config, {"k": SECRET})
        saver.add_tags(config, "label")
        saver.put(RunnableConfig(thread, checkpoint_ns="sub"), made({"text": SECRET}))


def snapshot(saver):
    """All that is stored."""
    found = {}
    for thread in saver.threads(released=True):
        found[thread, "versions"] = saver.versions_by_thread_id(thread)
        for namespace in saver.namespaces(thread):
            config = RunnableConfig(thread, checkpoint_ns=namespace)
            writes = dict(saver.get_writes(config))
            tags = {info.id: info.tags for info in saver.history(config)}
            found[thread, namespace] = writes, tags
    return found


# Every operation


def test_every_operation_is_refused_and_changes_nothing(store):
    before = snapshot(store)
    for name in sorted({*OPERATIONS} - FREE - OF_MANY - {"rotate"}):
        operation = name if name in SYNC else name[1:]
        policy = Recording(operation)
        saver = AccessControlledSaver(store, policy)

        with acting_as("bob"), pytest.raises(AccessDeniedError) as caught:
            call(saver, name)

        error = caught.value
        assert (error.operation, error.thread_id, error.principal) == (operation, "t", "'bob'")
        assert SECRET not in str(error)
        assert policy.asked == [("bob", operation, "t", "")]
        assert snapshot(store) == before, name


@pytest.mark.parametrize("name", sorted({*SYNC} - FREE - OF_MANY - {"rotate"}))
def test_an_operation_asks_under_its_own_name_only(store, name):
    policy = Recording()
    with acting_as("ann"):
        call(AccessControlledSaver(store, policy), name)
    questions = {("ann", name, "t")}
    if name == "copy":
        questions.add(("ann", "put", "new"))
    assert {question[:3] for question in policy.asked} == questions
    if name != "watch":  # which asks again about each change
        assert len(policy.asked) == len(set(policy.asked))


def test_without_a_thread_nothing_of_a_refused_one_is_touched(store):
    before = snapshot(store)
    saver = AccessControlledSaver(store, lambda _, operation, thread_id, checkpoint_ns: thread_id not in {"t", "other"})
    for name in sorted({*SYNC} - FREE - {"copy", "rotate"}):
        with suppress(CheckpointNotFoundError):  # of the default thread
            call(saver, name, config=None, thread=None, thread_id=None)
        found = {key: value for key, value in snapshot(store).items() if key[0] != "$default"}
        assert found == before, name


def test_what_touches_no_thread_is_not_asked(store):
    policy = Recording()
    saver = AccessControlledSaver(store, policy)
    for name in sorted(FREE):
        getattr(saver, name, lambda: None)()  # a capability that this saver need not have
    assert policy.asked == []


def test_the_thread_may_be_given_by_keyword(store):
    saver = AccessControlledSaver(store, lambda principal, operation, thread_id, checkpoint_ns: thread_id != "t")
    assert is_refused(lambda: saver.recent(config="t", limit=1))
    assert is_refused(lambda: saver.namespaces(thread="t"))
    assert saver.recent(config="other", limit=1)
    assert saver.namespaces(thread="other")


# What a policy may be


@pytest.mark.parametrize("given", [1, "yes", object(), None, False, [True], "a coroutine"])
def test_only_true_allows(given):
    def policy(*question):
        return asynchronous(*question) if given == "a coroutine" else given

    saver = AccessControlledSaver(MemorySaver(), policy)
    assert is_refused(saver.get, "t")
    assert saver.threads() == []


def test_a_policy_that_raises_refuses(caplog):
    def fail(*_):
        raise KeyError(SECRET)

    inner = MemorySaver()
    inner.put("t", made({"n": 1}))
    saver = AccessControlledSaver(inner, fail)
    with pytest.raises(AccessDeniedError) as caught:
        saver.put("t", made({"n": 2}))
    assert SECRET not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(inner.list("t")) == 1
    assert saver.threads() == []
    assert "the access policy failed" in caplog.text


async def asynchronous(principal, operation, thread_id, checkpoint_ns):
    return True


def test_what_is_no_policy_is_refused_when_the_wrapper_is_built():
    for policy in (asynchronous, policies.owner, "owner"):
        with pytest.raises(CheckpointerConfigurationError):
            AccessControlledSaver(MemorySaver(), policy)


def test_the_error_names_principal_and_operation_and_pickles():
    saver = AccessControlledSaver(MemorySaver(), lambda *_: False)
    with pytest.raises(PermissionError, match=r"nobody is named as principal.*acting_as") as caught:
        saver.get(RunnableConfig("t", checkpoint_ns="sub"))
    assert "'sub'" in str(caught.value)

    class Token:
        def __repr__(self):
            return SECRET

    with acting_as(Token()), pytest.raises(AccessDeniedError, match="of type Token may not get thread 't'") as caught:
        saver.get("t")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# What is left out


@pytest.fixture
def two(tmp_path):
    """A saver in which each of two principals has threads, guarded by their prefixes."""
    with FileSystemSaver(tmp_path, fsync="never") as inner:
        for thread in ("ann/1", "ann/2", "bob/1", "b2/1"):
            config = inner.put(RunnableConfig(thread), made({"n": 1}, metadata={"kind": "order"}))
            inner.put_writes(config, {"interrupt:i": make_interrupt(payload=thread)})
        yield AccessControlledSaver(inner, policies.prefix({"ann": "ann/", "bob": ["bob/", "b2/"]}))


def threads_of(found):
    return {each.thread_id for each in found}


def test_listings_searches_and_counts_have_what_may_be_read(two):
    orders = {"kind": "order"}
    with acting_as("ann"):
        assert sorted(two.threads()) == ["ann/1", "ann/2"]
        assert threads_of(two.search(orders)) == {"ann/1", "ann/2"}
        assert len(two.search(orders, limit=2)) == 2
        assert len(two.search({}, limit=1)) == 1
        assert threads_of(two.interrupts()) == {"ann/1", "ann/2"}
        size = two.size()
        assert size == two.size("ann/1") + two.size("ann/2")
        assert size < two.delegate.size()
    with acting_as("bob"):
        assert sorted(two.threads()) == ["b2/1", "bob/1"]
        assert is_refused(lambda: two.search({}, thread_id="ann/1"))
        with pytest.raises(ValueError, match="limit"):
            two.search({}, limit=-1)
    with acting_as("eve"):
        assert two.threads() == []
        assert two.search({}) == []
        assert two.interrupts() == []
    assert two.threads() == []
    assert repr(two).startswith("AccessControlledSaver(FileSystemSaver, prefix("), "no path, and no count"


def test_operations_on_all_threads_touch_the_allowed_ones(two):
    for thread in two.delegate.threads():
        two.delegate.put(thread, made({"n": 2}))
    later = datetime.now(UTC) + timedelta(days=1)
    seen = []

    def note(*step):
        seen.append(step)

    with acting_as("ann"):
        assert two.prune(keep_last=1, keep_interrupted=False) == 2
        assert two.delete_idle(idle_since=later, dry_run=True) == ["ann/1", "ann/2"]
        assert two.delete_idle(idle_since=later, progress=note) == ["ann/1", "ann/2"]
    assert seen == [(1, 2, "ann/1"), (2, 2, "ann/2")]
    for thread in ("bob/1", "b2/1"):
        assert len(two.delegate.list(thread)) == 2


def test_a_wrong_option_is_refused_also_if_no_thread_is_allowed(two):
    with acting_as("eve"):
        for call in (two.delete_idle, partial(two.compact, dry=True), partial(two.verify, thread_id="ann/1")):
            with pytest.raises(TypeError):
                call()


def test_reports_are_about_what_may_be_read(two):
    seen = []
    with acting_as("bob"):
        report = two.verify(progress=lambda *each: seen.append(each[2]))
        assert sorted(seen) == sorted(each.thread_id for each in report.threads) == ["b2/1", "bob/1"]
        assert two.compact() == 0
        assert two.repair().files == ()


def test_a_copy_needs_both(two):
    with acting_as("ann"):
        for source, target in (("bob/1", "ann/3"), ("ann/1", "bob/3")):
            assert is_refused(two.copy, source, target)
            assert target not in two.delegate.threads()
        two.copy("ann/1", "ann/3")
    assert "ann/3" in two.delegate.threads()


def take(watch, kind, count):
    """The threads of the next changes of a kind."""
    found = []
    while len(found) < count:
        change = watch.get(60)
        if change.kind == kind:
            found.append(change.thread_id)
    return found


def test_a_watch_reports_what_may_be_read(two):
    with acting_as("ann"):
        watch = two.watch(latest=True, interval=0.01)
        assert is_refused(two.watch, "bob/1")
    with watch:  # by code that acts for nobody: the principal is that of the call
        assert sorted(take(watch, "checkpoint", 2)) == ["ann/1", "ann/2"]
        threads = ("bob/1", "ann/1", "bob/new", "ann/new")
        for thread in threads:
            two.delegate.put(thread, made({"n": 2}))
        assert take(watch, "checkpoint", 2) == ["ann/1", "ann/new"]
        for thread in threads:
            two.delegate.delete(thread)
        assert sorted(take(watch, "delete", 2)) == ["ann/1", "ann/new"]
        watch.wake()
        assert watch.get() is None

    assert watch.get() is None
    assert list(watch) == []
    outer = AccessControlledSaver(two, policies.prefix({"ann": ["ann/2", "b2/"]}))
    with acting_as("ann"), outer.watch(latest=True, interval=0.01) as watch:
        assert take(watch, "checkpoint", 1) == ["ann/2"]
        assert watch.get(0).thread_id == "ann/2"
        assert watch.get(0) is None


def test_a_watch_until_a_status_waits_for_what_may_be_read(two):
    for thread in ("ann/1", "ann/2"):
        two.delegate.put(thread, Checkpoint(node_id="a", next_node_id=END, state={"n": 2}))
    with acting_as("ann"):
        watch = two.watch(interval=0.01, until="finished")
        with pytest.raises(CheckpointerConfigurationError):
            two.watch(until="done")
    for change in watch:
        assert change.thread_id.startswith("ann/")
    assert watch.reached == "finished"


def test_a_watch_that_cannot_be_filtered_is_refused():
    class All(Watch):
        def get(self, timeout=None):
            return SECRET

        def _read_changes(self):
            yield from ()

    class Watched(MemorySaver):
        def watch(self, thread=None, *, latest=False, interval=1.0, until=None):
            return All(interval)

    saver = AccessControlledSaver(Watched(), policies.read_only())
    with pytest.raises(CheckpointerConfigurationError, match="get"):
        saver.watch()


async def test_an_async_watch_acts_for_its_caller(two):
    with acting_as("ann"):
        changes = two.awatch(latest=True, interval=0.05)
        found = {(await anext(changes)).thread_id for _ in range(4)}
        await changes.aclose()
    assert found == {"ann/1", "ann/2"}


def test_namespaces_can_be_refused(store):
    saver = AccessControlledSaver(store, lambda principal, operation, thread_id, checkpoint_ns: checkpoint_ns != "sub")
    assert saver.namespaces("t") == saver.version_namespaces("t") == [""]
    assert {info.checkpoint_ns for info in saver.search({})} == {""}
    assert is_refused(saver.get, RunnableConfig("t", checkpoint_ns="sub"))
    assert is_refused(saver.copy, "t", "new")

    for operation in (saver.delete, saver.release, saver.size, saver.verify):
        with pytest.raises(AccessDeniedError) as caught:
            operation("t")
        assert "sub" not in str(caught.value)

    assert saver.prune(keep_last=1) == 0
    assert store.namespaces("t") == ["", "sub"]


class Damaged(MemorySaver):
    """Cannot read one thread, and says so."""

    def history(self, config=None):
        if RunnableConfig.of(config).thread == "bob/1":
            raise CheckpointCorruptionError("store/bob/1", 7, "a checksum is wrong")
        return super().history(config)

    def interrupts(self, thread_id=None):
        if thread_id in {None, "bob/1"}:
            raise CheckpointCorruptionError("store/bob/1", 7, "a checksum is wrong")
        return super().interrupts(thread_id)

    def search(self, metadata, *, thread_id=None, limit=None):
        return BaseCheckpointSaver.search(self, metadata, thread_id=thread_id, limit=limit)


def test_an_error_names_no_thread_that_may_not_be_read():
    inner = Damaged()
    for thread in ("ann/1", "bob/1"):
        inner.put(thread, made({"n": 1}))
    saver = AccessControlledSaver(inner, policies.prefix({"ann": "ann/", "bob": "bob/"}))
    with acting_as("ann"):
        assert [info.thread_id for info in saver.search({})] == ["ann/1"]
        assert saver.interrupts() == []
    with acting_as("bob"), pytest.raises(CheckpointCorruptionError):
        saver.search({})


# For whom


def test_the_principal_of_the_config_wins():
    policy = Recording()
    saver = AccessControlledSaver(MemorySaver(), policy)
    saver.get("t")
    with acting_as("ann"):
        saver.get("t")
        saver.get(RunnableConfig("t").with_principal("bob"))
        saver.get({"configurable": {"thread_id": "t", "principal": "cid"}})
        saver.get(RunnableConfig("t").with_principal(None))
        with acting_as(None):
            saver.get("t")
        saver.threads()
        saver.namespaces({"configurable": {"thread_id": "t", "principal": None}})
    assert [question[0] for question in policy.asked] == [None, "ann", "bob", "cid", None, None, None]


def test_a_config_keeps_its_principal_which_is_no_part_of_its_value():
    bare = RunnableConfig("t")
    config = bare.with_principal("ann")
    pickled = pickle.loads(pickle.dumps(config))

    assert pickled.principal == config.replace(checkpoint_ns="n").principal == "ann"
    assert config["configurable"]["principal"] == "ann"
    assert config == bare
    assert "ann" not in repr(config)
    assert "principal" not in bare["configurable"]
    assert pickle.loads(pickle.dumps(bare)).principal is bare.principal
    assert RunnableConfig.of({"configurable": {"thread_id": "t", "principal": "ann"}}).metadata == {}


def make_app(saver, *, options=None, **nodes):
    return make_chain({}, **nodes).compile(checkpoint_saver=saver, **(options or {}))


class Principals(list):
    """A node that lists the principals for whom it runs."""

    def __call__(self, state):
        self.append(get_principal())
        return {}


RUN = {"get", "get_writes", "put", "put_writes", "run_lock"}


@pytest.mark.parametrize("operation", sorted(RUN))
def test_a_run_that_lacks_a_right_fails_before_its_first_node(operation):
    inner, ran = MemorySaver(), Principals()
    app = make_app(AccessControlledSaver(inner, Recording(operation)), a=ran)

    for how in ("sync", "async"):
        with pytest.raises(AccessDeniedError) as caught:
            invoke(app, {"n": 1}, "t", how=how)
        assert caught.value.operation == operation
    assert ran == []
    assert list(inner.threads()) == []


@pytest.mark.parametrize(
    ("options", "operation"), [({"release_thread": True}, "release"), ({"preserve": False}, "delete")]
)
def test_a_run_asks_for_what_its_options_need(options, operation):
    inner, policy = MemorySaver(), Recording(operation)
    app = make_app(AccessControlledSaver(inner, policy), options=options, a=Principals())
    with pytest.raises(AccessDeniedError, match=operation):
        app.invoke({"n": 1}, "t")
    policy.refused = ()
    app.invoke({"n": 1}, "t")
    assert list(inner.threads()) == []


def test_a_run_asks_for_its_nested_graphs():
    def policy(principal, operation, thread_id, checkpoint_ns):
        return checkpoint_ns != "sub" or operation != "put"

    ran = Principals()
    saver = MemorySaver()
    app = make_app(AccessControlledSaver(saver, policy), a=ran, sub=make_app(None, b=ran))
    with pytest.raises(AccessDeniedError) as caught:
        app.invoke({"n": 1}, "t")
    assert caught.value.checkpoint_ns == "sub"
    own = make_app(AccessControlledSaver(saver, Recording("run_lock")), b=ran)
    app = make_app(MemorySaver(), a=ran, sub=own)
    with pytest.raises(AccessDeniedError, match="run_lock"):
        app.invoke({"n": 1}, "t")
    assert ran == []


def test_a_run_asks_for_a_lock_only_where_it_takes_one():
    def policy(principal, operation, thread_id, checkpoint_ns):
        return operation != "run_lock" or checkpoint_ns.count("/") == 0

    saver, own = (AccessControlledSaver(MemorySaver(), policy) for _ in range(2))
    for innermost in (saver, own):
        middle = make_app(own, inner=make_app(innermost, b=Principals()))
        assert make_app(saver, middle=middle).invoke({"n": 1}, "t")["n"] == 1


def test_the_check_reaches_through_wrappers():
    inner, ran = AccessControlledSaver(MemorySaver(), Recording("put_writes")), Principals()
    for saver in (SaverWrapper(inner), ValidatingSaver(inner), AccessControlledSaver(inner, lambda *_: True)):
        with pytest.raises(AccessDeniedError, match="put_writes"):
            make_app(saver, a=ran).invoke({"n": 1}, "t")
    assert ran == []


@pytest.mark.parametrize(("durability", "how"), [("sync", "async"), ("async", "sync"), ("exit", "sync")])
def test_it_reaches_all_threads_of_a_run(durability, how):
    policy = Recording()
    saver = AccessControlledSaver(MemorySaver(), policy)
    seen = []

    def node(state, config):
        seen.append((get_principal(), config.principal))
        config.once("k", lambda: saver.get("elsewhere"))
        return {}

    graph = make_graph({}, "START>a a>b,c b>d c>d d>END", **dict.fromkeys("abcd", node))
    app = graph.compile(checkpoint_saver=saver, durability=durability)

    def run(name, config):
        with ThreadPoolExecutor(2) as pool:
            invoke(app, {"n": 1}, RunnableConfig.of(config).replace(executor=pool), how=how)
        assert seen == [(name, name)] * 4
        assert {principal for principal, *_ in policy.asked} == {name}
        seen.clear()
        policy.asked.clear()

    run("ann", RunnableConfig("t").with_principal("ann"))
    with acting_as("bob"):
        run("bob", "t")
        run("ann", {"configurable": {"thread_id": "t2", "principal": "ann"}})
    for thread in ("t", "t2"):
        for checkpoint in saver.delegate.list(thread):
            writes = saver.delegate.get_writes(RunnableConfig(thread, checkpoint.id))
            stored = repr((checkpoint.metadata, checkpoint.state, writes))
            assert "ann" not in stored
            assert "bob" not in stored


def test_a_stream_acts_for_the_one_who_began_it():
    policy, seen = Recording(), Principals()
    app = make_app(AccessControlledSaver(MemorySaver(), policy), a=seen)
    with acting_as("ann"):
        stream = app.stream({"n": 1}, "t")
    nobody = app.stream({"n": 1}, "t2")
    with acting_as("eve"):
        list(stream)
        list(nobody)
        assert get_principal() == "eve"
    assert {(question[0], question[2]) for question in policy.asked} == {("ann", "t"), (None, "t2")}
    assert seen == ["ann", None]


def test_it_holds_in_a_node_with_a_timeout_which_may_act_for_another():
    seen = Principals()
    inner = make_app(MemorySaver(), b=seen)

    def node(state):
        with acting_as("service"):
            inner.invoke({}, "inner")
        return seen(state)

    app = make_app(MemorySaver(), options={"timeout": 5}, a=node)
    app.invoke({}, RunnableConfig("t").with_principal("ann"))
    assert seen == ["service", "ann"]


def once_in_another_process(state, config):
    return {"seen": config.once("k", get_principal)}


def test_it_reaches_other_processes(tmp_path):
    with FileSystemSaver(tmp_path, fsync="never") as inner, ProcessPoolExecutor(1) as pool:
        graph = StateGraph({}).add_node("a", once_in_another_process, executor=pool)
        saver = AccessControlledSaver(inner, policies.prefix({"ann": "t"}))
        app = graph.add_edge(START, "a").add_edge("a", END).compile(checkpoint_saver=saver)
        state = app.invoke({}, RunnableConfig("t").with_principal("ann"))
    assert state["seen"] == "ann"


def test_what_an_opener_opens_is_guarded(tmp_path):
    with FileSystemSaver(tmp_path, fsync="never") as inner:
        inner.put("t", made({"n": 1}))
        guarded = AccessControlledSaver(inner, policies.prefix({"ann": "t"}))
        opener = pickle.loads(pickle.dumps(guarded.opener()))
        assert AccessControlledSaver(inner, lambda *_: True).opener() is None

    with opener() as saver:
        assert is_refused(saver.get, "t")
        with acting_as("ann"):
            assert saver.get("t").state == {"n": 1}


def test_operations_on_threads_act_for_the_principal_of_their_config():
    inner = MemorySaver()
    saver = AccessControlledSaver(inner, policies.owner())
    app = make_app(saver, a=lambda state: {"x": interrupt(SECRET)})
    ann, bob = (RunnableConfig("t").with_principal(name) for name in ("ann", "bob"))

    assert is_refused(submit, saver, {"n": 1}, "t")
    assert submit(saver, {"n": 1}, ann).principal == "ann"
    app.invoke(None, ann)

    with acting_as("ann"):  # a snapshot that is read later
        snapshot = app.get_state("t")
    assert payloads_of(snapshot) == [SECRET]
    assert is_refused(app.get_state, "t")
    assert is_refused(answer, saver, "t", 1)
    assert is_refused(app.update_state, "t", {"n": 3})
    assert is_refused(app.resume, "t")
    assert is_refused(update, saver, bob, {"n": 1})
    assert is_refused(fork, saver, "t", "t2")

    update(saver, ann, {"n": 2})
    assert answer(saver, ann, 7).payload == SECRET
    assert fork(saver, ann, "t2").config.principal == "ann"
    assert app.resume(ann)["x"] == 7

    first = inner.list("t")[-1]
    rollback(saver, ann.with_check_point_id(first.id))
    checkpoints = [*inner.list("t"), *inner.list("t2")]
    assert {checkpoint.metadata["owner"] for checkpoint in checkpoints} == {"ann"}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_worker_serves_what_its_principal_may_use(concurrency):
    inner, seen = MemorySaver(), Principals()
    saver = AccessControlledSaver(inner, policies.prefix({"ann": "ann/", "bob": "bob/"}))
    app = make_app(saver, options={"graph_id": "g"}, a=seen)
    for name in ("ann", "bob"):
        with acting_as(name):
            submit(saver, {"n": 1}, f"{name}/1", graph_id="g")

    with acting_as("ann"):
        Worker(saver, {"g": app}, concurrency=concurrency).run(once=True)

    assert seen == ["ann"]
    statuses = [inner.summary(thread).latest.status for thread in ("ann/1", "bob/1")]
    assert statuses == ["finished", "queued"]


@pytest.mark.parametrize(("operation", "may_roll_back"), [("put_writes", False), ("add_tags", True)])
def test_what_needs_several_rights_asks_for_all_of_them_first(operation, may_roll_back):
    inner = MemorySaver()
    app = make_app(inner, a=lambda state: {"x": interrupt(SECRET)})
    app.invoke({"n": 1}, "t")
    stopped = app.get_state("t").config
    saver = AccessControlledSaver(inner, Recording(operation))
    assert is_refused(fork, saver, stopped, "t2")
    assert list(inner.threads()) == ["t"]
    if not may_roll_back:
        assert is_refused(rollback, saver, stopped)
    assert len(inner.list("t")) == 1


async def test_it_does_not_bleed_into_other_tasks_and_threads():
    policy = Recording()
    saver = AccessControlledSaver(MemorySaver(), policy)

    async def act(principal, steps):
        with acting_as(principal):
            for _ in range(steps):
                await saver.aget(principal)
                await asyncio.sleep(0)

    await asyncio.gather(*(act(f"p{n}", 5) for n in range(8)), saver.aget("None"))
    assert all(str(principal) == thread for principal, _, thread, _ in policy.asked)
    assert len(policy.asked) == 41
    with acting_as("ann"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(get_principal).result() is None
    assert get_principal() is None


# The ready policies


@pytest.fixture
def owned(tmp_path):
    with FileSystemSaver(tmp_path, fsync="never") as inner:
        yield AccessControlledSaver(inner, policies.owner())


def test_a_thread_belongs_to_the_one_who_put_first(owned):
    with acting_as("ann"):
        assert owned.get("t") is None
        owned.put("t", made({"n": 1}, metadata={"owner": "bob", "k": 1}))
        owned.put(RunnableConfig("t", checkpoint_ns="sub"), made({"n": 1}))
        assert owned.get("t").metadata == {"owner": "ann", "k": 1}
        assert sorted(info.checkpoint_ns for info in owned.search({"owner": "ann"})) == ["", "sub"]


@pytest.mark.parametrize("principal", ["bob", None])
def test_a_thread_is_refused_to_others_than_its_owner(owned, principal):
    put_as("ann", owned, "ann's")
    owned.delegate.put("nobody's", made({"n": 1}))
    with acting_as(principal):
        for thread in ("ann's", "nobody's"):
            for operation in (owned.get, owned.delete, owned.release, owned.list, owned.history):
                assert is_refused(operation, thread)
            assert is_refused(owned.put, thread, made({"n": 2}))
        assert owned.threads() == []

    assert is_refused(owned.put, "new", made({"n": 1})), "nobody owns no thread"


def test_what_was_released_still_has_its_owner(owned):
    put_as("ann", owned, "t")
    with acting_as("ann"):
        owned.release("t")
        assert owned.get("t") is None
    with acting_as("bob"):
        for operation in (owned.tag, owned.get, owned.versions_by_thread_id):
            assert is_refused(operation, "t")
    assert is_refused(put_as, "bob", owned, "t")
    with acting_as("ann"):
        assert owned.tag("t").checkpoints[0].state == {"n": 1}
        owned.delete("t")
    put_as("bob", owned, "t")


def test_a_thread_whose_key_was_destroyed_belongs_to_no_principal(tmp_path, caplog):
    pytest.importorskip("cryptography")
    keys = {"current": bytes(32), "old": bytes(range(32))}
    cipher = SubjectKeys(keys, key_for=lambda thread, metadata: "old")
    with FileSystemSaver(tmp_path, fsync="never", cipher=cipher) as inner:
        put_as("ann", AccessControlledSaver(inner, policies.owner()), "t")

    destroyed = {**keys, "old": DESTROYED}
    with FileSystemSaver(tmp_path, fsync="never", cipher=destroyed) as inner, acting_as("ann"):
        owned = AccessControlledSaver(inner, policies.owner())
        assert is_refused(owned.delete, "t")
        assert owned.threads() == []
        assert inner.threads() == ["t"]

    assert caplog.messages == [], "the policy does not fail"


def test_two_who_put_first_do_not_share_a_thread(owned):
    """Both have asked before either has put."""
    both = threading.Barrier(2)
    policy = owned.policy

    class Racing:
        asked = 0

        def __call__(self, principal, operation, thread_id, checkpoint_ns):
            allowed = policy(principal, operation, thread_id, checkpoint_ns)
            self.asked += 1
            if allowed and self.asked <= 2:
                both.wait(60)
            return allowed

        metadata_of = policy.metadata_of

    saver = AccessControlledSaver(owned.delegate, Racing())
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda name: is_refused(put_as, name, saver, "t"), ("ann", "bob")))
    assert sorted(outcomes) == [False, True]
    assert len(owned.delegate.list("t")) == 1


def test_after_a_signal_at_any_point_of_a_run_a_first_put_holds_the_run_lock():
    """It keeps out the first put of another process. While a run goes on, it holds the lock itself."""
    inner = MemorySaver()
    seen = []

    class Looking:
        metadata_of = policies.owner().metadata_of

        def __call__(self, principal, operation, thread_id, checkpoint_ns):
            seen.append(inner.is_run_locked(thread_id))
            return True

    saver = AccessControlledSaver(inner, Looking())

    def hold():
        with saver.run_lock("t"):
            pass

    number = 1
    while interrupt_signal_point(hold, number) is not None:
        gc.collect(1)
        put_as("ann", saver, "t")
        assert seen[-1], f"interrupted at {number}"
        inner.delete("t")
        number += 1
    assert number > 30


def test_a_run_makes_a_thread_of_its_own(owned):
    app = make_app(owned, options={"durability": "async"}, a=Principals(), b=Principals())
    with acting_as("ann"):
        app.invoke({"n": 1}, "t")
    with acting_as("bob"):
        assert is_refused(app.invoke, {"n": 1}, "t")
    with acting_as("ann"), owned.run_lock("u"):
        with owned.run_lock("u"):
            pass
        # A thread of execution that does not hold the lock itself, as that of a run's writer.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(put_as, "ann", owned, "u").result()

    checkpoints = [*owned.delegate.list("t"), *owned.delegate.list("u")]

    assert {checkpoint.metadata["owner"] for checkpoint in checkpoints} == {"ann"}


def test_a_watch_of_all_does_not_tell_that_the_thread_of_another_was_deleted(owned):
    put_as("ann", owned, "ann's")
    put_as("bob", owned, "bob's")
    with acting_as("bob"):
        watch = owned.watch(interval=0.01)
    with watch:
        owned.delegate.delete("ann's")
        owned.delegate.delete("bob's")
        assert take(watch, "delete", 1) == ["bob's"]


def test_an_owner_policy_is_for_one_saver():
    policy = policies.owner(key="tenant")
    inner = MemorySaver()
    AccessControlledSaver(inner, policy)
    AccessControlledSaver(inner, policy)
    with pytest.raises(CheckpointerConfigurationError, match="another saver"):
        AccessControlledSaver(MemorySaver(), policy)
    assert repr(pickle.loads(pickle.dumps(policy))) == repr(policy) == "owner(key='tenant')"


def test_prefixes():
    policy = policies.prefix({"ann": "a/", "bob": ["b/", "c/"], "root": "", "none": []})

    def allowed(principal):
        return [thread for thread in ("a/1", "c/1", "x") if policy(principal, "get", thread, "")]

    assert [allowed("ann"), allowed("bob"), allowed("root")] == [["a/1"], ["c/1"], ["a/1", "c/1", "x"]]
    assert allowed("none") == allowed(None) == []

    with pytest.raises(CheckpointerConfigurationError):
        policies.prefix({"ann": [1]})


def test_a_principal_that_cannot_be_a_key_has_no_prefix():
    with acting_as(["not hashable"]):
        assert is_refused(AccessControlledSaver(MemorySaver(), policies.prefix({"ann": "a/"})).get, "a/1")


def test_read_only_knows_every_operation():
    changing = {
        "add_tags", "compact", "delete", "delete_idle", "prune", "put", "put_writes", "release", "remove",
        "remove_tags", "repair", "rotate", "run_lock",
    }  # fmt: skip
    assert policies.READING | changing == {*SYNC} - FREE
    assert not policies.READING & changing
    policy = policies.read_only()
    assert all(policy(None, name, "t", "") is (name in policies.READING) for name in SYNC if name not in FREE)
    assert repr(policy) == "read_only()"
