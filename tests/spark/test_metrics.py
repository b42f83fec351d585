"""Figures of a query come from Spark's own reports; tasks of batch work are counted as they end."""

import socket
import threading
import urllib.request

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark.core.metrics import JobMetrics, measured
from spark.core.running import Work, run_query
from spark.core.streaming import Streaming
from spark.errors import SparkJobError
from statechannel.kafka.client_settings import ClientSettings
from tests.support.waits import WAIT_S, wait_until


def test_a_batch_shows_in_the_figures_and_over_http(session, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\nthree\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = threading.Event()
    metrics = JobMetrics("test-job")
    rows = session.readStream.format("text").load(str(tmp_path / "in"))
    work = Work(lambda frame, _: frame.collect(), stop)
    writer = rows.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "c"))
    with measured(session, metrics, port):
        run_query(writer.trigger(availableNow=True).start, stop=stop, work=work)
        wait_until(
            lambda: metrics.registry.get_sample_value("statechannel_spark_batches_total", {"job": "test-job"}) == 1
        )
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
            page = answer.read().decode()
    assert 'statechannel_spark_input_rows_total{job="test-job"} 3.0' in page
    assert 'statechannel_spark_batch_seconds{job="test-job"}' in page


@pytest.mark.kafka
def test_lag_on_a_real_log(session, tmp_path, kafka, topic_prefix):
    address = {"bootstrap.servers": kafka.bootstrap_servers}
    admin = AdminClient(address)  # held: its answers end with it
    admin.create_topics([NewTopic(topic_prefix, 1)])[topic_prefix].result(WAIT_S)
    producer = Producer(address)
    for number in range(5):
        producer.produce(topic_prefix, str(number), partition=0)
    assert producer.flush(WAIT_S) == 0
    stop = threading.Event()
    streaming = Streaming(
        ClientSettings(kafka.bootstrap_servers), "unused", str(tmp_path / "c"), max_offsets_per_trigger=3
    )
    lags = []

    class Looking(JobMetrics):
        def onQueryProgress(self, event):  # noqa: N802 - Spark's name
            super().onQueryProgress(event)
            labels = {"job": "lag-job", "topic": topic_prefix, "partition": "0"}
            lags.append(self.registry.get_sample_value("statechannel_spark_lag_records", labels))

    metrics = Looking("lag-job")
    work = Work(lambda frame, _: frame.collect(), stop)
    options = {**streaming.source(may_lose=False), "subscribe": topic_prefix, "startingOffsets": "earliest"}
    rows = session.readStream.format("kafka").options(**options).load()
    writer = rows.writeStream.foreachBatch(work).option("checkpointLocation", streaming.checkpoint)
    with measured(session, metrics, None):
        run_query(writer.trigger(availableNow=True).start, stop=stop, work=work)
        wait_until(lambda: len(lags) >= 2)
    assert lags == [2, 0]


def test_a_port_that_is_taken_is_one_clear_error(session):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SparkJobError, match=f"127.0.0.1:{port}"), measured(session, JobMetrics("x"), port):
            pytest.fail("it was served all the same")
