"""The loads of all partitions by the samples that are there: `statechannel partitions sample --show`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shedders.cli.moments import parse_length_ms
from statechannel.cli.failures import CommandError
from statechannel.cli.output import Output, cell, moment, print_json_lists, print_table, say, stdout, waiting
from statechannel.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loaddata.partitions.loads import PartitionLoads
    from loaddata.partitions.sample_topic import SampleTopic
    from shedders.partitions.settings import PartitionsSettings


def show_loads(
    topic: SampleTopic, settings: PartitionsSettings, window: str | None, limit: int, output: Output
) -> None:
    """Averages and how complete they are; incomplete ones, too.

    Raises:
        StateChannelError: There is no sample topic, Kafka is away, or there are too many samples for one process.
    """
    from loaddata.partitions.loads_now import read_loads  # noqa: PLC0415 - help needs none of it

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
    from loaddata.partitions.loads import CPU_UNITS  # noqa: PLC0415 - help needs none of it

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
