"""`statechannel place plan`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from shedders.cli.options import ProfileOption, SetOption, SnapshotOption, looking, print_remarks
from shedders.cli.source import snapshot_from
from shedders.decision.dry_run import place_all
from shedders.model.cluster import Cluster
from shedders.model.plan import Placed
from shedders.snapshots.cluster import booked_of, cluster_of, remarks
from shedders.snapshots.plan_document import PlacePlan, placed_part
from shedders.snapshots.selection import FILTERS, Flags, dumped, own_way, pipeline_of
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs
from statechannel.cli.kit.output import Output, cell, print_json, print_table, stdout
from statechannel.errors import ExitCode

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Destinations of bundles: plan.")


@app.callback()
def group() -> None:
    """Destinations of bundles: plan."""


@app.command()
@looking
def plan(
    connect: Connect,
    snapshot: SnapshotOption,
    bundles: Annotated[
        list[str] | None, typer.Argument(metavar="[BUNDLE...]", help="Default: all bundles without an owner.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            "-s",
            metavar="NAME",
            help="Placement strategy. Default: that of the snapshot, else of the profile.",
        ),
    ] = None,
    profile: ProfileOption = None,
    settings: SetOption = None,
    removed: Annotated[bool, typer.Option("--removed", help="Show which filters removed which brokers.")] = False,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show the destinations of bundles without placing them.

    Bundles are placed in the order of the arguments; each placement counts for the next. For a served bundle, the result is
    the broker that would get it if it were unloaded now.
    """
    source = snapshot_from(snapshot, connect)
    flags = Flags.parse(settings or (), ("placement", FILTERS))
    around = Flags({}, {**flags.around, "placement": {**flags.around["placement"], **flags.own}})
    chosen, pipeline = pipeline_of(source, name=strategy, profile=profile, flags=around)
    cluster = cluster_of(source)
    odd = [*remarks(source, cluster), *own_way(chosen)]
    placements = place_all(cluster, _asked(cluster, bundles or []), pipeline, booked=booked_of(source, cluster))
    if output is Output.JSON:
        document = PlacePlan(
            strategy=chosen.name,
            profile=chosen.profile,
            settings=chosen.settings_fields,
            filters=dumped(pipeline.settings),
            remarks=odd,
            placed=[placed_part(placed) for placed in placements],
            memory=dict(pipeline.memory),
        )
        print_json(document.model_dump())
        return
    print_remarks(odd)
    print_table(
        ("bundle", "broker", "equally good", "removed", "why"),
        [
            (placed.bundle, placed.broker, len(placed.best) or None, _removed(placed), placed.why)
            for placed in placements
        ],
        empty="no bundle was named, and every bundle has an owner",
    )
    if removed:
        for placed in placements:
            stdout().print()
            print_table(
                ("broker", "filter", "why"),
                [(name, *what) for name, what in sorted(placed.removed.items())],
                title=cell(f"removed for {placed.bundle}"),
            )


def _asked(cluster: Cluster, names: list[str]) -> list[str]:
    if not names:
        return sorted(name for name, bundle in cluster.bundles.items() if bundle.owner is None and not bundle.in_flight)
    return known_bundles(cluster, names)


def known_bundles(cluster: Cluster, names: list[str]) -> list[str]:
    """Check that all names are bundles of the cluster.

    Raises:
        CommandError: A name is not.
    """
    for name in names:
        if name not in cluster.bundles:
            raise CommandError(
                f"{name} is not a bundle of the snapshot",
                hint="Bundle names have the form tenant/namespace/0xLLLLLLLL_0xUUUUUUUU.",
                code=ExitCode.NOT_FOUND,
            )
    return names


def _removed(placed: Placed) -> str:
    counts = Counter(what for what, _ in placed.removed.values())
    return ", ".join(f"{number} by {what}" for what, number in sorted(counts.items()))
