"""What docs/databases.md and docs/format.md say: rights, backups, messages, tables."""

import re
import subprocess
from pathlib import Path

import psycopg
import pytest

from graphkit import RunnableConfig
from graphkit.errors import CheckpointStorageError
from savers import FileSystemSaver, PostgresSaver
from tests.support import postgres_server
from tests.support.checkpoints import list_numbers, make_checkpoint

POSTGRES = postgres_server.PROGRAMS[-1] if postgres_server.PROGRAMS else Path()
DOCS = Path(__file__).resolve().parents[2] / "docs"
FORMAT = (DOCS / "format.md").read_text(encoding="utf-8")
DATABASES = (DOCS / "databases.md").read_text(encoding="utf-8")
MODULES = [*(DOCS.parent / "savers" / "_sql").glob("*.py"), DOCS.parent / "graphkit" / "cli" / "stores.py"]
SOURCES = "".join(path.read_text(encoding="utf-8") for path in MODULES)
VARIABLE = re.compile(r"\b\d[\d.]*|SQL_ASCII")
CHAT = RunnableConfig("chat-1")


def find_block(page, language):
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return block


def fill(saver, checkpoints=3):
    for n in range(checkpoints):
        saver.put(CHAT, make_checkpoint(n, text="hello " * n))


@pytest.fixture
def database(server):
    """The connection string of a database with the role `app`, both removed in the end."""
    with psycopg.connect(server.connection_string, autocommit=True) as connection:
        connection.execute("CREATE DATABASE documented")
        connection.execute("CREATE ROLE app LOGIN")
        yield f"{server.connection_string} dbname=documented"
        connection.execute("DROP DATABASE documented WITH (FORCE)")
        connection.execute("DROP ROLE app")


def test_the_documented_rights_suffice_and_none_does_not(database):
    with PostgresSaver(database) as owner, PostgresSaver(f"{database} user=app") as app:
        fill(owner)
        with pytest.raises(CheckpointStorageError, match="permission denied"):
            app.threads()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(find_block(DATABASES, "sql"))
        assert app.threads() == ["chat-1"]
        with app.run_lock(CHAT):
            fill(app)
        app.put_writes(app.put(CHAT, app.get(CHAT).update_state({"n": 9}, {})), {"update:0": {"n": 10}})
        app.prune("chat-1", keep_last=1)
        app.compact()
        app.release(CHAT)
        assert app.delete("chat-1")


def test_a_dump_of_the_schema_restores(database):
    with PostgresSaver(database) as saver:
        fill(saver)
        expected = list_numbers(saver, CHAT)
    dump = subprocess.run([POSTGRES / "pg_dump", "--schema=graphkit", database], check=True, capture_output=True).stdout
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA graphkit CASCADE")
    subprocess.run(
        [POSTGRES / "psql", "--quiet", "--set=ON_ERROR_STOP=1", database],
        input=dump,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with PostgresSaver(database) as saver:
        assert list_numbers(saver, CHAT) == expected == [2, 1, 0]
        with saver.run_lock(CHAT):
            fill(saver)
        assert len(saver.list(CHAT)) == 6


def test_every_message_of_the_page_is_one_of_the_code():
    table = DATABASES.split("## Troubleshooting")[1]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    messages = [part.strip() for cell in cells for text in re.findall(r"`([^`]*)`", cell) for part in text.split("...")]
    # Those of the server, of SQLite and of graphkit.errors.
    elsewhere = {
        "permission denied",
        "database or disk is full",
        "ThreadBusyError",
        'cannot connect to schema "graphkit" of user@host:5432/db',
    }
    # Numbers, and what stands for them in the code; literals that continue on the next line.
    pieces = {piece.strip() for message in messages if message not in elsewhere for piece in VARIABLE.split(message)}
    code = re.sub(r"""["'] f?["']""", "", " ".join(SOURCES.split()))
    assert len(messages) > 20
    assert {piece for piece in pieces if piece not in code} == set()


def read_documented_columns():
    """Return the columns of each table in docs/format.md."""
    columns: dict[str, list[str]] = {}
    section = FORMAT.split("## In a database")[1].split("\n## ")[0]
    for line in section.splitlines():
        row = re.match(r"\| (?:`(\w+)` )?\| `(\w+)` \|", line)
        if row:
            columns.setdefault(row[1] or [*columns][-1], []).append(row[2])
    return columns


def test_the_documented_tables_are_those_of_sqlite(open_sqlite):
    database = open_sqlite()
    rows = database.read(
        "SELECT t.name, c.name FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c"
        " WHERE t.type = 'table' AND t.name LIKE 'graphkit%' ORDER BY t.rowid, c.cid"
    )
    found: dict[str, list[str]] = {}
    for table, column in rows:
        found.setdefault(table.removeprefix("graphkit_"), []).append(column)
    documented = read_documented_columns()
    del documented["watchers"]  # PostgreSQL only
    assert found == documented
    assert database.read("SELECT value FROM graphkit_meta") == [(1,)]


def test_the_documented_tables_are_in_postgresql(open_postgres, schema):
    database = open_postgres()
    rows = database.read(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = ? ORDER BY 1, 2", (schema,)
    )
    tables = read_documented_columns()
    del tables["terms"]  # a column of the records
    documented = {(table, column) for table, columns in tables.items() for column in [*columns]} | {
        ("records", "terms")
    }
    assert documented <= set(rows)


def test_one_statement_makes_a_log_file_of_the_rows(database, tmp_path):
    order = RunnableConfig("order-17")
    with PostgresSaver(database) as saver, FileSystemSaver(tmp_path) as directory:
        for number in (1, 2):
            saver.put(order, make_checkpoint(number))
        latest = saver.get(order)
        directory.put(order, latest)
    with psycopg.connect(database) as connection:
        rows = connection.execute(find_block(FORMAT, "sql"))
        ((content,),) = rows.fetchall()
    (log,) = tmp_path.glob("t-*/log")
    log.write_bytes(content)
    with FileSystemSaver(tmp_path) as directory:
        assert list_numbers(directory, order) == [2, 1]
        assert directory.verify().ok
