"""A process that holds a run lock, and obeys its standard input."""

import json
import sys

from graphkit.errors import ThreadBusyError
from tests.sql.rows import fenced_put
from tests.support.client import tell
from tests.support.databases import PostgresDatabase, SqliteDatabase


def open_database(kind, place, options):
    if kind == "sqlite":
        return SqliteDatabase(place, fsync="never", **options)
    return PostgresDatabase(place, **options)


def main():
    kind, place, options, thread_id, timeout = json.loads(sys.argv[1])
    database = open_database(kind, place, options)
    try:
        with database.run_locks.hold(thread_id, timeout):
            tell("held")
            for line in sys.stdin:
                history, position = map(int, line.split())
                tell(fenced_put(database, thread_id, history, position))
    except ThreadBusyError:
        tell("busy")


if __name__ == "__main__":
    main()
