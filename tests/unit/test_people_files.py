"""Files as people have them: a byte order mark and CRLF change nothing; what is no UTF-8 is named by one error of the reader."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaddata.samples.cluster_files import read_layout_file, read_loads_file
from loaddata.samples.sample_files import FileSource
from shedders.contest.scenario import load_scenario
from shedders.kafka_rebalance.planning.plan_files import plan_bytes, read_plan
from shedders.kafka_rebalance.planning.request import read_capacities
from shedders.snapshots.file import read_snapshot, snapshot_bytes
from statechannel.cli.kit.contexts import read_contexts
from statechannel.errors import StateChannelError
from statechannel.http_api.access import read_credentials
from statechannel.kafka.client_settings import read_properties_file
from statechannel.settings.load import load
from tests.docs.generate import ROOT
from tests.unit.partitions.plans import PLAN
from tests.unit.partitions.test_partition_sources import LAYOUT
from tests.unit.shedders.test_snapshot import parsed

Reader = Callable[[Path], Any]
SAMPLE = '{"format":"partition-sample/1","cluster":"c","broker":1,"host":"h","topic":"a","partition":0,"taken_at_ms":60000}\n'
HISTORY = '{"at_ms":5,"key":"h:1","value":null}\n{"at_ms":6,"key":"h:1","value":null}\n'


def samples(path: Path) -> Any:
    return FileSource(path).take(LAYOUT, taken_at_ms=0, mono_s=0.0).samples


READERS: dict[str, tuple[str, Reader]] = {
    "settings.toml": ("[membership]\nexpiry_s = 8\n", lambda path: load(config=path)),
    "scenario.toml": (
        (ROOT / "shedders/contest/scenarios/broker-loss.toml").read_text(),
        lambda path: load_scenario(str(path)),
    ),
    "client.properties": ("client.id=x\n# y\nsasl.username=a\n", read_properties_file),
    "capacities.toml": ("[default]\ndisk_bytes = 5\n[brokers.3]\ncpu = 0.5\n", read_capacities),
    "contexts.toml": ("current = 'a'\n[contexts.a]\nbootstrap_servers = 'h:1'\n", lambda _: read_contexts()),
    "access.txt": ("me read cert:me\nyou force cert:you\n", read_credentials),
    "layout.json": ((ROOT / "design/examples/partitions/cluster.json").read_text(), read_layout_file),
    "plan.json": (plan_bytes(PLAN).decode(), read_plan),
    "snapshot.json": (snapshot_bytes(parsed()).decode(), read_snapshot),
    "samples.jsonl": (SAMPLE.replace("}", ',"disk_bytes":7}') + SAMPLE.replace("}", ',"bytes_in_per_s":1}'), samples),
    "samples.csv": ("topic,partition,broker,taken_at_ms,disk_bytes\na,0,1,60000,7\na,1,1,60000,8\n", samples),
    "loads.jsonl": (
        '{"format":"kafka-loads/1","cluster":"","from_ms":1,"to_ms":2,"source":"s","partitions":1}\n["a",0,1,2,3,4,1.0]\n',
        lambda path: read_loads_file(path).of,
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_one_way_to_read_what_people_wrote(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, read = READERS[name]
    path = tmp_path / name
    monkeypatch.setenv("STATECHANNEL_CONTEXTS", str(path))

    def as_read(content: bytes) -> Any:
        path.write_bytes(content)
        path.chmod(0o600)
        return read(path)

    plain, crlf = text.encode(), text.replace("\n", "\r\n").encode()
    expected = as_read(plain)
    assert expected
    for content in (b"\xef\xbb\xbf" + plain, crlf, b"\xef\xbb\xbf" + crlf):
        assert as_read(content) == expected
    packed = ((gzip.compress(plain), "gzip"), (b"\x28\xb5\x2f\xfd" + plain, "zstd"), (lzma.compress(plain), "xz"))
    for content, word in (
        *packed,
        (b"PK\x03\x04" + plain, "zip"),
        (text.encode("utf-16"), "UTF-16"),
        (b"a\xffb\n" + plain, ""),
    ):
        with pytest.raises(StateChannelError, match=word) as caught:
            as_read(content)
        assert str(path) in f"{caught.value}"
        assert caught.value.exit_code in {2, 7, 8}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("topic,partition,broker,taken_at_ms,disk_bytes,Disk Size\na,0,1,60000,7,8\n", 1),
        ("topic;partition;disk_bytes\na;0;7\n", 1),
        ("topic\tpartition\na\t0\n", 1),
        ("a,b\n1,2\n", 1),
        ("topic,partition,broker,taken_at_ms,disk_bytes\na,0,1,60000,1_000\n", 2),
        ("topic,partition,broker,taken_at_ms,disk_bytes\na,0,1,60000,7\na,2,1,60000,\u0667\n", 3),
        ("topic,partition,broker,taken_at_ms,cpu_share\na,0,1,60000,0;5\n", 2),
        ("topic,partition,broker,taken_at_ms,cpu_share\na,0,1,60000,0,5\n", 2),
    ],
)
def test_csv_of_other_habits_is_refused_with_its_line(content: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(content)
    try:
        taken = FileSource(path).take(LAYOUT, taken_at_ms=0, mono_s=0.0)
        (message,) = taken.remarks
        assert len(taken.samples) == line - 2
    except StateChannelError as error:
        message = str(error)
    assert f"{path}, line {line}:" in message
