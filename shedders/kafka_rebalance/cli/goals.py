"""`statechannel partitions goals list|explain`: the goals of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shedders.kafka_rebalance.cli.arguments import need_extra
from statechannel.cli.kit.options import OutputAs
from statechannel.cli.kit.output import Output, print_json, print_table, stdout

if TYPE_CHECKING:
    from shedders.kafka_rebalance.planning.registry import Explained

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Goals of a plan: list, explain.")


@app.callback()
def group() -> None:
    """Goals of a plan: list, explain."""


@app.command("list")
def list_(output: OutputAs = Output.TABLE) -> None:
    """List the goals in the order of planning."""
    need_extra("numpy")
    from shedders.kafka_rebalance.planning.registry import every

    found = every()
    if output is Output.JSON:
        print_json({"goals": [_fields(one) for one in found]})
        return
    print_table(
        ("goal", "kind", "range", "needs", "default of", "about"),
        [
            (
                one.name,
                "hard" if one.hard else "soft",
                one.range_text,
                ", ".join(one.needs) or "nothing",
                ", ".join(one.modes) or "no mode",
                one.about,
            )
            for one in found
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

    found = explained(name)
    if output is Output.JSON:
        print_json({**_fields(found), "text": found.text})
        return
    print_table(
        ("goal", "kind", "range", "unit", "needs", "default of"),
        [
            (
                found.name,
                "hard" if found.hard else "soft",
                found.range_text,
                found.unit,
                ", ".join(found.needs) or "nothing",
                ", ".join(found.modes) or "no mode",
            )
        ],
    )
    stdout().print()
    stdout().print(found.text, markup=False)


def _fields(one: Explained) -> dict[str, Any]:
    return {
        "name": one.name,
        "hard": one.hard,
        "unit": one.unit,
        "range_share": one.share,
        "range_of": one.share_of,
        "needs": list(one.needs),
        "modes": list(one.modes),
        "comes_with_mode": one.with_mode,
        "about": one.about,
    }
