"""What a Kafka says that is only not there yet (a leader, a new topic) is asked again, within a bound."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from statechannel.engine.inputs import Input, PartitionBroken, PartitionOpened
from statechannel.kafka import admin as admin_module
from statechannel.kafka import partition_consumer, reader, tail
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import KafkaAccessDeniedError, KafkaUnavailableError, TopicMissingError, translate
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import TopicAdmin, TopicInfo, create_topics
from statechannel.protocol.log import RecordRead, Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.scripted_admin import ALWAYS, ScriptedAdmin, answered, node, part, refusal, scripted_admin
from tests.support.scripted_consumer import event, record
from tests.support.waits import WAIT_S

NOT_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
)
SETTINGS = ClientSettings("127.0.0.1:1", tuning=KafkaSettings.model_construct(topic_grace_s=0.5))
NAMES = ChannelTopics("c")


class Script:
    """Answers one after the other, the last one for ever; errors are raised."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, *_: object, **__: object) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_kafka_that_answers_late_may_not_know_a_new_topic_yet():
    """Its first answer comes after the grace time, which counts from there."""
    answers = Script(KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION)), (0, 3))

    def late(_left_s: float) -> Any:
        time.sleep(0.2)
        return answers()

    assert admin_module.ask_patiently(late, timeout_s=WAIT_S, topic_grace_s=0.1) == (0, 3)
    missing = Script(KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION)))
    with pytest.raises(KafkaException):
        admin_module.ask_patiently(missing, timeout_s=WAIT_S, topic_grace_s=0.1)


# --- a partition's end ----------------------------------------------------------------------------------------------


class FakeConsumer:
    def __init__(self, config: object = None) -> None:
        self.get_watermark_offsets = Script((0, 3))
        self.offsets_for_times = Script([TopicPartition("c", 0, 2)])
        self.poll = Script(None)
        self.consume = Script([])
        self.incremental_assign = self.assign = self.unassign = self.close = Script(None)


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    fake = FakeConsumer()
    monkeypatch.setattr(partition_consumer, "Consumer", lambda _: fake)
    monkeypatch.setattr(reader, "Consumer", lambda _: fake)
    return fake


def open_tail(timeout_s: float = 5.0) -> tail.PartitionTail:
    return tail.PartitionTail(SETTINGS, Topic.CHANNEL, "c", 0, group_id="g", timeout_s=timeout_s)


@pytest.mark.parametrize("code", NOT_YET)
def test_the_end_is_asked_for_again_until_there_is_a_leader(consumer: FakeConsumer, code: int) -> None:
    consumer.get_watermark_offsets = Script(refusal(code), refusal(code), (1, 3))
    assert open_tail().span() == tail.Span(1, 1, 3)


@pytest.mark.parametrize("code", NOT_YET)
def test_a_time_is_looked_for_again_whichever_way_the_error_came(consumer: FakeConsumer, code: int) -> None:
    inside = SimpleNamespace(offset=1_700_000_000_000, error=KafkaError(code))
    consumer.offsets_for_times = Script(refusal(code), [inside], [TopicPartition("c", 0, 2)])
    assert open_tail().span(from_time_ms=1_700_000_000_000) == tail.Span(0, 2, 3)


def test_what_will_not_change_is_said_at_once(consumer: FakeConsumer) -> None:
    consumer.get_watermark_offsets = Script(refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaAccessDeniedError):
        open_tail().span()
    assert consumer.get_watermark_offsets.asked == 1


