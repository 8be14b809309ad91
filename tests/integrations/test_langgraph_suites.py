"""LangGraph's own test suites pass with graphkit's checkpointer, store and cache in place of LangGraph's.

The suites come from the source distributions of the versions that are installed, and only under --full. Each test names
the failures that it expects, with the reason. Any other failure fails it, and so does a name that no longer fails. The
names and counts are those of langgraph 1.2.22, langgraph-checkpoint 4.3.2, langgraph-checkpoint-sqlite 3.1.2 and
langgraph-prebuilt 1.1.2.
"""

import pytest

from tests.integrations.langgraph_suites import Suites

pytestmark = pytest.mark.sweep(0)

VARIANTS = ["default", "never", "lenient", "sqlite", "postgres"]
PRIVATE = "looks into private attributes of LangGraph's saver"
PLAIN_DATA = "a strict serializer of LangGraph returns plain data in place of a class; ours raises, see on_blocked_type"
REFUSED_IN_SQL = "SQL refuses some keys of a filter"
NO_VERSION = "puts a channel value that channel_versions does not name, which only SqliteSaver stores"

MADE = {
    "test_channels::test_delta_channel_snapshot_version_based": PRIVATE,
    "test_delta_channel_update_state::test_bulk_update_state_replays_updates_in_the_order_given": PRIVATE,
    "test_delta_channel_update_state::test_abulk_update_state_replays_updates_in_the_order_given": PRIVATE,
}
WITH_TYPES = {
    "test_large_cases::test_conditional_state_graph[graphkit]",
    "test_large_cases_async::test_conditional_graph_state[graphkit]",
    "test_pregel::test_in_one_fan_out_state_graph_waiting_edge_custom_state_class_pydantic_input[graphkit]",
    "test_pydantic::test_interrupt_functional_pydantic[graphkit]",
}
"""Tests whose states have classes of the application."""

MEMORY = {
    "test_memory::test_memory_saver_strict_blocks_unregistered": PLAIN_DATA,
    "test_memory::test_memory_saver_with_allowlist_proxy_isolated": PLAIN_DATA,
    "test_memory.TestInMemorySaverDeltaChannel::test_load_blobs_omits_delta_channel": PRIVATE,
    "test_memory.TestInMemorySaverDeltaChannel::test_get_channel_writes_collects_ancestor_writes_only": PRIVATE,
    "test_memory.TestInMemorySaverDeltaChannel::test_get_channel_writes_at_root_returns_empty": PRIVATE,
    "test_memory.TestBaseFallbackGetChannelWrites::test_fallback_returns_ancestor_writes_oldest_first": PRIVATE,
    "test_memory.TestBaseFallbackGetChannelWrites::test_async_fallback_returns_ancestor_writes_oldest_first": PRIVATE,
    "test_memory.TestBaseFallbackGetChannelWrites::test_async_fallback_concurrent_tasks_do_not_interfere": PRIVATE,
    "test_memory.TestPreDeltaBlobTerminator::test_seed_from_pre_delta_ancestor_blob": PRIVATE,
    "test_memory.TestPreDeltaBlobTerminator::test_seed_bounds_walk_without_dropping_its_own_writes": PRIVATE,
}
BELOW, ABOVE = "[parent_id_sorts_below_child]", "[parent_id_sorts_above_child]"
SQLITE = {
    "test_sqlite.TestSqliteSaver::test_informative_async_errors": "SqliteSaver refuses async methods; ours has them",
    "test_sqlite.TestSqliteSaver::test_checkpoint_search_sql_injection_prevention": REFUSED_IN_SQL,
    "test_sqlite.TestSqliteSaver::test_metadata_filter_keys_with_hyphens_and_digits": "a dot in a key is a path in SQL",
    f"test_delta_parent_walk::test_sync_walk_reaches_parent_whatever_the_id_order{BELOW}": NO_VERSION,
    f"test_delta_parent_walk::test_sync_walk_reaches_parent_whatever_the_id_order{ABOVE}": NO_VERSION,
    f"test_delta_parent_walk::test_async_walk_reaches_parent_whatever_the_id_order{BELOW}": NO_VERSION,
    f"test_delta_parent_walk::test_async_walk_reaches_parent_whatever_the_id_order{ABOVE}": NO_VERSION,
    "test_delta_parent_walk::test_sync_empty_checkpoint_id_reads_from_the_latest_checkpoint": NO_VERSION,
    "test_delta_parent_walk::test_async_empty_checkpoint_id_reads_from_the_latest_checkpoint": NO_VERSION,
    "test_delta_parent_walk::test_walk_reaches_root_of_long_chain_with_descending_ids": NO_VERSION,
    "test_delta_parent_walk::test_walk_step_looks_up_the_parent_by_primary_key": PRIVATE,
}
SQLITE_FILES = [
    "test_sqlite.py",
    "test_aiosqlite.py",
    "test_delta_channel_migration.py",
    "test_delta_parent_walk.py",
    "test_get_delta_channel_history.py",
]
"""Not the tests of SQLite's own tables."""

