"""What users of a saver see when the database cannot be used, and what is there afterwards."""

import threading
from functools import partial

import pytest

from graphkit import Channels, RunnableConfig
from graphkit.errors import CheckpointStorageError
from savers import PostgresSaver
from tests.support.checkpoints import list_ids
from tests.support.client import start_client
from tests.support.graphs import make_chain

T = RunnableConfig("t")
STEPS = 12


@pytest.fixture
def own_saver(own_server):
    with PostgresSaver(own_server.connection_string, lock_timeout=60.0) as saver:
        yield saver


def restart(server, how):
    if how == "kill":
        server.kill()
    else:
        server.stop(how)
    server.start()


def make_graph(saver, ran, disturb):
    """A graph of STEPS nodes in a row, each of which notes that it ran; some disturb the server."""

    def make_node(number):
        def node(state):
            disturb(number)
            ran.append(number)
            return {"steps": [number]}

        return node

    nodes = {f"n{number}": make_node(number) for number in range(STEPS)}
    return make_chain({"steps": Channels.appender()}, **nodes).compile(checkpoint_saver=saver)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("how", ["immediate", "fast", "kill"])
def test_a_run_goes_on_after_the_server_was_restarted_between_its_steps(own_server, own_saver, how):
    def disturb(number):
        if number == 5:
            restart(own_server, how)

    ran = []
    graph = make_graph(own_saver, ran, disturb)
    state = graph.invoke({}, T)
    assert state["steps"] == ran == list(range(STEPS))
    assert own_saver.get(T).state["steps"] == list(range(STEPS))
    assert own_saver.verify().ok


def test_a_run_on_a_server_that_is_gone_ends_with_an_error_and_resumes_without_doing_a_step_twice(own_server):
    is_stopped = False

    def disturb(number):
        nonlocal is_stopped
        if number == 6 and not is_stopped:
            is_stopped = True
            own_server.stop("immediate")

    ran = []
    with PostgresSaver(own_server.connection_string, lease=1.0, lock_timeout=0.5) as saver:
        graph = make_graph(saver, ran, disturb)
        with pytest.raises(CheckpointStorageError, match="server"):
            graph.invoke({}, T)
        assert ran == list(range(7))
        own_server.start()
    # The server does not know that the run has ended: its lock expires with the lease.
    with PostgresSaver(own_server.connection_string, lease=1.0, lock_timeout=60.0) as saver:
        graph = make_graph(saver, ran, disturb)
        steps = saver.get(T).state["steps"]
        # Node 6 had run, and its put had not returned.
        assert steps == list(range(6))
        state = graph.invoke(None, T)
        assert state["steps"] == list(range(STEPS))
        assert ran == [*range(7), *range(6, STEPS)]
        assert saver.verify().ok


@pytest.mark.sweep(1)
@pytest.mark.parametrize("how", ["kill", "immediate"])
def test_nothing_that_was_acknowledged_is_lost_when_the_server_dies_among_eight_processes(
    own_server, own_saver, launcher, how
):
    opener = partial(PostgresSaver, own_server.connection_string, lock_timeout=60.0)
    own_saver.threads()
    clients = [start_client(launcher, opener, f"client {number}", 30) for number in range(8)]
    acknowledged = [client.stdout.readline() for client in clients]
    assert acknowledged == ["ready\n"] * 8
    lines = [[] for _ in clients]
    half = threading.Semaphore(0)

    def read(client, into):
        for line in client.stdout:
            into.append(line.strip())
            half.release()

    readers = [threading.Thread(target=read, args=pair) for pair in zip(clients, lines, strict=True)]
    for reader in readers:
        reader.start()
    for _ in range(40):
        half.acquire()
    restart(own_server, how)
    for reader, client in zip(readers, clients, strict=True):
        reader.join()
        client.wait()
        client.stdout.close()
        client.stdin.close()
    found = list_ids(own_saver, T)
    assert len(found) == len({*found})
    acknowledged = {line for client in lines for line in client}
    assert acknowledged <= {*found}
    assert len(acknowledged) >= 40
    # What is there and was not acknowledged: at most the last put of each client that failed.
    assert len(found) - len(acknowledged) <= sum(client.returncode != 0 for client in clients)
    assert own_saver.verify().ok


def test_a_read_whose_connection_is_lost_meanwhile_is_executed_again(postgres_opener):
    with postgres_opener() as saver:
        database = saver._database
        counter = f'"{database._server.schema}".ended'
        database.write(f"CREATE SEQUENCE {counter}")
        end_once = f"SELECT CASE WHEN nextval('{counter}') < ? THEN pg_terminate_backend(pg_backend_pid()) END"
        assert database.read(end_once, (2,)) == [(None,)]
        with pytest.raises(CheckpointStorageError, match="the connection was lost"):
            database.read(end_once, (99,))
        assert database.read("SELECT 1") == [(1,)]
