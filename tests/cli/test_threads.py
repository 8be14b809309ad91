"""threads, history, search, stats: what people and scripts read of a real directory."""

from datetime import timedelta

import pytest

from graphkit import END, START, Checkpoint, RunnableConfig
from graphkit.cli.values import UsageError, parse_age
from savers import FileSystemSaver
from tests.support.graphs import make_chain
from tests.support.terminal import NOW, STOP, checkpoint, damage, graphkit, minutes_ago, read_json


def test_threads_in_a_pipe(store):
    done = graphkit("threads", store)
    assert done.out == (
        "THREAD    STATUS       NODE       NEXT     SAVED  SIZE   UPDATED               WAITING FOR\n"
        "import-a  stalled      __START__  read     1      355 B  2026-11-20T11:21:00Z\n"
        "order-17  interrupted  reserve    approve  2      662 B  2026-11-20T11:02:00Z  Ship lamp?\n"
        "order-18  finished     pack       __END__  2      565 B  2026-11-20T11:13:00Z\n"
    )
    assert (done.code, done.err) == (0, "")


def test_threads_at_a_terminal_of_80_columns(store):
    done = graphkit("threads", store, terminal=True, width=80)
    assert [line.rstrip() for line in done.lines] == [
        "3 threads: 1 stalled, 1 finished, 1 interrupted",
        "THREAD    STATUS       NODE       NEXT     SAVED   SIZE  UPDATED     WAITING FOR",
        "import-a  stalled      __START__  read         1  355 B  39 min ago",
        "order-18  finished     pack       __END__      2  565 B  47 min ago",
        "order-17  interrupted  reserve    approve      2  662 B  58 min ago  Ship lamp?",
    ]


def test_a_large_store_is_listed_by_id_so_that_only_a_page_is_read(store, monkeypatch):
    monkeypatch.setattr("graphkit.cli.commands.threads._MAX_SORTED", 2)
    lines = graphkit("threads", store, terminal=True).lines
    assert [line.split()[0] for line in lines[2:]] == ["import-a", "order-17", "order-18"]
    assert graphkit("threads", store, "--sort", "age", terminal=True).lines[3].startswith("order-18")


def test_threads_as_json(store):
    first, row, last = read_json("threads", store)
    done = graphkit("threads", store, "--json", terminal=True)
    assert done.out.startswith('[\n  {\n    "thread": "import-a",'), "indented at a terminal"
    assert done.json == [first, row, last]
    assert row == {
        "thread": "order-17", "status": "interrupted", "node": "reserve", "next": "approve",
        "waiting": {"question": "Ship lamp?"}, "failure": None, "progress": None, "reason": None, "problem": None, "checkpoints": 2, "size": 662,
        "updated": "2026-11-20T11:02:00+00:00", "id": "00000000-0000-7000-8000-000000000002", "tags": [],
        "metadata": {"run_id": "run-1", "source": "loop", "user": "anna", "step": 1},
    }  # fmt: skip


@pytest.mark.requirement("H44")
def test_threads_are_chosen_and_sorted(store):
    for options, expected in (
        (["--status", "stalled", "--status", "finished"], ["import-a", "order-18"]),
        (["--meta", "user=anna"], ["order-17"]),
        (["--meta", "step=1"], ["order-17", "order-18"]),
        (["--meta", 'step="1"'], []),
        (["--meta", "nobody=null"], []),
        (["--tag", "golden"], ["order-18"]),
        (["--newer", "40min"], ["import-a"]),
        (["--older", "40min"], ["order-17", "order-18"]),
        (["--older", "45min", "--newer", "50min"], ["order-18"]),
        (["--sort", "age"], ["import-a", "order-18", "order-17"]),
        (["--sort", "size"], ["order-17", "order-18", "import-a"]),
        (["--sort", "checkpoints", "--limit", "1"], ["order-17"]),
        (["--limit", "1", "--offset", "1"], ["order-17"]),
        (["--sort", "age", "--limit", "1", "--offset", "1"], ["order-18"]),
    ):
        assert [row["thread"] for row in read_json("threads", store, *options)] == expected


