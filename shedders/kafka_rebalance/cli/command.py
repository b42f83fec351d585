"""`statechannel partitions`: goals, sample, layout, plan, show, apply, status, pause, resume, cancel, rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shedders.kafka_rebalance.cli.arguments import need_extra
from shedders.kafka_rebalance.cli.executions import apply, cancel, pause, resume, rollback, status
from shedders.kafka_rebalance.cli.plan import layout, plan, show
from shedders.kafka_rebalance.cli.sample import sample
from statechannel.cli.kit.options import OutputAs
from statechannel.cli.kit.output import Output, print_json, print_table, stdout

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.registry import GoalDescription


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Kafka's own partitions: measure load, plan a rebalance, show it, execute it, roll it back.",
)


@app.callback()
def group() -> None:
    """Kafka's own partitions: measure load, plan a rebalance, show it, execute it, roll it back."""


goals_app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Goals of a plan: list, explain.")


@goals_app.callback()
def goals_group() -> None:
    """Goals of a plan: list, explain."""


@goals_app.command("list")
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
        [(goal.name, goal.kind, goal.range_text, goal.needs_text, goal.modes_text, goal.about) for goal in goals],
    )


@goals_app.command()
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
        [(goal.name, goal.kind, goal.range_text, goal.unit, goal.needs_text, goal.modes_text)],
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


app.command()(sample)
app.command()(apply)
app.command()(status)
app.command()(pause)
app.command()(resume)
app.command()(cancel)
app.command()(rollback)
app.command("plan")(plan)
app.command("show")(show)
app.command("layout")(layout)
app.add_typer(goals_app, name="goals")
