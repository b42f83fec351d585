"""`statechannel partitions goals list|explain`: the goals of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shedders.kafka_rebalance.cli.arguments import need_extra
from statechannel.cli.kit.options import OutputAs
from statechannel.cli.kit.output import Output, print_json, print_table, stdout

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.registry import GoalDescription

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Goals of a plan: list, explain.")


@app.callback()
def group() -> None:
    """Goals of a plan: list, explain."""


@app.command("list")
def list_(output: OutputAs = Output.TABLE) -> None:
    """List the goals in the order of planning."""
    need_extra("numpy")
    from shedders.kafka_rebalance.planning.registry import every

    goals = every()
    if output is Output.JSON:
        print_json({"goals": [_fields(goal) for goal in goals]})
        return
    print_table(
        ("goal", "kind", "range", "needs", "default of", "about"),
        [
            (
                goal.name,
                "hard" if goal.hard else "soft",
                goal.range_text,
                ", ".join(goal.needs) or "nothing",
                ", ".join(goal.modes) or "no mode",
                goal.about,
            )
            for goal in goals
        ],
    )


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a goal, as in `goals list`.")],
    output: OutputAs = Output.TABLE,
) -> None:
    """Explain a goal: its aim, formula, moves and origin."""
    need_extra("numpy")
    from shedders.kafka_rebalance.planning.registry import explained

    goal = explained(name)
    if output is Output.JSON:
        print_json({**_fields(goal), "text": goal.text})
        return
    print_table(
        ("goal", "kind", "range", "unit", "needs", "default of"),
        [
            (
                goal.name,
                "hard" if goal.hard else "soft",
                goal.range_text,
                goal.unit,
                ", ".join(goal.needs) or "nothing",
                ", ".join(goal.modes) or "no mode",
            )
        ],
    )
    stdout().print()
    stdout().print(goal.text, markup=False)


def _fields(goal: GoalDescription) -> dict[str, Any]:
    return {
        "name": goal.name,
        "hard": goal.hard,
        "unit": goal.unit,
        "range_share": goal.share,
        "range_of": goal.share_of,
        "needs": list(goal.needs),
        "modes": list(goal.modes),
        "comes_with_mode": goal.with_mode,
        "about": goal.about,
    }
