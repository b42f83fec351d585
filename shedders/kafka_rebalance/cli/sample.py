"""`statechannel partitions sample`: collector of samples of partition loads, and table of the loads (`--show`)."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from shedders.kafka_rebalance.cli.arguments import expanded, need_extra, partitions_settings, usage_error
from shedders.model.amounts import count
from statechannel import clocks
from statechannel.cli.kit.confirmation import say_dry_run
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import Column, cell
from statechannel.cli.kit.listing import parse_length_ms
from statechannel.cli.kit.options import Connect, OutputAs, option, with_connection
from statechannel.cli.kit.output import (
    Output,
    print_json,
    print_json_line,
    print_json_lists,
    print_rows,
    print_table,
    say,
    stdout,
    waiting,
)
from statechannel.clocks import moment
from statechannel.errors import ExitCode, StateChannelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafka import KafkaAdminClient

    from loaddata.samples.formulas import SampledMinute
    from loaddata.samples.partitions import PartitionLoads
    from loaddata.samples.sample_topic import SampleTopic
    from loaddata.samples.sources import PartitionSource
    from shedders.kafka_rebalance.settings import PartitionsSettings


def show_loads(
    topic: SampleTopic, settings: PartitionsSettings, window: str | None, limit: int, output: Output
) -> None:
    """Print averages and their completeness, incomplete ones included."""
    from loaddata.samples.kafka_cluster import read_loads

    own = settings.sample
    window_s = (
        own.window_s
        if window is None
        else parse_length_ms(window, "--window", beyond="samples are not kept for longer.") / 1_000
    )
    with waiting("reading samples", topic.timeout_s) as progress:
        progress("")
        loads_read = read_loads(topic, now_ms=clocks.now_ms(), window_s=window_s, interval_s=own.interval_s)
    if loads_read is None:
        raise CommandError(
            f"sample topic {topic.name} not found",
            hint="Take samples with `statechannel partitions sample`, which creates the topic.",
            code=ExitCode.TOPIC_REFUSED,
        )
    loads = loads_read.loads
    counts = loads_read.counts
    document: dict[str, Any] = {
        "topic": topic.name,
        "from_ms": loads.from_ms,
        "to_ms": loads.to_ms,
        "intervals": loads_read.window.slots,
        "intervals_with_samples": loads_read.minutes,
        "samples": counts.samples,
        "junk": {str(why): number for why, number in sorted(counts.junk.items())},
        "completeness_min": own.completeness_min,
        "partitions": len(loads.of),
    }
    if output is Output.JSON:
        print_json_lists(document, {"loads": _rows(loads)})
        return
    rows = sorted(_rows(loads), key=lambda row: (-(row["bytes_in_per_s"] or 0), -(row["disk_bytes"] or 0)))
    print_rows(
        (
            "topic",
            "partition",
            Column("disk", of="disk_bytes"),
            Column("bytes in/s", of="bytes_in_per_s"),
            Column("bytes out/s", of="bytes_out_per_s"),
            Column("cpu %", of=lambda row: None if row["cpu"] is None else 100 * row["cpu"]),
            Column("complete %", of=lambda row: 100 * row["completeness"]),
        ),
        rows[:limit],
        empty="no samples",
    )
    if len(rows) > limit:
        say(f"and {len(rows) - limit} more (--limit)")
    stdout().print(cell(f"{moment(loads.from_ms)} to {moment(loads.to_ms)}: {loads.source}"), markup=False)
    few = sum(load.completeness < own.completeness_min for load in loads.of.values())
    if few:
        say(
            f"note: plans ignore {count(few, 'partition')} less complete than sample.completeness_min ({own.completeness_min:g})"
        )
    for why, number in sorted(counts.junk.items()):
        say(cell(f"note: ignored of {topic.name}: {count(number, 'record')}: {why}"))


def _rows(loads: PartitionLoads) -> Iterator[dict[str, Any]]:
    from loaddata.samples.partitions import CPU_UNITS

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
_ID: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
FILE: Final = "file"
FAILURES_MAX: Final = 60
SHOWN_MAX: Final = 50


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """Options of `partitions sample`."""

    source: Annotated[
        str | None,
        option(
            "--source NAME", "Source of samples: log-dirs (needs no metrics), prometheus, file, or one of a plug-in."
        ),
    ] = None
    endpoint: Annotated[
        list[str] | None, option("--endpoint [ID=]URL", "Metrics of one broker (JMX exporter); may be repeated.")
    ] = None
    server: Annotated[str | None, option("--server URL", "Prometheus server that scrapes the brokers.")] = None
    broker_label: Annotated[
        str, option("--broker-label LABEL", "Label of the Prometheus series that identifies the broker.")
    ] = "instance"
    broker: Annotated[
        list[str] | None, option("--broker ID=VALUE", "Value of that label for a broker; may be repeated.")
    ] = None
    selector: Annotated[
        list[str] | None,
        option("--selector LABEL=VALUE", "Only series with this label, e.g. job=kafka; may be repeated."),
    ] = None
    from_file: Annotated[Path | None, option("--from-file FILE", "Read samples from a file: JSON lines or CSV.")] = None
    repeat: Annotated[bool, option("--repeat/--once", "Take samples until interrupted, or only once.")] = False
    interval_s: Annotated[
        float | None,
        option("--interval-s SECONDS", "Time between two samples. Default: from the settings.", min=1, max=3_600),
    ] = None
    count: Annotated[int | None, option("--count N", "With --repeat: number of samples to take.", min=1, max=10**9)] = (
        None
    )
    gap_s: Annotated[
        float,
        option("--gap-s SECONDS", "Time between the two measurements of a sample; 0: one measurement.", min=0, max=600),
    ] = 10.0
    failures_max: Annotated[
        int, option("--failures-max N", "With --repeat: consecutive failures before giving up.", min=1, max=10**6)
    ] = FAILURES_MAX
    to_file: Annotated[Path | None, option("--to-file FILE", "Append the samples to a file instead of the topic.")] = (
        None
    )
    dry_run: Annotated[bool, option("--dry-run", "Show the samples without writing them.")] = False
    show: Annotated[bool, option("--show", "Show loads from existing samples; take none.")] = False
    window: Annotated[
        str | None, option("--window LENGTH", "With --show: average samples of this time. Default: from the settings.")
    ] = None
    limit: Annotated[int, option("--limit N", "Most rows of the table of partitions.", min=1, max=10**6)] = SHOWN_MAX


@with_connection
@expanded
def sample(connect: Connect, asked: SampleOptions, output: OutputAs = Output.TABLE) -> None:
    """Measure the load of each partition and write it to the sample topic; or show the loads (--show)."""
    if asked.show and (asked.dry_run or asked.to_file or asked.repeat or asked.source or asked.from_file):
        raise usage_error("--show takes no samples", "Omit the options of sources and outputs.")
    if asked.dry_run and asked.to_file:
        raise usage_error("--dry-run and --to-file are mutually exclusive", "Use one of them.")
    if asked.count is not None and not asked.repeat:
        raise usage_error("--count requires --repeat", "Use --repeat --count N.")
    if asked.from_file is not None and asked.source not in {None, FILE}:
        raise usage_error(f"--from-file requires the source file, not {asked.source}", "Omit --source.")
    need_extra("kafka")
    from loaddata.samples.admin import open_admin
    from loaddata.samples.sample_topic import SampleTopic
    from loaddata.samples.sources import SourceOptions, open_source

    settings = partitions_settings(connect.settings())
    connection = connect()
    topic = SampleTopic(
        connection.client,
        settings.sample.topic,
        window_s=settings.sample.window_s,
        replication_factor=settings.replication_factor,
        timeout_s=connection.timeout_s,
    )
    if asked.show:
        show_loads(topic, settings, asked.window, asked.limit, output)
        return
    named = asked.source or (FILE if asked.from_file else "prometheus" if asked.endpoint or asked.server else LOG_DIRS)
    with open_admin(connection.client, timeout_s=max(connection.timeout_s, settings.sample.timeout_s)) as admin:
        brokers = _pairs("--broker", _ID, asked.broker or (), "1=kafka-1:7071")
        options = SourceOptions(
            endpoints=tuple(asked.endpoint or ()),
            server=asked.server or "",
            broker_label=asked.broker_label,
            brokers={label: int(number) for number, label in brokers},
            selector=dict(_pairs("--selector", _LABEL, asked.selector or (), "job=kafka")),
            file=asked.from_file,
            admin=admin,
            timeout_s=settings.sample.timeout_s,
        )
        interval_s = asked.interval_s or settings.sample.interval_s
        _Rounds(asked, output, open_source(named, options), admin, topic, interval_s).run()
    if asked.dry_run and output is not Output.JSON:
        say_dry_run(connection.cluster)


def _pairs(option: str, form: re.Pattern[str], values: Sequence[str], example: str) -> Iterator[tuple[str, str]]:
    for text in values:
        name, _, value = text.partition("=")
        if not value or not form.fullmatch(name):
            raise usage_error(f"{option} {text}: not of the form of {example}", f"For example {option} {example}.")
        yield name, value.strip("'\"")


@dataclass(slots=True)
class _Rounds:
    """Successive rounds of samples."""

    asked: SampleOptions
    output: Output
    source: PartitionSource
    admin: KafkaAdminClient
    topic: SampleTopic
    interval_s: float
    created: bool = False
    looked: bool = False

    def run(self) -> None:
        asked, done, failures = self.asked, 0, 0
        count = asked.count if asked.repeat else 1
        while count is None or done < count:
            if done:
                self._sleep()
            done += 1
            try:
                self._round()
                failures = 0
            except StateChannelError as error:
                failures += 1
                if not asked.repeat or failures >= asked.failures_max or error.exit_code == ExitCode.USAGE:
                    raise
                say(cell(f"no sample ({failures} of at most {asked.failures_max} in a row): {error}"))

    def _sleep(self) -> None:
        """Sleep until the next interval begins; all samplers share its boundaries."""
        now_s = time.time()
        time.sleep(self.interval_s - now_s % self.interval_s)

    def _round(self) -> None:
        asked = self.asked
        if not (asked.dry_run or asked.to_file or self.created):
            self.topic.create()
            self.created = True
        taken = self._look()
        written = 0 if asked.dry_run else self._write(taken)
        document = round_fields(taken, written)
        if self.output is Output.JSON:
            if asked.dry_run:
                document |= {"taken": [asdict(sample) for sample in taken.samples]}
            (print_json_line if asked.repeat else print_json)(document)
        else:
            _show(taken, document, rows=asked.limit if asked.dry_run else 0)
        for remark in (*taken.remarks, *(f"broker {broker}: {why}" for broker, why in sorted(taken.silent.items()))):
            say(cell(f"note: {remark}"))
        if not taken.samples:
            raise CommandError(
                "nothing was measured" + (f": {_why(taken)}" if _why(taken) else ""),
                hint="See the notes above; `--source log-dirs` needs only the cluster.",
            )

    def _look(self) -> SampledMinute:
        from loaddata.samples.sources import looks_again

        taken = self._take()
        if not self.looked and self.asked.gap_s and looks_again(taken):
            say(f"measuring again in {self.asked.gap_s:g} s, as traffic is computed from growth")
            time.sleep(self.asked.gap_s)
            taken = self._take()
        self.looked = True
        return taken

    def _take(self) -> SampledMinute:
        from loaddata.samples.kafka_cluster import read_layout

        now_ms = clocks.now_ms()
        interval_ms = round(self.interval_s * 1_000)
        layout = read_layout(self.admin, now_ms=now_ms)
        return self.source.take(layout, taken_at_ms=now_ms - now_ms % interval_ms, mono_s=time.monotonic())

    def _write(self, taken: SampledMinute) -> int:
        if self.asked.to_file is not None:
            return _to_file(self.asked.to_file, taken)
        written = self.topic.write(taken.samples)
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
            hint="Name a file in a writable folder.",
            code=ExitCode.BAD_EXPORT,
        ) from error


def round_fields(taken: SampledMinute, written: int) -> dict[str, Any]:
    at_ms = max((sample.taken_at_ms for sample in taken.samples), default=None)
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
    reasons = [f"{figure}: {why} ({count})" for (figure, why), count in sorted(taken.holes.items())]
    return "; ".join(reasons[:3])


def _show(taken: SampledMinute, document: Mapping[str, Any], *, rows: int) -> None:
    if rows:
        shown = taken.samples[:rows]
        print_rows(
            (
                "topic",
                "partition",
                "broker",
                Column("disk", of="disk_bytes"),
                Column("bytes in/s", of="bytes_in_per_s"),
                Column("bytes out/s", of="bytes_out_per_s"),
                Column("cpu %", of=lambda sample: None if sample.cpu_share is None else 100 * sample.cpu_share),
            ),
            shown,
            empty="no samples",
        )
        if len(taken.samples) > len(shown):
            say(f"and {len(taken.samples) - len(shown)} more (--limit)")
    line = f"{moment(document['at_ms'])}  samples {document['samples']}, written {document['written']}"
    stdout().print(cell(line), markup=False)
    if document["holes"]:
        print_table(
            ("missing", "why", "partitions"),
            [(hole["figure"], hole["why"], hole["count"]) for hole in document["holes"]],
        )
