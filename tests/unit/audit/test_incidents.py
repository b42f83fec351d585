"""Incidents in words: from the channel's log and from the registry, by the log's own times."""

import json
import re
from typing import Any

import pytest

from statechannel.audit.incidents import ChannelIncidents
from statechannel.cli.status.command import drains_of
from statechannel.engine.membership import decode_member
from statechannel.operations.request_record import Reply, Request
from statechannel.operations.table import RequestCommand
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay.auditor import audit_part
from statechannel.stories.incident import DeclinedBundle, Incident, IncidentKind, newest, without_repaired
from statechannel.stories.processes import RegistryStory
from tests.support.doctor_facts import heartbeat as of_broker
from tests.support.lone_engine import heartbeat, mark
from tests.support.request_world import stories
from tests.unit.audit.test_story import BUNDLE, LOWER, NAMESPACE, UPPER, Log

RING = ["0x00000000_0xffffffff"]


def find_incidents(log: Log, gap_over_ms: float = 1_000) -> list[Incident]:
    incidents = ChannelIncidents(gap_over_ms)
    audit_part(0, 1, log.records, observe=incidents.observe)
    return newest(incidents.all(), 100)


def served(log: Log, bundle: str, owner: str) -> None:
    log.write(bundle, "Assigning", to=owner)
    log.write(bundle, "Assigned", to=owner, by=owner)


def test_a_lost_owner_is_one_incident_however_many_bundles_it_had() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    bundles = [f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"]
    for bundle in bundles:
        served(log, bundle, "b1")
    heard_ms = log.at_ms + 500
    for bundle in bundles:
        lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": heard_ms}
        log.write(bundle, "Assigning", to="b2", by="b3", forced=True, lost=lost, after_ms=3_000)
        log.write(bundle, "Assigned", to="b2", by="b2")
    (result,) = find_incidents(log)
    assert (result.at_ms, result.kind) == (heard_ms, IncidentKind.OWNER_LOST)
    assert re.findall(r"[\d.]+ (?:bundles|s)", result.message) == ["2 bundles", "6.5 s", "7.5 s"]


def test_a_lost_broker_and_its_repair_are_one_incident() -> None:
    lost = Incident(5, IncidentKind.LOST, "b2 was lost without a goodbye", lost="b2")
    again = Incident(5, IncidentKind.LOST, "b2 is heard again")
    other = Incident(5, IncidentKind.LOST, "b3 was lost without a goodbye", lost="b3")
    repaired = Incident(5, IncidentKind.OWNER_LOST, "b2 was lost; b1 repaired 6 bundles", lost="b2")
    assert without_repaired([lost, again, other, repaired]) == [again, other, repaired]
    assert without_repaired([lost, repaired._replace(at_ms=9)]) == [lost, repaired._replace(at_ms=9)], (
        "another loss of it"
    )


def test_a_bundle_whose_next_owner_is_lost_too_counts_as_repaired_for_both() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=RING)
    served(log, BUNDLE, "b1")
    for gone, to in (("b1", "b2"), ("b2", "b3")):
        lost = {"broker": gone, "incarnation": f"{gone}-i", "last_heard_ms": log.at_ms}
        log.write(BUNDLE, "Assigning", to=to, by="b3", forced=True, lost=lost, after_ms=3_000)
    log.write(BUNDLE, "Assigned", to="b3", by="b3")
    first, second = sorted(find_incidents(log))
    assert first.message.startswith("b1 was lost; b3 repaired 1 bundle; the last one 3.0 s")
    assert second.message.startswith("b2 was lost; b3 repaired 1 bundle; ")
    assert (first.lost, second.lost) == ("b1", "b2")


