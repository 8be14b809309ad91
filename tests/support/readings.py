"""Every way to read a thread, with results that can be compared."""


def show(checkpoints):
    return [
        (checkpoint.id, checkpoint.node_id, checkpoint.created_at, dict(checkpoint.state), dict(checkpoint.metadata))
        for checkpoint in checkpoints
    ]


def list_changes(saver, config):
    with saver.watch(config, latest=True) as watch:
        return [(change.kind, change.checkpoint.id) for change in iter(lambda: watch.get(0), None) if change.checkpoint]


def show_versions(saver, config):
    return [show(saver.tag(config, version).checkpoints) for version in saver.versions_by_thread_id(config)]


READINGS = {
    "watch": list_changes,
    "threads": lambda saver, config: saver.threads(),
    "all threads": lambda saver, config: saver.threads(released=True),
    "get": lambda saver, config: show(filter(None, [saver.get(config)])),
    "list": lambda saver, config: show(saver.list(config)),
    "history": lambda saver, config: [(info.id, info.tags, info.status) for info in saver.history(config)],
    "recent": lambda saver, config: [info.id for info in saver.recent(config, limit=3)],
    "summary": lambda saver, config: [saver.summary(config)],
    "writes": lambda saver, config: [dict(saver.get_writes(config))],
    "namespaces": lambda saver, config: saver.namespaces(config),
    "versions": show_versions,
    "replay": lambda saver, config: show(saver.replay(config)),
    "interrupts": lambda saver, config: saver.interrupts(),
    "search": lambda saver, config: sorted(info.id for info in saver.search({"n": 2})),
}
