"""Random Kafka clusters, each made from its seed: small and awkward ones to check plans on, a big one to measure with."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from loaddata.samples.partitions import (
    CPU_UNITS,
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    LogDir,
    PartitionLoad,
    PartitionLoads,
)
from shedders.kafka_rebalance.planning.request import BrokerCapacity, Capacities

MIB = 2**20
RACKS = ("none", "even", "uneven", "mixed")
PLACEMENTS = ("striped", "by-rack", "anywhere", "skewed")
PARTITIONS_MAX = 100
"""Of a random cluster: many small clusters find more than few large ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCluster:
    """One cluster, and who has which part in it.

    Attributes:
        empty: Alive brokers without a replica: the new ones.
        leaving: Alive brokers with replicas, to be removed or to go offline; the others can hold all replicas.
        dead: Brokers that only replica lists name.
        excluded: Patterns of topics that are to stay.
        racks: One of RACKS. placed: one of PLACEMENTS.
        holes: What is missing of the loads: nothing, some, fields, all.
    """

    seed: int
    layout: ClusterLayout
    loads: PartitionLoads
    empty: tuple[int, ...]
    leaving: tuple[int, ...]
    dead: tuple[int, ...]
    excluded: tuple[str, ...]
    racks: str
    placed: str
    holes: str
    capacities: Capacities = field(default_factory=Capacities)


