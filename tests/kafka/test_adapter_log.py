"""Writer and reader together on a real broker: order, gaps, back-pressure, restarts."""

import itertools
import threading
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from statechannel.engine.inputs import Appended, AppendFailed, PartitionBroken, PartitionOpened, PositionReached
from statechannel.kafka.reader import LogReader, ReaderTuning
from statechannel.protocol.log import RecordRead, RecordsRead, Topic
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.kafka_adapter import CLEANED, WAIT_S, Channel, Inbox, make_channel
from tests.support.kafka_lanes import Kafka
from tests.support.waits import wait_until

FAST_WATCH = ReaderTuning(watch_s=0.3)


@pytest.fixture
def channel(kafka: Kafka, topic_prefix: str) -> Channel:
    return make_channel(kafka.bootstrap_servers, topic_prefix)


def test_what_was_appended_is_read_back_in_order_at_the_reported_offsets(channel: Channel) -> None:
    written, read = Inbox(), Inbox()
    with channel.reader(read), channel.writer(written) as writer:
        for number in range(500):
            writer.append(channel.append(b"k%d" % (number % 7), b"%d" % number))
        assert writer.flush(WAIT_S)
        answers = written.of(Appended)
        read.wait_position(answers[-1].offset + 1)
    assert [a.token for a in answers] == list(range(1, 501))
    assert [a.offset for a in answers] == list(range(500))
    records = read.of(RecordRead)
    assert [(r.offset, r.value) for r in records] == [(n, b"%d" % n) for n in range(500)]
    assert all(abs(r.timestamp_ms / 1_000 - time.time()) < 600 for r in records)


def test_null_and_empty_values_stay_what_they_are(channel: Channel) -> None:
    channel.write((b"a", None), (b"b", b""), (b"c", b"0"))
    assert [r.value for r in channel.read_all(3)] == [None, b"", b"0"]


def test_an_empty_partition_is_opened_and_reached_at_once(channel: Channel) -> None:
    inbox, began_s = Inbox(), time.monotonic()
    with channel.reader(inbox):
        inbox.wait_position(0)
    opened, reached = inbox.inputs[:2]
    assert opened == PartitionOpened(Topic.CHANNEL, 0, 0, 0)
    assert isinstance(reached, PositionReached)
    assert reached.position == 0
    assert began_s <= reached.as_of_s <= time.monotonic()


def test_opened_says_where_the_end_was(channel: Channel) -> None:
    channel.write((b"a", b"1"), (b"a", b"2"))
    inbox = Inbox()
    with channel.reader(inbox):
        inbox.wait_position(2)
    assert inbox.inputs[0] == PartitionOpened(Topic.CHANNEL, 0, 0, 2)
    assert isinstance(inbox.inputs[-1], PositionReached)


def test_a_restart_reads_everything_again_in_order(channel: Channel) -> None:
    records = [(b"k", b"%d" % n) for n in range(3_000)]
    channel.write(*records)
    inbox = Inbox()
    with channel.reader(inbox, tuning=ReaderTuning(batch_records=100)) as reader:
        inbox.wait_for(lambda inputs: len(inputs) > 500)
        reader.restart(Topic.CHANNEL, 0)
        inbox.wait_for(lambda inputs: sum(isinstance(i, PartitionOpened) for i in inputs) == 2)
        again = max(n for n, i in enumerate(inbox.inputs) if isinstance(i, PartitionOpened))
        inbox.wait_for(lambda inputs: isinstance(inputs[-1], PositionReached) and inputs[-1].position == 3_000)
    before = [i.offset for i in inbox.inputs[:again] if isinstance(i, RecordRead)]
    after = [i.offset for i in inbox.inputs[again:] if isinstance(i, RecordRead)]
    assert before == list(range(len(before)))
    assert after == list(range(3_000))


def test_a_restart_of_what_is_not_there_is_refused(channel: Channel) -> None:
    with channel.reader(Inbox()) as reader, pytest.raises(ValueError, match="no partition 4"):
        reader.restart(Topic.CHANNEL, 4)


