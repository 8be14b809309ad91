"""audit list, audit verify, audit export: who did what, what was changed, and lines for an auditor."""

import json
import re
from base64 import b64encode
from dataclasses import make_dataclass

import pytest

from graphkit.errors import AccessDeniedError
from graphkit.testing import made
from savers import AccessControlledSaver, AuditedSaver, AuditLog, FileSystemSaver, acting_as, policies
from tests.support.audit_logs import list_files, read_entries, write_entries
from tests.support.logs import flip_in_file
from tests.support.terminal import assert_refused, assert_shows, graphkit, read_json
from tests.support.threads import Colour

pytestmark = pytest.mark.requirement("P72")
KEY = bytes(range(32))


@pytest.fixture
def audited(tmp_path):
    """A store with an audit log, in the directories `store` and `log`."""
    return fill(tmp_path)


def fill(path, **options):
    store = FileSystemSaver(path / "store", fsync="never")
    policy = policies.prefix({"ann": "ann/", "bob": "bob/"})
    with AuditLog(path / "log", **options) as log, AuditedSaver(AccessControlledSaver(store, policy), log) as saver:
        with acting_as("ann"):
            saver.put("ann/1", made({"n": 1}))
            saver.get("ann/1")
        with acting_as("bob"), pytest.raises(AccessDeniedError):
            saver.get("ann/1")
    return path


def test_a_list_shows_who_did_what_and_how_it_ended(audited):
    done = graphkit("audit", audited / "log")
    assert done.code == 0
    listed = "\n".join(done.lines[1:])
    assert re.findall(r"(bob|ann) +(get|put) +ann/1 .*?(refused|ok)", listed) == [
        ("bob", "get", "refused"),
        ("ann", "get", "ok"),
        ("ann", "put", "ok"),
    ]
    assert graphkit("audit", "list", audited / "log").out == done.out


def test_a_list_is_filtered(audited):
    for options, count in ((["--who", "ann"], 2), (["--thread", "ann/1"], 3), (["--thread", "ann"], 0)):
        assert len(read_json("audit", "list", audited / "log", *options)) == count
    (put,) = read_json("audit", "list", audited / "log", "--operation", "put")
    assert put["digest"].startswith("sha256:")
    assert (put["principal"], put["thread"], put["result"]) == ("ann", "ann/1", "ok")


def test_verify_finds_nothing_in_a_log_that_was_left_alone(audited):
    done = graphkit("audit", "verify", audited / "log", "--store", audited / "store")
    assert_shows(done, 0, "no problems")
    head = read_json("audit", "verify", audited / "log")["head"]
    assert graphkit("audit", "verify", audited / "log", "--expect-head", head).code == 0


def test_verify_exits_with_12_if_the_log_or_the_store_was_changed(audited):
    (file,) = list_files(audited / "log")
    entries = read_entries(file)
    content = file.read_bytes()
    changed = [entry.replace(b'"ann"', b'"eve"') for entry in entries]
    write_entries(file, changed)
    verify = ["audit", "verify", audited / "log"]
    assert_shows(graphkit(*verify), 12, "it was changed")
    other_head = f"5:{'0' * 64}"
    found = graphkit(*verify, "--expect-head", other_head, "--json")
    assert found.code == 12
    assert not found.json["ok"]
    file.write_bytes(content)
    saver = FileSystemSaver(audited / "store")
    saver.put_writes("ann/1", {"answer:1": "yes"})
    assert_shows(graphkit(*verify, "--store", saver.base_directory), 12, "has no record")


def test_signatures_and_keyed_digests(tmp_path):
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    log, public_key, keys = (tmp_path / name for name in ("log", "public.pem", "keys"))
    public = Ed25519PrivateKey.from_private_bytes(KEY).public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    public_key.write_bytes(pem)
    keys.write_text(f"2026 {b64encode(KEY).decode()}\n")
    fill(tmp_path, signing_key=KEY, digest_key=KEY)
    signed = ["--public-key", public_key]
    keyed = ["--digest-key", keys]
    assert_shows(graphkit("audit", "verify", log, *signed), 0, "signed up to")
    verify_store = ["audit", "verify", log, "--store", tmp_path / "store"]
    assert graphkit(*verify_store).code == 18
    assert graphkit(*verify_store, *signed, *keyed).code == 0
    entries = read_json("audit", "list", log, "--who", "ann", *keyed)
    assert len(entries) == 2


def test_an_export_has_a_line_for_each_entry(audited, tmp_path):
    lines = graphkit("audit", "export", audited / "log").out.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["begin", "intent", "outcome", "call", "call"]
    done = graphkit("audit", "export", audited / "log", "--output", tmp_path / "audit.jsonl")
    assert done.out.startswith("exported 5 entries")
    assert (tmp_path / "audit.jsonl").read_text().splitlines() == lines


def test_an_export_that_fails_leaves_the_file_as_it_was(audited, tmp_path):
    output = tmp_path / "audit.jsonl"
    output.write_text("older")
    (file,) = list_files(audited / "log")
    flip_in_file(file, -300)
    assert graphkit("audit", "export", audited / "log", "--output", output).code == 12
    assert output.read_text() == "older"
    missing = graphkit("audit", "export", audited / "log", "--output", tmp_path / "no" / "audit.jsonl")
    assert_refused(missing, 15, f"cannot write {tmp_path / 'no'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.jsonl", "log", "store"]


def test_what_is_no_audit_log_is_refused(audited):
    for place in (audited, audited / "store", audited / "none"):
        assert graphkit("audit", "list", place).code == 18
    assert not (audited / "none").exists()
    assert graphkit("audit", "lst", audited / "log").code == 2


def test_a_store_with_values_of_types_that_are_not_registered_is_compared(tmp_path):
    for fields in ["x"], ["x", "y"], ["x"]:  # one type, to which a field was added meanwhile
        point = make_dataclass("Point", fields)
        store = FileSystemSaver(tmp_path / "store", fsync="never", types=[Colour, point])
        state = {"colour": Colour.RED, "point": point(*fields)}
        with AuditLog(tmp_path / "log") as log:
            audited = AuditedSaver(store, log)
            audited.put("t", made(state))
            audited.put_writes("t", {"answer": Colour.RED})
    verify = ["audit", "verify", tmp_path / "log", "--store", tmp_path / "store"]
    assert graphkit(*verify).code == 0

    store.put("t", made(state))
    assert graphkit(*verify).code == 12
