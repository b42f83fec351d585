"""load-views on a real Kafka: who is dead is buried, who is alive never, at whatever moment the job is stopped."""

import asyncio
import contextlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka.admin import AdminClient

from loaddata.report.record import ReportKind
from spark.core.running import Work, run_query
from spark.core.store import SnapshotStore
from spark.core.streaming import Streaming
from spark.errors import TopicBrokenError
from spark.load.options import LoadViewsOptions
from spark.load.views import LoadViews
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.topic_policy import LoadTopics
from statechannel.kafka.topics import create_topics
from statechannel.protocol.side_record import SideRecord
from tests.support.kafka_lanes import Kafka
from tests.support.light_brokers import Log, broker, until
from tests.support.load_channel import FakeChannel
from tests.support.waits import WAIT_S

pytestmark = pytest.mark.kafka

TTL_S, GRACE_S, TRIGGER_S = 15.0, 3.0, 1.0
"""A broker of this process that a busy machine holds up for as long as the first two together would rightly be buried."""
SUSPECT_S = 3.0
"""Where a grace follows that nobody lives to see the end of, the living may be suspects, too."""
BROKERS = {"ttl_s": TTL_S, "report_max_age_s": 0.8, "top_interval_s": 0.8, "tombstones": "spark"}


Meta = dict[str, dict[str, Any]]


def meta_of(folder: Path) -> Meta:
    """What the pointer says of each topic, by kind."""
    found = SnapshotStore(str(folder / "table" / "views")).latest()
    return {} if found is None else {topic["kind"]: topic for topic in found.meta["topics"].values()}


class Job:
    """The job in a thread of this process, on the tests' session."""

    def __init__(
        self,
        session,
        kafka: Kafka,
        channel: str,
        folder: Path,
        streaming: Mapping[str, object] | None = None,
        **more: object,
    ) -> None:
        self.folder = folder
        client = ClientSettings(kafka.bootstrap_servers)
        query = Streaming(client, channel, str(folder / "checkpoint"), **{"trigger_s": TRIGGER_S, **(streaming or {})})
        rules = {"ttl_s": TTL_S, "grace_s": GRACE_S}
        self.views = LoadViews(session, query, LoadViewsOptions(str(folder / "table"), **{**rules, **more}))
        self.stop = threading.Event()
        self.error: Exception | None = None
        self.work = Work(self.views.take, self.stop)
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            run_query(lambda: self.views.start(self.work), stop=self.stop, work=self.work, say=lambda _: None)
        except Exception as error:
            self.error = error

    @property
    def meta(self) -> Meta:
        return meta_of(self.folder)

    def suspects(self) -> set[str]:
        return {name for topic in self.meta.values() for name in topic["suspects"]}

    def end(self) -> None:
        self.stop.set()
        self.thread.join(WAIT_S)


@contextlib.contextmanager
def running(session, kafka: Kafka, channel: str, folder: Path, **more: object) -> Iterator[Job]:
    job = Job(session, kafka, channel, folder, **more)
    job.thread.start()
    try:
        yield job
    finally:
        job.end()
    if job.error is not None:
        raise job.error


async def come_true(true: Callable[[], object], what: str = "", *, wait_s: float = WAIT_S) -> None:
    await until(true, what, wait_s=wait_s)


class Both:
    """Both topics."""

    def __init__(self, kafka: Kafka, channel: str) -> None:
        topics = LoadTopics(channel)
        self.logs = {
            ReportKind.BROKER_LOAD: Log(kafka, topics.broker_load),
            ReportKind.TOP_BUNDLES: Log(kafka, topics.top_bundles),
        }

    def write_as(self, name: str, like: str = "b1") -> None:
        """A report of a broker that never reports again."""
        for log in self.logs.values():
            value = next(one.value for one in reversed(log.of(like)) if one.value is not None)
            log.write(name, value.replace(f'"{like}"'.encode(), f'"{name}"'.encode()))

    def nulls(self, name: str) -> list[SideRecord]:
        return [one for log in self.logs.values() for one in log.of(name) if one.value is None]

    def buried(self, name: str) -> bool:
        return all(log.of(name)[-1].value is None for log in self.logs.values())

    def close(self) -> None:
        for log in self.logs.values():
            log.close()


def once(both: Both, folder: Path) -> None:
    """The history has each record once, and none is missing up to where the views are."""
    files = f"{folder}/table/history/*/*/*.parquet"
    found = duckdb.sql(f"select kind, \"offset\", fate from read_parquet('{files}')").fetchall()
    positions = {kind: topic["position"] for kind, topic in meta_of(folder).items()}
    assert max(Counter(row[:2] for row in found).values()) == 1
    for kind, log in both.logs.items():
        assert {row[1] for row in found if row[0] == kind} >= {
            one.offset for one in log.records if one.offset < positions[kind]
        }
    assert {row[2] for row in found} <= {"taken", "honoured", "not-honoured", "late"}


