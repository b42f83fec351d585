"""Three Kafka processes that are one cluster, with racks, for tests of what only several brokers have."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from statechannel.embedded import BrokerOptions, KafkaServer
from statechannel.embedded.layout import LOOPBACK
from statechannel.embedded.process import find_free
from statechannel.embedded.server import new_cluster_id

START_S = 180.0


@contextmanager
def three_nodes(folder: Path, racks: Mapping[int, str] | None = None) -> Iterator[dict[int, KafkaServer]]:
    """Brokers 1 to 3, running; killed at the end of the block."""
    count = 3
    taken: set[int] = set()
    while len(taken) < 2 * count:
        taken.add(find_free())
    ports = sorted(taken)
    voters = ",".join(f"{n}@{LOOPBACK}:{ports[count + n - 1]}" for n in range(1, count + 1))
    cluster_id = new_cluster_id()
    nodes: dict[int, KafkaServer] = {}
    for n in range(1, count + 1):
        properties = {
            "node.id": str(n),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{LOOPBACK}:{ports[n - 1]},CONTROLLER://{LOOPBACK}:{ports[count + n - 1]}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{ports[n - 1]}",
        }
        if racks and n in racks:
            properties["broker.rack"] = racks[n]
        options = BrokerOptions(cluster_id=cluster_id, properties=properties, start_timeout_s=START_S)
        nodes[n] = KafkaServer(folder / f"kafka-{n}", port=ports[n - 1], options=options)
    try:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(KafkaServer.start, nodes.values()))
        yield nodes
    finally:
        for node in nodes.values():
            node.kill()
