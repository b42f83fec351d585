"""How `status` looks: golden pictures of figures that are spelled out."""

import io
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console

from statechannel.audit.views import LogViews
from statechannel.cli import brokers
from statechannel.cli.kit.output import stdout
from statechannel.cli.kit.remarks import Remarks
from statechannel.cli.kit.screen import FittedScreen
from statechannel.cli.status import command as status_command
from statechannel.cli.status import figures as status_figures
from statechannel.cli.status import tables
from statechannel.cli.status.figures import with_health
from statechannel.cli.status.tables import status_display
from statechannel.conditions.facts import NO_TOPIC_FACTS, ConditionLimits, pauses_of
from statechannel.conditions.table import current, current_of, reasons_of, verdict_of
from statechannel.engine.membership import LostMember
from statechannel.replay.auditor import audit_part
from statechannel.settings import load
from statechannel.stories.processes import RegistryStory
from statechannel.stories.registry import RegistryFold
from tests.support import doctor_facts
from tests.unit.audit.test_story import LOWER, NAMESPACE, UPPER, Log

AT = 1_750_000_000_000
OPERATION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def broker(name: str, **fields: Any) -> dict[str, Any]:
    usual = {"state": "alive", "mode": "normal", "phase": "caught-up", "leading": False, "bundles": 3, "remarks": None}
    return {"broker": name, **usual, "accepting": True, "lag_records": 1, "lag_ms": 12, "heard_ago_ms": 250, **fields}


LIMITS = ConditionLimits(in_flight_ms=5_000, unserved_ms=30_000, debt_ms=5_000, suspect_ms=2_500, lost_ms=6_000)
LOST = {"state": "lost", "mode": None, "phase": None, "accepting": False, "lag_records": None, "lag_ms": None}


def health(fields: Any, limits: ConditionLimits) -> Any:
    """The verdict, and what makes it worse than healthy."""
    found = reasons_of(current(fields, limits))
    return verdict_of(found), found


def uneven(fields: Any) -> list[str]:
    return [item.message for item in current_of("unspread", fields, LIMITS)]


PARTITION = {
    "partition": 0,
    "applied": 900,
    "newest_record_ago_ms": 300,
    "debts": 1,
    "in_flight": 1,
    "restated_below": None,
}


def figures(**changes: Any) -> dict[str, Any]:
    fields = {
        "channel": "bundle-state",
        "bootstrap_servers": "kafka:9092",
        "context": None,
        "at_ms": AT,
        "blind_since_ms": None,
        "leader": "b1",
        "term": 73,
        "leading_for_ms": 720_000,
        "no_leader_for_ms": None,
        "tentative": False,
        "stopped": {},
        "partitions": [PARTITION],
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
        "incidents": [{"at_ms": AT - 5_000, "kind": "lost", "message": "b3 was lost without a goodbye"}],
        "without_owner": None,
        **changes,
    }
    return with_health(fields, LIMITS)


WHOLE = """\
HEALTHY  2 brokers are alive, b1 leads; 6 of 8 bundles have an owner

when                      last incidents
2025-06-15 15:06:35.000Z  b3 was lost without a goodbye

broker  state  mode    phase      leader  bundles  lag           heard
b1      alive  normal  caught-up     yes        3  1             250 ms ago
b2      alive  normal  caught-up      no        3  400 (4.00 s)  250 ms ago

channel               bundle-state at kafka:9092
leader                b1, for 12.0 min; term 73 (the offset of its claim in the registry)
bundles               8: 6 assigned, 1 unassigned
in flight             1, the oldest for 70 ms
keys awaiting repair  1, the oldest for 1.50 s

in flight  state      from  to  for    operation
t/n/x      Releasing  b1    b2  70 ms  01ARZ3NDEKTSV4RRFFQ69G5FAV

key awaiting repair  since offset  for
t/n                           880  1.50 s

partition  applied offset  newest record  awaiting repair  in flight
        0             900  300 ms ago                   1          1

records per minute  last 1 min  last 5 min  last 15 min
accepted            12          3.5         1.17
rejected            1           0           0
duplicates          0           0           0
asserts             0           0           0
control records     0           0           0
"""