def test_a_bundle_that_brokers_decline_has_no_owner_since_the_one_before_was_heard() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=RING)
    served(log, BUNDLE, "b2")
    heard_ms = log.at_ms + 500
    lost = {"broker": "b2", "incarnation": "b2-i", "last_heard_ms": heard_ms}
    log.write(BUNDLE, "Assigning", to="b1", forced=True, lost=lost, after_ms=6_000)
    log.write(BUNDLE, "Unassigned", action="decline", reason="no disk", **{"from": "b1"})
    log.write(BUNDLE, "Assigning", to="b3")
    log.write(BUNDLE, "Unassigned", by="b3", action="decline", reason="no disk", **{"from": "b3"})

    def declined() -> dict[str, DeclinedBundle]:
        incidents = ChannelIncidents(1_000)
        audit_part(0, 1, log.records, observe=incidents.observe)
        return incidents.declines.bundles

    assert declined().keys() == {BUNDLE}
    assert declined()[BUNDLE].since_ms in (heard_ms, heard_ms - 500), "since the old owner's last word, not the decline"
    assert declined()[BUNDLE].reasons == {("b1", "b1-i"): "no disk", ("b3", "b3-i"): "no disk"}
    served(log, BUNDLE, "b1")
    assert declined() == {}


def test_repairs_that_gave_no_owner_are_not_called_repaired() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    for bundle in (LOWER, UPPER):
        served(log, f"{NAMESPACE}/{bundle}", "b2")
    lost = {"broker": "b2", "incarnation": "b2-i", "last_heard_ms": log.at_ms}
    for bundle in (LOWER, UPPER):
        log.write(f"{NAMESPACE}/{bundle}", "Assigning", to="b1", forced=True, lost=lost)
    log.write(f"{NAMESPACE}/{LOWER}", "Unassigned", action="decline", reason="no disk", **{"from": "b1"})

    def sentence() -> str:
        (result,) = [item for item in find_incidents(log, 60_000) if item.kind is IncidentKind.OWNER_LOST]
        return result.message

    assert sentence().startswith("b2 was lost; b1 tried to repair 2 bundles, 0 got an owner; the last one ")
    log.write(f"{NAMESPACE}/{UPPER}", "Assigned", to="b1")
    served(log, f"{NAMESPACE}/{LOWER}", "b3")
    assert sentence().startswith("b2 was lost; b1 repaired 2 bundles; ")


def test_a_cold_start_is_told_and_a_void_mark_or_junk_on_its_key_is_not() -> None:
    log = Log()
    values = [(b"!cold-start", b"junk"), (b"!heartbeat", heartbeat("b1-i", 0)), (b"!cold-start", mark("b2-i", 0))]
    values += [(b"!cold-start", mark("b3-i", 9)), (b"!cold-start", mark("b1-i", 1)), (b"!cold-start", b"")]
    for offset, (key, value) in enumerate(values):
        log.records.append(RecordRead(Topic.CHANNEL, 0, offset, 1_000 * offset, key, value))
    (result,) = find_incidents(log)
    assert result.message == "cold start: b1-i accepted its view of partition 0, through offset 1, as the truth"


class Registry:
    """Heartbeats of brokers, each at a moment."""

    def __init__(self) -> None:
        self.story = RegistryStory(expiry_s=6.0)
        self._seq: dict[str, int] = {}

    def beat(self, at_s: float, broker: str, process: int = 1, **fields: Any) -> None:
        name = f"{broker}-{process}"
        self._seq[name] = self._seq.get(name, 0) + 1
        sent_ms = round(at_s * 1_000) - 5
        info = of_broker(
            broker, incarnation=name, seq=self._seq[name], sent_at_ms=sent_ms, **{"leading": False, **fields}
        )
        decoded = decode_member(json.dumps(info).encode())
        self.story.observe(RecordRead(Topic.REGISTRY, 0, 0, round(at_s * 1_000), broker.encode(), b""), decoded)

    def beats(self, start_s: float, end_s: float, *brokers: str, **fields: Any) -> None:
        at_s = start_s
        while at_s < end_s:
            for broker in brokers:
                self.beat(at_s, broker, **fields)
            at_s += 1.0

    def led_by(self, leader: str, start_s: float, end_s: float, *others: str) -> None:
        at_s = start_s
        while at_s < end_s:
            self.beat(at_s, leader, leading=True)
            for broker in others:
                self.beat(at_s, broker)
            at_s += 1.0


