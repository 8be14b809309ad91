"""Power loss at any instant: H8, H39, promises 1 and 2. Every legal state of the disk is opened by a new saver."""

import pytest

from tests.disk import crashes


@pytest.mark.parametrize("workload", crashes.WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_state_holds_what_was_acknowledged(workload):
    found = crashes.Crashes()
    found.explore(workload, 600)
    assert found.states > 20
