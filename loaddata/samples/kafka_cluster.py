"""A reader of a Kafka cluster's layout: a handful of calls, none per topic, so that a large cluster is read in seconds.

One call for the brokers, one for all topics, one for what is being reassigned, one for each thousand topics' least in-sync
replicas, and one for each broker's log directories. What a broker does not answer becomes a remark, never a guess.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka import errors as kafka_python
from kafka.admin import ConfigResource

from loaddata.samples.admin import ask, kafka_errors
from loaddata.samples.layout import ClusterLayout, KafkaBroker, KafkaPartition, KafkaTopic, LogDir
from loaddata.samples.loads import PartitionLoad, PartitionLoads

TOPICS_AT_ONCE: Final = 1_000
"""Topics of one question for settings: about 100 KB of an answer."""
BROKER_S: Final = 5.0
"""Longest wait for one broker's log directories: one that has just died is still listed."""
MIN_ISR: Final = "min.insync.replicas"
SIZES_SOURCE: Final = "log directories"


def read_layout(admin: KafkaAdminClient, *, now_ms: int, timeout_s: float = 30.0) -> ClusterLayout:
    """The cluster as it is.

    Args:
        admin: See `open_admin`.
        now_ms: Wall clock.
        timeout_s: Bound of the tries of each call together.

    Raises:
        KafkaAdapterError: Kafka is away, denies, or is too old. A single broker that does not answer is a remark.
    """
    remarks: list[str] = []
    with kafka_errors("reading the brokers"):
        cluster = ask(admin, admin.describe_cluster, timeout_s=timeout_s)
    # First: one that ends before the topics are read then looks as if it were under way still, and not like a replica too many.
    moving = _moving(admin, timeout_s, remarks)
    with kafka_errors("reading the topics"):
        described = ask(admin, admin.describe_topics, timeout_s=timeout_s)
    complete = [_topic_of(topic, moving, remarks) for topic in described]
    topics = {topic.name: topic for topic in complete if topic is not None}
    least = _min_isr(admin, sorted(topics), timeout_s, remarks)
    return ClusterLayout(
        cluster_id=str(cluster.get("cluster_id") or ""),
        brokers=_brokers(admin, cluster["brokers"], topics, timeout_s, remarks),
        topics={name: _with_min_isr(topics[name], least.get(name)) for name in sorted(topics)},
        read_at_ms=now_ms,
        remarks=tuple(remarks),
    )


def read_sizes(admin: KafkaAdminClient, layout: ClusterLayout, *, timeout_s: float = 30.0) -> PartitionLoads:
    """Disk of each partition from the log directories: the leader's replica, or the largest where the leader's is missing.

    Raises:
        KafkaAdapterError: No broker answered; one that does not is a hole.
    """
    sizes = read_replica_sizes(admin, layout, timeout_s=timeout_s)
    of: dict[tuple[str, int], PartitionLoad] = {}
    for topic, partition in layout.partitions():
        replica_sizes = sizes.get((topic.name, partition.partition), {})
        if replica_sizes:
            size = replica_sizes.get(partition.leader) if partition.leader is not None else None
            of[topic.name, partition.partition] = PartitionLoad(
                disk_bytes=max(replica_sizes.values()) if size is None else size
            )
    return PartitionLoads(of=of, to_ms=layout.read_at_ms, source=SIZES_SOURCE)


def read_replica_sizes(
    admin: KafkaAdminClient, layout: ClusterLayout, *, timeout_s: float = 30.0, silent: list[str] | None = None
) -> dict[tuple[str, int], dict[int, int]]:
    """Bytes of each replica as its broker reports it: by topic and partition, by broker. One call for each broker.

    Args:
        silent: Takes a sentence for each broker that did not answer.

    Raises:
        KafkaAdapterError: No broker at all answered.
    """
    held: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for topic, partition in layout.partitions():
        for number in partition.replicas:
            held[number][topic.name].append(partition.partition)
    sizes: dict[tuple[str, int], dict[int, int]] = {}
    failed: Exception | None = None
    answered = False
    for broker in layout.brokers:
        if not broker.alive or broker.id not in held:
            continue
        try:
            directories = _log_dirs(admin, broker.id, held[broker.id], timeout_s)
        except (kafka_python.KafkaError, OSError) as error:
            failed = error
            if silent is not None:
                silent.append(f"broker {broker.id} did not list its log directories: {_words(error)}")
            continue
        answered = True
        for topic_name, number, size in _sizes_in(directories):
            sizes.setdefault((topic_name, number), {})[broker.id] = size
    if failed is not None and not answered:
        with kafka_errors("reading the log directories"):
            raise failed
    return sizes


def _sizes_in(directories: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, int]]:
    for directory in directories:
        if directory["error_code"] != 0:
            continue
        for topic in directory["topics"]:
            for partition in topic["partitions"]:
                # A future replica is on its way between two directories of the broker: its other copy counts.
                if not partition["is_future_key"] and partition["partition_size"] >= 0:
                    yield topic["name"], partition["partition_index"], partition["partition_size"]


def _log_dirs(
    admin: KafkaAdminClient, broker: int, partitions: Mapping[str, Sequence[int]], timeout_s: float
) -> list[dict[str, Any]]:
    call = partial(admin.describe_log_dirs, topic_partitions=dict(partitions), brokers=[broker])
    (answer,) = ask(admin, call, timeout_s=min(timeout_s, BROKER_S))
    directories: list[dict[str, Any]] = answer["log_dirs"]
    return directories


