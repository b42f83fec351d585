"""A rolling upgrade to a version that knows another format, with processes of both versions on a real Kafka."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import PartitionTail
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.protocol.log import Topic
from tests.kafka.test_drain import FLAGS
from tests.support.broker_cluster import BrokerCluster, broker_cluster
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S

ROOT = Path(__file__).parents[2]
NEWER = [sys.executable, "-m", "tests.support.newer_broker"]
WAIT = ("--timeout", str(WAIT_S))
NEWER_FORMAT = 2


class MixedCluster(BrokerCluster):
    """Brokers of both versions."""

    def spawn_newer(self, name: str, newest: int = NEWER_FORMAT) -> None:
        command = [*NEWER, "broker", "run", "--id", name, *self.place]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.brokers[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=ROOT, env=os.environ | {"NEWEST_FORMAT": str(newest)}
            )

    def newer(self, *args: str) -> Any:
        """A command of the newer version, which reads the whole log."""
        command = [*NEWER, *args, *self.place, "--output", "json"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert result.returncode == 0, (result.stdout, result.stderr, self.logs())
        return json.loads(result.stdout)

    def _asked(self) -> Path | None:
        """The file by which the restart asks for a broker."""
        return min(self.folder.glob("*.again"), default=None)

    def roll(self, newest: int, *names: str) -> dict[str, Any]:
        """A rolling restart of these brokers into a version."""
        named = [part for name in names for part in ("--broker", name)]
        script = self.folder / "restart"
        script.write_text(f"#!/bin/sh\ntouch {self.folder}/$1.again\n")
        script.chmod(0o755)
        command = [*NEWER, "rolling-restart", "--command", f"{script} {{broker}}", "--yes", *named]
        rolling = subprocess.Popen(
            [*command, *self.place, "--output", "json"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.commands.append(rolling)
        for _ in names:
            self.wait(lambda: self._asked() is not None or rolling.poll() is not None)
            path = self._asked()
            if path is not None:
                path.unlink()
                self.ended(path.stem)
                self.spawn_newer(path.stem, newest)
        return dict(self.end(rolling)[0])

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
        assert "this version reads up to format 1" in mixed.log_of("late")
        assert not mixed.status_of("late")["accepting"]
        assert mixed.status_of("late")["bundles"] in (0, None)
        assert "does not read format 2: upgrade it" in mixed.status_of("late")["remarks"]
        mixed.ended("late")

        mixed.spawn_newer("late")  # upgraded
        mixed.wait(lambda: mixed.status_of("late").get("accepting") is True)
        mixed("transfer", "t/n/x", "--dest", "late", *WAIT)
        assert mixed.formats() == {1, NEWER_FORMAT}


def test_a_rolling_restart_into_the_next_version_and_back_with_two_formats_in_the_log(
    kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    """Format 2 is the present one here, and the next version knows a third, which waits for `b3`."""
    with broker_cluster(MixedCluster(kafka, topic_prefix, tmp_path, FLAGS)) as mixed:
        mixed.start("old")
        bundles = mixed.create("t/n", 4, "old")
        for name in ("b1", "b2", "b3"):
            mixed.spawn_newer(name)
        mixed.wait(lambda: len(mixed.alive()) == 4)
        mixed.ended("old")  # it hands its bundles over
        mixed.wait(lambda: all("format.changed" in mixed.log_of(name) for name in ("b1", "b2", "b3")))

        for newest in (NEWER_FORMAT + 1, NEWER_FORMAT):
            owners = {row["bundle"]: row["owner"] for row in mixed.newer("bundles")["bundles"]}
            held = sum(owner != "b3" for owner in owners.values())
            rolled = mixed.roll(newest, "b1", "b2")
            assert sorted(row["broker"] for row in rolled["restarted"]) == ["b1", "b2"]
            assert sum(row["moved"] for row in rolled["restarted"]) <= 2 * held, (
                "once, and twice from the first of the two"
            )
            seen = {row["broker"]: row for row in mixed.newer("brokers")["brokers"] if row["broker"] != "old"}
            assert [(name, row["mode"], row["accepting"]) for name, row in sorted(seen.items())] == [
                (name, "normal", True) for name in ("b1", "b2", "b3")
            ]
            owners = {row["bundle"]: row["owner"] for row in mixed.newer("bundles")["bundles"]}
            assert sorted(owners) == sorted(bundles)
            assert set(owners.values()) <= {"b1", "b2", "b3"}
            assert mixed.formats() == {1, NEWER_FORMAT}, "nobody writes what another broker cannot read"
            assert mixed("policy", "list")["policies"] == []
            assert not any("cannot read" in mixed.log_of(name) for name in seen)
