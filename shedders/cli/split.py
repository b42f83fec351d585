"""`statechannel split plan`; all other uses of `split` go to `statechannel.cli.split`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shedders.cli.options import (
    CyclesOption,
    EveryOption,
    ProfileOption,
    SetOption,
    SnapshotOption,
    looking,
    print_remarks,
)
from shedders.cli.place import known_bundles
from shedders.cli.source import snapshot_from
from shedders.decision.dry_run import SplitDecision, run_splits, split_named
from shedders.model.amounts import count
from shedders.model.cluster import Cluster
from shedders.model.moved_cluster import EVERY_S
from shedders.model.strategy import instantiate
from shedders.snapshots.cluster import cluster_of
from shedders.snapshots.cluster import remarks
from shedders.snapshots.plan_document import SplitPlanDocument, split_cycle
from shedders.snapshots.selection import SPLITTING, Flags, choose, dumped, own_way, part_settings, split_memory
from shedders.split.triggers import SplitSettings
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs
from statechannel.cli.kit.output import Output, cell, moment, print_json, print_table, stdout
from statechannel.cli.split import app as split_app
from statechannel.errors import ExitCode

PLAN = "plan"


class PlanOrBundle(TyperGroup):
    """Command group of `split plan ...`; with other arguments, `split` sends a request to the brokers."""

    @property
    def otherwise(self) -> Any:
        """Command that sends a request to the brokers."""
        return typer.main.get_command(split_app)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Context of the command that the arguments name."""
        if args[:1] == [PLAN]:
            return super().make_context(info_name, args, parent, **extra)
        command = self.otherwise
        command.name = self.name
        command.epilog = "To plan splits: `statechannel split plan --help`."
        return command.make_context(info_name, args, parent, **extra)


app = typer.Typer(
    cls=PlanOrBundle,
    add_completion=False,
    rich_markup_mode=None,
    help="Split a bundle; `split plan` shows which to split.",
)


@app.callback()
def group() -> None:
    """Split a bundle; `split plan` shows which to split."""


def _refuse_ignored(cycles: int, every_s: float, flags: Flags) -> None:
    """Reject options about which bundles to split and when, as they would be ignored if bundles are named."""
    flags_set = {
        "--cycles": cycles != 1,
        "--every": every_s != EVERY_S,
        f"--set {SPLITTING}.*": bool(flags.around[SPLITTING]),
    }
    for option, is_given in flags_set.items():
        if is_given:
            raise CommandError(
                f"{option} has no effect if bundles are named",
                hint="Omit the option, or omit the bundles.",
                code=ExitCode.USAGE,
            )


def _without_topics(cluster: Cluster, algorithm: str, decisions: Sequence[SplitDecision]) -> Iterator[str]:
    """Notes on algorithms that need topics, where the snapshot has none: a broker, which knows its topics, may find a split."""
    nowhere = {split.bundle for look in decisions for split in look.splits if split.reason == "no-positions"}
    if nowhere and not any(bundle.topics for bundle in cluster.bundles.values()):
        yield (
            f"no topics of these bundles are known here; {algorithm} finds no split point in "
            f"{count(len(nowhere), 'bundle')}, and may find one on a broker, which knows its topics"
        )


@app.command(PLAN)
@looking
def plan(
    connect: Connect,
    snapshot: SnapshotOption,
    bundles: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BUNDLE...]", help="Bundles to split. Default: those over a limit."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            "-a",
            metavar="NAME",
            help="Split algorithm. Default: that of the snapshot, else of the profile.",
        ),
    ] = None,
    profile: ProfileOption = None,
    settings: SetOption = None,
    cycles: CyclesOption = 1,
    every: EveryOption = EVERY_S,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show which bundles would be split and where, without splitting them."""
    flags = Flags.parse(settings or (), (SPLITTING,))
    if bundles:
        _refuse_ignored(cycles, every, flags)
    source = snapshot_from(snapshot, connect)
    chosen = choose(source, "split", name=algorithm, profile=profile, values=flags.own)
    when = part_settings(source, SPLITTING, SplitSettings, profile=profile, values=flags.around[SPLITTING])
    cluster = cluster_of(source)
    cutter = instantiate("split", chosen.strategy, chosen.settings)
    if bundles:
        decisions: Sequence[SplitDecision] = [split_named(cluster, known_bundles(cluster, bundles), cutter)]
    else:
        memory = split_memory(source, chosen.name)
        decisions = list(run_splits(cluster, when, cutter, memory, cycles=cycles, every_s=every))
    odd = [*remarks(source, cluster), *own_way(chosen), *_without_topics(cluster, chosen.name, decisions)]
    parts = [split_cycle(number, decision) for number, decision in enumerate(decisions, 1)]
    if output is Output.JSON:
        document = SplitPlanDocument(
            algorithm=chosen.name,
            profile=chosen.profile,
            settings=chosen.settings_fields,
            splitting=dumped(when),
            remarks=odd,
            every_s=every,
            cycles=parts,
        )
        print_json(document.model_dump())
        return
    print_remarks(odd)
    for part in parts:
        if part.cycle > 1:
            stdout().print()
        at = f" at {moment(part.now_ms)}" if part.now_ms else ""
        print_table(
            ("bundle", "cut at", "reason", "why"),
            [
                (
                    split.bundle,
                    ", ".join(f"0x{place:08x}" for place in split.positions) or "not split",
                    split.reason,
                    split.why,
                )
                for split in part.splits
            ],
            title=f"cycle {part.cycle} of {chosen.name}{at}",
            empty=cell(part.why or "no bundle is over a limit"),
        )