CACHE = {"test_redis_cache.TestRedisCache::test_corrupted_data_handling": "writes into Redis"}
ASYNC_ONLY = "AsyncSqliteStore refuses synchronous calls; ours has them"
SQLITE_STORE = {
    "test_store::test_vector_store_initialization": PRIVATE,
    "test_store::test_nonnull_migrations": PRIVATE,
    "test_store::test_sql_injection_vulnerability[memory]": REFUSED_IN_SQL,
    "test_store::test_sql_injection_vulnerability[file]": REFUSED_IN_SQL,
    "test_async_store::test_no_running_loop[memory]": ASYNC_ONLY,
    "test_async_store::test_no_running_loop[file]": ASYNC_ONLY,
}


@pytest.fixture(scope="module")
def suites(tmp_path_factory):
    return Suites(tmp_path_factory.mktemp("langgraph_suites"))


def assert_outcome(outcome, *, passed, made, failed):
    """Check what became of a suite.

    Args:
        outcome: what ran.
        passed: how many tests must have passed, at least; a newer version of LangGraph has more.
        made: how many of them must have made a saver, a store or a cache of ours.
        failed: the reason of each failure, by the name of the test.
    """
    unexpected = {name: message for name, message in outcome.failed.items() if name not in failed}
    assert not unexpected, "\n\n".join(f"{name}: {message}" for name, message in unexpected.items())
    assert failed.keys() - outcome.failed.keys() == set(), "expected to fail; take them off the list"
    assert len(outcome.passed) >= passed
    assert sum(map(bool, outcome.passed.values())) >= made


@pytest.fixture
def environment(request, variant):
    """Variables for the process of a suite: the database of a variant that needs one."""
    if variant != "postgres":
        return {}
    return {"GRAPHKIT_SUITE_DATABASE": request.getfixturevalue("server").create_database()}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("distribution", "count"), [("langgraph", 646), ("langgraph-prebuilt", 46)])
def test_tests_that_take_a_checkpointer(suites, distribution, count, variant, environment):
    files = suites.files_with(distribution, "sync_checkpointer")
    outcome = suites.run(distribution, files, f"--graphkit={variant}", "--take=checkpointer", environment=environment)
    assert_outcome(outcome, passed=count, made=count, failed={})


def test_tests_with_types_of_the_application_when_langgraph_names_them(suites):
    files = sorted({f"{name.partition('::')[0]}.py" for name in WITH_TYPES})
    strict = {"LANGGRAPH_STRICT_MSGPACK": "true"}
    outcome = suites.run("langgraph", files, "--graphkit=default", "--take=checkpointer", environment=strict)
    assert outcome.passed.keys() >= WITH_TYPES
    assert_outcome(outcome, passed=152, made=152, failed={})


def test_tests_that_make_an_in_memory_saver(suites):
    files = suites.files_with("langgraph", "MemorySaver")
    outcome = suites.run("langgraph", files, "--graphkit=default", "--take=neither")
    assert_outcome(outcome, passed=843, made=294, failed=MADE)


def test_tests_of_langgraphs_own_savers(suites):
    memory = suites.run("langgraph-checkpoint", ["test_memory.py"], "--graphkit=default")
    assert_outcome(memory, passed=7, made=7, failed=MEMORY)
    sqlite = suites.run("langgraph-checkpoint-sqlite", SQLITE_FILES, "--graphkit=default")
    assert_outcome(sqlite, passed=20, made=17, failed=SQLITE)


def test_tests_that_take_a_store_or_a_cache(suites):
    files = sorted({*suites.files_with("langgraph", "sync_store"), *suites.files_with("langgraph", "cache: BaseCache")})
    outcome = suites.run("langgraph", files, "--graphkit=default", "--take=store")
    assert_outcome(outcome, passed=6, made=6, failed={})


def test_tests_of_langgraphs_own_stores(suites):
    memory = suites.run("langgraph-checkpoint", ["test_store.py"])
    assert_outcome(memory, passed=117, made=86, failed={})
    sqlite = suites.run("langgraph-checkpoint-sqlite", ["test_store.py", "test_async_store.py"])
    assert_outcome(sqlite, passed=136, made=133, failed=SQLITE_STORE)


def test_tests_of_items_that_expire(suites):
    outcome = suites.run("langgraph-checkpoint-sqlite", ["test_ttl.py"], "--numprocesses=4")
    assert_outcome(outcome, passed=11, made=11, failed={})


def test_tests_of_langgraphs_own_cache(suites):
    outcome = suites.run("langgraph-checkpoint", ["test_redis_cache.py"])
    assert_outcome(outcome, passed=15, made=15, failed=CACHE)