def random_cluster(seed: int, *, brokers_min: int = 3, brokers_max: int = 40) -> RandomCluster:
    """A cluster of 3 to 40 alive brokers; the same for the same seed."""
    chance = random.Random(seed)
    # Small clusters are quicker, and no less awkward: nine of ten have at most 12 brokers, half of them at most six.
    few = min(brokers_max, 12)
    small = round(brokers_min * (few / brokers_min) ** chance.random())
    count = small if chance.random() < 0.92 else chance.randint(few, brokers_max)
    ids = sorted(chance.sample(range(1, 4 * count + 2), count))
    racks = chance.choice(RACKS)
    rack_of = _racks(chance, ids, racks)
    full = ids[:]
    chance.shuffle(full)
    empty = tuple(sorted(full[: min(chance.choice((0, 1, 1, 2, 3)), count // 3)]))
    full = sorted(set(full) - set(empty))
    dead = tuple(sorted(chance.sample(full, 1))) if len(full) > 3 and chance.random() < 0.2 else ()
    alive = [broker for broker in full if broker not in dead]
    factor_max = min(4, len(alive) - 1)
    leaving_max = min(len(alive) - factor_max, 1 + count // 8)
    leaving = tuple(sorted(chance.sample(alive, chance.randint(1, leaving_max))))
    placed = chance.choice(PLACEMENTS)
    topics = _topics(chance, full, rack_of, placed, factor_max, dead)
    # The expired moment of a dead broker: nobody can be led by it.
    holes = chance.choice(("nothing", "nothing", "nothing", "some", "fields", "all"))
    loads = _loads(chance, topics, holes)
    excluded = tuple(name for name in topics if len(topics) > 2 and chance.random() < 0.1)[: len(topics) // 2]
    known_bytes = sum(load.disk_bytes or 0 for load in loads.of.values())
    brokers = tuple(_broker(chance, broker, rack_of[broker], broker not in dead, known_bytes) for broker in ids)
    return RandomCluster(
        seed=seed,
        layout=ClusterLayout(cluster_id=f"random-{seed}", brokers=brokers, topics=topics),
        loads=loads,
        empty=empty,
        leaving=leaving,
        dead=dead,
        excluded=excluded,
        racks=racks,
        placed=placed,
        holes=holes,
        capacities=_capacities(chance, loads, topics, count),
    )


def shuffled(cluster: RandomCluster, seed: int) -> tuple[ClusterLayout, PartitionLoads]:
    """The same cluster told in another order of brokers, topics and loads."""
    chance = random.Random(seed)
    brokers = chance.sample(cluster.layout.brokers, len(cluster.layout.brokers))
    topics = chance.sample(list(cluster.layout.topics.items()), len(cluster.layout.topics))
    loads = chance.sample(list(cluster.loads.of.items()), len(cluster.loads.of))
    layout = replace(cluster.layout, brokers=tuple(brokers), topics=dict(topics))
    return layout, replace(cluster.loads, of=dict(loads))


def big_cluster(
    seed: int, *, replicas: int = 1_000_000, brokers: int = 200, racks: int = 10, topics: int = 4_000, empty: int = 0
) -> tuple[ClusterLayout, PartitionLoads]:
    """A cluster as large ones are after some years: topics of very different sizes, striped over racks when they were made.

    Every third topic is from a time when two thirds of the brokers were there, and one replica of 23 was put on a broker of
    a favoured tenth by somebody's hand.

    Args:
        replicas: At least so many, three a partition, two in every fifth topic.
        racks: 0: no broker has one. Else at least three.
        empty: The last so many brokers have no replica.
    """
    chance = random.Random(seed)
    ids = list(range(1, brokers + 1))
    rack_of = {broker: f"rack-{broker % racks}" if racks else None for broker in ids}
    full = ids[: brokers - empty]
    favoured = full[2::10]
    wanted = [1 / (1 + rank) ** 0.7 for rank in range(topics)]
    unit = replicas / 2.8 / sum(wanted)
    of_topic: dict[str, KafkaTopic] = {}
    sizes: dict[tuple[str, int], int] = {}
    units = 0.0
    left = replicas
    for rank in range(topics):
        name = f"topic-{rank:05d}"
        factor = 2 if rank % 5 == 4 else 3
        count = max(1, round(wanted[rank] * unit))
        if rank == topics - 1:
            count = max(count, -(-left // factor))
        left -= factor * count
        there = full[: max(factor, 2 * len(full) // 3)] if rank % 3 == 1 else full
        placed = _striped(chance, there, racks, count, factor)
        scale = 2.0 ** chance.gauss(7, 2.5) * MIB
        partitions = []
        for number, places in enumerate(placed):
            if number % 23 == 0 and (other := chance.choice(favoured)) not in places:
                if other % racks not in {place % racks for place in places[1:]} if racks else True:
                    places[0] = other
            ids_ = tuple(places)
            partitions.append(KafkaPartition(partition=number, replicas=ids_, leader=ids_[0], isr=ids_))
            size = int(scale * (0.5 + chance.random()))
            sizes[name, number] = size
            units += size * (2 + factor) / 3
        of_topic[name] = KafkaTopic(name=name, partitions=tuple(partitions), topic_id=f"id-{rank}", min_isr=factor - 1)
    machines = tuple(KafkaBroker(id=broker, host=f"b{broker}", port=9092, rack=rack_of[broker]) for broker in ids)
    # Data stay for about an hour; brokers have a third of their CPU in use.
    busy = len(full) * CPU_UNITS / 3 / units
    loads = {
        key: PartitionLoad(
            disk_bytes=size, bytes_in_per_s=size >> 12, bytes_out_per_s=size >> 11, cpu_units=int(size * busy)
        )
        for key, size in sizes.items()
    }
    return ClusterLayout(cluster_id=f"big-{seed}", brokers=machines, topics=of_topic), PartitionLoads(of=loads)


def _striped(chance: random.Random, there: Sequence[int], racks: int, count: int, factor: int) -> list[list[int]]:
    """Replicas of each partition as Kafka's placer puts them: round the racks, and round the brokers of each."""
    if not racks:
        start = chance.randrange(len(there))
        return [[there[(start + number + k) % len(there)] for k in range(factor)] for number in range(count)]
    members: dict[int, list[int]] = {}
    for broker in there:
        members.setdefault(broker % racks, []).append(broker)
    groups = chance.sample(list(members.values()), len(members))
    turns = [chance.randrange(len(group)) for group in groups]
    placed = []
    for number in range(count):
        places = []
        for k in range(factor):
            at = (number + k) % len(groups)
            places.append(groups[at][turns[at] % len(groups[at])])
            turns[at] += 1
        placed.append(places)
    return placed


# --- parts of the random ones -----------------------------------------------------------------------------------------


def _racks(chance: random.Random, ids: Sequence[int], kind: str) -> Mapping[int, str | None]:
    if kind == "none":
        return dict.fromkeys(ids)
    count = chance.randint(2, min(6, len(ids)))
    if kind == "uneven":
        weights = [2.0**-rank for rank in range(count)]
        return {broker: f"r{chance.choices(range(count), weights)[0]}" for broker in ids}
    even = {broker: f"r{index % count}" for index, broker in enumerate(ids)}
    if kind == "even":
        return even
    return {member: rack if chance.random() < 0.7 else None for member, rack in even.items()}


def _topics(
    chance: random.Random,
    full: Sequence[int],
    rack_of: Mapping[int, str | None],
    placed: str,
    factor_max: int,
    dead: Sequence[int],
) -> dict[str, KafkaTopic]:
    budget = min(PARTITIONS_MAX, max(8, round(len(full) * chance.uniform(1, 7))))
    count = chance.randint(1, 8)
    topics = {}
    for rank in range(count):
        name = f"{chance.choice(('orders', 'clicks', 'audit', '__state'))}-{rank}"
        size = max(1, round(budget / count * chance.choice((0.1, 0.5, 1, 1, 2))))
        factor = chance.randint(1, factor_max)
        start = chance.randrange(len(full))
        partitions = []
        for number in range(size):
            replicas = _replicas(chance, full, rack_of, placed, factor, start + number)
            partitions.append(_partition(chance, number, replicas, dead))
        topics[name] = KafkaTopic(
            name=name,
            partitions=tuple(partitions),
            topic_id=f"id-{rank}",
            min_isr=max(1, factor - 1),
            internal=name.startswith("__"),
        )
    return dict(sorted(topics.items()))


def _replicas(
    chance: random.Random, full: Sequence[int], rack_of: Mapping[int, str | None], placed: str, factor: int, turn: int
) -> tuple[int, ...]:
    if placed == "striped":
        return tuple(full[(turn + k) % len(full)] for k in range(factor))
    if placed == "anywhere":
        return tuple(chance.sample(full, factor))
    if placed == "skewed":
        ordered = sorted(full, key=lambda broker: chance.random() ** (1 + full.index(broker)), reverse=True)
        return tuple(ordered[:factor])
    chosen: list[int] = []
    for broker in chance.sample(full, len(full)):
        if rack_of[broker] is None or rack_of[broker] not in {rack_of[other] for other in chosen}:
            chosen.append(broker)
    chosen += [broker for broker in full if broker not in chosen]
    return tuple(chosen[:factor])


def _partition(chance: random.Random, number: int, replicas: tuple[int, ...], dead: Sequence[int]) -> KafkaPartition:
    there = [replica for replica in replicas if replica not in dead]
    if len(there) > 1 and chance.random() < 0.05:
        there.remove(chance.choice(there))
    leader = None if not there else there[0] if chance.random() < 0.8 else chance.choice(there)
    offline = tuple(replica for replica in replicas if replica in dead)
    return KafkaPartition(partition=number, replicas=replicas, leader=leader, isr=tuple(there), offline=offline)


def _loads(chance: random.Random, topics: Mapping[str, KafkaTopic], holes: str) -> PartitionLoads:
    if holes == "all":
        return PartitionLoads()
    loads: dict[tuple[str, int], PartitionLoad] = {}
    for rank, topic in enumerate(topics.values()):
        scale = 2_000 * MIB / (1 + rank) ** chance.uniform(0.5, 1.5)
        fan_out = chance.choice((0, 1, 1, 2, 5))
        for partition in topic.partitions:
            if holes == "some" and chance.random() < 0.15:
                continue
            size = int(scale * chance.paretovariate(2)) if chance.random() < 0.95 else 0
            rate = int(size / 10_000 * chance.uniform(0.2, 2))
            load = PartitionLoad(
                disk_bytes=size,
                bytes_in_per_s=rate,
                bytes_out_per_s=int(rate * fan_out * chance.uniform(0.5, 1.5)),
                cpu_units=rate // 40,
                completeness=1.0 if chance.random() < 0.8 else round(chance.random(), 2),
            )
            if holes == "fields":
                load = replace(load, bytes_in_per_s=None, bytes_out_per_s=None, cpu_units=None)
            loads[topic.name, partition.partition] = load
    return PartitionLoads(of=loads)


def _broker(chance: random.Random, broker: int, rack: str | None, alive: bool, known_bytes: int) -> KafkaBroker:
    dirs: tuple[LogDir, ...] = ()
    if alive and chance.random() < 0.5:
        total = known_bytes * chance.choice((2, 4)) + 1
        dirs = (LogDir(path="/data/1", total_bytes=total), LogDir(path="/data/2", total_bytes=total))
    return KafkaBroker(id=broker, host=f"b{broker}", port=9092, rack=rack, alive=alive, log_dirs=dirs)


def _capacities(
    chance: random.Random, loads: PartitionLoads, topics: Mapping[str, KafkaTopic], brokers: int
) -> Capacities:
    if chance.random() < 0.7:
        return Capacities()
    factor = {topic.name: len(topic.partitions[0].replicas) for topic in topics.values()}
    disk = sum((load.disk_bytes or 0) * factor[key[0]] for key, load in loads.of.items())
    room = chance.choice((1.3, 2, 4))
    return Capacities(default=BrokerCapacity(disk_bytes=int(disk / brokers * room) + 1))
