"""Building blocks of the demo's stories: Kafka, broker processes, a client, and commands with their output."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from statechannel.demo.client import Client
from statechannel.demo.cluster import COMMAND_S, FIRST_START_S, DemoCluster, command_name
from statechannel.demo.errors import DemoError
from statechannel.demo.narrator import Narrator
from statechannel.demo.promises import Promises
from statechannel.demo.served import place_of_topic

SERVED_S = 40.0
"""Longest wait until every topic is served again: a lost owner is detected after 6 s, a lost leader costs 6 s more."""
_POLL_S = 0.1


def topic_names(namespace: str, parts: int) -> list[str]:
    """One topic in each of a number of equal parts of the ring."""
    names: dict[int, str] = {}
    for number in itertools.count(1):
        topic = f"{namespace}/orders-{number}"
        names.setdefault(place_of_topic(topic)[1] * parts >> 32, topic)
        if len(names) == parts:
            return [names[part] for part in range(parts)]
    raise AssertionError  # count() has no end


@dataclass(slots=True)
class Chapters:
    """Base class of the stories; `run` runs one.

    Attributes:
        promises: Checked promises.
        EXAMPLES: Commands to try on a cluster that keeps running; `{topic}` is one of its topics.
    """

    EXAMPLES: ClassVar[Sequence[str]] = ()

    cluster: DemoCluster
    narrator: Narrator
    promises: Promises
    client: Client | None = None
    topics: list[str] = field(default_factory=list)
    name: str = field(default_factory=command_name)

    def run(self) -> None:
        """Run the whole story; raises `DemoError` if it cannot continue."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the client."""
        if self.client is not None:
            self.client.stop()

    # --- steps that all have ----------------------------------------------------------------------------------------

    def start_kafka(self) -> None:
        """Start Kafka and create the topics."""
        n = self.narrator
        n.step("A real Kafka")
        n.say(f"One Kafka broker on the loopback interface; all data is in {self.cluster.folder}.")
        kafka = self.command("kafka", "up", "--folder", str(self.cluster.kafka_folder), timeout_s=FIRST_START_S)
        self.cluster.address = kafka["bootstrap_servers"]
        n.good(f"it listens on {self.cluster.address}, pid {kafka['pid']}")
        n.say("Every later command finds it by this variable:")
        n.command(f"export STATECHANNEL_KAFKA__BOOTSTRAP_SERVERS={self.cluster.address}")
        kafka = self.command("init")
        n.good(
            f"{len(kafka['topics'])} topics: the channel (compacted), the registry, requests, and the leader election"
        )

    def start_brokers(self, brokers: Sequence[str]) -> None:
        """Start broker processes, and wait until each has caught up."""
        started = []
        for broker in brokers:
            self.narrator.command(f"{self.name} {' '.join(self.cluster.broker_command(broker))} &")
            started.append(self.cluster.start_broker(broker))
        for process in started:
            self.cluster.wait_ready(process)
            self.narrator.good(f"{process.id} has caught up with the channel, pid {process.pid}, {process.url}")

    # --- parts of steps ---------------------------------------------------------------------------------------------

    @property
    def writer(self) -> Client:
        """The client that writes to the topics.

        Raises:
            DemoError: It was not started.
        """
        if self.client is None:
            raise DemoError("the client was not started")
        return self.client

    def command(self, *args: str, timeout_s: float = COMMAND_S) -> dict[str, Any]:
        """Show a command and run it; returns its JSON."""
        self.narrator.command(f"{self.name} {' '.join(args)}")
        return self.cluster.ask(*args, timeout_s=timeout_s)

    def show(self, command: str, *columns: str) -> None:
        """Show a listing command as a table."""
        rows = self.command(command)[command]
        self.narrator.table(columns, [[_cell(row, column) for column in columns] for row in rows])

    def print(self, *args: str) -> None:
        """Show a command with its text output."""
        self.narrator.command(f"{self.name} {' '.join(args)}")
        ran = self.cluster.run(*args)
        if ran.code != 0:
            raise DemoError(f"`statechannel {' '.join(args)}` failed (exit code {ran.code}): {ran.error}")
        self.narrator.output(ran.stdout)

    def bundles(self) -> list[dict[str, Any]]:
        """All bundles by the log."""
        bundles: list[dict[str, Any]] = self.cluster.ask("bundles")["bundles"]
        return bundles

    def until_served(self, *, lost: str | None = None) -> float:
        """Wait until every topic's last write was accepted; returns the seconds."""
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < SERVED_S:
            unserved = self.writer.unserved()
            if not unserved and (lost is None or not any(bundle["owner"] == lost for bundle in self.bundles())):
                return time.monotonic() - begun_s
            time.sleep(_POLL_S)
        raise DemoError(
            f"after {SERVED_S:.0f} s no broker accepts writes to {', '.join(self.writer.unserved()) or f'bundles of {lost}'}",
            log=self.cluster.living()[0].log if self.cluster.living() else None,
        )


def _cell(row: dict[str, Any], column: str) -> str:
    value = row["leading"] if column == "leader" else row["urls"] if column == "URLs" else row[column]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(value.values()) if isinstance(value, dict) else str(value)
