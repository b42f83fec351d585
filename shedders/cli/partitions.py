"""`statechannel partitions goals|sample|plan|show|apply|status|pause|resume|cancel|rollback`: Kafka's own partitions."""

from __future__ import annotations

import typer

from shedders.cli.partitions_sample import sample

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="Kafka's own partitions: measure, plan a rebalance, read it, carry it out, undo it.",
)


@app.callback()
def group() -> None:
    """Kafka's own partitions: measure, plan a rebalance, read it, carry it out, undo it."""


app.command()(sample)
