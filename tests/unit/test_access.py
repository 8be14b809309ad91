"""AccessControlledSaver: what it refuses, what it leaves out, and for whom it acts."""

import asyncio
import inspect
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

import savers
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
from graphkit.transfer import copy_threads
from graphkit.worker import Worker
from savers import (
    DESTROYED,
    AccessControlledSaver,
    FileSystemSaver,
    MemorySaver,
    SaverWrapper,
    SqliteSaver,
    SubjectKeys,
    ValidatingSaver,
    VersionedMemorySaver,
    acting_as,
    policies,
)

pytestmark = pytest.mark.requirement("P71")

SECRET = "xyzzy"
FREE = {"close", "erase_deleted", "exists", "flush", "opener", "register_types", "run_lock_key"}
"""The methods that neither read nor change a thread."""
OF_MANY = {"threads"}
"""The methods that are only about several threads."""
ALL_OR_ONE = {"compact", "delete_idle", "interrupts", "prune", "repair", "rotate", "search", "size", "verify", "watch"}
"""The methods that are about all threads without one."""


def allow_all(principal, operation, thread_id, checkpoint_ns):
    return True


def refuse_all(principal, operation, thread_id, checkpoint_ns):
    return False


class Recording:
    """Allows everything but some operations; notes what it was asked."""

    def __init__(self, *refused):
        self.refused = refused
        self.asked = []

    def __call__(self, *question):
        self.asked.append(question)
        return question[1] not in self.refused

    @property
    def operations(self):
        return {operation for _, operation, _, _ in self.asked}


def operations():
    """Every operation of the contract and of the capabilities, by introspection."""
    contracts = [BaseCheckpointSaver, HasVersions]
    contracts += [getattr(abc, name) for name in abc.__all__ if name.startswith("Supports")]
    found = {}
    for contract in contracts:
        for name, member in inspect.getmembers(contract, inspect.isfunction):
            if not name.startswith("_") and name == member.__name__ and name not in {"check_access", "threadId"}:
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
        for namespace in saver.namespaces(thread):
            config = RunnableConfig(thread, checkpoint_ns=namespace)
            found[thread, namespace] = [(info.id, info.tags) for info in saver.history(config)]
            found[thread, namespace, "writes"] = dict(saver.get_writes(config))
        found[thread, "versions"] = saver.versions_by_thread_id(thread)
    return found


# Every operation


def test_every_operation_is_known_to_these_tests():
    guarded = {name for name in SYNC if name not in FREE}
    assert {"get", "put", "watch", "replay", "repair", "tag", "wait_for_resume"} <= guarded
    assert {name[1:] for name in ASYNC} < {*SYNC}


@pytest.mark.parametrize("name", sorted({*OPERATIONS} - FREE - OF_MANY - {"rotate"}))
def test_every_operation_is_refused_and_changes_nothing(store, name):
    before = snapshot(store)
    operation = name if name in SYNC else name[1:]
    policy = Recording(operation)
    saver = AccessControlledSaver(store, policy)
    with acting_as("bob"), pytest.raises(AccessDeniedError) as caught:
        call(saver, name)
    assert (caught.value.operation, caught.value.thread_id, caught.value.principal) == (operation, "t", "'bob'")
    assert SECRET not in str(caught.value)
    assert policy.asked == [("bob", operation, "t", "")]
    assert snapshot(store) == before


@pytest.mark.parametrize("name", sorted({*SYNC} - FREE - OF_MANY - {"rotate"}))
def test_an_operation_asks_under_its_own_name_only(store, name):
    policy = Recording()
    with acting_as("ann"):
        call(AccessControlledSaver(store, policy), name)
    assert policy.operations == ({"copy", "put"} if name == "copy" else {name})
    assert {question[0] for question in policy.asked} == {"ann"}
    assert {question[2] for question in policy.asked} == ({"t", "new"} if name == "copy" else {"t"})


@pytest.mark.parametrize("name", sorted({*SYNC} - FREE - {"copy", "rotate"}))
def test_without_a_thread_nothing_of_a_refused_one_is_touched(store, name):
    before = snapshot(store)

    def policy(principal, operation, thread_id, checkpoint_ns):
        return thread_id not in {"t", "other"}

    saver = AccessControlledSaver(store, policy)
    changes = {"config": None, "thread": None, "thread_id": None}
    with suppress(CheckpointNotFoundError):  # of the default thread
        call(saver, name, **changes)
    found = snapshot(store)
    assert {key: value for key, value in found.items() if key[0] != "$default"} == before


