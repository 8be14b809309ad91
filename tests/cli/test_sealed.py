"""Sealed directories on the command line: who has the keys sees all, who has not sees what they lack."""

import os
import uuid
from base64 import b64encode

import pytest

from savers import FileSystemSaver, KeyFile, PostgresSaver, SqliteSaver
from tests.support.sweeps import in_turn
from tests.support.terminal import assert_refused, assert_shows, checkpoint, graphkit, minutes_ago, read_json

SECRET = "lamp for Anna"
OLD, NEW = bytes(range(32)), bytes(32)


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# the first is the current one\n\n2025 {b64encode(OLD).decode()}\n", encoding="utf-8")
    return path


def fill(saver):
    with saver:
        for number in range(3):
            saver.put("order-17", checkpoint(number, "a", "b", {"item": SECRET, "n": number}))
        saver.put("order-18", checkpoint(9, "a", "b", {"item": SECRET}))
        saver.release("order-18")


@pytest.fixture
def sealed(tmp_path, keys):
    fill(FileSystemSaver(tmp_path / "runs", fsync="never", cipher=keys))
    return tmp_path / "runs"


@pytest.fixture(params=in_turn(["directory", "sqlite", "postgres"], "store"))
def store(request, tmp_path, keys):
    """The name of a sealed store."""
    if request.param == "directory":
        yield str(request.getfixturevalue("sealed"))
    elif request.param == "sqlite":
        fill(SqliteSaver(tmp_path / "runs.db", fsync="never", cipher=keys))
        yield f"sqlite:{tmp_path / 'runs.db'}"
    else:
        server = request.getfixturevalue("server")
        schema = f"sealed_{uuid.uuid4().hex}"
        fill(PostgresSaver(server.connection_string, schema=schema, cipher=keys))
        yield f"postgres:{server.connection_string} schema={schema}"
        server.drop_schema(schema)


def test_the_option_and_the_environment_give_the_keys(store, keys):
    assert SECRET in graphkit("show", store, "order-17", "--key-file", keys).out
    assert SECRET in graphkit("show", store, "order-17", GRAPHKIT_KEYS=str(keys)).out
    assert len(read_json("history", store, "order-17", "--key-file", keys)) == 3


def test_without_keys_a_command_names_the_key_and_shows_nothing(store):
    for name, *words in (["show", "order-17"], ["history", "order-17"], ["threads"], ["interrupts"]):
        done = graphkit(name, store, *words)
        assert SECRET not in done.out + done.err
        assert "'2025'" in done.out + done.err
        assert done.code == 0 or (done.code == 21 and "; here --key-file names the keys" in done.err)


def test_a_thread_whose_key_is_missing_is_listed_as_sealed(store, keys):
    rows = read_json("threads", store, "--status", "sealed")
    assert [(row["thread"], row["status"]) for row in rows] == [("order-17", "sealed")]
    assert "needs the key '2025'" in rows[0]["problem"]
    assert read_json("stats", store)["statuses"] == {"sealed": 1}
    assert read_json("stats", store, "--key-file", keys)["statuses"] == {"stalled": 1}


def test_verify_without_keys(store):
    done = graphkit("verify", store)
    assert_shows(done, 21, "the checksums are right; give the keys to check the rest: --key-file names them")
    assert {row["state"] for row in read_json("verify", store)["problems"]} == {"sealed"}


@pytest.mark.parametrize("kind", ["", "sqlite:"])
def test_a_copy_to_any_store_is_sealed_with_the_keys(store, keys, tmp_path, kind):
    target = tmp_path / "target" / "copy"
    target.parent.mkdir()
    name = f"{kind}{target}"
    copy = ["copy", store, "--to", name, "--key-file", keys]
    assert graphkit(*copy).code == 0
    shown = graphkit("show", name, "order-17", GRAPHKIT_KEYS=str(keys))
    assert SECRET in shown.out
    refused = graphkit("show", name, "order-17")
    assert_refused(refused, 21, "--key-file names the keys")
    files = [path for path in target.parent.rglob("*") if path.is_file()]

    assert files
    assert not any(SECRET.encode() in path.read_bytes() for path in files)
    assert graphkit(*copy, "--plaintext").code == 21


def test_verify_without_keys_and_with_damage(sealed):
    (path,) = sealed.glob("t-order-17-*/log")
    data = bytearray(path.read_bytes())
    data[-60:-50] = b"?" * 10
    path.write_bytes(data)
    assert graphkit("verify", sealed).code == 12
    done = graphkit("repair", sealed)
    assert done.code == 12
    assert path.read_bytes() == data
    assert "'2025'" in done.out


