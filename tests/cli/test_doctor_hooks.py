"""What the doctor says of hooks, of bundles for which placement finds no broker, and of what is not in use."""

from dataclasses import replace

import pytest

from statechannel.cli.doctor import command
from statechannel.cli.doctor.checks import Severity, examine
from statechannel.cli.doctor.checks_channel import CHECKS
from tests.cli.test_doctor_checks import HOUR, declined, in_flight
from tests.support.doctor_facts import healthy, heard, heartbeat, with_embedded, with_standing


def test_who_was_not_asked_yet_and_all_that_fail_are_named() -> None:
    row = {"bundle": "a/b/d", "since_ms": 1_749_999_990_000, "by": {"b1": "no disk"}, "not_asked": ["b3"]}
    facts = with_standing(declined(age_ms=30_000), at_ms=1_750_000_000_000, declined_bundles=[row])
    first, second = (finding for finding in examine(CHECKS, facts) if finding.check == "declines")
    assert first.severity is second.severity is Severity.WARNING
    assert "not asked yet: b3" in first.what
    assert first.todo == "`statechannel lookup a/b/d` asks b3; fix what fails at b1, b2."


def test_all_declined_bundles_are_named_or_the_command_that_lists_them() -> None:
    rows = [
        {"bundle": f"a/b/{number}", "since_ms": 1_749_999_990_000, "by": {"b1": "no disk"}, "not_asked": []}
        for number in range(7)
    ]
    facts = with_standing(declined(age_ms=30_000), at_ms=1_750_000_000_000, declined_bundles=rows)
    (finding, *_) = (finding for finding in examine(CHECKS, facts) if finding.check == "declines")
    assert finding.what.endswith("b1 declines them (no disk): a/b/0, a/b/1, a/b/2, a/b/3, a/b/4 and 2 more")
    assert finding.todo.endswith(
        "`statechannel lookup a/b/0`, and so for each that `statechannel bundles --unowned` lists."
    )


def test_the_hook_that_a_bundle_in_flight_waits_for_is_named() -> None:
    (finding,) = [finding for finding in examine(CHECKS, in_flight(6_000)) if finding.check == "in-flight"]
    assert finding.todo.startswith("Check the log of b1 for its hook on_release, ")


@pytest.mark.parametrize(
    ("cause", "todo"),
    [
        ("policies", "Change the policy or end the cordon that is named: "),
        ("limits", "Start another broker, or raise the limit that is named "),
        ("failure", "The log of the broker that is named has the cause "),
    ],
)
def test_what_to_do_for_a_bundle_without_a_broker_depends_on_the_cause(cause: str, todo: str) -> None:
    unplaced = {
        "bundles": 1,
        "bundle": "t/n/x",
        "reason": "r",
        "cause": cause,
        "message": "none",
        "since_ms": 1,
        "ago_ms": 4,
    }
    facts = with_standing(declined(age_ms=30_000), brokers=[{"broker": "b2", "unplaced": unplaced, "lag_ms": 0}])
    (finding,) = [finding for finding in examine(CHECKS, facts) if finding.check == "unplaced"]
    assert (finding.severity, finding.what) == (Severity.CRITICAL, "t/n/x: none; b2 last looked for one 4 ms ago")
    assert finding.todo.startswith(todo)


def test_the_disk_of_an_embedded_kafka_that_is_not_in_use_is_no_finding() -> None:
    facts = with_embedded(healthy(), free_bytes=1 << 20)
    assert facts.embedded is not None
    facts = replace(facts, embedded=replace(facts.embedded, used=False))
    (finding,) = [item for item in examine(command.CHECKS, facts) if item.check == "embedded-kafka"]
    assert (finding.severity, finding.what) == (
        Severity.OK,
        "the embedded Kafka of /k is not the Kafka of this channel",
    )


def test_one_broker_is_alive() -> None:
    found = [item.what for item in examine(command.CHECKS, heard((0.5, heartbeat("b1")))) if item.check == "brokers"]
    assert found == ["1 broker is alive: b1"]


def test_declines_long_ago_are_no_finding() -> None:
    (one,) = [one for one in examine(CHECKS, declined(age_ms=HOUR)) if one.check == "declines"]
    assert one.severity is Severity.OK
