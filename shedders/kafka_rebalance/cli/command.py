"""`statechannel partitions goals|sample|layout|plan|show|apply|status|pause|resume|cancel|rollback`: Kafka's own partitions."""

from __future__ import annotations

import typer

from shedders.kafka_rebalance.cli.apply import apply
from shedders.kafka_rebalance.cli.executions import cancel, pause, resume, status
from shedders.kafka_rebalance.cli.goals import app as goals
from shedders.kafka_rebalance.cli.layout import layout
from shedders.kafka_rebalance.cli.plan import plan
from shedders.kafka_rebalance.cli.rollback import rollback
from shedders.kafka_rebalance.cli.sample import sample
from shedders.kafka_rebalance.cli.show import show

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Kafka's own partitions: measure load, plan a rebalance, show it, execute it, roll it back.",
)


@app.callback()
def group() -> None:
    """Kafka's own partitions: measure load, plan a rebalance, show it, execute it, roll it back."""


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
app.add_typer(goals, name="goals")
