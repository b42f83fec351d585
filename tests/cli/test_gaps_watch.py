"""`audit gaps --watch`: what is printed of gaps that are read again and again."""

import json
from typing import Any

import pytest

from statechannel.cli.audit.gaps import GapsSeen
from statechannel.cli.kit import screen
from statechannel.cli.kit.output import Output
from statechannel.cli.kit.screen import show_result
from statechannel.kafka.errors import KafkaUnavailableError

BUNDLE = "t/n/0x00000000_0x80000000"


def gap(start_ms: int, end_ms: int | None = None, *, cause: str = "transfer", offset: int = 0) -> dict[str, Any]:
    length_ms = None if end_ms is None else end_ms - start_ms
    ends = {"end_ms": end_ms, "length_ms": length_ms, "to": None if end_ms is None else "b2"}
    names = {"bundle": BUNDLE, "cause": cause, "from": "b1", "why": "transfer from b1 to b2", "certain": True}
    return names | ends | {"start_offset": offset or start_ms, "start_ms": start_ms}


def events(seen: GapsSeen, at_ms: int, *gaps: dict[str, Any]) -> list[tuple[str, int]]:
    rows = [row for _, row in seen.new_lines({"gaps": gaps, "at_ms": at_ms})]
    return [(row["event"], row["start_ms"]) for row in rows]


def test_a_gap_is_printed_as_it_opens_and_as_it_ends() -> None:
    seen = GapsSeen()
    assert events(seen, 1_000, gap(100, 200), gap(900)) == [("opened", 900)], "what had ended is no news"
    assert events(seen, 1_100, gap(100, 200), gap(900)) == []
    assert events(seen, 1_200, gap(100, 200), gap(900, 1_150)) == [("ended", 900)]
    assert events(seen, 1_300, gap(100, 200), gap(900, 1_150)) == []


def test_a_gap_between_two_readings_is_one_line_and_lines_are_in_order() -> None:
    seen = GapsSeen()
    assert events(seen, 1_000) == []
    expected = [("ended", 1_100), ("ended", 1_050), ("opened", 1_900)]
    assert events(seen, 2_000, gap(1_900), gap(1_100, 1_500), gap(1_050, 1_800)) == expected


def test_with_a_beginning_gaps_that_had_ended_are_printed_too() -> None:
    assert events(GapsSeen(ended_too=True), 1_000, gap(100, 200)) == [("ended", 100)]


def test_of_long_gaps_an_open_one_is_printed_once_it_is_long() -> None:
    seen = GapsSeen(longer_than_ms=500)
    assert events(seen, 1_000, gap(900)) == []
    assert events(seen, 1_400, gap(900)) == [("opened", 900)]
    # The length that counts is without the time on request: it may shrink.
    assert events(seen, 1_500, gap(900)) == []


def test_lines_say_when_what_and_for_how_long() -> None:
    seen = GapsSeen(ended_too=True)
    lines = [text for text, _ in seen.new_lines({"gaps": [gap(0, 14), gap(1_000)], "at_ms": 2_000})]
    assert lines == [
        f"1970-01-01 00:00:00.014Z  ended   {BUNDLE}  transfer  b1 -> b2  after 14 ms  transfer from b1 to b2",
        f"1970-01-01 00:00:01.000Z  opened  {BUNDLE}  transfer  b1 -> -  transfer from b1 to b2",
    ]


@pytest.mark.parametrize("output", [Output.TABLE, Output.JSON])
def test_in_a_pipe_each_event_is_one_line_and_an_outage_is_reported_once(output: Output, capsys, monkeypatch):
    readings: list[list[dict[str, Any]] | None] = [[gap(900)], None, None, [gap(900, 950)]]

    def read() -> tuple[screen.Draw, dict[str, Any]]:
        if not readings:
            raise KeyboardInterrupt
        rows = readings.pop(0)
        if rows is None:
            raise KafkaUnavailableError("Kafka at k:1 does not answer")
        return lambda _: "never shown", {"gaps": rows, "at_ms": 1_000}

    monkeypatch.setattr(screen.time, "sleep", lambda _: None)
    seen = GapsSeen()
    show_result(read, output, watch=True, every_s=0.2, max_s=None, new_lines=seen.new_lines)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    if output is Output.JSON:
        assert [json.loads(line)["event"] for line in lines] == ["opened", "ended"]
    else:
        assert [line.split()[2] for line in lines] == ["opened", "ended"]
    assert printed.err.count("does not answer") == 1
