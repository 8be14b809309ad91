"""SaverContract: the promises of savers, as tests that run under pytest and under unittest."""

from __future__ import annotations

from graphkit.testing._contract.concurrency import ConcurrencyTests
from graphkit.testing._contract.history import HistoryTests
from graphkit.testing._contract.isolation import IsolationTests
from graphkit.testing._contract.locks import LockTests
from graphkit.testing._contract.maintenance import MaintenanceTests
from graphkit.testing._contract.threads import ThreadTests
from graphkit.testing._contract.values import ValueTests
from graphkit.testing._contract.versions import VersionTests
from graphkit.testing._contract.watch import WatchTests
from graphkit.testing._contract.writes import WriteTests


class SaverContract(
    HistoryTests,
    ValueTests,
    IsolationTests,
    ThreadTests,
    WriteTests,
    MaintenanceTests,
    LockTests,
    ConcurrencyTests,
    VersionTests,
    WatchTests,
):
    """Tests each promise of `BaseCheckpointSaver`, and of `HasVersions` for savers that are one.

    Subclass it and override `make_saver`. pytest finds the subclass by its name. For unittest,
    inherit from `unittest.TestCase` too, after the contract.

        class TestMySaver(SaverContract):
            def make_saver(self):
                return MySaver()

            def reopen(self, saver):
                return MySaver(saver.url)

    The hooks; only the first is required:

    * `make_saver()` returns a saver on a new, empty store.
    * `reopen(saver)` returns another object on the same store, as another process would have it.
      Most tests read through both. Leave it out if the store is the object itself.
    * `plant(saver, config, checkpoint)` writes a checkpoint as the newest, without the saver.
    * `peek(saver, config)` returns the states of a history, newest first, read without the saver.

    Tests that need `plant` or `peek` are skipped without them. Tests of a capability are skipped if
    the saver does not declare it, and the reason names the capability: versions (the saver is a
    `HasVersions`), and the properties `isolates_values`, `lists_namespaces`, `lists_threads`,
    `measures_size`, `refuses_unstorable_values` and `waits_for_runs` of `BaseCheckpointSaver`. A
    saver that declares a capability without having it fails.

    Tests that a later graphkit adds run without a change of the subclass. A test can be removed by
    name (`test_any_string_is_a_thread_id = None`), where readers of the subclass see it.
    """