def test_a_terminal_gets_a_page_and_a_pipe_all(tmp_path):
    store = tmp_path / "many"
    with FileSystemSaver(store, fsync="never") as saver:
        for number in range(101):
            saver.put(RunnableConfig(f"t{number:03d}"), checkpoint(1, START, "a", {}))

    def show(*options, terminal=True):
        done = graphkit("threads", store, *options, terminal=terminal)
        return len(done.lines), done.err

    only = "only the first 100 threads; --all or --limit shows more\n"
    assert show() == (102, only)
    assert show("--sort", "age") == (102, only)
    assert show("--limit", 100) == (102, "")
    assert show("--all")[0] == 103
    assert show(terminal=False)[0] == 102


def test_a_damaged_thread_is_listed_among_the_good_ones(store):
    damage(store, "order-18")

    done = graphkit("threads", store, "--json")
    status = {row["thread"]: row["status"] for row in done.json}
    assert status == {"import-a": "stalled", "order-17": "interrupted", "order-18": "damaged"}
    assert "is damaged at byte" in done.json[2]["problem"]
    assert " damaged at byte " in graphkit("threads", store, terminal=True, width=90).lines[-1]

    (damaged,) = read_json("threads", store, "--status", "damaged")
    assert damaged["thread"] == "order-18"
    assert graphkit("threads", store, "--newer", "1d").code == 0
    assert read_json("stats", store)["statuses"] == {"stalled": 1, "interrupted": 1, "damaged": 1}


def test_a_thread_that_cannot_even_be_named_is_warned_of(store):
    FileSystemSaver(store).put("Order / 19", checkpoint(1, START, "a", {}))
    damage(store, "order-19", offset=8)
    statuses = {row["thread"]: row["status"] for row in read_json("threads", store)}
    assert statuses["Order / 19"] == "damaged"  # a META record has the id

    (log,) = store.glob("t-order-19-*/log")
    header = log.read_bytes()[:64]
    log.write_bytes(header.ljust(600, b"?"))
    done = graphkit("threads", store)
    assert len(done.lines) == 4
    assert done.err.startswith("graphkit: warning: ")
    assert "cannot be read" in done.err

    log.unlink()
    log.mkdir()
    assert graphkit("threads", store).err.endswith("read: it is a directory where a file should be; move it away\n")


def test_ids_that_a_terminal_would_obey_are_escaped(tmp_path):
    store = tmp_path / "odd"
    obeyed = checkpoint(1, "n\x07", "x", {"k\x1b": "v\x1b"})
    with FileSystemSaver(store, fsync="never") as saver:
        saver.put("a\x1b[31m\nb", obeyed)
        saver.put("", checkpoint(1, START, "x", {}))
    done = graphkit("threads", store)
    assert "\x1b" not in done.out
    names = [line.split()[0] for line in done.lines[1:]]
    assert names == ["''", r"a\x1b[31m\nb"]
    shown = graphkit("show", store, names[1])
    assert shown.code == 0
    assert "\x1b" not in shown.out


@pytest.mark.requirement("G36", "H44", "P90")
def test_history_in_a_pipe_and_as_rows(store):  # several checkpoints per run, with their times and sizes
    assert graphkit("history", store, "order-18").out == (
        "CHECKPOINT                            NODE       NEXT     STATUS    SOURCE  STEP  CREATED               TOOK       SIZE   TAGS\n"
        "00000000-0000-7000-8000-000000000013  pack       __END__  finished  loop    1     2026-11-20T11:13:00Z  2 min 0 s  122 B  golden\n"
        "00000000-0000-7000-8000-000000000011  __START__  pack               input   0     2026-11-20T11:11:00Z             158 B\n"
    )
    first, second = read_json("history", store, "order-18")
    assert (first["seconds"], first["size"], first["tags"]) == (120.0, 122, ["golden"])
    assert (second["seconds"], second["parent"], second["metadata"]["user"]) == (None, None, "bert")


@pytest.mark.requirement("H44")
def test_history_is_chosen(store):
    for options, expected in (
        (["--limit", "1"], ["pack"]),
        (["--source", "input"], [START]),
        (["--node", "pack"], ["pack"]),
    ):
        assert [row["node"] for row in read_json("history", store, "order-18", *options)] == expected


@pytest.mark.requirement("H44")
def test_only_clean_checkpoints(saver, store):
    saver.put("order-18", checkpoint(14, "again", "x", {}, 13, clean=False))
    here = saver.put("order-18", checkpoint(15, "fails", "x", {}, 14))
    failure = {"node_id": "x", "type": "ValueError", "message": "no"}
    saver.put_writes(here, {"failure": {**failure, "at": NOW}})
    assert [row["node"] for row in read_json("history", store, "order-18", "--clean")] == ["pack", START]
    (row,) = read_json("threads", store, "--status", "failed")
    assert row["failure"] == {**failure, "cause": None}


