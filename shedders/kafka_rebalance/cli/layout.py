"""`statechannel partitions layout`: export of a cluster's layout and loads, for planning offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shedders.kafka_rebalance.cli.arguments import partitions_settings
from shedders.kafka_rebalance.cli.outcome import Replace, refuse_existing
from shedders.kafka_rebalance.cli.plan import LoadsFile, Window, seen
from shedders.model.amounts import count
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs, with_connection
from statechannel.cli.kit.output import Output, print_json, say
from statechannel.cli.kit.times import parse_length_ms
from statechannel.errors import ExitCode
from statechannel.files import check_writable


@with_connection
def layout(
    connect: Connect,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Output file.")],
    window: Window = None,
    loads: LoadsFile = None,
    replace_: Replace = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Save the layout of a cluster and the loads of its partitions, for `plan --layout`."""
    refuse_existing(out, replace=replace_)
    check_writable(out)
    if window is not None and loads is not None:
        raise CommandError(
            "--window applies to samples, and --loads replaces samples", hint="Omit --window.", code=ExitCode.USAGE
        )
    settings = partitions_settings(connect.settings())
    window_s = None if window is None else parse_length_ms(window, "--window", beyond="use a shorter one.") / 1_000
    source = seen(connect, settings, file=None, window_s=window_s, loads=loads)
    from loaddata.samples.cluster_files import write_layout

    write_layout(out, source.layout, source.loads)
    partitions = sum(len(topic.partitions) for topic in source.layout.topics.values())
    if output is Output.JSON:
        print_json(
            {
                "file": str(out),
                "cluster_id": source.layout.cluster_id,
                "brokers": len(source.layout.brokers),
                "topics": len(source.layout.topics),
                "partitions": partitions,
                "with_load": len(source.loads.of),
                "source": source.loads.source,
            }
        )
        return
    known = f"{len(source.loads.of)} of them with a load from {source.loads.source or 'nowhere'}"
    say(f"{count(len(source.layout.brokers), 'broker')}, {count(partitions, 'partition')}, {known}: written to {out}")
