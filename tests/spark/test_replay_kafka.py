"""The replay of a real topic: whole, and a range of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from spark.replay.logs import topic_log
from spark.replay.replay import Replay, ReplayRequest
from statechannel.audit.engine import AuditQuestion, ExportSource, LiveSource
from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.cli.kit.connection import connect
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.kafka.topics import create_topics
from statechannel.queries.live_log import live_source
from tests.spark.asking import ALL, as_json, ask_local, check
from tests.support.kafka_lanes import Kafka
from tests.support.waits import WAIT_S
from tests.twin import loggen
from tests.unit.core.against_twin import KNOBS

pytestmark = pytest.mark.kafka


def fill(kafka: Kafka, name: str, lines: list[loggen.Line]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5})
    for line in lines:
        producer.produce(name, line.value, line.key, line.partition)
    assert producer.flush(WAIT_S) == 0


def log_of(seed: int, name: str, partitions: int) -> list[loggen.Line]:
    """Records that Kafka takes: a compacted topic takes none without a key."""
    log = loggen.generate(seed, replace(KNOBS[name], partitions=partitions, steps=600))
    return [line for line in log.lines if line.key is not None]


def source_of(kafka: Kafka, name: str) -> LiveSource:
    return live_source(connect(kafka.bootstrap_servers, name, None, None, None))


def export(source: LiveSource, folder: Path) -> Path:
    path = folder / "export.jsonl"
    source.export(path)
    return path


def test_a_range_is_a_log_without_its_beginning(session: Any, kafka: Kafka, topic_prefix: str, tmp_path: Path) -> None:
    topics = ChannelTopics(topic_prefix)
    create_topics(ClientSettings(kafka.bootstrap_servers), topics, partitions=2, replication_factor=1, timeout_s=WAIT_S)
    fill(kafka, topic_prefix, log_of(8, "honest", 2))
    source = source_of(kafka, topic_prefix)
    assert check(session, AuditQuestion(source, wants=ALL), tmp_path) == "full"
    whole = read_export(export(source, tmp_path))
    start, until = {0: 40, 1: 0}, {0: whole.header.end_offsets[0] - 3, 1: 60}
    records = [
        record
        for number, every in whole.partitions.items()
        for record in every
        if start[number] <= record.offset < until[number]
    ]
    part = tmp_path / "part.jsonl"
    write_export(part, ExportHeader("t", until, 0), records, now_ms=lambda: whole.header.exported_at_ms)
    question = AuditQuestion(ExportSource(part), wants=ALL)
    client = ClientSettings(kafka.bootstrap_servers)
    log = topic_log(session, client, topic_prefix, start=start.get, until=until.get)
    assert log.likely_gapped
    with Replay(session, log, ReplayRequest(compaction_lag_ms=question.compaction_lag_ms, wants=ALL)) as replay:
        assert as_json(replay.run()).decode() == ask_local(question, tmp_path)[0]
        assert replay.passes == 1