def test_search_in_all_threads(store):
    assert graphkit("search", store, "step=1").out == (
        "THREAD    CHECKPOINT                            NODE     NEXT     STATUS       CREATED\n"
        "order-18  00000000-0000-7000-8000-000000000013  pack     __END__  finished     2026-11-20T11:13:00Z\n"
        "order-17  00000000-0000-7000-8000-000000000002  reserve  approve  interrupted  2026-11-20T11:02:00Z\n"
    )
    for words, found in (
        (["step=1", "--limit", "1"], ["order-18"]),
        (["user=bert", "step=0"], ["order-18"]),
        (["run_id=run-1", "--thread", "import"], ["import-a"]),
    ):
        assert [row["thread"] for row in read_json("search", store, *words)] == found
    assert graphkit("search", store, "user=nobody").err == "no checkpoint has this metadata\n"


def test_search_passes_over_what_is_damaged_and_reports_it(store):
    damage(store, "order-17")
    done = graphkit("search", store, "step=1", "--json")
    assert [row["thread"] for row in done.json] == ["order-18"]
    assert "is damaged" in done.err
    assert graphkit("search", store, "step=1", "--thread", "order-17").code == 12


@pytest.mark.requirement("P60", "P90", "G38")
def test_stats_of_a_store(store):
    done = graphkit("stats", store)
    assert done.out == (
        "threads                  3\n"
        "by status                1 stalled, 1 interrupted, 1 finished\n"
        "waiting for a human      1\n"
        "checkpoints              5\n"
        "size                     1.7 kB\n"
        "size per checkpoint      139 B\n"
        "oldest                   2026-11-20 11:01:00 (59 min ago)\n"
        "newest                   2026-11-20 11:21:00 (39 min ago)\n"
        "checkpoints per hour     15.0\n"
        "median step              2 min 0 s\n"
        "slowest node             pack (2 min 0 s)\n"
        "resumed after a failure  0\n"
    )


def took(store, thread):
    """How long each step of a thread took, newest first."""
    return [row["seconds"] for row in read_json("history", store, thread)]


def test_the_time_until_an_answer_or_an_update_and_between_runs_is_not_that_of_a_node(saver, store):
    saver.put_writes("order-17", {"answer:q-1": True})
    saver.put("order-17", checkpoint(50, "approve", "ship", {}, 2))
    assert took(store, "order-17") == [None, 60.0, None]
    assert read_json("stats", store, "order-17")["slowest_node"] == "reserve (1 min 0 s)"
    saver.put("order-18", checkpoint(50, START, "pack", {}, 13, source="input"))
    saver.put("order-18", checkpoint(51, "pack", "pack", {}, 50, source="update"))
    assert took(store, "order-18") == [None, None, 120.0, None]
    failure = {"node_id": "read", "type": "E", "message": "no", "at": NOW}
    saver.put_writes("import-a", {"failure": failure})
    saver.put_writes("import-a", {"failure": None})  # the run went on
    saver.put("import-a", checkpoint(50, "read", "write", {}, 21))
    assert took(store, "import-a") == [None, None]


def test_the_time_of_a_node_that_was_resumed_begins_with_the_resume(saver, store):
    resumed_at = minutes_ago(10.5).isoformat()
    saver.put("import-a", checkpoint(50, "read", "write", {}, 21, resumed_at=resumed_at))
    saver.put("import-a", checkpoint(51, "write", "x", {}, 50, resumed_at="of the caller's own"))
    saver.put("import-a", checkpoint(52, "x", "y", {}, 51, resumed_at=minutes_ago(8.5)))  # the same
    assert took(store, "import-a") == [60.0, 60.0, 30.0, None]


@pytest.mark.parametrize(("seconds", "rate"), [(0.05, None), (59, None), (60, 120.0)])
def test_a_rate_wants_a_minute_of_history(tmp_path, seconds, rate):
    saver, t = FileSystemSaver(tmp_path / "new", fsync="never"), RunnableConfig("t")
    first = saver.put(t, checkpoint(1, START, "a", {}, source="input"))
    later = Checkpoint.builder(saver.get(first)).id("2").createdAt(minutes_ago(59) + timedelta(seconds=seconds))
    saver.put(t, later.build())
    assert read_json("stats", tmp_path / "new")["per_hour"] == rate
    assert ("per hour" in graphkit("stats", tmp_path / "new").out) == (rate is not None)


