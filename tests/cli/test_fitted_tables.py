"""Tables and lists of facts at any width."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from statechannel.cli.kit.fitted_tables import Cell, Column, FittedTable, fact_list, toned

HEADERS = (
    Column("from"),
    "bundle",
    "cause",
    "length",
    Column("end", 4),
    Column("owner before", 2),
    Column("why", text=True),
)
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
    Console(file=file, width=width, **options).print(renderable, soft_wrap=True)
    return [line.rstrip() for line in file.getvalue().split("\n")[:-1]]


def test_a_table_that_fits_shows_everything() -> None:
    assert drawn(FittedTable(HEADERS, [ROW]), 180) == [
        "from                      bundle                                cause       length  end       owner before  why",
        "2026-11-26 05:12:00.334Z  public/default/0x90000000_0xa0000000  owner-lost  6.04 s  assigned  b2            "
        "b2 was gone, repaired by b3 (owner b2 is lost)",
    ]


def test_a_narrow_one_has_short_times_fewer_columns_and_text_below_the_row() -> None:
    assert drawn(FittedTable(HEADERS, [ROW]), 80) == [
        "from           bundle                                cause       length",
        "05:12:00.334Z  public/default/0x90000000_0xa0000000  owner-lost  6.04 s",
        "  b2 was gone, repaired by b3 (owner b2 is lost)",
        "(`-o wide` also shows: end, owner before)",
    ]


def test_text_wraps_where_it_has_room_beside_the_others() -> None:
    rows = [("b1", 12, "a remark of a length that does not fit beside the other columns"), ("b2", 3, None)]
    assert drawn(FittedTable(("broker", "bundles", "remarks"), rows), 60) == [
        "broker  bundles  remarks",
        "b1           12  a remark of a length that does not fit",
        "                 beside the other columns",
        "b2            3  -",
    ]


def test_a_very_narrow_one_has_a_list_of_facts_for_each_row() -> None:
    rows = [("b1", toned("alive"), 8), ("b2", None, 0)]
    expected = ["broker   b1", "state    alive", "bundles  8", "", "broker   b2", "bundles  0"]
    assert drawn(FittedTable(("broker", "state", "bundles"), rows), 18) == expected


@pytest.mark.parametrize("wide", [False, True])
def test_a_pipe_has_one_line_a_row_without_trailing_blanks(wide: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, width=40 if wide else 200)
    console.print(FittedTable(("name", "many", "why"), [("a", 1, "x " * 30), ("漢字", 22, None)], wide), soft_wrap=True)
    assert file.getvalue() == f"name  many  why\na        1  {' '.join('x' * 30)}\n漢字    22  -\n"


@given(
    st.lists(st.tuples(*[st.text("ab 漢\u0301", max_size=60)] * 4), min_size=1, max_size=5),
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.integers(10, 200),
)
def test_no_line_is_longer_than_the_terminal_and_no_character_is_lost(
    rows: list[tuple[str, ...]], ranks: list[int], width: int
) -> None:
    headers = [Column(f"title {number}", rank) for number, rank in enumerate(ranks)]
    console = Console(width=width)
    shown = ""
    for line in console.render_lines(FittedTable(headers, rows), pad=False):
        shown += "".join(segment.text for segment in line)
        assert sum(segment.cell_length for segment in line) <= width
    kept = [number for number, rank in enumerate(ranks) if not rank]
    assert shown.count("漢") >= sum(row[number].count("漢") for row in rows for number in kept)


def test_facts_wrap_beside_their_title() -> None:
    facts = [("leader", "b1, term 73"), ("remark", "a longer remark that does not fit one line")]
    expected = ["leader  b1, term 73", "remark  a longer remark that does not", "        fit one line"]
    assert drawn(fact_list(facts), 40) == expected
    assert len(drawn(fact_list(facts, wide=True), 40)) == 2


def test_colours_say_what_the_words_say_and_can_be_off() -> None:
    table = FittedTable(("broker", "state"), [("b1", toned("alive")), ("b2", toned("lost"))])
    seen = "\n".join(drawn(table, 80, force_terminal=True, color_system="standard", no_color=False))
    assert "\x1b[32malive\x1b[0m" in seen
    assert "\x1b[1;31mlost\x1b[0m" in seen
    without = "\n".join(drawn(table, 80, force_terminal=True, color_system="standard", no_color=True))
    assert "alive" in without
    assert "[32m" not in without
    assert "31m" not in without


def test_what_brokers_write_does_not_steer_the_terminal() -> None:
    assert "\x1b" not in "".join(drawn(FittedTable(("why",), [("\x1b[2J",)]), 80))
