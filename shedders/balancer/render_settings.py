"""Generator of design/balancer-settings.md: `python -m shedders.balancer.render_settings > design/balancer-settings.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from textwrap import fill

from shedders.balancer.setting_names import BALANCER
from shedders.balancer.settings import BalancerSettings
from shedders.model.extension_settings import group_tables

PREFIX = "extensions.balancer"


def render() -> str:
    """The whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Settings of the balancing extension"
    yield ""
    yield "Generated from the code by `python -m shedders.balancer.render_settings`; a test compares. Do not edit by hand."
    yield ""
    yield f"Given like all others (settings.md), below `{PREFIX}`: `--set {PREFIX}.interval_s=30`, or in the file"
    yield ""
    yield "```toml"
    yield f"[{PREFIX}]"
    yield "interval_s = 30"
    yield ""
    yield f"[{PREFIX}.load]"
    yield "top_bundles_max = 20"
    yield "```"
    yield ""
    names = ", ".join(f"`{name}`" for name in BALANCER)
    yield fill(
        "They apply to one broker, from its start. A policy of kind `setting` (policies.md) can change on all running brokers: "
        f"profile, strategies, their settings, and of the balancer {names} and `budget.*`.",
        width=128,
        break_on_hyphens=False,
    )
    yield from group_tables(PREFIX, BalancerSettings)


if __name__ == "__main__":
    sys.stdout.write(render())
