"""Incidents, played in half seconds: whatever `status` says, the page and `doctor` say too, in the same words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statechannel.audit.views import LogViews
from statechannel.broker.changes import Change
from statechannel.cli.brokers import silence_of
from statechannel.cli.doctor.checks import Severity, examine
from statechannel.cli.doctor.command import CHECKS
from statechannel.cli.kit.remarks import Remarks
from statechannel.cli.status.figures import StatusInputs, figures, with_health
from statechannel.conditions.facts import NO_TOPIC_FACTS, ConditionLimits, Facts, broker_rows, leader_of, pauses_of
from statechannel.conditions.table import CONDITIONS
from statechannel.http_api.page.page_facts import ClusterLook
from statechannel.http_api.page.page_view import PageView
from statechannel.protocol.log import RecordRead, Topic
from statechannel.protocol.verdict import Verdict
from statechannel.protocol.view import Judgement
from statechannel.replay.auditor import audit_part
from statechannel.settings import load
from statechannel.stories.incident import IncidentKind, forged_of
from statechannel.stories.processes import RegistryStory
from statechannel.stories.registry import RegistryFold
from tests.support.doctor_facts import healthy, heartbeat
from tests.unit.audit.test_story import LOWER, NAMESPACE, UPPER, Log

EPOCH_MS = 1_750_000_000_000
BUNDLE, OTHER = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"
LIMITS = ConditionLimits.of(load())
ENDS_S = 24


class Incident:
    """Three brokers, of which `b1` leads and `b2` owns both bundles, from 10 s before its time begins.

    Attributes:
        heads_lost: First offsets above 0, as Kafka reports them.
    """

    def __init__(self) -> None:
        self.beats: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for broker in ("b1", "b2", "b3"):
            self.hear(broker)
        self.log = Log()
        self.log.at_ms = EPOCH_MS - 10_000
        self.log.write(NAMESPACE, "Active", children=[LOWER, UPPER])
        for bundle in (BUNDLE, OTHER):
            self.write(bundle, "Assigning", None, to="b2", after_ms=10, flow="assignment")
            self.write(bundle, "Assigned", None, to="b2", by="b2", after_ms=10, flow="assignment")
        self.heads_lost: dict[str, int] = {}

    def hear(self, broker: str, from_s: float = -10, to_s: float = ENDS_S, **fields: Any) -> None:
        """Heartbeats of a broker, in place of what it would have sent from then on."""
        beats = [beat for beat in self.beats.get(broker, ()) if beat[0] < from_s * 1_000]
        for at_ms in range(round(from_s * 1_000), round(to_s * 1_000), 1_000):
            sent_ms = EPOCH_MS + at_ms
            told = {name: value(sent_ms) if callable(value) else value for name, value in fields.items()}
            beats.append((at_ms, heartbeat(broker, sent_at_ms=sent_ms, seq=100 + len(beats), **told)))
        self.beats[broker] = beats

    def write(self, key: str, state: str, at_s: float | None = 0, *, by: str = "b1", **fields: Any) -> None:
        if at_s is not None:
            fields["after_ms"] = EPOCH_MS + round(at_s * 1_000) - self.log.at_ms
        self.log.write(key, state, by_process={"broker": by, "incarnation": f"{by}-1"}, **fields)

    def heartbeats(self, at_ms: int) -> list[RecordRead]:
        every = sorted(
            (beat for beats in self.beats.values() for beat in beats if beat[0] <= at_ms), key=lambda beat: beat[0]
        )
        return [
            RecordRead(Topic.REGISTRY, 0, offset, EPOCH_MS + beat_ms, b"k", json.dumps(info).encode())
            for offset, (beat_ms, info) in enumerate(every)
        ]


def killed(incident: Incident) -> None:
    incident.hear("b3", 1, 1)


def owner_killed(incident: Incident) -> None:
    incident.hear("b2", 1, 1)


def leader_killed(incident: Incident) -> None:
    incident.hear("b1", 1, 1)
    incident.hear("b3", 14, leading=True)


def all_killed(incident: Incident) -> None:
    for broker in ("b1", "b2", "b3"):
        incident.hear(broker, 1, 1)


def all_left(incident: Incident) -> None:
    for broker in ("b1", "b2", "b3"):
        incident.hear(broker, 1, 2, leaving=True)


def a_moment_late(incident: Incident) -> None:
    incident.hear("b3", 1, 1)
    incident.beats["b3"] += [(at_ms, heartbeat("b3", seq=900 + at_ms)) for at_ms in range(2_400, ENDS_S * 1_000, 1_000)]


def tells(**fields: Any) -> Callable[[Incident], None]:
    """What one broker says of itself for ten seconds."""

    def happen(incident: Incident) -> None:
        incident.hear("b3", 2, 12, **fields)
        rest = Incident().beats["b3"]
        incident.beats["b3"] += [beat for beat in rest if beat[0] >= 12_000]

    return happen


def since(**fields: Any) -> Callable[[int], dict[str, Any]]:
    return lambda sent_ms: {"times": 2, "since_ms": EPOCH_MS, "at_ms": sent_ms - 400, **fields}


def stuck_release(incident: Incident) -> None:
    incident.write(BUNDLE, "Releasing", 1, by="b2", **{"from": "b2"}, to="b3", flow="transfer", operation="op")
    incident.write(BUNDLE, "Assigning", 15, by="b2", **{"from": "b2"}, to="b3", flow="transfer", operation="op")
    incident.write(BUNDLE, "Assigned", 15.2, by="b3", **{"from": "b2"}, to="b3", flow="transfer", operation="op")


def stuck_take(incident: Incident) -> None:
    incident.write(BUNDLE, "Releasing", 1, by="b2", **{"from": "b2"}, to="b3", flow="transfer", operation="op")
    incident.write(BUNDLE, "Assigning", 1.1, by="b2", **{"from": "b2"}, to="b3", flow="transfer", operation="op")


def destination_killed(incident: Incident) -> None:
    stuck_take(incident)
    killed(incident)


def left_by_shutdown(incident: Incident) -> None:
    for at_s, bundle in ((1, BUNDLE), (1.5, OTHER)):
        incident.write(bundle, "Releasing", at_s, by="b2", **{"from": "b2"}, flow="shutdown")
        incident.write(bundle, "Unassigned", at_s + 0.1, by="b2", **{"from": "b2"}, flow="shutdown")


def declined(*brokers: str) -> Callable[[Incident], None]:
    def happen(incident: Incident) -> None:
        incident.write(BUNDLE, "Releasing", 1, by="b2", **{"from": "b2"}, flow="unload")
        incident.write(BUNDLE, "Unassigned", 1.1, by="b2", **{"from": "b2"}, flow="unload")
        for number, broker in enumerate(brokers):
            at_s = 2 + 0.4 * number
            incident.write(BUNDLE, "Assigning", at_s, to=broker, flow="assignment")
            incident.write(
                BUNDLE, "Unassigned", at_s + 0.2, by=broker, **{"from": broker}, action="decline", reason="no disk",
                flow="assignment",
            )  # fmt: skip

    return happen


def mass_loss(incident: Incident) -> None:
    incident.hear("b2", 1, 1)
    incident.hear("b3", 1, 1)
    incident.hear("b1", 7, repair_paused="2 of 3 vanished", repair_resumes_at_ms=EPOCH_MS + 60_000)


def key_in_debt(incident: Incident) -> None:
    incident.write(BUNDLE, "Releasing", 1, by="b3", **{"from": "b3"}, to="b1", version=9)


def head_lost(incident: Incident) -> None:
    incident.heads_lost = {"0": 1}


INCIDENTS: dict[str, tuple[Callable[[Incident], None], str]] = {
    "calm": (lambda _: None, ""),
    "a broker is killed": (killed, "broker-suspect broker-lost"),
    "a heartbeat is late": (a_moment_late, ""),
    "an owner is killed": (owner_killed, "broker-suspect broker-lost owner-unreachable"),
    "the leader is killed": (leader_killed, "broker-suspect broker-lost no-leader"),
    "all are killed": (all_killed, "broker-suspect no-broker broker-lost owner-unreachable"),
    "all have left": (all_left, "no-broker owner-unreachable"),
    "many are lost": (mass_loss, "broker-suspect broker-lost owner-unreachable repair-paused"),
    "safe mode": (tells(mode="safe"), "safe-mode"),
    "a hook fails": (tells(hooks_failed=lambda ms: {"on_release": since(bundle=BUNDLE, error="no")(ms)}), "hook-fails"),
    "a blocked loop": (tells(blocked=since(seconds=1.0, place="x.py:1", hook=None)), "loop-blocked"),
    "no broker allowed": (tells(unplaced=since(bundles=1, bundle=BUNDLE, reason="r", message="m")), "bundles-unplaced"),
    "records refused": (tells(refused=since(reason="write-denied", code="C", topic="t", message="no")), "kafka-refuses"),
    "throttled": (tells(throttled=since(client="c", kind="producer", throttled_ms=9, window_ms=9)), "kafka-throttles"),
    "a hook hangs": (stuck_release, "slow-operation"),
    "a new owner hangs": (stuck_take, "slow-operation"),
    "a new owner is killed": (destination_killed, "broker-suspect broker-lost owner-unreachable"),
    "a shutdown leaves bundles": (left_by_shutdown, "without-owner"),
    "one declines": (declined("b1"), "declined-by-some bundles-declined"),
    "all decline": (declined("b1", "b2", "b3"), "declined-by-some bundles-declined"),
    "a key in debt": (key_in_debt, "awaiting-repair"),
    "replicas differ": (
        tells(differs=[{"partition": 0, "broker": "b1", "offset": 3, "equal_at": 1, "keys": 2, "their_keys": 3}]),
        "replicas-differ",
    ),
    "forged records": (tells(forged={"records": 2, "topic": "channel", "partition": 0, "offset": 3}), "forged"),
    "a head is lost": (head_lost, "head-lost"),
}  # fmt: skip


def test_the_page_has_every_condition_and_facts_what_each_needs() -> None:
    page = (Path(__file__).parents[2] / "design" / "cli.md").read_text(encoding="utf-8")
    assert len({kind.code for kind in CONDITIONS}) == len(CONDITIONS)
    for kind in CONDITIONS:
        assert f"\n| `{kind.code}` | {kind.severity} | " in page
        assert set(kind.needs) <= Facts.__annotations__.keys(), kind.code
    no_condition = {"cold-start", "dismissed", "left", "namespace-deleted", "policy", "started"}
    assert {kind.value for kind in IncidentKind if f"`{kind}`" not in page} <= no_condition


@pytest.mark.parametrize("name", INCIDENTS)
def test_all_views_agree_at_each_half_second(name: str) -> None:
    happen, codes = INCIDENTS[name]
    incident = Incident()
    happen(incident)
    view = PageView(load())
    view.begin([], {0: 0})
    seen: set[str] = set()
    for at_ms in range(0, ENDS_S * 1_000, 500):
        now_ms = EPOCH_MS + at_ms
        story = RegistryStory(6.0)
        fold = RegistryFold(6.0, observe=story.observe, clock=lambda now_ms=now_ms: now_ms, lost_shown_s=3_600)
        fold.take(incident.heartbeats(at_ms))
        fold.listened()
        registry, inputs, changes = fold.registry(), StatusInputs(story), []

        def observe(record: RecordRead, judgement: Judgement, inputs: Any = inputs, changes: Any = changes) -> None:
            inputs.observe(record, judgement)
            if judgement.verdict is Verdict.ACCEPTED and judgement.record is not None:
                changes.append(Change.of(judgement.record, record))

        records = [record for record in incident.log.records if record.timestamp_ms <= now_ms]
        views = LogViews((audit_part(0, 1, records, observe=observe),), (records[-1].timestamp_ms,))
        place = {"channel": "bundle-state", "bootstrap_servers": "k:1"}
        found = figures(views, registry, inputs, Remarks(), **place)  # type: ignore[arg-type]
        found["topics"] = {**NO_TOPIC_FACTS, "heads_lost": incident.heads_lost}
        status = with_health(found, LIMITS)
        members, applied = registry.members, {0: len(records) - 1}
        view.take(changes)
        view.look(
            ClusterLook(
                now_ms, "b1", "normal", None, 0.0, applied, leader_of(members), None,
                broker_rows(members, {}, applied, silence_of(registry)), {},
                pauses=pauses_of(members, silence_of(registry), now_ms),
                topics=found["topics"],
                forged={
                    (member.broker, member.incarnation): forged
                    for member in members.alive.values()
                    if (forged := forged_of(member.info, now_ms)) is not None
                },
                debts=found["debts"], oldest_debt_ms=found["oldest_debt_ms"],
            )
        )  # fmt: skip
        sections = view.sections()
        severe = [problem for problem in sections["problems"] if problem["severe"]]
        assert sections["head"]["health"] == status["health"], at_ms
        assert [problem["kind"] for problem in severe] == [problem["reason"] for problem in status["problems"]], at_ms
        for problem, reason in zip(severe, status["problems"], strict=True):
            assert reason["message"].startswith(problem["message"]), at_ms
            assert EPOCH_MS - 10_000 <= (problem["since_ms"] or now_ms) <= now_ms, problem
        facts = replace(
            healthy(), registry=registry, story=story, status=found,
            first_offsets={0: incident.heads_lost.get("0", 0)},
        )  # fmt: skip
        bad = [finding for finding in examine(CHECKS, facts) if finding.severity.rank >= Severity.WARNING.rank]
        assert {problem["message"] for problem in severe} <= {
            finding.what[: len(problem["message"])] for finding in bad for problem in severe
        }, at_ms
        seen |= {problem["reason"] for problem in status["problems"]}
    assert seen == set(codes.split())
