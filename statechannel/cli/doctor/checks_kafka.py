"""Checks of this machine, of the Kafka cluster, and of the channel's topics and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from statechannel.cli.doctor.checks import (
    DoctorCheck,
    DoctorFacts,
    DoctorFinding,
    EmbeddedFacts,
    Severity,
    WantedTopic,
    critical,
    error,
    info,
    ok,
    warning,
)
from statechannel.cli.doctor.checks_channel import listed, of_log
from statechannel.clocks import duration
from statechannel.embedded import BrokerState
from statechannel.kafka.client_settings import BROKER_CLIENT
from statechannel.kafka.errors import CLIENT_LIMIT
from statechannel.kafka.topic_policy import LARGEST_RECORD_BYTES, LEADER
from statechannel.kafka.topics import TopicSettingDifference, differences_of, server_version
from statechannel.protocol.log import Topic
from statechannel.settings.relations import FAR_BELOW, RELATIONS

if TYPE_CHECKING:
    from statechannel.kafka.topics import TopicInfo


MIB = 1024 * 1024
CLOCK_WARNING_MS = 1_000
"""Ages are shown in seconds: an error of a second is visible."""
_LITTLE_FREE = 0.05
_FREE_TIMES = 10


def settings(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Settings that are invalid, or contradict each other."""
    for problem in facts.problems:
        yield critical(
            problem.rstrip("."),
            "No broker starts with these settings."
            + ("" if facts.settings_known else " Kafka is not queried until they are fixed."),
            "Change it where it is set (`--set`, STATECHANNEL_*, `--config`); all settings: design/reference/settings.md.",
        )
    if not facts.problems:
        yield ok(f"settings are valid, and the {len(RELATIONS)} rules between them are met")


