"""Sources of samples: names of metrics, totals over two looks, servers that misbehave, logs, files."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pytest

from loaddata.samples.formulas import Hole
from loaddata.samples.log_dirs_source import Look, bytes_in
from loaddata.samples.partitions import ClusterLayout, KafkaBroker, KafkaPartition, KafkaTopic
from loaddata.samples.prometheus_source import (
    RULES,
    AnswerError,
    Collected,
    EndpointSource,
    Figure,
    SeriesKind,
    SeriesPoint,
    ServerSource,
    TotalsBefore,
    checked_url,
    get,
    make,
    rule_of,
    vector_of,
)
from loaddata.samples.sample_files import FileSource, write_samples
from loaddata.samples.sample_topic import InvalidSampleReason
from loaddata.samples.sources import SourceError, SourceOptions, looks_again, open_source
from statechannel.embedded.process import find_free
from tests.support.metric_servers import serving

LAYOUT = ClusterLayout(
    cluster_id="c",
    brokers=(KafkaBroker(id=1, host="127.0.0.1"), KafkaBroker(id=2, host="other")),
    topics={
        "a": KafkaTopic(
            name="a",
            partitions=tuple(
                KafkaPartition(partition=number, replicas=(1, 2), leader=leader)
                for number, leader in enumerate((1, 2, 1))
            ),
        )
    },
)

# As the example configuration of the JMX exporter for Kafka 2 has it, in one-minute rates.
RATES = b"""
# HELP kafka_server_brokertopicmetrics_bytesinpersec_oneminuterate Attribute exposed for management
# TYPE kafka_server_brokertopicmetrics_bytesinpersec_oneminuterate untyped
kafka_server_brokertopicmetrics_bytesinpersec_oneminuterate{topic="a",} 10240.0
kafka_server_brokertopicmetrics_bytesinpersec_oneminuterate 20480.0
kafka_server_brokertopicmetrics_bytesoutpersec_oneminuterate{topic="a",} 1.5E3
kafka_server_brokertopicmetrics_replicationbytesinpersec_oneminuterate 0.0
kafka_log_log_size{partition="0",topic="a",} 700.0
kafka_log_log_size{partition="2",topic="a",} 900.0
kafka_log_log_size{partition="1",topic="a",} 5.0
java_lang_operatingsystem_processcpuload 0.3
"""
# As the default format of the exporter and MSK's have it: the attribute last, the MBean's name as a label.
DEFAULT_FORMAT = b"""
kafka_server_BrokerTopicMetrics_OneMinuteRate{name="BytesInPerSec",topic="a",} 10240.0
kafka_server_BrokerTopicMetrics_OneMinuteRate{name="BytesInPerSec",} 20480.0
kafka_server_BrokerTopicMetrics_OneMinuteRate{name="BytesOutPerSec",topic="a",} 1500.0
kafka_server_BrokerTopicMetrics_OneMinuteRate{name="ReplicationBytesInPerSec",} 0.0
kafka_server_BrokerTopicMetrics_OneMinuteRate{name="MessagesInPerSec",topic="a",} 3.0
kafka_log_Log_Value{name="Size",topic="a",partition="0",} 700.0
kafka_log_Log_Value{name="Size",topic="a",partition="2",} 900.0
kafka_log_Log_Value{name="LogEndOffset",topic="a",partition="2",} 1.0
java_lang_OperatingSystem_ProcessCpuLoad 0.3
"""


def totals(bytes_in: float, cpu_s: float) -> bytes:
    return f"""
