"""Incidents in words: from the channel's log and from the registry, by the log's own times."""

import json
from typing import Any

import pytest

from statechannel.audit.incident import Incident, IncidentKind, newest, without_repaired
from statechannel.audit.incidents import ChannelIncidents, DeclinedBundle
from statechannel.audit.registry_story import RegistryStory
from statechannel.cli.kit.requests import requests_in
from statechannel.cli.status.command import drains_of
from statechannel.engine.membership import decode_member
from statechannel.protocol.log import RecordRead, Topic
from statechannel.replay.auditor import audit_full
from tests.support.lone_engine import heartbeat, mark
from tests.unit.audit.test_story import BUNDLE, LOWER, NAMESPACE, UPPER, Log

RING = ["0x00000000_0xffffffff"]


def find_incidents(log: Log, gap_over_ms: float = 1_000) -> list[Incident]:
    incidents = ChannelIncidents(gap_over_ms)
    audit_full(0, 1, log.records, incidents.observe)
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
    assert result.message == (
        "b1 was lost; b3 repaired 2 bundles; the last one 6.5 s after it was last heard; "
        "the longest gap in service was 7.5 s"
    )


@pytest.mark.parametrize(("gap_ms", "incidents"), [(900, 0), (2_000, 1)])
def test_a_gap_is_told_only_if_it_is_long(gap_ms: int, incidents: int) -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=RING)
    served(log, BUNDLE, "b1")
    log.write(BUNDLE, "Releasing", **{"from": "b1", "to": "b2"})
    log.write(BUNDLE, "Assigning", after_ms=gap_ms // 2, **{"from": "b1", "to": "b2"})
    log.write(BUNDLE, "Assigned", by="b2", after_ms=gap_ms // 2, **{"from": "b1", "to": "b2"})
    result = find_incidents(log)
    assert len(result) == incidents
    if result:
        assert result[0].message == f"no broker served {BUNDLE} for 2.0 s: transfer from b1 to b2"


def test_gaps_of_one_broker_that_began_together_are_one_incident_with_the_cause_first() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    reason = "decision 01M8BYK: moves 7.2 % of the capacity of b1 to b2, as b1 has more than all others have"
    for half in (LOWER, UPPER):
        served(log, f"{NAMESPACE}/{half}", "b1")
    for half in (LOWER, UPPER):
        log.write(f"{NAMESPACE}/{half}", "Releasing", reason=reason, **{"from": "b1", "to": "b2"})
    for half in (LOWER, UPPER):
        log.write(f"{NAMESPACE}/{half}", "Assigning", by="b1", after_ms=15_000, **{"from": "b1", "to": "b2"})
        log.write(f"{NAMESPACE}/{half}", "Assigned", by="b2", **{"from": "b1", "to": "b2"})
    (result,) = find_incidents(log)
    assert result.message == (
        "no broker served 2 bundles of b1 for 17.0 s to 32.0 s: b1 took 31.0 s to release it; transfer from b1 to b2"
    )


def test_gaps_that_ended_at_several_brokers_name_all_of_them() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    for half in (LOWER, UPPER):
        served(log, f"{NAMESPACE}/{half}", "b1")
    for half, to in ((LOWER, "b2"), (UPPER, "b3")):
        log.write(f"{NAMESPACE}/{half}", "Releasing", after_ms=10, **{"from": "b1", "to": to})
    for half, to in ((LOWER, "b2"), (UPPER, "b3")):
        log.write(f"{NAMESPACE}/{half}", "Assigning", by="b1", **{"from": "b1", "to": to})
        log.write(f"{NAMESPACE}/{half}", "Assigned", by=to, **{"from": "b1", "to": to})
    (result,) = find_incidents(log)
    assert result.message == (
        "no broker served 2 bundles of b1 for 2.0 s to 4.0 s: b1 took 3.0 s to release it; transfer from b1 to b3 "
        "(the longest); 1 to b2 and 1 to b3"
    )


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


def test_a_broker_that_declines_is_one_incident_with_its_newest_reason() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    for bundle, reason in ((LOWER, "on_own raised OSError: disk full"), (UPPER, "on_own did not return within 5 s")):
        log.write(f"{NAMESPACE}/{bundle}", "Assigning", to="b1")
        log.write(f"{NAMESPACE}/{bundle}", "Unassigned", by="b1", action="decline", reason=reason, **{"from": "b1"})
    incidents = ChannelIncidents(1_000)
    declined_ms = log.at_ms
    served(log, f"{NAMESPACE}/{LOWER}", "b2")
    audit_full(0, 1, log.records, incidents.observe)
    (one,) = incidents.all()
    assert one.kind is IncidentKind.DECLINED
    assert one.message == f"b1 declined bundles 2 times, {NAMESPACE}/{UPPER} the last: on_own did not return within 5 s"
    assert one.at_ms <= declined_ms
    (found,) = incidents.declines
    assert (found.times, list(found.waiting)) == (2, [f"{NAMESPACE}/{UPPER}"])


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
        audit_full(0, 1, log.records, incidents.observe)
        return incidents.declined

    assert declined().keys() == {BUNDLE}
    assert declined()[BUNDLE].since_ms in (heard_ms, heard_ms - 500), "since the old owner's last word, not the decline"
    assert declined()[BUNDLE].reasons == {("b1", "b1-i"): "no disk", ("b3", "b3-i"): "no disk"}
    served(log, BUNDLE, "b1")
    assert declined() == {}


def test_a_deleted_namespace_is_an_incident_with_its_bundles_and_who_asked_for_it() -> None:
    log = Log()
    log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
    served(log, f"{NAMESPACE}/{LOWER}", "b1")
    for state in ("Releasing", "Unassigned"):
        log.write(f"{NAMESPACE}/{LOWER}", state, action="unload", operation="op-1", **{"from": "b1"})
    log.write(NAMESPACE, "Deleted", version=6, operation="op-1")
    incidents = ChannelIncidents(60_000)
    audit_full(0, 1, log.records, incidents.observe)
    (result,) = incidents.all()
    assert (result.at_ms, result.kind) == (log.at_ms, IncidentKind.NAMESPACE_DELETED)
    assert result.message == f"b1 deleted namespace {NAMESPACE} (2 bundles, 1 with an owner)"
    incidents.requesters = {"op-1": "jane@vm"}
    assert incidents.all()[0].message.startswith(f"jane@vm deleted namespace {NAMESPACE} (")


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
        info = {
            "format": 1,
            "kind": "member",
            "broker": broker,
            "incarnation": name,
            "seq": self._seq[name],
            "since": 0,
            "sent_at_ms": round(at_s * 1_000) - 5,
            "mode": "normal",
            "phase": "caught-up",
            "leading": False,
            "expiry_s": 6.0,
            **fields,
        }
        decoded = decode_member(json.dumps(info).encode())
        assert decoded is not None
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

    @property
    def incidents(self) -> list[tuple[float, str]]:
        return [(incident.at_ms / 1_000, incident.message) for incident in self.story.incidents]


def test_a_leader_that_dies_and_its_successor() -> None:
    registry = Registry()
    registry.led_by("b1", 0, 5, "b2")
    registry.beats(5, 10, "b2")
    registry.beats(10, 14, "b2", leading=True)
    assert registry.incidents == [
        (0.0, "b1 started"),
        (0.0, "b1 leads"),
        (0.0, "b2 started"),
        (10.0, "b2 leads, after b1 and 6.0 s without a leader"),
        (4.0, "b1 was lost without a goodbye"),
    ]
    assert registry.story.processes["b2"].leads_since_ms == 10_000
    assert registry.story.processes["b1"].leads_since_ms is None


def test_the_old_claim_of_a_leader_that_wakes_up_is_no_change_of_leader() -> None:
    registry = Registry()
    registry.led_by("b1", 0, 5, "b2")
    registry.beats(5, 11, "b2")
    registry.beats(11, 30, "b2", leading=True)
    registry.beat(30, "b1", leading=True)  # as it was when it was paused
    registry.beat(30.5, "b2", leading=True)
    registry.beat(31, "b1", leading=True)
    registry.beat(31.5, "b1")
    registry.led_by("b2", 32, 40, "b1")
    assert registry.story.leader == "b2"
    assert registry.story.processes["b1"].leads_since_ms is None
    registry.beats(40, 41, "b1")
    registry.beat(41, "b2")
    registry.beat(42, "b1", leading=True)
    leaders = [message for _, message in registry.incidents if " leads" in message]
    assert leaders == [
        "b1 leads",
        "b2 leads, after b1 and 7.0 s without a leader",
        "b1 leads, after b2 and 3.0 s without a leader",
    ]


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


def test_a_goodbye_is_no_loss_and_a_new_process_is_named() -> None:
    registry = Registry()
    registry.beats(0, 3, "b1", "b2")
    registry.beat(3, "b1", draining=True)
    registry.beat(4, "b1", draining=True, leaving=True)
    registry.beats(4, 20, "b2")
    registry.beat(20, "b1", process=2)
    assert registry.incidents[2:] == [
        (3.0, "b1 is shutting down, and hands over its bundles"),
        (4.0, "b1 left with a goodbye"),
        (20.0, "b1 started again, as a new process"),
    ]


def test_kafka_away_is_silence_of_nobody() -> None:
    registry = Registry()
    registry.beats(0, 3, "b1", "b2")
    registry.beat(62, "b1", mode="safe", seq=63)
    registry.beat(63, "b2", mode="safe", seq=64)
    registry.beat(64, "b1", mode="settling", seq=65)
    registry.beat(66, "b1", seq=67)
    registry.beat(66, "b2", seq=67)
    assert registry.incidents[2:] == [
        (2.0, "no heartbeats for 60.0 s: Kafka was unavailable to all brokers, or all stood still"),
        (2.0, "b1 is in safe mode: it lost its connection to Kafka"),
        (2.0, "b2 is in safe mode: it lost its connection to Kafka"),
        (66.0, "b1 is back in normal mode, after 64.0 s"),
        (66.0, "b2 is back in normal mode, after 64.0 s"),
    ]


def test_safe_mode_began_when_the_broker_says_also_where_the_records_of_before_came_late() -> None:
    registry = Registry()
    registry.beats(0, 3, "b1", "b2")
    registry.beat(61, "b1", seq=4, sent_at_ms=2_500)  # Kafka took it only when it was resumed
    registry.beat(61, "b1", seq=60, mode="safe", safe_since_ms=4_995)
    registry.beat(61.5, "b2", seq=60, mode="settling", safe_since_ms=5_995)
    registry.beat(62, "b1", seq=61)
    registry.beat(62, "b2", seq=61)
    assert [incident for incident in registry.incidents if "mode" in incident[1]] == [
        (5.0, "b1 is in safe mode: it lost its connection to Kafka"),
        (6.0, "b2 is in safe mode: it lost its connection to Kafka"),
        (62.0, "b1 is back in normal mode, after 57.0 s"),
        (62.0, "b2 is back in normal mode, after 56.0 s"),
    ]


def test_repair_that_pauses_and_one_that_comes_back() -> None:
    registry = Registry()
    registry.beats(0, 2, "b1", "b2")
    registry.beats(2, 9, "b1", repair_paused="3 of 4 brokers vanished")
    registry.beat(9, "b2", seq=10)
    registry.beat(9.5, "b1")
    assert registry.incidents[2:] == [
        (2.0, "b1 paused repair: 3 of 4 brokers vanished"),
        (1.0, "b2 was lost without a goodbye"),
        (9.0, "b2 is heard again, after 8.0 s"),
        (9.5, "b1 repairs again"),
    ]


def test_forged_records_are_an_incident_of_their_own_time_that_is_counted_up() -> None:
    registry = Registry()
    registry.beats(0, 3, "b1")
    seen = {"records": 1, "topic": "channel", "partition": 1, "offset": 77, "timestamp_ms": 2_500}
    registry.beat(3, "b1", forged=seen)
    registry.beat(4, "b1", forged=seen)
    assert [incident for incident in registry.incidents if "own name" in incident[1]] == [
        (
            2.5,
            "b1 has read 1 record in its own name that it did not write, the newest in the channel at partition 1, offset 77",
        )
    ]
    registry.beat(5, "b1", forged=seen | {"records": 3, "offset": 90, "timestamp_ms": 4_600})
    registry.beat(6, "b1", forged=seen | {"records": "many"})
    registry.beat(6.5, "b1", forged=None)
    assert [incident for incident in registry.incidents if "own name" in incident[1]] == [
        (
            4.6,
            "b1 has read 3 records in its own name that it did not write, the newest in the channel at partition 1, offset 90",
        )
    ]
    kinds = [incident.kind for incident in registry.story.incidents]
    assert kinds.count(IncidentKind.FORGED) == 1


def test_forged_records_of_before_the_memory_of_the_registry_are_an_incident_too() -> None:
    registry = Registry()
    seen = {"records": 2, "topic": "registry", "partition": 0, "offset": 7}
    registry.beat(3, "b2", forged=seen)
    assert [incident for incident in registry.incidents if "own name" in incident[1]] == [
        (
            3.0,
            "b2 has read 2 records in its own name that it did not write, the newest in the registry at partition 0, offset 7",
        )
    ]


def test_two_processes_under_one_id_are_seen_and_a_successor_is_not_two() -> None:
    registry = Registry()
    registry.beats(0, 3, "b1")
    registry.beat(3, "b1", process=2)
    assert registry.story.doubled == {}
    registry.beat(4, "b1", process=1)
    registry.beat(5, "b1", process=2)
    assert registry.story.doubled == {"b1": 4_000}
    assert registry.story.processes["b1"].incarnation == "b1-2"


def test_a_process_that_did_not_run_is_told_from_one_that_was_cut_off() -> None:
    registry = Registry()
    registry.beats(0, 3, "b1", "b2", "b3")
    registry.beats(3, 28, "b1")
    registry.beat(28, "b2", mode="safe")
    registry.beat(28, "b3", mode="safe", seq=29)
    registry.beat(29, "b2")
    said = [(at_s, text) for at_s, text in registry.incidents if at_s >= 2 and "lost without" not in text]
    assert said == [
        (2.0, "b2 stood still for 26.0 s: its process or event loop did not run"),
        (28.0, "b2 is heard again, after 26.0 s"),
        (28.0, "b2 is in safe mode: it reads what it missed"),
        (28.0, "b3 is heard again, after 26.0 s"),
        (2.0, "b3 is in safe mode: it lost its connection to Kafka"),
        (29.0, "b2 is back in normal mode, after 1.0 s"),
    ]


def test_a_leader_that_comes_back_after_an_outage_was_away_for_all_of_it() -> None:
    registry = Registry()
    registry.beats(0, 3, "b1", "b2", leading=False)
    registry.beat(3, "b1", leading=True)
    registry.beat(150, "b1", leading=False, seq=150)
    registry.beat(151, "b1", leading=True, seq=151)
    assert (151.0, "b1 leads again, 2.5 min without a leader") in registry.incidents


def test_a_pause_of_repair_says_how_many_were_lost_in_the_end() -> None:
    registry = Registry()
    registry.beat(1, "b1")
    registry.beat(2, "b1", repair_paused="3 of 5 brokers vanished")
    registry.beat(3, "b1", repair_paused="4 of 5 brokers vanished")
    (incident,) = [item for item in registry.story.incidents if item.kind is IncidentKind.REPAIR_PAUSED]
    assert (incident.at_ms, incident.message) == (2_000, "b1 paused repair: 4 of 5 brokers vanished")


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


@pytest.mark.parametrize("off_s", [-90.0, 0.0, 30.0])
def test_the_clock_of_a_broker_is_measured_by_its_least_delay(off_s: float) -> None:
    registry = Registry()
    for number, delay_ms in enumerate([400, 20, 3, 90]):
        at_ms = 1_000_000 + number * 1_000
        registry.beat(at_ms / 1_000, "b1", sent_at_ms=round(at_ms - delay_ms + off_s * 1_000))
    assert registry.story.processes["b1"].clock_behind_ms == round(3 - off_s * 1_000)


def test_the_newest_incidents_come_first_and_memory_is_bounded() -> None:
    registry = Registry()
    for number in range(500):
        registry.beat(number, "b1", repair_paused="x" if number % 2 else None)
    assert len(registry.story.incidents) == 200
    shown = newest(registry.story.incidents, 3)
    assert [status.at_ms for status in shown] == [499_000, 498_000, 497_000]


def test_drains_are_told_as_they_were_asked_for_and_as_they_ended() -> None:
    def request(number: int, **args: Any) -> dict[str, Any]:
        asked = {"command": "extension", "args": {"extension": "balancer", "ask": "drain", **args}}
        return {"format": 1, "kind": "request", "id": f"id-{number}", "by": "me@here", "timeout_s": 60, **asked}

    by = {"broker": "b1", "incarnation": "b1-1"}
    reply = {"format": 1, "kind": "reply", "id": "id-0", "by": by, "outcome": {"outcome": "done", "result": "drained"}}
    values = [request(0, broker="b2"), request(1, broker="b3"), request(2, ask="decide"), reply]
    records = [
        RecordRead(Topic.REQUESTS, 0, number, 1_000 * number, b"k", json.dumps(value).encode())
        for number, value in enumerate(values)
    ]
    assert [(incident.at_ms, incident.message) for incident in drains_of(records)] == [
        (0, "the drain of b2 by me@here began, and ended after 3.0 s: drained"),
        (1_000, "b3 is being drained, by me@here"),
    ]


def test_a_drain_that_timed_out_says_when_it_began() -> None:
    args = {"extension": "balancer", "ask": "drain", "broker": "b2"}
    late = {
        "answer": "unknown",
        "outcome": "undetermined",
        "reason": "timed-out",
        "message": "by then 0 bundles",
        "hint": "",
    }
    values: list[dict[str, Any]] = [
        {
            "format": 1, "kind": "request", "id": "id-0", "by": "me@here", "timeout_s": 60, "command": "extension",
            "args": args,
        },
        {"format": 1, "kind": "reply", "id": "id-0", "by": {"broker": "b1", "incarnation": "b1-1"}, "outcome": late},
    ]  # fmt: skip
    records = [
        RecordRead(Topic.REQUESTS, 0, number, 5_000 * number, b"k", json.dumps(value).encode())
        for number, value in enumerate(values)
    ]
    assert [(incident.at_ms, incident.message) for incident in drains_of(records)] == [
        (0, "the drain of b2 by me@here began, and timed out after 5.0 s; by then 0 bundles")
    ]
    assert requests_in(records)["id-0"]["status"] == "timed-out"


def test_a_drain_that_fails_again_and_again_is_one_incident_with_its_requester_and_the_sentence() -> None:
    by = {"broker": "b1", "incarnation": "b1-1"}
    refused = {"answer": "rejected", "reason": "no-extension", "message": "this broker runs no extension balancer"}
    values: list[dict[str, Any]] = []
    for number in range(3):
        args = {"extension": "balancer", "ask": "drain", "broker": "b2"}
        values += [
            {
                "format": 1, "kind": "request", "id": f"id-{number}", "by": "me@here", "timeout_s": 60,
                "command": "extension", "args": args,
            },
            {"format": 1, "kind": "reply", "id": f"id-{number}", "by": by, "outcome": refused},
        ]  # fmt: skip
    records = [
        RecordRead(Topic.REQUESTS, 0, number, 1_000 * number, b"k", json.dumps(value).encode())
        for number, value in enumerate(values)
    ]
    assert [(incident.at_ms, incident.message) for incident in drains_of(records)] == [
        (
            4_000,
            "the drain of b2 by me@here failed 3 times, the last time after 1.0 s: "
            "this broker runs no extension balancer (no-extension)",
        )
    ]


def test_the_longest_gap_is_told_of_an_owner_last_heard_before_it_served() -> None:
    log = Log()
    log.assigned()
    lost = {"broker": "b1", "incarnation": "b1-i", "last_heard_ms": log.at_ms - 500}
    log.write(BUNDLE, "Assigning", to="b2", by="b3", forced=True, lost=lost, after_ms=3_000)
    log.write(BUNDLE, "Assigned", to="b2", by="b2")
    (result,) = find_incidents(log)
    assert result.message.endswith("; the longest gap in service was 4.0 s")


def test_a_clock_that_was_ahead_for_a_while_hides_no_loss_that_follows() -> None:
    """Kafka's clock was two hours ahead for some seconds: a loss after that is noticed as ever, and the leader is known."""
    registry = Registry()
    registry.beats(0, 5, "b1", "b2", leading=True)
    registry.beats(7_205, 7_210, "b1", "b2", leading=True)
    registry.beats(10, 30, "b1", leading=True)
    assert (5 + 5, "b2 was lost without a goodbye") in registry.incidents
    assert registry.story.newest_ms == 29_000
    assert registry.story.led_ms == 29_000
    assert registry.story.heard_from_ms <= 10_000