def test_a_thread_was_updated_when_it_asked_or_failed(saver, store):
    fails = {"node_id": "read", "type": "E", "message": "no", "at": minutes_ago(3)}
    saver.put_writes("order-17", {"interrupt:q-2": {**STOP, "created_at": minutes_ago(5)}})
    saver.put_writes("import-a", {"failure": fails})
    rows = read_json("threads", store, "--sort", "age")
    assert [(row["thread"], row["updated"][11:16]) for row in rows] == [
        ("import-a", "11:57"), ("order-17", "11:55"), ("order-18", "11:13"),
    ]  # fmt: skip


@pytest.mark.requirement("G38")
def test_how_resumes_end(saver, store):  # resume success rate
    for thread, following in (("good", "__END__"), ("bad", "x"), ("under-way", "x")):
        saver.put(thread, checkpoint(1, "a", following, {}, clean=False))
    saver.put_writes("bad", {"failure": {"node_id": "x", "type": "E", "message": "no", "at": NOW}})
    stats = read_json("stats", store)
    assert (stats["resumed_after_failure"], stats["resume_success_rate"]) == (3, 0.5)
    assert stats["statuses"] == {"failed": 1, "finished": 2, "stalled": 2, "interrupted": 1}


def test_an_age():
    ages = {"90s": timedelta(seconds=90), "1.5h": timedelta(minutes=90), "2 d": timedelta(2), "1w": timedelta(7)}
    assert {text: parse_age(text) for text in ages} == ages
    for text in ("", "5", "min", "3 fortnights", "1h30", "1e9w", "1e400s", "-1d"):
        with pytest.raises(UsageError):
            parse_age(text)


@pytest.mark.parametrize("wrong", [("--newer", "5"), ("--older", "-1d"), ("--meta", "user")])
def test_a_filter_that_makes_no_sense_is_refused_even_where_there_is_nothing_to_choose_from(tmp_path, wrong):
    FileSystemSaver(tmp_path / "empty").close()
    assert graphkit("threads", tmp_path / "empty", *wrong).code == 2


def test_stats_and_verify_count_those_of_nested_graphs_and_of_released_histories_too(runs):
    nested = make_chain({}, b=lambda _: {}).compile()
    with FileSystemSaver(runs) as saver:
        app = make_chain({}, sub=nested).compile(checkpoint_saver=saver)
        for thread in ("live", "again", "gone"):
            app.invoke({}, thread)
        saver.release("again")
        saver.release("gone")
        app.invoke({}, "again")
    stats = read_json("stats", runs)

    assert stats["checkpoints"] == read_json("verify", runs)["checkpoints"] == 16
    assert (stats["threads"], stats["released"], stats["statuses"]) == (2, 8, {"finished": 2})
    assert read_json("stats", runs, "again")["checkpoints"] == 8
    assert "of them released         8" in graphkit("stats", runs).out
    assert read_json("stats", runs, "live")["released"] is None


def test_a_history_that_has_branched_is_a_tree(saver, store):
    saver.put("order-18", checkpoint(14, "weigh", "ship", {}, 11, clean=False))
    saver.put("order-18", checkpoint(15, "ship", END, {}, 14))
    saver.put("order-18", checkpoint(16, "pack", "ship", {}, 11))

    def draw(*options):
        lines = graphkit("history", store, "order-18", *options, terminal=True, width=120).lines
        return [line[:5] for line in lines[2:]]

    assert draw() == ["●    ", "│ ●  ", "│ ●  ", "│ │ ●", "○─┴─╯"]
    # A line leads to the nearest ancestor that is shown, and on to what a limit leaves out.
    assert draw("--clean") == ["●    ", "│ ●  ", "│ │ ●", "○─┴─╯"]
    assert draw("--limit", "2") == ["●    ", "│ ●  "]
    rows = read_json("history", store, "order-18")
    assert [(row["step"], row["seconds"]) for row in rows] == [(1, None), (2, 60), (1, None), (1, 120), (0, None)]
    assert read_json("history", store, "order-18", "--limit", "2") == rows[:2]
    assert "○" not in graphkit("history", store, "order-18").out