@pytest.mark.parametrize("name", sorted(FREE))
def test_what_touches_no_thread_is_not_asked(store, name):
    policy = Recording()
    saver = AccessControlledSaver(store, policy)
    getattr(saver, name, lambda: None)()  # a capability that this saver need not have
    assert policy.asked == []


def test_both_spellings_are_guarded(store):
    saver = AccessControlledSaver(store, refuse_all)
    java = [name for name in dir(BaseCheckpointSaver) if name != name.lower() and name[0].islower()]
    java = [name for name in java if inspect.isfunction(getattr(BaseCheckpointSaver, name))]
    for name in java:
        member = getattr(saver, name)
        snake = member.__name__
        if snake not in FREE and name != "threadId":
            assert getattr(type(saver), name) is getattr(type(saver), snake), name
    with pytest.raises(AccessDeniedError):
        saver.versionsByThreadId("t")
    with pytest.raises(AccessDeniedError):
        saver.getVersion("t")


def test_a_new_operation_of_another_kind_cannot_be_forgotten():
    from savers._wrappers.access import _guards

    class Newer:
        def replace_all(self, old, new):
            """Not of a single history."""

    with pytest.raises(TypeError, match="replace_all"):
        _guards(Newer)(type("Guarded", (), {}))


@pytest.mark.parametrize("keyword", ["config", "thread"])
def test_the_thread_may_be_given_by_keyword(store, keyword):
    saver = AccessControlledSaver(store, lambda principal, operation, thread_id, checkpoint_ns: thread_id != "t")
    call = {"config": saver.recent, "thread": saver.namespaces}[keyword]
    options = {"limit": 1} if keyword == "config" else {}
    with pytest.raises(AccessDeniedError):
        call(**{keyword: "t"}, **options)
    assert call(**{keyword: "other"}, **options)


# What a policy may be


@pytest.mark.parametrize("given", [1, "yes", object(), None, False, [True]])
def test_only_true_allows(given):
    saver = AccessControlledSaver(MemorySaver(), lambda *_: given)
    with pytest.raises(AccessDeniedError):
        saver.get("t")
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


def hidden_coroutine(principal, operation, thread_id, checkpoint_ns):
    return asynchronous(principal, operation, thread_id, checkpoint_ns)


class AsyncCall:
    async def __call__(self, principal, operation, thread_id, checkpoint_ns):
        return True


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (asynchronous, "asynchronous"),
        (AsyncCall(), "asynchronous"),
        (policies.owner, "must take"),
        (lambda principal: True, "must take"),
        (None, "callable"),
        ("owner", "callable"),
    ],
)
def test_what_is_no_policy_is_refused_when_the_wrapper_is_built(policy, reason):
    with pytest.raises(CheckpointerConfigurationError, match=reason):
        AccessControlledSaver(MemorySaver(), policy)


def test_a_coroutine_that_a_policy_returns_refuses():
    saver = AccessControlledSaver(MemorySaver(), hidden_coroutine)
    with pytest.raises(AccessDeniedError):
        saver.get("t")


def test_bind_is_called_once_with_the_saver():
    class Binding(Recording):
        bound = ()

        def bind(self, saver):
            self.bound += (saver,)

    policy = Binding()
    inner = MemorySaver()
    saver = AccessControlledSaver(saver=inner, policy=policy)
    saver.put("t", made({"n": 1}))
    assert policy.bound == (inner,)


def test_the_error_says_who_and_what_and_pickles():
    saver = AccessControlledSaver(MemorySaver(), refuse_all)
    with pytest.raises(PermissionError, match=r"nobody is named as principal.*acting_as") as caught:
        saver.get(RunnableConfig("t", checkpoint_ns="sub"))
    assert "'sub'" in str(caught.value)

    class Token:
        def __repr__(self):
            return SECRET

    with acting_as(Token()), pytest.raises(AccessDeniedError, match="of type Token may not get thread 't'") as caught:
        saver.get("t")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_repr_tells_no_count():
    inner = MemorySaver()
    inner.put("t", made({"n": 1}))
    assert "1" not in repr(AccessControlledSaver(inner, policies.read_only()))


# What is left out


