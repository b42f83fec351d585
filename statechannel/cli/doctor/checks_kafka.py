"""Checks of the Kafka cluster: reachability, brokers, and broker settings that conflict with ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from statechannel.cli.doctor.facts import DoctorFacts
from statechannel.cli.doctor.findings import DoctorCheck, DoctorFinding, Severity
from statechannel.kafka.topics import server_version
from statechannel.protocol.log import Topic
from statechannel.settings.relations import FAR_BELOW

if TYPE_CHECKING:
    from statechannel.kafka.topics import TopicInfo

_BYTES_A_KEY = 24
_LOAD = 0.9
_DEFAULT_CLEANER_THREADS = 1


def reachable(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Whether Kafka answers, with its cluster id and controller."""
    failed = facts.failed.get("kafka")
    if failed is not None and not facts.settings_known:
        yield DoctorFinding(Severity.INFO, failed.what, checked=False)
        return
    if failed is not None:
        yield DoctorFinding(
            Severity.CRITICAL,
            failed.what,
            "Brokers go on serving what they own (safe mode), but nothing can be assigned, moved or repaired.",
            failed.hint,
        )
        return
    cluster = facts.cluster
    if cluster is None:
        return
    if cluster.controller is None:
        yield DoctorFinding(
            Severity.ERROR,
            f"the Kafka cluster {cluster.cluster_id} has no controller",
            "Partitions that lose their leader do not get another one.",
            "Check the logs of the Kafka brokers and controllers.",
        )
    nodes = ", ".join(f"{node.node} ({node.address})" for node in cluster.nodes)
    yield DoctorFinding(
        Severity.OK,
        f"Kafka at {facts.address} answers: cluster {cluster.cluster_id}, brokers {nodes}, controller {cluster.controller}",
    )


def versions(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Versions of the client and of the Kafka brokers."""
    client = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    servers = {server_version(settings) for settings in facts.nodes.values()}
    server = "; ".join(sorted(servers)) or "unknown"
    if len(servers) > 1:
        yield DoctorFinding(
            Severity.WARNING,
            f"the Kafka brokers have several versions: {server}",
            "Expected during an upgrade only.",
            "Finish the upgrade of Kafka.",
        )
    if facts.embedded is not None and facts.embedded.used:
        server = f"{facts.versions.get('embedded Kafka', '?')} (embedded)"
    yield DoctorFinding(Severity.OK, f"client: {client}; Kafka brokers: {server}")


def broker_settings(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Settings of the Kafka brokers that conflict with ours."""
    for node, settings in facts.nodes.items():
        yield from _sessions(facts, node, settings)
        if settings.get("log.cleaner.enable") == "false":
            yield DoctorFinding(
                Severity.ERROR,
                f"log.cleaner.enable is false on Kafka broker {node}",
                "The channel's topic is never compacted: it grows, and joins take longer and longer.",
                "Remove it from that broker's server.properties, and restart it.",
            )
        if settings.get("auto.create.topics.enable") == "true":
            yield DoctorFinding(
                Severity.WARNING,
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
        yield DoctorFinding(
            Severity.ERROR,
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
        yield DoctorFinding(
            Severity.WARNING,
            f"the channel has {facts.keys:,} keys, and the cleaner of Kafka broker {node} handles {room:,} per pass",
            "Compaction needs several passes; joins read more.",
            f"Raise log.cleaner.dedupe.buffer.size on Kafka broker {node}.",
        )


def patience(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Our time-outs compared with each other, and with the topic's compaction lag."""
    settings = facts.settings
    expiry_ms = settings.membership.expiry_s * 1_000
    if settings.kafka.session_timeout_ms > expiry_ms:
        yield DoctorFinding(
            Severity.WARNING,
            f"kafka.session_timeout_ms = {settings.kafka.session_timeout_ms} is above membership.expiry_s = "
            f"{settings.membership.expiry_s:g}",
            "A dead leader is lost before the election is free, so its bundles wait for the session's end.",
            "Lower kafka.session_timeout_ms to membership.expiry_s or below (Kafka's own floor is 6 s by default).",
        )
    channel = next((topic.name for topic in facts.wanted if topic.policy.role == Topic.CHANNEL), None)
    info = None if channel is None else facts.topics.get(channel)
    lag = None if info is None else info.settings.get("min.compaction.lag.ms")
    if channel is not None and lag is not None and settings.kafka.delivery_timeout_ms * FAR_BELOW > int(lag):
        yield DoctorFinding(
            Severity.ERROR,
            f"kafka.delivery_timeout_ms = {settings.kafka.delivery_timeout_ms} is more than a tenth of the compaction lag of "
            f"{channel}, {lag} ms",
            "A record still in flight when the cleaner runs voids the lag, on which late joins depend.",
            "Raise min.compaction.lag.ms of the topic to that of channel.min_compaction_lag_ms, or lower the time-out.",
        )
    if info is not None:
        yield from _nulls_outlive(info)
    if not facts.failed.get("registry") and facts.registry is not None:
        yield from _lease(facts)


def _nulls_outlive(channel: TopicInfo) -> Iterator[DoctorFinding]:
    """Replicas of a topic are compacted independently: a tombstone must stay until each has removed the records before it."""
    kept = channel.settings.get("delete.retention.ms")
    cleaned = channel.settings.get("max.compaction.lag.ms")
    if kept is not None and cleaned is not None and int(kept) < 2 * int(cleaned):
        yield DoctorFinding(
            Severity.ERROR,
            f"delete.retention.ms of {channel.name}, {kept} ms, is less than twice its max.compaction.lag.ms, {cleaned} ms",
            "One replica may remove a tombstone before another has removed the records before it: after a change of leader they "
            "reappear.",
            "Raise delete.retention.ms of the topic to that of channel.delete_retention_ms.",
        )


def _lease(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    lease_s = facts.settings.safe_mode.lease_s
    if lease_s is None or facts.registry is None:
        return
    for broker, member in facts.registry.members.alive.items():
        expiry_s = member.info.get("expiry_s")
        if isinstance(expiry_s, int | float) and lease_s >= expiry_s:
            yield DoctorFinding(
                Severity.ERROR,
                f"safe_mode.lease_s = {lease_s:g} here, but {broker} has an expiry of only {expiry_s:g} s",
                "A broker that is cut off may still serve when another one takes over.",
                "Give all brokers the same settings; the lease has to be below membership.expiry_s of every broker.",
            )


CHECKS = (
    DoctorCheck("kafka", "whether Kafka answers", reachable),
    DoctorCheck("versions", "versions of client and Kafka", versions, needs=("kafka",)),
    DoctorCheck(
        "kafka-settings", "settings of the Kafka brokers match ours", broker_settings, needs=("kafka", "nodes")
    ),
    DoctorCheck("patience", "time-outs match each other and the topic's lag", patience, needs=("kafka", "topics")),
)
