"""SaverContract: the promises of every saver, as tests for pytest and unittest."""

from __future__ import annotations

from graphkit.testing._contract.concurrency import ConcurrencyTests, LockTests
from graphkit.testing._contract.history import HistoryTests
from graphkit.testing._contract.maintenance import MaintenanceTests
from graphkit.testing._contract.threads import ThreadTests, VersionTests
from graphkit.testing._contract.values import IsolationTests, ValueTests
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
    """Tests the promises of `BaseCheckpointSaver`, and of `HasVersions` if the saver implements it.

    Subclass it and implement `make_saver`. pytest finds the subclass by its name; for unittest, also
    inherit from `unittest.TestCase`, after the contract.

        class TestMySaver(SaverContract):
            def make_saver(self):
                return MySaver()

            def reopen(self, saver):
                return MySaver(saver.url)

    The docstring of a test says which promise of which method it tests. The docstring of that method,
    in `BaseCheckpointSaver` or in the protocol of the capability, is the specification.

    The hooks; only the first must be implemented:

    * `make_saver()`: return a saver on a new, empty store.
    * `reopen(saver)`: return another object on the same store, as another process would have. Most
      tests read through both objects. Leave it out if the store is the saver object itself.
    * `plant(saver, config, checkpoint)`: write a checkpoint as the newest without the saver.
    * `peek(saver, config)`: read the states of a history, newest first, without the saver.

    Tests that need `plant` or `peek` are skipped without them. Tests of a capability are skipped if
    the saver does not declare it, and the reason names the capability: `HasVersions`,
    `SupportsRemove`, `SupportsDeleteIdle`, `SupportsErase`, and the properties `isolates_values`,
    `lists_namespaces`, `lists_threads`, `measures_size`, `refuses_unstorable_values` and
    `waits_for_runs` of `BaseCheckpointSaver`. A saver fails if it declares a capability that it does
    not have.

    Tests that a later version of graphkit adds run without a change to the subclass. A subclass can
    remove a test by name (`test_any_string_is_a_thread_id = None`), where its readers see it.
    """
