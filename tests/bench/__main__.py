"""`python -m tests.bench [NAME ...]`: measure, print a table, and write the figures as JSON."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import (
    ablation,
    channel_partitions,
    deaths,
    engines,
    evenness,
    floods,
    growth,
    handoff,
    http,
    joins,
    kept,
    large,
    live_balance,
    members,
    memory,
    outage,
    page,
    partitions,
    replay,
    rolling,
    router,
    shedding,
    spark_lag,
    spark_replay,
    starts,
    storm,
    transfers,
)
from tests.bench.measure import ROOT, Figure, machine, save
from tests.bench.pulsar import lane as pulsar_lane

LANES = (
    *("replay", "handoff", "memory", "transfers", "storm", "lookups", "deaths", "outage", "joins", "growth", "starts"),
    *("shedding", "engines", "floods", "spark-lag", "live-balance", "members", "channel-partitions"),
    *("rolling", "router", "http", "page"),
)
NAMED = ("spark", "partitions", "large", "pulsar", "evenness", "ablation", "rolling-simulated")
"""Those that take many minutes, or need what others do not: only where they are named."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(LANES)}; default: all of these. Besides: {', '.join(NAMED)}",
    )
    parser.add_argument("--records", type=int, default=1_000_000, help="length of the log that is replayed")
    parser.add_argument(
        "--spark-records",
        type=int,
        nargs="+",
        default=[1_000_000, 10_000_000],
        metavar="N",
        help="lengths of the logs that Spark reads",
    )
    parser.add_argument(
        "--replicas",
        type=int,
        nargs="+",
        default=list(partitions.REPLICAS),
        metavar="N",
        help="sizes of the Kafka clusters that are planned",
    )
    parser.add_argument(
        "--clusters",
        type=int,
        default=evenness.CLUSTERS,
        metavar="N",
        help="random clusters of each kind that are balanced",
    )
    parser.add_argument("--draw", type=int, default=1, metavar="SEED", help="of the scenarios of the ablation")
    parser.add_argument("--count", type=int, default=12, metavar="N", help="number of these scenarios")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes of the ablation")
    parser.add_argument("--rounds", type=int, default=5, help="rounds behind each median")
    parser.add_argument("--transfers", type=int, default=500, help="transfers of the hand-off measurement")
    parser.add_argument("--outage-s", type=float, default=60.0, metavar="S", help="how long Kafka stands still")
    parser.add_argument(
        "--floods", nargs="+", default=[], metavar="FLOOD", help=f"only these: {', '.join(floods.FLOODS)}"
    )
    parser.add_argument(
        "--busy", type=int, default=20, metavar="N", help="processes that take processor time beside a departure"
    )
    parser.add_argument("--junk-records", type=int, default=600_000, help="junk of the largest flood of junk")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench.json", help="where the figures go")
    parser.add_argument("--keep", action="store_true", help="also put them where the documentation takes them from")
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    # So that what a lane has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    known: dict[str, Callable[[], Sequence[Figure]]] = {
        "replay": partial(replay.run, given.records, given.rounds),
        "handoff": lambda: [figure for members in (3, 2) for figure in handoff.run(given.transfers, members)],
        "memory": memory.run,
        "transfers": transfers.run,
        "storm": partial(storm.run, min(given.rounds, 3)),
        "lookups": storm.lookups,
        "deaths": deaths.run,
        "outage": partial(outage.run, given.outage_s),
        "joins": joins.run,
        "growth": growth.run,
        "starts": starts.run,
        "engines": partial(engines.run, given.rounds),
        "shedding": shedding.run,
        "floods": partial(floods.run, given.floods, given.junk_records),
        "spark-lag": partial(spark_lag.run, given.transfers),
        "live-balance": partial(
            live_balance.run, live_balance.PLOT if given.keep else given.output.with_name("live.svg")
        ),
        "rolling": rolling.run,
        "rolling-simulated": rolling.simulated,
        "channel-partitions": partial(channel_partitions.run, min(given.rounds, 3)),
        "members": partial(members.run, given.rounds),
        "router": router.run,
        "http": http.run,
        "page": page.run,
        "spark": partial(spark_replay.run, given.spark_records),
        "partitions": partial(partitions.run, given.replicas),
        "large": partial(large.run, given.busy),
        "pulsar": partial(pulsar_lane.run, given.rounds),
        "evenness": partial(evenness.run, given.clusters),
        "ablation": partial(ablation.run, given.draw, given.count, given.jobs),
    }
    figures: list[Figure] = []
    for name in given.names or LANES:
        measured = known[name]()
        figures += measured
        if given.keep and measured:
            kept.keep(name, measured)
        save(given.output, figures)
    strategies = [figure for figure in figures if figure.name.startswith("shedding.")]
    others = [figure for figure in figures if not figure.name.startswith("shedding.")]
    if others:
        show(others)
    if under_floods := [figure for figure in figures if figure.name.startswith("floods.")]:
        print(floods.page(under_floods))
    if strategies:
        Console(width=130).print(shedding.table(strategies))


def show(figures: Sequence[Figure]) -> None:
    facts = machine()
    table = Table(title=f"{facts['at']}, {facts['cpus']} CPUs, Python {facts['python']}")
    for column in ("figure", "value", "unit", "ratio", "aim", "load"):
        table.add_column(column, justify="right" if column in ("value", "ratio") else "left")
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        table.add_row(figure.name, f"{figure.value:,.2f}", figure.unit, ratio, figure.aim, figure.load)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
