"""The logs of replays: archives, export files, topics."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from spark.channel.log import ChannelTopic
from spark.channel.survey import below
from spark.core.archive import Archive, check_complete, covers_of, why_gapped
from spark.core.job_session import say
from spark.core.schemas import ARCHIVE, batch_of
from spark.core.store import Folder, Pointer, SnapshotStore
from spark.core.streaming import kafka_options
from spark.errors import SparkJobError
from spark.replay.direct import READ_RECORDS, RECORDS, DirectLog, Records, Share, archive_reader
from spark.replay.export_rows import check_notes, export_rows, header_of
from spark.replay.replay import ReplayLog
from statechannel.audit.engine import ArchiveSource, ExportSource, Source
from statechannel.clocks import now_ms
from statechannel.errors import ExitCode
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.tail import PartitionTail, Span
from statechannel.kafka.topic_policy import ChannelTopics
from statechannel.protocol.log import RecordRead, Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_COLUMNS = ("partition", "offset", "timestamp_ms", "key", "value")
_SOURCE_COLUMNS = ("partition", "offset", "unix_millis(timestamp) as timestamp_ms", "key", "value")
_VIEW, _ARCHIVE = "view", "archive"
"""Folders of a table that the job table-view keeps."""
_PLANNED_MAX = 1_000


def archive_log(
    session: SparkSession, folder: str, *, partitions: int | None = None, warn: Callable[[str], None] = say
) -> ReplayLog:
    """An archive.

    Args:
        folder: Of the job table-view; the view beside the archive says how many partitions the channel has, and which records
            the archive holds. Or that of an archive alone, whose completeness is unknown.
        partitions: Of the channel, where a view is missing.
        warn: Called with what the answer does not contain.

    Raises:
        SparkJobError: The folder holds no archive; the archive contradicts its view; or it is unknown how many
            partitions the channel has, or something that is not true.
    """
    view = SnapshotStore((Folder(folder) / _VIEW).uri, check=lambda meta: (covers_of(meta), int(meta["written_at_ms"])))
    pointer = view.latest()
    archive = _archive_of(folder)
    rows = archive.rows(session, from_arrow_schema(ARCHIVE))
    if pointer is not None:
        return _of_table(f"the archive {folder}", archive, rows, pointer, partitions)
    if partitions is None:
        raise SparkJobError(
            f"{folder} does not say how many partitions the channel has: no view was published beside the archive",
            hint="Name the folder that the job table-view writes to, or give their number.",
            exit_code=ExitCode.TABLE_UNUSABLE,
        )
    last = {
        row["partition"]: row["last"] for row in rows.groupBy("partition").agg(F.max("offset").alias("last")).collect()
    }
    if max(last, default=0) >= partitions:
        raise _contradicted(partitions, f"{folder} holds records of partition {max(last)}")
    warn(
        f"warning: no view lies beside the archive {folder}: whether it is complete cannot be known, and not whether its newest "
        "records count (name the folder that the job table-view writes to)"
    )
    ends = {number: last.get(number, -1) + 1 for number in range(partitions)}
    why = "has gaps: records were compacted before they were archived, or a part of the archive is away"
    return ReplayLog(
        f"the archive {folder}",
        rows.select(*_COLUMNS),
        ends,
        now_ms,
        direct=lambda: _direct(archive, rows, None),
        why_gapped=lambda _: why,
        stored=rows,
    )


def _of_table(name: str, archive: Archive, rows: DataFrame, pointer: Pointer, partitions: int | None) -> ReplayLog:
    covers = covers_of(pointer.meta)
    if partitions is not None and partitions != len(covers):
        raise _contradicted(partitions, f"the view beside {name} says that the channel has {len(covers)}")
    positions = {number: cover.position for number, cover in covers.items()}
    # What lies behind is of a batch that no pointer names.
    rows = rows.where(below(positions, otherwise=False))
    check_complete(name, rows, covers)
    written_at_ms = int(pointer.meta["written_at_ms"])  # all of it was read before
    return ReplayLog(
        name,
        rows.select(*_COLUMNS),
        positions,
        lambda: written_at_ms,
        direct=lambda: _direct(archive, rows, positions),
        why_gapped=lambda number: why_gapped(covers[number]),
        stored=rows,
    )


def _contradicted(partitions: int, statement: str) -> SparkJobError:
    return SparkJobError(
        f"the number of partitions was given as {partitions}, but {statement}",
        hint="Leave it out, or correct it.",
        exit_code=ExitCode.USAGE,
    )


def _direct(archive: Archive, rows: DataFrame, positions: Mapping[int, int] | None) -> DirectLog:
    def sizes() -> dict[bytes, int]:
        counted = rows.where("namespace is not null").groupBy("namespace").count()
        return {row[0].encode(): row[1] for row in counted.orderBy(F.desc("count")).limit(_PLANNED_MAX).collect()}

    return DirectLog(archive_reader(archive, positions), sizes)


def _archive_of(folder: str) -> Archive:
    """The archive of a table, or the one that this folder is.

    Raises:
        SparkJobError: There is none.
    """
    archive = Archive((Folder(folder) / _ARCHIVE).uri)
    if not archive.days():
        archive = Archive(folder)
    if not archive.days():
        raise SparkJobError(
            f"{archive.root.uri} holds no archive",
            hint="Name the folder that the job table-view writes to.",
            exit_code=ExitCode.TABLE_UNUSABLE,
        )
    return archive


_PLAIN_NAME = re.compile(r"(?![._])[A-Za-z0-9_.=+@-]+", re.ASCII)
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9_.=+@/-]+", re.ASCII)
# Spark asks Kafka for little at a time, and waits for it each time.
_FETCHING = {"kafka.max.partition.fetch.bytes": str(8 << 20), "kafka.max.poll.records": "5000"}
_PROBED_OFFSETS = 20_000
_READS_A_CORE = 4
_OFFSETS_OF_A_READ = 50_000
_SAMPLES = 8
_SAMPLE_RECORDS = 2_000


@contextmanager
def export_log(session: SparkSession, path: Path) -> Iterator[ReplayLog]:
    """An export file, which every executor must be able to read under this name.

    Raises:
        ExportFileError: It cannot be read, or its header is malformed; `Replay.run` raises it for all other lines.
    """
    header = header_of(path)
    with _plain(path) as readable:
        yield ReplayLog(
            str(path),
            export_rows(session, readable, header),
            header.end_offsets,
            lambda: header.exported_at_ms,
            lambda notes: check_notes(path, header, notes),
            first_offsets=header.first_offsets,
        )


@contextmanager
def _plain(path: Path) -> Iterator[Path]:
    """A name of the file that Spark takes as it stands.

    It passes over hidden ones, takes brackets for patterns, and unpacks what has a name like that of a packed file.
    """
    whole = path.resolve()
    is_plain = _PLAIN_NAME.fullmatch(whole.name) and not whole.name.lower().endswith(_COMPRESSED)
    if is_plain and _PLAIN_FOLDER.fullmatch(str(whole.parent)):
        yield whole
        return
    with tempfile.TemporaryDirectory(prefix="statechannel-audit-") as folder:
        link = Path(folder) / "export.jsonl"
        link.symlink_to(whole)
        yield link


@dataclass(frozen=True, slots=True)
class DirectTopic:
    """Reader of a topic between offsets.

    Attributes:
        starts: First offset of each partition. `ends`: the one after the last.
        timeout_s: Longest wait for Kafka without any progress.
    """

    client: ClientSettings
    topic: str
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    timeout_s: float

    def read(self, share: Share, _: Sequence[str]) -> Records:
        for number, end in sorted(self.ends.items()):
            for some in self._records(number, self.starts[number], end):
                own = share.own(pa.array([record.key for record in some], pa.binary()))
                if own.any():
                    yield batch_of((record[1:] for record in compress(some, own.tolist())), RECORDS)

    def sizes(self) -> Mapping[bytes, int]:
        """Counted in samples that are spread over each partition."""
        counts: Counter[bytes] = Counter()
        for number, end in self.ends.items():
            start = self.starts[number]
            step = max(_SAMPLE_RECORDS, -(-(end - start) // _SAMPLES))
            for first in range(start, end, step):
                for some in self._records(number, first, min(end, first + _SAMPLE_RECORDS)):
                    counts.update(_names(record.key for record in some))
        return counts

    def _records(self, partition: int, start: int, end: int) -> Iterator[list[RecordRead]]:
        if start >= end:
            return
        group = ChannelTopics(self.topic).reader_group
        with PartitionTail(
            self.client, Topic.CHANNEL, self.topic, partition, group_id=group, timeout_s=self.timeout_s
        ) as tail:
            records = tail.records(Span(start, start, end))
            while some := list(islice(records, READ_RECORDS)):
                yield some


def _names(keys: Iterable[bytes | None]) -> Iterator[bytes]:
    for key in keys:
        parts = (key or b"").split(b"/", 2)
        if len(parts) > 1:
            yield b"/".join(parts[:2])


def topic_log(
    session: SparkSession,
    client: ClientSettings,
    topic: str,
    *,
    properties: Mapping[str, str] | None = None,
    start: Callable[[int], int | None] = lambda _: None,
    until: Callable[[int], int | None] = lambda _: None,
    timeout_s: float = 20.0,
) -> ReplayLog:
    """A topic from its beginning to where it ends now, or a range of it.

    Args:
        properties: Properties of the Java client, which win over the translated ones.
        start: First offset of a partition; what lies before is missing, as if it had been cleaned away. None: its beginning.
        until: Offset after the last one. None: its end.

    Raises:
        TopicMissingError: It does not exist.
    """
    kafka = _FETCHING | kafka_options(client, properties)
    channel = ChannelTopic(client, topic, kafka, timeout_s=timeout_s)
    partitions = channel.log.partitions
    ends, starts, firsts = {}, {}, {}
    for number, bounds in sorted(channel.bounds(range(partitions)).items()):
        end, first = until(number), start(number)
        ends[number] = bounds.high if end is None else min(end, bounds.high)
        firsts[number] = bounds.low
        starts[number] = min(ends[number], bounds.low if first is None else max(first, bounds.low))
    length = sum(ends.values()) - sum(starts.values())
    cores = session.sparkContext.defaultParallelism
    reads = max(partitions, min(_READS_A_CORE * cores, length // _OFFSETS_OF_A_READ))
    rows = channel.read(session, ends, starts, {"minPartitions": str(reads)})
    gapped = any(starts.values())
    if not gapped and length > _PROBED_OFFSETS:
        # The cleaner begins with what is oldest: where nothing is missing there, it has most likely not been at work.
        head = {number: min(end, _PROBED_OFFSETS) for number, end in ends.items()}
        gapped = channel.read(session, head, starts, {}).count() < sum(head.values())
    # Properties of the Java client are none of the channel's own client.
    reader = DirectTopic(client, topic, starts, ends, timeout_s)
    return ReplayLog(
        f"the topic {topic}",
        rows.selectExpr(*_SOURCE_COLUMNS),
        ends,
        now_ms,
        direct=None if properties else lambda: DirectLog(reader.read, reader.sizes),
        likely_gapped=gapped,
        first_offsets={number: first for number, first in firsts.items() if first > 0},
    )


@contextmanager
def open_log(session: SparkSession, source: Source, options: Mapping[str, str]) -> Iterator[ReplayLog]:
    """The source of an audit's question."""
    if isinstance(source, ExportSource):
        with export_log(session, source.path) as log:
            yield log
    elif isinstance(source, ArchiveSource):
        partitions = options.get("partitions")
        yield archive_log(session, source.folder, partitions=None if partitions is None else int(partitions))
    else:
        yield topic_log(session, ClientSettings(source.bootstrap_servers, source.properties), source.topic)
