"""Members that hold other accepted states: each compares itself with the writers of heartbeats."""

from types import SimpleNamespace

import pytest

from statechannel.engine.log_findings import DIFFERS_KEPT_S, LogFindings
from statechannel.protocol.bounded import remember
from statechannel.protocol.digest import ComparedView, ViewSummary

OWN, OTHER = ViewSummary(3, "a" * 16), ViewSummary(2, "b" * 16)


@pytest.fixture
def member():
    replica = SimpleNamespace(partition=0, partitions=1, unused=[], compared={}, other_counts={}, caught_up=False)
    events = []
    context = SimpleNamespace(
        replicas=[replica],
        identity=SimpleNamespace(broker="b2"),
        members=SimpleNamespace(alive={"b1", "b2", "b3"}),
        now=SimpleNamespace(mono_s=0.0),
        emit=lambda kind, **fields: events.append((kind, fields["member"])),
    )
    findings = LogFindings(context)

    def reads(broker, offset, theirs, equal_at=4):
        compared = ComparedView(broker, offset, theirs, OWN, offset if theirs == OWN else equal_at)
        remember(replica.compared, broker, compared, 10)
        findings.tick()
        return [(row["broker"], row["offset"], row["equal_at"]) for row in findings.fields() or ()]

    return SimpleNamespace(reads=reads, events=events, context=context, findings=findings)


def test_a_difference_stays_until_a_newer_heartbeat_of_another_member_agrees(member):
    assert member.reads("b1", 7, OTHER) == [("b1", 7, 4)]
    assert member.reads("b2", 10, OWN) == [("b1", 7, 4)], "its own heartbeat says nothing of the others"
    assert member.reads("b1", 11, OWN) == []
    assert member.events == [("replica.differs", "b1"), ("replica.agrees", "b1")]


def test_what_is_reported_is_the_same_for_as_long_as_a_difference_is(member):
    """The registry's readers take a heartbeat that repeats the one before without decoding it."""
    member.reads("b1", 7, OTHER)
    reported = member.findings.fields()
    member.reads("b1", 9, OTHER._replace(digest="c" * 16))
    assert member.findings.fields() == reported
    member.context.now.mono_s += DIFFERS_KEPT_S
    assert member.reads("b1", 11, OTHER._replace(keys=5)) == [("b1", 11, 4)]
    member.context.now.mono_s += DIFFERS_KEPT_S
    assert member.reads("b1", 13, OTHER._replace(keys=5)) == [("b1", 11, 4)], "it was seen just now"


def test_a_difference_with_one_that_is_gone_or_not_heard_of_again_ends(member):
    member.reads("b1", 7, OTHER)
    member.reads("b3", 8, OTHER)
    member.context.members.alive.discard("b1")
    assert [row[0] for row in member.reads("b2", 9, OWN)] == ["b3"]
    member.context.now.mono_s += DIFFERS_KEPT_S + 1
    assert member.reads("b2", 10, OWN) == []