# TYPE kafka_server_brokertopicmetrics_bytesin_total counter
kafka_server_brokertopicmetrics_bytesin_total{{topic="a",}} {bytes_in}
kafka_server_brokertopicmetrics_bytesin_total {2 * bytes_in}
kafka_server_brokertopicmetrics_bytesout_total{{topic="a",}} {bytes_in / 2}
kafka_server_brokertopicmetrics_replicationbytesin_total 0.0
kafka_log_log_size{{partition="0",topic="a",}} 700.0
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total {cpu_s}
java_lang_operatingsystem_availableprocessors 4.0
""".encode()


def figures(taken: Any) -> list[tuple]:
    return [
        (sample.partition, sample.disk_bytes, sample.bytes_in_per_s, sample.bytes_out_per_s, sample.cpu_share)
        for sample in taken.samples
    ]


@pytest.mark.parametrize("body", [RATES, DEFAULT_FORMAT], ids=["rules", "default-format"])
def test_a_brokers_endpoint_in_both_usual_forms(body: bytes) -> None:
    with serving(lambda *_: (200, body)) as url:
        source = make(SourceOptions(endpoints=(f"1={url}/metrics",)))
        taken = source.take(LAYOUT, taken_at_ms=60_000, mono_s=1.0)
    # 10240 and 1500 between two leaders; 0.3 * 5120 / (20480 * 3)
    share = pytest.approx(0.025)
    assert figures(taken) == [(0, 700, 5_120, 750, share), (2, 900, 5_120, 750, share)]
    assert taken.holes == {("sample", Hole.BROKER_SILENT): 1}
    assert taken.silent == {2: "no endpoint was given for it"}
    assert not looks_again(taken)


def test_totals_become_rates_at_the_second_look() -> None:
    bodies = [totals(1_000, 10), totals(21_000, 18), totals(5_000, 19)]
    with serving(lambda *_: (200, bodies.pop(0))) as url:
        source = EndpointSource(SourceOptions(endpoints=(url,)))  # its host is the broker's
        first = source.take(LAYOUT, taken_at_ms=0, mono_s=100.0)
        second = source.take(LAYOUT, taken_at_ms=0, mono_s=110.0)
        third = source.take(LAYOUT, taken_at_ms=0, mono_s=120.0)
    assert figures(first) == [(0, 700, None, None, None)]
    assert looks_again(first)
    assert first.holes["bytes-in", Hole.FIRST_LOOK] == 2
    # 20000 in 10 s between two leaders; 8 s of CPU in 10 s on 4 processors is 0.2; 0.2 * 1000 / (4000 * 3)
    share = pytest.approx(0.2 / 12)
    assert figures(second) == [(0, 700, 1_000, 500, share), (2, None, 1_000, 500, share)]
    assert not looks_again(second)
    assert third.holes["bytes-in", Hole.WENT_BACK] == 2  # the broker was started anew


def test_one_broker_that_fails_is_told_and_the_others_go_on() -> None:
    def answer(path: str, _: dict) -> tuple[int, bytes]:
        return (200, RATES) if path == "/1" else (500, b"") if path == "/2" else (404, b"")

    with serving(answer) as url:
        source = EndpointSource(SourceOptions(endpoints=(f"1={url}/1", f"2={url}/2"), retries=0))
        taken = source.take(LAYOUT, taken_at_ms=0, mono_s=0.0)
    assert [sample.broker for sample in taken.samples] == [1, 1]
    assert "HTTP 500" in taken.silent[2]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (
            b'kafka_topic_partition_current_offset{topic="t",partition="0"} 5\nprocess_cpu_seconds_total 7\n',
            "kafka_exporter",
        ),
        (b"process_cpu_seconds_total 7\n", "neither traffic nor sizes"),
    ],
)
def test_metrics_of_something_else_than_a_broker_are_named(body: bytes, what: str) -> None:
    with serving(lambda *_: (200, body)) as url:
        taken = EndpointSource(SourceOptions(endpoints=(f"1={url}",))).take(LAYOUT, taken_at_ms=0, mono_s=0.0)
    assert taken.samples == ()
    assert what in taken.silent[1]
    assert "JMX exporter" in taken.silent[1]


@pytest.mark.parametrize("body", [b"\xff\xfe", b"no metrics {", b"a{b='x'} y", b'a{b="x" 1', b"<html>"])
def test_what_is_not_prometheus_text_is_told(body: bytes) -> None:
    with serving(lambda *_: (200, body)) as url:
        taken = EndpointSource(SourceOptions(endpoints=(f"1={url}",))).take(LAYOUT, taken_at_ms=0, mono_s=0.0)
    assert taken.samples == ()
    assert "not Prometheus' text form" in taken.silent[1]


def test_long_and_slow_answers_end() -> None:
    def slow(path: str, _: dict) -> tuple[int, bytes]:
        if path == "/slow":
            time.sleep(0.6)
        return 200, b"x" * 50_000

    with serving(slow) as url:
        with pytest.raises(AnswerError, match="longer than 40000 bytes"):
            get(url, timeout_s=5, bytes_max=40_000)
        with pytest.raises(AnswerError, match="timed out"):
            get(f"{url}/slow", timeout_s=0.2, bytes_max=10**6)
        assert len(get(url, timeout_s=5, bytes_max=50_000)) == 50_000
    with pytest.raises(AnswerError, match="refused"):
        get(f"http://127.0.0.1:{find_free()}", timeout_s=1, bytes_max=10)


def test_a_second_try_and_no_other_address_than_the_one_named() -> None:
    answers = [(503, b"busy"), (200, b"ok"), (302, b"file:///etc/hostname"), (404, b"")]
    with serving(lambda *_: answers.pop(0)) as url:
        assert get(url, timeout_s=2, bytes_max=10, retries=1) == b"ok"
        with pytest.raises(AnswerError, match="HTTP 302"):
            get(url, timeout_s=2, bytes_max=10, retries=1)
        with pytest.raises(AnswerError, match="HTTP 404"):
            get(url, timeout_s=2, bytes_max=10, retries=3)
    assert answers == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/x", "broker:7071", "http://", "http://user:pw@host/", ""]
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(SourceError) as caught:
        checked_url(url)
    assert caught.value.exit_code == 2
    assert "pw" not in str(caught.value)


def test_options_that_contradict_each_other_or_the_cluster() -> None:
    with pytest.raises(SourceError, match="either endpoints"):
        make(SourceOptions())
    with pytest.raises(SourceError, match="either endpoints"):
        make(SourceOptions(endpoints=("http://a",), server="http://b"))
    for endpoints, words in (
        (("http://nowhere:1",), "no broker of the cluster is at nowhere"),
        (("9=http://other:1",), "which the cluster does not have"),
        (("http://other:1", "2=http://other:2"), "two endpoints belong to broker 2"),
    ):
        source = EndpointSource(SourceOptions(endpoints=endpoints))
        with pytest.raises(SourceError, match=words):
            source.take(LAYOUT, taken_at_ms=0, mono_s=0.0)
    with pytest.raises(SourceError, match="unknown source of samples `nobody`"):
        open_source("nobody", SourceOptions())
    with pytest.raises(SourceError):
        open_source("file", SourceOptions())


def vector(*series: tuple[dict[str, str], Any]) -> bytes:
    result = [{"metric": labels, "value": [1.5, value]} for labels, value in series]
    return orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


def test_a_prometheus_server() -> None:
    asked = []

    def answer(path: str, parameters: dict[str, list[str]]) -> tuple[int, bytes]:
        assert path == "/prefix/api/v1/query"
        query = unquote(parameters["query"][0])
        asked.append(query)
        result, two, stranger = ({"instance": name} for name in ("127.0.0.1:7071", "two", "elsewhere:1"))
        if "_bytesin_total" in query:
            return 200, vector(
                (result | {"topic": "a"}, "10240"), (result, "20480"), (two | {"topic": "a"}, "300"), (stranger, "1")
            )
        if "replicationbytesin_total" in query:
            return 200, vector((result, "0"), (two, "NaN"))
        if "log_log_size)" in query:
            return 200, vector(
                (result | {"topic": "a", "partition": "0"}, "700"), (two | {"topic": "a", "partition": "1"}, "+Inf")
            )
        if "process_cpu_seconds_total" in query:
            return 200, vector((result, "1.2"))
        if "availableprocessors" in query:
            return 200, vector((result, "4"))
        return 200, vector()

    with serving(answer) as url:
        source = make(SourceOptions(server=f"{url}/prefix/", brokers={"two": 2}))
        assert isinstance(source, ServerSource)
        taken = source.take(LAYOUT, taken_at_ms=0, mono_s=0.0)
    # 1.2 processors of 4 are 0.3; 0.3 * 5120 / (20480 * 3)
    share = pytest.approx(0.025)
    assert figures(taken) == [(0, 700, 5_120, None, share), (1, None, 300, None, None), (2, None, 5_120, None, share)]
    assert taken.holes["disk", Hole.TOO_LARGE] == 1
    assert taken.holes["bytes-out", Hole.NOT_TOLD] == 3
    assert taken.silent == {}
    assert any("elsewhere:1" in remark for remark in taken.remarks)
    assert 'rate({__name__=~"(?i:kafka_server_brokertopicmetrics_bytesin_total)"}[2m])' in asked


@pytest.mark.parametrize("label", ["is_future", "is-future", "isFuture"])
@pytest.mark.parametrize(("value", "counts"), [("true", False), ("True", False), ("false", True), ("", True)])
def test_a_log_on_its_way_to_another_directory_is_not_the_partitions(label: str, value: str, counts: bool) -> None:
    collected, rule = Collected(), next(rule for rule in RULES if rule.figure is Figure.LOG_SIZE)
    for labels, size in (({}, 5e9), ({label: "true"}, 5e7)):
        collected.add(1, rule, {"topic": "a", "partition": "0"} | labels, size)
    collected.add(1, rule, {"topic": "a", "partition": "2", label: value}, 7.0)
    assert collected.series[1][rule] == {("a", 0): 5e9} | ({("a", 2): 7.0} if counts else {})


def test_series_of_one_place_that_differ_are_a_hole_and_equal_ones_are_harmless() -> None:
    kafka, node = ({"instance": f"127.0.0.1:{port}", "job": job} for port, job in ((7071, "kafka"), (9100, "node")))
    cpu: list = [(kafka, "4"), (node, "0.01")]
    processors: list = [(kafka, "8"), (kafka | {"replica": "b"}, "8"), (kafka | {"replica": "c"}, "8")]

    def answer(_: str, parameters: dict[str, list[str]]) -> tuple[int, bytes]:
        (query,) = parameters["query"]
        series = {
            "bytesinpersec_oneminuterate": [(kafka | {"topic": "a"}, "1000"), (kafka, "1000")],
            "replicationbytesinpersec_oneminuterate": [(kafka, "0")],
            "process_cpu_seconds_total": cpu,
            "availableprocessors": processors,
        }
        of = next((each for name, each in series.items() if f"_{name})" in query or f":{name})" in query), [])
        return 200, vector(*(each for each in of if 'job="kafka"' not in query or each[0]["job"] == "kafka"))

    with serving(answer) as url:
        for several in (cpu, cpu[::-1]):
            cpu[:] = several
            taken = make(SourceOptions(server=url)).take(LAYOUT, taken_at_ms=0, mono_s=0.0)
            assert {sample.cpu_share for sample in taken.samples} == {None}
            assert taken.holes["cpu", Hole.SEVERAL_SERIES] == 2
            (remark,) = taken.remarks
            for word in ("instance", "127.0.0.1:7071", "127.0.0.1:9100", "job", "kafka", "node", "--selector"):
                assert word in remark
        chosen = make(SourceOptions(server=url, selector={"job": "kafka"})).take(LAYOUT, taken_at_ms=0, mono_s=0.0)
    # 4 processors of 8 are 0.5; 0.5 * 500 / (1000 * 3)
    assert [sample.cpu_share for sample in chosen.samples] == [pytest.approx(0.5 / 6)] * 2
    assert chosen.remarks == ()


def test_a_page_of_several_clusters_is_narrowed_by_a_label() -> None:
    page = b"".join(RATES.replace(b'topic="a"', b'topic="a",cluster="%b"' % name) for name in (b"x", b"y"))
    page = page.replace(b"700.0", b"800.0", 1)
    with serving(lambda *_: (200, page)) as url:
        taken, chosen = (
            EndpointSource(SourceOptions(endpoints=(f"1={url}",), selector=selector)).take(
                LAYOUT, taken_at_ms=0, mono_s=0.0
            )
            for selector in ({}, {"cluster": "y"})
        )
    assert [sample.disk_bytes for sample in taken.samples] == [None, 900]
    assert [sample.disk_bytes for sample in chosen.samples] == [700, 900]
    (remark,) = taken.remarks
    assert "cluster x, y" in remark


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"status":"error","error":"bad"}', b'{"status":"success","data":{"resultType":"matrix"}}'],
)
def test_what_is_no_answer_of_a_prometheus_server(body: bytes) -> None:
    with pytest.raises(AnswerError):
        vector_of(body)
    with serving(lambda *_: (200, body)) as url, pytest.raises(SourceError, match="did not answer a query"):
        ServerSource(SourceOptions(server=url)).take(LAYOUT, taken_at_ms=0, mono_s=0.0)


def test_every_rule_is_found_by_its_own_name_in_any_case() -> None:
    for rule in RULES:
        labels = {"name": rule.mbean} if rule.mbean else {}
        assert rule_of(SeriesPoint(rule.name.upper(), labels, 1.0)) is rule
    assert {rule.figure for rule in RULES} == set(Figure)
    assert rule_of(SeriesPoint("kafka_log_log_value", {"name": "LogEndOffset"}, 1.0)) is None
    odd = Collected()
    odd.add(1, RULES[-1], {"topic": "a", "partition": "x"}, 1.0)
    assert odd.series == {}


def test_rates_stand_over_totals_and_a_clock_that_stands_still_tells_nothing() -> None:
    with serving(lambda *_: (200, RATES + totals(1_000, 1).replace(b"kafka_log_log_size", b"other"))) as url:
        taken = EndpointSource(SourceOptions(endpoints=(f"1={url}",))).take(LAYOUT, taken_at_ms=0, mono_s=0.0)
    assert [sample.bytes_in_per_s for sample in taken.samples] == [5_120.0] * 2
    before = TotalsBefore()
    rule = next(item for item in RULES if item.kind is SeriesKind.TOTAL)
    assert before.rate(rule, ("a", -1), 5.0, 1.0) is Hole.FIRST_LOOK
    assert before.rate(rule, ("a", -1), 6.0, 1.0) is Hole.FIRST_LOOK
    assert before.rate(rule, ("a", -1), float("nan"), 2.0) is Hole.NOT_A_NUMBER
    assert before.rate(rule, ("a", -1), 8.0, 3.0) == 1.0


@pytest.mark.parametrize(
    ("before", "now", "rate"),
    [
        (None, Look(100, 0, 10, 10.0, 1), Hole.FIRST_LOOK),
        (Look(100, 0, 10, 0.0, 1), Look(300, 0, 20, 10.0, 1), 20),  # 200 bytes in 10 s
        (Look(100, 0, 10, 0.0, 1), Look(100, 0, 10, 10.0, 1), 0),
        (Look(100, 0, 10, 0.0, 1), Look(60, 6, 10, 10.0, 1), 0),  # only deleted
        (Look(100, 0, 10, 0.0, 1), Look(150, 5, 20, 10.0, 1), 10),  # cut: 10 records of 150 / 15 bytes in 10 s
        (Look(100, 0, 10, 0.0, 1), Look(80, 0, 20, 10.0, 1), 4),  # compacted: 10 of 80 / 20 bytes
        (Look(100, 0, 10, 0.0, 1), Look(300, 0, 20, 10.0, 2), 15),  # another leader: 10 of 300 / 20 bytes
        (Look(100, 0, 10, 0.0, 1), Look(0, 20, 20, 10.0, 1), Hole.NOT_TOLD),
        (Look(100, 0, 10, 0.0, 1), Look(50, 0, 5, 10.0, 1), Hole.WENT_BACK),
        (Look(100, 0, 10, 5.0, 1), Look(200, 0, 20, 5.0, 1), Hole.FIRST_LOOK),
    ],
)
def test_growth_of_a_log(before: Look | None, now: Look, rate: Any) -> None:
    assert bytes_in(before, now) == rate


def test_files_in_both_forms_and_with_the_documents_columns(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(
        "Cluster,IP,Broker ID,Topic,Partition,NW IN,NW OUT,Disk Size,Cpu Load,Create Time\n"
        "c,10.0.0.1,1,a,0,5120.5,10,700,0.025,60000\n"
        "c,10.0.0.1,1,a,2,,,900,,60000\n"
        "other,10.0.0.1,1,a,2,1,1,1,1,60000\n"
        "c,10.0.0.1,1,a,2,nan,1,1,1,60000\n"
        "c,10.0.0.1,1,a\n"
    )
    taken = FileSource(path).take(LAYOUT, taken_at_ms=5, mono_s=0.0)
    assert figures(taken) == [(0, 700, 5_120.5, 10, 0.025), (2, 900, None, None, None)]
    assert {sample.taken_at_ms for sample in taken.samples} == {60_000}
    assert sorted(taken.remarks) == [
        f"{path}, line {line}: {why}"
        for line, why in (
            (4, InvalidSampleReason.OTHER_CLUSTER),
            (5, InvalidSampleReason.FIGURE),
            (6, InvalidSampleReason.FIELDS),
        )
    ]
    lines = tmp_path / "samples.jsonl"
    with lines.open("wb") as file:
        assert write_samples(file, taken.samples) == 2
        file.write(b"\njunk\n" + b"x" * 20_000 + b"\n")
        write_samples(file, taken.samples[:1])
    lines.write_bytes(lines.read_bytes()[:-2] + b',"disk_bytes":7}\n')
    again = FileSource(lines).take(LAYOUT, taken_at_ms=5, mono_s=0.0)
    assert again.samples == taken.samples
    for why in (InvalidSampleReason.NOT_JSON, InvalidSampleReason.NAME_TWICE):
        assert any(str(why) in remark for remark in again.remarks)
    lines.write_bytes(b"# HELP kafka_brokers Number of brokers\nkafka_brokers 3\n")
    with pytest.raises(SourceError, match="Prometheus"):
        FileSource(lines).take(LAYOUT, taken_at_ms=5, mono_s=0.0)
