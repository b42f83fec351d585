"""kill -9 of the broker: nothing acknowledged is lost, every token ends once, both sides go on."""

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from statechannel.embedded import KafkaServer
from statechannel.engine.inputs import Appended, AppendFailed
from statechannel.kafka.reader import ReaderTuning
from statechannel.protocol.log import RecordRead
from statechannel.settings.groups_cluster import KafkaSettings
from tests.support.kafka_adapter import WAIT_S, Inbox, make_channel
from tests.support.kafka_lanes import embedded_options, serve_first


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("outage"), options=embedded_options()) as server:
        serve_first(server.pid)
        yield server


@pytest.fixture
def own_kafka(broker: KafkaServer) -> KafkaServer:
    """Of this file, running, whatever the test before has done to it."""
    if not broker.is_ready():
        broker.start()
        serve_first(broker.pid)
    return broker


def test_kill_and_restart_while_appending(own_kafka: KafkaServer, topic_prefix: str) -> None:
    # Longer than any start, so that one session bridges it: on a busy machine a start takes longer than 30 s.
    tuning = KafkaSettings.model_construct(delivery_timeout_ms=180_000)
    channel = make_channel(own_kafka.bootstrap_servers, topic_prefix, tuning=tuning)
    written, read = Inbox(), Inbox()
    available: list[bool] = []
    stop = threading.Event()
    tokens: list[int] = []
    quick = ReaderTuning(watch_s=0.5, watch_timeout_s=1.0)
    with channel.reader(read, tuning=quick, availability=available.append), channel.writer(written) as writer:

        def produce() -> None:
            while not stop.wait(0.001):
                effect = channel.append(b"k%d" % (len(tokens) % 50), b"%d" % len(tokens))
                tokens.append(effect.token)
                writer.append(effect)

        thread = threading.Thread(target=produce)
        thread.start()
        written.wait_answers(500)
        own_kafka.kill()
        before = len(written.of(Appended))
        time.sleep(1.0)
        own_kafka.start()
        written.wait_for(lambda inputs: len(inputs) > before + 500)
        stop.set()
        thread.join()
        assert writer.flush(WAIT_S)
        end = max(a.offset for a in written.of(Appended)) + 1
        read.wait_position(end)
    answers = Counter(a.token for a in written.inputs if isinstance(a, Appended | AppendFailed))
    assert answers == Counter(tokens)
    records = {r.offset: r.value for r in read.of(RecordRead)}
    acked = {a.offset: b"%d" % (a.token - 1) for a in written.of(Appended)}
    assert {offset: records.get(offset) for offset in acked} == acked
    offsets = [r.offset for r in read.of(RecordRead)]
    assert offsets == sorted(set(offsets)), "the reader went back, or delivered twice"
    values = [int(r.value or b"") for r in read.of(RecordRead)]
    assert values == sorted(set(values)), "reordered or written twice"
    assert False in available
    assert available[-1] is True


def test_an_append_into_an_outage_ends_as_unknown(own_kafka: KafkaServer, topic_prefix: str) -> None:
    tuning = KafkaSettings.model_construct(delivery_timeout_ms=1_500, request_timeout_ms=1_000)
    channel = make_channel(own_kafka.bootstrap_servers, topic_prefix, tuning=tuning)
    inbox = Inbox()
    with channel.writer(inbox) as writer:
        writer.append(channel.append(b"k", b"before"))
        inbox.wait_answers(1)
        own_kafka.kill()
        writer.append(channel.append(b"k", b"lost"))
        inbox.wait_answers(2)
        own_kafka.start()
        writer.append(channel.append(b"k", b"after"))
        # May run into the short time-out too while the broker comes back: ask again until it is in.
        deadline_s = time.monotonic() + WAIT_S
        while len(inbox.of(Appended)) < 2:
            assert time.monotonic() < deadline_s
            writer.flush(5)
            if len(inbox.of(Appended)) < 2:
                writer.append(channel.append(b"k", b"after"))
    (lost,) = [f for f in inbox.of(AppendFailed) if f.token == 2]
    assert not lost.never_written
    assert writer.session > 1  # nothing was delivered for a delivery time-out


def test_a_reader_that_starts_without_kafka_begins_when_it_comes(own_kafka: KafkaServer, topic_prefix: str) -> None:
    channel = make_channel(own_kafka.bootstrap_servers, topic_prefix)
    channel.write((b"k", b"1"))
    own_kafka.kill()
    inbox = Inbox()
    available: list[bool] = []
    with channel.reader(inbox, availability=available.append):
        time.sleep(2.0)
        assert inbox.inputs == []
        own_kafka.start()
        inbox.wait_position(1)
    assert [r.value for r in inbox.of(RecordRead)] == [b"1"]
    assert available == [False, True]


def test_a_fatal_error_of_the_real_producer_begins_a_new_session(own_kafka: KafkaServer, topic_prefix: str) -> None:
    channel = make_channel(own_kafka.bootstrap_servers, topic_prefix)
    inbox = Inbox()
    with channel.writer(inbox) as writer:
        writer.append(channel.append(b"k", b"1"))
        inbox.wait_answers(1)
        _raise_fatal(writer._session.producer)
        deadline_s = time.monotonic() + WAIT_S
        while writer.session == 1:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        writer.append(channel.append(b"k", b"2"))
        inbox.wait_answers(2)
    assert [(a.token, a.offset, a.session) for a in inbox.of(Appended)] == [(1, 0, 1), (2, 1, 2)]


def test_close_during_an_outage_answers_what_is_open(own_kafka: KafkaServer, topic_prefix: str) -> None:
    channel = make_channel(own_kafka.bootstrap_servers, topic_prefix)
    inbox = Inbox()
    with channel.writer(inbox) as writer:
        writer.append(channel.append(b"k", b"1"))
        inbox.wait_answers(1)
        own_kafka.kill()
        for _ in range(20):
            writer.append(channel.append(b"k", b"2"))
        began_s = time.monotonic()
        assert writer.close(0.5) is False
        assert time.monotonic() - began_s < 10
    failed = inbox.of(AppendFailed)
    assert [f.token for f in failed] == list(range(2, 22))
    assert [f.never_written for f in failed] == [False] * 4 + [True] * 16, "what waits here was never handed over"


def _raise_fatal(producer: confluent_kafka.Producer) -> None:
    """librdkafka has a function for this; the Python client does not pass it on."""
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    (library,) = folder.glob("librdkafka-*")
    function = ctypes.CDLL(str(library)).rd_kafka_test_fatal_error
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    # struct Handle { PyObject_HEAD; rd_kafka_t *rk; ... }
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value
    assert function(handle, 45, b"made by a test") == 0  # 45: OUT_OF_ORDER_SEQUENCE_NUMBER