async def test_who_is_dead_is_buried_and_who_is_alive_never_however_the_job_is_restarted(
    session, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    channel = FakeChannel(leader="b1")
    async with broker(kafka, topic_prefix, "b1", channel, **BROKERS) as b1:
        channel.registered |= {"dead1", "dead2"}
        await come_true(lambda: "b1" in b1.top_bundles() and "b1" in b1.broker_loads())
        both = Both(kafka, topic_prefix)
        try:
            # A grace that no machine is too slow for: it ends as a suspect, and that soon.
            with running(session, kafka, topic_prefix, tmp_path, ttl_s=SUSPECT_S, grace_s=3_600) as job:
                await come_true(lambda: job.meta or job.error, "the job is up")
                both.write_as("dead1")
                await come_true(lambda: "dead1" in job.suspects() or job.error, "it is suspect")
                assert not both.nulls("dead1")

            # The job ends there, loses its checkpoint, and is away for longer than anybody may be silent. What waits is
            # read bit by bit: nobody is judged by halves.
            shutil.rmtree(tmp_path / "checkpoint")
            both.write_as("dead2")
            await asyncio.sleep(TTL_S + GRACE_S)
            assert not both.nulls("dead1")
            waiting = len(both.logs[ReportKind.BROKER_LOAD].records)
            # Half of it at a time: a fixed number might be less than what comes meanwhile on a slow machine.
            portion = sum(len(log.records) for log in both.logs.values()) // 2
            started_ms = time.time_ns() // 1_000_000
            batches = {"max_offsets_per_trigger": portion}
            with running(session, kafka, topic_prefix, tmp_path, streaming=batches) as job:
                for name in ("dead1", "dead2"):
                    await come_true(lambda name=name: both.buried(name) or job.error, "it is buried")
                    for log in both.logs.values():
                        report, null = log.of(name)[:2]
                        assert null.value is None
                        assert null.timestamp_ms - started_ms >= 1_000 * GRACE_S, "a whole grace after the start"
                        headers = dict(null.headers)
                        assert headers["reason"] == b"expired"
                        assert headers["last-offset"] == b"%d" % report.offset
                    await come_true(lambda name=name: name not in b1.broker_loads() and name not in b1.top_bundles())
                assert job.meta["broker-load"]["position"] >= waiting
            assert "b1" in b1.broker_loads()
            once(both, tmp_path)
            assert not both.nulls("b1")
        finally:
            both.close()


def test_what_is_there_is_taken_in_once_and_another_topic_stops_the_job(
    session, kafka: Kafka, topic_prefix: str, tmp_path: Path
) -> None:
    topics, client = LoadTopics(topic_prefix), ClientSettings(kafka.bootstrap_servers)
    create_topics(client, topics, replication_factor=1, timeout_s=WAIT_S)

    def all_of_it(**more: object) -> Meta:
        job = Job(session, kafka, topic_prefix, tmp_path, streaming={"available_now": True}, **more)
        job.run()
        if job.error is not None:
            raise job.error
        return job.meta

    log = Log(kafka, topics.broker_load)
    log.write("b1", b"junk")
    log.write("b1", None)
    log.close()
    assert all_of_it()["broker-load"]["position"] == 2
    assert all_of_it()["broker-load"]["position"] == 2
    files = f"{tmp_path}/table/history/*/*/*.parquet"
    found = duckdb.sql(f"select \"offset\", fate, reason from read_parquet('{files}') order by all").fetchall()
    assert found == [(0, "dropped", "not-json"), (1, "dropped", "bare-null")]

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([topics.broker_load])[topics.broker_load].result(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while True:  # it goes in the background
        try:
            create_topics(client, topics, replication_factor=1, timeout_s=WAIT_S)
            log = Log(kafka, topics.broker_load)
            log.write("b2", b"more junk")
            log.close()
            break
        except Exception:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)
    with pytest.raises(TopicBrokenError, match="re-created") as error:
        all_of_it()
    assert error.value.exit_code == ExitCode.TOPIC_BROKEN
    assert "--accept-new-topic" in error.value.hint
    assert all_of_it(accept_new_topic=True)["broker-load"]["position"] == 1
    rows = duckdb.sql(f"select count(*), count(distinct topic_id) from read_parquet('{files}')").fetchall()
    assert rows == [(3, 2)]
