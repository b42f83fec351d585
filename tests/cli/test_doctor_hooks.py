"""What the doctor says of hooks that fail, or do not return."""

from statechannel.cli.doctor.checks import Severity, examine
from statechannel.cli.doctor.checks_channel import CHECKS
from tests.cli.test_doctor_checks import declined, in_flight
from tests.support.doctor_facts import with_standing


def test_who_was_not_asked_yet_and_all_that_fail_are_named() -> None:
    row = {"bundle": "a/b/d", "since_ms": 1_749_999_990_000, "by": {"b1": "no disk"}, "not_asked": ["b3"]}
    facts = with_standing(declined(age_ms=30_000), at_ms=1_750_000_000_000, declined_bundles=[row])
    first, second = (finding for finding in examine(CHECKS, facts) if finding.check == "declines")
    assert first.severity is second.severity is Severity.WARNING
    assert "not asked yet: b3" in first.what
    assert first.todo == "`statechannel lookup a/b/d` asks b3; fix what fails at b1, b2."


def test_the_hook_that_a_bundle_in_flight_waits_for_is_named() -> None:
    (finding,) = [finding for finding in examine(CHECKS, in_flight(6_000)) if finding.check == "in-flight"]
    assert finding.todo.startswith("Check the log of b1 for its hook on_release, ")
