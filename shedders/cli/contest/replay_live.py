"""`statechannel simulate replay-live`: recorder of a running cluster's load reports, for `simulate compare --history`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from loaddata.report.record import ReportKind, parse_tombstone
from shedders.cli.options import write_file
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.listing import parse_length_ms
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, say
from statechannel.cli.kit.progress import progress
from statechannel.clocks import duration
from statechannel.errors import ExitCode
from statechannel.files import check_writable
from statechannel.protocol.side_record import SideRecord

if TYPE_CHECKING:
    from statechannel.kafka.light_topic import LightBatch, LightReader
    from statechannel.queries.connection import Connection

RECORDS_MAX: Final = 500_000
HELD_MAX_BYTES: Final = 512 * 2**20
_LOOK_S: Final = 0.2


@with_connection
def replay_live(
    connect: Connect,
    max_time: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="LENGTH",
            help="How long to record after the existing history, e.g. 90s, 10m, 1h; 0s: history only.",
        ),
    ] = "10m",
    history: Annotated[
        Path, typer.Option("--history", metavar="FILE", help="Output file: one report per line.")
    ] = Path("load-history.jsonl"),
    output: OutputAs = Output.TABLE,
) -> None:
    """Record the load reports of a running cluster, for `simulate compare --history`.

    Reports are read from the oldest that Kafka has (one hour, by default) and then as brokers write them. Ctrl-C ends the
    recording early and keeps what was recorded. The command sends nothing to brokers, and writes nothing to Kafka.
    """
    length_s = _length_s(max_time)
    check_writable(history)
    if history.exists():
        raise CommandError(
            f"{history} exists already",
            hint="Name another file with --history, or remove this one.",
            code=ExitCode.USAGE,
        )
    recording = record(connect(), length_s)
    write_file(history, recording.content())
    summary = recording.summary()
    say(
        f"{summary['records']} reports of {summary['brokers']} brokers over {duration(summary['span_ms'])} are in {history}"
    )
    if recording.unreadable:
        say(f"{recording.unreadable} invalid records were skipped")
    if output is Output.JSON:
        print_json({"file": str(history), **summary})


def _length_s(text: str) -> float:
    return 0.0 if text in ("0", "0s") else parse_length_ms(text, "--for", beyond="one hour is usually enough.") / 1_000


@dataclass(slots=True)
class Recording:
    """Load reports of a cluster, in the order read.

    Attributes:
        unreadable: Number of records whose value is not a JSON object.
        full: Further records are skipped, as `RECORDS_MAX` or `HELD_MAX_BYTES` is reached.
    """

    unreadable: int = 0
    full: bool = False
    _lines: dict[tuple[ReportKind, int, int], tuple[str, bytes | None]] = field(default_factory=dict)
    _newest: dict[tuple[ReportKind, str], int] = field(default_factory=dict)
    _held_bytes: int = 0

    def take(self, kind: ReportKind, batch: LightBatch) -> None:
        """Add records; records that are read twice, after a topic is read again, count once."""
        if batch.opened:
            self._newest.clear()
        for record in batch.records:
            key = (record.key or b"").decode(errors="replace")
            if self.full or not self._counts(kind, key, record):
                continue
            self._lines[kind, record.offset, record.timestamp_ms] = (key, record.value)
            self._held_bytes += len(record.value or b"")
            self.full = len(self._lines) >= RECORDS_MAX or self._held_bytes >= HELD_MAX_BYTES

    def _counts(self, kind: ReportKind, key: str, record: SideRecord) -> bool:
        """Whether a record counts: a report if it is JSON, a tombstone if it ends the newest report before it."""
        if record.value is None:
            newest, tombstone = self._newest.get((kind, key)), parse_tombstone(record.headers, record.offset)
            return newest is not None and tombstone is not None and tombstone.honoured_over(newest)
        if not _is_object(record.value):
            self.unreadable += 1
            return False
        self._newest[kind, key] = record.offset
        return True

    def content(self) -> bytes:
        """One line per record, ordered by log time: `{"at_ms", "key", "kind", "value"}`; value: the report, or null."""
        return b"".join(
            orjson.dumps(
                {"at_ms": at_ms, "key": key, "kind": kind, "value": None if value is None else orjson.Fragment(value)},
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for (kind, _, at_ms), (key, value) in sorted(
                self._lines.items(), key=lambda record: (record[0][2], record[0][0], record[0][1])
            )
        )

    def summary(self) -> dict[str, Any]:
        """Summary for `--output json`."""
        times = [at_ms for _, _, at_ms in self._lines]
        return {
            "records": len(self._lines),
            "brokers": len({key for key, _ in self._lines.values()}),
            "first_ms": min(times, default=None),
            "last_ms": max(times, default=None),
            "span_ms": max(times, default=0) - min(times, default=0),
        }

    def __len__(self) -> int:
        return len(self._lines)


def record(connection: Connection, length_s: float) -> Recording:
    """Read the load topics from their beginning, and then new records for `length_s`.

    Raises:
        KafkaAdapterError: Kafka is out of reach.
        CommandError: The topics do not exist, or are empty.
    """
    recording = Recording()
    with _readers(connection, recording) as readers:
        _catch_up(connection, readers)
        begun_s = time.monotonic()
        try:
            with progress("recording (Ctrl-C ends it)", max(1, round(length_s)), unit="s") as update:
                while (elapsed_s := time.monotonic() - begun_s) < length_s and not recording.full:
                    update(elapsed_s)
                    time.sleep(min(_LOOK_S, length_s - elapsed_s))
        except KeyboardInterrupt:
            say("interrupted: the recording ends here")
        for reader in readers:
            if reader.last_error:
                say(f"last error of Kafka: {reader.last_error}")
    if recording.full:
        say(f"the recording ended early: it holds {len(recording)} records")
    if not len(recording):
        raise CommandError(
            "the load topics have no report",
            hint="Brokers write reports when their balancing extension is enabled (design/load-data.md); wait with --for.",
            code=ExitCode.NOT_FOUND,
        )
    return recording


@contextmanager
def _readers(connection: Connection, recording: Recording) -> Iterator[list[LightReader]]:
    from statechannel.kafka.light_topic import LightReader
    from statechannel.kafka.topic_policy import LoadTopics
    from statechannel.kafka.topics import TopicAdmin
    from statechannel.queries.live_log import naming_address, notify_if_slow

    topics = LoadTopics(connection.topics.channel)
    names = {ReportKind.BROKER_LOAD: topics.broker_load, ReportKind.TOP_BUNDLES: topics.top_bundles}
    with notify_if_slow(connection):
        there = TopicAdmin(connection.client, timeout_s=connection.timeout_s).describe(list(names.values()))
    missing = [name for name in names.values() if name not in there]
    if missing:
        raise CommandError(
            f"topic {' and topic '.join(missing)} not found",
            hint="Brokers create them when their balancing extension is enabled. Check --channel.",
            code=ExitCode.TOPIC_REFUSED,
        )
    readers: list[LightReader] = []
    try:
        with naming_address(connection):
            for kind, name in names.items():
                reader = LightReader(
                    connection.client, name, partial(recording.take, kind), group_id=connection.topics.reader_group
                )
                readers.append(reader)
                reader.start()
        yield readers
    finally:
        for reader in readers:
            reader.close(connection.timeout_s)


def _catch_up(connection: Connection, readers: list[LightReader]) -> None:
    from statechannel.kafka.errors import KafkaUnavailableError

    for reader in readers:
        if not reader.wait_caught_up(connection.timeout_s):
            cause = f" ({reader.last_error})" if reader.last_error else ""
            raise KafkaUnavailableError(
                f"the load topics were not read to their ends within {connection.timeout_s:g} s{cause}.",
                hint="Check bootstrap.servers and that Kafka runs: `statechannel kafka status`.",
            )


def _is_object(value: bytes) -> bool:
    try:
        return isinstance(orjson.loads(value), dict)
    except orjson.JSONDecodeError:
        return False