@pytest.fixture(params=["memory", "files", "sqlite"])
def two(request, tmp_path):
    """A saver in which each of two principals has threads, guarded by their prefixes."""
    makers = {
        "memory": VersionedMemorySaver,
        "files": lambda: FileSystemSaver(tmp_path, fsync="never"),
        "sqlite": lambda: SqliteSaver(tmp_path / "store.db", fsync="never"),
    }
    inner = makers[request.param]()
    saver = AccessControlledSaver(inner, policies.prefix({"ann": "ann/", "bob": ["bob/", "b2/"]}))
    for thread in ("ann/1", "ann/2", "bob/1", "b2/1"):
        config = inner.put(RunnableConfig(thread), made({"n": 1}, metadata={"kind": "order"}))
        inner.put_writes(config, waiting(thread))
    yield saver
    inner.close()


def waiting(thread):
    record = {"node_id": "a", "when": "inside", "payload": thread, "created_at": datetime.now(UTC)}
    return {f"interrupt:{thread}": record}


def test_listings_searches_and_counts_have_what_may_be_read(two):
    with acting_as("ann"):
        assert sorted(two.threads()) == ["ann/1", "ann/2"]
        assert {info.thread_id for info in two.search({"kind": "order"})} == {"ann/1", "ann/2"}
        assert len(two.search({"kind": "order"}, limit=2)) == 2
        assert len(two.search({}, limit=1)) == 1
        assert {each.thread_id for each in two.interrupts()} == {"ann/1", "ann/2"}
        if two.measures_size:
            assert two.size() == two.size("ann/1") + two.size("ann/2") < two.delegate.size()
    with acting_as("bob"):
        assert sorted(two.threads()) == ["b2/1", "bob/1"]
        with pytest.raises(AccessDeniedError):
            two.search({}, thread_id="ann/1")
        with pytest.raises(ValueError, match="limit"):
            two.search({}, limit=-1)
    with acting_as("eve"):
        assert two.threads() == two.search({}) == two.interrupts() == []
    assert two.threads() == []


def test_operations_on_all_threads_touch_the_allowed_ones(two):
    for thread in two.delegate.threads():
        two.delegate.put(thread, made({"n": 2}))
    with acting_as("ann"):
        assert two.prune(keep_last=1, keep_interrupted=False) == 2
        if isinstance(two, abc.SupportsDeleteIdle):
            later = datetime.now(UTC) + timedelta(days=1)
            assert two.delete_idle(idle_since=later, dry_run=True) == ["ann/1", "ann/2"]
            seen = []
            assert two.delete_idle(idle_since=later, progress=lambda *each: seen.append(each)) == ["ann/1", "ann/2"]
            assert seen == [(1, 2, "ann/1"), (2, 2, "ann/2")]
    assert [len(two.delegate.list(thread)) for thread in ("bob/1", "b2/1")] == [2, 2]


def test_reports_are_about_what_may_be_read(two):
    if not isinstance(two, abc.SupportsVerify):
        assert not isinstance(two.delegate, abc.SupportsVerify)
        return
    seen = []
    with acting_as("bob"):
        report = two.verify(progress=lambda *each: seen.append(each[2]))
        assert {each.thread_id for each in report.threads} == {"bob/1", "b2/1"}
        assert sorted(seen) == ["b2/1", "bob/1"]
        assert report.ok
        assert two.compact() == 0
        if isinstance(two, abc.SupportsRepair):
            assert two.repair().files == ()


def test_a_copy_needs_both(two):
    with acting_as("ann"):
        with pytest.raises(AccessDeniedError) as caught:
            two.copy("bob/1", "ann/3")
        assert (caught.value.operation, caught.value.thread_id) == ("copy", "bob/1")
        with pytest.raises(AccessDeniedError) as caught:
            two.copy("ann/1", "bob/3")
        assert (caught.value.operation, caught.value.thread_id) == ("put", "bob/3")
        two.copy("ann/1", "ann/3")
    assert sorted(two.delegate.threads()) == ["ann/1", "ann/2", "ann/3", "b2/1", "bob/1"]


def collect(watch):
    found = []
    while (change := watch.get(0.3)) is not None:
        found.append((change.kind, change.thread_id))
    return found


