"""Topics and their cluster: creation, inspection, and refusal of settings that void the protocol; nodes and replicas."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from math import inf
from typing import TYPE_CHECKING

import confluent_kafka
from confluent_kafka import KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from statechannel.kafka.admin import BoundedAdmin, CallFailedError
from statechannel.kafka.errors import (
    KafkaUnavailableError,
    TopicMissingError,
    TopicPolicyError,
    is_topic_missing,
    is_transient,
)
from statechannel.kafka.topic_policy import SettingRule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka.admin._config import ConfigEntry
    from confluent_kafka.admin._group import ConsumerGroupDescription
    from confluent_kafka.admin._topic import TopicDescription

    from statechannel.kafka.client_settings import ClientSettings
    from statechannel.kafka.topic_policy import Requirement, TopicPolicy, TopicSet


_POLL_S = 0.05
_SAFE_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Description of an existing topic.

    Attributes:
        topic_id: UUID given at creation; another one means that the topic was re-created.
        replicas: Smallest number of replicas of any partition.
        settings: All settings in force, defaults included.
    """

    name: str
    topic_id: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicSettingDifference:
    """One setting of a topic that differs from its policy.

    Attributes:
        hard: The topic must not be used until this is fixed.
        command: The exact command that fixes it, also while brokers run; empty: nothing has to be done.
    """

    topic: str
    setting: str
    actual: str
    wanted: str
    hard: bool
    command: str

    def __str__(self) -> str:
        todo = f"fix it with: {self.command}" if self.command else "it harms nothing"
        return f"{self.topic}: {self.setting} is {self.actual}, required {self.wanted}; {todo}"


@dataclass(frozen=True, slots=True)
class Inspection:
    """Existing topics by name, with their differences from the policies."""

    topics: Mapping[str, TopicInfo]
    differences: tuple[TopicSettingDifference, ...]

    @property
    def hard(self) -> tuple[TopicSettingDifference, ...]:
        return tuple(d for d in self.differences if d.hard)


