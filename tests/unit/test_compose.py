"""compose.yaml keeps its promises: loopback only, pinned, checked for health, data kept."""

from pathlib import Path
from typing import Any

import pytest
import yaml

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_profiles_are_one_and_three_nodes() -> None:
    profiles = [service["profiles"] for service in SERVICES.values()]
    assert profiles.count(["one"]) == 1
    assert profiles.count(["three"]) == 3


@pytest.mark.parametrize("name", SERVICES)
def test_service(name: str) -> None:
    service = SERVICES[name]
    environment = service["environment"]
    image, _, tag = service["image"].partition(":")
    assert image == "apache/kafka"
    assert tag.startswith("4.")
    assert tag.count(".") == 2, "a whole version, so that it means the same tomorrow"
    assert service["healthcheck"]["test"]
    [port] = service["ports"]
    assert port.startswith("127.0.0.1:")
    assert environment["KAFKA_ADVERTISED_LISTENERS"].endswith(port.rpartition(":")[0])
    assert f"{environment['KAFKA_NODE_ID']}@{name}:19090" in environment["KAFKA_CONTROLLER_QUORUM_VOTERS"].split(",")
    [volume] = service["volumes"]
    assert volume.partition(":")[2] == environment["KAFKA_LOG_DIRS"]
    assert volume.partition(":")[0] in COMPOSE["volumes"]


def test_no_port_or_volume_is_used_twice() -> None:
    for part in ("ports", "volumes"):
        used = [service[part][0] for service in SERVICES.values()]
        assert len(set(used)) == len(used)


def test_three_nodes_survive_the_loss_of_one() -> None:
    for service in SERVICES.values():
        environment = service["environment"]
        expected = ("3", "2") if service["profiles"] == ["three"] else ("1", "1")
        for topic in ("OFFSETS_TOPIC", "TRANSACTION_STATE_LOG", "SHARE_COORDINATOR_STATE_TOPIC", "DEFAULT"):
            assert str(environment[f"KAFKA_{topic}_REPLICATION_FACTOR"]) == expected[0]
        for setting in (
            "TRANSACTION_STATE_LOG_MIN_ISR",
            "SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR",
            "MIN_INSYNC_REPLICAS",
        ):
            assert str(environment[f"KAFKA_{setting}"]) == expected[1]