def java(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Java, needed by the embedded Kafka and the Spark jobs."""
    failed = facts.failed.get("java")
    if failed is not None:
        used = facts.embedded is not None and facts.embedded.used
        yield DoctorFinding(
            Severity.ERROR if used else Severity.INFO,
            failed.what,
            "The embedded Kafka cannot be started again."
            if used
            else "Only the embedded Kafka and Spark jobs need it.",
            failed.hint if used else "",
        )
    elif facts.java is not None:
        yield ok(f"Java {facts.java.major} at {facts.java.executable}")


_NEXT = {
    BrokerState.STOPPED: "`statechannel kafka up`",
    BrokerState.SUSPENDED: "`kill -CONT` its process, which `statechannel kafka status` names.",
}


def embedded(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """The embedded Kafka of this machine: whether it runs, and its disk."""
    kafka = facts.embedded
    if kafka is None or not (kafka.used or kafka.exists):
        yield ok("this machine has no embedded Kafka")
        return
    if kafka.state is BrokerState.CRASHED:
        yield DoctorFinding(
            Severity.CRITICAL if kafka.used else Severity.INFO,
            f"the embedded Kafka of {kafka.folder} crashed",
            "The channel cannot be read or written." if kafka.used else "It is not the Kafka of this channel.",
            f"Read the end of {kafka.log}, then `statechannel kafka up`." if kafka.used else "",
        )
    elif kafka.state is not BrokerState.RUNNING and kafka.used:
        yield critical(
            f"the embedded Kafka of {kafka.folder} is {kafka.state}",
            "The channel cannot be read or written.",
            _NEXT.get(kafka.state, "Wait; `statechannel kafka status`."),
        )
    if kafka.used:
        yield from _disk(kafka)
    elif kafka.state is not BrokerState.CRASHED:
        yield ok(f"the embedded Kafka of {kafka.folder} is not the Kafka of this channel")


def _disk(kafka: EmbeddedFacts) -> Iterator[DoctorFinding]:
    share = kafka.free_bytes / kafka.total_bytes if kafka.total_bytes else 0.0
    what = (
        f"{kafka.free_bytes // MIB:,} MiB free ({share:.0%}) on the disk of {kafka.folder}, "
        f"whose data takes {kafka.data_bytes // MIB:,} MiB"
    )
    if kafka.free_bytes < kafka.least_free_bytes:
        severity = Severity.CRITICAL
    elif kafka.free_bytes < _FREE_TIMES * kafka.least_free_bytes:
        severity = Severity.ERROR
    elif share < _LITTLE_FREE:
        severity = Severity.WARNING
    else:
        yield ok(what)
        return
    yield DoctorFinding(
        severity,
        what,
        f"Kafka stops on a full disk, and does not start with less than {kafka.least_free_bytes // MIB} MiB.",
        "Free space on that disk. Never delete files in the folder while it runs.",
    )


def clock(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """This machine's clock compared with Kafka's, and Kafka's with itself."""
    if facts.registry is not None and facts.registry.future is not None:
        yield warning(
            facts.registry.future.sentence,
            "Brokers use the order of the log and their own clocks. Overrides with an end were out of force meanwhile, and "
            "requests then may have had no answer.",
            "Synchronize the clocks of the Kafka brokers by NTP (`chronyc tracking`, `timedatectl`).",
        )
    ahead_ms = facts.clock.ahead_ms
    if ahead_ms is None:
        newest_ms = facts.clock.newest_ahead_ms
        if newest_ms is not None and newest_ms < -CLOCK_WARNING_MS:
            ahead_ms = newest_ms
        else:
            yield info("this machine's clock cannot be compared with Kafka's: no heartbeat arrived")
            return
    apart = f"{duration(abs(ahead_ms))} {'ahead of' if ahead_ms > 0 else 'behind'} Kafka's"
    if abs(ahead_ms) < CLOCK_WARNING_MS:
        yield ok(f"this machine's clock is {apart}, including the delay of a record")
        return
    much = abs(ahead_ms) >= facts.settings.membership.expiry_s * 1_000
    yield DoctorFinding(
        Severity.ERROR if much else Severity.WARNING,
        f"this machine's clock is {apart}",
        "Brokers are not affected: they use the log's time and monotonic clocks. But ages that "
        "commands show here, `--since` and `--as-of` with times, and the ends of overrides are wrong by that much.",
        "Synchronize the clock of this machine or of the Kafka brokers by NTP (`chronyc tracking`, `timedatectl`).",
    )


_BYTES_A_KEY = 24
_LOAD = 0.9
_DEFAULT_CLEANER_THREADS = 1


def reachable(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether Kafka answers, with its cluster id and controller."""
    failed = facts.failed.get("kafka")
    if failed is not None and not facts.settings_known:
        yield info(failed.what, checked=False)
        return
    if failed is not None:
        yield critical(
            failed.what,
            "Brokers go on serving what they own (safe mode), but nothing can be assigned, moved or repaired.",
            failed.hint,
        )
        return
    cluster = facts.cluster
    if cluster is None:
        return
    if cluster.controller is None:
        yield error(
            f"the Kafka cluster {cluster.cluster_id} has no controller",
            "Partitions that lose their leader do not get another one.",
            "Check the logs of the Kafka brokers and controllers.",
        )
    nodes = ", ".join(f"{node.node} ({node.address})" for node in cluster.nodes)
    yield ok(
        f"Kafka at {facts.address} answers: cluster {cluster.cluster_id}, brokers {nodes}, controller {cluster.controller}"
    )


def versions(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Versions of the client and of the Kafka brokers."""
    client = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    servers = {server_version(settings) for settings in facts.nodes.values()}
    server = "; ".join(sorted(servers)) or "unknown"
    if len(servers) > 1:
        yield warning(
            f"the Kafka brokers have several versions: {server}",
            "Expected during an upgrade only.",
            "Finish the upgrade of Kafka.",
        )
    if facts.embedded is not None and facts.embedded.used:
        server = f"{facts.versions.get('embedded Kafka', '?')} (embedded)"
    yield ok(f"client: {client}; Kafka brokers: {server}")


def broker_settings(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Settings of the Kafka brokers that conflict with ours."""
    for node, settings in facts.nodes.items():
        yield from _sessions(facts, node, settings)
        if settings.get("log.cleaner.enable") == "false":
            yield error(
                f"log.cleaner.enable is false on Kafka broker {node}",
                "The channel's topic is never compacted: it grows, and joins take longer and longer.",
                "Remove it from that broker's server.properties, and restart it.",
            )
        if settings.get("auto.create.topics.enable") == "true":
            yield warning(
                f"auto.create.topics.enable is true on Kafka broker {node}",
                "A request for a missing topic creates it, with settings that void the protocol.",
                "Set it to false; `statechannel init` creates the topics with the right settings.",
            )
        yield from _cleaner(facts, node, settings)


def _sessions(facts: DoctorFacts, node: int, answer: dict[str, str] | object) -> Iterator[DoctorFinding]:
    settings = answer if isinstance(answer, dict) else {}
    ours = facts.settings.kafka.session_timeout_ms
    low, high = settings.get("group.min.session.timeout.ms"), settings.get("group.max.session.timeout.ms")
    if (low and ours < int(low)) or (high and ours > int(high)):
        yield error(
            f"kafka.session_timeout_ms = {ours} is outside the range of Kafka broker {node} ({low} to {high})",
            "It refuses members of the election, so no broker can lead.",
            f"Set kafka.session_timeout_ms within these bounds, or change group.min.session.timeout.ms on broker {node}.",
        )


def _cleaner(facts: DoctorFacts, node: int, answer: object) -> Iterator[DoctorFinding]:
    settings = answer if isinstance(answer, dict) else {}
    size = settings.get("log.cleaner.dedupe.buffer.size")
    if size is None or not facts.keys:
        return
    threads = int(settings.get("log.cleaner.threads", _DEFAULT_CLEANER_THREADS))
    room = int(int(size) / max(1, threads) / _BYTES_A_KEY * _LOAD)
    if facts.keys > room:
        yield warning(
            f"the channel has {facts.keys:,} keys, and the cleaner of Kafka broker {node} handles {room:,} per pass",
            "Compaction needs several passes; joins read more.",
            f"Raise log.cleaner.dedupe.buffer.size on Kafka broker {node}.",
        )


def patience(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Our time-outs compared with each other, and with the topic's compaction lag."""
    settings = facts.settings
    expiry_ms = settings.membership.expiry_s * 1_000
    if settings.kafka.session_timeout_ms > expiry_ms:
        yield warning(
            f"kafka.session_timeout_ms = {settings.kafka.session_timeout_ms} is above membership.expiry_s = "
            f"{settings.membership.expiry_s:g}",
            "A dead leader is lost before the election is free, so its bundles wait for the session's end.",
            "Lower kafka.session_timeout_ms to membership.expiry_s or below (Kafka's own floor is 6 s by default).",
        )
    channel = facts.channel
    lag = None if channel is None else channel.settings.get("min.compaction.lag.ms")
    if channel is not None and lag is not None and settings.kafka.delivery_timeout_ms * FAR_BELOW > int(lag):
        yield error(
            f"kafka.delivery_timeout_ms = {settings.kafka.delivery_timeout_ms} is more than a tenth of the compaction lag of "
            f"{channel.name}, {lag} ms",
            "A record still in flight when the cleaner runs voids the lag, on which late joins depend.",
            "Raise min.compaction.lag.ms of the topic to that of channel.min_compaction_lag_ms, or lower the time-out.",
        )
    if channel is not None:
        yield from _nulls_outlive(channel)
    yield from _lease(facts)


def _nulls_outlive(channel: TopicInfo) -> Iterator[DoctorFinding]:
    """Replicas of a topic are compacted independently: a tombstone must stay until each has removed the records before it."""
    kept = channel.settings.get("delete.retention.ms")
    cleaned = channel.settings.get("max.compaction.lag.ms")
    if kept is not None and cleaned is not None and int(kept) < 2 * int(cleaned):
        yield error(
            f"delete.retention.ms of {channel.name}, {kept} ms, is less than twice its max.compaction.lag.ms, {cleaned} ms",
            "One replica may remove a tombstone before another has removed the records before it: after a change of leader they "
            "reappear.",
            "Raise delete.retention.ms of the topic to that of channel.delete_retention_ms.",
        )


def _lease(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    lease_s = facts.settings.safe_mode.lease_s
    for broker, member in facts.alive.items():
        expiry_s = member.info.get("expiry_s")
        if lease_s is not None and isinstance(expiry_s, int | float) and lease_s >= expiry_s:
            yield error(
                f"safe_mode.lease_s = {lease_s:g} here, but {broker} has an expiry of only {expiry_s:g} s",
                "A broker that is cut off may still serve when another one takes over.",
                "Give all brokers the same settings; the lease has to be below membership.expiry_s of every broker.",
            )


WHY: dict[str, str] = {
    "cleanup.policy": "The only record of a key may be deleted, or nothing is ever compacted.",
    "message.timestamp.type": "With producer timestamps a slow clock voids the compaction lag, on which late joins depend.",
    "min.compaction.lag.ms": "Records are compacted before keys are repaired and joins have ended: late joiners may be wrong.",
    "max.compaction.lag.ms": "A quiet topic is compacted late, joins read more, and a tombstone may go before every replica "
    "has removed the records before it.",
    "segment.ms": "Only closed segments are compacted.",
    "delete.retention.ms": "A reader that was offline may miss tombstones; below max.compaction.lag.ms one replica "
    "of the topic may bring back records that another has removed.",
    "retention.ms": "Records are deleted before all their readers have read them.",
    "unclean.leader.election.enable": "A replica that lacks acknowledged records may become leader: they are lost.",
    "max.message.bytes": "Records of a size that the format allows are refused.",
    "min.insync.replicas": "With too few acknowledged records may be lost; with all replicas required, one that is "
    "offline stops all writes.",
    "min.cleanable.dirty.ratio": "Compaction runs later, and joins read more.",
    "segment.bytes": "Segments are closed, and so compacted, later.",
    "partitions": "Only partition 0 is used. The others stay unused and harm nothing; Kafka cannot remove them.",
}


def topic_settings(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Each topic's settings compared with the required ones."""
    well = 0
    missing = [topic for topic in facts.wanted if topic.name not in facts.topics]
    yield from _missing(missing)
    for wanted in facts.wanted:
        info = facts.topics.get(wanted.name)
        if info is None:
            continue
        differences = differences_of(info, wanted.policy, facts.address or "HOST:PORT")
        well += not differences
        for difference in differences:
            yield _different(wanted, difference)
    if well:
        yield ok(f"{well} of {len(facts.wanted)} topics have the required settings")


def _missing(missing: Sequence[WantedTopic]) -> Iterator[DoctorFinding]:
    needed = [topic.name for topic in missing if not topic.optional]
    if needed:
        yield critical(
            f"topics that do not exist: {', '.join(needed)}",
            "Brokers do not start without them, and running ones stop.",
            "Check --channel; `statechannel init` creates them. If they were deleted, restore the channel from an export.",
        )
    optional = [f"{topic.name} ({topic.owner})" for topic in missing if topic.optional]
    if optional:
        yield info(f"topics that have not been needed yet: {', '.join(optional)}")


def _different(wanted: WantedTopic, difference: TopicSettingDifference) -> DoctorFinding:
    rests = wanted.policy.role in (Topic.CHANNEL, LEADER)
    hard = Severity.CRITICAL if rests else Severity.ERROR
    soft = Severity.WARNING if difference.command else Severity.INFO
    return DoctorFinding(
        hard if difference.hard else soft,
        f"{difference.topic}: {difference.setting} is {difference.actual}, required {difference.wanted}",
        WHY.get(difference.setting, "The protocol depends on it.")
        + (" Brokers refuse to start with it." if difference.hard and not wanted.optional else ""),
        difference.command,
    )


def limits(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Records that Kafka refuses for good, quotas that throttle brokers, and the client's own limit of a record."""
    own = facts.connection.client.properties.get(CLIENT_LIMIT, "") if facts.connection is not None else ""
    if own.isdigit() and int(own) < LARGEST_RECORD_BYTES:
        yield error(
            f"the client property {CLIENT_LIMIT} is {int(own):,} here, required at least {LARGEST_RECORD_BYTES:,}",
            "A client with it refuses larger records, such as those of a namespace with many bundles.",
            "Remove it from the Kafka properties of brokers and commands.",
        )
    yield from listed(facts, of_log, Severity.ERROR, "kafka-refuses")
    yield from listed(facts, of_log, Severity.WARNING, "kafka-throttles")


def replicas(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Leaders and replicas of every partition."""
    single: list[str] = []
    partitions = 0
    for wanted in facts.wanted:
        info = facts.topics.get(wanted.name)
        for place in facts.places.get(wanted.name, ())[: wanted.policy.partitions]:  # the others are not used
            partitions += 1
            name = f"{wanted.name}-{place.partition}"
            required = int(info.settings.get("min.insync.replicas", "1")) if info is not None else 1
            away = sorted(set(place.replicas) - set(place.in_sync))
            if place.leader is None:
                yield critical(
                    f"partition {name} has no leader; its replicas are on Kafka brokers {_these(place.replicas)}",
                    "It can be neither read nor written.",
                    f"Bring Kafka broker {_these(place.in_sync or place.replicas)} back.",
                )
            elif len(place.in_sync) < required <= len(place.replicas):  # with more `topics` says so
                yield critical(
                    f"partition {name} has {len(place.in_sync)} replicas in sync, and min.insync.replicas is {required}",
                    "All writes to it are refused.",
                    f"Bring Kafka broker {_these(away)} back.",
                )
            elif away:
                yield warning(
                    f"partition {name} is under-replicated: Kafka broker {_these(away)} is behind or offline",
                    "It tolerates one failure less. A replica that is offline for longer than delete.retention.ms may bring back "
                    "deleted records.",
                    f"Bring Kafka broker {_these(away)} back, or find out why it lags.",
                )
            if len(place.replicas) == 1 and place.leader is not None:
                single.append(wanted.name)
    nodes = 0 if facts.cluster is None else len(facts.cluster.nodes)
    if single:
        names = ", ".join(dict.fromkeys(single))
        yield DoctorFinding(
            Severity.WARNING if nodes > 1 else Severity.INFO,
            f"only one of {nodes} Kafka brokers holds {names}" if nodes > 1 else "one Kafka broker holds everything",
            "If its disk is lost, the channel is lost.",
            "Raise the number of replicas to 3 (kafka-reassign-partitions.sh)." if nodes > 1 else "",
        )
    elif partitions:
        yield ok(f"all {partitions} partitions have leaders and replicas")


def election_group(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Members of the election's group that are not brokers: they keep brokers out of it, or are assigned the leadership."""
    connection = facts.connection
    own = "" if connection is None else connection.client.client_id
    foreign = [
        member for member in facts.group if member.client_id != own and not member.client_id.startswith(BROKER_CLIENT)
    ]
    group = "the election's group" if connection is None else f"the election's group {connection.topics.leader_group}"
    if not foreign:
        yield ok(f"{group} has {len(facts.group)} members, all of them brokers")
        return
    led = any(member.info.get("leading") is True for member in facts.alive.values())
    yield DoctorFinding(
        Severity.WARNING if led else Severity.ERROR,
        f"{group} has members that are not brokers: "
        + ", ".join(f"{member.client_id} at {member.host}" for member in foreign),
        "As long as they stay, brokers may be kept out of the group, and none leads.",
        "Stop these clients, or give them another group.id. If they are brokers with a client.id of their own, give this command "
        "the same properties (--kafka-config).",
    )


def _these(nodes: tuple[int, ...] | list[int]) -> str:
    return " and ".join(str(node) for node in nodes) or "?"


CHECKS = (
    DoctorCheck("settings", "settings and the rules between them", settings),
    DoctorCheck("java", "Java", java),
    DoctorCheck("embedded-kafka", "the embedded Kafka and its disk", embedded, needs=("embedded",)),
    DoctorCheck("clock", "this machine's clock and Kafka's", clock, needs=("kafka", "registry")),
    DoctorCheck("kafka", "whether Kafka answers", reachable),
    DoctorCheck("versions", "versions of client and Kafka", versions, needs=("kafka",)),
    DoctorCheck(
        "kafka-settings", "settings of the Kafka brokers match ours", broker_settings, needs=("kafka", "nodes")
    ),
    DoctorCheck("patience", "time-outs match each other and the topic's lag", patience, needs=("kafka", "topics")),
    DoctorCheck("topics", "the topics' settings", topic_settings, needs=("kafka", "topics")),
    DoctorCheck("election-group", "only brokers are in the election's group", election_group, needs=("kafka", "group")),
    DoctorCheck(
        "limits",
        "Kafka refuses no records of brokers, and throttles none",
        limits,
        needs=("kafka", "registry", "log"),
        title="kafka-limits",
    ),
    DoctorCheck("replicas", "partitions' leaders and replicas", replicas, needs=("kafka", "topics")),
)
