"""The accepted states of compacted logs: the same, however early whoever listens is told of what happened."""

from pathlib import Path

import pytest

from statechannel.audit.transfer.export_file import read_export, write_export
from statechannel.audit.transfer.line import ExportHeader
from statechannel.audit.views import LogViews, NotInLogError, read_views
from statechannel.protocol.bundle import named_topic_hash, partition_of
from statechannel.protocol.digest import digest
from statechannel.protocol.log import RecordRead, Topic
from tests.support.report_logs import LogMaker, log_of_two

GOLDEN = Path(__file__).parents[2] / "golden" / "channel-record"
LAG_MS = 3_600_000
LOGS = sorted(GOLDEN.glob("compacted*.jsonl"))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_whoever_listens_to_a_compacted_log_hears_more_and_sees_the_same(path: Path) -> None:
    export = read_export(path)
    results: list[int] = []
    quiet = read_views(export)
    listened = read_views(export, observers=[lambda record, judgement: results.append(record.offset)])
    assert digest(part.view for part in listened.parts) == digest(part.view for part in quiet.parts)
    assert listened.tentative == quiet.tentative
    assert len(results) >= sum(sum(part.verdicts.values()) for part in quiet.parts)


def test_some_of_them_are_told_more_than_the_newest_heartbeat_vouches_for() -> None:
    more = 0
    for path in LOGS:
        export = read_export(path)
        results: list[int] = []
        read_views(export, observers=[lambda record, judgement, item=results: item.append(record.offset)])  # type: ignore[misc]
        more += len(results) > sum(sum(part.verdicts.values()) for part in read_views(export).parts)
    assert more


def views_of(folder: Path) -> tuple[LogViews, list[str]]:
    """A namespace with a split bundle in its partition, one that was deleted in another; and the ranges of the first."""
    ring = ["0x00000000_0x80000000", "0x80000000_0xffffffff"]
    log, other = LogMaker(), LogMaker()
    lower, _ = log.namespace("t/n", 2)
    log.assign(lower, "b1")
    log.split(lower)
    name = next(f"t/{letter}" for letter in "abcdefgh" if partition_of(f"t/{letter}", 2) != partition_of("t/n", 2))
    other.namespace(name, 1)
    other.move(name, "Deleted", after_ms=1_000)
    own = partition_of("t/n", 2)
    records = [record._replace(partition=own) for record in log.records]
    records += [record._replace(partition=1 - own) for record in other.records]
    path = folder / "log.jsonl"
    ends = {own: len(log.records), 1 - own: len(other.records)}
    records.sort(key=lambda record: (record.partition, record.offset))
    write_export(path, ExportHeader("c", ends, log.now_ms), records, now_ms=lambda: log.now_ms)
    return read_views(read_export(path)), [name, *ring]


def test_names_are_looked_up_in_the_partition_of_their_namespace(tmp_path: Path) -> None:
    views, (gone, lower, upper) = views_of(tmp_path)
    quarters = ["0x00000000_0x40000000", "0x40000000_0x80000000"]
    assert [key.name for key in views.live()] == [f"t/n/{name}" for name in (*quarters, upper)]
    assert [key.name for key in views.existing() if key.namespace == "t/n"] == [
        f"t/n/{name}" if name else "t/n" for name in ("", quarters[0], lower, quarters[1], upper)
    ]
    found = views.key("t/n")
    assert (found and found.name, views.key("t/x"), views.key("nonsense")) == ("t/n", None, None)
    assert views.locate(f"t/n/{upper}").name == f"t/n/{upper}"
    for topic in ("t/n/topic", "persistent://t/n/topic"):
        assert views.locate(topic).name == f"t/n/{bundle_of_topic(topic, [*quarters, upper])}"
    for missing in (f"t/n/{lower}", "t/n/0x00000000_0x10000000", "t/n", "nonsense", "t/x/topic", f"t/x/{lower}",
                    f"{gone}/topic", f"{gone}/0x00000000_0xffffffff"):  # fmt: skip
        with pytest.raises(NotInLogError):
            views.locate(missing)


def bundle_of_topic(topic: str, ranges: list[str]) -> str:
    place = named_topic_hash(topic)
    return next(name for name in reversed(ranges) if int(name[:10], 16) <= place)


def test_times_are_by_partition_and_an_empty_one_has_none(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    records = [RecordRead(Topic.CHANNEL, 1, offset, 1_000 + offset, b"junk", None) for offset in range(3)]
    write_export(path, ExportHeader("c", {0: 0, 1: 3}, 2_000), records, now_ms=lambda: 2_000)
    views = read_views(read_export(path))
    assert (views.newest_ms, views.tentative) == ((0, 1_002), False)


@pytest.mark.parametrize(("vouched", "tentative"), [(True, False), (False, True)])
def test_a_cleaned_log_without_a_heartbeat_is_tentative(tmp_path: Path, vouched: bool, tentative: bool) -> None:
    log = log_of_two(2 * LAG_MS, vouched=vouched)
    log.records = [record for record in log.records if record.offset != 1]
    path = tmp_path / "log.jsonl"
    end = log.records[-1].offset + 1
    write_export(path, ExportHeader("c", {0: end}, log.now_ms), log.records, now_ms=lambda: log.now_ms)
    views = read_views(read_export(path), compaction_lag_ms=LAG_MS)
    assert views.tentative is tentative
    assert [part.strict_from is None for part in views.parts] == [tentative]
