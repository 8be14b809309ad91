"""The contract on PostgresSaver."""

import uuid

import pytest

from graphkit.testing.contract import SaverContract
from savers._sql.postgres_saver import PostgresSaver
from tests import postgres_server


@pytest.fixture(scope="module")
def server():
    with postgres_server.start() as server:
        yield server


class TestPostgresSaver(SaverContract):
    """Saver objects that stay open, two on each schema."""

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.connection_string = server.connection_string
        self.opened = []
        yield
        for saver in self.opened:
            saver.close()

    def open_schema(self, schema):
        saver = PostgresSaver(self.connection_string, schema=schema)
        self.opened.append(saver)
        return saver

    def make_saver(self):
        return self.open_schema(f"test {uuid.uuid4().hex}")

    def reopen(self, saver):
        return self.open_schema(saver._schema)
