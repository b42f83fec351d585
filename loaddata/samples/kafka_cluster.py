"""A reader of a Kafka cluster's layout and of the loads of its partitions, as a plan needs them.

The layout takes a handful of calls, none per topic, so that a large cluster is read in seconds: one for the brokers, one for all
topics, one for what is being reassigned, one for each thousand topics' least in-sync replicas, and one for each broker's log
directories. What a broker does not answer becomes a remark, never a guess. Loads are averages of the sample topic, else sizes
of the log directories; their source is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka import errors as kafka_python
from kafka.admin import ConfigResource

from loaddata.samples.admin import ask, kafka_errors, words_of
from loaddata.samples.averages import Averager, Place, Window
from loaddata.samples.cluster_files import LoadsFileError, read_loads_file
from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    LogDir,
    PartitionLoad,
    PartitionLoads,
)
from loaddata.samples.sample_topic import ReadCounts, SampleTopic

TOPICS_AT_ONCE: Final = 1_000
"""Topics of one question for settings: about 100 KB of an answer."""
BROKER_S: Final = 5.0
"""Longest wait for one broker's log directories: one that has just died is still listed."""
CORDONS_SINCE: Final = (4, 3)
MIN_ISR: Final = "min.insync.replicas"


def read_layout(admin: KafkaAdminClient, *, now_ms: int, timeout_s: float = 30.0) -> ClusterLayout:
    """The cluster as it is.

    Args:
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
    complete = [topic_of(topic, moving, remarks) for topic in described]
    topics = {topic.name: topic for topic in complete if topic is not None}
    least = _min_isr(admin, sorted(topics), timeout_s, remarks)
    brokers = _brokers(admin, cluster["brokers"], topics, timeout_s, remarks)
    if any(len(broker.log_dirs) > 1 and broker.log_dirs[0].cordoned is None for broker in brokers):
        remarks.append("this Kafka is older than 4.3 and has no cordoned log directories: none is treated as cordoned")
    return ClusterLayout(
        cluster_id=str(cluster.get("cluster_id") or ""),
        brokers=brokers,
        topics={name: replace(topics[name], min_isr=least.get(name, 1)) for name in sorted(topics)},
        read_at_ms=now_ms,
        remarks=tuple(remarks),
    )


def read_sizes(admin: KafkaAdminClient, layout: ClusterLayout, *, timeout_s: float = 30.0) -> PartitionLoads:
    """Disk of each partition from the log directories: the leader's replica, or the largest where the leader's is missing."""
    sizes = read_replica_sizes(admin, layout, timeout_s=timeout_s)
    of: dict[tuple[str, int], PartitionLoad] = {}
    for topic, partition in layout.partitions():
        replica_sizes = sizes.get((topic.name, partition.partition), {})
        if replica_sizes:
            size = replica_sizes.get(partition.leader) if partition.leader is not None else None
            of[topic.name, partition.partition] = PartitionLoad(
                disk_bytes=max(replica_sizes.values()) if size is None else size
            )
    return PartitionLoads(of=of, to_ms=layout.read_at_ms, source="log directories")


def read_replica_sizes(
    admin: KafkaAdminClient, layout: ClusterLayout, *, timeout_s: float = 30.0, silent: list[str] | None = None
) -> dict[tuple[str, int], dict[int, int]]:
    """Bytes of each replica as its broker reports it: by topic and partition, by broker. One call for each broker.

    Args:
        silent: Takes a sentence for each broker that did not answer.
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
                silent.append(f"broker {broker.id} did not list its log directories: {words_of(error)}")
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
        for topic, number, size, is_future in replicas_in(directory):
            # A future replica is on its way between two directories of the broker: its other copy counts.
            if directory["error_code"] == 0 and not is_future and size >= 0:
                yield topic, number, size


def replicas_in(directory: Mapping[str, Any]) -> Iterator[tuple[str, int, int, bool]]:
    """Topic, partition and size of each replica in a log directory, and whether it is still being copied there."""
    for topic in directory["topics"]:
        for part in topic["partitions"]:
            yield topic["name"], part["partition_index"], part["partition_size"], part["is_future_key"]


