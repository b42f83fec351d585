"""`kafka-layout/1`: written and read back, what may be left out, and what is refused with which words."""

import json
from pathlib import Path

import pytest

from loaddata.samples.cluster_files import LayoutUnusableError, read_layout_file, write_layout
from loaddata.samples.partitions import (
    ClusterLayout,
    KafkaBroker,
    KafkaPartition,
    KafkaTopic,
    LogDir,
    PartitionLoad,
    PartitionLoads,
)

LAYOUT = ClusterLayout(
    cluster_id="lab",
    brokers=(
        KafkaBroker(
            id=1, host="b1", port=9092, rack="a", log_dirs=(LogDir(path="/d", total_bytes=100, usable_bytes=40),)
        ),
        KafkaBroker(id=2, rack="b"),
        KafkaBroker(id=9, alive=False),
    ),
    topics={
        "logs": KafkaTopic(
            name="logs",
            topic_id="T1",
            min_isr=2,
            internal=True,
            partitions=(
                KafkaPartition(partition=0, replicas=(1, 2), leader=2, isr=(1, 2), adding=(1,), removing=(2,)),
                KafkaPartition(partition=1, replicas=(2, 9), leader=None, isr=(), offline=(9,)),
            ),
        ),
        "orders": KafkaTopic(
            name="orders", partitions=(KafkaPartition(partition=0, replicas=(2,), leader=2, isr=(2,)),)
        ),
    },
    read_at_ms=17,
    remarks=("broker 2 did not answer",),
)
LOADS = PartitionLoads(
    of={
        ("logs", 0): PartitionLoad(disk_bytes=5, bytes_in_per_s=6, bytes_out_per_s=7, cpu_units=8, completeness=0.5),
        ("orders", 0): PartitionLoad(disk_bytes=0),
    },
    from_ms=1,
    to_ms=2,
    source="by hand",
)


