"""Where a replay's records come from: an export file, a topic up to its end as of now, or an archive."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from spark.archive import Archive
from spark.client_properties import kafka_options
from spark.errors import JobExitCode, SparkJobError, TableFormatError
from spark.replay import Log
from spark.replay_export import check_notes, export_rows, header_of
from spark.store import SnapshotStore
from statechannel.kafka.client_settings import ClientSettings
from statechannel.kafka.errors import TopicMissingError
from statechannel.kafka.topic_bounds import BoundsAsker
from statechannel.kafka.topics import TopicAdmin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLAIN_NAME = re.compile(r"(?![._])[A-Za-z0-9_.=+@-]+", re.ASCII)
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9_.=+@/-]+", re.ASCII)
_PROBED_OFFSETS = 20_000
_READS_A_CORE = 4
_OFFSETS_OF_A_READ = 50_000


def wall_ms() -> int:
    """Now, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@contextmanager
def export_log(session: SparkSession, path: Path) -> Iterator[Log]:
    """An export file, which every executor must be able to read under this name.

    Raises:
        ExportFileError: It cannot be read, or its header is malformed; `Replay.run` raises it for all other lines.
    """
    header = header_of(path)
    with _plain(path) as readable:
        yield Log(
            str(path),
            export_rows(session, readable, header),
            header.end_offsets,
            lambda: header.exported_at_ms,
            lambda notes: check_notes(path, notes),
        )


@contextmanager
def _plain(path: Path) -> Iterator[Path]:
    """A name of the file that Spark takes as it stands: it passes over hidden ones, and takes brackets for patterns."""
    whole = path.resolve()
    if _PLAIN_NAME.fullmatch(whole.name) and _PLAIN_FOLDER.fullmatch(str(whole.parent)):
        yield whole
        return
    with tempfile.TemporaryDirectory(prefix="statechannel-audit-") as folder:
        link = Path(folder) / "export.jsonl"
        link.symlink_to(whole)
        yield link


def topic_log(
    session: SparkSession,
    client: ClientSettings,
    topic: str,
    *,
    properties: Mapping[str, str] | None = None,
    timeout_s: float = 20.0,
) -> Log:
    """A topic from its beginning to where it ends now.

    Args:
        properties: Properties of the Java client, which win over the translated ones.

    Raises:
        TopicMissingError: It does not exist.
    """
    found = TopicAdmin(client, timeout_s=timeout_s).describe([topic]).get(topic)
    if found is None:
        raise TopicMissingError(
            f"the topic {topic} does not exist at {client.bootstrap_servers}",
            hint="Check --channel and --bootstrap-servers, or create the topics with `statechannel init`.",
        )
    asked = BoundsAsker(client, timeout_s=timeout_s).ask((topic, number) for number in range(found.partitions))
    bounds = {number: one for (_, number), one in sorted(asked.items())}
    ends = {number: one.high for number, one in bounds.items()}
    options = kafka_options(client, properties, read_text=lambda name: Path(name).read_text(encoding="utf-8"))
    length = sum(one.high - one.low for one in bounds.values())
    cores = session.sparkContext.defaultParallelism
    reads = max(found.partitions, min(_READS_A_CORE * cores, length // _OFFSETS_OF_A_READ))
    rows = topic_rows(session, options | {"minPartitions": str(reads)}, topic, ends)
    gapped = any(one.low > 0 for one in bounds.values())
    if not gapped and length > _PROBED_OFFSETS:
        # The cleaner begins with what is oldest: where nothing is missing there, it has most likely not been at work.
        head = {number: min(end, _PROBED_OFFSETS) for number, end in ends.items()}
        gapped = topic_rows(session, options, topic, head).count() < sum(head.values())
    return Log(f"the topic {topic}", rows, ends, wall_ms, likely_gapped=gapped)


def topic_rows(session: SparkSession, options: Mapping[str, str], topic: str, ends: Mapping[int, int]) -> DataFrame:
    """Records of a topic from its beginning to these offsets, exclusive."""
    earliest = {topic: {str(number): -2 for number in ends}}
    until = {topic: {str(number): end for number, end in ends.items()}}
    reader = session.read.format("kafka").options(**options)
    reader = reader.option("assign", orjson.dumps({topic: sorted(ends)}).decode())
    reader = reader.option("startingOffsets", orjson.dumps(earliest).decode())
    reader = reader.option("endingOffsets", orjson.dumps(until).decode())
    time_ms = F.unix_millis("timestamp").alias("timestamp_ms")
    return reader.load().select("partition", "offset", time_ms, "key", "value")


def archive_log(session: SparkSession, folder: str, *, table: str | None, partitions: int | None) -> Log:
    """An archive.

    Args:
        table: The table-view that was published with the archive: it says how many partitions the channel has, and which of the
            archive's batches count.
        partitions: Of the channel, where there is no table.

    Raises:
        SparkJobError: Neither is given, or the folder holds no archive.
    """
    archive = Archive(folder)
    rows = archive_rows(session, archive)
    positions: dict[int, int] = {}
    if table is not None:
        pointer = SnapshotStore(table).latest()
        if pointer is None:
            raise TableFormatError(table, "it has no snapshot yet")
        positions = {int(number): place["position"] for number, place in pointer.meta["partitions"].items()}
        below = F.lit(False)
        for number, position in positions.items():
            below = F.when(F.col("partition") == number, F.col("offset") < position).otherwise(below)
        rows = rows.where(below)
    elif partitions is not None:
        found = rows.groupBy("partition").agg(F.max("offset").alias("last")).collect()
        positions = dict.fromkeys(range(partitions), 0) | {row["partition"]: row["last"] + 1 for row in found}
    else:
        raise SparkJobError(
            f"how many partitions the channel has does not stand in the archive {folder}",
            hint="Name the table-view that was written with it (table=DIR), or give their number (partitions=N).",
            exit_code=2,
        )
    return Log(
        f"the archive {folder}", rows.select("partition", "offset", "timestamp_ms", "key", "value"), positions, wall_ms
    )


def archive_rows(session: SparkSession, archive: Archive) -> DataFrame:
    """All rows of an archive's batches, with what it says of them.

    Raises:
        SparkJobError: There is none.
    """
    folders = [(archive.root / day / name).uri for day in archive.days() for _, _, name in archive.batches(day)]
    if not folders:
        raise SparkJobError(
            f"{archive.root.uri} holds no archive",
            hint="Name the folder that the job table-view was given as --archive.",
            exit_code=JobExitCode.TABLE_UNUSABLE,
        )
    return session.read.parquet(*folders)
