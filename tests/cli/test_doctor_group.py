"""What `statechannel doctor` says of clients in the election's group, and of partitions that are not used."""

from dataclasses import replace

import pytest

from statechannel.cli.doctor.checks import DoctorFacts, Severity, examine
from statechannel.cli.doctor.command import CHECKS
from statechannel.kafka.topics import GroupMember, PartitionPlace
from tests.support.doctor_facts import healthy, heard, heartbeat

FOREIGN = (GroupMember("rdkafka", "10.0.0.9"), *healthy().group)
REGISTRY = "bundle-state-registry"


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        (healthy(group=FOREIGN), Severity.WARNING),
        (replace(heard((0.5, heartbeat("b1", leading=False))), group=FOREIGN), Severity.ERROR),
    ],
)
def test_clients_that_are_not_brokers_are_named(facts: DoctorFacts, severity: Severity) -> None:
    (finding,) = [item for item in examine(CHECKS, facts) if item.check == "election-group"]
    assert finding.severity is severity
    assert "rdkafka at 10.0.0.9" in finding.what
    assert "statechannel-b1" not in finding.what


def test_partitions_that_are_not_used_are_no_problem() -> None:
    facts = healthy()
    unused = PartitionPlace(1, None, (1,), ())
    facts = replace(
        facts,
        topics={**facts.topics, REGISTRY: replace(facts.topics[REGISTRY], partitions=2)},
        places={**facts.places, REGISTRY: (*facts.places[REGISTRY], unused)},
    )
    wrong = [item for item in examine(CHECKS, facts) if item.severity is not Severity.OK]
    assert [(item.check, item.severity) for item in wrong] == [("topics", Severity.INFO)]