def _log_dirs(
    admin: KafkaAdminClient, broker: int, partitions: Mapping[str, Sequence[int]] | None, timeout_s: float
) -> list[dict[str, Any]]:
    """Log directories of a broker, with these partitions; None: with all of them."""
    asked = None if partitions is None else dict(partitions)
    call = partial(admin.describe_log_dirs, topic_partitions=asked, brokers=[broker])
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
        if len(directories) > 1:  # where its replicas are matters only then
            directories = _log_dirs(admin, broker, None, timeout_s)
    except (kafka_python.KafkaError, OSError) as error:
        remarks.append(f"broker {broker} did not list its log directories: {words_of(error)}")
        return ()
    if not directories:  # the library does not look at the answer's error
        remarks.append(f"broker {broker} listed no log directory: this client may not Describe the cluster")
    reported = _reports_cordons(admin)
    return tuple(
        LogDir(
            path=directory["log_dir"],
            total_bytes=_size(directory.get("total_bytes")),
            usable_bytes=_size(directory.get("usable_bytes")),
            offline=directory["error_code"] != 0,
            cordoned=bool(directory["is_cordoned"]) if reported and "is_cordoned" in directory else None,
            replicas=tuple(sorted(_sizes_in([directory]))),
        )
        for directory in sorted(directories, key=lambda directory: str(directory["log_dir"]))
    )


def _reports_cordons(admin: KafkaAdminClient) -> bool:
    version = getattr(admin, "_manager", None) and admin._manager.broker_version  # noqa: SLF001 - there is no public way
    return version is not None and tuple(version[:2]) >= CORDONS_SINCE


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


def topic_of(
    described: Mapping[str, Any], moving: Mapping[tuple[str, int], Mapping[str, Any]], remarks: list[str]
) -> KafkaTopic | None:
    """A topic as kafka-python describes it; None with a remark for one that is being made or deleted at this moment.

    Args:
        moving: Its reassignments under way.
    """
    name, parts = described["name"], sorted(described["partitions"], key=lambda part: int(part["partition_index"]))
    problem = described["error_code"]
    if problem or [part["partition_index"] for part in parts] != list(range(len(parts))) or not parts:
        why = words_of(kafka_python.for_code(problem)()) if problem else "it is being made or deleted"
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
    unknown = sum(name not in least for name in names)
    if unknown:
        remarks.append(f"{MIN_ISR} of {unknown} topics is not known (no DescribeConfigs on them?): 1 is assumed")
    return least


@dataclass(frozen=True, slots=True)
class ReadLoads:
    """Averages of a sample topic, and what they are made from.

    Attributes:
        loads: Of all partitions that have samples; `source` says in a sentence where they are from.
        minutes: Minutes of the window that have a sample of any partition.
        counts: What was read, including records that are not samples.
        incomplete: Partitions that were left out since too little of the window was measured.
    """

    loads: PartitionLoads
    minutes: int
    window: Window
    counts: ReadCounts
    incomplete: int


def read_loads(
    topic: SampleTopic,
    *,
    now_ms: int,
    window_s: float,
    interval_s: float,
    completeness_min: float = 0.0,
    cluster: str = "",
) -> ReadLoads | None:
    """Averages of the last `window_s`; None: there is no such topic.

    Args:
        interval_s: Time between two samples of a partition.
        completeness_min: Partitions with a smaller part of the window measured are left out.
        cluster: Samples of other clusters do not count; empty: all do.
    """
    if topic.partitions() is None:
        return None
    window = Window.until(now_ms, window_s=window_s, interval_s=interval_s)
    averager = Averager(window)
    counts = ReadCounts()
    for sample in topic.read(window.from_ms, counts=counts, cluster=cluster, on_part=averager.close_part):
        averager.add(sample)
    every = len(averager.loads().of)
    source = f"samples of {averager.minutes} of {window.slots} intervals of {interval_s:g} s (topic {topic.name})"
    loads = averager.loads(completeness_min=completeness_min, source=source)
    return ReadLoads(loads, averager.minutes, window, counts, every - len(loads.of))


