"""Each check of `statechannel doctor` as a table: facts in, findings out."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shedders.cli.plugins import policy_findings
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
from statechannel.kafka.topics import PartitionPlace, server_version
from tests.cli.test_live import documented
from tests.support.doctor_facts import (
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
IN_FLIGHT = {"bundle": "t/n/0x0_0x1", "state": "Releasing", "from": "b1", "to": "b2", "operation": None}
WAITS_FOR = {"waits_for_broker": "b1", "waits_for_hook": "on_release"}
PAUSED = {"broker": "b1", "why": "many lost", "left_ms": 9_000, "lost_since_ms": None}
UNSERVED = {"bundles": 3, "assigned": 3, "brokers": ["b9"], "since_ms": None}
UNOWNED = {"bundles": 2, "since_ms": None, "bundle": "t/n/0x0_0x1"}
DEBT = {"key": "t/n", "partition": 0, "since_offset": 3}
HOUR = 3_600_000


def debts(age_ms: int | None) -> DoctorFacts:
    return with_standing(healthy(), debts=[DEBT | {"age_ms": age_ms}], oldest_debt_ms=age_ms)


def declined(*, age_ms: int, waiting: int = 0) -> DoctorFacts:
    row = {"broker": "b2", "times": 3, "waiting": waiting, "bundle": "a/b/c", "reason": "no disk", "age_ms": age_ms}
    return with_standing(healthy(), declines=[row])


def in_flight(age_ms: int) -> DoctorFacts:
    return with_standing(healthy(), in_flight=[IN_FLIGHT | WAITS_FOR | {"age_ms": age_ms}])


def lagging(lag_ms: int) -> DoctorFacts:
    return with_standing(healthy(), brokers=[{"broker": "b2", "lag_records": 9, "lag_ms": lag_ms}])


def failing(name: str, what: str, reported: bool = False) -> DoctorFacts:
    return replace(healthy(), failed={name: Failed(what, "do this", reported)})


DIFFERS = {"partition": 0, "broker": "b1", "offset": 9, "equal_at": 4, "keys": 5, "their_keys": 6}

ILL: list[tuple[str, DoctorFacts, str, Severity, str]] = [
    # --- here
    ("problem", replace(healthy(), problems=["a < b must hold."]), "settings", Severity.CRITICAL, "a < b must hold"),
    ("no java", failing("java", "no Java", reported=True), "java", Severity.INFO, "no Java"),
    (
        "no java for the embedded",
        with_embedded(failing("java", "no Java", reported=True)),
        "java",
        Severity.ERROR,
        "no Java",
    ),
    ("crashed", with_embedded(healthy(), state=BrokerState.CRASHED), "embedded-kafka", Severity.CRITICAL, "crashed"),
    ("stopped", with_embedded(healthy(), state=BrokerState.STOPPED), "embedded-kafka", Severity.CRITICAL, "stopped"),
    ("frozen", with_embedded(healthy(), state=BrokerState.SUSPENDED), "embedded-kafka", Severity.CRITICAL, "suspended"),
    ("disk full", with_embedded(healthy(), free_bytes=1 << 20), "embedded-kafka", Severity.CRITICAL, "1 MiB free"),
    ("disk fills", with_embedded(healthy(), free_bytes=100 << 20), "embedded-kafka", Severity.ERROR, "100 MiB"),
    ("disk 4 %", with_embedded(healthy(), free_bytes=4 << 30), "embedded-kafka", Severity.WARNING, "(4%)"),
    ("ahead", replace(healthy(), clock=ClockFacts(2_500)), "clock", Severity.WARNING, "2.50 s ahead of Kafka's"),
    ("far behind", replace(healthy(), clock=ClockFacts(-300_000)), "clock", Severity.ERROR, "5.0 min behind"),
    ("from the future", replace(healthy(), clock=ClockFacts(None, -90_000)), "clock", Severity.ERROR, "behind Kafka's"),
    ("no heartbeat", replace(healthy(), clock=ClockFacts(None, 9_000)), "clock", Severity.INFO, "cannot be compared"),
    # --- forged records
    (
        "forged",
        heard((0.0, heartbeat("b1", forged={"records": 3, "topic": "channel", "partition": 1, "offset": 77}))),
        "forged",
        Severity.CRITICAL,
        "b1 has read 3 records in its own name that it did not write, the newest in the channel at partition 1, offset 77",
    ),
    # --- the log's head and partitions
    ("head lost", replace(healthy(), first_offsets={0: 41}), "head", Severity.CRITICAL, "begins at offset 41"),
    (
        "head restated",
        with_standing(replace(healthy(), first_offsets={0: 41}), partitions=[{"partition": 0, "restated_below": 41}]),
        "head",
        Severity.INFO,
        "begins at offset 41",
    ),
    (
        "more of the head lost",
        with_standing(replace(healthy(), first_offsets={0: 41}), partitions=[{"partition": 0, "restated_below": 40}]),
        "head",
        Severity.CRITICAL,
        "begins at offset 41",
    ),
    (
        "head lost, nobody knows",
        replace(healthy(), first_offsets={0: 41}, **registry()),
        "head",
        Severity.CRITICAL,
        "begins at offset 41",
    ),
    (
        "partitions added",
        with_partitions(heard((0.1, heartbeat("b1", applied={"0": 5}))), 3),
        "partitions",
        Severity.INFO,
        "has 3 partitions, of which the channel uses 1",
    ),
    (
        "partitions differ",
        with_partitions(
            heard((0.1, heartbeat("b1", applied={"0": 5})), (0.2, heartbeat("b2", applied={"0": 5, "1": 2}))), 2
        ),
        "partitions",
        Severity.CRITICAL,
        "1: b1; 2: b2",
    ),
    (
        "other states",
        heard((0.1, heartbeat("b1")), (0.2, heartbeat("b2", differs=[DIFFERS]))),
        "brokers-states",
        Severity.CRITICAL,
        "b1 and b2 hold different accepted states of partition 0 at offset 9 (6 and 5 keys), equal through offset 4",
    ),
    # --- Kafka
    ("away", failing("kafka", "no answer", reported=True), "kafka", Severity.CRITICAL, "no answer"),
    (
        "no controller",
        replace(healthy(), cluster=replace(healthy().cluster, controller=None)),
        "kafka",
        Severity.ERROR,
        "no controller",
    ),
    (
        "half upgraded",
        replace(healthy(), nodes={1: {}, 2: healthy().nodes[1]}),
        "versions",
        Severity.WARNING,
        "have several versions",
    ),
    (
        "session too short",
        with_nodes(healthy(), group_min_session_timeout_ms="9000"),
        "kafka-settings",
        Severity.ERROR,
        "kafka.session_timeout_ms = 6000 is outside the range of Kafka broker 1 (9000 to 1800000)",
    ),
    ("no cleaner", with_nodes(healthy(), log_cleaner_enable="false"), "kafka-settings", Severity.ERROR, "cleaner"),
    (
        "topics by themselves",
        with_nodes(healthy(), auto_create_topics_enable="true"),
        "kafka-settings",
        Severity.WARNING,
        "auto.create",
    ),
    (
        "many keys",
        replace(healthy(), keys=200_000),
        "kafka-settings",
        Severity.WARNING,
        "200,000 keys, and the cleaner of Kafka broker 1 handles 157,286 per pass",
    ),
    (
        "session above expiry",
        healthy("kafka.session_timeout_ms=10000"),
        "patience",
        Severity.WARNING,
        "above membership.expiry_s",
    ),
    (
        "short lag",
        with_topic(healthy(), CHANNEL, min_compaction_lag_ms="60000"),
        "patience",
        Severity.ERROR,
        "more than a tenth of the compaction lag of bundle-state, 60000 ms",
    ),
    (
        "a late cleaner outlives the nulls",
        with_topic(healthy(), CHANNEL, max_compaction_lag_ms="302400001"),
        "patience",
        Severity.ERROR,
        "delete.retention.ms of bundle-state, 604800000 ms, is less than twice its max.compaction.lag.ms, 302400001 ms",
    ),
    (
        "lease above a broker's patience",
        replace(healthy("safe_mode.lease_s=5"), **registry((0.5, heartbeat("b1", expiry_s=4.0)))),
        "patience",
        Severity.ERROR,
        "b1 has an expiry of only 4 s",
    ),
    # --- topics
    (
        "producer timestamps",
        with_topic(healthy(), CHANNEL, message_timestamp_type="CreateTime"),
        "topics",
        Severity.CRITICAL,
        "message.timestamp.type is CreateTime, required LogAppendTime",
    ),
    (
        "not compacted",
        with_topic(healthy(), CHANNEL, cleanup_policy="compact,delete"),
        "topics",
        Severity.CRITICAL,
        "cleanup.policy is compact,delete",
    ),
    (
        "soft",
        with_topic(healthy(), CHANNEL, min_cleanable_dirty_ratio="0.9"),
        "topics",
        Severity.WARNING,
        "min.cleanable.dirty.ratio is 0.9, required at most 0.1",
    ),
    (
        "requests too short",
        with_topic(healthy(), f"{CHANNEL}-requests", retention_ms="1000"),
        "topics",
        Severity.ERROR,
        "retention.ms is 1000",
    ),
    (
        "missing",
        replace(healthy(), topics={}),
        "topics",
        Severity.CRITICAL,
        "topics that do not exist: bundle-state, bundle-state-registry",
    ),
    (
        "an optional one is missing",
        replace(healthy(), wanted=[WantedTopic("x", healthy().wanted[0].policy, "balancer", optional=True)]),
        "topics",
        Severity.INFO,
        "have not been needed yet: x (balancer)",
    ),
    (
        "offline",
        with_place(healthy(), CHANNEL, PartitionPlace(0, None, (1, 2, 3), (2,))),
        "replicas",
        Severity.CRITICAL,
        "partition bundle-state-0 has no leader",
    ),
    (
        "below min ISR",
        with_place(healthy(), CHANNEL, PartitionPlace(0, 1, (1, 2, 3), (1,))),
        "replicas",
        Severity.CRITICAL,
        "1 replicas in sync, and min.insync.replicas is 2",
    ),
    (
        "under-replicated",
        with_place(healthy(), CHANNEL, PartitionPlace(0, 1, (1, 2, 3), (1, 3))),
        "replicas",
        Severity.WARNING,
        "under-replicated: Kafka broker 2 is",
    ),
    (
        "one of three",
        with_place(with_topic(healthy(), CHANNEL, min_insync_replicas="1"), CHANNEL, PartitionPlace(0, 1, (1,), (1,))),
        "replicas",
        Severity.WARNING,
        "only one of 3 Kafka brokers holds bundle-state",
    ),
    # --- the channel
    ("registry denied", failing("registry", "denied"), "readable", Severity.ERROR, "denied"),
    ("an auditor", failing("nodes", "no right to describe the cluster"), "readable", Severity.INFO, "no right"),
    ("nobody", heard((60, heartbeat("b1"))), "brokers", Severity.CRITICAL, "no broker is alive; the last one was b1"),
    (
        "lost",
        heard((20, heartbeat("b2")), (0.5, heartbeat("b1"))),
        "brokers",
        Severity.WARNING,
        "lost without a goodbye, and not back: b2 (last heard 20.00 s ago)",
    ),
    (
        "one id twice",
        heard(
            (3, heartbeat("b1")),
            (2, heartbeat("b1", incarnation="b1-2", since=9)),
            (1, heartbeat("b1", seq=2)),
            (0.5, heartbeat("b1", incarnation="b1-2", since=9, seq=2)),
        ),
        "brokers",
        Severity.ERROR,
        "two processes use the broker id b1",
    ),
    ("safe", heard((0.5, heartbeat("b1", mode="safe"))), "brokers", Severity.WARNING, "b1 is in safe mode"),
    (
        "joins for ever",
        heard(*((ago, heartbeat("b1", phase="joining")) for ago in range(90))),
        "brokers",
        Severity.WARNING,
        "b1 has been joining for 89.00 s",
    ),
    (
        "several versions",
        heard((0.5, heartbeat("b1")), (0.5, heartbeat("b2", software="0.2.0"))),
        "software",
        Severity.INFO,
        "0.1.0 (1), 0.2.0 (1)",
    ),
    (
        "a newer format",
        heard(
            (0.5, heartbeat("b1", formats=[1, 2])), (0.4, heartbeat("b2")), stopped={"0": {"offset": 9, "format": 2}}
        ),
        "software",
        Severity.CRITICAL,
        "partition 0 holds a record of format 2 at offset 9, which b2 cannot read",
    ),
    (
        "a broker's clock",
        heard((1, heartbeat("b1", sent_at_ms=1_750_000_000_000 - 1_000 - 120_000))),
        "brokers-clocks",
        Severity.WARNING,
        "the clock of b1 is 2.0 min behind Kafka's",
    ),
    (
        "unequal patience",
        heard((0.5, heartbeat("b1")), (0.4, heartbeat("b2", expiry_s=30.0))),
        "brokers-patience",
        Severity.WARNING,
        "6 s: b1; 30 s: b2",
    ),
    (
        "other patience than ours",
        heard((0.5, heartbeat("b1", expiry_s=30.0))),
        "brokers-patience",
        Severity.INFO,
        "membership.expiry_s is 6 here, and 30 at the brokers",
    ),
    (
        "nobody leads, yet",
        heard((0.5, heartbeat("b2")), no_leader_for_ms=4_000),
        "leader",
        Severity.WARNING,
        "no leader, for 4.00 s",
    ),
    (
        "nobody leads",
        heard((0.5, heartbeat("b2")), no_leader_for_ms=60_000),
        "leader",
        Severity.ERROR,
        "no leader, for 60.00 s",
    ),
    (
        "two lead",
        heard((0.5, heartbeat("b1")), (0.4, heartbeat("b2", leading=True))),
        "leader",
        Severity.WARNING,
        "several brokers claim leadership: b1, b2",
    ),
    ("late", lagging(6_000), "lag", Severity.WARNING, "b2 is 9 records, 6.00 s, behind the log"),
    ("too late", lagging(31_000), "lag", Severity.ERROR, "31.00 s"),
    ("debt", debts(10_000), "debts", Severity.WARNING, "1 key awaits repair, t/n the longest, for 10.00 s"),
    ("alarm", debts(HOUR // 4), "debts", Severity.ERROR, "for 15.0 min"),
    ("past the lag", debts(HOUR), "debts", Severity.CRITICAL, "for 60.0 min"),
    ("nobody knows since when", debts(None), "debts", Severity.ERROR, "since before the first judged record"),
    ("slow", in_flight(6_000), "in-flight", Severity.WARNING, "is Releasing (b1 to b2) for 6.00 s"),
    ("stuck", in_flight(33_000), "in-flight", Severity.ERROR, "for 33.00 s"),
    (
        "orphans",
        with_standing(healthy(), without_service=UNSERVED),
        "orphans",
        Severity.WARNING,
        "3 bundles are without service",
    ),
    (
        "orphans, and repair is paused",
        with_standing(healthy(), without_service=UNSERVED, repair_paused=[PAUSED]),
        "orphans",
        Severity.ERROR,
        "b1 has paused repair: many lost; it goes on by itself in 9.00 s",
    ),
    ("unowned", with_standing(healthy(), without_owner=UNOWNED), "without-owner", Severity.WARNING, "1 and 1 more"),
    ("by all", heard((60, heartbeat("b1")), without_owner=UNOWNED), "without-owner", Severity.CRITICAL, "0x0_0x1"),
    (
        "orphans, and nobody is there",
        heard((60, heartbeat("b1")), without_service=UNSERVED),
        "orphans",
        Severity.CRITICAL,
        "3 bundles are without service: b9 is not alive",
    ),
    (
        "declines",
        declined(age_ms=30_000),
        "declines",
        Severity.WARNING,
        "b2 declined a/b/c 30.00 s ago: no disk (3 times",
    ),
    (
        "declined by all: a bundle is counted once",
        with_standing(
            declined(age_ms=HOUR, waiting=2),
            at_ms=1_750_000_000_000,
            brokers=[{"broker": name, "accepting": True, "lag_ms": 0} for name in ("b1", "b2")],
            declined_bundles=[
                {"bundle": name, "since_ms": since_ms, "by": {"b1": "no disk", "b2": "no disk"}, "not_asked": []}
                for name, since_ms in (("a/b/c", 1_749_999_999_000), ("a/b/d", 1_749_999_999_500))
            ],
        ),
        "declines",
        Severity.CRITICAL,
        "2 bundles have no owner since 2025-06-15 15:06:39.000Z: b1 and b2 decline them (no disk): a/b/c, ",
    ),
    (
        "a blocked loop",
        with_standing(
            healthy(),
            brokers=[
                {
                    "broker": "b3",
                    "lag_records": 3,
                    "lag_ms": 900,
                    "accepting": True,
                    "bundles": 1,
                    "blocked": {
                        "times": 28,
                        "seconds": 1.0,
                        "place": "broker.py:20 in main",
                        "hook": None,
                        "ago_ms": 900,
                    },
                }
            ],
        ),
        "lag",
        Severity.WARNING,
        "b3's event loop is blocked (broker.py:20 in main): 28 times since its start, the last time 900 ms ago",
    ),
    (
        "all bundles on one",
        with_standing(
            healthy(),
            brokers=[
                {"broker": name, "accepting": True, "bundles": bundles, "lag_ms": 0}
                for name, bundles in (("b1", 18), ("b2", 0), ("b3", 0))
            ],
        ),
        "spread",
        Severity.INFO,
        "b2 and b3 have no bundles, b1 has 18",
    ),
    ("tentative", with_standing(healthy(), tentative=True), "log", Severity.WARNING, "no heartbeat vouches"),
]


@pytest.mark.parametrize(("facts", "check", "severity", "words"), [row[1:] for row in ILL], ids=[row[0] for row in ILL])
def test_what_is_wrong_is_found(facts: DoctorFacts, check: str, severity: Severity, words: str) -> None:
    findings = [item for item in examine(CHECKS, facts) if item.check == check]
    (finding,) = [item for item in findings if words in item.what]
    assert finding.severity is severity
    if severity.rank >= Severity.WARNING.rank:
        assert finding.why
        assert finding.todo


def test_of_a_healthy_cluster_nothing_is_wrong() -> None:
    findings = examine(CHECKS, healthy())
    assert [finding for finding in findings if finding.severity is not Severity.OK] == []
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}
    assert exit_code(findings) is ExitCode.OK


def test_where_nobody_is_heard_brokers_are_not_said_to_be_well() -> None:
    findings = examine(CHECKS, heard((60, heartbeat("b1"))))
    unlooked = {finding.check for finding in findings if not finding.checked}
    assert unlooked == {"software", "brokers-clocks", "brokers-patience", "forged", "lag", "orphans"}


@pytest.mark.parametrize(
    ("age_ms", "severity"),
    [(4_999, Severity.OK), (5_000, Severity.WARNING), (HOUR // 4 - 1, Severity.WARNING), (HOUR - 1, Severity.ERROR)],
)
def test_a_debt_becomes_worse_with_its_age(age_ms: int, severity: Severity) -> None:
    (finding,) = [item for item in examine(CHECKS, debts(age_ms)) if item.check == "debts"]
    assert finding.severity is severity


def test_what_is_just_moving_is_well() -> None:
    assert {finding.severity for finding in examine(CHECKS, in_flight(3_000))} == {Severity.OK}


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
    assert [finding.check for finding in findings if finding.severity is Severity.CRITICAL] == [
        "embedded-kafka",
        "embedded-kafka",
        "kafka",
    ]
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
    ("loaded", "why"),
    [(ImportError("no module x"), "no module x"), (object(), "x:y is not a Plugin")],
)
def test_a_plugin_that_cannot_be_used_is_a_finding(monkeypatch: pytest.MonkeyPatch, loaded: object, why: str) -> None:
    def load() -> object:
        if isinstance(loaded, Exception):
            raise loaded
        return loaded

    point = SimpleNamespace(name="theirs", value="x:y", load=load)
    monkeypatch.setattr(checks, "entry_points", lambda group: [point] if group == "statechannel.doctor" else [])
    (plugin,) = [item for _, item in checks.plugins()]
    (finding,) = examine(plugin.checks, healthy())
    assert (finding.check, finding.severity) == ("theirs", Severity.WARNING)
    assert finding.what == f"the checks of theirs cannot be loaded: {why}"


def test_what_policies_forbid_is_told() -> None:
    policies = EffectivePolicies(
        closed=("shedding is off: a policy cannot be read",), junk={"bad-json": 2}, shedding_on=False, shedding_why="me"
    )
    assert [(finding.severity, finding.what) for finding in policy_findings(policies)] == [
        (Severity.ERROR, "shedding is off: a policy cannot be read"),
        (Severity.WARNING, "2 records in the topic of policies were dropped: bad-json (2)"),
        (Severity.INFO, "automatic moves are off: me"),
    ]
    assert list(policy_findings(EffectivePolicies())) == []


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
    assert [(finding.check, finding.severity) for finding in findings] == [
        ("software", Severity.CRITICAL),
        ("brokers", Severity.OK),
    ]


def test_the_figures_of_these_tables_are_those_of_status() -> None:
    assert STANDING.keys() <= documented("status")
