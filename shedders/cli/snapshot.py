"""`statechannel snapshot check|schema`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from shedders.cli.options import count, looking, tell
from shedders.cli.source import snapshot_from
from shedders.contradictions import contradictions
from shedders.filter_rules import FilterSettings
from shedders.registry import KINDS, find, settings_of
from shedders.schemas import schemas
from shedders.selection import FILTERS, SPLITTING, choose, part_settings
from shedders.snapshot import Snapshot
from shedders.snapshot_cluster import cluster_of
from shedders.snapshot_faults import SnapshotError
from shedders.snapshot_remarks import remarks
from shedders.split_settings import SplitSettings
from statechannel.cli.options import Connect, OutputAs
from statechannel.cli.output import Output, cell, print_json, stdout

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Snapshots of a cluster: check, schema.")


class Document(StrEnum):
    """What has a JSON Schema."""

    SNAPSHOT = "snapshot"
    PLAN = "plan"


@app.callback()
def group() -> None:
    """Snapshots of a cluster: check, schema."""


@app.command()
@looking
def check(
    connect: Connect,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A snapshot (design/snapshot.md).")],
    output: OutputAs = Output.TABLE,
) -> None:
    """Check a snapshot: its format, what contradicts itself, policies that cannot be kept together, strategies and settings."""
    source = snapshot_from(file, connect)
    cluster = cluster_of(source)
    blocking = [f"policies: {one.kind}: {one.why}" for one in contradictions(cluster) if one.blocks]
    if blocking:
        raise SnapshotError(
            file,
            blocking,
            hint="Change one of the policies that are named; plans can be made, but nobody gets these bundles.",
        )
    used = _usable(source)
    odd = remarks(source, cluster)
    counts = {
        "brokers": len(source.brokers),
        "bundles": len(source.bundles),
        "namespaces": len(cluster.bundles_in),
        "topics": sum(len(one.topics) for one in source.bundles.values()),
    }
    if output is Output.JSON:
        print_json({"file": file, **counts, "profile": source.profile, "strategies": used, "remarks": odd})
        return
    stdout().print(
        f"{file}: {', '.join(count(number, what.removesuffix('s')) for what, number in counts.items())}", markup=False
    )
    chosen = ", ".join(f"{kind} {name}" for kind, name in used.items())
    stdout().print(cell(f"profile {source.profile}: {chosen}"), markup=False)
    tell(odd)


@app.command()
def schema(
    document: Annotated[
        Document, typer.Argument(help="Of snapshots, or of what the plan commands print.")
    ] = Document.SNAPSHOT,
) -> None:
    """Print the JSON Schema of snapshots, or of plans."""
    sys.stdout.write(schemas()[f"{document}.schema.json"])


def _usable(snapshot: Snapshot) -> dict[str, str]:
    """The strategies that would be used, made sure that they can be, and that every setting in the file is one."""
    used = {kind: choose(snapshot, kind).name for kind in KINDS}
    for kind in KINDS:
        for name, values in getattr(snapshot.settings, kind).items():
            settings_of(find(kind, name).Settings, f"{kind}.{name}", values)
    part_settings(snapshot, FILTERS, FilterSettings)
    part_settings(snapshot, SPLITTING, SplitSettings)
    unknown = sorted(snapshot.settings.parts.keys() - {FILTERS, SPLITTING})
    if unknown:
        raise SnapshotError("settings.parts", [f"{name}: there is no such part" for name in unknown])
    return used
