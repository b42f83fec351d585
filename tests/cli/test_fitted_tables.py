"""Tables and lists of facts at any width."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from statechannel.cli.kit.fitted_tables import THEME, Cell, Column, FactList, FittedTable, Tone, cell, fact, toned

HEADERS = (
    Column("from"),
    "bundle",
    "cause",
    "length",
    Column("end", 4),
    Column("owner before", 2),
    Column("why", text=True),
)
TITLES = ("from", "bundle", "cause", "length", "end", "owner before", "why")
TIME = Cell("2026-11-26 05:12:00.334Z", "05:12:00.334Z")
ROW = (
    TIME,
    "public/default/0x90000000_0xa0000000",
    "owner-lost",
    "6.04 s",
    "assigned",
    "b2",
    "b2 was gone, repaired by b3 (owner b2 is lost)",
)


def drawn(renderable: Any, width: int, **options: Any) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, theme=THEME, **options).print(renderable, soft_wrap=True)
    return file.getvalue().split("\n")[:-1]


def test_a_table_that_fits_shows_everything() -> None:
    assert drawn(FittedTable(HEADERS, [ROW]), 180) == [
        "from                      bundle                                cause       length  end       owner before  why",
        "2026-11-26 05:12:00.334Z  public/default/0x90000000_0xa0000000  owner-lost  6.04 s  assigned  b2            "
        "b2 was gone, repaired by b3 (owner b2 is lost)",
    ]


def test_a_narrow_one_has_short_times_fewer_columns_and_text_below_the_row() -> None:
    assert drawn(FittedTable(HEADERS, [ROW]), 80) == [
        "from           bundle                                cause       length  owner",
        "                                                                         before",
        "05:12:00.334Z  public/default/0x90000000_0xa0000000  owner-lost  6.04 s  b2",
        "  b2 was gone, repaired by b3 (owner b2 is lost)",
        "(`-o wide` also shows: end)",
    ]


def test_where_times_have_room_once_columns_are_gone_they_are_complete() -> None:
    lines = drawn(FittedTable(HEADERS, [ROW]), 95)
    assert lines[2].startswith("2026-11-26 05:12:00.334Z  public/default/")
    assert lines[3:] == ["  b2 was gone, repaired by b3 (owner b2 is lost)", "(`-o wide` also shows: end)"]


def test_a_very_narrow_one_has_a_block_for_each_row() -> None:
    rows = [("b1", toned("alive"), 8), ("b2", None, 0)]
    assert drawn(FittedTable(("broker", "state", "bundles"), rows), 18) == [
        "broker   b1",
        "state    alive",
        "bundles  8",
        "",
        "broker   b2",
        "bundles  0",
    ]
    assert drawn(FittedTable(("broker", "state", "bundles"), rows[:1]), 10) == [
        "broker: b1",
        "state:",
        "  alive",
        "bundles: 8",
    ]


def test_wide_is_one_line_a_row_whatever_the_width() -> None:
    assert drawn(FittedTable(HEADERS, [ROW], wide=True), 40) == drawn(FittedTable(HEADERS, [ROW]), 180)


@given(
    st.lists(st.tuples(*[st.text("ab 漢", max_size=60)] * 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.integers(10, 200),
)
def test_no_line_is_longer_than_the_terminal_nor_ends_in_blanks(
    rows: list[tuple[str, ...]], ranks: list[int], width: int
) -> None:
    headers = [Column(f"title {number}", rank) for number, rank in enumerate(ranks)]
    console = Console(width=width, theme=THEME)
    for line in console.render_lines(FittedTable(headers, rows), pad=False):
        text = "".join(segment.text for segment in line)
        assert sum(segment.cell_length for segment in line) <= width
        assert text == text.rstrip(" ")


@pytest.mark.parametrize("width", range(42, 200))
def test_no_word_is_broken_that_fits_a_line(width: int) -> None:
    lines = drawn(FittedTable(HEADERS, [ROW], footer=False), width)
    words = {word.rstrip(":") for line in lines for word in line.split()}
    assert words <= set(f"{' '.join(TITLES)} {TIME.text} {TIME.short} {' '.join(map(cell, ROW[1:]))}".split())


def test_facts_wrap_beside_their_title() -> None:
    facts = FactList([fact("leader", "b1, term 73"), fact("remark", "a longer remark that does not fit one line")])
    assert drawn(facts, 40) == [
        "leader  b1, term 73",
        "remark  a longer remark that does not",
        "        fit one line",
    ]
    assert len(drawn(FactList(facts.facts, wide=True), 40)) == 2


def test_colours_say_what_the_words_say_and_can_be_off() -> None:
    table = FittedTable(("broker", "state"), [("b1", toned("alive")), ("b2", toned("lost"))])
    seen = "\n".join(drawn(table, 80, force_terminal=True, color_system="standard", no_color=False))
    assert "\x1b[32malive\x1b[0m" in seen
    assert "\x1b[1;31mlost\x1b[0m" in seen
    without = "\n".join(drawn(table, 80, force_terminal=True, color_system="standard", no_color=True))
    assert "alive" in without
    assert "[32m" not in without
    assert "31m" not in without


def test_each_tone_has_a_style() -> None:
    assert all(tone in THEME.styles for tone in Tone)


def test_what_brokers_write_does_not_steer_the_terminal() -> None:
    assert "\x1b" not in "".join(drawn(FittedTable(("why",), [("\x1b[2J",)]), 80))
