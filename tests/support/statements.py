"""How many statements the operations of a saver on a database take: each is a round trip on PostgreSQL."""

from functools import partial


class StatementCounter:
    """Counts the statements that a saver executes, with those that begin and end a transaction."""

    def __init__(self, saver, monkeypatch):
        self.statements = []
        self.read_size = 0
        """The bytes of all values that were read."""
        database = saver._database
        for name in ("read", "write", "write_returning"):
            monkeypatch.setattr(database, name, self._wrap(getattr(database, name)))
        monkeypatch.setattr(database, "transact", partial(self._transact, database.transact))

    def _wrap(self, execute):
        def counted(sql, *parameters):
            self.statements.append(sql)
            found = execute(sql, *parameters)
            if isinstance(found, list):
                self.read_size += sum(len(value) for row in found for value in row if isinstance(value, bytes))
            return found

        return counted

    def _transact(self, transact, work):
        self.statements += ["BEGIN", "COMMIT"]
        return transact(work)

    def count(self, call):
        """Return how many statements a call takes; those within a transaction are not counted."""
        self.statements.clear()
        call()
        return len(self.statements)