def _brokers(
    admin: KafkaAdminClient,
    described: Sequence[Mapping[str, Any]],
    topics: Mapping[str, KafkaTopic],
    timeout_s: float,
    remarks: list[str],
) -> tuple[KafkaBroker, ...]:
    brokers: dict[int, KafkaBroker] = {}
    for broker in described:
        number, alive = int(broker["broker_id"]), not broker.get("is_fenced", False)
        brokers[number] = KafkaBroker(
            id=number,
            host=broker["host"],
            port=int(broker["port"]),
            rack=broker.get("rack") or None,
            alive=alive,
            log_dirs=_directories(admin, number, timeout_s, remarks) if alive else (),
        )
    for topic in topics.values():
        for partition in topic.partitions:
            for number in partition.replicas:
                if number not in brokers:
                    brokers[number] = KafkaBroker(id=number, alive=False)
    return tuple(brokers[number] for number in sorted(brokers))


def _directories(admin: KafkaAdminClient, broker: int, timeout_s: float, remarks: list[str]) -> tuple[LogDir, ...]:
    try:
        directories = _log_dirs(admin, broker, {}, timeout_s)
    except (kafka_python.KafkaError, OSError) as error:
        remarks.append(f"broker {broker} did not list its log directories: {_words(error)}")
        return ()
    if not directories:  # the library does not look at the answer's error
        remarks.append(f"broker {broker} listed no log directory: this client may not Describe the cluster")
    return tuple(
        LogDir(
            path=directory["log_dir"],
            total_bytes=_size(directory.get("total_bytes")),
            usable_bytes=_size(directory.get("usable_bytes")),
            offline=directory["error_code"] != 0,
        )
        for directory in sorted(directories, key=lambda directory: str(directory["log_dir"]))
    )


def _size(size: int | None) -> int | None:
    return size if size is not None and size >= 0 else None


def _moving(
    admin: KafkaAdminClient, timeout_s: float, remarks: list[str]
) -> Mapping[tuple[str, int], Mapping[str, Any]]:
    with kafka_errors("reading the reassignments under way"):
        try:
            reassignments = ask(admin, admin.list_partition_reassignments, timeout_s=timeout_s)
        except kafka_python.IncompatibleBrokerVersion:
            remarks.append("this Kafka is older than 2.4 and does not list reassignments under way")
            return {}
    return {(place.topic, place.partition): reassignment for place, reassignment in reassignments.items()}


def _topic_of(
    described: Mapping[str, Any], moving: Mapping[tuple[str, int], Mapping[str, Any]], remarks: list[str]
) -> KafkaTopic | None:
    """None with a remark for one that is being made or deleted at this moment."""
    name, parts = described["name"], sorted(described["partitions"], key=lambda part: int(part["partition_index"]))
    problem = described["error_code"]
    if problem or [part["partition_index"] for part in parts] != list(range(len(parts))) or not parts:
        why = _words(kafka_python.for_code(problem)()) if problem else "it is being made or deleted"
        remarks.append(f"topic {name} is left out: {why}")
        return None
    return KafkaTopic(
        name=name,
        partitions=tuple(_partition_of(part, moving.get((name, part["partition_index"]), {})) for part in parts),
        topic_id=_id_of(described.get("topic_id")),
        internal=bool(described.get("is_internal", False)),
    )


def _partition_of(described: Mapping[str, Any], moving: Mapping[str, Any]) -> KafkaPartition:
    leader = described["leader_id"]
    return KafkaPartition(
        partition=described["partition_index"],
        replicas=tuple(described["replica_nodes"]),
        leader=leader if leader is not None and leader >= 0 else None,
        isr=tuple(described["isr_nodes"]),
        offline=tuple(described.get("offline_replicas") or ()),
        adding=tuple(moving.get("adding_replicas", ())),
        removing=tuple(moving.get("removing_replicas", ())),
    )


def _id_of(topic_id: Any) -> str:
    """Kafka 2.8 and older knows no ids: all zeros."""
    text = "" if topic_id is None else str(topic_id)
    return "" if not text.strip("0-") else text


def _min_isr(admin: KafkaAdminClient, names: Sequence[str], timeout_s: float, remarks: list[str]) -> Mapping[str, int]:
    least: dict[str, int] = {}
    for begin in range(0, len(names), TOPICS_AT_ONCE):
        resources = [ConfigResource("TOPIC", name, [MIN_ISR]) for name in names[begin : begin + TOPICS_AT_ONCE]]
        call = partial(admin.describe_configs, resources, config_filter="all")
        with kafka_errors(f"reading {MIN_ISR} of {len(resources)} topics"):
            answer = ask(admin, call, timeout_s=timeout_s)
        for name, entries in answer.get("topic", {}).items():
            value = entries.get(MIN_ISR, {}).get("value")
            if value is not None:
                least[name] = int(value)
    unknown = Counter(name not in least for name in names)[True]
    if unknown:
        remarks.append(f"{MIN_ISR} of {unknown} topics is not known (no DescribeConfigs on them?): 1 is assumed")
    return least


def _with_min_isr(topic: KafkaTopic, min_isr: int | None) -> KafkaTopic:
    if min_isr is None:
        return topic
    return KafkaTopic(
        name=topic.name, partitions=topic.partitions, topic_id=topic.topic_id, min_isr=min_isr, internal=topic.internal
    )


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