def test_a_leader_that_wakes_up_leads_where_no_other_took_over() -> None:
    registry = Registry()
    registry.led_by("b1", 0, 5, "b2")
    registry.beats(5, 20, "b2")
    registry.beats(20, 22, "b1", leading=True)
    assert registry.story.processes["b1"].leads_since_ms == 20_000
    registry.beats(22, 25, "b2", leading=True)  # b1 was paused again
    registry.beats(25, 30, "b2", leading=True)
    registry.beat(30, "b1", leading=True)
    registry.beat(31, "b2", leaving=True)
    registry.beat(32, "b1", leading=True)
    assert registry.story.leader == "b1"


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ([("b1", 2), ("b2", 2)], "all brokers were restarted, no process of before has been heard since"),
        ([("b1", 2), ("b2", 1)], "Kafka was unavailable to all brokers, or all stood still"),
        ([("b1", 1), ("b2", 2)], "Kafka was unavailable to all brokers, or all stood still"),
    ],
)
def test_a_silence_is_explained_by_who_is_heard_after_it(after: list[tuple[str, int]], why: str) -> None:
    registry = Registry()
    registry.beats(0, 3, "b1", "b2")
    for broker, process in after:
        registry.beat(20, broker, process)
    (incident,) = [item for item in registry.story.incidents if item.kind is IncidentKind.SILENCE]
    assert incident.message.startswith("no heartbeats for 1")
    assert incident.message.endswith(f": {why}")


def test_the_newest_incidents_come_first_and_memory_is_bounded() -> None:
    registry = Registry()
    for number in range(500):
        registry.beat(number, "b1", repair_paused="x" if number % 2 else None)
    assert len(registry.story.incidents) == 200
    shown = newest(registry.story.incidents, 3)
    assert [status.at_ms for status in shown] == [499_000, 498_000, 497_000]


def drain(number: int, outcome: dict[str, Any] | None = None, **args: Any) -> list[Request | Reply]:
    """A request of a drain, and its reply."""
    args = {"extension": "balancer", "ask": "drain", "broker": "b2", **args}
    asked = Request(f"id-{number}", RequestCommand.EXTENSION.value, 0, args, "me@here")
    return [asked] if outcome is None else [asked, Reply(asked.id, "b1", "b1-1", outcome)]


def test_drains_are_told_as_they_were_asked_for_and_as_they_ended() -> None:
    first, reply = drain(0, {"outcome": "done", "result": "drained"})
    asked = stories(first, *drain(1, broker="b3"), *drain(2, ask="decide"), reply, step_ms=1_000)
    assert [(incident.at_ms, incident.message) for incident in drains_of(asked.values())] == [
        (0, "the drain of b2 by me@here began, and ended after 3.0 s: drained"),
        (1_000, "b3 is being drained, by me@here"),
    ]


def test_a_drain_that_timed_out_says_when_it_began() -> None:
    late = {"answer": "unknown", "outcome": "undetermined", "reason": "timed-out", "message": "by then 0 bundles"}
    asked = stories(*drain(0, late), step_ms=5_000)
    (incident,) = drains_of(asked.values())
    assert (incident.at_ms, "timed out after 5.0 s" in incident.message) == (0, True)
    assert asked["id-0"].status(5_000) == "timed-out"


def test_a_drain_that_fails_again_and_again_is_one_incident_with_its_requester_and_the_sentence() -> None:
    refused = {"answer": "rejected", "reason": "no-extension", "message": "this broker runs no extension balancer"}
    asked = stories(*(item for number in range(3) for item in drain(number, refused)), step_ms=1_000)
    (incident,) = drains_of(asked.values())
    assert incident.at_ms == 4_000
    for word in ("b2", "me@here", "3 times", "1.0 s", "this broker runs no extension balancer", "no-extension"):
        assert word in incident.message


def test_the_longest_gap_is_told_of_an_owner_last_heard_before_it_served() -> None:
    log = Log()
    log.assigned()
    lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": log.at_ms - 500}
    log.write(BUNDLE, "Assigning", to="b2", by="b3", forced=True, lost=lost, after_ms=3_000)
    log.write(BUNDLE, "Assigned", to="b2", by="b2")
    (result,) = find_incidents(log)
    assert result.message.endswith("; the longest gap in service was 4.0 s")
