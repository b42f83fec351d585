"""`statechannel split plan`; everything else is `statechannel split` as it was (`statechannel.cli.split`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shedders.cli.options import CyclesOption, EveryOption, ProfileOption, SetOption, SnapshotOption, looking, tell
from shedders.cli.place import known_bundles
from shedders.cli.source import snapshot_from
from shedders.decision.dry_run import SplitDecision, run_splits, split_named
from shedders.model.amounts import count
from shedders.model.cluster import Cluster
from shedders.model.moved_cluster import EVERY_S
from shedders.model.registry import instantiate
from shedders.snapshots.cluster import cluster_of
from shedders.snapshots.plan_document import SplitPlanDocument, split_cycle
from shedders.snapshots.remarks import remarks
from shedders.snapshots.selection import SPLITTING, Flags, choose, dumped, own_way, part_settings, split_memory
from shedders.split.settings import SplitSettings
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.options import Connect, OutputAs
from statechannel.cli.kit.output import Output, cell, moment, print_json, print_table, stdout
from statechannel.cli.split import app as split_app
from statechannel.errors import ExitCode

PLAN = "plan"


class PlanOrBundle(TyperGroup):
    """`split plan ...` is a command of its own; with anything else, `split` is the command that asks the brokers."""

    @property
    def otherwise(self) -> Any:
        """The command that asks the brokers."""
        return typer.main.get_command(split_app)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the one or of the other."""
        if args[:1] == [PLAN]:
            return super().make_context(info_name, args, parent, **extra)
        command = self.otherwise
        command.name = self.name
        command.epilog = "Which bundles should be split: `statechannel split plan --help`."
        return command.make_context(info_name, args, parent, **extra)


app = typer.Typer(
    cls=PlanOrBundle, add_completion=False, rich_markup_mode=None, help="Split a bundle; `split plan`: which should be."
)


@app.callback()
def group() -> None:
    """Split a bundle; `split plan`: which should be."""


def _refuse_ignored(cycles: int, every_s: float, flags: Flags) -> None:
    """Where bundles are named, nobody decides whether and when: options about that would be lost in silence."""
    given = {
        "--cycles": cycles != 1,
        "--every": every_s != EVERY_S,
        f"--set {SPLITTING}.*": bool(flags.around[SPLITTING]),
    }
    for option, is_given in given.items():
        if is_given:
            raise CommandError(
                f"{option} says when bundles are split, but these are named",
                hint="Leave it out, or leave the bundles out.",
                code=ExitCode.USAGE,
            )


def _without_topics(cluster: Cluster, algorithm: str, found: Sequence[SplitDecision]) -> Iterator[str]:
    """Algorithms that go by topics find no place where none is known; the bundles themselves may well be cut."""
    nowhere = {one.bundle for look in found for one in look.splits if one.reason == "no-positions"}
    if nowhere and not any(bundle.topics for bundle in cluster.bundles.values()):
        yield (
            f"no topic of any bundle is known here; {algorithm} finds no place in {count(len(nowhere), 'bundle')}, and may "
            "find one on a broker, which knows its topics"
        )


@app.command(PLAN)
@looking
def plan(
    connect: Connect,
    snapshot: SnapshotOption,
    bundles: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BUNDLE...]", help="Where these would be cut, whether they should be or not."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option("--algorithm", "-a", metavar="NAME", help="Default: the snapshot's, else the profile's."),
    ] = None,
    profile: ProfileOption = None,
    settings: SetOption = None,
    cycles: CyclesOption = 1,
    every: EveryOption = EVERY_S,
    output: OutputAs = Output.TABLE,
) -> None:
    """Show which bundles would be split, and where, without splitting them."""
    flags = Flags.parse(settings or (), (SPLITTING,))
    if bundles:
        _refuse_ignored(cycles, every, flags)
    source = snapshot_from(snapshot, connect)
    chosen = choose(source, "split", name=algorithm, profile=profile, values=flags.own)
    when = part_settings(source, SPLITTING, SplitSettings, profile=profile, values=flags.around[SPLITTING])
    cluster = cluster_of(source)
    cutter = instantiate("split", chosen.found, chosen.settings)
    if bundles:
        found: Sequence[SplitDecision] = [split_named(cluster, known_bundles(cluster, bundles), cutter)]
    else:
        memory = split_memory(source, chosen.name)
        found = list(run_splits(cluster, when, cutter, memory, cycles=cycles, every_s=every))
    odd = [*remarks(source, cluster), *own_way(chosen), *_without_topics(cluster, chosen.name, found)]
    parts = [split_cycle(number, one) for number, one in enumerate(found, 1)]
    if output is Output.JSON:
        document = SplitPlanDocument(
            algorithm=chosen.name,
            profile=chosen.profile,
            settings=chosen.told,
            splitting=dumped(when),
            remarks=odd,
            every_s=every,
            cycles=parts,
        )
        print_json(document.model_dump())
        return
    tell(odd)
    for part in parts:
        if part.cycle > 1:
            stdout().print()
        at = f" at {moment(part.now_ms)}" if part.now_ms else ""
        print_table(
            ("bundle", "cut at", "reason", "why"),
            [
                (
                    one.bundle,
                    ", ".join(f"0x{place:08x}" for place in one.positions) or "left whole",
                    one.reason,
                    one.why,
                )
                for one in part.splits
            ],
            title=f"cycle {part.cycle} of {chosen.name}{at}",
            empty=cell(part.why or "no bundle is over a limit"),
        )
