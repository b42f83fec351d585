"""Forged records in `doctor` and `status`: found whether their witness is alive or not, until they are acknowledged."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from statechannel.audit.acknowledgements import Acknowledgement, Acknowledgements
from statechannel.cli.doctor.checks import Severity, examine
from statechannel.cli.doctor.command import CHECKS
from statechannel.cli.kit.fitted_tables import THEME
from statechannel.cli.kit.screen import stacked
from statechannel.cli.status.health import with_health
from statechannel.cli.status.tables import status_blocks
from tests.cli.test_status_view import AT, LIMITS, broker, figures
from tests.support.doctor_facts import healthy, heard, heartbeat, with_standing

SEEN = {"records": 2, "topic": "channel", "partition": 0, "offset": 1059}


@pytest.mark.parametrize(
    ("beats", "wanted"),
    [
        (
            [(600.0, heartbeat("b2", forged=SEEN)), (590.0, heartbeat("b2", forged=SEEN, leaving=True))],
            "b2 has read 2 records in its own name",
        ),
        (
            [(600.0, heartbeat("b2", forged=SEEN)), (0.5, heartbeat("b2", incarnation="b2-again"))],
            "process of b2 has ended",
        ),
        ([(600.0, heartbeat("b2", forged=SEEN)), (599.0, heartbeat("b2", forged=None))], "at partition 0, offset 1059"),
    ],
)
def test_a_forgery_is_a_finding_though_its_witness_has_left(
    beats: list[tuple[float, dict[str, Any]]], wanted: str
) -> None:
    facts = heard(*beats, (0.4, heartbeat("b1")))
    (finding,) = [item for item in examine(CHECKS, facts) if item.check == "forged"]
    assert finding.severity is Severity.CRITICAL
    assert wanted in f"{finding.what} {finding.todo}"


def test_a_forged_record_of_the_log_is_a_finding_without_a_witness() -> None:
    row = {"offset": 1059, "partition": 0, "key": "t/n", "state": "Active", "version": 1, "by": "b2"}
    row |= {"verdict": "accepted", "note": "its id is strange"}
    facts = with_standing(healthy(), forged={"records": 2, "newest": [row]})
    (finding,) = [item for item in examine(CHECKS, facts) if item.check == "forged"]
    assert finding.severity is Severity.CRITICAL
    assert finding.what == (
        "the log has 2 forged records, the newest forged in the name of b2: "
        "Active v1 of t/n at partition 0, offset 1059, accepted; its id is strange"
    )


def test_a_forgery_is_a_finding_though_nobody_is_alive() -> None:
    facts = heard((600.0, heartbeat("b2", forged=SEEN)), (590.0, heartbeat("b2", forged=SEEN, leaving=True)))
    findings = [item for item in examine(CHECKS, facts) if item.check == "forged"]
    assert [item.severity for item in findings] == [Severity.CRITICAL]


SAID = {"by": "ann@desk", "at_ms": 1_750_000_000_000, "reason": "a drill"}


def test_what_was_acknowledged_is_shown_and_no_problem() -> None:
    row = {"offset": 1059, "partition": 0, "key": "t/n", "state": "Active", "version": 1, "by": "b2"}
    row |= {"verdict": "accepted", "note": "its id is strange"}
    seen = row | {"offset": 1060, "acknowledged": SAID}
    forged = {"records": 3, "acknowledged": 1, "newest": [row, row | {"acknowledged": None}, seen]}
    facts = with_standing(healthy(), forged=forged)
    first, second = [item for item in examine(CHECKS, facts) if item.check == "forged"]
    assert (first.severity, second.severity) == (Severity.CRITICAL, Severity.INFO)
    assert "the log has 2 forged records" in first.what
    assert "the log has 1 acknowledged forged record, the newest" in second.what
    assert "acknowledged by ann@desk at 2025-06-15 15:06:40Z: a drill" in second.what
    facts = with_standing(healthy(), forged={"records": 1, "acknowledged": 1, "newest": [seen]})
    (only,) = [item for item in examine(CHECKS, facts) if item.check == "forged"]
    assert (only.severity, only.todo) == (Severity.INFO, "")


def test_the_report_of_a_broker_can_be_acknowledged() -> None:
    facts = heard((600.0, heartbeat("b2", forged=SEEN)), (0.4, heartbeat("b1")))
    seen = Acknowledgement("channel", 0, 1059, None, "ann@desk", "a drill", 1_750_000_000_000)
    for items, severity in (((), Severity.CRITICAL), ((seen,), Severity.INFO)):
        known = replace(facts, acknowledged=Acknowledgements(items))
        (finding,) = [item for item in examine(CHECKS, known) if item.check == "forged"]
        assert finding.severity is severity
    assert finding.what.endswith("; acknowledged by ann@desk at 2025-06-15 15:06:40Z: a drill")


def test_forged_records_that_were_acknowledged_are_shown_and_no_problem() -> None:
    said = {"by": "ann@desk", "at_ms": AT, "reason": "a drill"}
    row = {"partition": 0, "offset": 17, "verdict": "accepted", "acknowledged": None}
    seen = row | {"offset": 18, "acknowledged": said}
    report = {"message": "b2 has read 1 record", "acknowledged": said}
    calm = figures(in_flight=[], debts=[], oldest_debt_ms=None, brokers=[broker("b1", leading=True)])
    calm = {name: value for name, value in calm.items() if name not in ("health", "problems")}

    def view(*rows: dict[str, Any]) -> tuple[list[str], str]:
        forged = {"records": len(rows), "acknowledged": sum(row["acknowledged"] is not None for row in rows)}
        fields = calm | {"forged": forged | {"newest": list(rows)}, "disowned_acknowledged": [report]}
        judged = with_health(fields, LIMITS)
        console = Console(file=io.StringIO(), width=160, theme=THEME)
        console.print(stacked(status_blocks(judged)))
        return [problem["reason"] for problem in judged["problems"]], console.file.getvalue()  # type: ignore[attr-defined]

    problems, shown = view(row, seen)
    assert "forged" in problems
    assert "the log has 1 forged record, 1 accepted; the newest at partition 0, offset 17" in shown
    assert (
        "1 forged record was acknowledged (partition 0, offset 18) by ann@desk at 2025-06-15 15:06:40Z: a drill"
        in shown
    )
    assert "b2 has read 1 record; acknowledged by ann@desk" in shown
    assert "forged" not in view(seen)[0]
