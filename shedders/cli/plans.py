"""`statechannel shed plan`, `place plan` and `split plan`; all other uses of `split` go to `statechannel.cli.split`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shedders.cli.options import (
    CyclesOption,
    EveryOption,
    PlacementOption,
    ProfileOption,
    SetOption,
    SnapshotOption,
    print_remarks,
    snapshot_from,
)
from shedders.decision.distance import distances_of
from shedders.decision.dry_run import Decision, SplitDecision, place_all, run_cycles, run_splits, split_named
from shedders.model.amounts import count, rate
from shedders.model.cluster import Cluster
from shedders.model.moved_cluster import EVERY_S
from shedders.model.plan import Placed
from shedders.model.strategy import instantiate
from shedders.snapshots.cluster import booked_of, cluster_of, remarks, rules_of, with_cluster
from shedders.snapshots.file import write_snapshot
from shedders.snapshots.model import Snapshot
from shedders.snapshots.plan_document import (
    CyclePart,
    PlacePlan,
    ShedPlan,
    SplitCycle,
    SplitPlanDocument,
    cycle_part,
    placed_part,
    split_cycle,
)
from shedders.snapshots.selection import (
    FILTERS,
    SPLITTING,
    Flags,
    choose,
    dumped,
    own_way,
    part_settings,
    pipeline_of,
    remembered_by,
    shedding_of,
    split_memory,
)
from shedders.split.triggers import SplitSettings
from statechannel.cli.kit.fitted_tables import Column, cell
from statechannel.cli.kit.options import Connect, OutputAs, argument, commands, option, with_kafka
from statechannel.cli.kit.output import Output, print_json, print_rows, print_table, say, stdout
from statechannel.clocks import moment
from statechannel.errors import NotFoundError, UsageError
from statechannel.protocol.bundle import is_bundle, parse_key, split_typed_topic, topic_hash

PLAN = "plan"


def _choice(names: str, what: str) -> Any:
    return option(f"{names} NAME", f"{what}. Default: that of the snapshot, else of the profile.")


shed_app = commands("Moves of bundles between brokers: plan.", alone=True)


@shed_app.command(PLAN)
@with_kafka
def plan_shedding(
    connect: Connect,
    snapshot: SnapshotOption,
    strategy: Annotated[str | None, _choice("--strategy -s", "Shedding strategy")] = None,
    placement: PlacementOption = None,
    profile: ProfileOption = None,
    settings: SetOption = None,
    cycles: CyclesOption = 1,
    every: EveryOption = EVERY_S,
    after: Annotated[Path | None, option("--after FILE", "Write the snapshot after the moves to this file.")] = None,
    left: Annotated[bool, option("--left", "Show each bundle and broker left alone, not only counts.")] = False,
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
    if output is not Output.JSON:
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
        distances = distances_of(decision, chosen.settings, pipeline.settings)
        part = cycle_part(number, decision, distances.of(decision.moves))
        last = decision
        if output is not Output.JSON:
            _print_moves(part, chosen.name, every_left=left)
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
    if source.balancing.shedding_off is not None:
        yield f"none of these moves would be made: {source.balancing.shedding_off}"
    if source.balancing.unload_mode == "unload":
        yield "bundles are unloaded without a destination; the destinations shown are predictions"


def _after(source: Snapshot, strategy: str, placement: str, last: Decision, every_s: float) -> Snapshot:
    after = _with_memory(source, "shedding", strategy, dict(last.memory))
    after = _with_memory(after, "placement", placement, dict(last.placing_memory))
    return with_cluster(after, last.after(every_s))


def _with_memory(snapshot: Snapshot, kind: str, name: str, memory: dict[str, Any]) -> Snapshot:
    """Copy of a snapshot with the present memory of a strategy."""
    by_name = {**getattr(snapshot.memory, kind), name: memory}
    return snapshot.model_copy(update={"memory": snapshot.memory.model_copy(update={kind: by_name})})


def _print_moves(part: CyclePart, strategy: str, *, every_left: bool) -> None:
    if part.cycle > 1:
        stdout().print()
    print_rows(
        (
            Column("bundle", of=lambda move: f"{move.bundle}{' (swap)' if move.swap else ''}"),
            Column("from", of="source"),
            Column("to", of=lambda move: move.destination or "stays"),
            "reason",
            Column("load", of=lambda move: None if move.load is None else rate(move.load, move.load_unit)),
            Column("why", of=lambda move: move.why if move.refused is None else f"{move.refused}; {move.why}"),
        ),
        part.moves,
        title=cell(f"{_title(part, strategy)}: {part.label}, {part.reason}: {part.why}"),
        empty="no moves",
    )
    if part.distance is not None:
        stdout().print()
        stdout().print(cell(part.distance.sentence), markup=False)
    if part.splits:
        stdout().print()
        print_rows((Column("to be split", of="bundle"), "why"), part.splits)
    if part.left:
        stdout().print()
        if every_left:
            print_rows((Column("left alone", of="name"), "reason", "why"), part.left)
        else:
            print_table(("left alone", "count", "example"), list(_left_alone(part)))


def _left_alone(part: CyclePart) -> Iterator[tuple[str, int, str]]:
    counts = Counter(left.reason for left in part.left)
    for reason, number in sorted(counts.items()):
        example = next(left for left in part.left if left.reason == reason)
        yield reason, number, f"{example.name}: {example.why}"


place_app = commands("Destinations of bundles: plan.", alone=True)


@place_app.command(PLAN)
@with_kafka
def plan_placement(
    connect: Connect,
    snapshot: SnapshotOption,
    bundles: Annotated[
        list[str] | None, argument("[BUNDLE|TOPIC...]", "Default: all bundles without an owner.")
    ] = None,
    strategy: Annotated[str | None, _choice("--strategy -s", "Placement strategy")] = None,
    profile: ProfileOption = None,
    settings: SetOption = None,
    removed: Annotated[bool, option("--removed", "Show which filters removed which brokers.")] = False,
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
    placements = place_all(
        cluster, _bundles_to_place(cluster, bundles or []), pipeline, booked=booked_of(source, cluster)
    )
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
    good = Column("equally good", of=lambda placed: len(placed.best) or None)
    empty = "no bundle was named, and every bundle has an owner"
    print_rows(("bundle", "broker", good, Column("removed", of=_removed), "why"), placements, empty=empty)
    if removed:
        for placed in placements:
            stdout().print()
            print_table(
                ("broker", "filter", "why"),
                [(name, *what) for name, what in sorted(placed.removed.items())],
                title=cell(f"removed for {placed.bundle}"),
            )


def _bundles_to_place(cluster: Cluster, names: list[str]) -> list[str]:
    if not names:
        return sorted(name for name, bundle in cluster.bundles.items() if bundle.owner is None and not bundle.in_flight)
    return known_bundles(cluster, names)


def known_bundles(cluster: Cluster, names: list[str]) -> list[str]:
    """The bundles of these names; of a topic, its bundle.

    Raises:
        CommandError: A name is neither a bundle of the cluster, nor a topic in one.
    """
    return [name if name in cluster.bundles else _bundle_with(cluster, name) for name in names]


def _bundle_with(cluster: Cluster, name: str) -> str:
    topic = None if is_bundle(name) else split_typed_topic(name)
    for bundle in cluster.bundles_in.get(topic[0], ()) if topic is not None else ():
        place = parse_key(bundle.name.encode())
        if topic is not None and place is not None and place.contains(topic_hash(topic[1])):
            say(f"{name} is in {bundle.name}")
            return bundle.name
    raise NotFoundError(
        f"{name} is not a bundle of the snapshot"
        if topic is None
        else f"no bundle of the snapshot holds the topic {name}",
        hint="Bundle names have the form tenant/namespace/0xLLLLLLLL_0xUUUUUUUU.",
    )


def _removed(placed: Placed) -> str:
    counts = Counter(what for what, _ in placed.removed.values())
    return ", ".join(f"{number} by {what}" for what, number in sorted(counts.items()))


class PlanOrBundle(TyperGroup):
    """Command group of `split plan ...`; with other arguments, `split` sends a request to the brokers."""

    @property
    def otherwise(self) -> Any:
        """Command that sends a request to the brokers."""
        # Plans are made without the Kafka client.
        from statechannel.cli.split import split_app as request_app

        return typer.main.get_command(request_app)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] == [PLAN]:
            return super().make_context(info_name, args, parent, **extra)
        command = self.otherwise
        command.name = self.name
        command.epilog = "To plan splits: `statechannel split plan --help`."
        return command.make_context(info_name, args, parent, **extra)


split_app = commands("Split a bundle; `split plan` shows which to split.", cls=PlanOrBundle, alone=True)


def _refuse_ignored(cycles: int, every_s: float, flags: Flags) -> None:
    """Reject options about which bundles to split and when, as they would be ignored if bundles are named."""
    flags_set = {
        "--cycles": cycles != 1,
        "--every": every_s != EVERY_S,
        f"--set {SPLITTING}.*": bool(flags.around[SPLITTING]),
    }
    for name, is_given in flags_set.items():
        if is_given:
            raise UsageError(f"{name} has no effect if bundles are named", hint="Omit the option, or omit the bundles.")


def _without_topics(cluster: Cluster, algorithm: str, decisions: Sequence[SplitDecision]) -> Iterator[str]:
    """Notes on algorithms that need topics, where the snapshot has none: a broker, which knows its topics, may find a split."""
    nowhere = {split.bundle for look in decisions for split in look.splits if split.reason == "no-positions"}
    if nowhere and not any(bundle.topics for bundle in cluster.bundles.values()):
        yield (
            f"no topics of these bundles are known here; {algorithm} finds no split point in "
            f"{count(len(nowhere), 'bundle')}, and may find one on a broker, which knows its topics"
        )


@split_app.command(PLAN)
@with_kafka
def plan_splits(
    connect: Connect,
    snapshot: SnapshotOption,
    bundles: Annotated[
        list[str] | None, argument("[BUNDLE|TOPIC...]", "Bundles to split. Default: those over a limit.")
    ] = None,
    algorithm: Annotated[str | None, _choice("--algorithm -a", "Split algorithm")] = None,
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
        cuts = Column("cut at", of=lambda row: ", ".join(f"0x{at:08x}" for at in row.positions) or "not split")
        empty = cell(part.why or "no bundle is over a limit")
        print_rows(("bundle", cuts, "reason", "why"), part.splits, title=_title(part, chosen.name), empty=empty)


def _title(part: CyclePart | SplitCycle, strategy: str) -> str:
    at = f" at {moment(part.now_ms)}" if part.now_ms else ""
    return f"cycle {part.cycle} of {strategy}{at}"