def test_a_topic_that_stays_missing_is_said_to_be_after_the_grace(consumer: FakeConsumer) -> None:
    consumer.get_watermark_offsets = Script(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
    began_s = time.monotonic()
    with pytest.raises(TopicMissingError):
        open_tail(600.0).span()
    assert 0.1 < time.monotonic() - began_s < 300, "not for as long as it may wait for Kafka"


def test_no_leader_ever_is_said_within_the_bound(consumer: FakeConsumer) -> None:
    consumer.get_watermark_offsets = Script(refusal(KafkaError.NOT_LEADER_FOR_PARTITION))
    with pytest.raises(KafkaUnavailableError, match="querying the end of c-0"):
        open_tail(0.6).span()
    assert consumer.get_watermark_offsets.asked > 2


@pytest.mark.parametrize("code", NOT_YET)
def test_reading_goes_on_over_what_passes(consumer: FakeConsumer, code: int) -> None:
    consumer.poll = Script(event(code, 0), record(0), event(code, 1), record(1), None)
    records = list(open_tail().records(tail.Span(0, 0, 2)))
    assert records == [RecordRead(Topic.CHANNEL, 0, offset, 7, b"k", b"v") for offset in (0, 1)]


@pytest.mark.parametrize("read", [lambda t: t.records(tail.Span(0, 0, 2)), lambda t: t.follow(0)])
def test_reading_a_topic_that_is_gone_ends_after_the_grace_though_it_is_told_once(
    consumer: FakeConsumer, read: Callable[[tail.PartitionTail], object]
) -> None:
    consumer.poll = Script(event(KafkaError.UNKNOWN_TOPIC_OR_PART, 0), None)
    consumer.get_watermark_offsets = Script(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(TopicMissingError):
        list(read(open_tail()))  # type: ignore[call-overload]


# --- the reader of a member -----------------------------------------------------------------------------------------


def open_reader(monkeypatch: pytest.MonkeyPatch) -> tuple[reader.LogReader, list[Input]]:
    monkeypatch.setattr(reader, "TopicWatch", lambda *_, **__: SimpleNamespace(due=lambda _: False, hurry=lambda: None))
    got: list[Input] = []
    info = TopicInfo("c", "id", 1, 1, {})
    tuning = reader.ReaderTuning(poll_s=0.01)
    return reader.LogReader(SETTINGS, {Topic.CHANNEL: info}, got.extend, group_id="g", tuning=tuning), got


@pytest.mark.parametrize("code", NOT_YET)
def test_a_partition_is_not_broken_because_a_broker_has_not_learned_of_it(
    consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    consumer.get_watermark_offsets = Script(refusal(code), refusal(code), (0, 3))
    reading, got = open_reader(monkeypatch)
    for _ in range(3):
        reading._step()
    assert got == [PartitionOpened(Topic.CHANNEL, 0, 0, 3)]


def test_a_partition_of_a_topic_that_stays_missing_is_broken_after_the_grace(consumer: FakeConsumer, monkeypatch):
    consumer.get_watermark_offsets = Script(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
    reading, got = open_reader(monkeypatch)
    began_s = time.monotonic()
    while not got and time.monotonic() - began_s < 5.0:
        reading._step()
    assert got == [PartitionBroken(Topic.CHANNEL, 0, "topic c does not exist")]
    assert time.monotonic() - began_s >= SETTINGS.tuning.topic_grace_s


def outages_of(reading: reader.LogReader, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    said: list[bool] = []
    monkeypatch.setattr(reading, "_set_available", lambda *, available: said.append(available))
    return said


@pytest.mark.parametrize("ends", ["missing", "broken"])
def test_one_call_without_an_answer_is_no_outage_though_there_was_one_long_before(
    consumer: FakeConsumer, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """In between a broker answered that it does not know the topic; or the partition was given up, and asked no more."""
    reading, _ = open_reader(monkeypatch)
    said = outages_of(reading, monkeypatch)
    (partition,) = reading._partitions.values()
    consumer.get_watermark_offsets = Script(refusal(KafkaError._TRANSPORT))
    reading._watermarks(partition)
    if ends == "missing":
        consumer.get_watermark_offsets = Script(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
        reading._watermarks(partition)
    else:
        reading._break(partition, "it was deleted")
    later_s = time.monotonic() + 3600.0
    monkeypatch.setattr(reader.time, "monotonic", lambda: later_s)
    consumer.get_watermark_offsets = Script(refusal(KafkaError._TRANSPORT))
    reading._watermarks(partition)
    assert said == []


# --- topics ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> ScriptedAdmin:
    return scripted_admin(monkeypatch)


@pytest.mark.parametrize("code", [code for code in NOT_YET if code != KafkaError.UNKNOWN_TOPIC_OR_PART])
@pytest.mark.parametrize("call", ["create", "describe", "configs", "offsets"])
def test_creation_bears_what_passes(admin: ScriptedAdmin, call: str, code: int) -> None:
    admin.refusals[call] = (3, code)
    assert set(create_topics(SETTINGS, NAMES, timeout_s=5.0)) == set(NAMES.policies)


@pytest.mark.parametrize("call", ["describe", "configs", "offsets"])
def test_creation_bears_a_broker_that_has_not_heard_of_it(admin: ScriptedAdmin, call: str) -> None:
    admin.refusals[call] = (3, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert set(create_topics(SETTINGS, NAMES, timeout_s=5.0)) == set(NAMES.policies)


@pytest.mark.parametrize("code", NOT_YET[:3])
def test_a_topic_is_created_when_the_leader_of_each_partition_answers(admin: ScriptedAdmin, code: int) -> None:
    admin.refusals["offsets"] = (ALWAYS, code)
    with pytest.raises(KafkaUnavailableError, match="c-registry"):
        create_topics(SETTINGS, NAMES, timeout_s=0.5)
    assert "configs" not in admin.calls


def test_a_broker_that_has_not_heard_of_the_new_topics_is_asked_again(admin: ScriptedAdmin) -> None:
    """The first broker waited for knows them all; another one is asked what they are like."""
    usable = len(NAMES.policies)
    plain = admin._answer

    def answer(call: str, make: Callable[[], object]) -> Future[Any]:
        if call == "describe" and usable < admin.calls.count("describe") + 1 <= 2 * usable:
            admin.calls.append(call)
            return answered(refusal(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return plain(call, make)

    admin._answer = answer  # type: ignore[method-assign]
    assert set(create_topics(SETTINGS, NAMES, timeout_s=5.0)) == set(NAMES.policies)


def test_a_topic_that_nobody_created_is_missing_at_once(admin: ScriptedAdmin) -> None:
    admin.add("c", {}, [part(0, node(1))])
    admin.refusals["describe"] = (ALWAYS, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert TopicAdmin(SETTINGS, timeout_s=WAIT_S).describe(["c"]) == {}
    assert admin.calls == ["describe"]


def test_describing_what_is_refused_is_not_repeated(admin: ScriptedAdmin) -> None:
    admin.add("c", {}, [part(0, node(1))])
    admin.refusals["describe"] = (ALWAYS, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaAccessDeniedError):
        TopicAdmin(SETTINGS, timeout_s=WAIT_S).describe(["c"])
    assert admin.calls == ["describe"]


def test_after_a_call_without_an_answer_a_new_client_asks(admin: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch):
    """librdkafka sometimes waits in vain for a group's coordinator, until the time-out."""
    bounds_s: list[float] = []

    class SilentAdmin(ScriptedAdmin):
        def describe_topics(self, wanted: Any, **options: Any) -> dict[str, Future[Any]]:
            bounds_s.append(options["request_timeout"])
            return {name: answered(refusal(KafkaError._TIMED_OUT)) for name in wanted.topic_names}

    admin.add("c", {}, [part(0, node(1))])
    clients = iter([SilentAdmin(), SilentAdmin(), admin])
    monkeypatch.setattr(admin_module, "AdminHandle", lambda *_: SimpleNamespace(client=next(clients)))
    (topic,) = TopicAdmin(SETTINGS, timeout_s=90.0).places(["c"])
    assert topic == "c"
    assert bounds_s == [30.0, 30.0]


@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE])
def test_no_leader_is_called_away(code: int) -> None:
    assert isinstance(translate(KafkaError(code), "asking"), KafkaUnavailableError)
