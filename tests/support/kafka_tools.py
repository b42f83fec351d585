"""Kafka's own tool for reassignments: the command as it is, and the function behind its `--generate` on layouts of our own.

The jar is pinned in kafka_tools.sha256 as the broker's are; what it needs besides is among the broker's. `python -m
tests.support.kafka_tools` fills the cache.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway

from loaddata.samples.partitions import ClusterLayout
from statechannel.embedded.jars import KAFKA_VERSION, PinnedJars, prepare_jars
from statechannel.embedded.java import find_java
from tests.support.java_gateway import java_gateway

COMMAND = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOOLS_JAR = PinnedJars(
    title=f"the tools of Apache Kafka {KAFKA_VERSION}",
    package="tests.support",
    resource="kafka_tools.sha256",
    folder_name=f"kafka-tools-{KAFKA_VERSION}",
    variable="KAFKA_TOOLS_JARS",
    size_mib=1,
)
Assignment = dict[tuple[str, int], tuple[int, ...]]


def class_path() -> tuple[Path, ...]:
    """The tool's jar and the broker's; fetched once."""
    return (*TOOLS_JAR.prepare(), *prepare_jars())


def reassign(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run `kafka-reassign-partitions`; what it says is on its standard output, also its errors."""
    command = [str(find_java().executable), "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += ["-cp", os.pathsep.join(map(str, class_path())), COMMAND, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def as_json(assignment: Mapping[tuple[str, int], Sequence[int]]) -> str:
    """Kafka's reassignment JSON, without anything of the planner."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(replicas)}
        for (topic, number), replicas in sorted(assignment.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions})


def from_json(text: str) -> Assignment:
    """The replicas of each partition in such a JSON."""
    return {(move["topic"], move["partition"]): tuple(move["replicas"]) for move in json.loads(text)["partitions"]}


class Generator:
    """What `--generate` computes, by the tool's own code in a Java process of its own.

    The command reads topics and brokers from a cluster; here they are given. All that comes after is the tool's: it reads
    JSON, places each topic anew on the brokers (`calculateAssignment`, which asks the controller's placer for new
    topics), and writes JSON. Its random numbers are seeded, so that the figures can be repeated.
    """

    def __init__(self, gateway: JavaGateway) -> None:
        self._jvm = gateway.jvm
        forName = self._jvm.java.lang.Class.forName  # noqa: N806 - Java's name
        self._command = getattr(self._jvm, "org.apache.kafka.tools.reassign").ReassignPartitionsCommand
        self._class = forName(COMMAND)
        self._parse = self._method("parseExecuteAssignmentArgs")
        self._calculate = self._method("calculateAssignment")
        placer = self._field(self._class, "REPLICA_PLACER").get(None)
        self._random = self._field(placer.getClass(), "random").get(placer)
        self._objects = gateway.new_array(self._jvm.java.lang.Object, 1)
        self._two = gateway.new_array(self._jvm.java.lang.Object, 2)

    def read(self, text: str) -> int:
        """How many partitions the tool finds in a reassignment JSON; its own error where it does not take it."""
        return int(self._parsed(text).size())

    def generate(
        self,
        assignment: Mapping[tuple[str, int], Sequence[int]],
        layout: ClusterLayout,
        brokers: Sequence[int],
        *,
        seed: int,
    ) -> Assignment:
        """A new place for each of these partitions on these brokers.

        Args:
            assignment: Partitions as they are; the tool takes whole topics, and the replication factor of partition 0.
            layout: For the brokers' racks; where some have none, racks are left out, as with `--disable-rack-aware`.
        """
        # Java's generator begins alike for seeds that are close.
        self._random.setSeed(seed * 2_654_435_761)
        racks = {broker.id: broker.rack for broker in layout.brokers if broker.id in brokers}
        aware = all(racks.values())
        usable = self._jvm.java.util.ArrayList()
        placement = getattr(self._jvm, "org.apache.kafka.metadata.placement")
        for broker in brokers:
            rack = self._jvm.java.util.Optional.ofNullable(racks[broker] if aware else None)
            usable.add(placement.UsableBroker(broker, rack, False))
        self._two[0], self._two[1] = self._parsed(as_json(assignment)), usable
        placed = self._calculate.invoke(None, self._two)
        return from_json(self._command.formatAsReassignmentJson(placed, self._jvm.java.util.HashMap()))

    def _parsed(self, text: str) -> Any:
        self._objects[0] = text
        return self._parse.invoke(None, self._objects).getKey()

    def _method(self, name: str) -> Any:
        method = next(declared for declared in self._class.getDeclaredMethods() if declared.getName() == name)
        method.setAccessible(True)
        return method

    @staticmethod
    def _field(of: Any, name: str) -> Any:
        field = of.getDeclaredField(name)
        field.setAccessible(True)
        return field


@contextmanager
def generator() -> Iterator[Generator]:
    """A Java process with the tool in it, ended with the block."""
    with java_gateway(class_path(), ()) as gateway:
        yield Generator(gateway)


if __name__ == "__main__":
    TOOLS_JAR.prepare(say=lambda line: print(f"setup: {line}", flush=True))
    sys.exit(0)
