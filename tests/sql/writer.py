"""A process that commits three rows at a time, and tells after each commit."""

import json
import sys

from tests.sql.holder import open_database, tell


def main():
    kind, place, options, history, start = json.loads(sys.argv[1])
    database = open_database(kind, place, options)
    statement = f"INSERT INTO {database.names.records} (history, position, frame) VALUES (?, ?, ?)"
    number = start
    while True:
        with database.transaction() as transaction:
            for position in range(3 * number, 3 * number + 3):
                transaction.execute(statement, (history, position, b"x" * 5000))
        tell(number)
        number += 1


if __name__ == "__main__":
    main()
