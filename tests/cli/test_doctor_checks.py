"""Each check of `statechannel doctor`: facts in, the severity of its findings out."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shedders.cli.plugins import policies as policies_of_balancer
from shedders.policies.effective import EffectivePolicies
from statechannel.cli.doctor import checks
from statechannel.cli.doctor.checks import (
    ClockFacts,
    DoctorCheck,
    DoctorFacts,
    DoctorFinding,
    Failed,
    Severity,
    WantedTopic,
    examine,
    exit_code,
)
from statechannel.cli.doctor.command import CHECKS
from statechannel.embedded import BrokerState
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topics import GroupMember, PartitionPlace, server_version
from tests.cli.test_live import documented
from tests.support.doctor_facts import (
    NOW_MS,
    STANDING,
    healthy,
    heard,
    heartbeat,
    registry,
    with_embedded,
    with_nodes,
    with_partitions,
    with_place,
    with_standing,
    with_topic,
)

CHANNEL = "bundle-state"
HOUR = 3_600_000
IN_FLIGHT = {"bundle": "t/n/0x0_0x1", "state": "Releasing", "from": "b1", "to": "b2", "operation": None}
WAITS_FOR = {"waits_for_broker": "b1", "waits_for_hook": "on_release"}
PAUSED = {"broker": "b1", "why": "many lost", "left_ms": 9_000, "lost_since_ms": None}
UNSERVED = {"bundles": 3, "assigned": 3, "brokers": ["b9"], "since_ms": None}
UNOWNED = {"bundles": 2, "since_ms": None, "bundle": "t/n/0x0_0x1"}
DIFFERS = {"partition": 0, "broker": "b1", "offset": 9, "equal_at": 4, "keys": 5, "their_keys": 6}
FORGED = {"records": 3, "topic": "channel", "partition": 1, "offset": 77}
_, INFO, WARNING, ERROR, CRITICAL = Severity


def standing(**changes: Any) -> DoctorFacts:
    return with_standing(healthy(), **changes)


def debts(age_ms: int | None) -> DoctorFacts:
    return standing(debts=[{"key": "t/n", "partition": 0, "since_offset": 3, "age_ms": age_ms}], oldest_debt_ms=age_ms)


def declined(*, age_ms: int, waiting: int = 0) -> DoctorFacts:
    row = {"broker": "b2", "times": 3, "waiting": waiting, "bundle": "a/b/c", "reason": "no disk", "age_ms": age_ms}
    return standing(declines=[row])


def in_flight(age_ms: int) -> DoctorFacts:
    return standing(in_flight=[IN_FLIGHT | WAITS_FOR | {"age_ms": age_ms}])


def lagging(lag_ms: int) -> DoctorFacts:
    return standing(brokers=[{"broker": "b2", "lag_records": 9, "lag_ms": lag_ms}])


def owning(**bundles: int) -> DoctorFacts:
    rows = [{"broker": name, "accepting": True, "bundles": many, "lag_ms": 0} for name, many in bundles.items()]
    return standing(brokers=rows)


def led(ago_s: int) -> DoctorFacts:
    """b1 led, and left; b2 is heard all the time."""
    return heard((ago_s, heartbeat("b1", leaving=True)), *((ago, heartbeat("b2")) for ago in range(ago_s + 1)))


def failing(name: str, what: str, reported: bool = False) -> DoctorFacts:
    return replace(healthy(), failed={name: Failed(what, "do this", reported)})


def beating(b1: dict[str, Any] | None = None, b2: dict[str, Any] | None = None, **status: Any) -> DoctorFacts:
    """One broker or two, with these fields in their heartbeats."""
    beats = [(0.5, heartbeat("b1", **(b1 or {})))]
    return heard(*beats, *([] if b2 is None else [(0.4, heartbeat("b2", **b2))]), **status)


def topic(**settings: str) -> DoctorFacts:
    return with_topic(healthy(), CHANNEL, **settings)


def headless(**partition: int) -> DoctorFacts:
    facts = replace(healthy(), first_offsets={0: 41})
    return with_standing(facts, partitions=[{"partition": 0, **partition}]) if partition else facts


def placed(leader: int | None, *in_sync: int, replicas: tuple[int, ...] = (1, 2, 3)) -> DoctorFacts:
    return with_place(healthy(), CHANNEL, PartitionPlace(0, leader, replicas, in_sync))


def embedded(**changes: Any) -> DoctorFacts:
    return with_embedded(healthy(), **changes)


NOBODY = heard((60, heartbeat("b1")))
TWICE = (
    (3, heartbeat("b1")),
    (2, heartbeat("b1", incarnation="b1-2", since=9)),
    (1, heartbeat("b1", seq=2)),
    (0.5, heartbeat("b1", incarnation="b1-2", since=9, seq=2)),
)
DECLINED = {"bundle": "a/b/d", "since_ms": NOW_MS - 10_000, "by": {"b1": "no disk"}, "not_asked": ["b3"]}
UNPLACED = {
    "bundles": 1,
    "bundle": "t/n/x",
    "reason": "r",
    "cause": "limits",
    "message": "none",
    "since_ms": 1,
    "ago_ms": 4,
}
FOREIGN = (GroupMember("rdkafka", "10.0.0.9"), *healthy().group)
LIMITED: Any = SimpleNamespace(client=ClientSettings("h:1", {"message.max.bytes": "20000"}))
REGISTRY = f"{CHANNEL}-registry"
UNUSED = replace(healthy().topics[REGISTRY], partitions=2)
FIRST_OF_TWO = (PartitionPlace(0, 1, (1, 2, 3), (1, 2, 3)), PartitionPlace(1, None, (1,), ()))
NOT_ACCEPTING = {"broker": "b1", "state": "alive", "lag_ms": 0, "lag_records": 0, "accepting": False}

ILL: dict[str, tuple[DoctorFacts, str, Severity]] = {
    "a rule is broken": (replace(healthy(), problems=["a < b must hold."]), "settings", CRITICAL),
    "no java": (failing("java", "no Java", reported=True), "java", INFO),
    "no java for the embedded": (with_embedded(failing("java", "no Java", reported=True)), "java", ERROR),
    "crashed": (embedded(state=BrokerState.CRASHED), "embedded-kafka", CRITICAL),
    "stopped": (embedded(state=BrokerState.STOPPED), "embedded-kafka", CRITICAL),
    "frozen": (embedded(state=BrokerState.SUSPENDED), "embedded-kafka", CRITICAL),
    "disk full": (embedded(state=BrokerState.RUNNING, free_bytes=1 << 20), "embedded-kafka", CRITICAL),
    "disk fills": (embedded(state=BrokerState.RUNNING, free_bytes=100 << 20), "embedded-kafka", ERROR),
    "disk 4 %": (embedded(state=BrokerState.RUNNING, free_bytes=4 << 30), "embedded-kafka", WARNING),
    "our clock is ahead": (replace(healthy(), clock=ClockFacts(2_500)), "clock", WARNING),
    "our clock is far behind": (replace(healthy(), clock=ClockFacts(-300_000)), "clock", ERROR),
    "a record is from the future": (replace(healthy(), clock=ClockFacts(None, -90_000)), "clock", ERROR),
    "no heartbeat": (replace(healthy(), clock=ClockFacts(None, 9_000)), "clock", INFO),
    "nobody accepts": (standing(brokers=[NOT_ACCEPTING]), "conditions", ERROR),
    "forged": (beating({"forged": FORGED}), "forged", CRITICAL),
    "head lost": (headless(), "head", CRITICAL),
    "head restated": (headless(restated_below=41), "head", INFO),
    "more of the head lost": (headless(restated_below=40), "head", CRITICAL),
    "head lost, nobody knows": (replace(headless(), **registry()), "head", CRITICAL),
    "partitions added": (with_partitions(beating({"applied": {"0": 5}}), 3), "partitions", INFO),
    "partitions differ": (
        with_partitions(beating({"applied": {"0": 5}}, {"applied": {"0": 5, "1": 2}}), 2),
        "partitions",
        CRITICAL,
    ),
    "other states": (beating(b2={"differs": [DIFFERS]}), "brokers-states", CRITICAL),
    "away": (failing("kafka", "no answer", reported=True), "kafka", CRITICAL),
    "no controller": (replace(healthy(), cluster=replace(healthy().cluster, controller=None)), "kafka", ERROR),
    "half upgraded": (replace(healthy(), nodes={1: {}, 2: healthy().nodes[1]}), "versions", WARNING),
    "session too short": (with_nodes(healthy(), group_min_session_timeout_ms="9000"), "kafka-settings", ERROR),
    "no cleaner": (with_nodes(healthy(), log_cleaner_enable="false"), "kafka-settings", ERROR),
    "topics by themselves": (with_nodes(healthy(), auto_create_topics_enable="true"), "kafka-settings", WARNING),
    "many keys": (replace(healthy(), keys=200_000), "kafka-settings", WARNING),
    "session above expiry": (healthy("kafka.session_timeout_ms=10000"), "patience", WARNING),
    "short lag": (topic(min_compaction_lag_ms="60000"), "patience", ERROR),
    "a late cleaner outlives the nulls": (topic(max_compaction_lag_ms="302400001"), "patience", ERROR),
    "lease above a broker's patience": (
        replace(healthy("safe_mode.lease_s=5"), **registry((0.5, heartbeat("b1", expiry_s=4.0)))),
        "patience",
        ERROR,
    ),
    "producer timestamps": (topic(message_timestamp_type="CreateTime"), "topics", CRITICAL),
    "not compacted": (topic(cleanup_policy="compact,delete"), "topics", CRITICAL),
    "soft": (topic(min_cleanable_dirty_ratio="0.9"), "topics", WARNING),
    "requests too short": (with_topic(healthy(), f"{CHANNEL}-requests", retention_ms="1000"), "topics", ERROR),
    "missing": (replace(healthy(), topics={}), "topics", CRITICAL),
    "an optional one is missing": (
        replace(healthy(), wanted=[WantedTopic("x", healthy().wanted[0].policy, "balancer", optional=True)]),
        "topics",
        INFO,
    ),
    "offline": (placed(None, 2), "replicas", CRITICAL),
    "below min ISR": (placed(1, 1), "replicas", CRITICAL),
    "under-replicated": (placed(1, 1, 3), "replicas", WARNING),
    "one of three": (
        with_place(topic(min_insync_replicas="1"), CHANNEL, PartitionPlace(0, 1, (1,), (1,))),
        "replicas",
        WARNING,
    ),
    "registry denied": (failing("registry", "denied"), "readable", ERROR),
    "an auditor": (failing("nodes", "no right to describe the cluster"), "readable", INFO),
    "nobody": (NOBODY, "brokers", CRITICAL),
    "lost": (heard((20, heartbeat("b2")), (0.5, heartbeat("b1"))), "brokers", WARNING),
    "one id twice": (heard(*TWICE), "brokers", ERROR),
    "safe": (beating({"mode": "safe"}), "brokers", WARNING),
    "joins for ever": (heard(*((ago, heartbeat("b1", phase="joining")) for ago in range(90))), "brokers", WARNING),
    "several versions": (beating(b2={"software": "0.2.0"}), "software", INFO),
    "a newer format": (
        beating({"formats": [1, 2]}, {}, stopped={"0": {"offset": 9, "format": 2}}),
        "software",
        CRITICAL,
    ),
    "a broker's clock": (beating({"sent_at_ms": NOW_MS - 500 - 120_000}), "brokers-clocks", WARNING),
    "unequal patience": (beating(b2={"expiry_s": 30.0}), "brokers-patience", WARNING),
    "other patience than ours": (beating({"expiry_s": 30.0}), "brokers-patience", INFO),
    "nobody leads, yet": (led(4), "leader", WARNING),
    "nobody leads": (led(60), "leader", ERROR),
    "two lead": (beating(b2={"leading": True}), "leader", WARNING),
    "late": (lagging(6_000), "lag", WARNING),
    "too late": (lagging(31_000), "lag", ERROR),
    "a debt": (debts(10_000), "debts", WARNING),
    "a debt at the alarm": (debts(HOUR // 4), "debts", ERROR),
    "a debt past the lag": (debts(HOUR), "debts", CRITICAL),
    "nobody knows since when": (debts(None), "debts", ERROR),
    "slow": (in_flight(6_000), "in-flight", WARNING),
    "stuck": (in_flight(33_000), "in-flight", ERROR),
    "orphans": (standing(without_service=UNSERVED), "orphans", WARNING),
    "orphans, and repair is paused": (standing(without_service=UNSERVED, repair_paused=[PAUSED]), "orphans", ERROR),
    "orphans, and nobody is there": (with_standing(NOBODY, without_service=UNSERVED), "orphans", CRITICAL),
    "unowned": (standing(without_owner=UNOWNED), "without-owner", WARNING),
    "unowned, and nobody is there": (with_standing(NOBODY, without_owner=UNOWNED), "without-owner", CRITICAL),
    "declines": (declined(age_ms=30_000), "declines", WARNING),
    "all bundles on one": (owning(b1=18, b2=0, b3=0), "spread", INFO),
    "tentative": (standing(tentative=True), "log", WARNING),
    "records in wrong partitions": (replace(healthy(), misplaced=2), "log", WARNING),
    "a client in the group": (replace(healthy(), group=FOREIGN), "election-group", WARNING),
    "and nobody leads": (replace(beating({"leading": False}), group=FOREIGN), "election-group", ERROR),
    "a client's own limit": (replace(healthy(), connection=LIMITED), "limits", ERROR),
    "no broker is allowed": (
        standing(brokers=[{"broker": "b2", "unplaced": UNPLACED, "lag_ms": 0}]),
        "unplaced",
        CRITICAL,
    ),
    "some were not asked": (standing(at_ms=NOW_MS, declined_bundles=[DECLINED]), "declines", WARNING),
    "unused partitions": (
        with_place(replace(healthy(), topics={**healthy().topics, REGISTRY: UNUSED}), REGISTRY, *FIRST_OF_TWO),
        "topics",
        INFO,
    ),
}


@pytest.mark.parametrize("name", ILL)
def test_what_is_wrong_is_found(name: str) -> None:
    facts, check, severity = ILL[name]
    worst, *_ = [item for item in examine(CHECKS, facts) if item.check == check]
    assert worst.severity is severity
    if severity.rank >= WARNING.rank:
        assert worst.why
        assert worst.todo


def test_of_a_healthy_cluster_nothing_is_wrong() -> None:
    findings = examine(CHECKS, healthy())
    assert [finding for finding in findings if finding.severity is not Severity.OK] == []
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}
    assert exit_code(findings) is ExitCode.OK


def test_where_nobody_is_heard_brokers_are_not_said_to_be_well() -> None:
    findings = examine(CHECKS, NOBODY)
    unlooked = {finding.check for finding in findings if not finding.checked}
    assert unlooked == {"software", "brokers-clocks", "brokers-patience", "forged", "lag", "orphans"}


@pytest.mark.parametrize(
    ("age_ms", "severity"),
    [(4_999, Severity.OK), (5_000, Severity.WARNING), (HOUR // 4 - 1, Severity.WARNING), (HOUR - 1, Severity.ERROR)],
)
def test_a_debt_becomes_worse_with_its_age(age_ms: int, severity: Severity) -> None:
    (finding,) = [item for item in examine(CHECKS, debts(age_ms)) if item.check == "debts"]
    assert finding.severity is severity


WELL = {
    "just moving": in_flight(3_000),
    "declines long ago": declined(age_ms=HOUR),
    "a full disk of another Kafka": replace(
        healthy(),
        embedded=replace(embedded(free_bytes=1 << 20).embedded, used=False),  # type: ignore[type-var]
    ),
}


@pytest.mark.parametrize("name", WELL)
def test_what_is_no_trouble_is_not_found(name: str) -> None:
    assert {finding.severity for finding in examine(CHECKS, WELL[name])} == {Severity.OK}


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ([], 0),
        ([Severity.OK, Severity.INFO], 0),
        ([Severity.INFO, Severity.WARNING], 30),
        ([Severity.ERROR, Severity.WARNING], 31),
        ([Severity.WARNING, Severity.CRITICAL, Severity.ERROR], 32),
    ],
)
def test_the_exit_code_is_that_of_the_worst(severities: list[Severity], code: int) -> None:
    assert exit_code(DoctorFinding(severity, "") for severity in severities) == code


def test_where_kafka_is_away_the_rest_is_looked_at() -> None:
    facts = with_embedded(failing("kafka", "no answer", reported=True), free_bytes=1 << 20)
    findings = examine(CHECKS, facts)
    expected = ["embedded-kafka", "embedded-kafka", "kafka"]
    assert [finding.check for finding in findings if finding.severity is Severity.CRITICAL] == expected
    unlooked = [finding for finding in findings if not finding.checked]
    assert {"topics", "leader", "debts"} <= {item.check for item in unlooked}
    assert {item.what for item in unlooked} == {"no answer"}


def test_a_check_that_raises_is_a_finding_and_keeps_no_other_from_looking() -> None:
    broken = DoctorCheck("broken", "x", lambda facts: [1 / 0])  # type: ignore[list-item]
    findings = examine((broken, *CHECKS), healthy())
    assert findings[0].check == "broken"
    assert findings[0].what == "the check itself failed: ZeroDivisionError: division by zero"
    assert len(findings) > len(CHECKS)


def test_two_checks_have_not_one_name() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("loaded", "why"), [(ImportError("no module x"), "no module x"), (object(), "x:y is not a ConditionExtension")]
)
def test_a_plugin_that_cannot_be_used_is_a_finding(monkeypatch: pytest.MonkeyPatch, loaded: object, why: str) -> None:
    def load() -> object:
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    point = SimpleNamespace(name="theirs", value="x:y", load=load)
    monkeypatch.setattr(checks, "entry_points", lambda group: [point] if group == checks.GROUP else [])
    ((name, extension),) = checks.extensions()
    (finding,) = extension.look(healthy())
    assert (name, finding.severity) == ("theirs", Severity.WARNING)
    assert finding.what == f"theirs cannot be loaded: {why}"


def test_what_policies_forbid_is_told() -> None:
    policies = EffectivePolicies(
        closed=("shedding is off: a policy cannot be read",), junk={"bad-json": 2}, shedding_on=False, shedding_why="me"
    )
    assert [finding.severity for finding in _of_policies(policies)] == [ERROR, WARNING, INFO]
    assert _of_policies(EffectivePolicies()) == []


def _of_policies(effective: EffectivePolicies) -> list[DoctorFinding]:
    known = {"policies": effective, "alive": {}, "cordons": {}}
    return list(replace(policies_of_balancer, read=lambda _: known).look(healthy()))


@pytest.mark.parametrize(
    ("settings", "version"),
    [
        ({"inter.broker.protocol.version": "3.9-IV0"}, "inter-broker protocol 3.9-IV0"),
        ({"group.coordinator.rebalance.protocols": "classic"}, "4.0 or newer"),
        ({}, "unknown"),
    ],
)
def test_versions_of_kafka(settings: dict[str, str], version: str) -> None:
    assert server_version(settings) == version


def test_a_newer_format_is_the_one_thing_said_of_who_cannot_read_it() -> None:
    behind = heartbeat("b2", mode="safe", joining=True)
    facts = heard((0.5, heartbeat("b1", formats=[1, 2])), (0.4, behind), stopped={"0": {"offset": 9, "format": 2}})
    findings = examine([check for check in CHECKS if check.name in ("brokers", "software")], facts)
    expected = [("software", Severity.CRITICAL), ("brokers", Severity.OK)]
    assert [(finding.check, finding.severity) for finding in findings] == expected


def test_the_figures_of_these_tables_are_those_of_status() -> None:
    assert STANDING.keys() <= documented("status")