def shown(status: dict[str, Any], capsys: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    stdout().print(status_display(status, 50, **more))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_all_of_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert shown(figures(), capsys) == WHOLE.splitlines()


def test_counters_are_shown_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown(figures(), capsys, counters=False)
    assert lines[-1] == "(`-o wide` also shows: partitions, records per minute)"
    assert not any("applied offset" in line or "control records" in line for line in lines)
    monkeypatch.delenv("COLUMNS")
    assert "control records" in shown(figures(), capsys, counters=False)[-1], "a pipe is wide"


def on_screen(found: dict[str, Any], width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, no_color=True)
    screen = FittedScreen(partial(status_display, found))
    lines = console.render_lines(screen, console.options.update(height=height), pad=False)
    assert len(lines) <= height
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


INCIDENTS = [
    {
        "at_ms": AT - 1_000 * number,
        "kind": "owner-lost",
        "message": f"b{number} was lost; b1 repaired 9 bundles; the last one 6.1 s after it was last heard; "
        "the longest gap in service was 6.2 s",
    }
    for number in range(8)
]


def test_a_terminal_of_24_lines_shows_verdict_incidents_and_leader_and_says_what_it_leaves_out(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lost = figures(brokers=[broker("b1", leading=True), broker("b3", **LOST, heard_ago_ms=8_200)], incidents=INCIDENTS)
    lines = on_screen(lost, 80, 24)
    assert lines[0] == "DEGRADED  lost without a goodbye, and not back: b3, last heard 8.20 s ago"
    assert sum(line.startswith("2025-06-15") for line in lines) == 4
    assert "and 4 more (`--output json` lists all)" in lines
    assert any(line.startswith("b1 ") for line in lines), "the leader"
    assert lines[-1].endswith(" more lines")
    whole = on_screen(lost, 160, 60)
    assert sum(line.startswith("2025-06-15") for line in whole) == 8
    assert not any(line.endswith(" more lines") for line in whole)


@pytest.mark.parametrize("height", range(1, 60))
def test_no_height_is_too_little(height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = on_screen(figures(incidents=INCIDENTS), 80, height)
    assert height == 1 or lines[0].startswith("HEALTHY")


def test_bundles_that_were_served_and_have_no_owner_are_counted_but_for_those_that_were_unloaded() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    for bundle in (LOWER, UPPER):
        log.write(f"{NAMESPACE}/{bundle}", "Assigning", to="b1")
        log.write(f"{NAMESPACE}/{bundle}", "Assigned", to="b1", by="b1")
        log.write(f"{NAMESPACE}/{bundle}", "Releasing", flow="unload", by="b1", **{"from": "b1"})
    log.write(f"{NAMESPACE}/{LOWER}", "Unassigned", flow="unload", by="b1", **{"from": "b1"})
    log.write(f"{NAMESPACE}/{UPPER}", "Unassigned", flow="shutdown", by="b1", **{"from": "b1"})
    left_ms = log.records[-1].timestamp_ms

    def found() -> Any:
        inputs = status_figures.StatusInputs(RegistryStory(6.0))
        views = LogViews((audit_part(0, 1, log.records, observe=inputs.observe),), (log.at_ms,))
        registry = RegistryFold(6.0).registry()
        place = {"channel": "c", "bootstrap_servers": "k:1"}
        return status_figures.figures(views, registry, inputs, Remarks(), **place)["without_owner"]

    assert found() == {"bundles": 1, "since_ms": left_ms, "bundle": f"{NAMESPACE}/{UPPER}"}
    log.write(f"{NAMESPACE}/{UPPER}", "Assigning", to="b2")
    assert found() is None


HUNG = {
    "times": 5,
    "since_ms": AT,
    "ago_ms": 20_000,
    "bundle": "t/n/x",
    "error": "on_release did not return within 15 s",
}
UNPLACED = {
    "bundles": 3,
    "bundle": "t/n/x",
    "reason": "isolation",
    "message": "gold forbids it",
    "since_ms": AT,
    "ago_ms": 4_000,
}
BLOCKED = {"times": 28, "seconds": 1.0, "place": "broker.py:20 in main", "hook": "on_own", "ago_ms": 900}
REFUSED = {
    "bundle": "t/n/x",
    "since_ms": AT - 1_000,
    "by": {"b1": "read-only file system", "b2": "read-only file system"},
    "not_asked": [],
}
BY_ONE = {**REFUSED, "by": {"b1": "no disk"}, "not_asked": ["b2", "b3"]}


def test_all_bundles_on_one_of_three_is_worth_a_note(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    three = [broker("b1", bundles=18), broker("b2", bundles=0), broker("b3", bundles=0)]
    assert "b2 and b3 have no bundles, b1 has 18." in shown(figures(brokers=three), capsys)[1]
    for trouble in ({"cordoned": True}, {"blocked": BLOCKED}, {"hooks_failed": {"on_release": HUNG}}):
        drained = [broker("b1", bundles=9), broker("b2", bundles=9), broker("b3", bundles=0, **trouble)]
        assert uneven(figures(brokers=drained)) == [], "nobody is advised to move bundles to it"
    two = [broker("b1", bundles=18), broker("b2", bundles=0)]
    decline = {"broker": "b2", "times": 1, "waiting": 0, "bundle": "t/n/x", "reason": "", "age_ms": 9}
    assert uneven(figures(brokers=two, declines=[decline])) == []
    assert uneven(figures(brokers=two)) == ["b2 has no bundles, b1 has 18"]
    few = [broker("b1", bundles=2), broker("b2", bundles=0)]
    assert "no bundles" not in "".join(shown(figures(brokers=few), capsys))


def test_the_bound_is_a_setting() -> None:
    assert ConditionLimits.of(load()).in_flight_ms == 5_000
    assert ConditionLimits.of(load(flags=["observe.in_flight_slow_s=60"])).in_flight_ms == 60_000


def test_a_cordoned_broker_accepts_no_bundles(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    more = {"software": "1", "extensions": None, "urls": {}, "http": None, "api": None}
    rows = [broker("b1", cordoned=True, **more), broker("b2", cordoned=False, **more)]
    rows.append(broker("b3", cordoned=True, **more) | {"accepting": False})
    stdout().print(brokers._table(rows))
    first, *_ = lines = capsys.readouterr().out.splitlines()
    at = first.index("accepting")
    assert [line[at:].partition("  ")[0].strip() for line in lines[1:4]] == ["no (cordoned)", "yes", "no"]


UNSERVED = {"bundles": 12, "assigned": 6, "brokers": ["b3", "b4", "b5"], "since_ms": AT - 2_000}


def test_bundles_of_lost_owners_and_those_in_flight_to_a_lost_broker_are_without_service(monkeypatch):
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    log.write(f"{NAMESPACE}/{LOWER}", "Assigning", to="b2")
    log.write(f"{NAMESPACE}/{LOWER}", "Assigned", to="b2", by="b2")
    log.write(f"{NAMESPACE}/{UPPER}", "Assigning", to="b3")
    inputs = status_figures.StatusInputs(RegistryStory(6.0))
    views = LogViews((audit_part(0, 1, log.records, observe=inputs.observe),), (log.at_ms,))
    registry = RegistryFold(6.0).registry()
    registry.members.lost = {"b2": LostMember("b2", "b2-1", 17, 0.0, False)}

    def found() -> dict[str, Any]:
        return status_figures.figures(views, registry, inputs, Remarks(), channel="c", bootstrap_servers="k:1")

    status = found()
    assert status["without_service"] == {"bundles": 2, "assigned": 1, "brokers": ["b2", "b3"], "since_ms": 17}
    assert [row["waits_for_repair"] for row in status["in_flight"]] == [True]
    alive: Any = SimpleNamespace(
        broker="b3", incarnation="b3-1", accepting=True, info={}, urls={}, api_url=None, extensions=None, heard_at_ms=0
    )
    registry.members.alive = {"b3": alive}
    status = found()
    assert status["without_service"]["brokers"] == ["b2"]
    assert [row["waits_for_repair"] for row in status["in_flight"]] == [False]


def test_a_bundle_that_may_not_be_served_is_named() -> None:
    failed = HUNG | {"error": "on_serve raised OSError: no port", "bundle": "t/n/x"}
    _, (problem,) = health(figures(brokers=[broker("b1", hooks_failed={"on_serve": failed})]), LIMITS)
    assert problem.sentence.endswith("OSError: no port; t/n/x may be assigned to b1 and not be served")


def test_what_is_left_of_a_pause_is_by_the_clock_of_the_broker_that_pauses() -> None:
    beats = [(0.5, {"repair_paused": "4 of 5 vanished", "sent_at_ms": 7_000, "repair_resumes_at_ms": 19_500})]
    seen = doctor_facts.registry(*((ago_s, doctor_facts.heartbeat("b1", **more)) for ago_s, more in beats))["registry"]
    seen.members.lost = {"b2": LostMember("b2", "b2-1", doctor_facts.NOW_MS - 18_000, 0.0, False)}
    (row,) = pauses_of(seen.members, brokers.silence_of(seen), seen.read_at_ms)
    assert row == {
        "broker": "b1",
        "why": "4 of 5 vanished",
        "left_ms": 12_000,
        "lost_since_ms": doctor_facts.NOW_MS - 18_000,
    }
    del seen.members.alive["b1"].info["repair_resumes_at_ms"]
    (row,) = pauses_of(seen.members, brokers.silence_of(seen), seen.read_at_ms)
    assert row["left_ms"] is None, "an older version does not say"


UNFIT = {
    "topic": "c",
    "setting": "cleanup.policy",
    "actual": "delete",
    "wanted": "compact",
    "hard": True,
    "command": "x",
}
DIFFERS = {"partition": 0, "broker": "b1", "offset": 9, "equal_at": 4, "keys": 5, "their_keys": 6}

PROBLEMS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "healthy", ""),
    ({"brokers": []}, "down", "no-broker"),
    ({"declined_bundles": [REFUSED]}, "down", "bundles-declined"),
    ({"declined_bundles": [BY_ONE]}, "healthy", ""),
    ({"declined_bundles": [{**BY_ONE, "since_ms": AT - 2_000}]}, "degraded", "declined-by-some"),
    ({"declined_bundles": [{**BY_ONE, "since_ms": AT - 30_001}]}, "down", "bundles-declined"),
    ({"brokers": [broker("b1", **LOST)], "leader": None}, "down", "no-broker broker-lost"),
    ({"brokers": [broker("b1", **{**LOST, "state": "left"})]}, "down", "no-broker"),
    ({"blind_since_ms": AT - 1}, "unknown", "kafka-silent"),
    ({"topics": NO_TOPIC_FACTS | {"heads_lost": {"0": 41}}}, "degraded", "head-lost"),
    (
        {"topics": NO_TOPIC_FACTS | {"heads_lost": {"0": 41}}, "partitions": [PARTITION | {"restated_below": 40}]},
        "degraded",
        "head-lost",
    ),
    (
        {"topics": NO_TOPIC_FACTS | {"heads_lost": {"0": 41}}, "partitions": [PARTITION | {"restated_below": 41}]},
        "healthy",
        "",
    ),
    ({"topics": NO_TOPIC_FACTS | {"positions_lost": {"0": 41}}}, "degraded", "head-lost"),
    ({"topics": NO_TOPIC_FACTS | {"differences": [UNFIT]}}, "degraded", "topic-unfit"),
    ({"topics": NO_TOPIC_FACTS | {"differences": [UNFIT | {"hard": False}]}}, "healthy", ""),
    ({"brokers": [broker("b1", partitions=1), broker("b2", partitions=2)]}, "degraded", "partitions-differ"),
    ({"brokers": [broker("b1"), broker("b2", differs=[DIFFERS])]}, "degraded", "replicas-differ"),
    ({"brokers": [broker("b1", **LOST), broker("b2", differs=[DIFFERS])]}, "degraded", "broker-lost"),
    ({"stopped": {"0": {"offset": 7, "format": 9}}}, "unknown", "newer-format"),
    ({"brokers": [broker("b1"), broker("b2", **LOST)]}, "degraded", "broker-lost"),
    ({"without_service": UNSERVED}, "degraded", "owner-unreachable"),
    ({"without_owner": {"bundles": 11, "since_ms": AT - 1_001, "bundle": "t/n/x"}}, "degraded", "without-owner"),
    ({"without_owner": {"bundles": 11, "since_ms": AT - 1_000, "bundle": "t/n/x"}}, "healthy", ""),
    ({"without_owner": {"bundles": 1, "since_ms": None, "bundle": "t/n/x"}}, "degraded", "without-owner"),
    ({"leader": None}, "degraded", "no-leader"),
    (
        {
            "brokers": [broker("b1", mode="safe"), *(broker(name, **LOST) for name in UNSERVED["brokers"])],
            "without_service": UNSERVED,
            "repair_paused": [{"broker": "b1", "why": "3 of 4 were lost", "left_ms": 1, "lost_since_ms": None}],
        },
        "down",
        "broker-lost repair-paused owner-unreachable safe-mode",
    ),
    ({"brokers": [broker("b1", mode="safe"), broker("b2")]}, "degraded", "safe-mode"),
    ({"brokers": [broker("b1", mode="settling")]}, "healthy", ""),
    ({"brokers": [broker("b1", accepting=False)]}, "degraded", "none-accepts"),
    ({"brokers": [broker("b1", blocked=BLOCKED)]}, "degraded", "loop-blocked"),
    ({"brokers": [broker("b1", blocked=BLOCKED | {"ago_ms": 60_001})]}, "healthy", ""),
    ({"brokers": [broker("b1", hooks_failed={"on_release": HUNG})]}, "degraded", "hook-fails"),
    ({"brokers": [broker("b1", hooks_failed={"on_release": HUNG | {"ago_ms": 600_001}})]}, "healthy", ""),
    ({"brokers": [broker("b1", hooks_failed={"on_own": HUNG})]}, "healthy", ""),
    ({"brokers": [broker("b1", unplaced=UNPLACED)]}, "down", "bundles-unplaced"),
    ({"brokers": [broker("b1", lag_ms=5_000)]}, "degraded", "broker-late"),
    ({"in_flight": [{"bundle": "t/n/x", "age_ms": 5_001}]}, "degraded", "slow-operation"),
    ({"in_flight": [{"bundle": "t/n/x", "age_ms": 5_000}]}, "healthy", ""),
    ({"in_flight": [{"bundle": "t/n/x", "age_ms": 9_000, "waits_for_repair": True}]}, "healthy", ""),
    ({"debts": [{"key": "t/n"}], "oldest_debt_ms": 5_000}, "degraded", "awaiting-repair"),
    ({"debts": [{"key": "t/n"}], "oldest_debt_ms": None}, "degraded", "awaiting-repair"),
    ({"debts": [{"key": "t/n"}], "oldest_debt_ms": 4_999}, "healthy", ""),
]


@pytest.mark.parametrize(("changes", "verdict", "reasons"), PROBLEMS)
def test_verdicts(changes: dict[str, Any], verdict: str, reasons: str) -> None:
    found, problems = health(figures(**changes), LIMITS)
    assert (found.value, " ".join(problem.code for problem in problems)) == (verdict, reasons)
    assert all(problem.sentence for problem in problems)


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, 0), ({"leader": None}, 30), ({"brokers": []}, 32), ({"stopped": {"0": {"offset": 7, "format": 9}}}, 4)],
)
def test_the_verdict_is_an_exit_code_on_request(
    changes: dict[str, Any], code: int, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_command, "in_time", lambda connection: connection)
    monkeypatch.setattr(status_command, "read_once", lambda *_: figures(**changes))
    place = ["-b", "127.0.0.1:1"]
    for output in ("table", "json"):
        assert run("status", "--exit-code", "-o", output, *place).exit_code == code
        assert run("status", "-o", output, *place).exit_code == 0
    refused = run("status", "--exit-code", "--watch", *place)
    assert (refused.exit_code, "exclude each other" in refused.stderr) == (2, True)


def test_where_not_all_brokers_can_be_seen_trouble_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    many = [broker(f"b{number:02}") for number in range(40)]
    many[20] |= {"mode": "safe"}
    many[30] |= {"state": "lost", "mode": None, "lag_records": None, "lag_ms": None}
    many[35] |= {"leading": True}
    stdout().print(tables._brokers(many, 4))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[0] for line in lines[1:5]] == ["b35", "b20", "b30", "b00"]
    assert lines[5] == "and 36 more (`statechannel brokers`)"


def test_what_brokers_write_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    incident = {"at_ms": AT, "kind": "repair-paused", "message": "b1 paused repair: \x1b[2J"}
    assert "\x1b" not in "".join(shown(figures(incidents=[incident]), capsys))