def test_a_watch_reports_what_may_be_read(two):
    with acting_as("ann"):
        watch = two.watch(latest=True, interval=0.05)
        with pytest.raises(AccessDeniedError):
            two.watch("bob/1")
    with watch:  # by code that acts for nobody: the principal is that of the call
        first = collect(watch)
        assert {thread for _, thread in first} == {"ann/1", "ann/2"}
        for thread in ("bob/1", "ann/1", "bob/new", "ann/new"):
            two.delegate.put(thread, made({"n": 2}))
        assert [each for each in collect(watch) if each[0] == "checkpoint"] == [
            ("checkpoint", "ann/1"),
            ("checkpoint", "ann/new"),
        ]
        for thread in ("bob/1", "ann/1", "bob/new", "ann/new"):
            two.delegate.delete(thread)
        assert {each for each in collect(watch) if each[0] == "delete"} == {("delete", "ann/1"), ("delete", "ann/new")}
        watch.wake()
        assert watch.get() is None
    assert watch.get() is None
    assert list(watch) == []


def test_a_watch_until_a_status_waits_for_what_may_be_read(two):
    finished = Checkpoint(node_id="a", next_node_id=END, state={"n": 2})
    for thread in ("ann/1", "ann/2"):
        two.delegate.put(thread, finished)
    with acting_as("ann"):
        watch = two.watch(interval=0.05, until="finished")
        with pytest.raises(CheckpointerConfigurationError):
            two.watch(until="done")
    assert [change.thread_id for change in watch if not change.thread_id.startswith("ann/")] == []
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


def test_an_async_watch_acts_for_its_caller(two):
    async def read():
        with acting_as("ann"):
            changes = two.awatch(latest=True, interval=0.05)
            found = {(await anext(changes)).thread_id for _ in range(4)}
            await changes.aclose()
        return found

    assert asyncio.run(read()) == {"ann/1", "ann/2"}


def test_namespaces_can_be_refused(store):
    def policy(principal, operation, thread_id, checkpoint_ns):
        return checkpoint_ns != "sub"

    saver = AccessControlledSaver(store, policy)
    assert saver.namespaces("t") == [""]
    assert saver.version_namespaces("t") == [""]
    assert {info.checkpoint_ns for info in saver.search({})} == {""}
    with pytest.raises(AccessDeniedError):
        saver.get(RunnableConfig("t", checkpoint_ns="sub"))
    for operation in (saver.delete, saver.release, saver.size, saver.verify):
        with pytest.raises(AccessDeniedError) as caught:
            operation("t")
        assert "sub" not in str(caught.value)
    with pytest.raises(AccessDeniedError):
        saver.copy("t", "new")
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


def test_a_config_keeps_its_principal():
    config = RunnableConfig("t").with_principal("ann")
    assert config.principal == "ann"
    assert config.with_check_point_id("c").principal == config.replace(checkpoint_ns="n").principal == "ann"
    assert pickle.loads(pickle.dumps(config)).principal == "ann"
    assert config == RunnableConfig("t")
    assert "ann" not in repr(config)
    assert config["configurable"]["principal"] == "ann"
    assert "principal" not in RunnableConfig("t")["configurable"]
    assert RunnableConfig.of({"configurable": {"thread_id": "t", "principal": "ann"}}).metadata == {}
    again = pickle.loads(pickle.dumps(RunnableConfig("t")))
    assert again.principal is RunnableConfig("t").principal