@dataclass(frozen=True, slots=True)
class KafkaNode:
    node: int
    address: str
    rack: str | None


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """The Kafka cluster.

    Attributes:
        controller: Id of the controller, or of the node that represents it (KRaft); None if there is none.
    """

    cluster_id: str
    controller: int | None
    nodes: tuple[KafkaNode, ...]


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Leader and replicas of one partition.

    Attributes:
        leader: None: it has no leader, and can be neither read nor written.
        in_sync: Replicas that are in sync with the leader.
    """

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class GroupMember:
    """A member of a consumer group, by what it says of itself and its address."""

    client_id: str
    host: str


class TopicAdmin(BoundedAdmin):
    """Client for describing and creating topics, and for describing the cluster."""

    def describe(self, names: Collection[str], *, created: bool = False) -> dict[str, TopicInfo]:
        """The topics among `names` that exist, with all their settings.

        Args:
            created: All of them were just created: unknown topics are retried for a while.
        """
        ends_s = inf
        while True:
            descriptions = {n: d for n, d in self._descriptions(names).items() if d is not None}
            settings = self._settings_of(descriptions)
            # The time counts from the first answer: a slow Kafka may take longer than it for that.
            ends_s = min(ends_s, time.monotonic() + self._settings.tuning.topic_grace_s)
            expected = names if created else descriptions
            if len(settings) == len(expected) or time.monotonic() >= ends_s:
                return self._infos(descriptions, settings)
            time.sleep(_POLL_S)

    @staticmethod
    def _infos(
        descriptions: Mapping[str, TopicDescription], settings: Mapping[str, Mapping[str, str]]
    ) -> dict[str, TopicInfo]:
        return {
            name: info_of(name, description, settings[name])
            for name, description in descriptions.items()
            if name in settings
        }

    def create(self, topics: TopicSet, *, partitions: int, replication_factor: int) -> None:
        """Create the topics that do not exist and wait until the leader of every partition answers.

        Idempotent; an existing topic is not changed (`inspect` compares it with its policy).

        Args:
            partitions: Of the channel topic; fixed from then on.
            replication_factor: Replicas of each topic; -1: the cluster's default.

        Raises:
            KafkaUnavailableError: Kafka did not answer, or a topic did not become usable in time.
        """
        new = [
            NewTopic(
                name,
                num_partitions=policy.partitions or partitions,
                replication_factor=replication_factor,
                config=_creation_settings(policy, replication_factor),
            )
            for name, policy in topics.policies.items()
        ]
        self._patiently(lambda left_s: self._create(new, left_s))
        self._wait_usable(topics.policies)

    def _create(self, new: list[NewTopic], timeout_s: float) -> None:
        futures = self._admin.create_topics(new, request_timeout=timeout_s)
        for name, future in futures.items():
            try:
                self._wait(future, f"creating topic {name}")
            except CallFailedError as failure:
                if failure.code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _wait_usable(self, names: Iterable[str]) -> None:
        """Wait for the leaders: brokers learn of a new topic one after the other, and of leading a partition last."""
        deadline_s = time.monotonic() + self._timeout_s
        missing = list(names)
        while True:
            described = self._descriptions(missing)
            led = {n: d for n, d in described.items() if d is not None and _has_leaders(d)}
            answering = self._answering(led, max(_POLL_S, deadline_s - time.monotonic()))
            missing = [name for name in missing if name not in answering]
            if not missing:
                return
            if time.monotonic() > deadline_s:
                raise KafkaUnavailableError(
                    f"Topics without a leader that answers after {self._timeout_s:g} s: {', '.join(missing)}.",
                    hint="Check that enough brokers of the Kafka cluster are running.",
                )
            time.sleep(_POLL_S)

    def _answering(self, topics: Mapping[str, TopicDescription], timeout_s: float) -> set[str]:
        """Topics of which every partition's leader answers a query for its end."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        places = {TopicPartition(n, p.id): latest for n, d in topics.items() for p in d.partitions}
        futures = self._admin.list_offsets(places, request_timeout=timeout_s) if places else {}
        silent: set[str] = set()
        for place, future in futures.items():
            try:
                self._wait(future, f"querying the end of {place.topic}-{place.partition}")
            except CallFailedError as failure:
                if not is_transient(failure) and not is_topic_missing(failure):
                    raise failure.translated from None
                silent.add(place.topic)
        return set(topics) - silent

    def _descriptions(self, names: Iterable[str]) -> dict[str, TopicDescription | None]:
        wanted = list(names)
        return self._patiently(lambda left_s: self._describe_once(wanted, left_s)) if wanted else {}

    def _describe_once(self, names: list[str], timeout_s: float) -> dict[str, TopicDescription | None]:
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=timeout_s)
        descriptions: dict[str, TopicDescription | None] = {}
        for name, future in futures.items():
            try:
                descriptions[name] = self._wait(future, f"describing topic {name}")
            except CallFailedError as failure:
                if not is_topic_missing(failure):
                    raise
                descriptions[name] = None
        return descriptions

    def _settings_of(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        return self._patiently(lambda left_s: self._settings_once(resources, left_s)) if resources else {}

    def _settings_once(self, resources: list[ConfigResource], timeout_s: float) -> dict[str, dict[str, str]]:
        futures = self._admin.describe_configs(resources, request_timeout=timeout_s)
        settings: dict[str, dict[str, str]] = {}
        for resource, future in futures.items():
            try:
                entries = self._wait(future, f"reading the settings of topic {resource.name}")
            except CallFailedError as failure:
                if is_topic_missing(failure):  # deleted between the two calls
                    continue
                raise
            settings[resource.name] = settings_of(entries)
        return settings

    # --- the cluster ------------------------------------------------------------------------------------------------

    def cluster(self) -> KafkaCluster:
        description = self._patiently(
            lambda left_s: self._wait(self._admin.describe_cluster(request_timeout=left_s), "describing the cluster")
        )
        nodes = (KafkaNode(node.id, f"{node.host}:{node.port}", node.rack) for node in description.nodes)
        controller = description.controller
        return KafkaCluster(
            description.cluster_id,
            None if controller is None or controller.id < 0 else controller.id,
            tuple(sorted(nodes, key=lambda node: node.node)),
        )

    def node_settings(self, node: int) -> Mapping[str, str]:
        """Effective settings of one Kafka broker, without secrets."""
        resource = ConfigResource(ResourceType.BROKER, str(node))

        def ask(left_s: float) -> Mapping[str, str]:
            (future,) = self._admin.describe_configs([resource], request_timeout=left_s).values()
            entries = self._wait(future, f"reading the settings of Kafka broker {node}")
            return {name: entry.value for name, entry in entries.items() if entry.value and not entry.is_sensitive}

        return self._patiently(ask)

    def group_members(self, group: str) -> tuple[GroupMember, ...]:
        def ask(left_s: float) -> ConsumerGroupDescription:
            (future,) = self._admin.describe_consumer_groups([group], request_timeout=left_s).values()
            description: ConsumerGroupDescription = self._wait(future, f"describing group {group}")
            return description

        members = self._patiently(ask).members
        return tuple(sorted(GroupMember(member.client_id, member.host.lstrip("/")) for member in members))

    def places(self, names: Collection[str]) -> dict[str, tuple[PartitionPlace, ...]]:
        return {
            name: tuple(
                PartitionPlace(
                    partition.id,
                    None if partition.leader is None or partition.leader.id < 0 else partition.leader.id,  # type: ignore[redundant-expr]
                    tuple(sorted(node.id for node in partition.replicas)),
                    tuple(sorted(node.id for node in partition.isr)),
                )
                for partition in description.partitions
            )
            for name, description in self._descriptions(names).items()
            if description is not None
        }


def info_of(name: str, description: TopicDescription, settings: Mapping[str, str]) -> TopicInfo:
    return TopicInfo(
        name=name,
        topic_id=str(description.topic_id),
        partitions=len(description.partitions),
        replicas=min(len(p.replicas) for p in description.partitions),
        settings=settings,
    )


def settings_of(entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """The settings in Kafka's answer, without empty ones."""
    return {name: entry.value for name, entry in entries.items() if entry.value}


def create_topics(
    settings: ClientSettings,
    topics: TopicSet,
    *,
    partitions: int = 1,
    replication_factor: int = -1,
    timeout_s: float = 20.0,
) -> Mapping[str, TopicInfo]:
    """Create missing topics, then verify all; see `TopicAdmin.create`."""
    admin = TopicAdmin(settings, timeout_s=timeout_s)
    admin.create(topics, partitions=partitions, replication_factor=replication_factor)
    infos = admin.describe(topics.policies.keys(), created=True)
    return refuse_unfit(inspect(infos, settings, topics), topics).topics


def open_topics(
    settings: ClientSettings,
    topics: TopicSet,
    *,
    create: bool,
    replication_factor: int = -1,
    fit_nodes: bool = False,
    partitions: int = 1,
    timeout_s: float = 20.0,
) -> Mapping[str, TopicInfo]:
    """Verify topics; missing ones are created first if requested.

    Args:
        replication_factor: Replicas of new topics; -1: the cluster's default.
        fit_nodes: With fewer brokers than replicas, as many replicas as there are brokers.
        partitions: Of new topics whose policy leaves the number open.

    Raises:
        TopicMissingError: One does not exist and was not to be created.
        TopicPolicyError: At least one hard difference; the message has the commands that fix it.
        KafkaUnavailableError: Kafka did not answer in time.
    """
    admin = TopicAdmin(settings, timeout_s=timeout_s)
    infos = admin.describe(topics.policies.keys())
    # A request to create an existing topic costs a round trip to Kafka's controller, so it is not sent.
    if create and len(infos) < len(topics.policies):
        if fit_nodes:
            replication_factor = max(1, min(replication_factor, len(admin.cluster().nodes)))
        return create_topics(
            settings, topics, partitions=partitions, replication_factor=replication_factor, timeout_s=timeout_s
        )
    return refuse_unfit(inspect(infos, settings, topics), topics).topics


def inspect_topics(settings: ClientSettings, topics: TopicSet, *, timeout_s: float = 20.0) -> Inspection:
    """Read the topics and list every difference, hard and soft, without refusing anything.

    Raises:
        TopicMissingError: One of the topics does not exist.
    """
    admin = TopicAdmin(settings, timeout_s=timeout_s)
    return inspect(admin.describe(topics.policies.keys()), settings, topics)


def verify_topics(settings: ClientSettings, topics: TopicSet, *, timeout_s: float = 20.0) -> Inspection:
    """Like `inspect_topics`, but refuse topics with a hard difference.

    Raises:
        TopicMissingError: One of the topics does not exist.
        TopicPolicyError: At least one hard difference; the message has the commands that fix it.
    """
    return refuse_unfit(inspect_topics(settings, topics, timeout_s=timeout_s), topics)


def inspect(infos: Mapping[str, TopicInfo], settings: ClientSettings, topics: TopicSet) -> Inspection:
    """Compare topics with the policies. Pure."""
    missing = [name for name in topics.policies if name not in infos]
    if missing:
        raise TopicMissingError(
            f"Topics that do not exist: {', '.join(missing)}.",
            hint="Create them with `statechannel init`, or open a broker with `create_topics=True`.",
        )
    differences: list[TopicSettingDifference] = []
    for name, policy in topics.policies.items():
        differences += differences_of(infos[name], policy, settings.bootstrap_servers)
    return Inspection(topics=infos, differences=tuple(differences))


def differences_of(info: TopicInfo, policy: TopicPolicy, server: str) -> list[TopicSettingDifference]:
    return [
        *_partition_differences(info, policy),
        *(
            _difference(info, requirement, server)
            for requirement in policy.requirements
            if not requirement.met_by(info.settings.get(requirement.setting))
        ),
        *_replica_differences(info, policy, server),
    ]


def refuse_unfit(inspection: Inspection, topics: TopicSet) -> Inspection:
    """The inspection, if it has no hard difference.

    Raises:
        TopicPolicyError: It has; the message has the commands that fix it.
    """
    if not inspection.hard:
        return inspection
    lines = "\n  ".join(str(difference) for difference in inspection.hard)
    raise TopicPolicyError(f"{topics.refusal}:\n  {lines}", hint=topics.remedy)


def _difference(info: TopicInfo, requirement: Requirement, server: str) -> TopicSettingDifference:
    wanted = requirement.wanted
    return TopicSettingDifference(
        topic=info.name,
        setting=requirement.setting,
        actual=info.settings.get(requirement.setting, "unknown"),
        wanted=wanted if requirement.rule is SettingRule.EXACTLY else f"{requirement.rule} {wanted}",
        hard=requirement.hard,
        command=alter_command(server, info.name, requirement.setting, wanted),
    )


def alter_command(server: str, topic: str, setting: str, value: str) -> str:
    """The line that changes one setting of a topic with Kafka's own tool."""
    quoted = f"[{value}]" if "," in value else value
    return (
        f"kafka-configs.sh --bootstrap-server {server} --alter --entity-type topics "
        f"--entity-name {topic} --add-config {setting}={quoted}"
    )


def missing_topic(name: str, policy: TopicPolicy, server: str) -> TopicSettingDifference:
    configs = "".join(f" --config {setting}={value}" for setting, value in policy.creation_settings().items())
    return TopicSettingDifference(
        topic=name,
        setting="topic",
        actual="missing",
        wanted="existing",
        hard=True,
        command=(
            f"kafka-topics.sh --bootstrap-server {server} --create --topic {name} --partitions {policy.partitions or 1}"
            f"{configs}"
        ),
    )


def _partition_differences(info: TopicInfo, policy: TopicPolicy) -> list[TopicSettingDifference]:
    """Extra partitions stay unused. Kafka cannot remove one, and deleting the topic would stop every running broker."""
    if policy.partitions is None or info.partitions == policy.partitions:
        return []
    return [
        TopicSettingDifference(
            topic=info.name,
            setting="partitions",
            actual=str(info.partitions),
            wanted=str(policy.partitions),
            hard=False,
            command="",
        )
    ]


def _replica_differences(info: TopicInfo, policy: TopicPolicy, server: str) -> list[TopicSettingDifference]:
    """acks=all means little with one in-sync replica, and nothing works with too many required."""
    setting = "min.insync.replicas"
    required = int(info.settings.get(setting, "1"))
    wanted = 2 if info.replicas >= _SAFE_REPLICAS else 1
    too_many = required > info.replicas
    too_few = info.replicas >= _SAFE_REPLICAS and required < wanted
    fragile = 1 < info.replicas == required
    if not policy.requirements or not (too_many or too_few or fragile):
        return []
    return [
        TopicSettingDifference(
            topic=info.name,
            setting=setting,
            actual=f"{required} with {info.replicas} replicas",
            wanted=str(wanted),
            hard=too_many,
            command=alter_command(server, info.name, setting, str(wanted)),
        )
    ]


def _creation_settings(policy: TopicPolicy, replication_factor: int) -> dict[str, str]:
    settings = policy.creation_settings()
    if replication_factor > 0:
        settings["min.insync.replicas"] = "2" if replication_factor >= _SAFE_REPLICAS else "1"
    return settings


def _has_leaders(description: TopicDescription) -> bool:
    return bool(description.partitions) and all(
        p.leader is not None and p.leader.id >= 0  # type: ignore[redundant-expr]  # seen None
        for p in description.partitions
    )


def client_versions() -> dict[str, str]:
    return {"confluent-kafka": metadata.version("confluent-kafka"), "librdkafka": confluent_kafka.libversion()[0]}


def server_version(settings: Mapping[str, str]) -> str:
    """The version of a Kafka broker, derived from its settings: Kafka's protocol has no request for it."""
    version = settings.get("inter.broker.protocol.version")
    if version is not None:
        return f"inter-broker protocol {version}"
    if "group.coordinator.rebalance.protocols" in settings or "share.coordinator.append.linger.ms" in settings:
        return "4.0 or newer"
    return "unknown"
