"""The loads of all partitions by the samples that are there: `statechannel partitions sample --show`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shedders.cli.times import parse_length_ms
from shedders.kafka_rebalance.cli.arguments import need_extra, partitions_settings
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import (
    Output,
    cell,
    moment,
    print_json,
    print_json_line,
    print_json_lists,
    print_table,
    say,
    stdout,
    waiting,
)
from statechannel.errors import ExitCode, StateChannelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafka import KafkaAdminClient

    from loaddata.samples.formulas import SampledMinute
    from loaddata.samples.loads import PartitionLoads
    from loaddata.samples.sample_topic import SampleTopic
    from loaddata.samples.sources import PartitionSource
    from shedders.kafka_rebalance.settings import PartitionsSettings
    from statechannel.cli.kit.connection import Connection


def show_loads(
    topic: SampleTopic, settings: PartitionsSettings, window: str | None, limit: int, output: Output
) -> None:
    """Averages and how complete they are; incomplete ones, too.

    Raises:
        StateChannelError: There is no sample topic, Kafka is away, or there are too many samples for one process.
    """
    from loaddata.samples.current_loads import read_loads

    own = settings.sample
    window_s = (
        own.window_s
        if window is None
        else parse_length_ms(window, "--window", beyond="samples are kept for less.") / 1_000
    )
    with waiting("reading samples", topic.timeout_s) as told:
        told("")
        found = read_loads(topic, now_ms=time.time_ns() // 1_000_000, window_s=window_s, interval_s=own.interval_s)
    if found is None:
        raise CommandError(
            f"there is no sample topic {topic.name}",
            hint="Take samples with `statechannel partitions sample`: it makes it.",
            code=ExitCode.TOPIC_REFUSED,
        )
    loads = found.loads
    counts = found.counts
    document: dict[str, Any] = {
        "topic": topic.name,
        "from_ms": loads.from_ms,
        "to_ms": loads.to_ms,
        "intervals": found.window.slots,
        "intervals_with_samples": found.minutes,
        "samples": counts.samples,
        "junk": {str(why): count for why, count in sorted(counts.junk.items())},
        "completeness_min": own.completeness_min,
        "partitions": len(loads.of),
    }
    if output is Output.JSON:
        print_json_lists(document, {"loads": _rows(loads)})
        return
    rows = sorted(_rows(loads), key=lambda one: (-(one["bytes_in_per_s"] or 0), -(one["disk_bytes"] or 0)))
    print_table(
        ("topic", "partition", "disk", "bytes in/s", "bytes out/s", "cpu %", "complete %"),
        [
            (
                one["topic"],
                one["partition"],
                one["disk_bytes"],
                one["bytes_in_per_s"],
                one["bytes_out_per_s"],
                None if one["cpu"] is None else 100 * one["cpu"],
                100 * one["completeness"],
            )
            for one in rows[:limit]
        ],
        empty="no samples",
    )
    if len(rows) > limit:
        say(f"and {len(rows) - limit} more (--limit)")
    stdout().print(cell(f"{moment(loads.from_ms)} to {moment(loads.to_ms)}: {loads.source}"), markup=False)
    few = sum(load.completeness < own.completeness_min for load in loads.of.values())
    if few:
        say(
            f"note: {few} partitions are less complete than sample.completeness_min ({own.completeness_min:g}): no plan uses them"
        )
    for why, count in sorted(counts.junk.items()):
        say(cell(f"note: {count} records of {topic.name} do not count: {why}"))


def _rows(loads: PartitionLoads) -> Iterator[dict[str, Any]]:
    from loaddata.samples.loads import CPU_UNITS

    for (topic, partition), load in loads.of.items():
        yield {
            "topic": topic,
            "partition": partition,
            "disk_bytes": load.disk_bytes,
            "bytes_in_per_s": load.bytes_in_per_s,
            "bytes_out_per_s": load.bytes_out_per_s,
            "cpu": None if load.cpu_units is None else load.cpu_units / CPU_UNITS,
            "completeness": load.completeness,
        }


LOG_DIRS: Final = "log-dirs"
FILE: Final = "file"
FAILURES_MAX: Final = 60
SHOWN_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Pace:
    """When samples are taken.

    Attributes:
        interval_s: Length of a "minute".
        gap_s: Time between two looks of one sample, where the first tells too little.
        count: How many; None: without end.
        failures_max: Rounds in a row without a sample before the command gives up.
    """

    interval_s: float
    gap_s: float
    count: int | None
    failures_max: int


@with_connection
def sample(
    connect: Connect,
    *,
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="NAME", help="log-dirs (no metrics needed), prometheus, file, or a plug-in's."
        ),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option("--endpoint", metavar="[ID=]URL", help="Metrics of one broker (JMX exporter); may be repeated."),
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="URL", help="A Prometheus server that has scraped the brokers.")
    ] = None,
    broker_label: Annotated[
        str, typer.Option("--broker-label", metavar="LABEL", help="Label of its series that names the broker.")
    ] = "instance",
    broker: Annotated[
        list[str] | None,
        typer.Option("--broker", metavar="ID=VALUE", help="What that label says of a broker; may be repeated."),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Take the samples of a file: JSON lines or CSV.")
    ] = None,
    repeat: Annotated[bool, typer.Option("--repeat/--once", help="Go on until it is interrupted.")] = False,
    interval_s: Annotated[
        float | None,
        typer.Option(
            "--interval-s", metavar="SECONDS", min=1, max=3_600, help="Time between two samples; as the settings."
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, max=10**9, help="With --repeat: end after so many.")
    ] = None,
    gap_s: Annotated[
        float,
        typer.Option(
            "--gap-s", metavar="SECONDS", min=0, max=600, help="Growth needs two looks, so far apart; 0: one look."
        ),
    ] = 10.0,
    failures_max: Annotated[
        int,
        typer.Option(
            "--failures-max", metavar="N", min=1, max=10**6, help="With --repeat: give up after so many in a row."
        ),
    ] = FAILURES_MAX,
    to_file: Annotated[
        Path | None, typer.Option("--to-file", metavar="FILE", help="Add the samples to a file, not to the topic.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the samples and write them nowhere.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Show the loads by the samples that are there; take none.")
    ] = False,
    window: Annotated[
        str | None, typer.Option("--window", metavar="LENGTH", help="With --show: samples of so long; as the settings.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=10**6, help="Rows of a table of partitions.")
    ] = SHOWN_MAX,
    output: OutputAs = Output.TABLE,
) -> None:
    """Measure what each partition carries, and write it to the sample topic; or show the loads (--show)."""
    if show and (dry_run or to_file or repeat or source or from_file):
        raise _usage("--show takes no samples", "Leave out the options of sources and of where samples go.")
    if dry_run and to_file:
        raise _usage("--dry-run writes nowhere, and --to-file names a file", "Leave one of them out.")
    if count is not None and not repeat:
        raise _usage("--count is for --repeat", "Say --repeat --count N.")
    if from_file is not None and source not in {None, FILE}:
        raise _usage(f"--from-file is for the source file, not {source}", "Leave out --source.")
    need_extra("kafka")
    settings = partitions_settings(connect.settings())
    connection = connect()
    topic = _topic(connection, settings)
    if show:
        show_loads(topic, settings, window, limit, output)
        return
    from loaddata.samples.sources import SourceOptions, open_source

    named = source or (FILE if from_file else "prometheus" if endpoint or server else LOG_DIRS)
    pace = Pace(interval_s or settings.sample.interval_s, gap_s, count if repeat else 1, failures_max)
    with _admin(connection, settings) as admin:
        options = SourceOptions(
            endpoints=tuple(endpoint or ()),
            server=server or "",
            broker_label=broker_label,
            brokers=_brokers(broker or ()),
            file=from_file,
            admin=admin,
            timeout_s=settings.sample.timeout_s,
        )
        rounds = _Rounds(open_source(named, options), admin, topic, pace, to_file, dry_run=dry_run)
        rounds.run(repeat=repeat, output=output, limit=limit)


def _usage(message: str, hint: str) -> CommandError:
    return CommandError(message, hint=hint, code=ExitCode.USAGE)


def _topic(connection: Connection, settings: PartitionsSettings) -> SampleTopic:
    from loaddata.samples.sample_topic import SampleTopic

    return SampleTopic(
        connection.client,
        settings.sample.topic,
        window_s=settings.sample.window_s,
        replication_factor=settings.replication_factor,
        timeout_s=connection.timeout_s,
    )


def _admin(connection: Connection, settings: PartitionsSettings) -> Any:
    from loaddata.samples.admin import open_admin

    return open_admin(connection.client, timeout_s=max(connection.timeout_s, settings.sample.timeout_s))


def _brokers(given: Sequence[str]) -> Mapping[str, int]:
    found = {}
    for text in given:
        number, equals, value = text.partition("=")
        if not equals or not value or not (number.isascii() and number.isdigit() and len(number) <= 10):  # noqa: PLR2004
            raise _usage(f"--broker {text}: this is not ID=VALUE", "Such as --broker 1=kafka-1:7071.")
        found[value] = int(number)
    return found


class _Rounds:
    """Takes samples, one round after the other."""

    def __init__(
        self,
        source: PartitionSource,
        admin: KafkaAdminClient,
        topic: SampleTopic,
        pace: Pace,
        to_file: Path | None,
        *,
        dry_run: bool,
    ) -> None:
        self._source = source
        self._admin = admin
        self._topic = topic
        self._pace = pace
        self._to_file = to_file
        self._dry_run = dry_run
        self._made = False
        self._looked = False

    def run(self, *, repeat: bool, output: Output, limit: int) -> None:
        """All rounds; the last error of too many in a row is raised."""
        done = failures = 0
        while self._pace.count is None or done < self._pace.count:
            if done:
                self._sleep()
            done += 1
            try:
                self._round(repeat=repeat, output=output, limit=limit)
                failures = 0
            except StateChannelError as error:
                failures += 1
                if not repeat or failures >= self._pace.failures_max or error.exit_code == ExitCode.USAGE:
                    raise
                say(cell(f"no sample ({failures} of at most {self._pace.failures_max} in a row): {error}"))

    def _sleep(self) -> None:
        """Until the next interval begins: whoever samples does it at the same moments."""
        now_s = time.time()
        time.sleep(self._pace.interval_s - now_s % self._pace.interval_s)

    def _round(self, *, repeat: bool, output: Output, limit: int) -> None:
        if not (self._dry_run or self._to_file or self._made):
            self._topic.create()
            self._made = True
        taken = self._look()
        written = 0 if self._dry_run else self._write(taken)
        document = told(taken, written)
        if output is Output.JSON:
            if self._dry_run:
                document |= {"taken": [_row(one) for one in taken.samples]}
            (print_json_line if repeat else print_json)(document)
        else:
            _show(taken, document, rows=limit if self._dry_run else 0)
        for remark in (*taken.remarks, *(f"broker {one}: {why}" for one, why in sorted(taken.silent.items()))):
            say(cell(f"note: {remark}"))
        if not taken.samples:
            raise CommandError(
                "nothing was measured" + (f": {_why(taken)}" if _why(taken) else ""),
                hint="See the notes above; `--source log-dirs` needs nothing but the cluster.",
            )

    def _look(self) -> SampledMinute:
        from loaddata.samples.sources import looks_again

        taken = self._take()
        if not self._looked and self._pace.gap_s and looks_again(taken):
            say(f"looking a second time in {self._pace.gap_s:g} s: growth tells the traffic")
            time.sleep(self._pace.gap_s)
            taken = self._take()
        self._looked = True
        return taken

    def _take(self) -> SampledMinute:
        from loaddata.samples.kafka_cluster import read_layout

        now_ms = time.time_ns() // 1_000_000
        interval_ms = round(self._pace.interval_s * 1_000)
        layout = read_layout(self._admin, now_ms=now_ms)
        return self._source.take(layout, taken_at_ms=now_ms - now_ms % interval_ms, mono_s=time.monotonic())

    def _write(self, taken: SampledMinute) -> int:
        if self._to_file is not None:
            return _to_file(self._to_file, taken)
        written = self._topic.write(taken.samples)
        if written.failed or written.refused:
            say(
                cell(
                    f"note: {written.failed} samples may not be in the topic, {written.refused} were refused: {written.why}"
                )
            )
        return written.written


def _to_file(path: Path, taken: SampledMinute) -> int:
    from loaddata.samples.sample_files import write_samples

    try:
        with path.open("ab") as file:
            return write_samples(file, taken.samples)
    except OSError as error:
        raise CommandError(
            f"the file {path} cannot be written: {error.strerror or error}",
            hint="Name a file in a folder that can be written to.",
            code=ExitCode.BAD_EXPORT,
        ) from error


def told(taken: SampledMinute, written: int) -> dict[str, Any]:
    """What a round came to, as JSON."""
    at_ms = max((one.taken_at_ms for one in taken.samples), default=None)
    return {
        "at_ms": at_ms,
        "samples": len(taken.samples),
        "written": written,
        "holes": [
            {"figure": figure, "why": str(why), "count": count} for (figure, why), count in sorted(taken.holes.items())
        ],
        "silent": {str(broker): why for broker, why in sorted(taken.silent.items())},
        "remarks": list(taken.remarks),
    }


def _why(taken: SampledMinute) -> str:
    found = [f"{figure}: {why} ({count})" for (figure, why), count in sorted(taken.holes.items())]
    return "; ".join(found[:3])


def _row(one: Any) -> dict[str, Any]:
    return {name: getattr(one, name) for name in type(one).__slots__}


def _show(taken: SampledMinute, document: Mapping[str, Any], *, rows: int) -> None:
    if rows:
        shown = taken.samples[:rows]
        print_table(
            ("topic", "partition", "broker", "disk", "bytes in/s", "bytes out/s", "cpu %"),
            [
                (
                    one.topic,
                    one.partition,
                    one.broker,
                    one.disk_bytes,
                    one.bytes_in_per_s,
                    one.bytes_out_per_s,
                    None if one.cpu_share is None else 100 * one.cpu_share,
                )
                for one in shown
            ],
            empty="no samples",
        )
        if len(taken.samples) > len(shown):
            say(f"and {len(taken.samples) - len(shown)} more (--limit)")
    line = f"{moment(document['at_ms'])}  samples {document['samples']}, written {document['written']}"
    stdout().print(cell(line), markup=False)
    if document["holes"]:
        print_table(
            ("missing", "why", "partitions"), [(one["figure"], one["why"], one["count"]) for one in document["holes"]]
        )
