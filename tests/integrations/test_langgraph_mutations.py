"""The sweeps of power losses on the logs of items and cached values can fail: without a sync, they miss what was stored.

Those of what they share with the logs of threads are in tests/disk/test_mutations.py.
"""

from unittest import mock

import pytest

from tests.disk.simfs import SimFS
from tests.integrations import test_langgraph_files_faults as faults
from tests.support.langgraph import rewrite_short_logs
from tests.support.sweeps import Sweep


@pytest.mark.parametrize(
    "sweep_power_losses",
    [
        faults.test_power_loss_keeps_what_was_acknowledged_and_at_most_one_more,
        faults.test_a_cache_survives_power_loss_too,
    ],
)
def test_a_log_without_syncs_is_found_out(sweep_power_losses, monkeypatch):
    rewrite_short_logs(monkeypatch)
    with mock.patch.object(SimFS, "fdatasync", return_value=None), pytest.raises(AssertionError):
        sweep_power_losses(Sweep(is_full=False))