def test_rotate(sealed, keys):
    (path,) = sealed.glob("t-order-17-*/log")
    path.with_name("torn-1-9.bin").write_bytes(b"torn")
    old = keys.read_text(encoding="utf-8")
    new = f"2026 {b64encode(NEW).decode()}\n"
    keys.write_text(new + old, encoding="utf-8")
    done = graphkit("rotate", sealed, "--key-file", keys)
    assert done.out.startswith("sealed 2 logs with the current key; these still hold bytes as they were")
    assert done.out.endswith("torn-1-9.bin\n")

    again = read_json("rotate", sealed, "order-18", "--key-file", keys)
    assert again["rewritten"] == []
    keys.write_text(new, encoding="utf-8")
    assert SECRET in graphkit("show", sealed, "order-17", "--key-file", keys).out
    assert graphkit("verify", sealed, "--key-file", keys).code == 0
    assert graphkit("rotate", sealed).code == 18
    assert graphkit("rotate", "memory:", "--key-file", keys).code == 18


def test_a_readable_export_must_be_asked_for_and_a_raw_one_stays_sealed(sealed, keys, tmp_path):
    done = graphkit("export", sealed, "--key-file", keys)
    assert_refused(done, 18, "--plaintext")
    assert SECRET not in done.out
    assert SECRET in graphkit("export", sealed, "--key-file", keys, "--plaintext").out
    raw = graphkit("export", sealed, "--raw")  # needs no key
    assert raw.code == 0
    assert SECRET not in raw.out
    elsewhere = tmp_path / "elsewhere"
    assert graphkit("import", elsewhere, "-", stdin=raw.out).code == 0
    assert SECRET in graphkit("show", elsewhere, "order-17", "--key-file", keys).out


@pytest.mark.parametrize(
    "content",
    [
        "", "# none\n", "one", "one two three", "one short", f"a {b64encode(OLD[:31]).decode()}", "a ????", b"\xff\xfe",
        f"a {b64encode(OLD).decode()}\n" * 2,
    ],
)  # fmt: skip
def test_a_malformed_key_file_is_an_error_that_shows_no_key(sealed, keys, content):
    keys.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = graphkit("show", sealed, "order-17", "--key-file", keys)
    assert_refused(done, 18, str(keys), "repeats the key id 'a'" if "\na" in str(content) else "")
    assert b64encode(OLD[:31]).decode() not in done.err


def test_a_thread_whose_status_is_sealed_is_not_deleted_as_idle(sealed):
    for path in sealed.rglob("*"):
        os.utime(path, (minutes_ago(60).timestamp(), minutes_ago(60).timestamp()))
    for options in (["--dry-run"], ["--yes"]):
        assert_refused(graphkit("prune", sealed, "--idle", "30min", *options), 21, "--key-file")
    assert [row["thread"] for row in read_json("threads", sealed)] == ["order-17"]


@pytest.fixture
def erased(store, keys, tmp_path):
    """Runs commands on a store whose old key was destroyed after a copy, `copied.db`, was sealed with the new one."""
    keys.write_text(f"2026 {b64encode(NEW).decode()}\n{keys.read_text()}", encoding="utf-8")
    given = ("--key-file", keys)
    assert graphkit("copy", store, "--to", f"sqlite:{tmp_path / 'copied.db'}", *given).code == 0
    KeyFile(keys).destroy("2025")
    return lambda name, *words: graphkit(name, store, *words, *given)


def test_an_erased_thread_is_named(erased):
    (row,) = erased("threads", "--status", "erased", "--json").json
    assert row["thread"] == "order-17"
    assert row["problem"] == "its key '2025' was destroyed"
    shown = erased("show", "order-17")
    assert_refused(shown, 28, "the key was destroyed")
    assert "--key-file" not in shown.err
    assert_shows(erased("verify"), 0, "2 logs erased: no problems")
    assert erased("verify", "--json").json["erased"] == 2
    assert erased("stats", "--json").json["statuses"] == {"erased": 1}
    assert erased("rotate", "--json").json["erased"] != []
    assert_shows(erased("rotate"), 0, "2 logs stayed, because their keys were destroyed")


def test_an_erased_thread_hides_nothing_and_can_be_deleted(erased, keys, tmp_path):
    prune = ["prune", "--keep-last", "1"]
    for command in (["compact"], prune, [*prune, "--dry-run"]):
        assert erased(*command).code == 0, command
    assert erased(*prune, "order-17").code == 28

    done = erased("copy", "--to", f"sqlite:{tmp_path / 'again.db'}")
    assert_refused(done, 0, "passed over")
    assert erased("delete", "order-17", "--yes").code == 0
    assert erased("threads", "--json").json == []
    copied = f"sqlite:{tmp_path / 'copied.db'}"
    assert SECRET in graphkit("show", copied, "order-17", "--key-file", keys).out


def test_keys_that_a_store_cannot_use_are_refused(sealed, keys):
    for command in (["threads", "memory:"], ["copy", sealed, "--to", "memory:"]):
        assert_refused(graphkit(*command, "--key-file", keys), 18, "cannot be sealed")
        assert_refused(graphkit(*command, GRAPHKIT_KEYS=str(keys)), 18, "cannot be sealed")
