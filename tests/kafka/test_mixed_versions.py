"""A rolling upgrade to a version that knows another format, with processes of both versions on a real Kafka."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import PartitionTail
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.protocol.log import Topic
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

NEWER = [sys.executable, "-m", "tests.support.newer_broker"]
WAIT = ("--timeout", "90")
NEWER_FORMAT = 2


class MixedCluster(BrokerCluster):
    """Brokers of both versions."""

    def spawn_newer(self, name: str) -> None:
        command = [*NEWER, "broker", "run", "--id", name, *self.place]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.brokers[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[2])

    def ended(self, name: str) -> None:
        self.brokers[name].terminate()
        assert self.brokers[name].wait(WAIT_S) == 0, self.logs()

    def status_of(self, name: str) -> dict:
        return next((broker for broker in self("brokers")["brokers"] if broker["broker"] == name), {})

    def log_of(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def formats(self) -> set[int]:
        """Of all records."""
        return {value.get("format", 1) for _, value in self._read(Topic.CHANNEL, self.channel)}

    def newer_since_ms(self) -> int:
        """Log time of the first record of the newer format."""
        return min(
            when_ms for when_ms, value in self._read(Topic.CHANNEL, self.channel) if value.get("format") == NEWER_FORMAT
        )

    def left_at_ms(self, name: str) -> int:
        """Log time of a broker's goodbye."""
        registry = self._read(Topic.REGISTRY, ChannelTopics(self.channel).names[Topic.REGISTRY])
        return max(when_ms for when_ms, value in registry if value.get("broker") == name and value.get("leaving"))

    def _read(self, topic: Topic, name: str) -> list[tuple[int, dict]]:
        client = ClientSettings(self.bootstrap)
        with PartitionTail(client, topic, name, 0, group_id=f"{self.channel}-reader") as tail:
            return [
                (record.timestamp_ms, orjson.loads(record.value))
                for record in tail.records(tail.span())
                if record.value
            ]


def test_a_newer_format_waits_for_the_last_old_broker_and_stops_one_that_comes_later(
    kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    off = ("extensions.balancer.enabled=false", "hooks.shutdown_budget_s=30")
    with broker_cluster(MixedCluster(kafka, topic_prefix, tmp_path, off)) as mixed:
        mixed.start("old")
        mixed("namespace", "create", "t/n", "--bundles", "1", *WAIT)
        mixed("lookup", "t/n/x", *WAIT)
        for name in ("new1", "new2"):
            mixed.spawn_newer(name)
        mixed.wait(lambda: {broker["broker"] for broker in mixed.alive()} == {"old", "new1", "new2"})
        mixed("transfer", "t/n/x", "--dest", "new1", *WAIT)
        said = " ".join(mixed("status")["remarks"])
        assert "format 2" in said
        assert "old" in said
        assert mixed.formats() == {1}
        mixed.ended("old")

        mixed.wait(lambda: all("format.changed" in mixed.log_of(name) for name in ("new1", "new2")))
        mixed("transfer", "t/n/x", "--dest", "new2", *WAIT)
        # The command line is of the old version, too: it says where it stops, and by which format.
        stopped = mixed("status")["stopped"]
        assert [item["format"] for item in stopped.values()] == [NEWER_FORMAT]
        assert mixed.newer_since_ms() >= mixed.left_at_ms("old")

        mixed.spawn("late")
        mixed.wait(lambda: mixed.status_of("late").get("mode") == "safe")
        assert "is written in format 2, and this version reads up to format 1; upgrade to continue" in mixed.log_of(
            "late"
        )
        assert not mixed.status_of("late")["accepting"]
        assert mixed.status_of("late")["bundles"] in (0, None)
        assert "does not read format 2: upgrade it" in mixed.status_of("late")["remarks"]
        mixed.ended("late")

        mixed.spawn_newer("late")  # upgraded
        mixed.wait(lambda: mixed.status_of("late").get("accepting") is True)
        mixed("transfer", "t/n/x", "--dest", "late", *WAIT)
        assert mixed.formats() == {1, NEWER_FORMAT}
