"""A PostgreSQL server, and the stores of LangGraph's checkpointer."""

import pytest

from tests import postgres_server


@pytest.fixture(scope="session")
def server():
    """One server for all tests of a worker of pytest; starting one takes a second."""
    with postgres_server.start() as server:
        yield server


@pytest.fixture
def opener(request):
    """Opens checkpointers on stores of the kind that the test names; see `langgraph_stores`."""
    from tests.integrations.langgraph_stores import make_opener  # LangGraph may be missing

    return make_opener(request, request.param)
