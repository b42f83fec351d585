"""`statechannel shed plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from shedders.cli.options import CyclesOption, EveryOption, ProfileOption, SetOption, SnapshotOption, snapshot_from
from shedders.cli.placing import placer_of
from shedders.dry_run import Decision, run_cycles
from shedders.moved import EVERY_S, after_moves
from shedders.plan_document import CyclePart, ShedPlan, cycle_part
from shedders.selection import select
from shedders.snapshot import ByStrategy, Snapshot
from shedders.snapshot_file import write_snapshot
from statechannel.cli.options import OutputAs
from statechannel.cli.output import Output, moment, print_json, print_table, say, stdout

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Which bundles should move: plan.")


@app.callback()
def group() -> None:
    """Which bundles should move: plan."""


@app.command()
def plan(
    snapshot: SnapshotOption,
    strategy: Annotated[
        str | None, typer.Option("--strategy", "-s", metavar="NAME", help="Default: the snapshot's, else the profile's.")
    ] = None,
    placement: Annotated[
        str | None, typer.Option("--placement", metavar="NAME", help="Chooses destinations that are left open.")
    ] = None,
    profile: ProfileOption = None,
    settings: SetOption = None,
    cycles: CyclesOption = 1,
    every: EveryOption = EVERY_S,
    after: Annotated[
        Path | None, typer.Option("--after", metavar="FILE", help="Write the snapshot there as the moves leave it.")
    ] = None,
    left: Annotated[bool, typer.Option("--left", help="Show everything that is left alone, not only how much.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show what a strategy would move, without moving it.

    With several cycles each decision is made on what the moves of the last one leave, with what the strategy remembers.
    """
    source = snapshot_from(snapshot)
    chosen = select(source, "shedding", name=strategy, profile=profile, flags=settings or ())
    placer = placer_of(source, name=placement, profile=profile)
    decisions = run_cycles(
        source.to_cluster(),
        chosen.strategy,
        source.memory.shedding.get(chosen.name, {}),
        placer,
        cycles=cycles,
        every_s=every,
    )
    found: list[CyclePart] = []
    last: Decision | None = None
    for number, decision in enumerate(decisions, 1):
        part = cycle_part(
            number, decision.cluster.now_ms, decision.plan, decision.moves, decision.placed, decision.memory
        )
        last = decision
        found.append(part)
        if output is Output.TABLE:
            _show(part, chosen.name, every_left=left)
    if output is Output.JSON:
        document = ShedPlan(
            strategy=chosen.name, profile=chosen.profile, settings=dict(chosen.settings), every_s=every, cycles=found
        )
        print_json(document.model_dump())
    if after is not None and last is not None:
        write_snapshot(_after(source, chosen.name, last, every, placer.name, placer.memory), after)
        say(f"the snapshot after {_count(cycles, 'cycle')} is in {after}")


def _after(
    source: Snapshot, strategy: str, last: Decision, every_s: float, placement: str, placing_memory: dict[str, object]
) -> Snapshot:
    memory = ByStrategy.model_validate(
        {
            **dict(source.memory),
            "shedding": {**source.memory.shedding, strategy: dict(last.memory)},
            "placement": {**source.memory.placement, placement: placing_memory},
        }
    )
    cluster = after_moves(last.cluster, last.moves, every_s=every_s)
    return source.model_copy(update={"memory": memory}).with_cluster(cluster)


def _show(part: CyclePart, strategy: str, *, every_left: bool) -> None:
    if part.cycle > 1:
        stdout().print()
    at = f" at {moment(part.now_ms)}" if part.now_ms else ""
    print_table(
        ("bundle", "from", "to", "reason", "load/s", "why"),
        [
            (
                f"{move.bundle}{' (swap)' if move.swap else ''}",
                move.source,
                move.destination or "stays: nobody takes it",
                move.reason,
                move.load,
                move.why,
            )
            for move in part.moves
        ],
        title=f"cycle {part.cycle} of {strategy}{at}: {part.label}, {part.reason}: {part.why}",
        empty="nothing moves",
    )
    if part.left:
        stdout().print()
        if every_left:
            print_table(("left alone", "reason", "why"), [(one.name, one.reason, one.why) for one in part.left])
        else:
            print_table(("left alone", "how many", "for example"), list(_summary(part)))


def _summary(part: CyclePart) -> Iterator[tuple[str, int, str]]:
    counts = Counter(one.reason for one in part.left)
    for reason, count in sorted(counts.items()):
        example = next(iter(islice((one for one in part.left if one.reason == reason), 1)))
        yield reason, count, f"{example.name}: {example.why}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
