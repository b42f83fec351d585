"""`statechannel snapshot take|check|schema`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shedders.cli.options import LIVE, print_remarks, snapshot_from
from shedders.filters.rules import FilterSettings
from shedders.model.amounts import count
from shedders.model.strategy import KINDS, find, settings_of
from shedders.policies.contradictions import contradictions
from shedders.schemas import schemas
from shedders.snapshots.cluster import cluster_of, remarks
from shedders.snapshots.file import SnapshotError, snapshot_bytes, write_snapshot
from shedders.snapshots.model import Snapshot
from shedders.snapshots.selection import FILTERS, SPLITTING, choose, part_settings
from shedders.split.triggers import SplitSettings
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.options import Connect, OutputAs, argument, commands, option, with_kafka
from statechannel.cli.kit.output import Output, json_for_stdout, print_json, say, stdout

app = commands("Snapshots of a cluster: take, check, schema.")


class Document(StrEnum):
    """Documents with a JSON Schema."""

    SNAPSHOT = "snapshot"
    PLAN = "plan"


@app.command()
@with_kafka
def take(
    connect: Connect,
    file: Annotated[Path | None, option("-o --out FILE", "Output file. Default: standard output.")] = None,
) -> None:
    """Take a snapshot of the cluster from its topics; no broker need run."""
    snapshot = snapshot_from(LIVE, connect)
    print_remarks(remarks(snapshot, cluster_of(snapshot)))
    if file is None:
        sys.stdout.write(json_for_stdout(snapshot_bytes(snapshot).decode()))
        return
    write_snapshot(snapshot, file)
    say(f"a snapshot of {_counts(snapshot)} is in {file}")


@app.command()
@with_kafka
def check(
    connect: Connect,
    file: Annotated[str, argument("FILE", "Snapshot file (design/snapshot.md).")],
    output: OutputAs = Output.TABLE,
) -> None:
    """Check a snapshot: format, consistency, contradictions of policies, strategies and settings."""
    source = snapshot_from(file, connect)
    cluster = cluster_of(source)
    blocking = [
        f"policies: {contradiction.kind}: {contradiction.why}"
        for contradiction in contradictions(cluster)
        if contradiction.blocks
    ]
    if blocking:
        raise SnapshotError(
            file, blocking, hint="Change one of these policies; plans can be made, but no broker gets these bundles."
        )
    used = _usable(source)
    odd = remarks(source, cluster)
    counts = _numbers(source)
    if output is Output.JSON:
        print_json({"file": file, **counts, "profile": source.profile, "strategies": used, "remarks": odd})
        return
    stdout().print(f"{file}: {_counts(source)}", markup=False)
    chosen = ", ".join(f"{kind} {name}" for kind, name in used.items())
    stdout().print(cell(f"profile {source.profile}: {chosen}"), markup=False)
    print_remarks(odd)


@app.command()
def schema(
    document: Annotated[
        Document, typer.Argument(help="Schema of snapshots, or of the output of plan commands.")
    ] = Document.SNAPSHOT,
) -> None:
    """Print the JSON Schema of snapshots, or of plans."""
    sys.stdout.write(schemas()[f"{document}.schema.json"])


def _numbers(snapshot: Snapshot) -> dict[str, int]:
    return {
        "brokers": len(snapshot.brokers),
        "bundles": len(snapshot.bundles),
        "namespaces": len({name.rpartition("/")[0] for name in snapshot.bundles}),
        "topics": sum(len(bundle.topics) for bundle in snapshot.bundles.values()),
    }


def _counts(snapshot: Snapshot) -> str:
    return ", ".join(count(number, what.removesuffix("s")) for what, number in _numbers(snapshot).items())


def _usable(snapshot: Snapshot) -> dict[str, str]:
    """Check the strategies and settings in the file, and return the strategies that would be used."""
    used = {kind: choose(snapshot, kind).name for kind in KINDS}
    for kind in KINDS:
        for name, values in getattr(snapshot.settings, kind).items():
            settings_of(find(kind, name).Settings, f"{kind}.{name}", values)
    part_settings(snapshot, FILTERS, FilterSettings)
    part_settings(snapshot, SPLITTING, SplitSettings)
    unknown = sorted(snapshot.settings.parts.keys() - {FILTERS, SPLITTING})
    if unknown:
        raise SnapshotError("settings.parts", [f"{name}: unknown part" for name in unknown])
    return used
