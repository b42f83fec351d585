"""compose.yaml keeps its promises: loopback only, pinned, checked for health, data kept; its commands are real ones."""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from shedders.balancer.settings import NAME, configured
from statechannel.settings import load

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KAFKAS = {name: service for name, service in SERVICES.items() if name.startswith("kafka")}
OURS = {name: service for name, service in SERVICES.items() if name not in KAFKAS}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_profiles_are_one_and_three_nodes() -> None:
    profiles = [service["profiles"] for service in KAFKAS.values()]
    assert profiles.count(["one", "spark"]) == 1
    assert profiles.count(["three"]) == 3


@pytest.mark.parametrize("name", KAFKAS)
def test_kafka(name: str) -> None:
    service = KAFKAS[name]
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


def test_three_nodes_survive_the_loss_of_one() -> None:
    for service in KAFKAS.values():
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


def options_of(service: dict[str, Any]) -> dict[str, str]:
    """Long options of a command, all written with `=`."""
    given = [word for word in service["command"] if word.startswith("--")]
    return {name: value for name, _, value in (word.partition("=") for word in given)}


@pytest.mark.parametrize("name", OURS)
def test_service_of_the_package(name: str) -> None:
    service = OURS[name]
    assert service["build"] == "."
    assert not service.get("ports"), "nothing of it is open to the host"
    assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert service["depends_on"]["kafka"] == {"condition": "service_healthy"}
    assert set(service["depends_on"]) <= set(SERVICES)
    assert service["init"] is True
    internal = KAFKAS["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].partition(",")[0]
    assert options_of(service)["--bootstrap-servers"] == internal.removeprefix("INTERNAL://")


@pytest.mark.parametrize("name", OURS)
def test_command_is_one_of_the_package_and_takes_these_options(name: str) -> None:
    words = list(OURS[name]["command"])
    points = PROJECT["entry-points"]
    if words[:2] == ["spark", "run"]:
        assert words[2] == name
        command = _loaded(points["spark.jobs"][words[2]])
        words = words[3:]
    else:
        command = _loaded(points["statechannel.commands"][words.pop(0)])
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    # Parses and checks, and calls nothing.
    with command.make_context(name, words):
        pass


def _loaded(point: str) -> Any:
    module, _, attribute = point.partition(":")
    return typer.main.get_command(getattr(import_module(module), attribute))


@pytest.mark.parametrize("name", ["table-view", "load-views"])
def test_what_a_job_writes_is_kept_and_its_health_is_what_it_writes(name: str) -> None:
    service = OURS[name]
    [volume] = service["volumes"]
    place = volume.partition(":")[2]
    options = options_of(service)
    # The locks lie beside the folders, and have to be kept apart from other services' too.
    assert Path(options["--table"]).parent == Path(options["--checkpoint"]).parent == Path(place)
    assert service["healthcheck"]["test"][-1].startswith(f"{options['--table']}/")
    assert service["stop_grace_period"] == "60s"


def test_one_of_them_buries_reports_and_it_is_the_job() -> None:
    settings = load(flags=[options_of(OURS["broker"])["--set"]])
    assert configured(settings.extensions[NAME]).load.tombstones == "spark"
