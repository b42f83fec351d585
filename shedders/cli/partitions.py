"""`statechannel partitions goals|sample|layout|plan|show|apply|status|pause|resume|cancel|rollback`: Kafka's own partitions."""

from __future__ import annotations

import typer

from shedders.cli.partitions_apply import apply
from shedders.cli.partitions_cancel import cancel
from shedders.cli.partitions_goals import app as goals
from shedders.cli.partitions_layout import layout
from shedders.cli.partitions_pause import pause
from shedders.cli.partitions_plan import plan
from shedders.cli.partitions_resume import resume
from shedders.cli.partitions_rollback import rollback
from shedders.cli.partitions_sample import sample
from shedders.cli.partitions_show import show
from shedders.cli.partitions_status import status

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Kafka's own partitions: measure, plan a rebalance, read it, carry it out, undo it.",
)


@app.callback()
def group() -> None:
    """Kafka's own partitions: measure, plan a rebalance, read it, carry it out, undo it."""


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