def test_a_log_that_the_cleaner_worked_on_is_read_to_its_end(kafka: Kafka, topic_prefix: str) -> None:
    channel = make_channel(kafka.bootstrap_servers, topic_prefix, lags=CLEANED)
    channel.write((b"first", b"kept"))
    for _ in range(4):
        channel.write(*[(b"k%d" % (n % 3), b"x" * 200) for n in range(500)])
        time.sleep(0.4)  # a segment ends only when something is appended after segment.ms
    end, records = 2_001, list[RecordRead]()
    deadline_s = time.monotonic() + WAIT_S
    while not records or len(records) > 1_000:
        assert time.monotonic() < deadline_s, f"not cleaned: {len(records)} of {end} left"
        time.sleep(0.4)
        (last,) = channel.write((b"tick", b"t"))
        end = last + 1
        records = channel.read_all(end)
    offsets = [r.offset for r in records]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == end - 1
    assert any(b - a > 1 for a, b in itertools.pairwise(offsets)), "no gap to read over"
    assert {r.key for r in records} == {b"first", b"k0", b"k1", b"k2", b"tick"}


def test_a_sink_that_blocks_holds_the_reader_back(kafka: Kafka, topic_prefix: str) -> None:
    tuning = KafkaSettings.model_construct(fetch_queue_kib=64)
    channel = make_channel(kafka.bootstrap_servers, topic_prefix, tuning=tuning)
    channel.write(*[(b"k", b"x" * 1_000) for _ in range(3_000)])
    gate, delivered = threading.Event(), Inbox()

    def sink(inputs: list) -> None:
        delivered.many(inputs)
        if len(delivered.of(RecordRead)) >= 100:
            assert gate.wait(WAIT_S)

    reader = LogReader(
        channel.settings,
        {Topic.CHANNEL: channel.info},
        sink,
        group_id=channel.topics.reader_group,
        tuning=ReaderTuning(batch_records=50),
    )
    reader.start()
    delivered.wait_for(lambda _: len(delivered.of(RecordRead)) >= 100)
    time.sleep(0.5)
    held = len(delivered.of(RecordRead))
    gate.set()
    delivered.wait_position(3_000)
    assert reader.close()
    assert held < 200
    assert [r.offset for r in delivered.of(RecordRead)] == list(range(3_000))


def test_batches_have_a_bound(channel: Channel) -> None:
    channel.write(*[(b"k", b"v")] * 1_000)
    sizes: list[int] = []
    done = threading.Event()

    def sink(inputs: list) -> None:
        sizes.append(sum(len(i.records) if isinstance(i, RecordsRead) else isinstance(i, RecordRead) for i in inputs))
        if sum(sizes) == 1_000:
            done.set()

    reader = LogReader(
        channel.settings,
        {Topic.CHANNEL: channel.info},
        sink,
        group_id=channel.topics.reader_group,
        tuning=ReaderTuning(batch_records=64),
    )
    reader.start()
    assert done.wait(WAIT_S)
    assert reader.close()
    assert max(sizes) <= 64


def test_a_record_that_is_too_large_is_refused_before_it_is_sent(channel: Channel) -> None:
    inbox = Inbox()
    with channel.writer(inbox) as writer:
        writer.append(channel.append(b"k", b"x" * 3_000_000))
        writer.append(channel.append(b"k", b"fine"))
        assert writer.flush(WAIT_S)
    (failed,), (appended,) = inbox.of(AppendFailed), inbox.of(Appended)
    assert (failed.token, failed.never_written) == (1, True)
    assert (appended.token, appended.offset) == (2, 0)


