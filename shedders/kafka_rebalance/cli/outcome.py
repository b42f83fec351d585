"""Output of `partitions plan` and `show`: tables, JSON document, Kafka's files, picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shedders.cli.results import show, write_file
from shedders.kafka_rebalance.cli.arguments import need_extra
from shedders.kafka_rebalance.planning.estimate import estimate
from shedders.kafka_rebalance.planning.report import brokers_grid, dir_moves_grid, goals_grid, moves_grid, overview
from statechannel.cli.kit.failures import CommandError
from statechannel.cli.kit.fitted_tables import cell
from statechannel.cli.kit.output import say, stdout
from statechannel.errors import ExitCode
from statechannel.files import check_writable

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.plan import LogDirMove, PartitionMove, ReassignmentPlan
    from shedders.kafka_rebalance.settings import PartitionsSettings

_OTHERS: Final = "use --limit, --topic or --broker to see others"
PICTURES: Final = (".png", ".svg")

ReassignmentOut = Annotated[
    Path | None,
    typer.Option("--reassignment", metavar="FILE", help="Also write the plan as JSON for kafka-reassign-partitions."),
]
RollbackOut = Annotated[
    Path | None,
    typer.Option(
        "--rollback", metavar="FILE", help="Also write the JSON that reverts the plan, for kafka-reassign-partitions."
    ),
]
Replace = Annotated[bool, typer.Option("--replace", help="Overwrite existing files.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """Files to write in addition to the plan; None: not requested.

    Attributes:
        reassignment: Kafka's JSON.
        rollback: Kafka's JSON that reverts the plan.
        picture: PNG or SVG.
        replace: Whether files may be overwritten.
    """

    reassignment: Path | None = None
    rollback: Path | None = None
    picture: Path | None = None
    replace: bool = False

    def check(self, *more: Path | None, read: Sequence[Path | None] = ()) -> None:
        """Check that all files can be written, before any work is done.

        Args:
            more: Other files to be written.
            read: Files that the results are made from.

        Raises:
            StateChannelError: A file exists already, is named twice, is an input, cannot be written, or has an unknown
                extension.
        """
        named = [path for path in (self.reassignment, self.rollback, self.picture, *more) if path is not None]
        if len({path.resolve() for path in named}) < len(named):
            raise CommandError("two results have the same file", hint="Name one file for each.", code=ExitCode.USAGE)
        sources = {path.resolve() for path in read if path is not None}
        for path in named:
            if path.resolve() in sources:
                raise CommandError(
                    f"{path} is an input of this command", hint="Name another file.", code=ExitCode.USAGE
                )
        if self.picture is not None and self.picture.suffix.lower() not in PICTURES:
            raise CommandError(
                f"--picture {self.picture}: neither a PNG nor an SVG",
                hint="Name a file that ends with .png or .svg.",
                code=ExitCode.USAGE,
            )
        for target in named:
            refuse_existing(target, replace=self.replace)
            check_writable(target)
        if self.picture is not None:
            need_extra("numpy", "matplotlib", extra="simulate")

    def write(self, plan: ReassignmentPlan) -> list[Path]:
        """Write the files and return their paths, for people.

        Raises:
            StateChannelError: A file cannot be written.
        """
        from shedders.kafka_rebalance.planning.plan_files import to_json

        if self.reassignment is not None:
            write_file(self.reassignment, to_json(plan.moves, "after", plan.dir_moves))
        if self.rollback is not None:
            write_file(self.rollback, to_json(plan.moves, "before", plan.dir_moves))
        if self.picture is not None:
            from shedders.kafka_rebalance.planning.picture import plan_picture

            write_file(self.picture, plan_picture(plan).of(self.picture.suffix.lower().removeprefix(".")))
        return [path for path in (self.reassignment, self.rollback, self.picture) if path is not None]


def refuse_existing(path: Path, *, replace: bool) -> None:
    """Refuse to overwrite an existing file unless `replace` is set.

    Raises:
        CommandError: The file exists.
    """
    try:
        there = path.exists()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise CommandError(f"{path}: {error}", hint="Check the path.", code=ExitCode.USAGE) from error
    if there and not replace:
        raise CommandError(f"{path} exists already", hint="Name another file, or use --replace.", code=ExitCode.USAGE)


def print_plan(
    plan: ReassignmentPlan,
    settings: PartitionsSettings,
    *,
    details: Sequence[PartitionMove] | None = None,
    dir_details: Sequence[LogDirMove] = (),
    most: int | None = None,
    all_brokers: bool = False,
) -> None:
    """Print a plan as tables.

    Args:
        plan: The plan.
        settings: For the estimate.
        details: Moves to list; None: none.
        dir_details: Moves between log directories to list with them.
        most: Most moves to list; None: all.
        all_brokers: List all brokers, even hundreds.
    """
    show(overview(plan, estimate(plan.moves, settings, plan.dir_moves)), gap=False)
    if plan.goals:
        show(goals_grid(plan))
    if plan.brokers and plan.moves:
        show(brokers_grid(plan, most=None) if all_brokers else brokers_grid(plan))
    if details is not None:
        show(moves_grid(details, most=most, more=_OTHERS))
        if dir_details:
            show(dir_moves_grid(dir_details, most=most, more=_OTHERS))


def document(
    plan: ReassignmentPlan,
    settings: PartitionsSettings,
    *,
    details: Sequence[PartitionMove] | None = None,
    dir_details: Sequence[LogDirMove] = (),
) -> dict[str, Any]:
    """JSON document of `--output json`: the plan, with its moves only if they are requested."""
    expected = estimate(plan.moves, settings, plan.dir_moves)
    fields: dict[str, Any] = {
        "id": plan.id,
        "cluster_id": plan.cluster_id,
        "made_at_ms": plan.made_at_ms,
        "complete": plan.complete,
        "request": dict(plan.request),
        "partitions": len(plan.moves),
        "replicas_to_copy": sum(len(move.added) for move in plan.moves),
        "copied_bytes": plan.copied_bytes,
        "dir_moves": len(plan.dir_moves),
        "dir_bytes": plan.dir_bytes,
        "new_leaders": sum(move.leader_before != move.leader_after for move in plan.moves),
        "estimate": asdict(expected) | {"assumed": list(expected.sentences())},
        "goals": [asdict(goal) for goal in plan.goals],
        "hard_goals_unmet": [goal.name for goal in plan.infeasible],
        "brokers": [asdict(broker) for broker in plan.brokers],
        "remarks": list(plan.remarks),
    }
    if details is not None:
        fields["moves"] = [
            asdict(move) | {"added": move.added, "removed": move.removed, "copied_bytes": move.copied_bytes}
            for move in details
        ]
        fields["moves_between_dirs"] = [asdict(move) for move in dir_details]
    return fields


def say_infeasible(plan: ReassignmentPlan) -> None:
    """Print the hard goals that are not met, with witnesses."""
    for goal in plan.infeasible:
        say(cell(f"not met: {goal.name}{f': {goal.witness}' if goal.witness else ''}"))


def print_next(commands: Sequence[str]) -> None:
    stdout().print()
    for line in ("Next:", *(f"    {command}" for command in commands)):
        stdout().print(line, markup=False)
