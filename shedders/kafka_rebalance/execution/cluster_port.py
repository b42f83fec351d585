"""Port of the runner to a Kafka cluster, by kafka-python's admin client; Kafka 2.4 or newer (reassignments: KIP-455)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kafka import TopicPartition
from kafka import errors as kafka_python
from kafka.admin import ConfigResource
from kafka.structs import TopicPartitionReplica

from loaddata.samples.admin import ask, kafka_errors, words_of
from loaddata.samples.kafka_cluster import read_layout, replicas_in, topic_of
from shedders.kafka_rebalance.execution.throttle import BROKER, EVERY_RATE, LISTS, TOPIC
from shedders.kafka_rebalance.execution.values import (
    CallAnswer,
    CallOutcome,
    Configs,
    Key,
    Observation,
    ReplicaDir,
    ReplicaKey,
    Resource,
)

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

    from loaddata.samples.partitions import KafkaTopic
    from shedders.kafka_rebalance.planning.plan import ReassignmentPlan

PREFERRED: Final = 0
SET: Final = 0
DELETE: Final = 1
AT_ONCE: Final = 500
"""Most partitions in one request, as the controller answers a request as a whole."""
_WITNESS: Final = "compression.type"
"""A setting that every broker and topic has. kafka-python ignores a resource's error and returns an empty answer, which would
look as if no throttle were set; so an answer without this setting is treated as an error."""
_DYNAMIC: Final = frozenset({"DYNAMIC_TOPIC_CONFIG", "DYNAMIC_BROKER_CONFIG"})
_NO_REFUSAL: Final = (kafka_python.NoError, kafka_python.ReplicaNotAvailableError)
_GONE: Final = (kafka_python.UnknownTopicOrPartitionError, kafka_python.UnknownTopicIdError)


class ClusterPort:
    """A cluster as the runner sees it. What fails before it is sent raises StateChannelError.

    Args:
        plan: Its topics are read; of other topics only under-replicated partitions and reassignments.
        min_isr: Of its topics, as read when the execution began.
    """

    def __init__(
        self, admin: KafkaAdminClient, plan: ReassignmentPlan, min_isr: Mapping[str, int], *, timeout_s: float = 30.0
    ) -> None:
        self._admin = admin
        self._topics = sorted({move.topic for move in plan.moves} | {move.topic for move in plan.dir_moves})
        self._replicas = [move.key for move in plan.dir_moves]
        self._planned = {move.key for move in plan.moves}
        self._min_isr = min_isr
        self._timeout_s = timeout_s
        self._timeout_ms = int(timeout_s * 1_000)

    # --- reading ----------------------------------------------------------------------------------------------------

    def observe(self, *, full: bool, configs: tuple[Resource, ...], layout: bool = False) -> Observation:
        """Read the cluster; `full`: with all under-replicated partitions and copied bytes; with settings of `configs`.

        Reassignments are read first: one that ends between the two answers then appears to be still in flight.
        """
        with kafka_errors("looking at the cluster"):
            admin, wait_s = self._admin, self._timeout_s
            moving = ask(
                admin, lambda: admin.list_partition_reassignments(timeout_ms=self._timeout_ms), timeout_s=wait_s
            )
            cluster = ask(admin, admin.describe_cluster, timeout_s=wait_s)
            described = ask(admin, lambda: admin.describe_topics(None if full else self._topics), timeout_s=wait_s)
        alive = frozenset(
            int(broker["broker_id"]) for broker in cluster["brokers"] if not broker.get("is_fenced", False)
        )
        self._refresh_addresses(alive)
        under_way = {(item.topic, item.partition): lists for item, lists in moving.items()}
        topics, urps = self._read(described, under_way)
        return Observation(
            cluster_id=cluster["cluster_id"],
            alive=alive,
            topics=topics,
            foreign={
                key: frozenset((*lists["adding_replicas"], *lists["removing_replicas"]))
                for key, lists in under_way.items()
                if key not in self._planned
            },
            urps=urps if full else None,
            copied=self._copied(topics, alive) if full else None,
            configs=self._configs(configs, alive, topics) if configs else None,
            dirs=self._dirs(alive) if full and self._replicas else None,
            layout=read_layout(self._admin, now_ms=0, timeout_s=wait_s) if layout else None,
        )

    def _read(
        self, described: Iterable[Mapping[str, Any]], under_way: Mapping[Key, Mapping[str, list[int]]]
    ) -> tuple[dict[str, KafkaTopic], frozenset[Key]]:
        topics: dict[str, KafkaTopic] = {}
        urps: set[Key] = set()
        wanted = set(self._topics)
        for description in described:
            name = description["name"]
            error = kafka_python.for_code(description["error_code"])
            if error is not kafka_python.NoError:
                if name in wanted and not issubclass(error, _GONE):
                    with kafka_errors(f"looking at topic {name}"):
                        raise error
                continue
            urps |= {
                (name, part["partition_index"])
                for part in description["partitions"]
                if len(part["isr_nodes"]) < len(part["replica_nodes"])
            }
            topic = topic_of(description, under_way, []) if name in wanted else None
            if topic is not None:
                topics[name] = replace(topic, min_isr=self._min_isr.get(name, 1))
        return topics, frozenset(urps)

    def _copied(
        self, topics: Mapping[str, KafkaTopic], alive: frozenset[int]
    ) -> dict[tuple[str, int, int], int] | None:
        """Bytes of replicas that are being added, and of their leaders; those of a broker that does not answer are missing."""
        asked: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic in topics.values():
            for partition in topic.partitions:
                leader = () if partition.leader is None or not partition.adding else (partition.leader,)
                for broker in (*partition.adding, *leader):
                    if broker in alive and (topic.name, partition.partition) in self._planned:
                        asked[broker][topic.name].append(partition.partition)
        sizes: dict[tuple[str, int, int], int] = {}
        for broker, partitions in asked.items():
            try:
                (answer,) = self._admin.describe_log_dirs(topic_partitions=dict(partitions), brokers=[broker])
            except (kafka_python.KafkaError, OSError):
                return None
            for directory in answer["log_dirs"]:
                for topic_name, number, size, _ in replicas_in(directory):
                    key = topic_name, number, broker
                    sizes[key] = max(sizes.get(key, 0), size)
        return sizes

    def _dirs(self, alive: frozenset[int]) -> dict[ReplicaKey, ReplicaDir]:
        """Log directories of the replicas that change them; those of a broker that does not answer are missing."""
        asked: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for topic, number, broker in self._replicas:
            if broker in alive:
                asked[broker][topic].append(number)
        result: dict[ReplicaKey, ReplicaDir] = {}
        for broker, partitions in asked.items():
            try:
                (answer,) = self._admin.describe_log_dirs(topic_partitions=dict(partitions), brokers=[broker])
            except (kafka_python.KafkaError, OSError):
                continue
            if not answer["log_dirs"]:  # the library does not look at the answer's error
                continue
            result |= {(topic, number, broker): ReplicaDir() for topic, of in partitions.items() for number in of}
            for directory in answer["log_dirs"]:
                path = directory["log_dir"]
                for topic, number, size, is_future in replicas_in(directory):
                    now = result.get((topic, number, broker), ReplicaDir())
                    there = (
                        {"future_path": path, "future_bytes": size} if is_future else {"path": path, "size_bytes": size}
                    )
                    result[topic, number, broker] = replace(now, **there)
        return result

    def _configs(
        self, resources: Iterable[Resource], alive: frozenset[int], topics: Mapping[str, KafkaTopic]
    ) -> Configs:
        """Throttle settings without defaults; of live brokers only.

        Resources without an answer stay unknown and untouched; a deleted topic has no settings.
        """
        configs: dict[Resource, dict[str, str | None]] = {}
        brokers = [name for kind, name in resources if kind == BROKER and int(name) in alive]
        names = [name for kind, name in resources if kind != BROKER]
        for name in brokers:
            with suppress(kafka_python.KafkaError, OSError):
                configs |= self._settings([ConfigResource("BROKER", name, [*EVERY_RATE, _WITNESS])])
        with kafka_errors("reading the throttles"):
            for begin in range(0, len(names), AT_ONCE):
                part = names[begin : begin + AT_ONCE]
                configs |= self._settings([ConfigResource("TOPIC", name, [*LISTS, _WITNESS]) for name in part])
        gone = ((TOPIC, name) for name in names if name not in topics)
        return {resource: {} for resource in gone} | configs

    def _settings(self, asked: list[ConfigResource]) -> dict[Resource, dict[str, str | None]]:
        return {
            (kind, name): {
                setting: str(entry["value"])
                for setting, entry in settings.items()
                if setting != _WITNESS and entry["config_source"] in _DYNAMIC and entry["value"] not in {None, ""}
            }
            for kind, by_name in self._admin.describe_configs(asked, config_filter="all").items()
            for name, settings in by_name.items()
            if _WITNESS in settings
        }

    def _refresh_addresses(self, brokers: Iterable[int]) -> None:
        """Refresh the client's addresses of brokers that have come back; otherwise it would not send to them for minutes."""
        manager = self._admin._manager  # noqa: SLF001 - there is no public way
        if any(manager.cluster.broker_metadata(broker) is None for broker in brokers):
            with suppress(kafka_python.KafkaError, OSError):
                manager.run(manager.cluster.refresh_metadata)

    # --- changing ------------------------------------------------------------------------------------------------------

    def set_configs(self, changes: Configs) -> CallAnswer:
        """Set or delete configuration: one request per broker, one for all topics."""
        brokers = [change for change in changes if change[0] == BROKER]
        topics = [change for change in changes if change[0] != BROKER]
        refused: dict[Key | ReplicaKey | Resource, str] = {}
        groups = [*([broker] for broker in brokers), *(topics[n : n + AT_ONCE] for n in range(0, len(topics), AT_ONCE))]
        for group in groups:
            resources = [
                ConfigResource(
                    kind.upper(),
                    name,
                    {
                        setting: (SET if value is not None else DELETE, value)
                        for setting, value in changes[kind, name].items()
                    },
                )
                for kind, name in group
            ]
            try:
                answer = self._admin.alter_configs(resources, raise_on_unknown=False, incremental=True)
            except (kafka_python.KafkaError, OSError) as error:
                # A change without an answer may have been made: the configuration is read again, so it counts as refused here.
                refused.update(dict.fromkeys(group, words_of(error)))
                continue
            for kind, by_name in answer.items():
                refused.update({(kind, name): result for name, result in by_name.items() if result != "OK"})
        return CallAnswer(outcome=CallOutcome.ACCEPTED, refused=refused)

    def submit(self, targets: Mapping[Key, tuple[int, ...]]) -> CallAnswer:
        """Request replica lists; a lost answer is unknown, and resolved by the next observation."""
        return self._reassign({TopicPartition(*key): list(target) for key, target in targets.items()})

    def withdraw(self, keys: tuple[Key, ...]) -> CallAnswer:
        """Cancel reassignments; one that has ended is not an error."""
        return self._reassign(dict.fromkeys((TopicPartition(*key) for key in keys), None))

    def _reassign(self, asked: Mapping[TopicPartition, list[int] | None]) -> CallAnswer:
        refused: dict[Key | ReplicaKey | Resource, str] = {}
        places = list(asked)
        for begin in range(0, len(places), AT_ONCE):
            part = {place: asked[place] for place in places[begin : begin + AT_ONCE]}
            try:
                answer = self._admin.alter_partition_reassignments(part, timeout_ms=self._timeout_ms)
            except kafka_python.AuthorizationError as error:
                return CallAnswer(outcome=CallOutcome.REJECTED, refused=refused, reason=words_of(error))
            except (kafka_python.KafkaError, OSError, RuntimeError) as error:
                return CallAnswer(outcome=CallOutcome.UNKNOWN, refused=refused, reason=words_of(error))
            for place, kind in answer.items():
                if kind is not None and not issubclass(kind, kafka_python.NoReassignmentInProgressError):
                    refused[place.topic, place.partition] = words_of(kind())
        return CallAnswer(outcome=CallOutcome.ACCEPTED, refused=refused)

    def move_dirs(self, targets: Mapping[ReplicaKey, str]) -> CallAnswer:
        """Request log directories, from each broker its own; a lost answer is resolved by the next observation.

        A broker that has no such replica yet remembers the directory for the replica that comes.
        """
        refused: dict[Key | ReplicaKey | Resource, str] = {}
        by_broker: dict[int, dict[TopicPartitionReplica, str]] = defaultdict(dict)
        for key, path in targets.items():
            by_broker[key[2]][TopicPartitionReplica(*key)] = path
        for asked in by_broker.values():
            try:
                answer = self._admin.alter_replica_log_dirs(asked)
            except (kafka_python.KafkaError, OSError, RuntimeError):
                continue
            for replica, kind in answer.items():
                if not issubclass(kind, _NO_REFUSAL):
                    key = (replica.topic, replica.partition, replica.broker_id)
                    refused[key] = f"{words_of(kind())} ({targets[key]})"
        return CallAnswer(outcome=CallOutcome.ACCEPTED, refused=refused)

    def elect(self, keys: tuple[Key, ...]) -> CallAnswer:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in keys:
            by_topic[topic].append(partition)
        try:
            self._admin.elect_leaders(PREFERRED, dict(by_topic), timeout_ms=self._timeout_ms, raise_errors=False)
        except (kafka_python.KafkaError, OSError, RuntimeError) as error:
            return CallAnswer(outcome=CallOutcome.UNKNOWN, reason=words_of(error))
        return CallAnswer(outcome=CallOutcome.ACCEPTED)
