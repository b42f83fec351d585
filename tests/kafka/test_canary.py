"""The canary on a real Kafka: brokers whose hooks lie are found by the others, by hook and by endpoint; honest ones never."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import httpx
from typer.testing import CliRunner

from statechannel.api import BlockingBrokerHooks, BlockingStateChannel, Done
from statechannel.cli.main import app
from statechannel.protocol.bundle import bundle_key, namespace_bounds
from tests.support.channels import make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S, wait_until

NAMESPACE = "public/default"
BOUNDS = namespace_bounds(4)
BUNDLES = [bundle_key(NAMESPACE, BOUNDS[n], BOUNDS[n + 1]) for n in range(4)]
CANARY = {"questions_per_second_max": 20.0, "confirm_s": 0.5}


class Plane(BlockingBrokerHooks):
    """A data plane that keeps what it serves, unless it lies."""

    def __init__(self, planes: dict[str, "Plane"]) -> None:
        self.planes = planes
        self.serves: dict[str, int] = {}
        self.opens, self.closes = True, True

    def on_serve(self, bundle: str, generation: int) -> None:
        if self.opens:
            self.serves[bundle] = generation

    def on_release(self, bundle: str, generation: int, destination: str | None) -> None:
        if self.closes:
            self.serves.pop(bundle, None)

    def probe_owner(self, bundle: str, broker: str, urls: Mapping[str, str]) -> int | None:
        assert urls == {"http": f"http://{broker}"}
        return self.planes[broker].serves.get(bundle)


def metric(channel: BlockingStateChannel, name: str, **labels: str) -> float:
    registry = channel._channel.metrics_registry
    broker = channel._channel.identity.broker
    names = {"channel": channel._channel.settings.channel.name, "broker": broker, **labels}
    return registry.get_sample_value(f"statechannel_{name}", names) or 0.0


def hand_over(channel: BlockingStateChannel, bundle: str, broker: str) -> None:
    def there() -> bool:
        owner = channel.lookup(bundle, WAIT_S)
        return owner.broker == broker or isinstance(channel.transfer(bundle, broker).outcome(WAIT_S), Done)

    wait_until(there)


def command(kafka: Kafka, channel: str, *args: str) -> Any:
    result = CliRunner().invoke(app, [*args, "-b", kafka.bootstrap_servers, "--channel", channel, "--output", "json"])
    return json.loads(result.stdout)


def findings(kafka: Kafka, channel: str) -> dict[str, dict[str, Any]]:
    """By the broker that the newest finding of each canary is about."""
    rows = [row["canary"] for row in command(kafka, channel, "status")["brokers"] if row["canary"] is not None]
    return {row["member"]: row for row in rows}


def test_hooks_that_lie_are_found(kafka: Kafka, topic_prefix: str) -> None:
    planes: dict[str, Plane] = {}
    quiet = make_settings(kafka.bootstrap_servers, topic_prefix, observe={"metrics_port": 0})
    asking = make_settings(kafka.bootstrap_servers, topic_prefix, observe={"metrics_port": 0}, canary=CANARY)
    with ExitStack() as opened:
        channels = {}
        for broker, settings in (("b1", asking), ("b2", quiet)):
            planes[broker] = Plane(planes)
            urls = {"http": f"http://{broker}"}
            channels[broker] = opened.enter_context(
                BlockingStateChannel.open(
                    settings,
                    broker=broker,
                    hooks=planes[broker],
                    listeners=urls,
                    create_topics=True,
                    join_timeout_s=WAIT_S,
                )
            )
        b1, liar = channels["b1"], planes["b2"]
        by_endpoint = opened.enter_context(
            BlockingStateChannel.open(asking, broker="b3", listeners={"http": "http://b3"}, join_timeout_s=WAIT_S)
        )
        planes["b3"] = Plane(planes)  # it gets nothing
        b1.create_namespace(NAMESPACE, 4).outcome(WAIT_S)
        for bundle in BUNDLES[:3]:
            hand_over(b1, bundle, "b1")
        hand_over(b1, BUNDLES[3], "b2")
        wait_until(lambda: metric(b1, "canary_answers_total", answer="serves") >= 20)
        wait_until(lambda: metric(by_endpoint, "canary_answers_total", answer="serves") >= 20)
        assert metric(b1, "canary_findings") == metric(by_endpoint, "canary_findings") == 0

        liar.opens = False
        hand_over(b1, BUNDLES[0], "b2")  # it takes the bundle, and does not serve it
        wait_until(lambda: metric(b1, "canary_findings") == 1)
        wait_until(lambda: findings(kafka, topic_prefix))
        not_served = findings(kafka, topic_prefix)["b2"]
        assert (not_served["reason"], not_served["bundle"]) == ("not-serving", BUNDLES[0])
        assert "by the log b2 serves" in not_served["message"]
        status = command(kafka, topic_prefix, "status")
        assert "canary" in [problem["reason"] for problem in status["problems"]]
        doctor = command(kafka, topic_prefix, "doctor")
        assert any(not_served["bundle"] in json.dumps(check) for check in doctor["findings"])

        hand_over(b1, BUNDLES[0], "b1")  # what it was about has moved
        wait_until(lambda: metric(b1, "canary_findings") == 0)

        liar.closes = False
        hand_over(b1, BUNDLES[3], "b1")  # it goes on serving
        wait_until(lambda: metric(b1, "canary_findings") == 1)
        wait_until(lambda: findings(kafka, topic_prefix).get("b2", {}).get("reason") == "serves-unowned")
        liar.serves.clear()
        wait_until(lambda: metric(b1, "canary_findings") == 0)
        assert metric(by_endpoint, "canary_findings") == 0, "its engine served what it owned all the time"
        assert metric(by_endpoint, "events_total", event="canary.contradiction") == 0
        assert metric(b1, "events_total", event="canary.contradiction") == 2


def test_the_endpoint_says_what_its_broker_serves(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, observe={"metrics_port": 0})
    with BlockingStateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S) as channel:
        channel.create_namespace(NAMESPACE, 4).outcome(WAIT_S)
        owner = channel.lookup(BUNDLES[0], WAIT_S)
        url = f"{channel._channel.identity.http}/serves"
        served = httpx.get(f"{url}?{BUNDLES[0]}", trust_env=False).json()
        assert (served["broker"], served["bundle"], served["generation"]) == ("b1", BUNDLES[0], owner.generation)
        for nonsense in (BUNDLES[1], "nonsense", "", "%00%ff", "x" * 10_000):
            answer = httpx.get(f"{url}?{nonsense}", trust_env=False)
            assert (answer.status_code, answer.json()["generation"]) == (200, None)
