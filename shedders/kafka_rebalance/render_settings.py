"""Makes design/partitions-settings.md: `python -m shedders.kafka_rebalance.render_settings > design/partitions-settings.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from shedders.kafka_rebalance.settings import NAME, PartitionsSettings
from shedders.model.extension_settings import group_tables

PREFIX = f"extensions.{NAME}"


def render() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Settings of the rebalance planner"
    yield ""
    yield "Made from the code by `python -m shedders.kafka_rebalance.render_settings`; a test compares. Do not edit by hand."
    yield ""
    yield f"Given like all others (settings.md), below `{PREFIX}`, to the commands of `statechannel partitions`; options of a"
    yield f"command stand over them: `--set {PREFIX}.pace.moves_per_broker=10`, or in the file"
    yield ""
    yield "```toml"
    yield f"[{PREFIX}.pace]"
    yield "moves_per_broker = 10"
    yield "throttle_bytes_per_s = 50_000_000"
    yield ""
    yield f"[{PREFIX}.plan]"
    yield 'excluded_topics = ["tmp-.*"]'
    yield "```"
    yield ""
    yield "Brokers of the channel check them where their file has them, and use none."
    yield from group_tables(PREFIX, PartitionsSettings, upstream=False)


if __name__ == "__main__":
    sys.stdout.write(render())