def test_it_does_not_bleed_into_other_tasks_and_threads():
    policy = Recording()
    saver = AccessControlledSaver(MemorySaver(), policy)

    async def act(principal, steps):
        with acting_as(principal):
            for _ in range(steps):
                await saver.aget(principal)
                await asyncio.sleep(0)

    async def run():
        await asyncio.gather(*(act(f"p{n}", 5) for n in range(8)), saver.aget("None"))

    asyncio.run(run())
    assert all(str(principal) == thread for principal, _, thread, _ in policy.asked)
    assert len(policy.asked) == 41
    with acting_as("ann"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(get_principal).result() is None
    assert get_principal() is None


def make_graph(nodes, saver, **options):
    graph = StateGraph({})
    previous = START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(previous, name)
        previous = name
    graph.add_edge(previous, END)
    return graph.compile(checkpoint_saver=saver, **options)


RUN = {"get", "get_writes", "put", "put_writes", "run_lock"}


@pytest.mark.parametrize("operation", sorted(RUN))
@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_that_lacks_a_right_fails_before_its_first_node(operation, is_async):
    inner = MemorySaver()
    ran = []
    app = make_graph({"a": lambda state: ran.append("a") or {}}, AccessControlledSaver(inner, Recording(operation)))
    invoke = (lambda *given: asyncio.run(app.ainvoke(*given))) if is_async else app.invoke
    with pytest.raises(AccessDeniedError) as caught:
        invoke({"n": 1}, "t")
    assert caught.value.operation == operation
    assert ran == []
    assert list(inner.threads()) == []


@pytest.mark.parametrize(
    ("options", "operation"), [({"release_thread": True}, "release"), ({"preserve": False}, "delete")]
)
def test_a_run_asks_for_what_its_options_need(options, operation):
    inner = MemorySaver()
    policy = Recording(operation)
    app = make_graph({"a": lambda state: {}}, AccessControlledSaver(inner, policy), **options)
    with pytest.raises(AccessDeniedError, match=operation):
        app.invoke({"n": 1}, "t")
    assert list(inner.threads()) == []
    policy.refused = ()
    app.invoke({"n": 1}, "t")
    assert list(inner.threads()) == []


def test_a_run_asks_for_its_nested_graphs():
    ran = []

    def policy(principal, operation, thread_id, checkpoint_ns):
        return checkpoint_ns != "sub" or operation != "put"

    other = MemorySaver()
    inner = make_graph({"b": lambda state: ran.append("b") or {}}, None)
    app = make_graph({"a": lambda state: ran.append("a") or {}, "sub": inner}, AccessControlledSaver(other, policy))
    with pytest.raises(AccessDeniedError) as caught:
        app.invoke({"n": 1}, "t")
    assert caught.value.checkpoint_ns == "sub"
    assert ran == []
    own = make_graph({"b": lambda state: {}}, AccessControlledSaver(other, Recording("run_lock")))
    app = make_graph({"a": lambda state: ran.append("a") or {}, "sub": own}, MemorySaver())
    with pytest.raises(AccessDeniedError, match="run_lock"):
        app.invoke({"n": 1}, "t")
    assert ran == []


def test_the_check_reaches_through_wrappers():
    inner = AccessControlledSaver(MemorySaver(), Recording("put_writes"))
    ran = []
    for saver in (SaverWrapper(inner), ValidatingSaver(inner), AccessControlledSaver(inner, allow_all)):
        app = make_graph({"a": lambda state: ran.append("a") or {}}, saver)
        with pytest.raises(AccessDeniedError, match="put_writes"):
            app.invoke({"n": 1}, "t")
    assert ran == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("is_async", [False, True])
def test_it_reaches_all_threads_of_a_run(durability, is_async):
    policy = Recording()
    saver = AccessControlledSaver(MemorySaver(), policy)
    seen = []

    def node(state, config):
        seen.append((get_principal(), config.principal))
        config.once("k", lambda: saver.get("elsewhere"))
        return {}

    graph = StateGraph({})
    for name in "abcd":
        graph.add_node(name, node)
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge("b", "d").add_edge("c", "d")
    graph.add_edge("d", END)
    app = graph.compile(checkpoint_saver=saver, durability=durability)

    def run(name, config):
        if is_async:
            asyncio.run(app.ainvoke({"n": 1}, config))
        else:
            with ThreadPoolExecutor(2) as pool:
                app.invoke({"n": 1}, RunnableConfig.of(config).replace(executor=pool))
        assert seen == [(name, name)] * 4
        assert {question[0] for question in policy.asked} == {name}
        seen.clear()
        policy.asked.clear()

    run("ann", RunnableConfig("t").with_principal("ann"))
    with acting_as("bob"):
        run("bob", "t")
        run("ann", {"configurable": {"thread_id": "t2", "principal": "ann"}})
    for thread in ("t", "t2"):
        for checkpoint in saver.delegate.list(thread):
            stored = [
                checkpoint.metadata,
                checkpoint.state,
                saver.delegate.get_writes(RunnableConfig(thread, checkpoint.id)),
            ]
            assert not any(name in repr(stored) for name in ("ann", "bob"))


def test_a_stream_acts_for_the_one_who_began_it():
    policy = Recording()
    saver = AccessControlledSaver(MemorySaver(), policy)
    seen = []
    app = make_graph({"a": lambda state: seen.append(get_principal()) or {}}, saver)
    with acting_as("ann"):
        stream = app.stream({"n": 1}, "t")
    nobody = app.stream({"n": 1}, "t2")
    with acting_as("eve"):
        list(stream)
        list(nobody)
        assert get_principal() == "eve"
    assert {(question[0], question[2]) for question in policy.asked} == {("ann", "t"), (None, "t2")}
    assert seen == ["ann", None]


def test_a_node_may_act_for_another():
    seen = []

    def node(state):
        with acting_as("service"):
            seen.append(get_principal())
            inner.invoke({"n": 2}, "inner")
        seen.append(get_principal())
        return {}

    inner = make_graph({"b": lambda state: seen.append(get_principal()) or {}}, MemorySaver())
    app = make_graph({"a": node}, MemorySaver())
    app.invoke({"n": 1}, RunnableConfig("t").with_principal("ann"))
    assert seen == ["service", "service", "ann"]


def test_it_holds_within_the_timeout_of_a_node():
    seen = []
    graph = StateGraph({})
    graph.add_node("a", lambda state: seen.append(get_principal()) or {}, timeout=5)
    graph.add_edge(START, "a").add_edge("a", END)

    def act(node_id, state, config, call):
        with acting_as("hook"):
            return call()

    graph.compile(checkpoint_saver=MemorySaver()).invoke({}, RunnableConfig("t").with_principal("ann"))
    graph.add_wrap_call_node_hook("a", act)
    graph.compile(checkpoint_saver=MemorySaver()).invoke({}, RunnableConfig("t").with_principal("ann"))
    assert seen == ["ann", "hook"]


def once_in_another_process(state, config):
    return {"seen": config.once("k", get_principal)}


def test_it_reaches_other_processes(tmp_path):
    inner = FileSystemSaver(tmp_path, fsync="never")
    policy = policies.prefix({"ann": "t"})
    graph = StateGraph({})
    graph.add_node("a", once_in_another_process)
    graph.add_edge(START, "a").add_edge("a", END)
    app = graph.compile(checkpoint_saver=AccessControlledSaver(inner, policy))
    with ProcessPoolExecutor(1) as pool:
        state = app.invoke({}, RunnableConfig("t", executor={"a": pool}).with_principal("ann"))
    assert state["seen"] == "ann"
    inner.close()


def test_what_an_opener_opens_is_guarded(tmp_path):
    inner = FileSystemSaver(tmp_path, fsync="never")
    inner.put("t", made({"n": 1}))
    opener = AccessControlledSaver(inner, policies.prefix({"ann": "t"})).opener()
    saver = pickle.loads(pickle.dumps(opener))()
    with pytest.raises(AccessDeniedError):
        saver.get("t")
    with acting_as("ann"):
        assert saver.get("t").state == {"n": 1}
    assert AccessControlledSaver(inner, lambda *_: True).opener() is None
    saver.close()
    inner.close()


def test_snapshots_can_be_read_later():
    saver = AccessControlledSaver(MemorySaver(), policies.prefix({"ann": "t"}))
    app = make_graph({"a": lambda state: {"x": interrupt(SECRET)}}, saver)
    with acting_as("ann"):
        app.invoke({"n": 1}, "t")
        snapshot = app.get_state("t")
        history = app.get_state_history("t")
        with pytest.raises(AccessDeniedError):
            app.get_state("u")
    assert [each.payload for each in snapshot.interrupts] == [SECRET]
    assert [each.payload for each in history[0].interrupts] == [SECRET]
    config = app.update_state(RunnableConfig("t").with_principal("ann"), {"n": 2})
    assert app.get_state(config).state["n"] == 2
    with pytest.raises(AccessDeniedError):
        app.update_state("t", {"n": 3})
    with pytest.raises(AccessDeniedError):
        app.resume("t")


def test_operations_on_threads_act_for_the_principal_of_their_config():
    inner = MemorySaver()
    saver = AccessControlledSaver(inner, policies.owner())
    app = make_graph({"a": lambda state: {"x": interrupt(SECRET)}}, saver)
    config = RunnableConfig("t").with_principal("ann")
    with pytest.raises(AccessDeniedError):
        submit(saver, {"n": 1}, "t")
    assert submit(saver, {"n": 1}, config).principal == "ann"
    app.invoke(None, config)
    for call in (
        lambda: answer(saver, "t", 1),
        lambda: update(saver, RunnableConfig("t").with_principal("bob"), {"n": 1}),
        lambda: fork(saver, "t", "t2"),
    ):
        with pytest.raises(AccessDeniedError):
            call()
    update(saver, config, {"n": 2})
    assert answer(saver, config, 7).payload == SECRET
    assert fork(saver, config, "t2").config.principal == "ann"
    assert app.resume(config)["x"] == 7
    oldest = inner.list("t")[-1]
    rollback(saver, config.with_check_point_id(oldest.id))
    assert {checkpoint.metadata["owner"] for thread in ("t", "t2") for checkpoint in inner.list(thread)} == {"ann"}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_worker_serves_what_its_principal_may_use(concurrency):
    inner = MemorySaver()
    saver = AccessControlledSaver(inner, policies.prefix({"ann": "ann/", "bob": "bob/"}))
    seen = []
    app = make_graph({"a": lambda state: seen.append(get_principal()) or {}}, saver, graph_id="g")
    for name in ("ann", "bob"):
        with acting_as(name):
            submit(saver, {"n": 1}, f"{name}/1", graph_id="g")
    with acting_as("ann"):
        Worker(saver, {"g": app}, concurrency=concurrency).run(once=True)
    assert seen == ["ann"]
    assert inner.summary("ann/1").latest.status == "finished"
    assert inner.summary("bob/1").latest.status == "queued"


def test_copies_between_stores_have_what_may_be_read(two):
    target = MemorySaver()
    with acting_as("bob"):
        copy_threads(two, target, versions=False)
    assert sorted(target.threads()) == ["b2/1", "bob/1"]


@pytest.mark.parametrize("operation", ["put_writes", "add_tags"])
def test_what_needs_several_rights_asks_for_all_of_them_first(operation):
    inner = MemorySaver()
    app = make_graph({"a": lambda state: {"x": interrupt(SECRET)}}, inner)
    app.invoke({"n": 1}, "t")
    stopped = app.get_state("t").config
    saver = AccessControlledSaver(inner, Recording(operation))
    with pytest.raises(AccessDeniedError):
        fork(saver, stopped, "t2")
    if operation == "put_writes":
        with pytest.raises(AccessDeniedError):
            rollback(saver, stopped)
    assert list(inner.threads()) == ["t"]
    assert len(inner.list("t")) == 1


# The ready policies


@pytest.fixture(params=["memory", "files"])
def owned(request, tmp_path):
    inner = VersionedMemorySaver() if request.param == "memory" else FileSystemSaver(tmp_path, fsync="never")
    yield AccessControlledSaver(inner, policies.owner())
    inner.close()


def test_a_thread_belongs_to_the_one_who_put_first(owned):
    with acting_as("ann"):
        assert owned.get("t") is None
        owned.put("t", made({"n": 1}, metadata={"owner": "bob", "k": 1}))
        owned.put(RunnableConfig("t", checkpoint_ns="sub"), made({"n": 1}))
        assert owned.get("t").metadata == {"owner": "ann", "k": 1}
        assert [info.checkpoint_ns for info in owned.search({"owner": "ann"})] in (["", "sub"], ["sub", ""])
    for principal in ("bob", None, 1):
        with acting_as(principal):
            for operation in (owned.get, owned.delete, owned.release, owned.list, owned.history):
                with pytest.raises(AccessDeniedError):
                    operation("t")
            with pytest.raises(AccessDeniedError):
                owned.put("t", made({"n": 2}))
            assert owned.threads() == []
    with pytest.raises(AccessDeniedError):
        owned.put("new", made({"n": 1}))


def test_what_was_released_still_has_its_owner(owned):
    with acting_as("ann"):
        owned.put("t", made({"n": 1}))
        owned.release("t")
        assert owned.get("t") is None
    with acting_as("bob"):
        for operation in (owned.tag, owned.get, owned.versions_by_thread_id):
            with pytest.raises(AccessDeniedError):
                operation("t")
        with pytest.raises(AccessDeniedError):
            owned.put("t", made({"n": 2}))
    with acting_as("ann"):
        assert owned.tag("t").checkpoints[0].state == {"n": 1}
        owned.delete("t")
    with acting_as("bob"):
        owned.put("t", made({"n": 2}))


def test_a_thread_without_an_owner_is_nobodys(owned):
    owned.delegate.put("t", made({"n": 1}))
    with acting_as("ann"):
        with pytest.raises(AccessDeniedError):
            owned.get("t")
        assert owned.threads() == []


def test_a_thread_whose_key_was_destroyed_is_nobodys(tmp_path, caplog):
    pytest.importorskip("cryptography")
    keys = {"current": bytes(32), "old": bytes(range(32))}
    cipher = SubjectKeys(keys, key_for=lambda thread, metadata: "old")
    with FileSystemSaver(tmp_path, fsync="never", cipher=cipher) as inner, acting_as("ann"):
        AccessControlledSaver(inner, policies.owner()).put("t", made({"n": 1}))
    with FileSystemSaver(tmp_path, fsync="never", cipher={**keys, "old": DESTROYED}) as inner, acting_as("ann"):
        owned = AccessControlledSaver(inner, policies.owner())
        with pytest.raises(AccessDeniedError):
            owned.delete("t")
        assert owned.threads() == []
        assert inner.threads() == ["t"]
    assert caplog.messages == [], "the policy does not fail"


def test_two_who_put_first_do_not_share_a_thread(owned):
    """Both have asked before either has put."""
    both = threading.Barrier(2)
    policy = owned.policy
    outcomes = {}

    class Racing:
        asked = 0

        def __call__(self, principal, operation, thread_id, checkpoint_ns):
            allowed = policy(principal, operation, thread_id, checkpoint_ns)
            self.asked += 1
            if allowed and self.asked <= 2:
                both.wait(5)
            return allowed

        metadata_of = policy.metadata_of

    saver = AccessControlledSaver(owned.delegate, Racing())

    def put(principal):
        with acting_as(principal):
            try:
                saver.put("t", made({"who": principal}))
                outcomes[principal] = "stored"
            except AccessDeniedError:
                outcomes[principal] = "refused"

    threads = [threading.Thread(target=put, args=(name,)) for name in ("ann", "bob")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(outcomes.values()) == ["refused", "stored"]
    assert len(owned.delegate.list("t")) == 1


def test_a_run_makes_a_thread_of_its_own(owned):
    app = make_graph({"a": lambda state: {}, "b": lambda state: {}}, owned, durability="async")
    with acting_as("ann"):
        app.invoke({"n": 1}, "t")
    assert {checkpoint.metadata["owner"] for checkpoint in owned.delegate.list("t")} == {"ann"}
    with acting_as("bob"), pytest.raises(AccessDeniedError):
        app.invoke({"n": 1}, "t")
    with acting_as("ann"), owned.run_lock("u"):
        owned.put("u", made({"n": 1}))


def test_a_watch_of_all_does_not_tell_that_the_thread_of_another_was_deleted(owned):
    with acting_as("ann"):
        owned.put("ann's", made({"n": 1}))
    with acting_as("bob"):
        owned.put("bob's", made({"n": 1}))
        watch = owned.watch(interval=0.05)
    with watch:
        owned.delegate.delete("ann's")
        owned.delegate.delete("bob's")
        assert [each for each in collect(watch) if each[0] != "idle"] == [("delete", "bob's")]


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
    allowed = {(who, thread) for who in ("ann", "bob", "root", "none", "eve", None) for thread in ("a/1", "c/1", "x")
               if policy(who, "get", thread, "")}  # fmt: skip
    assert allowed == {("ann", "a/1"), ("bob", "c/1"), ("root", "a/1"), ("root", "c/1"), ("root", "x")}
    saver = AccessControlledSaver(MemorySaver(), policy)
    with acting_as(["not hashable"]), pytest.raises(AccessDeniedError):
        saver.get("a/1")
    with pytest.raises(CheckpointerConfigurationError):
        policies.prefix({"ann": [1]})


def test_read_only_knows_every_operation():
    changing = {
        "add_tags", "compact", "delete", "delete_idle", "prune", "put", "put_writes", "release", "remove",
        "remove_tags", "repair", "rotate", "run_lock",
    }  # fmt: skip
    assert policies.READING | changing == {*SYNC} - FREE
    assert not policies.READING & changing
    policy = policies.read_only()
    assert all(policy(None, name, "t", "") is (name in policies.READING) for name in SYNC if name not in FREE)


def test_names():
    assert savers.AccessControlledSaver.__module__ == "savers"
    assert savers.acting_as is acting_as
    assert policies.owner.__module__ == "savers.policies"
    assert Checkpoint
