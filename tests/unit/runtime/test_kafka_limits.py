"""What Kafka's limits do to a member's clients: what its events, metrics and heartbeats say of quotas and refused records."""

import json

import pytest
from confluent_kafka import KafkaError, ThrottleEvent

from statechannel.broker.observe.kafka_limits import KafkaLimits
from statechannel.broker.observe.metrics import Metrics
from statechannel.engine.inputs import KafkaLimited
from statechannel.engine.kafka_limits import ClientKind, RefusalReason
from statechannel.kafka.client_settings import ClientSettings, make_client
from tests.support.log_lines import capture_logs


class Bench:
    def __init__(self) -> None:
        self.settings = ClientSettings("h:1", client_id="statechannel-b1")
        self.metrics = Metrics("ch", "b1")
        self.fed: list[KafkaLimited] = []
        self.now_s = 1_000.0
        self.limits = KafkaLimits(self.settings.notes, self.metrics, self.fed.append, mono_s=lambda: self.now_s)

    def throttle(self, throttle_s: float, kind: ClientKind = ClientKind.PRODUCER) -> None:
        """As the client library reports it, now by the test's clock."""
        self.settings.notes.throttled("statechannel-b1", kind, ThrottleEvent("n1", 1, throttle_s))
        if throttle_s:
            newest = self.settings.notes.throttles.pop()
            self.settings.notes.throttles.append(newest._replace(at_s=self.now_s))

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.limits.look()

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"channel": "ch", "broker": "b1", **labels})


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_throttling_is_measured_within_the_last_ten_seconds(bench: Bench) -> None:
    with capture_logs() as lines:
        bench.throttle(4.2)
        bench.later(6)
        throttled = bench.fed[-1].throttled
        assert (throttled.client, throttled.kind, throttled.throttled_ms) == ("statechannel-b1", "producer", 4_200)
        assert json.loads(json.dumps(throttled.fields()))["window_ms"] == 10_000
        bench.later(6)
        throttled = bench.fed[-1].throttled
        assert throttled.throttled_ms == 2_200
        bench.later(3)
        assert bench.fed[-1].throttled is None
    assert bench.sample("statechannel_kafka_throttle_seconds_total", client="producer") == pytest.approx(4.2)
    assert [line["event"] for line in lines] == ["kafka.throttled", "kafka.unthrottled"]
    assert lines[0]["log_level"] == "warning"


def test_requests_that_are_throttled_at_the_same_time_count_once(bench: Bench) -> None:
    for _ in range(5):
        bench.throttle(3.0)
    bench.later(10)
    throttled = bench.fed[-1].throttled
    assert throttled.throttled_ms == 3_000


def test_little_throttling_is_counted_and_not_told(bench: Bench) -> None:
    with capture_logs() as lines:
        for _ in range(20):
            bench.throttle(0.05)
            bench.later(1)
    assert bench.fed == []
    assert lines == []
    assert bench.sample("statechannel_kafka_throttle_seconds_total", client="producer") == pytest.approx(1.0)


def test_the_client_that_is_throttled_most_is_told(bench: Bench) -> None:
    bench.throttle(2.0)
    bench.throttle(5.0, ClientKind.CONSUMER)
    bench.later(6)
    throttled = bench.fed[-1].throttled
    assert throttled.kind is ClientKind.CONSUMER


def test_long_throttling_is_said_once_a_minute(bench: Bench) -> None:
    with capture_logs() as lines:
        for _ in range(90):
            bench.throttle(1.0)
            bench.later(1)
    assert [line["event"] for line in lines] == ["kafka.throttled"] * 2


def test_a_refused_record_is_a_warning_with_code_limit_and_setting_and_stands_in_heartbeats(bench: Bench) -> None:
    error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
    with capture_logs() as lines:
        for _ in range(100):
            bench.settings.refusal(error, "bundle-state", 24_884)
            bench.later(1)
    refused = bench.fed[-1].refused
    assert (refused.newest.reason, refused.newest.code) == (RefusalReason.TOO_LARGE, "MSG_SIZE_TOO_LARGE")
    assert refused.times == 100
    assert [line["event"] for line in lines] == ["append.refused"] * 2
    assert "24,884 bytes" in lines[0]["why"]
    assert "max.message.bytes" in lines[0]["why"]
    assert refused.fields()["topic"] == "bundle-state"


def test_each_topic_and_code_is_said(bench: Bench) -> None:
    with capture_logs() as lines:
        for topic in ("bundle-state", "bundle-state-registry"):
            bench.settings.refusal(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), topic)
        bench.settings.refusal(KafkaError(KafkaError.INVALID_TIMESTAMP), "bundle-state")
        bench.later(1)
    assert {(line["topic"], line["code"]) for line in lines} == {
        ("bundle-state", "TOPIC_AUTHORIZATION_FAILED"),
        ("bundle-state-registry", "TOPIC_AUTHORIZATION_FAILED"),
        ("bundle-state", "INVALID_TIMESTAMP"),
    }


def test_a_client_that_waits_for_kafka_knows_that_it_is_throttled_for_half_a_minute() -> None:
    """Then that Kafka runs, and its address, are not in doubt."""
    notes = ClientSettings("h:1").notes
    assert notes.throttled_lately() == ""
    notes.throttled("statechannel", ClientKind.CONSUMER, ThrottleEvent("n1", 1, 5.0))
    assert "consumer_byte_rate" in notes.throttled_lately()
    newest = notes.throttles.pop()
    notes.throttles.append(newest._replace(at_s=newest.at_s - 36.0))
    assert notes.throttled_lately() == ""


def test_every_client_reports_throttling_by_its_own_kind() -> None:
    settings = ClientSettings("h:1", client_id="c")
    for config in (
        settings.producer_config(),
        settings.consumer_config("g"),
        settings.election_config("g"),
        settings.admin_config(),
    ):
        made = make_client(dict, config, settings, "making a client")
        made["throttle_cb"](ThrottleEvent("n1", 1, 1.5))
        made["throttle_cb"](ThrottleEvent("n1", 1, 0.0))
    assert [(note.client, note.kind, note.throttle_s) for note in settings.notes.throttles] == [
        ("c", ClientKind.PRODUCER, 1.5),
        ("c", ClientKind.CONSUMER, 1.5),
        ("c", ClientKind.CONSUMER, 1.5),
        ("c", ClientKind.ADMIN, 1.5),
    ]
