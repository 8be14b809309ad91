"""Cells, short ids, widths: what is shown of one value."""

import dataclasses
import enum
import io
import json
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from graphkit._values.frozen import to_plain
from graphkit.cli.cells import format_age, format_bytes, format_duration, short_ids, short_names
from graphkit.cli.commands.inspect import differences
from graphkit.cli.context import CliContext
from graphkit.cli.render import Column, Message, ShownColumn, Text, fit_table, show
from graphkit.cli.values import describe_payload, escape, to_json
from tests.support.terminal import graphkit


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.4, "now"), (1, "1 s ago"), (59, "59 s ago"), (60, "1 min ago"), (3599, "59 min ago"), (3600, "1 h ago"),
        (86400 * 2, "2 d ago"), (-90, "in 1 min"),
    ],
)  # fmt: skip
def test_how_long_ago(seconds, expected):
    assert format_age(timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (2 * 10**9, "2.0 GB")],
)
def test_bytes(size, expected):
    assert format_bytes(size) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0004, "<1 ms"), (0.25, "250 ms"), (1.5, "1.50 s"), (75, "1 min 15 s"), (3_700, "1 h 1 min")],
)
def test_durations(seconds, expected):
    assert format_duration(seconds) == expected


@given(st.lists(st.text("ab", min_size=1, max_size=40), unique=True))
def test_short_ids_and_names_tell_apart(names):
    short = short_ids(names)
    assert all(name.endswith(short[name]) for name in names)
    cut = [short[name] for name in names if short[name] != name]
    assert len(set(cut)) == len(cut)
    short = short_names(names)
    assert len(set(short.values())) == len(names)
    assert all(name.startswith(short[name].removesuffix("…")) for name in names)


COLUMNS = (Column("a", "A"), Column("b", "B", "id"), Column("c", "C", "number"), Column("d", "D", "list"))


def fit(width, *row, columns=COLUMNS):
    shown = [ShownColumn(column, [column.title, text]) for column, text in zip(columns, row, strict=False)]
    return [each.lines for each in fit_table(shown, width)]


def test_text_is_cut_before_figures_go():
    row = ["x" * 30, "i" * 10, "12345", "tag"]
    assert fit(36, *row) == [["A", "x" * 11 + "…"], ["B", "i" * 10], ["C", "12345"], ["D", "tag"]]
    assert [title for title, _ in fit(23, *row)] == ["A", "B"]
    assert fit(5, *row) == [["B", "i" * 10]]


def test_the_longest_of_two_texts_is_cut_first():
    columns = (Column("a", "A"), Column("b", "B"))
    texts = ["x" * 30, "y" * 20]

    widths = {width: [len(text) for _, text in fit(width, *texts, columns=columns)] for width in (46, 32, 16, 15)}

    assert widths == {46: [24, 20], 32: [15, 15], 16: [7, 7], 15: [15]}


def test_what_a_run_waits_for_is_cut_last():
    columns = (Column("p", "P", "payload"), *COLUMNS)

    def widths(width, *row):
        return [len(text) for _, text in fit(width, "p" * 60, *row, columns=columns)]

    assert widths(110, "x" * 30, "i" * 10, "12345") == [59, 30, 10, 5]  # what the others leave
    assert widths(44, "x" * 30, "i" * 10, "12345") == [22, 8, 10]  # half of the terminal
    assert widths(90, "x" * 7, "i" * 30, "1" * 8) == [39, 7, 30, 8]  # so that the figures stay
    assert widths(80, "x" * 7, "i" * 30, "1" * 8) == [39, 7, 30]  # figures go first
    assert widths(60, "x" * 7, "i" * 30) == [28, 30]  # and texts
    assert widths(45, "", "i" * 30) == [13, 30]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain ä", "plain ä"), ("", "''"), ("a\nb", r"a\nb"), ("\x1b[0m", r"\x1b[0m"), ("\u202e", r"\u202e")],
)
def test_text_that_a_terminal_would_obey(text, expected):
    assert escape(text) == expected


class Point(NamedTuple):
    x: int


@dataclasses.dataclass(frozen=True)
class Place:
    name: str


class Model(BaseModel):
    when: datetime
    seen: object = frozenset({Place("Chur")})


class Colour(enum.IntEnum):
    RED = 1


ODD = {
    1: (1, 2), "s": {2, 1}, "p": Point(1), "m": Model(when=datetime(2026, 1, 1, tzinfo=UTC)), "c": Colour.RED,
    "n": float("nan"), "b": b"\x00", "d": date(2026, 1, 1), "t": "\ud800", "o": 1j, "big": 2**70, "huge": 2**20_000,
}  # fmt: skip
ODD_AS_JSON = {
    "1": [1, 2], "s": [1, 2], "p": {"x": 1}, "c": 1,
    "m": {"when": "2026-01-01T00:00:00+00:00", "seen": [{"name": "Chur"}]},
    "n": "nan", "b": "AA==", "d": "2026-01-01", "t": "\\ud800", "o": "1j", "big": 2**70, "huge": hex(2**20_000),
}  # fmt: skip


def test_values_as_json():
    assert json.loads(to_json(ODD)) == ODD_AS_JSON


def test_json_has_nothing_that_a_terminal_would_obey():
    value = {"\x9b31m": ["\x7f\x85\u2028", "\u202eä 日本"]}
    text = to_json(value)
    assert text.isprintable()
    assert "ä 日本" in text
    assert json.loads(text) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab.[", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.[]'", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_there_is_a_difference_if_and_only_if_two_states_differ(one, two):
    assert bool(list(differences({"k": one}, {"k": two}))) is (
        json.dumps(one, sort_keys=True) != json.dumps(two, sort_keys=True)
    )
    assert list(differences(one, one)) == []
    assert to_plain(one) == one


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("Ship?", "Ship?"), ({"question": "Ship?"}, "Ship?"), ({"n": 1}, "n: 1"), ({}, "{}"), ([1], "[1]"), (None, "null"),
        ({"question": "Ship?", "of": [1]}, "question: Ship?, of: [1]"),
    ],
)  # fmt: skip
def test_what_a_human_is_asked(payload, expected):
    assert describe_payload(payload) == expected


def test_nothing_is_broken_in_the_middle_of_a_word(store):
    for command in (["show", store, "order-17"], ["diff", store, "order-17"], ["threads", store / "missing"]):
        done = graphkit(*command, terminal=True, width=40)
        wide = graphkit(*command, terminal=True, width=1_000)
        assert (done.out + done.err).split() == (wide.out + wide.err).split()


def context_of(height):
    out = io.StringIO()
    return CliContext(out=out, err=out, input=out, is_terminal=True, height=height)


def test_what_does_not_fit_the_screen_goes_through_a_pager(monkeypatch):
    paged = []
    monkeypatch.setattr("click.echo_via_pager", lambda lines, color: paged.append("".join(lines)))
    text = Text("\n".join("abc"), ["a", "b", "c"])
    show(context_of(4), text)
    show(context_of(None), text)
    show(dataclasses.replace(context_of(3), as_json=True), text)
    assert paged == []
    show(context_of(3), text)
    message = Message("d\ne", hint="f")
    show(context_of(3), message)
    assert paged == ["a\nb\nc\n", "d\ne\nf\n"]
