"""The contract and the state machine on PostgresSaver."""

import uuid
from functools import partial

import pytest

from graphkit.testing import SaverContract
from graphkit.testing.stateful import SaverMachine
from savers import PostgresSaver
from tests.support import postgres_server
from tests.support.reopening import KEYS, Elsewhere, close_used, fewer, note_used, reopen_each_time, reopening
from tests.support.sweeps import examples


@pytest.fixture(autouse=True, scope="module")
def _server_of_machines(server):
    """The classes of machines are made before there is a server."""
    OnServer.connection_string = server.connection_string


@pytest.fixture(scope="module")
def session_pooler(server):
    with postgres_server.start_pooler(server, "session", "postgres", "default_pool_size = 100") as pooled:
        yield pooled


class InSchema(Elsewhere, SaverContract):
    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.connection_string = server.connection_string
        self.opened = []
        yield
        for saver in self.opened:
            saver.close()
        close_used()

    cipher = None

    def open_schema(self, schema):
        saver = PostgresSaver(self.connection_string, schema=schema, cipher=self.cipher)
        self.opened.append(saver)
        return saver


class TestPostgresSaver(InSchema):
    """Saver objects that stay open, two on each schema."""

    def make_saver(self):
        return self.open_schema(f"test {uuid.uuid4().hex}")

    def reopen(self, saver):
        return self.open_schema(saver._schema)


@pytest.mark.sweep(30, of="tests")
class TestSealedPostgresSaver(TestPostgresSaver):
    """The same, sealed."""

    cipher = KEYS


@pytest.mark.sweep(8, of="tests")
class TestPostgresSaverReopened(InSchema):
    """Every single operation on a saver object of its own, which takes six times as long."""

    def make_saver(self):
        return reopen_each_time(PostgresSaver, self.connection_string, schema=f"test {uuid.uuid4().hex}")

    def reopen(self, saver):
        return type(saver)(saver.open_saver)


@pytest.mark.sweep(10, of="tests")
class TestPostgresSaverBehindPooler(TestPostgresSaver):
    """Connections through PgBouncer, which gives each of them a session of its own."""

    @pytest.fixture(autouse=True)
    def _pooler(self, _server, session_pooler):
        self.connection_string = session_pooler


class OnServer:
    connection_string = ""

    def new_opener(self):
        return partial(PostgresSaver, self.connection_string, schema=f"test {uuid.uuid4().hex}")


class PostgresMachine(OnServer, SaverMachine):
    """Two objects that stay open for as long as the machine lets them."""

    def make_saver(self):
        self.open_saver = self.new_opener()
        return note_used(self.open_saver())

    def reopen(self, saver):
        return note_used(self.open_saver())

    def open_again(self, index):
        self.savers[index].close()
        super().open_again(index)

    def teardown(self):
        for saver in self.savers:
            assert saver.verify().ok
        close_used()


class ReopeningMachine(OnServer, SaverMachine):
    def make_saver(self):
        return reopening(PostgresSaver)(self.new_opener())

    def reopen(self, saver):
        return type(saver)(saver.open_saver)

    def teardown(self):
        assert self.savers[0].verify().ok
        close_used()


TestPostgresMachine = fewer(PostgresMachine, 8, 50)
TestReopeningMachine = fewer(ReopeningMachine, 16, max(8, examples(32)))