def test_a_full_queue_is_reported_as_never_written(kafka: Kafka, topic_prefix: str) -> None:
    tuning = KafkaSettings.model_construct(producer_queue_records=50)
    channel = make_channel(kafka.bootstrap_servers, topic_prefix, tuning=tuning)
    inbox = Inbox()
    with channel.writer(inbox) as writer:
        for number in range(5_000):
            writer.append(channel.append(b"k", b"%d" % number))
        assert writer.flush(WAIT_S)
    refused = {f.token for f in inbox.of(AppendFailed) if f.never_written}
    appended = {a.token for a in inbox.of(Appended)}
    assert refused
    assert refused | appended == set(range(1, 5_001))
    assert not refused & appended
    assert len(channel.read_all(len(appended))) == len(appended)


def test_a_recreated_topic_is_seen(kafka: Kafka, topic_prefix: str) -> None:
    channel = make_channel(kafka.bootstrap_servers, topic_prefix)
    # More than the new topic gets below: one that grows past the reader's position before the watch looks again is read
    # on from there, until it does (design/failure-modes.md).
    channel.write(*[(b"k", b"1")] * 50)
    admin = AdminClient(channel.settings.admin_config())
    inbox = Inbox()
    with channel.reader(inbox, tuning=FAST_WATCH):
        inbox.wait_position(50)
        _recreate(admin, topic_prefix)
        channel.write(*[(b"k", b"other")] * 5)
        inbox.wait_for(lambda inputs: any(isinstance(i, PartitionBroken) for i in inputs))
        time.sleep(1.0)
    (broken,) = inbox.of(PartitionBroken)
    assert any(words in broken.detail for words in ("re-created", "no longer exists", "ends at"))
    assert b"other" not in {r.value for r in inbox.of(RecordRead)}
    assert inbox.inputs[-1] == broken


def _recreate(admin: AdminClient, topic: str) -> None:
    for future in admin.delete_topics([topic]).values():
        future.result(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
                future.result(WAIT_S)
        except Exception:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        else:
            return


def test_a_deleted_topic_is_seen(channel: Channel) -> None:
    channel.write((b"k", b"1"))
    admin = AdminClient(channel.settings.admin_config())
    inbox = Inbox()
    with channel.reader(inbox, tuning=FAST_WATCH):
        inbox.wait_position(1)
        for future in admin.delete_topics([channel.topics.channel]).values():
            future.result(WAIT_S)
        inbox.wait_for(lambda inputs: any(isinstance(i, PartitionBroken) for i in inputs))
    assert "no longer exists" in inbox.of(PartitionBroken)[0].detail


def test_several_topics_are_read_by_one_reader(channel: Channel) -> None:
    names = channel.topics.names
    inbox, written = Inbox(), Inbox()
    reader = LogReader(
        channel.settings,
        {topic: channel.infos[name] for topic, name in names.items()},
        inbox.many,
        group_id=channel.topics.reader_group,
    )
    reader.start()
    with channel.writer(written) as writer:
        for topic in names:
            writer.append(channel.append(b"k", topic.encode(), topic))
        for topic in names:
            inbox.wait_position(1, topic)
    assert reader.close()
    assert {r.topic: r.value for r in inbox.of(RecordRead)} == {t: t.encode() for t in names}


def test_a_reader_changes_its_pace_with_the_number_of_records_and_loses_none(channel: Channel) -> None:
    inbox, written = Inbox(), Inbox()
    tuning = ReaderTuning(watch_s=1.0, gather_ms=50)
    with channel.reader(inbox, tuning=tuning) as reader, channel.writer(written) as writer:
        count, until_s = 0, time.monotonic() + WAIT_S
        while not reader._pace.gathers:
            assert time.monotonic() < until_s, "it fetches each record by itself, however many come"
            writer.append(channel.append(b"k", b"%d" % count))
            count += 1
            time.sleep(0.01)
        wait_until(lambda: not reader._pace.gathers, "it makes the last records wait")
        for _ in range(3):
            writer.append(channel.append(b"k", b"%d" % count))
            count += 1
        inbox.wait_position(count)
    assert [record.value for record in inbox.of(RecordRead)] == [b"%d" % number for number in range(count)]
