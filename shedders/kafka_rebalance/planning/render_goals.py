"""Makes design/partitions-goals.md from the goals: `python -m shedders.kafka_rebalance.planning.render_goals > FILE`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shedders.kafka_rebalance.planning.registry import every
from shedders.render_strategies import prose

if TYPE_CHECKING:
    from collections.abc import Iterator


def render() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    found = [one for one in every() if one.origin.startswith("shedders.")]
    yield "# Goals of the rebalance planner"
    yield ""
    yield "Made from the code by `python -m shedders.kafka_rebalance.planning.render_goals`. Do not edit by hand."
    yield "`statechannel partitions goals explain NAME` prints the same. More on how plans are made: [partitions](partitions.md)."
    yield ""
    yield "| goal | kind | range | needs | default of | about |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        cells = (
            f"[`{one.name}`](#{one.name})",
            "hard" if one.hard else "soft",
            one.range_text,
            ", ".join(one.needs) or "nothing",
            ", ".join(one.modes) or "no mode",
            one.about,
        )
        yield f"| {' | '.join(cells)} |"
    for one in found:
        yield ""
        yield f"## {one.name}"
        yield ""
        yield from prose(one.text)


if __name__ == "__main__":
    sys.stdout.write(render())
