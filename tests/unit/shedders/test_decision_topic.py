"""The writer of decisions never waits and never raises; what is lost is counted (a scripted writer, no broker)."""

from typing import Any

from shedders.decisions.record import decode
from shedders.decisions.topic import DecisionWriter
from statechannel.errors import StateChannelError
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaClientError
from statechannel.kafka.light_topic import LightCounts, LightTuning
from statechannel.kafka.topic_policy import decisions_topic
from tests.support.decision_records import IDS, move, record

SETTINGS = ClientSettings("h:1")
TOPICS = decisions_topic("chan")


class Scripted:
    """Takes records."""

    def __init__(self, settings: ClientSettings, *, tuning: Any) -> None:
        self.tuning = tuning
        self.open = True
        self.taken: list[tuple[str, bytes, bytes]] = []
        self.counts = LightCounts()

    def write(self, topic: str, key: bytes, value: bytes) -> bool:
        if self.open:
            self.taken.append((topic, key, value))
            self.counts.written += 1
        return self.open

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self, timeout_s: float) -> bool:
        self.open = False
        return True


class Rig:
    def __init__(self, error: StateChannelError | None = None, **more: Any) -> None:
        self.writers: list[Scripted] = []
        self.error = error
        self.writer = DecisionWriter(SETTINGS, TOPICS, make_writer=self._make, **more)  # type: ignore[arg-type]

    def _make(self, settings: ClientSettings, *, tuning: Any) -> Scripted:
        if self.error is not None:
            raise self.error
        self.writers.append(Scripted(settings, tuning=tuning))
        return self.writers[-1]


def test_the_topic_is_named_and_kept_for_a_week() -> None:
    (name, policy), *more = TOPICS.policies.items()
    assert (name, more, policy.partitions) == ("chan-decisions", [], 1)
    wanted = policy.creation_settings()
    assert wanted["cleanup.policy"] == "delete"
    assert wanted["message.timestamp.type"] == "LogAppendTime"
    assert wanted["retention.ms"] == str(7 * 86_400_000)
    shorter = decisions_topic("chan", 1_000, 500).policies["chan-decisions"]
    assert shorter.creation_settings()["retention.ms"] == "1000"


def test_records_are_written_with_their_key() -> None:
    rig = Rig(tuning=LightTuning(queue_records=5, delivery_timeout_ms=2_000))
    assert rig.writers == []
    assert rig.writer.flush(0.1)
    assert rig.writer.write(record(1, moves=[move()]))
    ((topic, key, value),) = rig.writers[0].taken
    assert (topic, key) == ("chan-decisions", IDS[1].encode())
    assert decode(key, value) == record(1, moves=[move()])
    assert (rig.writers[0].tuning.queue_records, rig.writers[0].tuning.delivery_timeout_ms) == (5, 2_000)
    assert rig.writer.counts.written == 1
    assert rig.writer.close()
    assert not rig.writer.write(record(2))
    assert rig.writer.counts.written == 1


def test_a_record_that_cannot_be_written_is_counted() -> None:
    rig = Rig(max_bytes=100)
    assert not rig.writer.write(record(1))
    counts = rig.writer.counts
    assert (counts.unwritable, counts.written, rig.writers) == (1, 0, [])
    assert "more than 100" in str(counts.to_json()["last_error"])


def test_a_writer_that_cannot_be_made_costs_records_not_the_balancer() -> None:
    rig = Rig(KafkaClientError("no such property"))
    assert not rig.writer.write(record(1))
    assert (rig.writer.counts.unwritable, rig.writer.counts.last_error) == (1, "no such property")
    rig.error = None
    assert rig.writer.close()
    assert not rig.writer.write(record(2))
    assert rig.writers == [], "it was closed before its first record"
