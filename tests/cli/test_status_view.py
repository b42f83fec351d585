"""How `status` looks: golden pictures of figures that are spelled out."""

import io
from contextlib import ExitStack
from typing import Any

import pytest

from statechannel.cli.kit.output import Output, stdout
from statechannel.cli.status.command import _display
from statechannel.cli.status.tables import render

AT = 1_750_000_000_000
OPERATION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def broker(name: str, **fields: Any) -> dict[str, Any]:
    results = {
        "state": "alive",
        "mode": "normal",
        "phase": "caught-up",
        "leading": False,
        "bundles": 3,
        "remarks": None,
    }
    return {"broker": name, **results, "lag_records": 1, "lag_ms": 12, "heard_ago_ms": 250, **fields}


def figures(**changes: Any) -> dict[str, Any]:
    return {
        "channel": "bundle-state",
        "bootstrap_servers": "kafka:9092",
        "at_ms": AT,
        "blind_since_ms": None,
        "leader": "b1",
        "term": 73,
        "leading_for_ms": 720_000,
        "no_leader_for_ms": None,
        "tentative": False,
        "stopped": {},
        "partitions": [{"partition": 0, "applied": 900, "newest_record_ago_ms": 300, "debts": 1, "in_flight": 1}],
        "bundles": 8,
        "assigned": 6,
        "unassigned": 1,
        "orphans": 0,
        "debts": [{"key": "t/n", "since_offset": 880, "age_ms": 1_500, "partition": 0}],
        "oldest_debt_ms": 1_500,
        "in_flight": [
            {"bundle": "t/n/x", "state": "Releasing", "from": "b1", "to": "b2", "age_ms": 70, "operation": OPERATION}
        ],
        "repair_paused": [],
        "remarks": [],
        "brokers": [broker("b1", leading=True), broker("b2", lag_records=400, lag_ms=4_000)],
        "rates": {"1m": {"accepted": 12.0, "wrong-base": 1.0}, "5m": {"accepted": 3.5}, "15m": {"accepted": 1.17}},
        "incidents": [{"at_ms": AT - 5_000, "kind": "lost", "said": "b3 was lost without a goodbye"}],
        **changes,
    }


WHOLE = """\
what        value
channel     bundle-state at kafka:9092
leader      b1, term 73, for 12.0 min
bundles     8: 6 assigned, 1 unassigned
in flight   1, the oldest for 70 ms
owner lost  0
debts       1, the oldest 1.50 s old

broker  state  mode    phase      leader  bundles  lag           heard
b1      alive  normal  caught-up     yes        3  1             250 ms ago
b2      alive  normal  caught-up      no        3  400 (4.00 s)  250 ms ago

partition  applied offset  newest record  debts  in flight
        0             900  300 ms ago         1          1

records per minute  last 1 min  last 5 min  last 15 min
accepted            12          3.5         1.17
rejected            1           0           0
duplicates          0           0           0
asserts             0           0           0
control records     0           0           0

in flight  state      from  to  for    operation
t/n/x      Releasing  b1    b2  70 ms  01ARZ3NDEKTSV4RRFFQ69G5FAV

in debt  since offset  for
t/n               880  1.50 s

when                      last incidents
2025-06-15 15:06:35.000Z  b3 was lost without a goodbye
"""


def shown(status: dict[str, Any], capsys: pytest.CaptureFixture[str], **more: int) -> list[str]:
    stdout().print(render(status, **more))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_all_of_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert shown(figures(), capsys) == WHOLE.splitlines()


def test_blind_without_a_leader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    lines = shown(figures(blind_since_ms=AT - 34_000, leader=None, term=None, no_leader_for_ms=8_000), capsys)
    assert (
        lines[0]
        == "BLIND since 2025-06-15 15:06:06.000Z, for 34.00 s: Kafka does not answer. The figures below are from then."
    )
    assert lines[3] == "leader      none, for 8.00 s"


def test_where_not_all_brokers_can_be_seen_trouble_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    many = [broker(f"b{number:02}") for number in range(40)]
    many[20] |= {"mode": "safe"}
    many[30] |= {"state": "lost", "mode": None, "lag_records": None, "lag_ms": None}
    many[35] |= {"leading": True}
    lines = shown(figures(brokers=many), capsys, at_most=4)
    start = next(number for number, line in enumerate(lines) if line.startswith("broker "))
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["b30", "b20", "b35", "b00"]
    assert lines[start + 5] == "and 36 more (`--output json` lists all)"


def test_what_brokers_write_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    incident = {"at_ms": AT, "kind": "repair-paused", "said": "b1 paused repair: \x1b[2J"}
    assert "\x1b" not in "".join(shown(figures(incidents=[incident]), capsys))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_go_back_is_shown_block_after_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    with ExitStack() as stack:
        show = _display(stack, Output.TABLE)
        show(figures())
        show(figures())
    assert terminal.getvalue().count("bundle-state at kafka:9092") == 2
