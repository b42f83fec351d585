"""Members that hold other accepted states: each compares itself with who wrote the newest heartbeat."""

from types import SimpleNamespace

import pytest

from statechannel.engine.log_findings import LogFindings
from statechannel.protocol.bounded import remember
from statechannel.protocol.digest import ViewSummary
from statechannel.protocol.replica import ComparedView

OWN, OTHER = ViewSummary(3, "a" * 16, 9), ViewSummary(2, "b" * 16, 9)


@pytest.fixture
def member():
    replica = SimpleNamespace(partition=0, partitions=1, unused=[], compared={}, other_counts={})
    events = []
    context = SimpleNamespace(
        replicas=[replica],
        identity=SimpleNamespace(broker="b2"),
        now=SimpleNamespace(mono_s=0.0),
        emit=lambda kind, **fields: events.append((kind, fields["member"])),
    )
    findings = LogFindings(context)

    def reads(broker, offset, theirs, equal_at=4):
        compared = ComparedView(broker, offset, theirs, OWN, offset if theirs == OWN else equal_at)
        remember(replica.compared, broker, compared, 10)
        findings.tick()
        return [(row["broker"], row["offset"], row["equal_at"]) for row in findings.fields() or ()]

    return SimpleNamespace(reads=reads, events=events)


def test_a_difference_stays_until_a_newer_heartbeat_of_another_member_agrees(member):
    assert member.reads("b1", 7, OTHER) == [("b1", 7, 4)]
    assert member.reads("b1", 9, OTHER) == [("b1", 9, 4)]
    assert member.reads("b2", 10, OWN) == [("b1", 9, 4)], "its own heartbeat says nothing of the others"
    assert member.reads("b1", 11, OWN) == []
    assert member.events == [("replica.differs", "b1"), ("replica.agrees", "b1")]


def test_one_that_agrees_with_the_new_leader_has_nothing_against_the_old_one(member):
    """The old leader compares itself with the new one, and says what it finds."""
    assert member.reads("b1", 7, OTHER) == [("b1", 7, 4)]
    assert member.reads("b3", 9, OWN) == []
    assert member.reads("b3", 11, OTHER, equal_at=9) == [("b3", 11, 9)]
