"""The stores of LangGraph's checkpointer."""

import pytest


@pytest.fixture
def opener(request):
    """Opens checkpointers on stores of the kind that the test names; see `langgraph_stores`."""
    from tests.integrations.langgraph_stores import make_opener  # LangGraph may be missing

    return make_opener(request, request.param)
