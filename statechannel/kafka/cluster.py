"""Description of a Kafka cluster: nodes, their settings, and partition replicas. Read-only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata

import confluent_kafka
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from statechannel.kafka.topics import TopicAdmin


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """One broker of the Kafka cluster."""

    node: int
    address: str
    rack: str | None


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """The Kafka cluster.

    Attributes:
        controller: Id of the controller, or of the node that represents it (KRaft); None if there is none.
        nodes: Those that are up, by id.
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


def client_versions() -> dict[str, str]:
    """Versions of the client library and of what it wraps."""
    return {"confluent-kafka": metadata.version("confluent-kafka"), "librdkafka": confluent_kafka.libversion()[0]}


class ClusterAdmin(TopicAdmin):
    """Queries on the cluster; time-outs and errors as for `TopicAdmin`."""

    def cluster(self) -> KafkaCluster:
        """Its id, its controller, its nodes."""
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

    def places(self, names: Collection[str]) -> dict[str, tuple[PartitionPlace, ...]]:
        """Leaders and replicas of the existing topics' partitions."""
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


def server_version(settings: Mapping[str, str]) -> str:
    """The version of a Kafka broker, derived from its settings: Kafka's protocol has no request for it."""
    version = settings.get("inter.broker.protocol.version")
    if version is not None:
        return f"inter-broker protocol {version}"
    if "group.coordinator.rebalance.protocols" in settings or "share.coordinator.append.linger.ms" in settings:
        return "4.0 or newer"
    return "unknown"
