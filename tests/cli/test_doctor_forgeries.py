"""Forged records are a finding of the doctor, whether their witness is alive or not."""

from typing import Any

import pytest

from statechannel.cli.doctor.checks import Severity, examine
from statechannel.cli.doctor.command import CHECKS
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
