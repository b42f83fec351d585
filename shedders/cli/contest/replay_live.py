"""`statechannel simulate replay-live`: records what a running cluster reports of its load, and runs the contest on it."""

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

from loaddata.report.record import ReportKind
from loaddata.report.tombstone import parse_tombstone
from shedders.cli.contest.compare import CompareOptions, contest, scratch_folder
from shedders.cli.contest.options import (
    Contenders,
    Jobs,
    OutFolder,
    Seeds,
    check_contenders,
    need_extra,
    parse_seeds,
)
from shedders.cli.contest.own_cluster import Own, own_source
from shedders.cli.results import write_file
from shedders.cli.times import parse_length_ms
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.folders import make_folder
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, duration, print_json, progress, say
from statechannel.errors import ExitCode
from statechannel.files import check_writable

if TYPE_CHECKING:
    from statechannel.cli.kit.connection import Connection
    from statechannel.kafka.light_topic import LightBatch, LightReader, LightRecord

RECORDS_MAX: Final = 500_000
HELD_MAX_BYTES: Final = 512 * 2**20
_LOOK_S: Final = 0.2


@with_connection
def replay_live(
    connect: Connect,
    max_time: Annotated[
        str,
        typer.Option(
            "--for", metavar="LENGTH", help="So long after what Kafka still has: 90s, 10m, 1h; 0s: not at all."
        ),
    ] = "10m",
    history: Annotated[
        Path, typer.Option("--history", metavar="FILE", help="Where the reports go, a line each.")
    ] = Path("load-history.jsonl"),
    replace: Annotated[bool, typer.Option("--replace", help="Write over a recording that is there.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run the contest on them, and say which strategy suits.")
    ] = False,
    contenders: Contenders = None,
    seeds: Seeds = "1-5",
    jobs: Jobs = 1,
    out: OutFolder = None,
    output: OutputAs = Output.TABLE,
) -> None:
    """Record the load reports of a running cluster; with --compare, say which strategy and settings suit it.

    The reports are read as brokers write them, from the oldest that Kafka still has (an hour, by default). Ctrl-C ends the
    recording earlier, and what was recorded until then counts. No broker is asked, and nothing is written to Kafka.
    """
    length_s = _length_s(max_time)
    chosen_seeds = parse_seeds(seeds)
    if compare:
        need_extra()
        check_contenders(contenders or ())
    check_writable(history)
    if history.exists() and not replace:
        raise CommandError(
            f"{history} is there already",
            hint="Name another file by --history, or write over it by --replace.",
            code=ExitCode.USAGE,
        )
    folder = None if out is None else make_folder(out)
    recording = record(connect(), length_s)
    write_file(history, recording.content())
    told = recording.told()
    say(f"{told['records']} reports of {told['brokers']} brokers over {duration(told['span_ms'])} are in {history}")
    if recording.unreadable:
        say(f"{recording.unreadable} records that are no reports were left out")
    if not compare:
        if output is Output.JSON:
            print_json({"file": str(history), **told})
        return
    own = Own(history=history)
    asked = CompareOptions(
        contenders=contenders or (),
        seeds=chosen_seeds,
        jobs=jobs,
        out=folder,
        again=False,
        output=output,
        suits=True,
        command=f"statechannel simulate compare --history {history} --seeds {seeds}",
    )
    with scratch_folder(folder) as scratch:
        source, extra = own_source(own, scratch, connect, hours=0.0)
        contest(asked, [source], extra)


def _length_s(text: str) -> float:
    return 0.0 if text in ("0", "0s") else parse_length_ms(text, "--for", beyond="an hour says most.") / 1_000