def test_it_has_a_line_for_each_broker_and_topic(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout.json", LAYOUT, LOADS)
    lines = (tmp_path / "layout.json").read_text().splitlines()
    assert [line.split(",")[0].strip() for line in lines if line.startswith(" ")] == [
        '{"id":1',
        '{"id":2',
        '{"id":9',
        '{"name":"logs"',
        '{"name":"orders"',
    ]


def test_what_may_be_left_out(tmp_path: Path) -> None:
    given = {
        "format": "kafka-layout/1",
        "brokers": [{"id": 2}, {"id": 1}, {"id": 3, "alive": False}],
        "topics": [
            {"name": "z", "partitions": [{"partition": 1, "replicas": [1, 2]}, {"partition": 0, "replicas": [2, 1]}]},
            {"name": "a", "partitions": [{"partition": 0, "replicas": [3, 1], "offline": [3]}]},
        ],
    }
    layout, loads = read_layout_file(_written(tmp_path, given))
    assert [broker.id for broker in layout.brokers] == [1, 2, 3]
    assert list(layout.topics) == ["a", "z"]
    assert [partition.replicas for partition in layout.topics["z"].partitions] == [(2, 1), (1, 2)]
    assert layout.topics["z"].partitions[0].leader == 2
    assert layout.topics["z"].partitions[0].isr == (2, 1)
    assert (layout.topics["a"].partitions[0].leader, layout.topics["a"].partitions[0].isr) == (1, (1,))
    assert not loads.of


def _written(folder: Path, value: object) -> Path:
    path = folder / "layout.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def _with(topics: object = (), brokers: object = ({"id": 1}, {"id": 2}), **more: object) -> dict[str, object]:
    return {"format": "kafka-layout/1", "brokers": brokers, "topics": topics, **more}


def _one_partition(**partition: object) -> dict[str, object]:
    return _with([{"name": "t", "partitions": [{"partition": 0, "replicas": [1, 2], **partition}]}])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("[]", "expected an object, found []"),
        ('"kafka-layout/1"', "expected an object"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"format": "kafka-layout/1", "format": "x"}', "the name 'format' appears twice"),
        ('{"format": "kafka-layout/1", "brokers": [{"id": NaN}]}', "NaN is not a number"),
        ('{"format": "kafka-layout/1", "brokers": [{"id": -Infinity}]}', "-Infinity is not a number"),
        ({"version": 1, "partitions": []}, "is not a kafka-layout, but an assignment"),
        ({"format": "kafka-layout/2"}, "format kafka-layout/2 is not known"),
        ({"format": "partition-plan/1"}, "it has format 'partition-plan/1'"),
        ({"format": "kafka-layout/1"}, "brokers is missing"),
        (_with(brokers=[]), "brokers: expected at least one"),
        (_with(brokers=[{"id": "1"}]), "brokers[0].id: expected a valid integer, found '1'"),
        (_with(brokers=[{"id": True}]), "brokers[0].id: expected a valid integer"),
        (_with(brokers=[{"id": 1, "rak": "a"}]), "brokers[0].rak is not a field"),
        (_with(brokers=[{"id": 1, "rack": " "}]), "brokers[0].rack: expected a name or null"),
        (_with(brokers=[{"id": 1}, {"id": 1}]), "brokers: 1 is duplicated"),
        (_with(brokers=[{"id": -4}]), "brokers[0].id: expected 0 to"),
        (_with(brokers=[{"id": 1, "log_dirs": [{"path": "/a"}, {"path": "/a"}]}]), "log_dirs: /a is duplicated"),
        (_with(brokers=[{"id": 1, "log_dirs": [{"path": "/a", "total_bytes": -1}]}]), "total_bytes: expected 0 to"),
        (_with([{"name": "a/b", "partitions": []}]), "'a/b' is not a valid topic name"),
        (_with([{"name": "a", "partitions": []}, {"name": "a", "partitions": []}]), "topics: a is duplicated"),
        (_with([{"name": "t", "partitions": [{"partition": 1, "replicas": [1]}]}]), "topic t: partition 0 is missing"),
        (
            _with([{"name": "t", "min_isr": 0, "partitions": []}]),
            "min_isr: expected greater than or equal to 1, found 0",
        ),
        (
            _with([{"name": "t", "partitions": [{"partition": 0, "replicas": [1]}] * 2}]),
            "partitions of topic t: 0 is duplicated",
        ),
        (_one_partition(replicas=[]), "t-0: replicas: expected broker ids"),
        (_one_partition(replicas=[1, 1]), "t-0: replicas: broker 1 is duplicated"),
        (_one_partition(replicas=[1, 7]), "t-0: replicas: broker 7 is not listed"),
        (_one_partition(leader=3), "t-0: leader: broker 3 has no replica"),
        (_one_partition(isr=[3]), "t-0: isr: broker 3 has no replica"),
        (_one_partition(offline=[4]), "t-0: offline: broker 4 has no replica"),
        (_one_partition(disk_bytes=-1), "disk_bytes: expected greater than or equal to 0"),
        (_one_partition(disk_bytes=1.5), "disk_bytes: expected a valid integer, found 1.5"),
        (_one_partition(bytes_in_per_s=10**30), "bytes_in_per_s: expected less than or equal to"),
        (_one_partition(completeness=1.5), "completeness: expected less than or equal to 1"),
        ('{"format": "kafka-layout/1", "cluster_id": "\\ud800", "brokers": [], "topics": []}', "it is not JSON"),
    ],
)
def test_what_is_refused(tmp_path: Path, value: object, words: str) -> None:
    with pytest.raises(LayoutUnusableError) as result:
        read_layout_file(_written(tmp_path, value))
    assert words in str(result.value)
    assert "layout.json" in str(result.value)
    assert len(str(result.value)) < 2_000
    assert result.value.hint
    assert result.value.exit_code == 7


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 4)
    for path, words in [
        (tmp_path / "none", "cannot be read: No such file"),
        (tmp_path, "is not a file"),
        (Path("/dev/zero"), "is not a file"),
        (tmp_path / "binary", "is not text: byte 128 is not UTF-8"),
        (Path("a\0b"), "cannot be read"),
    ]:
        with pytest.raises(LayoutUnusableError, match=words):
            read_layout_file(path)


def test_of_many_faults_eight_are_told(tmp_path: Path) -> None:
    many = [{"partition": number, "replicas": [7]} for number in range(100)]
    with pytest.raises(LayoutUnusableError, match="and 92 more"):
        read_layout_file(_written(tmp_path, _with([{"name": "t", "partitions": many}])))


def test_loads_that_could_not_be_summed_in_64_bits_are_refused(tmp_path: Path) -> None:
    """Sums and distances are reckoned with in arrays of int64, and an overflow would be a wrong plan."""
    path = tmp_path / "huge.json"
    load = PartitionLoad(disk_bytes=2**59)
    write_layout(path, LAYOUT, PartitionLoads(of={("logs", 0): load}))
    read_layout_file(path)  # two replicas: 2^60
    write_layout(path, LAYOUT, PartitionLoads(of={("logs", 0): load, ("orders", 0): load}))
    with pytest.raises(
        LayoutUnusableError, match="disk_bytes of all replicas together is 1729382256910270464, at most"
    ):
        read_layout_file(path)
