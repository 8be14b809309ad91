"""A service with two tenants, an auditor and an erasure request, killed in the middle of it.

Shows: a key for each person; access by tenant; an audit log; an erasure that is a durable run; a ledger for backups.
Needs the extra `encryption`.
Run:   python examples/tenant_service.py [--runs DIR]            the whole story: work is killed while it erases
       python examples/tenant_service.py work [--runs DIR]       kill it (kill -9) at any moment, and start it again
       python examples/tenant_service.py audit [--runs DIR]      who read what, and whether log and store agree
       python examples/tenant_service.py restore [--runs DIR]    a backup comes back, without the person
Prints a line for each node, `acme/1: assess`, then what the auditor sees, and what a backup still has.
DIR/data has the checkpoints and the audit log, DIR/backup a copy of both. DIR/safe is what a backup must never have:
the keys and the ledger.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from graphkit import RunnableConfig, StateGraph
from graphkit.errors import AccessDeniedError, CheckpointErasedError
from graphkit.operations import ErasureLedger, erase_where
from savers import AccessControlledSaver, AuditedSaver, AuditLog, FileSystemSaver, KeyFile, SubjectKeys, acting_as
from savers.policies import prefix

PEOPLE = {"acme": {17: "Ann Lee", 18: "Bob Ray"}, "globex": {17: "Cy Moss"}}
TENANTS = prefix({"acme": "acme/", "globex": "globex/", "operator": ""})


class Case(TypedDict):
    person: int
    notes: list[str]


class Erasure(TypedDict):
    person: int
    erased: list[str]


def say(line):
    print(f"{line}\n", end="", flush=True)  # with one call, so that threads do not mix their lines


def note(state: Case, config: RunnableConfig):
    """Write down something about the person: the name is content, and stands in no id and no metadata."""
    tenant = config.metadata["tenant"]
    say(f"{config.thread}: {config.node_id}")
    time.sleep(args.pause)
    return {"notes": [*state["notes"], f"{config.node_id} of {PEOPLE[tenant][state['person']]}"]}


def erase(state: Erasure, config: RunnableConfig):
    """Erase all threads of the person. Killed in the middle, it runs again, and erases what is left."""
    say(f"{config.thread}: erase")
    reports = erase_where(saver, {"person": state["person"]}, ledger=ledger)
    assert all(report.ok for report in reports), reports
    return {"erased": [report.thread_id for report in reports if report.thread_id]}


def destroy_key(state: Erasure, config: RunnableConfig):
    """Make every copy unreadable, in all backups. It is the last step: finding the threads needs the key."""
    say(f"{config.thread}: destroy_key")
    keys.destroy(f"{config.metadata['tenant']}-{state['person']}")
    return {}


cases = StateGraph(Case).set_entry_point("intake").set_finish_point("decide")
for step in ("intake", "assess", "decide"):
    cases.add_node(step, note)
cases.add_edge("intake", "assess").add_edge("assess", "decide")
erasures = StateGraph(Erasure).add_sequence([erase, destroy_key])
erasures.set_entry_point("erase").set_finish_point("destroy_key")


def choose_key(thread_id, metadata):
    """Each person of a tenant has a key; the other threads are sealed with the first key of the file."""
    return keys.add(f"{metadata['tenant']}-{metadata['person']}") if "person" in metadata else None


def open_data(data):
    """Return the audit log, and the saver that asks the policy, records each operation and seals what it stores."""
    log = AuditLog(data / "audit", signing_key=(safe / "signing.key").read_bytes())
    store = FileSystemSaver(data / "checkpoints", cipher=SubjectKeys(keys, key_for=choose_key))
    return log, AuditedSaver(AccessControlledSaver(store, TENANTS), log)


def go_on(graph, state, config):
    """Begin a run, or go on with it if it was killed; a finished one stays as it is."""
    summary = saver.summary(config)
    if summary is None or summary.status != "finished":
        graph.compile(checkpoint_saver=saver).invoke(None if summary else state, config)


def work_on_cases(tenant, numbers):
    with acting_as(tenant):
        for number in numbers:
            person = 17 if number % 2 else max(PEOPLE[tenant])
            config = RunnableConfig(f"{tenant}/{number}", metadata={"tenant": tenant, "person": person})
            go_on(cases, {"person": person, "notes": []}, config)


def erase_person(tenant, person):
    with acting_as(tenant):
        config = RunnableConfig(f"{tenant}/erasure-of-{person}", metadata={"tenant": tenant})
        go_on(erasures, {"person": person, "erased": []}, config)


def work():
    with ThreadPoolExecutor() as pool:
        if not (args.runs / "backup").exists():  # all of this comes before the request
            list(pool.map(work_on_cases, ["acme", "globex"], [range(1, 5), range(1, 5)]))
            shutil.rmtree(args.runs / "new-backup", ignore_errors=True)
            shutil.copytree(args.runs / "data", args.runs / "new-backup")
            (args.runs / "new-backup").rename(args.runs / "backup")
        others = pool.submit(work_on_cases, "globex", range(5, 9))  # goes on meanwhile
        erase_person("acme", 17)
        others.result()
    log.close()
    say("all work is done")


def audit():
    with acting_as("globex"):
        say(f"globex sees {', '.join(saver.threads())}")
        try:
            saver.get("acme/2")
        except AccessDeniedError as error:
            say(f"globex asks for acme/2: {type(error).__name__}")
    for operation, thread in {"get": "acme/2", "delete": "acme/1"}.items():
        for record in log.records(operation=operation, thread_id=thread):
            say(f"{record.principal}: {operation} {thread}: {record.result}")
    report = log.verify(saver, public_key=(safe / "public.key").read_bytes())
    say(f"the log and the store agree: {report.ok}")
    for problem in report.problems:
        say(f"  {problem}")


def restore():
    """Put a backup of store and log in place of a lost store, here beside it; and erase again what it brings back."""
    shutil.rmtree(args.runs / "restored", ignore_errors=True)
    shutil.copytree(args.runs / "backup", args.runs / "restored")
    restored_log, restored = open_data(args.runs / "restored")
    with acting_as("operator"):
        say(f"the backup has {', '.join(restored.threads())}")
        try:
            restored.get("acme/1")
        except CheckpointErasedError as error:
            say(f"acme/1 cannot be read: the key {error.key_id} was destroyed")
        again = ledger.apply(restored)
        erased = ", ".join(str(report.thread_id) for report in again)
        say(f"erased again: {erased}; nothing is left: {all(report.ok for report in again)}")
        say(f"there are {', '.join(restored.threads())}")
    say(f"its log and its store agree: {restored_log.verify(restored).ok}")
    restored_log.close()


def tell_the_story():
    command = [sys.executable, __file__, "--runs", str(args.runs), "--pause", str(args.pause)]
    with subprocess.Popen([*command, "work"], stdout=subprocess.PIPE, text=True) as worker:  # noqa: S603 - this file
        for line in worker.stdout or ():
            say(line.rstrip())
            if line == "acme/erasure-of-17: erase\n":
                worker.kill()
                break
    say("killed; started again")
    for role in ("work", "audit", "restore"):
        subprocess.run([*command, role], check=True)  # noqa: S603 - this file


def make_keys(folder):
    folder.mkdir(parents=True, exist_ok=True)
    signing_key = Ed25519PrivateKey.generate()
    (folder / "signing.key").write_bytes(signing_key.private_bytes_raw())
    (folder / "public.key").write_bytes(signing_key.public_key().public_bytes_raw())  # for the auditor
    (folder / "ledger.key").write_bytes(os.urandom(32))
    KeyFile(folder / "keys").add("2026")  # the first key: for what belongs to no person


parser = argparse.ArgumentParser(description="Two tenants, an auditor and an erasure request.")
parser.add_argument("role", nargs="?", choices=["work", "audit", "restore"])
parser.add_argument("--runs", default="runs", type=Path)
parser.add_argument("--pause", default=0.05, type=float, help="seconds that a node takes")
args = parser.parse_args()
safe = args.runs / "safe"
if not safe.exists():
    make_keys(args.runs / "new-safe")
    (args.runs / "new-safe").rename(safe)
keys = KeyFile(safe / "keys")
ledger = ErasureLedger(safe / "ledger", key=(safe / "ledger.key").read_bytes())
log, saver = open_data(args.runs / "data")
{None: tell_the_story, "work": work, "audit": audit, "restore": restore}[args.role]()
