"""Shows, verifies and exports an audit log: audit list, audit verify, audit export."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from graphkit.cli.cells import Row
from graphkit.cli.commands.transfer import write_output
from graphkit.cli.context import CliContext
from graphkit.cli.options import Output, argument, option
from graphkit.cli.render import Column, Message, Table
from graphkit.cli.stores import open_store, with_placeholder_types
from graphkit.cli.values import escape, pluralize
from graphkit.errors import CheckpointCorruptionError, CheckpointerConfigurationError

_COLUMNS: Final = (
    Column("time", "TIME", "time"),
    Column("principal", "WHO"),
    Column("operation", "OPERATION"),
    Column("thread", "THREAD", "name"),
    Column("ns", "NS"),
    Column("checkpoint", "CHECKPOINT", "id"),
    Column("result", "RESULT"),
    Column("error", "ERROR"),
)
_PROBLEMS: Final = (Column("where", "WHERE"), Column("reason", "PROBLEM"))

_Log: TypeAlias = Annotated[str, argument("The directory of the audit log.", "DIR")]
_DigestKey: TypeAlias = Annotated[str | None, option("The key of the log's digests, in a key file.", "FILE")]


def audit_list(
    context: CliContext,
    log: _Log,
    who: Annotated[str | None, option("Only what was done on behalf of this principal.", "NAME")],
    thread: Annotated[str | None, option("Only what was done with this thread; its whole id.", "ID")],
    since: Annotated[str | None, option("Only what began in this time: 12h, 30d.", "AGE")],
    operation: Annotated[str | None, option("Only this method of the saver, such as put or delete.", "NAME")],
    digest_key: _DigestKey,
) -> Table:
    """List who did what, when, and how it ended.

    The newest are listed first. With --json, each record also has its digests and the other fields of its entries.

    `graphkit audit DIR` does the same.

    Example: graphkit audit list audit-log --who ann --since 30d
    """
    start = context.time_ago(since)
    records = _open_log(log, digest_key).records(principal=who, thread_id=thread, operation=operation, since=start)
    rows = [_make_row(record) for record in records]
    rows.reverse()
    return Table(_COLUMNS, rows, empty="no records", summary=pluralize(len(rows), "record"))


@with_placeholder_types()
def audit_verify(
    _context: CliContext,
    log: _Log,
    store: Annotated[str | None, option("The store that was audited: also compare it with the log.", "STORE")],
    public_key: Annotated[str | None, option("A PEM file: also check the signatures of the log's heads.", "FILE")],
    expect_head: Annotated[str | None, option("A head that an earlier verify has shown.", "NUMBER:DIGEST")],
    digest_key: _DigestKey,
) -> Message:
    """Find what was changed in a log or its store.

    These are entries that were removed, changed, reordered or cut from the end; and with --store, what
    was altered, rolled back, removed or added without a record. The command changes nothing, and runs
    may go on. It exits with 12 if it finds something. Keep the head that it shows elsewhere, and pass it
    to --expect-head: a log that was cut back to an earlier signed head shows only against a kept head,
    or against the store.

    Example: graphkit audit verify audit-log --store runs --public-key audit.pem
    """
    opened = _open_log(log, digest_key)
    saver = None if store is None else open_store(store)
    report = opened.verify(saver, public_key=public_key, expect_head=expect_head)
    problems = [problem._asdict() for problem in report.problems]
    head = f"{report.head.seq}:{report.head.digest}"
    data = {**vars(report), "ok": report.ok, "head": head, "problems": problems}
    counts = [pluralize(report.entries, "entry", "entries")]
    if public_key is not None:
        counts.append(f"signed up to {report.signed}")
    if report.unknown:
        counts.append(f"{pluralize(report.unknown, 'operation')} without an outcome")
    if report.gaps:
        counts.append(f"{pluralize(report.gaps, 'entry', 'entries')} not written")
    summary = f"{', '.join(counts)}; head {head}"
    if report.ok:
        return Message(f"{summary}: no problems", data)
    sentence = f"{summary}: {pluralize(len(problems), 'problem')}"
    table = Table(_PROBLEMS, problems)
    return Message(sentence, data, CheckpointCorruptionError.exit_code, table=table)


def audit_export(context: CliContext, log: _Log, output: Output) -> Message | None:
    """Write the entries of a log as JSON lines.

    They are for an auditor who verifies them without graphkit: docs/security.md has the fields and the
    rules, and a program of 50 lines that checks them.

    Example: graphkit audit export audit-log --output audit.jsonl
    """
    lines = (line + "\n" for line in _open_log(log, None).export())
    return write_output(context, output, lines, ("entry", "entries"))


def _open_log(directory: str, digest_key: str | None) -> Any:
    """Return the AuditLog of a directory.

    Raises:
        CheckpointerConfigurationError: there is none.
    """
    if not any(Path(directory).glob("audit-*.log")):
        raise CheckpointerConfigurationError(f"{escape(directory)} is not the directory of an audit log")
    # By name, since graphkit does not import savers.
    return importlib.import_module("savers").AuditLog(directory, digest_key=digest_key)


def _make_row(record: Any) -> Row:
    fields = asdict(record)
    return {
        "time": datetime.fromisoformat(fields.pop("time")),
        "thread": fields.pop("thread_id"),
        "ns": fields.pop("checkpoint_ns"),
        "checkpoint": fields.pop("checkpoint_id"),
        **fields,
    }
