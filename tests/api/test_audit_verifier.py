"""The program of docs/security.md that verifies an export of an audit log without graphkit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from graphkit import RunnableConfig
from graphkit.testing import made
from savers import AuditedSaver, AuditLog, MemorySaver, acting_as

pytest.importorskip("cryptography")
pytestmark = pytest.mark.requirement("P72")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
KEY = bytes(range(32))


@pytest.fixture
def program(tmp_path):
    (found,) = re.findall(r'^```python continued\n("""Verifies .*?)^```', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found.splitlines()) <= 50
    assert not re.search(r"import (graphkit|savers)|from (graphkit|savers)", found)
    path = tmp_path / "verify_audit.py"
    path.write_text(found)
    return path


@pytest.fixture
def lines(tmp_path):
    with AuditLog(tmp_path / "log", signing_key=KEY, sign_every=4, max_bytes=2000, digest_key=KEY) as log:
        saver = AuditedSaver(MemorySaver(), log)
        with acting_as("Zoë \U0001f980"):
            for number in range(6):
                saver.put(RunnableConfig("t"), made({"n": number}))
                saver.get(RunnableConfig("t"))
            saver.prune("t", keep_last=1)
    return list(log.export())


@pytest.fixture
def verify(program, tmp_path):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public_key = Ed25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw().hex()

    def run(lines, *, public_key=public_key):
        (tmp_path / "audit.jsonl").write_text("".join(f"{line}\n" for line in lines))
        command = [sys.executable, "-I", program, tmp_path / "audit.jsonl", public_key]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout

    return run


def test_it_accepts_an_export(verify, lines):
    assert verify(lines).startswith(f"ok: {len(lines)} entries, signed up to {len(lines)}, 0 operations without")


def tamper(lines, place):
    """Yield the lines without one of them, with it and the next one in each other's place, and with it changed."""
    before, one, following, rest = lines[:place], lines[place], lines[place + 1], lines[place + 2 :]
    changed = json.loads(one) | {"time": "2020-01-01T00:00:00.000000Z"}
    yield [*before, following, *rest]
    yield [*before, following, one, *rest]
    yield [*before, json.dumps(changed, sort_keys=True, separators=(",", ":")), following, *rest]


def test_it_finds_what_was_removed_changed_or_reordered(program, lines):
    namespace = {"__name__": "verifier"}
    exec(compile(program.read_text(), program, "exec"), namespace)
    check = namespace["verify_lines"]
    assert check(lines).startswith("ok")
    for place in range(len(lines) - 1):
        for tampered in tamper(lines, place):
            assert not check(tampered).startswith("ok")


def test_it_finds_signatures_of_another_key_and_an_end_that_is_not_signed(verify, lines):
    assert "no signature" in verify(lines, public_key="00" * 32)
    last = max(number for number, line in enumerate(lines[:9]) if "signature" in line)
    assert verify(lines[: last + 1]).startswith("ok"), "cut back to a signed head"


def test_an_unsigned_entry_does_not_decide_when_a_signed_head_is_due(verify, tmp_path, lines):
    with AuditLog(tmp_path / "log", digest_key=KEY) as forger:
        for _ in range(10):
            forger.append({"kind": "call", "operation": "get", "sign_every": 10**9}, is_lasting=False)
    assert verify(forger.export()) == "the end is not signed\n"
