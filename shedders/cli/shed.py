"""`statechannel shed plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from shedders.cli.options import (
    CyclesOption,
    EveryOption,
    PlacementOption,
    ProfileOption,
    SetOption,
    SnapshotOption,
    looking,
    print_remarks,
    with_memory,
)
from shedders.cli.source import snapshot_from
from shedders.decision.dry_run import Decision, run_cycles
from shedders.model.amounts import count, rate
from shedders.model.moved_cluster import EVERY_S
from shedders.snapshots.cluster import booked_of, cluster_of, remarks, rules_of, with_cluster
from shedders.snapshots.file import write_snapshot
from shedders.snapshots.model import Snapshot
from shedders.snapshots.plan_document import CyclePart, ShedPlan, cycle_part
from shedders.snapshots.selection import (
    FILTERS,
    Flags,
    choose,
    dumped,
    own_way,
    pipeline_of,
    remembered_by,
    shedding_of,
)
from statechannel.cli.kit.options import Connect, OutputAs
from statechannel.cli.kit.output import Output, cell, moment, print_json, print_table, say, stdout

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Moves of bundles between brokers: plan.")


@app.callback()
def group() -> None:
    """Moves of bundles between brokers: plan."""


@app.command()
@looking
def plan(
    connect: Connect,
    snapshot: SnapshotOption,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            "-s",
            metavar="NAME",
            help="Shedding strategy. Default: that of the snapshot, else of the profile.",
        ),
    ] = None,
    placement: PlacementOption = None,
    profile: ProfileOption = None,
    settings: SetOption = None,
    cycles: CyclesOption = 1,
    every: EveryOption = EVERY_S,
    after: Annotated[
        Path | None, typer.Option("--after", metavar="FILE", help="Write the snapshot after the moves to this file.")
    ] = None,
    left: Annotated[
        bool, typer.Option("--left", help="Show each bundle and broker left alone, not only counts.")
    ] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show which bundles a strategy would move, without moving them.

    With several cycles, each decision is based on the result of the previous one and on the strategy's memory.
    """
    source = snapshot_from(snapshot, connect)
    flags = Flags.parse(settings or (), ("placement", FILTERS))
    chosen = choose(source, "shedding", name=strategy, profile=profile, values=flags.own)
    placing, pipeline = pipeline_of(source, name=placement, profile=profile, flags=flags)
    cluster = cluster_of(source)
    odd = [*remarks(source, cluster), *own_way(chosen, placing)]
    if output is Output.TABLE:
        print_remarks([*odd, *_around(source)])
    parts: list[CyclePart] = []
    last: Decision | None = None
    for number, decision in enumerate(
        run_cycles(
            cluster,
            shedding_of(chosen),
            remembered_by(source, "shedding", chosen.name),
            pipeline,
            booked=booked_of(source, cluster),
            rules=rules_of(source),
            cycles=cycles,
            every_s=every,
        ),
        1,
    ):
        part = cycle_part(number, decision)
        last = decision
        if output is Output.TABLE:
            _show(part, chosen.name, every_left=left)
        else:
            parts.append(part)
    if output is Output.JSON:
        document = ShedPlan(
            strategy=chosen.name,
            placement=placing.name,
            profile=chosen.profile,
            settings=chosen.settings_fields,
            filters=dumped(pipeline.settings),
            balancing=source.balancing,
            remarks=odd,
            every_s=every,
            cycles=parts,
        )
        print_json(document.model_dump())
    if after is not None and last is not None:
        write_snapshot(_after(source, chosen.name, placing.name, last, every), after)
        say(f"the snapshot after {count(cycles, 'cycle')} is in {after}")


def _around(source: Snapshot) -> Iterator[str]:
    """Remarks on unusual circumstances of the plan."""
    if source.balancing.shedding_off is not None:
        yield f"none of these moves would be made: {source.balancing.shedding_off}"
    if source.balancing.unload_mode == "unload":
        yield "bundles are unloaded without a destination; the destinations shown are predictions"


def _after(source: Snapshot, strategy: str, placement: str, last: Decision, every_s: float) -> Snapshot:
    after = with_memory(source, "shedding", strategy, dict(last.memory))
    after = with_memory(after, "placement", placement, dict(last.placing_memory))
    return with_cluster(after, last.after(every_s))


def _show(part: CyclePart, strategy: str, *, every_left: bool) -> None:
    if part.cycle > 1:
        stdout().print()
    at = f" at {moment(part.now_ms)}" if part.now_ms else ""
    print_table(
        ("bundle", "from", "to", "reason", "load", "why"),
        [
            (
                f"{move.bundle}{' (swap)' if move.swap else ''}",
                move.source,
                move.destination or "stays",
                move.reason,
                None if move.load is None else rate(move.load, move.load_unit),
                move.why if move.refused is None else f"{move.refused}; {move.why}",
            )
            for move in part.moves
        ],
        title=cell(f"cycle {part.cycle} of {strategy}{at}: {part.label}, {part.reason}: {part.why}"),
        empty="no moves",
    )
    if part.splits:
        stdout().print()
        print_table(("to be split", "why"), [(split.bundle, split.why) for split in part.splits])
    if part.left:
        stdout().print()
        if every_left:
            print_table(("left alone", "reason", "why"), [(left.name, left.reason, left.why) for left in part.left])
        else:
            print_table(("left alone", "count", "example"), list(_summary(part)))


def _summary(part: CyclePart) -> Iterator[tuple[str, int, str]]:
    counts = Counter(left.reason for left in part.left)
    for reason, number in sorted(counts.items()):
        example = next(left for left in part.left if left.reason == reason)
        yield reason, number, f"{example.name}: {example.why}"