@dataclass(slots=True)
class Recording:
    """Reports of a cluster, as they were read.

    Attributes:
        unreadable: Records whose value is no JSON object.
        full: No more is taken in: `RECORDS_MAX` or `HELD_MAX_BYTES` is reached.
    """

    unreadable: int = 0
    full: bool = False
    _lines: dict[tuple[ReportKind, int, int], tuple[str, bytes | None]] = field(default_factory=dict)
    _newest: dict[tuple[ReportKind, str], int] = field(default_factory=dict)
    _held_bytes: int = 0

    def take(self, kind: ReportKind, batch: LightBatch) -> None:
        """Take records in; those that come again, as a topic is read anew, count once."""
        if batch.opened:
            self._newest.clear()
        for one in batch.records:
            key = (one.key or b"").decode(errors="replace")
            if self.full or not self._counts(kind, key, one):
                continue
            self._lines[kind, one.offset, one.timestamp_ms] = (key, one.value)
            self._held_bytes += len(one.value or b"")
            self.full = len(self._lines) >= RECORDS_MAX or self._held_bytes >= HELD_MAX_BYTES

    def _counts(self, kind: ReportKind, key: str, one: LightRecord) -> bool:
        """A report counts if it is JSON; a null only if it takes away the newest report before it."""
        if one.value is None:
            newest, said = self._newest.get((kind, key)), parse_tombstone(one.headers, one.offset)
            return newest is not None and said is not None and said.honoured_over(newest)
        if not _is_object(one.value):
            self.unreadable += 1
            return False
        self._newest[kind, key] = one.offset
        return True

    def content(self) -> bytes:
        """A line each, by the log's time: `{"at_ms", "key", "kind", "value"}`; the value is the report, or null."""
        return b"".join(
            orjson.dumps(
                {"at_ms": at_ms, "key": key, "kind": kind, "value": None if value is None else orjson.Fragment(value)},
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for (kind, _, at_ms), (key, value) in sorted(
                self._lines.items(), key=lambda one: (one[0][2], one[0][0], one[0][1])
            )
        )

    def told(self) -> dict[str, Any]:
        """In figures."""
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
    """Read the load topics from their beginning, and then so long what comes.

    Raises:
        KafkaAdapterError: Kafka is away.
        CommandError: There are no such topics, or nothing is in them.
    """
    found = Recording()
    with _readers(connection, found) as readers:
        _catch_up(connection, readers)
        begun_s = time.monotonic()
        try:
            with progress("recording (Ctrl-C ends it)", max(1, round(length_s)), unit="s") as told:
                while (elapsed_s := time.monotonic() - begun_s) < length_s and not found.full:
                    told(elapsed_s)
                    time.sleep(min(_LOOK_S, length_s - elapsed_s))
        except KeyboardInterrupt:
            say("interrupted: what was recorded until now counts")
        for reader in readers:
            if reader.last_error:
                say(f"Kafka's last word: {reader.last_error}")
    if found.full:
        say(f"the recording ended early: it holds {len(found)} records")
    if not len(found):
        raise CommandError(
            "the load topics hold no report",
            hint="Brokers write them when their balancing extension is on (design/load-data.md); wait with --for.",
            code=ExitCode.NOT_FOUND,
        )
    return found


@contextmanager
def _readers(connection: Connection, found: Recording) -> Iterator[list[LightReader]]:
    from statechannel.cli.kit.kafka_wait import naming_address, notify_if_slow
    from statechannel.kafka.light_policy import LoadTopics
    from statechannel.kafka.light_topic import LightReader
    from statechannel.kafka.topics import TopicAdmin

    topics = LoadTopics(connection.topics.channel)
    names = {ReportKind.BROKER_LOAD: topics.broker_load, ReportKind.TOP_BUNDLES: topics.top_bundles}
    with notify_if_slow(connection):
        there = TopicAdmin(connection.client, timeout_s=connection.timeout_s).describe(list(names.values()))
    missing = [name for name in names.values() if name not in there]
    if missing:
        raise CommandError(
            f"there is no topic {' and no topic '.join(missing)}",
            hint="Brokers make them when their balancing extension is on; is this the right --channel?",
            code=ExitCode.TOPIC_REFUSED,
        )
    readers: list[LightReader] = []
    try:
        with naming_address(connection):
            for kind, name in names.items():
                reader = LightReader(
                    connection.client,
                    name,
                    partial(found.take, kind),
                    group_id=connection.topics.reader_group,
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
