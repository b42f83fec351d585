"""What `partitions plan` and `show` print and write: tables, one document, Kafka's files, a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shedders.cli.results import show, write_file
from shedders.kafka_rebalance.cli.arguments import need_extra
from shedders.kafka_rebalance.planning.estimate import estimate
from shedders.kafka_rebalance.planning.report import brokers_grid, goals_grid, moves_grid, overview
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.output import cell, say, stdout
from statechannel.errors import ExitCode
from statechannel.files import check_writable

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.estimate import Estimate
    from shedders.kafka_rebalance.planning.plan import PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.settings import PartitionsSettings

PICTURES: Final = (".png", ".svg")

ReassignmentOut = Annotated[
    Path | None,
    typer.Option("--reassignment", metavar="FILE", help="Write the JSON that Kafka's own tool takes, too."),
]
RollbackOut = Annotated[
    Path | None, typer.Option("--rollback", metavar="FILE", help="Write the JSON that undoes it, for Kafka's own tool.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Files that are there may be replaced.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is to be written beside the plan; None: not wanted.

    Attributes:
        reassignment: Kafka's JSON.
        rollback: The same, to undo it.
        picture: PNG or SVG.
        replace: Whether files may be replaced.
    """

    reassignment: Path | None = None
    rollback: Path | None = None
    picture: Path | None = None
    replace: bool = False

    def check(self, *more: Path | None, read: Sequence[Path | None] = ()) -> None:
        """Refuse what could not be written, before any work is done.

        Args:
            more: Other files that are to be written.
            read: Files that the results are made from.

        Raises:
            StateChannelError: A file is there already, is named twice, is read, cannot be written, or has no ending that says
                what it is to be.
        """
        named = [one for one in (self.reassignment, self.rollback, self.picture, *more) if one is not None]
        if len({one.resolve() for one in named}) < len(named):
            raise CommandError("two results would go to one file", hint="Name a file for each.", code=ExitCode.USAGE)
        sources = {one.resolve() for one in read if one is not None}
        for one in named:
            if one.resolve() in sources:
                raise CommandError(
                    f"{one} is what the result would be made from", hint="Name another file.", code=ExitCode.USAGE
                )
        if self.picture is not None and self.picture.suffix.lower() not in PICTURES:
            raise CommandError(
                f"--picture {self.picture}: neither a PNG nor an SVG",
                hint="Name a file that ends with .png or .svg.",
                code=ExitCode.USAGE,
            )
        for one in named:
            refuse_existing(one, replace=self.replace)
            check_writable(one)
        if self.picture is not None:
            need_extra("numpy", "matplotlib", extra="simulate")

    def write(self, plan: ReassignmentPlan) -> list[Path]:
        """Write them; the paths, for people.

        Raises:
            StateChannelError: One cannot be written.
        """
        from shedders.kafka_rebalance.planning.reassignment import to_json

        if self.reassignment is not None:
            write_file(self.reassignment, to_json(plan.moves))
        if self.rollback is not None:
            write_file(self.rollback, to_json(plan.moves, "before"))
        if self.picture is not None:
            from shedders.kafka_rebalance.planning.picture import plan_picture

            write_file(self.picture, plan_picture(plan).of(self.picture.suffix.lower().removeprefix(".")))
        return [one for one in (self.reassignment, self.rollback, self.picture) if one is not None]


def refuse_existing(path: Path, *, replace: bool) -> None:
    """A file that is there is not replaced silently.

    Raises:
        CommandError: It is there.
    """
    try:
        there = path.exists()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise CommandError(f"{path}: {error}", hint="Check the path.", code=ExitCode.USAGE) from error
    if there and not replace:
        raise CommandError(
            f"{path} is there already", hint="Choose another file, or say --replace.", code=ExitCode.USAGE
        )


def print_plan(
    plan: ReassignmentPlan,
    settings: PartitionsSettings,
    *,
    details: Sequence[PartitionMove] | None = None,
    most: int | None = None,
    all_brokers: bool = False,
) -> None:
    """The plan as tables.

    Args:
        plan: The plan.
        settings: For the estimate.
        details: Moves to be shown one by one; None: none.
        most: So many of them; None: all.
        all_brokers: Also where there are hundreds.
    """
    show(overview(plan, estimate(plan.moves, settings)), gap=False)
    if plan.goals:
        show(goals_grid(plan))
    if plan.brokers and plan.moves:
        show(brokers_grid(plan, most=None) if all_brokers else brokers_grid(plan))
    if details is not None:
        show(moves_grid(details, most=most, more="--limit N shows more, --topic and --broker choose among them"))


def document(
    plan: ReassignmentPlan, settings: PartitionsSettings, *, details: Sequence[PartitionMove] | None = None
) -> dict[str, Any]:
    """What `--output json` prints: the plan without its single moves, unless they are asked for."""
    found: dict[str, Any] = {
        "id": plan.id,
        "cluster_id": plan.cluster_id,
        "made_at_ms": plan.made_at_ms,
        "complete": plan.complete,
        "request": dict(plan.request),
        "partitions": len(plan.moves),
        "replicas_to_copy": sum(len(one.added) for one in plan.moves),
        "copied_bytes": plan.copied_bytes,
        "new_leaders": sum(one.leader_before != one.leader_after for one in plan.moves),
        "estimate": estimate_document(estimate(plan.moves, settings)),
        "goals": [asdict(one) for one in plan.goals],
        "hard_goals_unmet": [one.name for one in plan.infeasible],
        "brokers": [asdict(one) for one in plan.brokers],
        "remarks": list(plan.remarks),
    }
    if details is not None:
        found["moves"] = [
            asdict(one) | {"added": one.added, "removed": one.removed, "copied_bytes": one.copied_bytes}
            for one in details
        ]
    return found


def estimate_document(told: Estimate) -> Mapping[str, Any]:
    """The estimate with what it assumes."""
    return asdict(told) | {"assumed": list(told.sentences())}


def say_infeasible(plan: ReassignmentPlan) -> None:
    """Name the hard goals that do not hold, with where."""
    for one in plan.infeasible:
        say(cell(f"not met: {one.name}{f': {one.witness}' if one.witness else ''}"))


def print_next(commands: Sequence[str]) -> None:
    """What to type next."""
    stdout().print()
    for line in _next(commands):
        stdout().print(line, markup=False)


def _next(commands: Sequence[str]) -> Iterator[str]:
    yield "Next:"
    yield from (f"    {one}" for one in commands)
