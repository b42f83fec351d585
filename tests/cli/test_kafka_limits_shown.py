"""Refused records and throttled clients of brokers as `status` and `doctor` show them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from statechannel.cli.doctor.checks import DoctorFacts, Severity, examine
from statechannel.cli.doctor.command import CHECKS
from statechannel.cli.status.health import health
from statechannel.kafka.client_settings import ClientSettings
from tests.cli.test_status_view import LIMITS, broker, figures
from tests.support.doctor_facts import NOW_MS, healthy, with_standing

THROTTLED = {
    "client": "statechannel-b1",
    "kind": "producer",
    "throttled_ms": 4_200,
    "window_ms": 10_000,
    "since_ms": NOW_MS - 60_000,
    "ago_ms": 500,
}
REFUSED = {
    "reason": "record-too-large",
    "code": "MSG_SIZE_TOO_LARGE",
    "topic": "bundle-state",
    "message": "a record for bundle-state has 24,884 bytes, more than max.message.bytes of the topic allows "
    "(MSG_SIZE_TOO_LARGE)",
    "times": 1,
    "since_ms": NOW_MS - 60_000,
    "ago_ms": 60_000,
}


@pytest.mark.parametrize(
    ("row", "reasons"),
    [
        ({"throttled": THROTTLED}, {"kafka-throttles"}),
        ({"throttled": THROTTLED | {"ago_ms": 30_001}}, set()),
        ({"refused": REFUSED}, {"kafka-refuses"}),
        ({"refused": REFUSED | {"ago_ms": 600_001}}, set()),
        ({"refused": REFUSED, "throttled": THROTTLED}, {"kafka-refuses", "kafka-throttles"}),
    ],
)
def test_status_is_degraded_while_kafka_limits_a_broker(row: dict[str, Any], reasons: set[str]) -> None:
    verdict, problems = health(figures(brokers=[broker("b1", **row)]), LIMITS)
    assert {problem.reason.value for problem in problems} == reasons
    assert verdict == ("degraded" if reasons else "healthy")


def with_row(**row: Any) -> DoctorFacts:
    return with_standing(healthy(), brokers=[{"broker": "b1", **row}])


@pytest.mark.parametrize(
    ("facts", "severity", "what"),
    [
        (with_row(throttled=THROTTLED), Severity.WARNING, "statechannel-b1 of b1: 4.2 s of the last 10 s"),
        (with_row(refused=REFUSED), Severity.ERROR, "MSG_SIZE_TOO_LARGE"),
        (
            replace(
                healthy(), connection=SimpleNamespace(client=ClientSettings("h:1", {"message.max.bytes": "20000"}))
            ),
            Severity.ERROR,
            "message.max.bytes is 20,000 here, required at least 1,000,000",
        ),
        (with_row(), Severity.OK, "Kafka refuses no records"),
    ],
)
def test_doctor_names_code_limit_client_and_quota(facts: DoctorFacts, severity: Severity, what: str) -> None:
    (finding,) = [finding for finding in examine(CHECKS, facts) if finding.check == "limits"]
    assert finding.severity is severity
    assert what in finding.what
    assert bool(finding.todo) is (severity is not Severity.OK)
    assert "again" not in finding.todo
