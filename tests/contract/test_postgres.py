"""The contract and the state machine on PostgresSaver."""

import uuid
from functools import partial

import pytest

from savers import PostgresSaver
from tests.support import postgres_server
from tests.support.reopening import KEYS, OnStores, StoreMachine, fewer
from tests.support.sweeps import examples


@pytest.fixture(autouse=True, scope="module")
def _server_of_machines(server):
    """The classes of machines are made before there is a server."""
    PostgresMachine.connection_string = server.connection_string


@pytest.fixture(scope="module")
def session_pooler(server):
    with postgres_server.start_pooler(server, "session", "postgres", "default_pool_size = 100") as pooled:
        yield pooled


class TestPostgresSaver(OnStores):
    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.connection_string = server.connection_string

    def new_opener(self):
        return partial(PostgresSaver, self.connection_string, schema=f"test {uuid.uuid4().hex}", cipher=self.cipher)


@pytest.mark.sweep(30, of="tests")
class TestSealedPostgresSaver(TestPostgresSaver):
    cipher = KEYS


@pytest.mark.sweep(8, of="tests")
class TestPostgresSaverReopened(TestPostgresSaver):
    is_reopened = True


@pytest.mark.sweep(10, of="tests")
class TestPostgresSaverBehindPooler(TestPostgresSaver):
    """Connections through PgBouncer, which gives each of them a session of its own."""

    @pytest.fixture(autouse=True)
    def _pooler(self, _server, session_pooler):
        self.connection_string = session_pooler


class PostgresMachine(StoreMachine):
    connection_string = ""

    def new_opener(self):
        return partial(PostgresSaver, self.connection_string, schema=f"test {uuid.uuid4().hex}")


class ReopeningMachine(PostgresMachine):
    is_reopened = True


TestPostgresMachine = fewer(PostgresMachine, 8, 50)
TestReopeningMachine = fewer(ReopeningMachine, 16, max(8, examples(32)))
