"""`statechannel partitions`: goals, sample, layout, plan, show, apply, status, pause, resume, cancel, rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shedders.kafka_rebalance.cli.arguments import need_extra
from shedders.kafka_rebalance.cli.execution import apply, cancel, pause, resume, rollback, status
from shedders.kafka_rebalance.cli.plan import layout, plan, show
from shedders.kafka_rebalance.cli.sample import sample
from statechannel.cli.kit.options import OutputAs, argument
from statechannel.cli.kit.output import Output, print_json, print_table, stdout

if TYPE_CHECKING:
    from shedders.kafka_rebalance.goals.goal import GoalRow


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Kafka's own partitions: measure load, plan a rebalance, show it, execute it, roll it back.",
)


goals_app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Goals of a plan: list, explain.")


@goals_app.command("list")
def list_(output: OutputAs = Output.TABLE) -> None:
    """List the goals in the order of planning."""
    need_extra("numpy")
    from shedders.kafka_rebalance.goals.table import every, modes_text

    goals = every()
    if output is Output.JSON:
        print_json({"goals": [_fields(goal) for goal in goals]})
        return
    print_table(
        ("goal", "kind", "range", "needs", "default of", "about"),
        [(goal.name, goal.kind, goal.range_text, goal.needs_text, modes_text(goal), goal.about) for goal in goals],
    )


@goals_app.command()
def explain(
    name: Annotated[str, argument("NAME", "Name of a goal, as in `goals list`.")], output: OutputAs = Output.TABLE
) -> None:
    """Explain a goal: its aim, formula, moves and origin."""
    need_extra("numpy")
    from shedders.kafka_rebalance.goals.table import explained, modes_text

    goal = explained(name)
    if output is Output.JSON:
        print_json({**_fields(goal), "text": goal.text})
        return
    print_table(
        ("goal", "kind", "range", "unit", "needs", "default of"),
        [(goal.name, goal.kind, goal.range_text, goal.facts.unit, goal.needs_text, modes_text(goal))],
    )
    stdout().print()
    stdout().print(goal.text, markup=False)


def _fields(goal: GoalRow) -> dict[str, Any]:
    from shedders.kafka_rebalance.goals.table import modes_of

    return {
        "name": goal.name,
        "hard": goal.hard,
        "unit": goal.facts.unit,
        "range_share": goal.share,
        "range_of": goal.shape.share_of,
        "needs": list(goal.needs),
        "modes": list(modes_of(goal)),
        "comes_with_mode": bool(goal.with_mode),
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
