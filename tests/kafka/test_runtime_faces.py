"""The blocking face, and metrics, on a real Kafka."""

import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from statechannel.api import BlockingBrokerHooks, BlockingStateChannel, Done
from tests.support.channels import make_settings
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S


class Noting(BlockingBrokerHooks):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int]] = []

    def on_own(self, bundle, generation) -> None:
        self.calls.append(("on_own", bundle, generation))


def test_blocking_face_does_everything(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix)
    hooks = Noting()
    with BlockingStateChannel.open(
        settings, broker="b1", hooks=hooks, create_topics=True, join_timeout_s=WAIT_S
    ) as channel:
        ticket = channel.create_namespace("public/default", 2)
        assert isinstance(ticket.outcome(WAIT_S), Done)
        owner = channel.lookup("public/default/orders", WAIT_S)
        assert hooks.calls == [("on_own", owner.bundle, owner.generation)]
        assert channel.lookup("public/default/orders") == owner
        with ThreadPoolExecutor(4) as threads:
            cached = list(threads.map(channel.lookup_cached, ["public/default/orders"] * 1_000))
        assert set(map(repr, cached)) <= {repr(owner), "None"}
        assert cached.count(owner) > 0
        split = channel.split(owner.bundle).outcome(WAIT_S)
        assert isinstance(split, Done)
        assert isinstance(channel.ticket(str(ticket)).outcome(WAIT_S), Done)
        states = []
        for change in channel.changes(since={}):
            states.append(str(change.state))
            if change.state == "Deleted":
                break
        assert states == ["Active", "Assigning", "Assigned", "Splitting", "Deleted"]
        assert channel.status()["mode"] == "normal"
        assert len(channel.serving()) == 2
    assert channel.stopped.clean


def test_metrics_are_served_on_loopback(kafka: Kafka, topic_prefix: str) -> None:
    settings = make_settings(kafka.bootstrap_servers, topic_prefix, observe={"metrics_port": 0})
    with BlockingStateChannel.open(settings, broker="b1", create_topics=True, join_timeout_s=WAIT_S) as channel:
        channel.create_namespace("public/default", 2).outcome(WAIT_S)
        channel.lookup("public/default/orders", WAIT_S)
        cached = sum(channel.lookup_cached("public/default/orders") is not None for _ in range(50))
        port = channel.status()["runtime"]["metrics_port"]
        mode = f'statechannel_mode{{broker="b1",channel="{topic_prefix}",mode="normal"}} 1.0'
        text, until_s = "", time.monotonic() + WAIT_S
        lookups = f'statechannel_lookups_total{{answer="owned",broker="b1",channel="{topic_prefix}"}} {1.0 + cached}'
        while not (mode in text and lookups in text) and time.monotonic() < until_s:  # gauges follow within a second
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
                text = answer.read().decode()
    assert mode in text
    assert lookups in text
    assert "statechannel_oldest_debt_seconds" in text