def loads_now(
    admin: KafkaAdminClient,
    layout: ClusterLayout,
    topic: SampleTopic,
    *,
    now_ms: int,
    window_s: float,
    interval_s: float,
    completeness_min: float = 0.0,
    timeout_s: float = 30.0,
    file: Path | None = None,
) -> PartitionLoads:
    """What is known of the load of each partition: `PartitionLoads.source` says from where.

    Averages that the Spark job has made, if `file` names them (a file, or the job's table); else those of the sample topic, if
    the window has samples; a partition without a size in any sample, or with one that is far off, has that of its log directory.
    Without any sample sizes are all that is known. Partitions that the cluster has no more are left out.
    """
    places = [(each.name, part.partition) for each, part in layout.partitions()]
    if file is not None:
        averages = read_loads_file(file, cluster=layout.cluster_id, completeness_min=completeness_min)
        if averages.to_ms < now_ms - window_s * 1_000:
            raise LoadsFileError(
                f"the loads of {file} ended {(now_ms - averages.to_ms) / 3_600_000:.1f} h ago",
                hint="Check that samples are taken and that the job partition-loads runs, or ask for a longer window.",
            )
        return _completed(admin, layout, averages, places, averages.source, timeout_s)
    read = read_loads(
        topic,
        now_ms=now_ms,
        window_s=window_s,
        interval_s=interval_s,
        completeness_min=completeness_min,
        cluster=layout.cluster_id,
    )
    if read is None or not read.loads.of:
        sizes = read_sizes(admin, layout, timeout_s=timeout_s)
        why = f"no samples of the last {window_s / 3_600:g} h in topic {topic.name}"
        if read is not None and read.incomplete:
            why = f"the samples of {read.incomplete} partitions cover too little of the last {window_s / 3_600:g} h"
        return replace(sizes, source=f"sizes of the log directories; {why}")
    source = read.loads.source
    if read.incomplete:
        source += f"; {read.incomplete} partitions are too incomplete to count"
    return _completed(admin, layout, read.loads, places, source, timeout_s)


FAR: Final = 2
"""A size this many times another is of something else, or of another time."""
FAR_LEAST_BYTES: Final = 2**20


def _completed(
    admin: KafkaAdminClient,
    layout: ClusterLayout,
    loads: PartitionLoads,
    places: list[Place],
    source: str,
    timeout_s: float,
) -> PartitionLoads:
    """Loads of the partitions that there are; sizes of the log directories where no other is known, or another is far off.

    Budgets rest on sizes, so that one which was measured wrongly, or long ago, must not count.
    """
    of = {place: loads.of[place] for place in places if place in loads.of}
    remarks: list[str] = []
    sizes = {place: load.disk_bytes or 0 for place, load in read_sizes(admin, layout, timeout_s=timeout_s).of.items()}
    filled, far = 0, list[tuple[Place, int]]()
    for place, size_bytes in sizes.items():
        load = of.get(place, PartitionLoad())
        sampled = load.disk_bytes
        if sampled is None:
            filled += 1
        elif max(sampled, size_bytes) > FAR * min(sampled, size_bytes) + FAR_LEAST_BYTES:
            far.append((place, sampled))
        else:
            continue
        of[place] = replace(load, disk_bytes=size_bytes)
    if filled:
        source += f"; sizes of {filled} partitions from the log directories"
    if far:
        (topic, number), sampled = max(far, key=lambda each: abs(each[1] - sizes[each[0]]))
        remarks.append(
            f"sizes of {len(far)} partitions are those of the log directories, as samples are far off: {topic}-{number} has "
            f"{sizes[topic, number]:,} bytes there, and {sampled:,} in samples"
        )
    return replace(
        loads, of={place: of[place] for place in places if place in of}, source=source, remarks=tuple(remarks)
    )
