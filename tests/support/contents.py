"""Everything in a store, as text that shows any difference in type or order."""

from graphkit import HasVersions, RunnableConfig
from tests.support.checkpoints import list_ids


def outline(checkpoint, *recorded):
    fields = (checkpoint.id, checkpoint.node_id, checkpoint.next_node_id, checkpoint.parent_id, checkpoint.created_at)
    return repr((*fields, dict(checkpoint.metadata), dict(checkpoint.state), *recorded))


def describe(saver, config, checkpoint):
    """A checkpoint as text, with its pending writes and tags."""
    at = config.with_check_point_id(checkpoint.id)
    return outline(checkpoint, dict(saver.get_writes(at)), saver.tags_of(at))


def read_history(saver, config, version=None):
    """The checkpoints of a history, live or released: [(id, text)], the newest first."""
    if version is not None:
        return [(one.id, outline(one)) for one in saver.tag(config, version).checkpoints]
    return [(one.id, describe(saver, config, one)) for one in saver.list(config)]


def read_all(saver):
    """All checkpoints that a reader finds: {(thread, namespace, version or None): [(id, text)]}, the newest first."""
    found = {}
    for thread in saver.threads(released=True):
        for namespace in saver.namespaces(thread):
            config = RunnableConfig(thread, checkpoint_ns=namespace)
            found[thread, namespace, None] = read_history(saver, config)
        if not isinstance(saver, HasVersions):
            continue
        for version in saver.versions_by_thread_id(thread):
            for namespace in saver.version_namespaces(thread, version):
                config = RunnableConfig(thread, checkpoint_ns=namespace)
                found[thread, namespace, version] = read_history(saver, config, version)
    return found


def expect_alike(saver, config):
    """Check that every way to read a history finds the same checkpoints; return their ids, the newest first."""
    ids = list_ids(saver, config)
    assert [info.id for info in saver.history(config)] == ids
    summary = saver.summary(config)
    latest = saver.get(config)
    assert (summary.checkpoints if summary else 0) == len(ids)
    assert (latest.id if latest else None) == (ids[0] if ids else None)
    return ids
